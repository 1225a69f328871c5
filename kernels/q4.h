/* SPDX-License-Identifier: Apache-2.0 */
/*
 * q4.h - the rules k4 and v4 of four bits, one value at a time. Every implementation must agree
 * with this file.
 *
 * k4 is for K, whose channels differ. The values of one channel in up to 64 tokens of a head share
 * their least value `lo`, a code of the source's dtype, and a step s = 2^((j - 168) / 12), kept as
 * the byte j:
 *	j = min{j : hi - lo <= 15.5 * s and 8 ulp(lo) <= s}	hi: the largest value
 *	code = (x - lo) / s, rounded to the nearest integer, from 0 to 15
 *	value = lo + code * s, rounded to the dtype
 * hi - lo is in (14.63, 15.5] steps, so hi has code 15, and lo has 0 and is kept as it is. Both are
 * again inside: encode(decode(b)) == b. With eight ulp a step, rounding to the dtype moves no value
 * by more than an eighth of a step. Where j is larger than hi - lo needs, because of lo or since
 * there is no smaller one, it stays as large, for the same lo.
 *
 * v4 is for V. 32 consecutive values of a token share a step s = 2^((j - 177) / 8):
 *	j = min{j >= 1 : amax <= 8 * s}, 0 where amax is 0
 *	code = x / s + 8, rounded down, from 0 to 15
 *	value = (code - 7.5) * s, rounded to the dtype; 0 where j is 0
 * amax is in (7.33, 8] steps and becomes 7.5, which is again inside, as long as j > 1. All codes of
 * j = 1 are in it as well.
 *
 * Arithmetic is that of 32-bit floats, each operation rounded to the nearest by itself: compilers
 * must not fuse them. Flags that flush subnormals change nothing: subnormal BF16 sources are below
 * half an ulp of whatever they are added to, and 0 as lo; no other subnormal is met. All functions
 * are total. Reasons and error figures: daemon/IMAGE.md. Includable by CUDA, as fp8.h. Any thread.
 */
#pragma once

#include <string.h>

#include "fp8.h"

enum {
	Q4_MOST = 15,      /* the largest code */
	Q4_STEP_NONE = -1, /* no j: the group is not for four bits */
	Q4_STEP_MOST = 255,
	K4_OCTAVE = 12, /* steps of k4 in a factor of two */
	K4_ONE = 168,   /* j of a step of 1 */
	V4_OCTAVE = 8,
	V4_ONE = 177,
	V4_STEP_LEAST = 1,
	V4_STEP_ZEROS = 0,
};

/* Mantissas of 2^(i / 12) and 2^(i / 8), and of 15.5 * 2^(i / 12) from i = 1 to 12. */
#define K4_MANTISSAS                                                                            \
	{                                                                                       \
		0x000000, 0x079c7d, 0x0facd6, 0x1837f0, 0x214518, 0x2adc08, 0x3504f3, 0x3fc887, \
			0x4b2ff5, 0x5744fd, 0x6411f0, 0x71a1bf                                  \
	}
#define V4_MANTISSAS                                                                           \
	{                                                                                      \
		0x000000, 0x0b95c2, 0x1837f0, 0x25fed7, 0x3504f3, 0x45672a, 0x5744fd, 0x6ac0c7 \
	}
#define K4_RANGES                                                                               \
	{                                                                                       \
		0x035f99, 0x0b2f6f, 0x137631, 0x1c3aef, 0x258528, 0x2f5ccc, 0x39ca43, 0x44d676, \
			0x508ad5, 0x5cf161, 0x6a14b1, 0x780000                                  \
	}

#ifdef __CUDA_ARCH__
#define Q4_MUL(x, y) __fmul_rn(x, y)
#define Q4_ADD(x, y) __fadd_rn(x, y)
#else
#define Q4_MUL(x, y) ((x) * (y))
#define Q4_ADD(x, y) ((x) + (y))
#endif

FP8_FN float q4_float(uint32_t bits)
{
	float x;

	memcpy(&x, &bits, sizeof(x));
	return x;
}

FP8_FN uint32_t q4_bits(float x)
{
	uint32_t bits;

	memcpy(&bits, &x, sizeof(bits));
	return bits;
}

/* The value of a source code. */
FP8_FN float q4_value(int is_fp16, uint32_t code)
{
	const struct fp8_source s = fp8_source(is_fp16);
	const uint32_t sign = (code & 0x8000) << 16;
	int e;
	uint32_t m;

	if (!is_fp16)
		return q4_float(code << 16);
	if ((code & 0x7fff) >= s.inf)
		return q4_float(sign | 0x7f800000 | (code & 0x3ff) << 13);
	m = fp8_split(&s, code, &e);
	/* 2^e is a normal float, and the product is exact */
	return q4_float(sign | q4_bits(Q4_MUL((float)m, q4_float((uint32_t)(e + 127) << 23))));
}

/* A float that is no NaN as a source code, rounded to the nearest, ties to even. */
FP8_FN uint16_t q4_code(int is_fp16, float x)
{
	const uint32_t bits = q4_bits(x), sign = bits >> 16 & 0x8000;
	const uint32_t m = (bits & 0x7fffff) | 0x800000;
	const int e = (int)(bits >> 23 & 255) - 127;
	/* bits of m below FP16's last one, whose least is 2^-24 */
	const int below = e < -14 ? -1 - e : 13;
	uint32_t code;

	if (!is_fp16)
		return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
	if (below > 24)
		return (uint16_t)sign;
	code = (m + (1u << (below - 1)) - 1 + (m >> below & 1)) >> below;
	if (e >= -14)
		code += (uint32_t)(e + 14) << 10;
	return (uint16_t)(sign | (code > 0x7c00 ? 0x7c00 : code));
}

/* A code's rank: codes of smaller values have smaller ranks. It is its own inverse. */
FP8_FN int q4_rank(uint32_t code)
{
	return code & 0x8000 ? (int)(code ^ 0x7fff) - 0x10000 : (int)code;
}

/* 2^(n / 12), n from -255 to 255. */
FP8_FN float k4_power(int n)
{
	static const uint32_t mantissas[K4_OCTAVE] = K4_MANTISSAS;
	const uint32_t up = (uint32_t)(n + 22 * K4_OCTAVE);

	return q4_float((up / K4_OCTAVE + 127 - 22) << 23 | mantissas[up % K4_OCTAVE]);
}

/* 2^(n / 8), the same. */
FP8_FN float v4_power(int n)
{
	static const uint32_t mantissas[V4_OCTAVE] = V4_MANTISSAS;
	const uint32_t up = (uint32_t)(n + 32 * V4_OCTAVE);

	return q4_float((up / V4_OCTAVE + 127 - 32) << 23 | mantissas[up % V4_OCTAVE]);
}

/* The code that a group with this least value keeps as lo: no subnormal of BF16, no -0. */
FP8_FN uint32_t k4_least(int is_fp16, uint32_t code)
{
	return (code & (is_fp16 ? 0x7fffu : 0x7f80u)) ? code : 0;
}

/* j of a channel, from lo and the code of its largest value; or Q4_STEP_NONE. */
FP8_FN int k4_step(int is_fp16, uint32_t lo, uint32_t hi)
{
	static const uint32_t ranges[K4_OCTAVE] = K4_RANGES;
	const struct fp8_source s = fp8_source(is_fp16);
	const int e = (int)((lo & 0x7fff) >> s.mantissa);
	uint32_t range;
	int j, least;

	if ((lo & 0x7fff) >= s.inf || (hi & 0x7fff) >= s.inf)
		return Q4_STEP_NONE;
	range = q4_bits(Q4_ADD(q4_value(is_fp16, hi), -q4_value(is_fp16, lo))) & 0x7fffffff;
	/* 15.5 * 2^(1 / 12) is the first step above 2^4 */
	j = K4_OCTAVE * ((int)(range >> 23) - 127 - 4) + K4_ONE + 1;
	for (int i = 0; i < K4_OCTAVE; i++)
		j += (range & 0x7fffff) > ranges[i];
	/* 8 ulp are 2^(e - 131), or in FP16 2^(e - 22) */
	least = K4_OCTAVE * (e - (is_fp16 ? 22 : 131)) + K4_ONE;
	j = j > least ? j : least;
	j = j > 0 ? j : 0;
	return j > Q4_STEP_MOST ? Q4_STEP_NONE : j;
}

FP8_FN uint32_t k4_encode(int is_fp16, uint32_t lo, int j, uint32_t code)
{
	const float x = Q4_ADD(q4_value(is_fp16, code), -q4_value(is_fp16, lo));
	const float steps = Q4_MUL(x, k4_power(K4_ONE - j));

	/* a page that changes may have any value here */
	if (!(steps < Q4_MOST))
		return Q4_MOST;
	/* beyond 2^23 a float has no half, so the sum is rounded to the nearest, ties to even */
	return steps > 0 ? q4_bits(Q4_ADD(steps, 8388608.0f)) & Q4_MOST : 0;
}

/* With a foreign lo the value may be Inf, or NaN. */
FP8_FN uint16_t k4_decode(int is_fp16, uint32_t lo, int j, uint32_t code)
{
	const struct fp8_source s = fp8_source(is_fp16);

	if ((lo & 0x7fff) >= s.inf)
		return (uint16_t)(s.inf | (1u << (s.mantissa - 1)));
	return q4_code(is_fp16,
		       Q4_ADD(q4_value(is_fp16, lo), Q4_MUL((float)code, k4_power(j - K4_ONE))));
}

/* j of 32 values, from the code of their amax; or Q4_STEP_NONE. */
FP8_FN int v4_step(int is_fp16, uint32_t amax)
{
	static const uint32_t mantissas[V4_OCTAVE] = V4_MANTISSAS;
	const uint32_t bits = q4_bits(q4_value(is_fp16, amax));
	int j;

	if (amax == 0)
		return V4_STEP_ZEROS;
	if (amax >= fp8_source(is_fp16).inf)
		return Q4_STEP_NONE;
	j = V4_OCTAVE * ((int)(bits >> 23) - 127 - 3) + V4_ONE;
	for (int i = 0; i < V4_OCTAVE; i++)
		j += (bits & 0x7fffff) > mantissas[i];
	j = j > V4_STEP_LEAST ? j : V4_STEP_LEAST;
	return j > Q4_STEP_MOST ? Q4_STEP_NONE : j;
}

FP8_FN uint32_t v4_encode(int is_fp16, int j, uint32_t code)
{
	const float x = Q4_MUL(q4_value(is_fp16, code), v4_power(V4_ONE - j));
	const float steps = Q4_ADD(x, 8.0f);

	if (!(steps < Q4_MOST))
		return Q4_MOST;
	return steps > 0 ? (uint32_t)steps : 0;
}

FP8_FN uint16_t v4_decode(int is_fp16, int j, uint32_t code)
{
	if (j == V4_STEP_ZEROS)
		return 0;
	return q4_code(is_fp16, Q4_MUL((float)code - 7.5f, v4_power(j - V4_ONE)));
}
