/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fp8.h - the FP8 rule, one value at a time, in integers. Every implementation must agree with this
 * file.
 *
 * A group of BF16 or FP16 values shares one exponent k, kept as the E8M0 byte k + 127:
 *	k = min{k : amax <= 464 * 2^k}
 *	code = x * 2^-k, rounded to nearest even in E4M3 (no Inf; its maximum is 448)
 * 464 is the midpoint between 448 and the 480 that E4M3 lacks, and rounds (to even) down to 448.
 * So amax * 2^-k lies in (232, 464], and the value of its code in [240, 448], which is again inside
 * (232, 464]. Hence a decoded group has the same k, and encode(decode(b)) == b. Reasons and error
 * figures: daemon/IMAGE.md.
 *
 * Integers only: no rounding mode, no flush-to-zero flag and no compiler option can change a bit.
 * All functions are total: any argument gives a defined result. Includable by C and, with FP8_FN
 * set to `__device__ static inline`, by CUDA. Any thread.
 */
#pragma once

#include <stdint.h>

#ifndef FP8_FN
#define FP8_FN static inline
#endif

enum {
	FP8_BIAS = 127,    /* of the E8M0 scale byte */
	FP8_K_ZEROS = 0,   /* k of a group of zeros: scale byte 127, a factor of one */
	FP8_K_NONE = -128, /* no k: the group is not for fp8 */
	FP8_K_NAN = 128,   /* E8M0 byte 255: every value of the group is NaN. Never written */
	FP8_MAX = 0x7e,    /* code of 448 */
	FP8_NAN = 0x7f,    /* never written */

	/* amax from here on is raw: it would round to a power of two that is Inf in its own dtype
	 * (2^128, 65536). All Inf and NaN codes are above. */
	FP8_BF16_LIMIT = 0x7f78,
	FP8_FP16_LIMIT = 0x7bc0,

	/* Below k = -116 a BF16 group is raw. There a subnormal source value could round to a code
	 * other than zero, and hardware that flushes subnormals would disagree. */
	FP8_BF16_K_MIN = -116,
	FP8_BF16_K_MAX = 120,
	/* FP16 needs no lower limit. Its values are multiples of 2^-24, and stay such multiples
	 * when they are rounded to a coarser grid. Where E4M3's grid is finer, values stay as they
	 * are. So every decoded value is an FP16 value. */
	FP8_FP16_K_MIN = -32,
	FP8_FP16_K_MAX = 8,
};

/* A 16-bit float: sign, exponent, `mantissa` bits; the least subnormal is 2^least. */
struct fp8_source {
	int mantissa, least;
	uint32_t inf, limit;
	int k_min;
};

/* is_fp16: 0 for BF16, 1 for FP16. */
FP8_FN struct fp8_source fp8_source(int is_fp16)
{
	const struct fp8_source bf16 = { 7, -133, 0x7f80, FP8_BF16_LIMIT, FP8_BF16_K_MIN };
	const struct fp8_source fp16 = { 10, -24, 0x7c00, FP8_FP16_LIMIT, FP8_FP16_K_MIN };

	return is_fp16 ? fp16 : bf16;
}

FP8_FN int fp8_msb(uint32_t x) /* x > 0 */
{
#ifdef __CUDA_ARCH__
	return 31 - __clz((int)x);
#else
	return 31 - __builtin_clz(x);
#endif
}

/* x * 2^-shift to the nearest integer, ties to even; x < 2^12, shift >= -19. */
FP8_FN uint32_t fp8_shift_rne(uint32_t x, int shift)
{
	if (shift <= 0)
		return x << -shift;
	if (shift > 13)
		return 0; /* x * 2^-shift < 1/2 */
	return (x + (1u << (shift - 1)) - 1 + ((x >> shift) & 1)) >> shift;
}

/* |value| of a source code as m * 2^e: returns m. */
FP8_FN uint32_t fp8_split(const struct fp8_source *s, uint32_t code, int *ret_e)
{
	const uint32_t one = 1u << s->mantissa, exponent = (code & 0x7fff) >> s->mantissa;

	*ret_e = exponent ? s->least + (int)exponent - 1 : s->least;
	return (code & (one - 1)) | (exponent ? one : 0);
}

/* k of a group from its amax code (the largest code with the sign off: codes order as their
 * values do), or FP8_K_NONE. */
FP8_FN int fp8_exponent(int is_fp16, uint32_t amax)
{
	const struct fp8_source s = fp8_source(is_fp16);
	uint32_t m;
	int e, p, k;

	if (amax == 0)
		return FP8_K_ZEROS;
	if (amax >= s.limit)
		return FP8_K_NONE;
	m = fp8_split(&s, amax, &e);
	p = fp8_msb(m);
	k = e + p - 8 + (16 * m > 29u << p); /* 464 = 29/16 * 2^8 */
	return k < s.k_min ? FP8_K_NONE : k;
}

/* Source code -> E4M3 code at exponent k, -127 <= k <= 127. Beyond 448 (Inf and NaN too) it
 * saturates. */
FP8_FN uint8_t fp8_encode(int is_fp16, int k, uint32_t code)
{
	const struct fp8_source s = fp8_source(is_fp16);
	const uint32_t sign = (code >> 8) & 0x80;
	int e, step;
	uint32_t m = fp8_split(&s, code, &e), magnitude;

	if (m == 0)
		return (uint8_t)sign;
	if ((code & 0x7fff) >= s.inf)
		return (uint8_t)(sign | FP8_MAX);
	step = e - k + fp8_msb(m) - 3; /* exponent of one unit of a four-bit significand, */
	if (step < -9)
		step = -9; /* never finer than E4M3's least subnormal */
	if (step > 5)
		return (uint8_t)(sign | FP8_MAX);
	/* A significand is 8 .. 16 (less for subnormals); 16 carries into the exponent by
	 * itself. */
	magnitude = ((uint32_t)(step + 9) << 3) + fp8_shift_rne(m, step - (e - k));
	return (uint8_t)(sign | (magnitude > FP8_MAX ? FP8_MAX : magnitude));
}

/* m * 2^e with this sign as a source code, rounded to nearest even; Inf where it is too large.
 * 0 < m < 2^9 */
FP8_FN uint16_t fp8_join(const struct fp8_source *s, uint32_t sign, uint32_t m, int e)
{
	int step = e + fp8_msb(m) - s->mantissa;
	uint32_t value;

	if (step < s->least)
		step = s->least;
	value = ((uint32_t)(step - s->least) << s->mantissa) + fp8_shift_rne(m, step - e);
	return (uint16_t)(sign | (value > s->inf ? s->inf : value));
}

/* E4M3 code -> source code at exponent k, -127 <= k <= 128. Exact for codes that fp8_encode() wrote
 * at a k from fp8_exponent(). With a foreign scale a value may be rounded (nearest even), be Inf,
 * or be NaN. */
FP8_FN uint16_t fp8_decode(int is_fp16, int k, uint32_t code)
{
	const struct fp8_source s = fp8_source(is_fp16);
	const uint32_t sign = (code & 0x80) << 8, magnitude = code & 0x7f,
		       exponent = magnitude >> 3;
	const uint32_t m = (magnitude & 7) | (exponent ? 8 : 0);

	if (magnitude == FP8_NAN || k == FP8_K_NAN)
		return (uint16_t)(sign | s.inf | (1u << (s.mantissa - 1)));
	if (m == 0)
		return (uint16_t)sign;
	return fp8_join(&s, sign, m, (exponent ? (int)exponent - 10 : -9) + k);
}
