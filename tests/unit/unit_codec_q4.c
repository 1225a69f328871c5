/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * Goal: k4 and v4 keep values as daemon/IMAGE.md says, in every implementation, bit for bit.
 * Method: q4.h is held against the definition in double arithmetic: v4 over all amaxes and all
 * inputs beside the largest of each step, k4 over all least values with random ranges (seed
 * printed). The fast kernels are held against ref.c in planes of one head: v4 with all inputs at
 * all steps, k4 with columns of random ends and all inputs between some; then all codes at all
 * scales.
 */
#include <math.h>
#include <stdbool.h>

#include "kernels/q4.h"
#include "tests/lib/lib_pages.h"
#include "tests/lib/test.h"

enum { CODES = 65536, RANGES = 40 };

static const struct rule {
	uint32_t dtype, inf;
} rules[2] = { { DTYPE_BF16, 0x7f80 }, { DTYPE_FP16, 0x7c00 } }; /* index = is_fp16 */

static double k4_size(int j)
{
	return exp2((j - K4_ONE) / 12.0);
}

static double v4_size(int j)
{
	return exp2((j - V4_ONE) / 8.0);
}

TEST(a_code_is_its_value_rounded)
{
	for (int h = 0; h < 2; h++)
		for (uint32_t code = 0; code < CODES; code++)
			if ((code & 0x7fff) < rules[h].inf) {
				assert_true(q4_value(h, code) == codec_value(h, code));
				assert_int_equal(q4_code(h, q4_value(h, code)), code);
			}
}

TEST(a_value_is_rounded_to_nearest_even)
{
	/* halfway between two codes, and a little more; beyond the largest */
	assert_int_equal(q4_code(0, q4_float(0x3f808000)), 0x3f80);
	assert_int_equal(q4_code(0, q4_float(0x3f818000)), 0x3f82);
	assert_int_equal(q4_code(0, q4_float(0x3f808001)), 0x3f81);
	assert_int_equal(q4_code(1, q4_float(0x3f801000)), 0x3c00);
	assert_int_equal(q4_code(1, q4_float(0x3f803000)), 0x3c02);
	assert_int_equal(q4_code(1, 65520), 0x7c00);
	/* FP16's least subnormal is 2^-24 */
	assert_int_equal(q4_code(1, q4_float((127 - 25) << 23)), 0);
	assert_int_equal(q4_code(1, q4_float(((127 - 25) << 23) + 1)), 1);
	assert_int_equal(q4_code(1, -1.5f * q4_float((127 - 24) << 23)), 0x8002);
}

TEST(ranks_are_in_the_order_of_values)
{
	for (int h = 0; h < 2; h++)
		for (uint32_t code = 1; code < CODES; code++) {
			const uint32_t before = code - 1;

			if ((code & 0x7fff) == 0 || (code & 0x7fff) >= rules[h].inf)
				continue;
			assert_true((q4_rank(code) > q4_rank(before)) ==
				    (codec_value(h, code) > codec_value(h, before)));
		}
}

TEST(powers_are_as_floats_have_them)
{
	for (int n = -255; n <= 255; n++) {
		assert_true(k4_power(n) == (float)exp2(n / 12.0));
		assert_true(v4_power(n) == (float)exp2(n / 8.0));
	}
}

/* --- v4 --- */

TEST(v4_has_the_least_step_that_holds_amax)
{
	for (int h = 0; h < 2; h++)
		for (uint32_t amax = 1; amax < 0x8000; amax++) {
			const double value = amax < rules[h].inf ? codec_value(h, amax) : INFINITY;
			const int j = v4_step(h, amax);

			if (j == Q4_STEP_NONE) {
				assert_true(value > 8 * v4_size(Q4_STEP_MOST));
				continue;
			}
			assert_in_range(j, V4_STEP_LEAST, Q4_STEP_MOST);
			assert_true(value <= 8 * v4_size(j) * (1 + 1e-7));
			assert_true(j == V4_STEP_LEAST || value > 8 * v4_size(j - 1));
		}
	assert_int_equal(v4_step(0, 0), V4_STEP_ZEROS);
}

/* Beside amax, of either sign: a code is of the nearest of sixteen values; decoded it is found
 * again, at the same step. */
static void check_v4(int is_fp16, int j, uint32_t code)
{
	const double x = codec_value(is_fp16, code);
	const uint32_t c = v4_encode(is_fp16, j, code);
	const uint16_t back = v4_decode(is_fp16, j, c);
	const double value = (c - 7.5) * v4_size(j);

	assert_in_range(c, 0, Q4_MOST);
	assert_true(fabs(x - value) <= v4_size(j) * 0.500001);
	assert_true(fabs(codec_value(is_fp16, back) - value) <=
		    fabs(value) / (is_fp16 ? 2048 : 256) + 0x1p-25);
	assert_int_equal(v4_encode(is_fp16, j, back), c);
	assert_true(v4_step(is_fp16, back & 0x7fff) <= j);
}

TEST(v4_is_a_fixed_point_of_all_inputs)
{
	for (int h = 0; h < 2; h++)
		for (uint32_t amax = 1; amax < rules[h].inf; amax++) {
			const int j = v4_step(h, amax);
			const bool last = v4_step(h, amax + 1) != j;

			if (j == Q4_STEP_NONE)
				break;
			check_v4(h, j, amax);
			check_v4(h, j, 0x8000 | amax);
			/* the amax of a group has the extreme code, and keeps its step */
			for (int sign = 0; sign < 2; sign++)
				assert_int_equal(
					v4_step(h,
						v4_decode(h, j,
							  v4_encode(h, j,
								    amax | (uint32_t)sign << 15)) &
							0x7fff),
					j);
			for (uint32_t code = 0; last && code < amax; code++) {
				check_v4(h, j, code);
				check_v4(h, j, 0x8000 | code);
			}
		}
}

/* --- k4 --- */

static uint32_t of_rank(int rank)
{
	return rank < 0 ? (uint32_t)(rank + 0x10000) ^ 0x7fff : (uint32_t)rank;
}

/* A code of a rank from that of `lo` on, as far as there are numbers. */
static uint32_t above(struct random *random, int is_fp16, uint32_t lo, uint32_t most)
{
	const int top = (int)rules[is_fp16].inf - 1,
		  rank = q4_rank(lo) + (int)random_below(random, most);

	return of_rank(rank < top ? rank : top);
}

static void check_k4_step(int is_fp16, uint32_t lo, uint32_t hi, int j)
{
	const double range = codec_value(is_fp16, hi) - codec_value(is_fp16, lo);
	const uint32_t exponent = (lo & 0x7fff) >> (is_fp16 ? 10 : 7);
	const double ulp = ldexp(1, (int)exponent - (is_fp16 ? 25 : 134));
	const double size = k4_size(j), less = k4_size(j - 1);

	assert_true(range <= 15.5 * size * (1 + 1e-7));
	assert_true(exponent == 0 || 8 * ulp <= size * (1 + 1e-7));
	assert_true(j == 0 || range > 15.5 * less * (1 - 1e-7) ||
		    (exponent && 8 * ulp > less * (1 + 1e-7)));
}

static void check_k4(int is_fp16, uint32_t lo, uint32_t hi, int j, uint32_t x)
{
	const double size = k4_size(j);
	const uint32_t c = k4_encode(is_fp16, lo, j, x);
	const uint16_t back = k4_decode(is_fp16, lo, j, c);

	assert_in_range(c, 0, Q4_MOST);
	assert_true(fabs(codec_value(is_fp16, x) - (codec_value(is_fp16, lo) + c * size)) <=
		    size * 0.50001);
	assert_true(fabs(codec_value(is_fp16, back) - (codec_value(is_fp16, lo) + c * size)) <=
		    size * 0.12501);
	assert_int_equal(k4_encode(is_fp16, lo, j, back), c);
	assert_true(q4_rank(back) <=
		    q4_rank(k4_decode(is_fp16, lo, j, k4_encode(is_fp16, lo, j, hi))));
}

/* All least values, each with ranges that begin with one ulp. */
TEST(k4_is_a_fixed_point)
{
	struct random random = random_seeded("unit_codec_q4");

	for (uint32_t i = 0; i < 2 * CODES * RANGES; i++) {
		const int h = i & 1;
		const uint32_t code = i / 2 % CODES;
		const uint32_t lo = k4_least(h, code),
			       hi = above(&random, h, lo,
					  1 + ((uint32_t)CODES >> random_below(&random, 17)));
		int j;

		if ((code & 0x7fff) >= rules[h].inf)
			continue;
		j = k4_step(h, lo, hi);
		if (j == Q4_STEP_NONE) {
			assert_true(fabs(codec_value(h, lo)) >= 2048 ||
				    codec_value(h, hi) - codec_value(h, lo) >
					    15.5 * k4_size(Q4_STEP_MOST));
			continue;
		}
		check_k4_step(h, lo, hi, j);
		assert_int_equal(k4_decode(h, lo, j, 0), lo);
		check_k4(h, lo, hi, j, hi);
		check_k4(h, lo, hi, j,
			 above(&random, h, lo, (uint32_t)(q4_rank(hi) - q4_rank(lo)) + 1));
		assert_int_equal(k4_step(h, lo, k4_decode(h, lo, j, k4_encode(h, lo, j, hi))), j);
	}
}

TEST(k4_refuses_what_is_no_number)
{
	for (int h = 0; h < 2; h++) {
		assert_int_equal(k4_step(h, 0, rules[h].inf), Q4_STEP_NONE);
		assert_int_equal(k4_step(h, 0x8000 | rules[h].inf, 0), Q4_STEP_NONE);
		assert_int_equal(k4_step(h, 0, 0x7fff), Q4_STEP_NONE);
	}
}

/* Zeros of either sign, subnormals of BF16. */
TEST(k4_keeps_no_subnormal)
{
	assert_int_equal(k4_least(0, 0x8000), 0);
	assert_int_equal(k4_least(0, 0x807f), 0);
	assert_int_equal(k4_least(1, 0x8001), 0x8001);
	assert_int_equal(k4_step(0, 0, 0x8001), 0);
	assert_int_equal(k4_decode(0, 0, 0, k4_encode(0, 0, 0, 0x8001)), 0);
}

/* --- the fast kernels --- */

/* A head of one group of k4, whose dim is no multiple of a vector. */
enum { ROWS = IMAGE_CHANNEL_TOKENS, COLUMNS = 1045, VALUES = ROWS * COLUMNS };

/* Two images, and two pages. */
static struct bed {
	_Alignas(4096) uint8_t images[2][4 * IMAGE_ALIGN + VALUES];
	_Alignas(64) uint8_t scratch[CODEC_SCRATCH_BYTES];
	uint16_t pages[2][VALUES];
} b;

static const struct image_identity who;

static int status_of(const struct codec_kernels *kernels, enum image_codec codec, int is_fp16,
		     bool decode, uint16_t *page, uint8_t *image)
{
	const bool k = codec == CODEC_K4;
	const struct page_piece piece = { .base = (uint8_t *)page,
					  .kind = k ? KIND_K : KIND_V,
					  .head_stride = 2 * VALUES,
					  .token_stride = 2 * COLUMNS };
	const struct page_layout layout = { .geometry = { .dtype = rules[is_fp16].dtype,
							  .layers = 1,
							  .kv_heads = 1,
							  .head_dim_k = k ? COLUMNS : 0,
							  .head_dim_v = k ? 0 : COLUMNS,
							  .block_tokens = ROWS },
					    .n_pieces = 1,
					    .pieces = &piece };

	return decode ? codec_decode(kernels, &layout, 0, image, b.scratch) :
			codec_encode(kernels, &layout, 0, CODEC_K4, CODEC_V4, &who, image,
				     b.scratch);
}

/* The page in pages[0], encoded by both: the same image, in images[0]. */
static void encodes_as_ref(const struct codec_kernels *fast, enum image_codec codec, int is_fp16)
{
	memset(b.images, 0, sizeof(b.images));
	assert_int_equal(status_of(fast, codec, is_fp16, false, b.pages[0], b.images[0]), 0);
	assert_int_equal(status_of(&codec_ref, codec, is_fp16, false, b.pages[0], b.images[1]), 0);
	assert_memory_equal(b.images[0], b.images[1], sizeof(b.images[0]));
}

/* The image in images[0], decoded by both: the same page. */
static void decodes_as_ref(const struct codec_kernels *fast, enum image_codec codec, int is_fp16)
{
	assert_int_equal(status_of(fast, codec, is_fp16, true, b.pages[0], b.images[0]), 0);
	assert_int_equal(status_of(&codec_ref, codec, is_fp16, true, b.pages[1], b.images[0]), 0);
	assert_memory_equal(b.pages[0], b.pages[1], sizeof(b.pages[0]));
}

/* Whether a value is the first of 32. */
static bool tops_a_group(uint32_t i)
{
	return i % COLUMNS % IMAGE_V4_VALUES == 0;
}

TEST_FAST(v4_encode_equals_ref)
{
	const struct codec_kernels *fast = codec_or_skip(*state);

	for (int h = 0; h < 2; h++)
		for (uint32_t amax = 0; amax < rules[h].inf; amax++) {
			if (v4_step(h, amax) == Q4_STEP_NONE ||
			    v4_step(h, amax) == v4_step(h, amax + 1))
				continue;
			for (uint32_t i = 0, v = 0; i < VALUES; i++) {
				const bool fits = (v & 0x7fff) <= amax;

				b.pages[0][i] = (uint16_t)(tops_a_group(i) || !fits ? amax : v);
				v += !tops_a_group(i);
			}
			encodes_as_ref(fast, CODEC_V4, h);
		}
}

/* All amaxes, a group each. */
TEST_FAST(v4_steps_equal_ref)
{
	const struct codec_kernels *fast = codec_or_skip(*state);

	for (int h = 0; h < 2; h++) {
		uint32_t amax = 0;

		while (amax < rules[h].inf && v4_step(h, amax) != Q4_STEP_NONE) {
			memset(b.pages[0], 0, sizeof(b.pages[0]));
			for (uint32_t i = 0; i < VALUES; i++) {
				const uint32_t columns = i % COLUMNS < 1024 ? 32 : 21;

				if (tops_a_group(i) && v4_step(h, amax) != Q4_STEP_NONE) {
					b.pages[0][i + amax % columns] = (uint16_t)amax;
					amax++;
				}
			}
			encodes_as_ref(fast, CODEC_V4, h);
		}
	}
}

TEST_FAST(v4_decode_equals_ref)
{
	const struct codec_kernels *fast = codec_or_skip(*state);

	for (int h = 0; h < 2; h++) {
		memset(b.pages[0], 0, sizeof(b.pages[0]));
		encodes_as_ref(fast, CODEC_V4, h); /* for its header */
		for (uint32_t i = 0; i < ROWS * 33; i++)
			b.images[0][sizeof(struct image_header) + i] = (uint8_t)i;
		for (uint32_t i = 0; i < ROWS * (COLUMNS + 1) / 2; i++)
			b.images[0][IMAGE_ALIGN + i] = (uint8_t)(i / 5);
		decodes_as_ref(fast, CODEC_V4, h);
	}
}

/* Columns of random ends; between them, in some, any number that fits. */
TEST_FAST(k4_encode_equals_ref)
{
	const struct codec_kernels *fast = codec_or_skip(*state);
	struct random random = random_seeded(*state);

	for (int i = 0; i < 400; i++) {
		const int h = i & 1;

		for (uint32_t c = 0; c < COLUMNS; c++) {
			uint32_t code, lo, hi;

			do {
				code = random_below(&random, CODES);
				lo = k4_least(h, code);
				hi = above(&random, h, code,
					   1 + ((uint32_t)CODES >> random_below(&random, 17)));
			} while ((code & 0x7fff) >= rules[h].inf ||
				 k4_step(h, lo, hi) == Q4_STEP_NONE);
			for (uint32_t r = 0; r < ROWS; r++)
				b.pages[0][r * COLUMNS + c] =
					(uint16_t)above(&random, h, code,
							(uint32_t)(q4_rank(hi) - q4_rank(code)) +
								1);
			b.pages[0][random_below(&random, ROWS) * COLUMNS + c] = (uint16_t)code;
			b.pages[0][random_below(&random, ROWS) * COLUMNS + c] = (uint16_t)hi;
		}
		encodes_as_ref(fast, CODEC_K4, h);
	}
}

/* All inputs below 2,048, and their negatives. */
TEST_FAST(k4_encode_of_all_inputs_equals_ref)
{
	const struct codec_kernels *fast = codec_or_skip(*state);

	for (int h = 0; h < 2; h++)
		for (int sign = 0; sign < 2; sign++) {
			const uint32_t most = h ? 0x67ff : 0x44ff;

			for (uint32_t i = 0; i < VALUES; i++)
				b.pages[0][i] =
					(uint16_t)((i < most ? i : most) | (uint32_t)sign << 15);
			encodes_as_ref(fast, CODEC_K4, h);
		}
}

/* `lo` counts through all codes, the steps through all bytes, beside all codes of four bits. Where
 * one lo is no number, a whole tile is decoded in another way. */
TEST_FAST(k4_decode_equals_ref)
{
	const struct codec_kernels *fast = codec_or_skip(*state);

	for (int h = 0; h < 2; h++)
		for (uint32_t first = 0; first < CODES; first += COLUMNS) {
			uint8_t *scales = b.images[0] + sizeof(struct image_header);

			memset(b.pages[0], 0, sizeof(b.pages[0]));
			encodes_as_ref(fast, CODEC_K4, h);
			for (uint32_t c = 0; c < COLUMNS; c++) {
				scales[2 * c] = (uint8_t)(first + c);
				scales[2 * c + 1] = (uint8_t)((first + c) >> 8);
				scales[2 * COLUMNS + c] = (uint8_t)(c + first / COLUMNS);
			}
			for (uint32_t i = 0; i < ROWS * (COLUMNS + 1) / 2; i++)
				b.images[0][IMAGE_ALIGN + i] = (uint8_t)(i / 5);
			decodes_as_ref(fast, CODEC_K4, h);
		}
}

TEST_FAST(refuses_what_ref_refuses)
{
	const struct codec_kernels *fast = codec_or_skip(*state);

	for (int h = 0; h < 2; h++) {
		/* 8,192 is beyond what v4 holds, 4,096 beyond the range of k4 */
		const uint32_t bad[] = { rules[h].inf, 0x7fff, h ? 0x7000u : 0x4600u };

		for (uint32_t i = 0; i < 6; i++) {
			const enum image_codec codec = i % 2 ? CODEC_K4 : CODEC_V4;

			memset(b.pages[0], 0, sizeof(b.pages[0]));
			b.pages[0][VALUES / 3] = (uint16_t)(0x8000 | bad[i / 2]);
			assert_int_equal(status_of(fast, codec, h, false, b.pages[0], b.images[0]),
					 -ERANGE);
			assert_int_equal(status_of(&codec_ref, codec, h, false, b.pages[0],
						   b.images[1]),
					 -ERANGE);
		}
	}
}
