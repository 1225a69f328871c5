/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * Goal: the CUDA kernels agree with ref.c for any geometry, strides, alignment, and cut of an image
 * into tasks.
 * Method: random pages (SEED), images in 1 to 9 ranges of tiles in any order, several tasks a
 * launch, 1 to 16 blocks; each codec beside any other. Values that a codec cannot hold set the flag
 * where ref.c refuses; any bytes decode as ref.c decodes them; a page may change under the kernel.
 */

#include "kernels/lossless.h"
#include "tests/lib/lib_cuda_codec.h"
#include "tests/lib/test.h"

static uint32_t rounds; /* $STEPS, or 150 */

FIXTURE(set_up)
{
	(void)cuda_bed_begin(state);
	rounds = (uint32_t)env_number("STEPS", 150);
	((struct cuda_bed *)*state)->max_ranges = 9;
	return 0;
}

static uint32_t pick(struct cuda_bed *b, uint32_t n)
{
	return random_below(&b->random, n);
}

/* A page of BF16 or FP16 of which K, or V, or both have scales. */
static void random_coded(struct cuda_bed *b)
{
	static const enum image_codec codecs[2][4] = {
		{ CODEC_RAW, CODEC_FP8, CODEC_INT8, CODEC_K4 },
		{ CODEC_RAW, CODEC_FP8, CODEC_INT8, CODEC_V4 },
	};
	const uint32_t which = 1 + pick(b, 15);
	const struct image_geometry *g = &b->pages.layout.geometry;
	enum image_codec k;

	do {
		pages_random(&b->pages, &b->random, DTYPE_BF16 + pick(b, 2), CUDA_BED_DEVICE);
		k = codecs[0][which % 4];
		if (image_codec_channels(k) && !g->head_dim_k && !g->head_dim_v)
			k = CODEC_FP8;
	} while (!cuda_bed_plan(b, k, codecs[1][which / 4]));
	cuda_bed_fill(b);
}

TEST(coded_pages)
{
	struct cuda_bed *b = *state;
	uint32_t fitted = 0;

	for (uint32_t i = 0; i < rounds; i++) {
		random_coded(b);
		if (cuda_bed_encode(b))
			continue;
		cuda_bed_decode(b);
		fitted++;
	}
	assert_true(fitted > rounds / 2);
}

TEST(verbatim_pages)
{
	struct cuda_bed *b = *state;

	for (uint32_t i = 0; i < rounds / 2; i++) {
		const uint32_t dtype = DTYPE_BF16 + i % 6;
		const enum image_codec codec = image_element_bytes(dtype) == 1 && pick(b, 2) ?
						       CODEC_FP8_NATIVE :
						       CODEC_RAW;

		do
			pages_random(&b->pages, &b->random, dtype, CUDA_BED_DEVICE);
		while (!cuda_bed_plan(b, codec, codec));
		cuda_bed_fill(b);
		assert_int_equal(cuda_bed_encode(b), 0);
		cuda_bed_decode(b);
	}
}

/* One bad value in a piece that has scales. */
TEST(unfit_values_set_the_flag)
{
	static const uint16_t bad[2][6] = {
		/* Inf, NaN, rounds to Inf with fp8 */
		{ 0x7f80, 0xff80, 0x7fc0, 0x7f81, 0x7f78, 0xff79 },
		{ 0x7c00, 0xfc00, 0x7e00, 0x7c01, 0x7bc0, 0xfbff },
	};
	struct cuda_bed *b = *state;
	uint32_t refused = 0;

	for (uint32_t i = 0; i < rounds; i++) {
		const struct image_geometry *g = &b->pages.layout.geometry;
		const struct page_piece *p;
		uint64_t at;

		random_coded(b);
		p = &b->pages.pieces[pick(b, b->pages.layout.n_pieces)];
		at = (uintptr_t)p->base - CUDA_BED_DEVICE + b->page * p->page_stride;
		if (p->kind == KIND_OPAQUE)
			continue;
		if (p->kind == KIND_TYPED)
			at += 2 * (uint64_t)pick(b, (uint32_t)p->length);
		else
			at += pick(b, g->block_tokens) * p->token_stride +
			      pick(b, g->kv_heads) * p->head_stride +
			      2 * (uint64_t)pick(b,
						 p->kind == KIND_K ? g->head_dim_k : g->head_dim_v);
		memcpy(b->memory + at, &bad[g->dtype == DTYPE_FP16][pick(b, 6)], 2);
		refused += cuda_bed_encode(b) == -ERANGE;
	}
	assert_true(refused > rounds / 4);
}

TEST(any_bytes_decode_alike)
{
	struct cuda_bed *b = *state;

	for (uint32_t i = 0; i < rounds; i++) {
		random_coded(b);
		for (uint32_t j = 0; j < b->shape.image_bytes; j++)
			b->image[j] = (uint8_t)random_next(&b->random);
		image_header_fill((void *)b->image, &b->pages.layout.geometry, b->codec_k,
				  b->codec_v, &b->shape, &(struct image_identity){ 0 });
		cuda_bed_decode(b);
	}
}

TEST(a_range_touches_its_own_bytes_alone)
{
	struct cuda_bed *b = *state;

	for (uint32_t i = 0; i < rounds; i++) {
		uint32_t from, to;

		random_coded(b);
		from = pick(b, b->plan.n_tiles);
		to = from + pick(b, b->plan.n_tiles - from) + 1;
		cuda_bed_range(b, from, to);
	}
}

/* A value that amax did not see saturates: no code is NaN, and no byte beside the page is
 * touched. */
TEST(pages_may_change)
{
	struct cuda_bed *b = *state;

	for (uint32_t i = 0; i < rounds / 3; i++) {
		if (i % 8 == 0) { /* groups that are read twice */
			pages_make(&b->pages, &pages_named[pages_named_n - 2], DTYPE_BF16,
				   CUDA_BED_DEVICE, 1, 0);
			assert_int_equal(b->pages.layout.geometry.head_dim_v, 4096);
			cuda_bed_plan(b, CODEC_FP8, CODEC_FP8);
			cuda_bed_fill(b);
		} else {
			random_coded(b);
		}
		cuda_bed_changing(b, 0, UINT32_MAX);
	}
}

/* A page that lossless takes. Most have exponents that lie close together, with an outlier here and
 * there; of the others many have more kinds of exponents than it can hold. */
static void random_packs(struct cuda_bed *b)
{
	struct image_shape shape;
	uint16_t *values = (void *)b->memory;

	do
		pages_random(&b->pages, &b->random, DTYPE_BF16 + pick(b, 2), CUDA_BED_DEVICE);
	while (image_shape(&b->pages.layout.geometry, CODEC_LOSSLESS, CODEC_LOSSLESS, &shape,
			   NULL) ||
	       !cuda_bed_plan(b, CODEC_LOSSLESS, CODEC_LOSSLESS));
	cuda_bed_fill(b);
	for (uint64_t i = 0; b->mark % 4 && i < b->pages.bytes / 2; i++)
		if (random_next(&b->random) % 64)
			values[i] = (uint16_t)(0x3f80 + values[i] % 300 - (values[i] & 0x8000));
}

TEST(lossless_pages)
{
	struct cuda_bed *b = *state;
	uint32_t fitted = 0;

	for (uint32_t i = 0; i < rounds; i++) {
		random_packs(b);
		if (cuda_bed_encode(b))
			continue;
		cuda_bed_decode(b);
		fitted++;
	}
	assert_true(fitted > rounds / 4);
}

TEST(a_lossless_range_touches_its_own_bytes_alone)
{
	struct cuda_bed *b = *state;

	for (uint32_t i = 0; i < rounds / 2; i++) {
		uint32_t from;

		random_packs(b);
		from = pick(b, b->plan.n_tiles);
		cuda_bed_range(b, from, from + pick(b, b->plan.n_tiles - from) + 1);
	}
}

/* A bit of a length, or of a word that says one, or any; beside the bases and the noise, whose bits
 * are right in any case. No byte behind the payload is read. */
TEST(a_pack_of_a_wrong_length_is_refused)
{
	struct cuda_bed *b = *state;
	uint32_t refused = 0;

	for (uint32_t i = 0; i < rounds; i++) {
		const uint32_t flips = 1 + pick(b, 3);
		struct image_shape cut;
		bool right;

		random_packs(b);
		if (cuda_bed_encode(b) || b->plan.packs == 0)
			continue;
		for (uint32_t k = 0; k < flips; k++) {
			const struct image_header *h = (const void *)b->image;
			const uint32_t at =
				pick(b, 2) ?
					(uint32_t)sizeof(*h) + pick(b, b->shape.scale_bytes) :
					b->shape.payload_offset + pick(b, h->payload_bytes - 64);

			b->image[at] ^= (uint8_t)(1u << pick(b, 8));
		}
		cut = b->shape;
		image_shape_cut(&cut,
				((const struct image_header *)(void *)b->image)->payload_bytes);
		right = image_packs_are_right(&b->pages.layout.geometry, &cut, b->image);
		assert_int_equal(cuda_bed_decode_any(b), right ? 0 : -EBADMSG);
		refused += !right;
	}
	assert_true(refused > rounds / 8);
}

/* It is refused, or an image whose packs are right. */
TEST(lossless_pages_may_change)
{
	struct cuda_bed *b = *state;

	for (uint32_t i = 0; i < rounds; i++) {
		random_packs(b);
		if (i % 8)
			cuda_bed_changing(b, pick(b, b->shape.logical_bytes / 16 * 3), 1);
		else
			cuda_bed_changing(b, 0, UINT32_MAX);
	}
}

enum { SMALL = 1024 };

/* One pack. */
static void small_pack(struct cuda_bed *b)
{
	const struct pages_named typed = {
		.geometry = { .typed_segments = 1, .typed_values = SMALL, .block_tokens = 1 },
		.order = PAGES_TYPED,
	};
	uint16_t *values = (void *)b->memory;

	pages_make(&b->pages, &typed, DTYPE_BF16, CUDA_BED_DEVICE, 1, 0);
	assert_true(cuda_bed_plan(b, CODEC_LOSSLESS, CODEC_LOSSLESS));
	for (uint32_t i = 0; i < SMALL; i++)
		values[i] = 0x3f80;
}

/* At each read of a pack, and at some after it: the lengths, or their count, or the codes differ
 * from those before. No byte is written behind what was counted. */
TEST(a_pack_may_change_at_any_read)
{
	struct cuda_bed *b = *state;

	b->max_blocks = 1;
	for (uint32_t first = 0; first < SMALL / 8 * 4; first++) {
		small_pack(b);
		cuda_bed_changing(b, first, first % 3 ? 1 : pick(b, SMALL / 8));
	}
}

/* Of 16 steps every third is a sample; the step after it has a larger exponent. */
TEST(the_base_is_that_of_the_sampled_steps)
{
	struct cuda_bed *b = *state;
	uint16_t *values = (void *)b->memory;

	small_pack(b);
	assert_int_equal(lossless_stride(SMALL / LOSSLESS_STEP), 3);
	for (uint32_t i = 0; i < SMALL; i++)
		values[i] = i / LOSSLESS_STEP % 3 == 1 ? 0x4000 : 0x3f80;
	assert_int_equal(cuda_bed_encode(b), 0);
	cuda_bed_decode(b);
}

/* All values are near but the first, of which the far part has 3 bits; a forged image sets others
 * of its words. */
TEST(bits_behind_the_last_far_value_are_no_codes)
{
	struct cuda_bed *b = *state;
	uint8_t *far = b->image;

	small_pack(b);
	((uint16_t *)(void *)b->memory)[0] = 0x3c00;
	assert_int_equal(cuda_bed_encode(b), 0);
	assert_int_equal(image_pack_far(b->image + sizeof(struct image_header)),
			 LOSSLESS_FAR_BYTES);
	far += b->shape.payload_offset + SMALL / LOSSLESS_STEP * lossless_step_bytes(0);
	for (uint32_t byte = 1; byte < 8; byte++) {
		for (uint32_t word = 0; word < 3; word++)
			far[8 * word + byte] = 0x80;
		assert_int_equal(cuda_bed_decode_any(b), 0);
	}
}

TEST_GROUP(set_up, cuda_bed_end);
