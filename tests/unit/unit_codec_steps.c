/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Goal: a run does bounded work in a step, can be left there, goes on in another thread, and its
 * checksum is XXH3-64 however it is cut. A page that changes while it is encoded gives a wrong
 * value at worst: never a crash, never an image whose checksum is not of its own bytes. Method:
 * every kernel. Images of all lengths up to some thousands, verified in random steps, against the
 * library's sum; a page whose rows lie a page of memory or more apart, decoded step by step,
 * counting the rows that changed; an image made and taken apart with each step in a thread of its
 * own (for SAN=thread); a page that a thread keeps scribbling over, Infs and NaNs among it, while
 * it is encoded some hundred times. The seed is printed; SEED=n repeats. That steps give the bytes
 * of the whole is unit_codec_pages.c.
 */

#include "tests/lib/lib_pages.h"
#include "tests/lib/test.h"

enum {
	LENGTHS = 4000,
	SCALES = 70,
	TOKENS = 64,
	HEADS = 2,
	DIM = 128,
	ROW = 2 * DIM,
	VALUES = TOKENS * HEADS * DIM,
	FILLER = 0x5a,
	ROUNDS = 300
};

static const char *const names[] = { "ref", "avx2", "vbmi2" };
static const struct image_identity who = { { 1 }, { 2 } };
static struct random choices;

static uint32_t pick(uint32_t n)
{
	return random_below(&choices, n);
}

static void each(void (*test)(const struct codec_kernels *))
{
	for (int i = 0; i < 3; i++)
		if (codec_kernels(names[i]))
			test(codec_kernels(names[i]));
}

static int verify(const struct codec_kernels *k, const uint8_t *image,
		  const struct image_shape *shape, uint64_t sum)
{
	const uint32_t budget = 1 + pick(400);
	struct codec_run run;
	int r;

	k->verify_start(&run, image, shape, sum);
	do
		r = k->step(&run, budget, NULL);
	while (r == CODEC_MORE);
	return r;
}

static void sums_of_all_lengths(const struct codec_kernels *k)
{
	uint8_t *image = aligned_alloc(4096, 2 * 4096);

	assert_non_null(image);
	for (uint32_t i = 0; i < 2 * 4096; i++)
		image[i] = (uint8_t)pick(256);
	for (uint32_t n = 1; n < LENGTHS; n++) {
		const struct image_shape shape = {
			.payload_offset = 4096,
			.payload_bytes = n,
			.scale_bytes = pick(2) ? pick(SCALES) : 0,
		};
		const uint64_t sum = image_checksum(image, &shape);

		assert_int_equal(verify(k, image, &shape, sum), 0);
		assert_int_equal(codec_verify(k, image, &shape, sum), 0);
		image[4096 + pick(n)] ^= 1;
		assert_int_equal(verify(k, image, &shape, sum), -EBADMSG);
	}
	free(image);
}

TEST_DO(a_checksum_is_xxh3_however_it_is_cut, each(sums_of_all_lengths));

/* A page of one K plane; its rows `stride` apart, heads side by side. */
struct page {
	struct page_layout layout;
	struct page_piece piece;
	struct image_shape shape;
	uint8_t *bytes, *image;
	uint64_t used;
};

static void page_make(struct page *p, uint64_t stride, enum image_codec codec)
{
	*p = (struct page){ .used = (TOKENS - 1) * stride + HEADS * ROW };
	p->bytes = calloc(1, p->used);
	p->image = aligned_alloc(4096, 128 << 10);
	assert_non_null(p->bytes);
	assert_non_null(p->image);
	for (uint64_t i = 0; i < p->used; i += 2)
		p->bytes[i] = (uint8_t)pick(256), p->bytes[i + 1] = (uint8_t)(0x3c + pick(4));
	p->piece = (struct page_piece){
		.base = p->bytes,
		.page_stride = p->used,
		.head_stride = ROW,
		.token_stride = stride,
		.kind = KIND_K,
	};
	p->layout = (struct page_layout){
		.geometry = { .dtype = DTYPE_BF16,
			      .layers = 1,
			      .kv_heads = HEADS,
			      .head_dim_k = DIM,
			      .block_tokens = TOKENS },
		.n_pieces = 1,
		.pieces = &p->piece,
	};
	assert_int_equal(image_shape(&p->layout.geometry, codec, codec, &p->shape, NULL), 0);
}

static void page_free(struct page *p)
{
	free(p->bytes);
	free(p->image);
}

static uint32_t rows_done(const struct page *p)
{
	uint32_t n = 0;

	for (uint32_t t = 0; t < TOKENS; t++)
		for (uint32_t h = 0; h < HEADS; h++)
			n += p->bytes[t * p->piece.token_stride + h * ROW] != FILLER;
	return n;
}

/* 16 rows or fewer a step, where each row costs a page of memory; then it is dropped, and the rest
 * of the page stays. */
static void rows_far_apart(const struct codec_kernels *k, enum image_codec codec)
{
	uint8_t *scratch = aligned_alloc(64, CODEC_SCRATCH_BYTES);
	struct codec_run run;
	uint32_t steps = 0, before = 0;
	struct page p;

	page_make(&p, 64 << 10, codec);
	for (uint32_t t = 0; t < TOKENS; t++)
		for (uint32_t h = 0; h < HEADS; h++) /* not the filler */
			p.bytes[t * p.piece.token_stride + h * ROW] = 1;
	assert_int_equal(codec_encode(k, &p.layout, 0, codec, codec, &who, p.image, scratch), 0);
	memset(p.bytes, FILLER, p.used);
	assert_int_equal(k->decode_start(&run, &p.layout, 0, p.image), 0);
	while (k->step(&run, CODEC_PIECE_BYTES, scratch) == CODEC_MORE &&
	       steps < TOKENS * HEADS / 16 - 1) {
		const uint32_t now = rows_done(&p);

		assert_true(now > before && now - before <= 16);
		before = now;
		steps++;
	}
	assert_int_equal(steps, TOKENS * HEADS / 16 - 1);
	assert_true(rows_done(&p) <= TOKENS * HEADS);
	page_free(&p);
	free(scratch);
}

static void rows_far_apart_each(const struct codec_kernels *k)
{
	rows_far_apart(k, CODEC_FP8);
	rows_far_apart(k, CODEC_INT8);
	rows_far_apart(k, CODEC_RAW);
}

TEST_DO(a_step_touches_few_pages_of_memory, each(rows_far_apart_each));

struct one_step_of {
	const struct codec_kernels *kernels;
	struct codec_run *run;
	int r;
};

static void *one_step(void *arg)
{
	struct one_step_of *t = arg;
	uint8_t *scratch = aligned_alloc(64, CODEC_SCRATCH_BYTES);

	t->r = t->kernels->step(t->run, 10000, scratch);
	t->kernels->fence();
	free(scratch);
	return NULL;
}

static int steps_in_threads(const struct codec_kernels *k, struct codec_run *run)
{
	struct one_step_of t = { .kernels = k, .run = run };
	pthread_t thread;

	do {
		assert_int_equal(pthread_create(&thread, NULL, one_step, &t), 0);
		assert_int_equal(pthread_join(thread, NULL), 0);
	} while (t.r == CODEC_MORE);
	return t.r;
}

static void many_threads(const struct codec_kernels *k)
{
	struct codec_run run;
	uint8_t *before;
	struct page p;

	page_make(&p, HEADS * ROW, CODEC_RAW);
	before = malloc(p.used);
	assert_non_null(before);
	memcpy(before, p.bytes, p.used);
	assert_int_equal(k->encode_start(&run, &p.layout, 0, CODEC_RAW, CODEC_RAW, &who, p.image),
			 0);
	assert_int_equal(steps_in_threads(k, &run), 0);
	assert_true(((struct image_header *)(void *)p.image)->checksum ==
		    image_checksum(p.image, &p.shape));
	memset(p.bytes, FILLER, p.used);
	assert_int_equal(k->decode_start(&run, &p.layout, 0, p.image), 0);
	assert_int_equal(steps_in_threads(k, &run), 0);
	assert_memory_equal(p.bytes, before, p.used);
	free(before);
	page_free(&p);
}

TEST_DO(a_run_goes_on_in_another_thread, each(many_threads));

/* --- a page that changes --- */

struct scribbler {
	volatile uint16_t *page;
	atomic_int stop;
};

static void *scribble(void *arg)
{
	struct scribbler *s = arg;
	uint32_t x = 1;

	while (!atomic_load_explicit(&s->stop, memory_order_relaxed)) {
		x = x * 1664525u + 1013904223u;
		s->page[(x >> 8) % VALUES] = x & 0x400000 ? (uint16_t)(x >> 16) : 0x3f80;
		if ((x & 0xff0000) == 0) /* calm down: else every encode would meet an Inf */
			for (int i = 0; i < VALUES; i++)
				s->page[i] = (uint16_t)(0x3f00 + (i & 127));
	}
	return NULL;
}

static void encode_under_scribbling(const struct codec_kernels *k, enum image_codec codec)
{
	uint8_t *scratch = aligned_alloc(64, CODEC_SCRATCH_BYTES);
	struct scribbler s = { 0 };
	struct image_shape shape;
	struct page p;
	pthread_t thread;

	page_make(&p, HEADS * ROW, codec);
	s.page = (void *)p.bytes;
	assert_int_equal(pthread_create(&thread, NULL, scribble, &s), 0);
	for (int i = 0; i < ROUNDS; i++) {
		const int r = codec_encode(k, &p.layout, 0, codec, codec, &who, p.image, scratch);

		assert_true(r == 0 || (r == -ERANGE && codec != CODEC_RAW));
		if (r)
			continue;
		assert_int_equal(image_header_check((void *)p.image, &p.layout.geometry, &who,
						    &shape),
				 0);
		assert_true(((struct image_header *)(void *)p.image)->checksum ==
			    image_checksum(p.image, &shape));
	}
	atomic_store(&s.stop, 1);
	assert_int_equal(pthread_join(thread, NULL), 0);
	page_free(&p);
	free(scratch);
}

#ifndef __has_feature
#define __has_feature(name) 0
#endif

static void changing_page(enum image_codec codec)
{
#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
	skip(); /* the race is the subject */
#endif
	for (int i = 0; i < 3; i++)
		if (codec_kernels(names[i]))
			encode_under_scribbling(codec_kernels(names[i]), codec);
}

TEST_DO(fp8_of_a_changing_page, changing_page(CODEC_FP8));
TEST_DO(int8_of_a_changing_page, changing_page(CODEC_INT8));
TEST_DO(raw_of_a_changing_page, changing_page(CODEC_RAW));

TEST_FIRST(choices = random_seeded("unit_codec_steps"));
