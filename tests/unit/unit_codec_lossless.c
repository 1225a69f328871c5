/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * Goal: lossless keeps every bit of every value, in every implementation, as daemon/IMAGE.md says.
 * Method: exhaustive. All 65,536 inputs come at all places of a step, a few in each pack among
 * values whose exponents lie close together, as in KV; so packs stay small enough to be kept. Odd
 * layouts, cut images and lies are in unit_codec_pages.c.
 */
#include <stdbool.h>

#include "kernels/lossless.h"
#include "tests/lib/lib_pages.h"
#include "tests/lib/test.h"

enum { DIM = 64, TOKENS = IMAGE_PACK_TOKENS, HEADS = 16, VALUES = DIM * TOKENS * HEADS };
enum { CODES = 65536, EVERY = 32 /* values, of which one is an input */ };

TEST(bits_of_a_distance_say_it)
{
	for (uint32_t d = 0; d < 256; d++) {
		const uint32_t bits = lossless_bits(d);

		if (bits >> 2 == LOSSLESS_BEYOND)
			assert_true(d >= 10);
		else
			assert_int_equal(lossless_distance(bits & 3, bits >> 2), d);
		assert_int_equal(lossless_table[d < 10 ? d : 10], bits);
		if (d < 10)
			assert_int_equal(lossless_distances[(bits & 3) + (bits >> 2)], d);
	}
}

TEST(a_code_is_its_exponent_and_the_rest)
{
	for (int h = 0; h < 2; h++)
		for (uint32_t v = 0; v < CODES; v++)
			assert_int_equal(lossless_code(h, lossless_exponent(h, v),
						       lossless_rest(h, v)),
					 v);
}

TEST(each_place_has_one_value)
{
	uint64_t seen = 0;

	for (uint32_t place = 0; place < LOSSLESS_STEP; place++)
		seen |= 1ull << lossless_value_at(place);
	assert_int_equal(seen, UINT64_MAX);
}

/* The three most frequent exponents in a row are near, wherever they are. */
TEST(base_has_most_values_near)
{
	for (uint32_t largest = 0; largest < 256; largest++)
		for (uint32_t i = 0; i < LOSSLESS_WINDOWS; i++) {
			uint32_t least[LOSSLESS_WINDOWS + 2];

			for (uint32_t k = 0; k < LOSSLESS_WINDOWS + 2; k++)
				least[k] = k < i ? 1 : k < i + 3 ? 10 * (k - i + 1) : 31;
			assert_int_equal(lossless_base(largest, least),
					 (uint8_t)(largest - i + LOSSLESS_NEAR));
		}
}

static struct bed {
	_Alignas(4096) uint8_t images[2][IMAGE_ALIGN + 2 * VALUES];
	_Alignas(64) uint8_t scratch[CODEC_SCRATCH_BYTES];
	_Alignas(64) uint16_t pages[2][VALUES];
} b;

static const struct image_identity who;

static int status_of(const struct codec_kernels *kernels, int is_fp16, bool decode, uint16_t *page,
		     uint8_t *image)
{
	const struct page_piece piece = { .base = (uint8_t *)page,
					  .kind = KIND_V,
					  .head_stride = 2 * DIM,
					  .token_stride = 2 * DIM * HEADS };
	const struct page_layout layout = { .geometry = { .dtype =
								  is_fp16 ? DTYPE_FP16 : DTYPE_BF16,
							  .layers = 1,
							  .kv_heads = HEADS,
							  .head_dim_v = DIM,
							  .block_tokens = TOKENS },
					    .n_pieces = 1,
					    .pieces = &piece };

	return decode ? codec_decode(kernels, &layout, 0, image, b.scratch) :
			codec_encode(kernels, &layout, 0, CODEC_LOSSLESS, CODEC_LOSSLESS, &who,
				     image, b.scratch);
}

/* One of EVERY values is an input; the inputs count from `first` on. */
static void fill(int is_fp16, uint32_t first, uint32_t at)
{
	const uint32_t one = is_fp16 ? 0x3c00 : 0x3f80, binade = is_fp16 ? 0x400 : 0x80;

	for (uint32_t i = 0; i < VALUES; i++)
		b.pages[0][i] = (uint16_t)(i % EVERY == at ? first + i / EVERY :
							     one - i % 3 * binade + i % 61);
}

/* At all places, and as the reference has it. */
TEST_ROWS(keeps_all_inputs, CODEC_ROW(keeps_all_inputs, "ref"), CODEC_ROW(keeps_all_inputs, "avx2"),
	  CODEC_ROW(keeps_all_inputs, "vbmi2"))
{
	const struct codec_kernels *kernels = codec_or_skip(*state);

	memset(b.images, 0, sizeof(b.images));
	for (int h = 0; h < 2; h++)
		for (uint32_t at = 0; at < EVERY; at++)
			for (uint32_t first = 0; first < CODES; first += VALUES / EVERY) {
				fill(h, first, at);
				assert_int_equal(status_of(kernels, h, false, b.pages[0],
							   b.images[0]),
						 0);
				memset(b.pages[1], 0xa5, sizeof(b.pages[1]));
				assert_int_equal(status_of(kernels, h, true, b.pages[1],
							   b.images[0]),
						 0);
				assert_memory_equal(b.pages[0], b.pages[1], sizeof(b.pages[0]));
				if (kernels == &codec_ref)
					continue;
				assert_int_equal(status_of(&codec_ref, h, false, b.pages[0],
							   b.images[1]),
						 0);
				assert_memory_equal(b.images[0], b.images[1], sizeof(b.images[0]));
			}
}

/* Noise is not packed: the block is to be raw. */
TEST(refuses_what_would_be_larger)
{
	struct random random = random_seeded("unit_codec_lossless");

	for (uint32_t i = 0; i < VALUES; i++)
		b.pages[0][i] = (uint16_t)random_below(&random, CODES);
	assert_int_equal(status_of(codec_kernels(NULL), 0, false, b.pages[0], b.images[0]),
			 -ERANGE);
}
