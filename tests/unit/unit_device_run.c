/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) wrap=mincore */
/*
 * Goal: a job that is given up, cancelled or past its deadline touches no page any more, from the
 * piece on in which device_run sees the end. Before, it changes no more than a piece's bytes at a
 * time.
 * Method: device_run alone, no threads, a clock of the test's own. An image of 128 KiB is decoded
 * piece by piece, and stopped after each possible number of pieces: the page is compared before and
 * after. Encodes and verifications likewise, by what they answer. On every kernel. Then an image of
 * 65,536 tiles of 32 bytes is measured: as many pieces as its tiles ask for, and a stop is seen in
 * every seventh. Likewise a page of 1,024 rows is looked at for holes, row by row.
 */

#include "daemon/device/device_run.h"
#include "tests/lib/test.h"
#include "tests/lib/wrap.h"

enum {
	LAYERS = 2,
	HEADS = 4,
	TOKENS = 64,
	DIM = 128,
	PAGE = 2 * LAYERS * HEADS * TOKENS * DIM * 2,
	LAYERS_MOST = 256,
	PIECE_TILES = 2048, /* that a piece of measuring passes over, at most */
	MEMORY_PAGE = 4096,
	ROWS = 2 * LAYERS * HEADS * TOKENS,
	PIECE_CALLS = 8, /* of mincore(), at most */
	FILLER = 0xa5,
	DEADLINE = 1000
};
enum how { GIVEN_UP, CANCELLED, LATE, HOWS };

static struct bed {
	const struct codec_kernels *kernels;
	struct page_piece pieces[2 * LAYERS_MOST];
	struct device_layout layout;
	struct image_shape shape;
	struct device_job job;
	struct device_run *run;
	uint32_t given_up;
	bool unguarded;
	uint8_t *page, *before, *image, *scratch;
} b;

static const struct image_geometry usual = { .dtype = DTYPE_BF16,
					     .layers = LAYERS,
					     .kv_heads = HEADS,
					     .head_dim_k = DIM,
					     .head_dim_v = DIM,
					     .block_tokens = TOKENS };
static const struct image_geometry many_tiles = { .dtype = DTYPE_BF16,
						  .layers = LAYERS_MOST,
						  .kv_heads = 128,
						  .head_dim_k = 1,
						  .head_dim_v = 1,
						  .block_tokens = IMAGE_GROUP_TOKENS };

/* Rows lie so far apart. */
static void bed_make_apart(const struct codec_kernels *kernels, const struct image_geometry *g,
			   uint32_t row)
{
	const uint32_t plane = row * g->kv_heads * g->block_tokens, page = 2 * g->layers * plane;

	b = (struct bed){ .kernels = kernels };
	b.page = aligned_alloc(MEMORY_PAGE, page);
	b.before = malloc(page);
	b.image = aligned_alloc(4096, page);
	b.scratch = aligned_alloc(64, CODEC_SCRATCH_BYTES);
	b.run = aligned_alloc(_Alignof(struct device_run), sizeof(*b.run));
	assert_true(b.page && b.before && b.image && b.scratch && b.run);
	for (uint32_t i = 0; i < 2 * g->layers; i++)
		b.pieces[i] = (struct page_piece){
			.base = b.page + (size_t)i * plane,
			.page_stride = page,
			.head_stride = row,
			.token_stride = row * g->kv_heads,
			.kind = i & 1 ? KIND_V : KIND_K,
			.layer = i / 2,
		};
	b.layout.pages = (struct page_layout){
		.geometry = *g,
		.n_pieces = 2 * g->layers,
		.pieces = b.pieces,
	};
	assert_int_equal(image_shape(&b.layout.pages.geometry, CODEC_FP8, CODEC_FP8, &b.shape,
				     NULL),
			 0);
	memset(b.page, 0x3f, page);
}

static void bed_make(const struct codec_kernels *kernels, const struct image_geometry *g)
{
	bed_make_apart(kernels, g, 2 * g->head_dim_k);
}

FIXTURE_DO(bed_free, free(b.page); free(b.before); free(b.image); free(b.scratch); free(b.run));

TEST_EACH(NULL, bed_free);

static void begin(enum device_job_kind kind)
{
	b.given_up = 0;
	b.job = (struct device_job){
		.kind = kind,
		.codec_k = CODEC_FP8,
		.codec_v = CODEC_FP8,
		.verify = kind == DEVICE_DECODE,
		.layout = &b.layout,
		.geometry = &b.layout.pages.geometry,
		.image = b.image,
		.image_bytes = b.shape.image_bytes,
		.given_up = &b.given_up,
		.deadline_ns = DEADLINE,
	};
	device_run_begin(b.run, b.kernels, &b.job, !b.unguarded);
}

static int piece(uint64_t now)
{
	return device_run_piece(b.run, now, b.scratch);
}

/* Pieces until the end; *ret: how many. */
static int all(uint32_t *ret)
{
	int r;

	*ret = 0;
	do {
		r = piece(0);
		(*ret)++;
	} while (r == CODEC_MORE);
	return r;
}

static uint32_t calls;

/* After so many pieces it stops, and at once. */
static void stops_after(uint32_t pieces, enum how how)
{
	for (uint32_t i = 0; i < pieces; i++)
		assert_int_equal(piece(DEADLINE - 1), CODEC_MORE);
	calls = 0;
	if (how == GIVEN_UP)
		b.given_up = 1;
	if (how == CANCELLED)
		b.job.cancelled = 1;
	assert_int_equal(piece(how == LATE ? DEADLINE : DEADLINE - 1),
			 how == LATE ? -ETIMEDOUT : -ECANCELED);
}

static uint32_t changed(void)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < PAGE; i++)
		n += b.page[i] != b.before[i];
	return n;
}

static void stopped_everywhere(enum device_job_kind kind)
{
	uint32_t n;

	begin(kind);
	assert_int_equal(all(&n), 0);
	assert_true(n >= (kind == DEVICE_VERIFY ? PAGE / 2 : PAGE) / CODEC_PIECE_BYTES);
	for (int how = 0; how < HOWS; how++)
		for (uint32_t at = 0; at < n; at++) {
			memset(b.page, kind == DEVICE_DECODE ? FILLER : 0x3f, PAGE);
			begin(kind);
			for (uint32_t i = 0; i < at; i++) {
				if (at + 1 == n) /* once is enough */
					memcpy(b.before, b.page, PAGE);
				assert_int_equal(piece(DEADLINE - 1), CODEC_MORE);
				assert_true(at + 1 < n || changed() <= CODEC_PIECE_BYTES);
			}
			memcpy(b.before, b.page, PAGE);
			stops_after(0, (enum how)how);
			assert_memory_equal(b.page, b.before, PAGE);
		}
}

static void each(enum device_job_kind kind)
{
	static const char *const names[] = { "ref", "avx2", "vbmi2" };

	for (int i = 0; i < 3; i++) {
		uint32_t n;

		if (!codec_kernels(names[i]))
			continue;
		bed_make(codec_kernels(names[i]), &usual);
		begin(DEVICE_ENCODE);
		assert_int_equal(all(&n), 0);
		stopped_everywhere(kind);
		(void)bed_free(NULL);
		b = (struct bed){ 0 };
	}
}

TEST_DO(a_decode_stops_between_pieces, each(DEVICE_DECODE));
TEST_DO(an_encode_stops_between_pieces, each(DEVICE_ENCODE));
TEST_DO(a_verification_stops_between_pieces, each(DEVICE_VERIFY));

TEST(a_damaged_image_touches_no_page)
{
	uint32_t n;

	bed_make(codec_kernels(NULL), &usual);
	begin(DEVICE_ENCODE);
	assert_int_equal(all(&n), 0);
	b.image[b.shape.image_bytes - 1] ^= 1;
	memset(b.page, FILLER, PAGE);
	memset(b.before, FILLER, PAGE);
	begin(DEVICE_DECODE);
	assert_int_equal(all(&n), -EBADMSG);
	assert_memory_equal(b.page, b.before, PAGE);
}

static void measure(void)
{
	begin(DEVICE_ENCODE);
	b.job.measure = true;
}

TEST(measuring_stops_between_pieces)
{
	uint32_t encoding, n;

	bed_make(codec_kernels(NULL), &many_tiles);
	begin(DEVICE_ENCODE);
	assert_int_equal(all(&encoding), 0);
	assert_true(b.job.error.squares == 0);
	measure();
	assert_int_equal(all(&n), 0);
	assert_true(b.job.error.squares > 0);
	assert_in_range(n - encoding, b.shape.scale_bytes / PIECE_TILES,
			2 * b.shape.scale_bytes / PIECE_TILES);
	for (int how = 0; how < HOWS; how++)
		for (uint32_t at = encoding; at < n; at += 7) {
			measure();
			stops_after(at, (enum how)how);
			assert_true(b.job.error.squares == 0);
		}
}

REAL(int, mincore, (void *address, size_t length, unsigned char *vec))
{
	calls++;
	return __real_mincore(address, length, vec);
}

/* Pieces until the page was looked at; none has more calls than it may. */
static uint32_t look(enum device_job_kind kind)
{
	uint32_t n = 0;

	begin(kind);
	for (uint32_t all = 0; all < ROWS; all += calls) {
		calls = 0;
		assert_int_equal(piece(DEADLINE - 1), CODEC_MORE);
		assert_in_range(calls, 1, PIECE_CALLS);
		n++;
	}
	return n;
}

TEST(looking_for_holes_stops_between_pieces)
{
	uint32_t n;

	bed_make_apart(codec_kernels(NULL), &usual, MEMORY_PAGE);
	b.unguarded = true;
	n = look(DEVICE_ENCODE);
	assert_int_equal(n, ROWS / PIECE_CALLS);
	for (int how = 0; how < HOWS; how++)
		for (uint32_t at = 0; at < n; at += 7) {
			begin(DEVICE_ENCODE);
			stops_after(at, (enum how)how);
			assert_int_equal(calls, 0);
		}
}

TEST(a_page_with_a_hole_is_not_touched)
{
	const size_t hole = (size_t)(ROWS - 5) * MEMORY_PAGE;
	unsigned char there;
	uint32_t n;

	bed_make_apart(codec_kernels(NULL), &usual, MEMORY_PAGE);
	b.unguarded = true;
	(void)look(DEVICE_ENCODE);
	assert_int_equal(all(&n), 0); /* the rest of it */
	memset(b.page, FILLER, hole);
	memset(b.before, FILLER, hole);
	for (enum device_job_kind kind = DEVICE_ENCODE; kind <= DEVICE_DECODE; kind++) {
		assert_int_equal(madvise(b.page + hole, MEMORY_PAGE, MADV_DONTNEED), 0);
		begin(kind);
		assert_int_equal(all(&n), -EFAULT);
		assert_int_equal(n, ROWS / PIECE_CALLS);
		assert_memory_equal(b.page, b.before, hole);
		assert_int_equal(__real_mincore(b.page + hole, MEMORY_PAGE, &there), 0);
		assert_int_equal(there & 1, 0);
	}
	b.page[hole] = 1;
	(void)look(DEVICE_DECODE);
	assert_int_equal(all(&n), 0);
	/* Where the kernel watches, and for jobs without a page, nothing is asked. */
	b.unguarded = false;
	calls = 0;
	begin(DEVICE_DECODE);
	assert_int_equal(all(&n), 0);
	b.unguarded = true;
	begin(DEVICE_VERIFY);
	assert_int_equal(all(&n), 0);
	assert_int_equal(calls, 0);
}
