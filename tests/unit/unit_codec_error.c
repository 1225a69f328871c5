/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * Goal: fp8, k4 and v4 lose no more than daemon/IMAGE.md says. Method: exhaustive for single values
 * of fp8, 8 M Gaussian ones (fixed seed: a figure, not a search) for the means.
 */
#include <math.h>

#include "kernels/fp8.h"
#include "kernels/q4.h"
#include "tests/lib/lib_pages.h"
#include "tests/lib/test.h"

enum { GROUP = 16 * 128, GROUPS = 4096 };

static uint32_t bf16_of(double x)
{
	union {
		float f;
		uint32_t u;
	} v = { .f = (float)x };

	return (v.u + 0x7fff + (v.u >> 16 & 1)) >> 16;
}

/* Every value beside every amax exponent: 1/17 where the code is normal, half a least step where
 * not. */
TEST(error_of_a_value_is_bounded)
{
	for (int h = 0; h < 2; h++)
		for (int k = h ? FP8_FP16_K_MIN : -20; k <= FP8_FP16_K_MAX; k++)
			for (uint32_t v = 0; v < (h ? FP8_FP16_LIMIT : FP8_BF16_LIMIT); v++) {
				const double x = codec_value(h, v),
					     y = codec_value(h,
							     fp8_decode(h, k, fp8_encode(h, k, v)));

				if (x > ldexp(464, k))
					break;
				if (x >= ldexp(1, k - 6))
					assert_true(fabs(x - y) <= x / 17);
				else
					assert_true(fabs(x - y) <= ldexp(1, k - 10));
			}
}

static double gaussian(uint64_t *seed)
{
	double u[2];

	for (int i = 0; i < 2; i++) {
		*seed = *seed * 6364136223846793005u + 1442695040888963407u;
		u[i] = ((double)(*seed >> 33) + 0.5) / 2147483648.0;
	}
	return sqrt(-2 * log(u[0])) * cos(6.283185307179586 * u[1]);
}

/* Groups of one sigma each, sigma spread over an octave: where amax falls in its octave shifts the
 * figure a little. */
static void gaussian_ratio(double *ret_noise, double *ret_signal)
{
	uint64_t seed = 1;

	*ret_noise = *ret_signal = 0;
	for (int g = 0; g < GROUPS; g++) {
		const double sigma = exp2((double)g / GROUPS);
		uint32_t v[GROUP], amax = 0;
		int k;

		for (int i = 0; i < GROUP; i++) {
			v[i] = bf16_of(sigma * gaussian(&seed));
			amax = (v[i] & 0x7fff) > amax ? v[i] & 0x7fff : amax;
		}
		k = fp8_exponent(0, amax);
		for (int i = 0; i < GROUP; i++) {
			const double x = codec_value(0, v[i]),
				     y = codec_value(0, fp8_decode(0, k, fp8_encode(0, k, v[i])));

			*ret_noise += (x - y) * (x - y) / (sigma * sigma);
			*ret_signal += x * x / (sigma * sigma);
		}
	}
}

TEST(gaussian_rms_error)
{
	double noise, signal, percent;

	gaussian_ratio(&noise, &signal);
	percent = 100 * sqrt(noise / signal);
	print_message("relative RMS error %.4f %%\n", percent);
	assert_true(fabs(percent - 2.667) <= 0.02);
}

TEST(gaussian_signal_to_noise)
{
	double noise, signal;

	gaussian_ratio(&noise, &signal);
	assert_true(10 * log10(signal / noise) >= 31);
}

/* Relative RMS, in percent, of groups of n values of one sigma each. */
static double four_bits(bool k4, int n)
{
	double noise = 0, signal = 0;
	uint64_t seed = 1;

	for (int g = 0; g < 64 * GROUPS; g++) {
		const double sigma = exp2((double)g / (64 * GROUPS));
		uint32_t v[64], least = 0, most = 0, amax = 0;
		int j;

		for (int i = 0; i < n; i++) {
			v[i] = bf16_of(sigma * gaussian(&seed));
			amax = (v[i] & 0x7fff) > amax ? v[i] & 0x7fff : amax;
			least = i == 0 || q4_rank(v[i]) < q4_rank(least) ? v[i] : least;
			most = i == 0 || q4_rank(v[i]) > q4_rank(most) ? v[i] : most;
		}
		j = k4 ? k4_step(0, least, most) : v4_step(0, amax);
		for (int i = 0; i < n; i++) {
			const double x = codec_value(0, v[i]),
				     y = codec_value(0,
						     k4 ? k4_decode(0, least, j,
								    k4_encode(0, least, j, v[i])) :
							  v4_decode(0, j, v4_encode(0, j, v[i])));

			noise += (x - y) * (x - y) / (sigma * sigma);
			signal += x * x / (sigma * sigma);
		}
	}
	return 100 * sqrt(noise / signal);
}

TEST(gaussian_rms_error_of_k4)
{
	const double tokens64 = four_bits(true, 64), tokens16 = four_bits(true, 16);

	print_message("64 tokens %.2f %%, 16 tokens %.2f %%\n", tokens64, tokens16);
	assert_true(fabs(tokens64 - 8.99) <= 0.1);
	assert_true(fabs(tokens16 - 6.66) <= 0.1);
}

TEST(gaussian_rms_error_of_v4)
{
	const double percent = four_bits(false, IMAGE_V4_VALUES);

	print_message("%.2f %%\n", percent);
	assert_true(fabs(percent - 8.96) <= 0.1);
}
