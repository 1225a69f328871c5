/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * Goal: whole pages of any geometry, strides and alignment go into images and come back.
 * Method: random geometries (seed printed; SEED=n repeats), each laid out in a random way in a
 * buffer that ends at an inaccessible page, so a read past a row's end dies. Images of the fast
 * kernels must equal ref.c's in every byte, done at once or in steps of random budgets; decoding
 * must restore the reference's page and leave every byte between the rows alone.
 */
#include "kernels/int8.h"
#include "tests/lib/lib_pages.h"
#include "tests/lib/test.h"

/* The largest layout has 5.5 MB. */
enum { ROUNDS = 400, MAX_PIECES = 32, ARENA = 8 << 20, IMAGE_ROOM = 8 << 20, FILLER = 0xa5 };

struct bed {
	const struct codec_kernels *fast;
	struct random random;
	uint8_t *arena, *other; /* pages; the same layout twice */
	uint8_t *image, *image2, *scratch;
	struct page_piece pieces[MAX_PIECES], pieces2[MAX_PIECES];
	struct page_layout layout, layout2;
	enum image_codec codec_k, codec_v;
	struct image_shape shape;
	struct image_identity identity;
	uint64_t used; /* bytes at the end of the arena that hold the page */
};

static struct bed b;

static uint32_t pick(uint32_t n) /* 0 .. n - 1 */
{
	return random_below(&b.random, n);
}

/* n bytes that end exactly where an inaccessible page begins. */
static uint8_t *fenced(size_t n)
{
	uint8_t *p =
		mmap(NULL, n + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	assert_true(p != MAP_FAILED);
	assert_int_equal(mprotect(p + n, 4096, PROT_NONE), 0);
	return p;
}

static void set_up_with(const char *name)
{
	memset(&b, 0, sizeof(b));
	b.fast = codec_kernels(name);
	b.random = random_seeded(name);
	b.arena = fenced(ARENA);
	b.other = fenced(ARENA);
	b.image = fenced(IMAGE_ROOM);
	b.image2 = fenced(IMAGE_ROOM);
	b.scratch = fenced(CODEC_SCRATCH_BYTES);
}

FIXTURE_DO(set_up_avx2, set_up_with("avx2"));
FIXTURE_DO(set_up_vbmi2, set_up_with("vbmi2"));
FIXTURE_DO(tear_down, (void)munmap(b.arena, ARENA + 4096); (void)munmap(b.other, ARENA + 4096);
	   (void)munmap(b.image, IMAGE_ROOM + 4096); (void)munmap(b.image2, IMAGE_ROOM + 4096);
	   (void)munmap(b.scratch, CODEC_SCRATCH_BYTES + 4096));

static void random_geometry(uint32_t dtype)
{
	static const uint32_t dims[] = { 1, 3, 16, 31, 32, 33, 64, 80, 127, 128, 256, 576 };
	static const uint32_t tokens[] = { 1, 5, 15, 16, 17, 40, 64, 100 };
	struct image_geometry *g = &b.layout.geometry;

	*g = (struct image_geometry){
		.dtype = dtype,
		.layers = 1 + pick(3),
		.kv_heads = 1 + pick(5),
		.head_dim_k = pick(8) ? dims[pick(12)] : 0,
		.head_dim_v = pick(6) ? dims[pick(12)] : 0,
		.block_tokens = tokens[pick(8)],
		.typed_segments = pick(3),
		.opaque_bytes = 0,
	};
	g->typed_values = g->typed_segments ? 1 + pick(3000) : 0;
	if (!g->head_dim_k && !g->head_dim_v && !g->typed_segments)
		g->head_dim_k = 64;
}

/* One piece at the end of the layout so far (offsets are counted from the page's start). */
static void add_piece(struct page_piece piece, uint64_t bytes, uint32_t element)
{
	/* a gap, and another alignment */
	b.used += pick(2) ? 0 : (uint64_t)element * pick(70);
	piece.base = (uint8_t *)(uintptr_t)b.used; /* an offset, until place() */
	assert_true(b.layout.n_pieces < MAX_PIECES);
	b.pieces[b.layout.n_pieces++] = piece;
	b.used += bytes;
}

static void add_plane(uint32_t layer, uint32_t kind, uint32_t element)
{
	const struct image_geometry *g = &b.layout.geometry;
	const uint64_t row = (uint64_t)element * (kind == KIND_K ? g->head_dim_k : g->head_dim_v);
	const uint64_t gap = pick(2) ? 0 : (uint64_t)element * pick(40);
	struct page_piece p = { .kind = kind, .layer = layer };

	if (row == 0)
		return;
	if (pick(2)) { /* token-major */
		p.head_stride = row + gap;
		p.token_stride = g->kv_heads * p.head_stride;
		add_piece(p,
			  (g->block_tokens - 1) * p.token_stride +
				  (g->kv_heads - 1) * p.head_stride + row,
			  element);
	} else {
		p.token_stride = row + gap;
		p.head_stride = g->block_tokens * p.token_stride;
		add_piece(p,
			  (g->kv_heads - 1) * p.head_stride +
				  (g->block_tokens - 1) * p.token_stride + row,
			  element);
	}
}

static void add_opaque(void)
{
	const uint32_t rows = pick(2) ? b.layout.geometry.block_tokens : 1;
	const uint32_t length = pick(8) ? 1 + pick(100) : 5000;
	struct page_piece p = { .kind = KIND_OPAQUE, .length = length };

	p.token_stride = rows > 1 ? length + pick(30) : 0;
	b.layout.geometry.opaque_bytes += rows * length;
	add_piece(p, (rows - 1) * p.token_stride + length, 1);
}

/* The page ends where the arena does. */
static void place(void)
{
	/* whole cache lines go another way than the rest */
	const uint64_t align = pick(2) ? 64 : 8;
	uint64_t start;

	b.used = (b.used + align - 1) & ~(align - 1);
	assert_true(b.used <= ARENA);
	start = ARENA - b.used;
	b.layout2 = b.layout;
	for (uint32_t i = 0; i < b.layout.n_pieces; i++) {
		const uintptr_t offset = (uintptr_t)b.pieces[i].base;

		b.pieces2[i] = b.pieces[i];
		b.pieces[i].base = b.arena + start + offset;
		b.pieces2[i].base = b.other + start + offset;
	}
	b.layout.pieces = b.pieces;
	b.layout2.pieces = b.pieces2;
}

static enum image_codec lossy_codec(uint32_t kind)
{
	const enum image_codec all[] = { CODEC_FP8, CODEC_INT8,
					 kind == KIND_K ? CODEC_K4 : CODEC_V4 };

	return all[pick(3)];
}

/* Those with scales more often than raw. */
static enum image_codec any_codec(uint32_t kind)
{
	return pick(6) ? lossy_codec(kind) : CODEC_RAW;
}

static void random_layout(uint32_t dtype, uint32_t element, enum image_codec k, enum image_codec v)
{
	const uint32_t typed = (random_geometry(dtype), b.layout.geometry.typed_segments);

	b.used = 0;
	b.layout.n_pieces = 0;
	for (uint32_t l = 0; l < b.layout.geometry.layers; l++) {
		add_plane(l, KIND_K, element);
		add_plane(l, KIND_V, element);
	}
	for (uint32_t i = 0; i < typed; i++)
		add_piece((struct page_piece){ .kind = KIND_TYPED,
					       .length = b.layout.geometry.typed_values },
			  (uint64_t)element * b.layout.geometry.typed_values, element);
	for (uint32_t i = pick(3); i; i--) {
		add_opaque();
		b.used = (b.used + 7) & ~7ull;
	}
	place();
	if (image_codec_channels(k) && !b.layout.geometry.head_dim_k &&
	    !b.layout.geometry.head_dim_v)
		k = CODEC_FP8;
	b.codec_k = k;
	b.codec_v = v;
	for (size_t i = 0; i < sizeof(b.identity); i++)
		((uint8_t *)&b.identity)[i] = (uint8_t)pick(256);
	assert_int_equal(image_shape(&b.layout.geometry, k, v, &b.shape, NULL), 0);
	assert_true(b.shape.image_bytes <= IMAGE_ROOM);
}

/* Finite values that fp8 can hold: around one, with zeros and small ones; or all zeros. */
static void fill_values(void)
{
	uint8_t *page = b.arena + ARENA - b.used;
	const uint32_t mood = pick(8),
		       top = b.layout.geometry.dtype == DTYPE_FP16 ? 0x7b00 : 0x7f00;

	for (uint64_t i = 0; i + 2 <= b.used; i += 2) {
		uint32_t v = mood == 0 ? 0 : mood == 1 ? pick(top) : top / 2 - pick(0x600);

		v |= pick(2) << 15;
		page[i] = (uint8_t)v;
		page[i + 1] = (uint8_t)(v >> 8);
	}
}

/* its end at the fence when sizes allow */
static uint8_t *image_at(uint8_t *room)
{
	return room + ((IMAGE_ROOM - b.shape.image_bytes) & ~4095u);
}

/* In steps of random budgets, on scratch that does not stay. */
static int steps(struct codec_run *run)
{
	int r;

	do {
		memset(b.scratch, (int)pick(256), CODEC_SCRATCH_BYTES / 8);
		r = b.fast->step(run, 1 + pick(pick(2) ? 200 : 2 * CODEC_PIECE_BYTES), b.scratch);
	} while (r == CODEC_MORE);
	return r;
}

static int encode_fast(uint8_t *image)
{
	struct codec_run run;
	int r;

	if (pick(2))
		return codec_encode(b.fast, &b.layout, 0, b.codec_k, b.codec_v, &b.identity, image,
				    b.scratch);
	r = b.fast->encode_start(&run, &b.layout, 0, b.codec_k, b.codec_v, &b.identity, image);
	return r ? r : steps(&run);
}

static int decode_fast(const uint8_t *image)
{
	struct codec_run run;
	int r;

	if (pick(2))
		return codec_decode(b.fast, &b.layout, 0, image, b.scratch);
	r = b.fast->decode_start(&run, &b.layout, 0, image);
	return r ? r : steps(&run);
}

static int encode_both(uint8_t **ret_image)
{
	uint8_t *fast = image_at(b.image), *ref = image_at(b.image2);
	int r, s;

	memset(fast, FILLER, b.shape.image_bytes);
	memset(ref, ~FILLER, b.shape.image_bytes);
	r = encode_fast(fast);
	s = codec_encode(&codec_ref, &b.layout, 0, b.codec_k, b.codec_v, &b.identity, ref,
			 b.scratch);
	assert_int_equal(r, s);
	if (!r)
		assert_memory_equal(fast, ref, b.shape.image_bytes);
	*ret_image = fast;
	return r;
}

static void check_header(const uint8_t *image)
{
	struct image_shape shape;

	assert_int_equal(image_header_check((const void *)image, &b.layout.geometry, &b.identity,
					    &shape),
			 0);
	assert_memory_equal(&shape, &b.shape, sizeof(shape));
	assert_int_equal(((const struct image_header *)(const void *)image)->checksum,
			 image_checksum(image, &shape));
	assert_int_equal(codec_verify(b.fast, image, &shape, image_checksum(image, &shape)), 0);
	assert_int_equal(codec_verify(b.fast, image, &shape, image_checksum(image, &shape) ^ 1),
			 -EBADMSG);
}

/* Decodes with both into identical arenas and compares them whole: rows, gaps and all. */
static void decode_both(const uint8_t *image)
{
	memset(b.arena + ARENA - b.used, FILLER, b.used);
	memset(b.other + ARENA - b.used, FILLER, b.used);
	assert_int_equal(decode_fast(image), 0);
	assert_int_equal(codec_decode(&codec_ref, &b.layout2, 0, image, b.scratch), 0);
	assert_memory_equal(b.arena + ARENA - b.used, b.other + ARENA - b.used, b.used);
}

/* Whether a decode has left all rows of a plane alone. */
static bool plane_is_filler(const struct page_layout *l, const struct page_piece *p)
{
	const struct image_geometry *g = &l->geometry;
	const uint32_t row =
		(p->kind == KIND_K ? g->head_dim_k : g->head_dim_v) * image_element_bytes(g->dtype);

	for (uint32_t h = 0; h < g->kv_heads; h++)
		for (uint32_t t = 0; t < g->block_tokens; t++)
			for (uint32_t i = 0; i < row; i++)
				if (p->base[h * p->head_stride + t * p->token_stride + i] != FILLER)
					return false;
	return true;
}

static void decode_range(const uint8_t *image, uint32_t first, uint32_t end)
{
	struct codec_run run;

	assert_int_equal(b.fast->decode_start(&run, &b.layout, 0, image), 0);
	b.fast->decode_layers(&run, first, end);
	assert_int_equal(steps(&run), 0);
}

/* Two ranges of layers, the later one first: each does its own planes and no others, both together
 * the page. */
TEST(layers_by_themselves)
{
	for (uint32_t i = 0; i < ROUNDS; i++) {
		uint32_t layers, cut;
		uint8_t *image;

		random_layout(i & 1 ? DTYPE_FP16 : DTYPE_BF16, 2, any_codec(KIND_K),
			      any_codec(KIND_V));
		layers = b.layout.geometry.layers;
		if (layers < 2)
			continue;
		fill_values();
		if (encode_both(&image))
			continue;
		memset(b.arena + ARENA - b.used, FILLER, b.used);
		memset(b.other + ARENA - b.used, FILLER, b.used);
		assert_int_equal(codec_decode(&codec_ref, &b.layout2, 0, image, b.scratch), 0);
		cut = 1 + pick(layers - 1);
		decode_range(image, cut, layers);
		for (uint32_t k = 0; k < b.layout.n_pieces; k++)
			if (b.layout.pieces[k].kind <= KIND_V && b.layout.pieces[k].layer < cut)
				assert_true(plane_is_filler(&b.layout, &b.layout.pieces[k]));
		decode_range(image, 0, cut);
		assert_memory_equal(b.arena + ARENA - b.used, b.other + ARENA - b.used, b.used);
	}
}

TEST(coded_pages)
{
	uint32_t fitted = 0;

	for (uint32_t i = 0; i < ROUNDS; i++) {
		uint8_t *image;

		random_layout(i & 1 ? DTYPE_FP16 : DTYPE_BF16, 2, any_codec(KIND_K),
			      any_codec(KIND_V));
		fill_values();
		if (encode_both(&image))
			continue;
		fitted++;
		check_header(image);
		decode_both(image);
	}
	assert_true(fitted > ROUNDS / 2);
}

/* decode, then encode again: the same image to the last byte. */
TEST(reencoding_is_identical)
{
	for (uint32_t i = 0; i < ROUNDS / 2; i++) {
		uint8_t *image, *again = b.image2;

		random_layout(i & 1 ? DTYPE_FP16 : DTYPE_BF16, 2, lossy_codec(KIND_K),
			      lossy_codec(KIND_V));
		fill_values();
		if (encode_both(&image))
			continue;
		decode_both(image);
		assert_int_equal(codec_encode(b.fast, &b.layout, 0, b.codec_k, b.codec_v,
					      &b.identity, again, b.scratch),
				 0);
		assert_memory_equal(again, image, b.shape.image_bytes);
	}
}

static void verbatim(uint32_t dtype, uint32_t element, enum image_codec codec)
{
	uint8_t *image, *page;

	random_layout(dtype, element, codec, codec);
	page = b.arena + ARENA - b.used;
	for (uint64_t i = 0; i < b.used; i++)
		page[i] = (uint8_t)pick(256);
	assert_int_equal(encode_both(&image), 0);
	assert_int_equal(b.shape.payload_bytes, b.shape.logical_bytes);
	check_header(image);
	memcpy(b.other + ARENA - b.used, page, b.used);
	/* Decoding over the inverse of it restores every byte that belongs to the block, and no
	 * other. */
	for (uint64_t i = 0; i < b.used; i++)
		page[i] = (uint8_t)~page[i];
	assert_int_equal(decode_fast(image), 0);
	{
		uint64_t restored = 0;

		for (uint64_t i = 0; i < b.used; i++)
			restored += page[i] == b.other[ARENA - b.used + i];
		assert_int_equal(restored, b.shape.logical_bytes);
	}
}

TEST(raw_is_byte_exact)
{
	static const struct {
		uint32_t dtype, element;
	} all[] = {
		{ DTYPE_BF16, 2 }, { DTYPE_FP16, 2 }, { DTYPE_FP32, 4 },
		{ DTYPE_E4M3, 1 }, { DTYPE_E5M2, 1 }, { DTYPE_INT8, 1 },
	};

	for (uint32_t i = 0; i < ROUNDS / 2; i++)
		verbatim(all[i % 6].dtype, all[i % 6].element, CODEC_RAW);
}

/* Values as KV has them. With `any` one in 256 is whatever: NaN, Inf, subnormal, -0. */
static void fill_kv(bool any)
{
	const uint32_t mantissa = b.layout.geometry.dtype == DTYPE_FP16 ? 10 : 7,
		       top = b.layout.geometry.dtype == DTYPE_FP16 ? 31 : 255,
		       base = pick(2) ? 3 + pick(top - 2) : 12 + pick(top - 11);
	uint8_t *page = b.arena + ARENA - b.used;

	for (uint64_t i = 0; i + 2 <= b.used; i += 2) {
		const uint32_t zeros = pick(4096) | 4096, down = 2 + (uint32_t)__builtin_ctz(zeros);
		uint32_t v = ((base - down) & top) << mantissa | pick(1u << mantissa);

		v |= pick(2) << 15;
		if (any && pick(256) == 0)
			v = pick(65536);
		page[i] = (uint8_t)v;
		page[i + 1] = (uint8_t)(v >> 8);
	}
}

/* False: so many steps of it are not full that it would be larger than raw. */
static bool random_lossless(uint32_t dtype)
{
	random_layout(dtype, 2, CODEC_RAW, CODEC_RAW);
	b.codec_k = b.codec_v = CODEC_LOSSLESS;
	return image_shape(&b.layout.geometry, b.codec_k, b.codec_v, &b.shape, NULL) == 0;
}

/* Every bit of the page, and as the reference has it, in an image that is shorter than the most. */
TEST(lossless_is_byte_exact)
{
	const uint32_t room = IMAGE_PACK_SPARE;
	uint32_t fitted = 0;

	for (uint32_t i = 0; i < ROUNDS; i++) {
		struct image_shape most;
		uint8_t *image;

		if (!random_lossless(i & 1 ? DTYPE_FP16 : DTYPE_BF16))
			continue;
		fill_kv(pick(2));
		if (encode_both(&image))
			continue;
		fitted++;
		most = b.shape;
		assert_int_equal(image_header_check((const void *)image, &b.layout.geometry,
						    &b.identity, &b.shape),
				 0);
		assert_in_range(b.shape.image_bytes, b.shape.payload_offset + room,
				most.image_bytes);
		for (uint32_t at = b.shape.image_bytes; at < most.image_bytes; at++)
			assert_int_equal(image[at], 0);
		check_header(image);
		memcpy(b.other, b.arena, ARENA);
		for (uint64_t at = ARENA - b.used; at < ARENA; at++)
			b.arena[at] = (uint8_t)~b.arena[at];
		assert_int_equal(decode_fast(image), 0);
		{
			uint64_t restored = 0;

			for (uint64_t at = ARENA - b.used; at < ARENA; at++)
				restored += b.arena[at] == b.other[at];
			assert_int_equal(restored, b.shape.logical_bytes);
		}
		decode_both(image);
	}
	assert_true(fitted > ROUNDS / 8);
}

TEST(lossless_layers_by_themselves)
{
	for (uint32_t i = 0; i < ROUNDS / 2; i++) {
		uint32_t layers;
		uint8_t *image;

		if (!random_lossless(i & 1 ? DTYPE_FP16 : DTYPE_BF16))
			continue;
		layers = b.layout.geometry.layers;
		fill_kv(false);
		if (layers < 2 || encode_both(&image))
			continue;
		memset(b.other + ARENA - b.used, FILLER, b.used);
		memset(b.arena + ARENA - b.used, FILLER, b.used);
		assert_int_equal(codec_decode(&codec_ref, &b.layout2, 0, image, b.scratch), 0);
		decode_range(image, 1, layers);
		decode_range(image, 0, 1);
		assert_memory_equal(b.arena + ARENA - b.used, b.other + ARENA - b.used, b.used);
	}
}

/* A bit of scales or payload is another: both say the same of it, and where they take it make the
 * same of it. The page's fence holds in any case. */
TEST(lossless_lies)
{
	uint32_t refused = 0;

	for (uint32_t i = 0; i < ROUNDS; i++) {
		uint32_t at;
		uint8_t *image;
		int r;

		if (!random_lossless(i & 1 ? DTYPE_FP16 : DTYPE_BF16))
			continue;
		fill_kv(true);
		if (encode_both(&image))
			continue;
		at = pick(2) ? (uint32_t)sizeof(struct image_header) + pick(b.shape.scale_bytes) :
			       b.shape.payload_offset + pick(b.shape.payload_bytes);
		image[at] ^= (uint8_t)(1u << pick(8));
		memset(b.arena + ARENA - b.used, FILLER, b.used);
		memset(b.other + ARENA - b.used, FILLER, b.used);
		r = decode_fast(image);
		assert_int_equal(codec_decode(&codec_ref, &b.layout2, 0, image, b.scratch), r);
		refused += r != 0;
		if (r == 0)
			assert_memory_equal(b.arena + ARENA - b.used, b.other + ARENA - b.used,
					    b.used);
		else
			assert_int_equal(r, -EBADMSG);
	}
	assert_true(refused > 0);
}

/* A sealed header that says more or less than the packs have is refused, though each pack holds. */
TEST(lossless_of_another_length_is_refused)
{
	for (uint32_t i = 0; i < ROUNDS / 4; i++) {
		struct image_header *header;
		struct codec_run run;
		uint8_t *image;

		if (!random_lossless(i & 1 ? DTYPE_FP16 : DTYPE_BF16))
			continue;
		fill_kv(false);
		if (encode_both(&image))
			continue;
		header = (void *)image;
		header->payload_bytes += pick(2) ? 8 : -8u;
		image_seal(header, header->checksum);
		assert_int_equal(b.fast->decode_start(&run, &b.layout, 0, image), -EBADMSG);
		assert_int_equal(codec_ref.decode_start(&run, &b.layout, 0, image), -EBADMSG);
	}
}

TEST(native_is_byte_exact)
{
	for (uint32_t i = 0; i < ROUNDS / 4; i++)
		verbatim(DTYPE_E4M3 + i % 3, 1, CODEC_FP8_NATIVE);
}

static bool is_int8_plane(uint32_t kind)
{
	return kind == KIND_K ? b.codec_k == CODEC_INT8 : kind == KIND_V && b.codec_v == CODEC_INT8;
}

/* One bad value anywhere makes the whole block -ERANGE, in both. */
TEST(unfit_values_are_refused)
{
	static const uint16_t bad[2][4] = { /* Inf, NaN */
					    { 0x7f80, 0xff80, 0x7fc0, 0x7f81 },
					    { 0x7c00, 0xfc00, 0x7e00, 0x7c01 }
	};
	/* rounds to Inf: typed values are fp8 */
	static const uint16_t fp8_limit[2] = { FP8_BF16_LIMIT, FP8_FP16_LIMIT },
			      int8_limit[2] = { INT8_BF16_LIMIT, INT8_FP16_LIMIT };

	for (uint32_t i = 0; i < ROUNDS / 4; i++) {
		const int h = i & 1;
		const struct page_piece *p;
		uint8_t *image, *at;

		random_layout(h ? DTYPE_FP16 : DTYPE_BF16, 2, lossy_codec(KIND_K),
			      lossy_codec(KIND_V));
		fill_values();
		p = &b.pieces[pick(b.layout.n_pieces)];
		if (p->kind == KIND_OPAQUE)
			continue;
		at = p->base + (p->kind == KIND_TYPED ?
					2 * (uint64_t)pick((uint32_t)p->length) :
					pick(b.layout.geometry.block_tokens) * p->token_stride +
						pick(b.layout.geometry.kv_heads) * p->head_stride);
		memcpy(at,
		       pick(2)                ? &bad[h][pick(4)] :
		       is_int8_plane(p->kind) ? &int8_limit[h] :
						&fp8_limit[h],
		       2);
		assert_int_equal(encode_both(&image), -ERANGE);
	}
}

/* By eight bits: the steps of k4 and v4 are small enough. */
TEST(too_small_bf16_groups_are_refused)
{
	const uint16_t tiny = 0x0100; /* 2^-125 */
	uint8_t *image;

	random_layout(DTYPE_BF16, 2, pick(2) ? CODEC_FP8 : CODEC_INT8,
		      pick(2) ? CODEC_FP8 : CODEC_INT8);
	for (uint64_t i = 0; i < b.used; i += 2)
		memcpy(b.arena + ARENA - b.used + i, &tiny, 2);
	assert_int_equal(encode_both(&image), -ERANGE);
}

/* Any payload and any scales under a good header: decodes the same, and inside the page. */
TEST(foreign_payload_is_safe)
{
	for (uint32_t i = 0; i < ROUNDS / 4; i++) {
		uint8_t *image;

		random_layout(i & 1 ? DTYPE_FP16 : DTYPE_BF16, 2, lossy_codec(KIND_K),
			      lossy_codec(KIND_V));
		memset(b.arena + ARENA - b.used, 0, b.used);
		assert_int_equal(encode_both(&image), 0);
		for (uint32_t j = sizeof(struct image_header); j < b.shape.image_bytes; j++)
			image[j] = (uint8_t)pick(256);
		decode_both(image);
	}
}

TEST(decode_refuses_a_codec_that_does_not_fit)
{
	struct image_header *h = (void *)b.image;

	random_layout(DTYPE_FP32, 4, CODEC_RAW, CODEC_RAW);
	image_header_fill(h, &b.layout.geometry, CODEC_RAW, CODEC_RAW, &b.shape, &b.identity);
	h->codec_k = CODEC_FP8;
	assert_int_equal(codec_decode(b.fast, &b.layout, 0, b.image, b.scratch), -EBADMSG);
	assert_int_equal(codec_decode(&codec_ref, &b.layout, 0, b.image, b.scratch), -EBADMSG);
}

TEST(copy_is_exact_at_any_alignment)
{
	for (uint32_t i = 0; i < ROUNDS; i++) {
		const uint32_t n = pick(700), from = pick(130), to = pick(130);

		for (uint32_t j = 0; j < 1024; j++)
			b.arena[j] = (uint8_t)pick(256);
		memset(b.other, FILLER, 1024);
		b.fast->copy(b.other + to, b.arena + from, n);
		assert_memory_equal(b.other + to, b.arena + from, n);
		for (uint32_t j = 0; j < 1024; j++)
			if (j < to || j >= to + n)
				assert_int_equal(b.other[j], FILLER);
	}
}

TEST_BEGIN
{
	if (!codec_kernels("avx2"))
		exit(77); /* then there is nothing to hold against ref.c */
	test_group(&(struct test_group){ "avx2", set_up_avx2, tear_down });
	if (codec_kernels("vbmi2"))
		test_group(&(struct test_group){ "vbmi2", set_up_vbmi2, tear_down });
}
