/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * Goal: int8 keeps one value as daemon/IMAGE.md says, in every implementation, bit for bit. Method:
 * exhaustive. int8.h is held against the definition in double arithmetic. The fast kernels are held
 * against ref.c in planes whose columns begin with the largest value of a scale: at each legal
 * exponent all inputs that a column may have beside it, and all 256 codes at all 256 scale bytes.
 */
#include <math.h>
#include <stdbool.h>

#include "kernels/int8.h"
#include "tests/lib/lib_pages.h"
#include "tests/lib/test.h"

enum { CODES = 65536 };

static const struct rule {
	uint32_t dtype, inf, limit, least;
	int k_least, k_most;
} rules[2] = { /* index = is_fp16 */
	       { DTYPE_BF16, 0x7f80, INT8_BF16_LIMIT, INT8_BF16_LEAST, INT8_BF16_K_MIN,
		 INT8_BF16_K_MAX },
	       { DTYPE_FP16, 0x7c00, INT8_FP16_LIMIT, 1, INT8_FP16_K_MIN, INT8_FP16_K_MAX }
};

TEST(exponent_is_the_least_that_holds_amax)
{
	for (int h = 0; h < 2; h++)
		for (uint32_t amax = 1; amax < 0x8000; amax++) {
			const int k = int8_exponent(h, amax);

			if (amax < rules[h].least || amax >= rules[h].limit) {
				assert_int_equal(k, FP8_K_NONE);
				continue;
			}
			assert_in_range(k - rules[h].k_least, 0,
					rules[h].k_most - rules[h].k_least);
			assert_true(codec_value(h, amax) <= ldexp(127.5, k));
			assert_true(codec_value(h, amax) > ldexp(127.5, k - 1));
		}
}

TEST(zero_group_has_scale_one)
{
	assert_int_equal(int8_exponent(0, 0), 0);
	assert_int_equal(int8_exponent(1, 0), 0);
}

/* One value of a channel is just large enough for its scale, and each other one half a step off. */
TEST(error_of_a_channel_is_bounded)
{
	for (int n = 16; n <= 64; n *= 4) {
		const double large = 63.75 + 0.25, half = 0.5; /* BF16 has both */
		const uint32_t codes[2] = { 0x4280, 0x3f00 };
		const int k = int8_exponent(0, codes[0]);
		double noise = 0, signal = 0;

		assert_true(codec_value(0, codes[0]) == large);
		assert_true(codec_value(0, codes[1]) == half);
		for (int i = 0; i < n; i++) {
			const uint32_t v = codes[i > 0];
			const double x = codec_value(0, v),
				     y = codec_value(0, int8_decode(0, k, int8_encode(0, k, v)));

			noise += (x - y) * (x - y);
			signal += x * x;
		}
		assert_true(sqrt(noise / signal) <= sqrt(n) / 127.5);
		assert_true(sqrt(noise / signal) >= 0.95 * sqrt(n) / 127.5);
	}
}

/* What would round to 65,536 is refused; the largest value below is kept. */
TEST(fp16_limit_is_the_first_that_rounds_to_infinity)
{
	const int k = INT8_FP16_K_MAX;

	assert_true(codec_value(1, INT8_FP16_LIMIT) > ldexp(127.5, k));
	assert_true(codec_value(1, INT8_FP16_LIMIT - 1) <= ldexp(127.5, k));
	assert_true(codec_value(1, int8_decode(1, k, int8_encode(1, k, INT8_FP16_LIMIT - 1))) ==
		    65024);
}

/* Of every input at every k: to nearest even, bounded; and of what a group of this k can have, the
 * value is exact and comes back as the same code. */
static void check_value(int is_fp16, int k, uint32_t code)
{
	const double y = ldexp(codec_value(is_fp16, code), -k), want = nearbyint(y);
	const int8_t c = int8_encode(is_fp16, k, code);
	uint16_t back;

	assert_int_equal(c, want > 127 ? 127 : want < -127 ? -127 : (int)want);
	if (fabs(y) > 127.5 || (code & 0x7fff) >= rules[is_fp16].limit)
		return;
	back = int8_decode(is_fp16, k, c);
	assert_true(codec_value(is_fp16, back) == ldexp(c, k));
	assert_int_equal(int8_encode(is_fp16, k, back), c);
}

TEST(code_is_the_nearest_even_and_its_value_exact)
{
	for (int h = 0; h < 2; h++)
		for (int k = rules[h].k_least; k <= rules[h].k_most; k++)
			for (uint32_t v = 0; v < CODES; v++)
				if ((v & 0x7fff) < rules[h].inf)
					check_value(h, k, v);
}

TEST(decoded_amax_has_the_same_exponent)
{
	for (int h = 0; h < 2; h++)
		for (uint32_t amax = rules[h].least; amax < rules[h].limit; amax++) {
			const int k = int8_exponent(h, amax);

			assert_int_equal(int8_exponent(h,
						       int8_decode(h, k, int8_encode(h, k, amax))),
					 k);
		}
}

TEST(infinities_and_nans_saturate)
{
	assert_int_equal(int8_encode(0, 3, 0x7f80), 127);
	assert_int_equal(int8_encode(0, 3, 0xff80), -127);
	assert_int_equal(int8_encode(1, 3, 0xfe00), -127);
}

TEST(the_scale_of_nan_decodes_to_nan)
{
	assert_int_equal(int8_decode(0, FP8_K_NAN, 5), 0x7fc0);
	assert_int_equal(int8_decode(1, FP8_K_NAN, 0), 0x7e00);
}

/* A head of one group: a row of amaxes, then room for all inputs. The dim is no multiple of a
 * vector. */
enum { ROWS = IMAGE_CHANNEL_TOKENS, COLUMNS = 1045, VALUES = ROWS * COLUMNS };
static_assert((ROWS - 1) * COLUMNS >= CODES, "rows");

/* Two images, and two pages. */
static struct bed {
	_Alignas(4096) uint8_t images[2][IMAGE_ALIGN + VALUES];
	_Alignas(64) uint8_t scratch[CODEC_SCRATCH_BYTES];
	uint16_t pages[2][VALUES];
} b;

static const struct image_identity who;

static int status_of(const struct codec_kernels *kernels, int is_fp16, bool decode, uint16_t *page,
		     uint8_t *image)
{
	const struct page_piece piece = { .base = (uint8_t *)page,
					  .kind = KIND_K,
					  .head_stride = 2 * VALUES,
					  .token_stride = 2 * COLUMNS };
	const struct page_layout layout = { .geometry = { .dtype = rules[is_fp16].dtype,
							  .layers = 1,
							  .kv_heads = 1,
							  .head_dim_k = COLUMNS,
							  .block_tokens = ROWS },
					    .n_pieces = 1,
					    .pieces = &piece };

	return decode ? codec_decode(kernels, &layout, 0, image, b.scratch) :
			codec_encode(kernels, &layout, 0, CODEC_INT8, CODEC_INT8, &who, image,
				     b.scratch);
}

static void run(const struct codec_kernels *kernels, int is_fp16, bool decode, uint16_t *page,
		uint8_t *image)
{
	assert_int_equal(status_of(kernels, is_fp16, decode, page, image), 0);
}

/* The largest amax of exponent k tops all columns; the inputs below it follow, with both signs. */
static void encodes_as_ref(const struct codec_kernels *fast, int is_fp16, int k)
{
	uint32_t amax = 0x7fff;

	while (int8_exponent(is_fp16, amax) != k)
		amax--;
	for (uint32_t i = 0; i < VALUES; i++) {
		const uint16_t v = (uint16_t)(i - COLUMNS);

		b.pages[0][i] = i >= COLUMNS && (v & 0x7fff) <= amax ? v : (uint16_t)amax;
	}
	run(fast, is_fp16, false, b.pages[0], b.images[0]);
	run(&codec_ref, is_fp16, false, b.pages[0], b.images[1]);
	assert_int_equal(b.images[1][sizeof(struct image_header)], k + FP8_BIAS);
	assert_memory_equal(b.images[0], b.images[1], IMAGE_ALIGN + VALUES);
}

TEST_FAST(encode_equals_ref)
{
	const struct codec_kernels *fast = codec_or_skip(*state);

	for (int h = 0; h < 2; h++)
		for (int k = rules[h].k_least; k <= rules[h].k_most; k++)
			encodes_as_ref(fast, h, k);
}

/* All scales that are found, of all amaxes: a column each. */
TEST_FAST(scales_equal_ref)
{
	const struct codec_kernels *fast = codec_or_skip(*state);

	for (int h = 0; h < 2; h++)
		for (uint32_t first = rules[h].least; first < rules[h].limit; first += COLUMNS) {
			memset(b.pages[0], 0, sizeof(b.pages[0]));
			for (uint32_t c = 0; c < COLUMNS; c++)
				if (first + c < rules[h].limit)
					b.pages[0][c + c % ROWS * COLUMNS] = (uint16_t)(first + c);
			run(fast, h, false, b.pages[0], b.images[0]);
			run(&codec_ref, h, false, b.pages[0], b.images[1]);
			assert_memory_equal(b.images[0], b.images[1], IMAGE_ALIGN + VALUES);
		}
}

/* One column is not for int8: none of the first amaxes beyond its limits. */
TEST_FAST(refuses_what_ref_refuses)
{
	const struct codec_kernels *fast = codec_or_skip(*state);

	for (int h = 0; h < 2; h++) {
		const uint32_t bad[] = { rules[h].limit, rules[h].inf, 0x7fff, rules[h].least - 1 };

		for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
			memset(b.pages[0], 0, sizeof(b.pages[0]));
			b.pages[0][VALUES / 3] = (uint16_t)(0x8000 | bad[i]);
			assert_int_equal(status_of(fast, h, false, b.pages[0], b.images[0]),
					 bad[i] ? -ERANGE : 0);
		}
	}
}

/* The n scale bytes from `first` on, over and over: all codes at each of them. Where one of a tile
 * is none that an encoder writes, the whole tile is decoded in another way. */
static void decodes_as_ref(const struct codec_kernels *fast, int is_fp16, uint32_t first,
			   uint32_t n)
{
	uint8_t *image = b.images[0];

	memset(b.pages[0], 0, sizeof(b.pages[0]));
	run(&codec_ref, is_fp16, false, b.pages[0], image); /* for its header */
	for (uint32_t c = 0; c < COLUMNS; c++)
		image[sizeof(struct image_header) + c] = (uint8_t)(first + c % n);
	for (uint32_t i = 0; i < VALUES; i++)
		image[IMAGE_ALIGN + i] = (uint8_t)(i / COLUMNS + i % COLUMNS / n * ROWS);
	run(fast, is_fp16, true, b.pages[0], image);
	run(&codec_ref, is_fp16, true, b.pages[1], image);
	assert_memory_equal(b.pages[0], b.pages[1], sizeof(b.pages[0]));
}

TEST_FAST(decode_equals_ref)
{
	const struct codec_kernels *fast = codec_or_skip(*state);

	for (int h = 0; h < 2; h++) {
		decodes_as_ref(fast, h, 0, 256);
		decodes_as_ref(fast, h, INT8_BF16_K_MIN + FP8_BIAS, 247);
	}
}
