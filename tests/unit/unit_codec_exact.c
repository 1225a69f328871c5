/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * Goal: one value is encoded and decoded as daemon/IMAGE.md says, by every implementation, bit for
 * bit. Method: exhaustive. fp8.h is held against the definition in double arithmetic. The fast
 * kernels are held against ref.c in whole images of typed values: at each legal exponent all inputs
 * that a group of this exponent may have, and all 256 codes at all 256 scale bytes.
 */
#include <math.h>
#include <stdbool.h>

#include "kernels/fp8.h"
#include "tests/lib/lib_pages.h"
#include "tests/lib/test.h"

enum { CODES = 65536 };

static const uint32_t dtypes[2] = { DTYPE_BF16, DTYPE_FP16 }; /* index = is_fp16 */

static int k_least(int is_fp16)
{
	return is_fp16 ? FP8_FP16_K_MIN : FP8_BF16_K_MIN;
}

static int k_most(int is_fp16)
{
	return is_fp16 ? FP8_FP16_K_MAX : FP8_BF16_K_MAX;
}

static double source_value(int is_fp16, uint32_t code) /* of a finite code */
{
	const uint32_t mantissa = is_fp16 ? 10 : 7, one = 1u << mantissa;
	const int exponent = (int)((code & 0x7fff) >> mantissa), bias = is_fp16 ? 15 : 127;
	const double fraction = (double)(code & (one - 1)) / one;
	const double x =
		exponent ? ldexp(1 + fraction, exponent - bias) : ldexp(fraction, 1 - bias);

	return code & 0x8000 ? -x : x;
}

static double e4m3_value(uint32_t magnitude) /* 0 .. 0x7e */
{
	const int exponent = (int)magnitude >> 3;
	const double fraction = (magnitude & 7) / 8.0;

	return exponent ? ldexp(1 + fraction, exponent - 7) : ldexp(fraction, -6);
}

TEST(exponent_is_the_least_that_holds_amax)
{
	for (int h = 0; h < 2; h++) {
		const uint32_t limit = h ? FP8_FP16_LIMIT : FP8_BF16_LIMIT;

		for (uint32_t amax = 1; amax < 0x8000; amax++) {
			const int k = fp8_exponent(h, amax);

			if (k == FP8_K_NONE) {
				if (amax < limit) /* then it was too small */
					assert_true(!h && source_value(h, amax) <=
								  ldexp(464, k_least(h) - 1));
				continue;
			}
			assert_true(amax < limit && k >= k_least(h) && k <= k_most(h));
			assert_true(source_value(h, amax) <= ldexp(464, k));
			assert_true(source_value(h, amax) > ldexp(464, k - 1));
		}
	}
}

TEST(zero_group_has_scale_one)
{
	assert_int_equal(fp8_exponent(0, 0), 0);
	assert_int_equal(fp8_exponent(1, 0), 0);
}

TEST(limits_are_the_first_that_round_to_infinity)
{
	for (int h = 0; h < 2; h++) {
		const uint32_t limit = h ? FP8_FP16_LIMIT : FP8_BF16_LIMIT;
		const double x = source_value(h, limit), below = source_value(h, limit - 1);

		/* midway between 240 and 256, and 256 is even */
		assert_true(x / ldexp(1, k_most(h)) == 248);
		assert_true(below < x);
		assert_int_equal(fp8_decode(h, k_most(h), fp8_encode(h, k_most(h), limit - 1)) &
					 0x7fff,
				 h ? 0x7b80 : 0x7f70);
	}
}

/* Nearest, ties to the even code: no neighbour is nearer, nor as near and even. */
static void check_nearest(double y, uint32_t code)
{
	const double mine = fabs(y - e4m3_value(code));

	for (int d = -1; d <= 1; d += 2) {
		const uint32_t other = code + (uint32_t)d;

		if (other > FP8_MAX)
			continue;
		assert_true(mine < fabs(y - e4m3_value(other)) ||
			    (mine == fabs(y - e4m3_value(other)) && !(code & 1)));
	}
}

TEST(code_is_the_nearest_even)
{
	for (int h = 0; h < 2; h++)
		for (int k = k_least(h); k <= k_most(h); k += h ? 1 : 7)
			for (uint32_t v = 0; v < (h ? 0x7c00u : 0x7f80u); v++) {
				const double y = ldexp(source_value(h, v), -k);
				const uint8_t code = fp8_encode(h, k, v);

				if (y > 464)
					assert_int_equal(code, FP8_MAX);
				else
					check_nearest(y, code);
				assert_int_equal(fp8_encode(h, k, v | 0x8000), code | 0x80);
			}
}

TEST(decode_is_exact_where_a_group_can_be)
{
	for (int h = 0; h < 2; h++)
		for (uint32_t amax = 1; amax < 0x7c00; amax++) {
			const int k = fp8_exponent(h, amax);

			if (k == FP8_K_NONE)
				continue;
			for (uint32_t v = amax > 300 ? amax - 300 : 0; v <= amax; v += 3) {
				const uint8_t code = fp8_encode(h, k, v);

				assert_true(source_value(h, fp8_decode(h, k, code)) ==
					    ldexp(e4m3_value(code), k));
			}
		}
}

TEST(decoded_amax_has_the_same_exponent)
{
	for (int h = 0; h < 2; h++)
		for (uint32_t amax = 0; amax < 0x8000; amax++) {
			const int k = fp8_exponent(h, amax);

			if (k != FP8_K_NONE)
				assert_int_equal(
					fp8_exponent(h, fp8_decode(h, k, fp8_encode(h, k, amax)) &
								0x7fff),
					k);
		}
}

/* Any value that may stand beside that amax: each code must come back as itself. */
TEST(reencoding_gives_the_same_code)
{
	for (int h = 0; h < 2; h++)
		for (int k = k_least(h); k <= k_most(h); k++)
			for (uint32_t v = 0; v < CODES; v++) {
				const uint32_t limit = h ? FP8_FP16_LIMIT : FP8_BF16_LIMIT;
				const uint8_t code = fp8_encode(h, k, v);

				if ((v & 0x7fff) < limit &&
				    ldexp(fabs(source_value(h, v)), -k) <= 464)
					assert_int_equal(fp8_encode(h, k, fp8_decode(h, k, code)),
							 code);
			}
}

enum { GROUP = IMAGE_GROUP_TYPED, GROUPS = 9, VALUES = 256 * GROUPS * GROUP };

/* Two images, and two pages of one typed segment. */
static struct bed {
	_Alignas(4096) uint8_t images[2][IMAGE_ALIGN + VALUES];
	_Alignas(64) uint8_t scratch[CODEC_SCRATCH_BYTES];
	uint16_t pages[2][VALUES];
} b;

static const struct image_identity who;

static struct image_geometry geometry_of(int is_fp16, uint32_t values)
{
	return (struct image_geometry){ .dtype = dtypes[is_fp16],
					.block_tokens = 1,
					.typed_segments = 1,
					.typed_values = values };
}

static void run(const struct codec_kernels *kernels, int is_fp16, uint32_t values, bool decode,
		uint16_t *page, uint8_t *image)
{
	const struct page_piece piece = { .base = (uint8_t *)page,
					  .kind = KIND_TYPED,
					  .length = values };
	const struct page_layout layout = { geometry_of(is_fp16, values), 1, &piece };

	assert_int_equal(decode ? codec_decode(kernels, &layout, 0, image, b.scratch) :
				  codec_encode(kernels, &layout, 0, CODEC_FP8, CODEC_FP8, &who,
					       image, b.scratch),
			 0);
}

/* All inputs up to the largest of exponent k, with both signs, `stride` apart: another order mixes
 * the ways that a step can take. Each group begins with the largest. */
static void encodes_as_ref(const struct codec_kernels *fast, int is_fp16, int k, uint32_t stride)
{
	uint32_t amax = 0x7fff, n = 0;

	while (fp8_exponent(is_fp16, amax) != k)
		amax--;
	for (uint32_t i = 0; i < CODES; i++) {
		const uint16_t v = (uint16_t)(i * stride);

		if (n % GROUP == 0)
			b.pages[0][n++] = (uint16_t)amax;
		if ((v & 0x7fff) <= amax)
			b.pages[0][n++] = v;
	}
	run(fast, is_fp16, n, false, b.pages[0], b.images[0]);
	run(&codec_ref, is_fp16, n, false, b.pages[0], b.images[1]);
	assert_int_equal(b.images[1][sizeof(struct image_header)], k + FP8_BIAS);
	assert_memory_equal(b.images[0], b.images[1], IMAGE_ALIGN + n);
}

static void encode_equals(const struct codec_kernels *fast, uint32_t stride)
{
	for (int h = 0; h < 2; h++)
		for (int k = k_least(h); k <= k_most(h); k++)
			encodes_as_ref(fast, h, k, stride);
}

TEST_FAST(encode_equals_ref)
{
	encode_equals(codec_or_skip(*state), 1);
}

TEST_FAST(encode_equals_ref_in_mixed_steps)
{
	encode_equals(codec_or_skip(*state), 40503);
}

/* The groups of a scale have all codes in two orders: mixed, so that a step has common and rare
 * ones; and 32 times each, so that a step has one kind. */
static uint8_t code_at(uint32_t i)
{
	return (uint8_t)(i < GROUP ? i * (i / 256 * 14 + 1) : (i - GROUP) / 32);
}

TEST_FAST(decode_equals_ref)
{
	const struct codec_kernels *fast = codec_or_skip(*state);
	uint8_t *image = b.images[0];

	for (int h = 0; h < 2; h++) {
		const struct image_geometry g = geometry_of(h, VALUES);
		struct image_shape shape;

		assert_int_equal(image_shape(&g, CODEC_FP8, CODEC_FP8, &shape, NULL), 0);
		image_header_fill((void *)image, &g, CODEC_FP8, CODEC_FP8, &shape, &who);
		for (uint32_t i = 0; i < 256 * GROUPS; i++)
			image[sizeof(struct image_header) + i] = (uint8_t)(i / GROUPS);
		for (uint32_t i = 0; i < VALUES; i++)
			image[IMAGE_ALIGN + i] = code_at(i % (GROUPS * GROUP));
		run(fast, h, VALUES, true, b.pages[0], image);
		run(&codec_ref, h, VALUES, true, b.pages[1], image);
		assert_memory_equal(b.pages[0], b.pages[1], sizeof(b.pages[0]));
	}
}

TEST(nan_codes_decode_to_nan)
{
	assert_int_equal(fp8_decode(0, 3, 0x7f), 0x7fc0);
	assert_int_equal(fp8_decode(0, 3, 0xff), 0xffc0);
	assert_int_equal(fp8_decode(1, -3, 0x7f), 0x7e00);
	assert_int_equal(fp8_decode(1, FP8_K_NAN, 0x81), 0xfe00);
}
