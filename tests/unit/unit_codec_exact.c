/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * Goal: one value is encoded and decoded as daemon/IMAGE.md says, by every implementation, bit for
 * bit. Method: exhaustive. fp8.h is held against the definition in double arithmetic; the fast
 * kernels against fp8.h over all 65,536 inputs at all legal exponents, and all 256 codes at all 256
 * scale bytes.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/fp8.h"
#include "kernels/kernels.h"

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

static void exponent_is_the_least_that_holds_amax(void **state)
{
	(void)state;
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

static void zero_group_has_scale_one(void **state)
{
	(void)state;
	assert_int_equal(fp8_exponent(0, 0), 0);
	assert_int_equal(fp8_exponent(1, 0), 0);
}

static void limits_are_the_first_that_round_to_infinity(void **state)
{
	(void)state;
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

static void code_is_the_nearest_even(void **state)
{
	(void)state;
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

static void decode_is_exact_where_a_group_can_be(void **state)
{
	(void)state;
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

static void decoded_amax_has_the_same_exponent(void **state)
{
	(void)state;
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
static void reencoding_gives_the_same_code(void **state)
{
	(void)state;
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

static const struct codec_kernels *fast_or_skip(void **state)
{
	if (!*state)
		skip(); /* not on this CPU */
	return *state;
}

static void encode_equals_ref(void **state)
{
	const struct codec_kernels *fast = fast_or_skip(state);
	uint16_t *in = malloc(CODES * sizeof(*in));
	uint8_t *got = malloc(CODES), *want = malloc(CODES);

	for (uint32_t v = 0; v < CODES; v++)
		in[v] = (uint16_t)v;
	for (int h = 0; h < 2; h++)
		for (int k = k_least(h); k <= k_most(h); k++) {
			codec_ref.encode_run(dtypes[h], k, in, want, CODES);
			fast->encode_run(dtypes[h], k, in, got, CODES);
			assert_memory_equal(got, want, CODES);
		}
	free(in);
	free(got);
	free(want);
}

/* Neighbours decide which way a step takes: the same inputs scattered, so that steps are mixed. */
static void encode_equals_ref_in_mixed_steps(void **state)
{
	const struct codec_kernels *fast = fast_or_skip(state);
	uint16_t *in = malloc(CODES * sizeof(*in));
	uint8_t *got = malloc(CODES), *want = malloc(CODES);

	for (uint32_t v = 0; v < CODES; v++)
		in[v] = (uint16_t)(v * 40503u);
	for (int h = 0; h < 2; h++)
		for (int k = k_least(h); k <= k_most(h); k++) {
			codec_ref.encode_run(dtypes[h], k, in, want, CODES);
			fast->encode_run(dtypes[h], k, in, got, CODES);
			assert_memory_equal(got, want, CODES);
		}
	free(in);
	free(got);
	free(want);
}

static void decode_equals_ref(void **state)
{
	const struct codec_kernels *fast = fast_or_skip(state);
	_Alignas(64) uint16_t got[256], want[256];
	uint8_t codes[256];

	for (uint32_t step = 1; step < 256; step += 14) /* odd: every order holds all codes */
		for (int h = 0; h < 2; h++)
			for (int scale = 0; scale < 256; scale++) {
				for (uint32_t i = 0; i < 256; i++)
					codes[i] = (uint8_t)(i * (step | 1));
				codec_ref.decode_run(dtypes[h], scale - FP8_BIAS, codes, want, 256);
				fast->decode_run(dtypes[h], scale - FP8_BIAS, codes, got, 256);
				assert_memory_equal(got, want, sizeof(want));
			}
}

static void nan_codes_decode_to_nan(void **state)
{
	(void)state;
	assert_int_equal(fp8_decode(0, 3, 0x7f), 0x7fc0);
	assert_int_equal(fp8_decode(0, 3, 0xff), 0xffc0);
	assert_int_equal(fp8_decode(1, -3, 0x7f), 0x7e00);
	assert_int_equal(fp8_decode(1, FP8_K_NAN, 0x81), 0xfe00);
}

#define FAST(name, test)                                                                 \
	{                                                                                \
		name "_" #test, test, NULL, NULL, (void *)(uintptr_t)codec_kernels(name) \
	}

int main(void)
{
	const struct CMUnitTest exact[] = {
		cmocka_unit_test(exponent_is_the_least_that_holds_amax),
		cmocka_unit_test(zero_group_has_scale_one),
		cmocka_unit_test(limits_are_the_first_that_round_to_infinity),
		cmocka_unit_test(code_is_the_nearest_even),
		cmocka_unit_test(decode_is_exact_where_a_group_can_be),
		cmocka_unit_test(decoded_amax_has_the_same_exponent),
		cmocka_unit_test(reencoding_gives_the_same_code),
		cmocka_unit_test(nan_codes_decode_to_nan),
	};
	const struct CMUnitTest fast[] = {
		FAST("avx2", encode_equals_ref),
		FAST("avx2", encode_equals_ref_in_mixed_steps),
		FAST("avx2", decode_equals_ref),
		FAST("avx512", encode_equals_ref),
		FAST("avx512", encode_equals_ref_in_mixed_steps),
		FAST("avx512", decode_equals_ref),
	};

	return cmocka_run_group_tests(exact, NULL, NULL) +
			       cmocka_run_group_tests(fast, NULL, NULL) ?
		       1 :
		       0;
}
