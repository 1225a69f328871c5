/* SPDX-License-Identifier: Apache-2.0 */
/*
 * int8.h - the int8 rule, one value at a time, in integers. Every implementation must agree with
 * this file.
 *
 * The values of one channel in up to 64 tokens of a head share one exponent k, kept as the E8M0
 * byte k + 127:
 *	k = min{k : amax <= 127.5 * 2^k}
 *	code = x * 2^-k, rounded to the nearest integer, ties to even, from -127 to 127
 * 127.5 is a tie with 128, which int8 lacks, and is cut to 127. amax * 2^-k lies in (63.75, 127.5],
 * and its code in [64, 127], which is again inside (63.75, 127.5]. Hence a decoded group has the
 * same k, and encode(decode(b)) == b. A code has seven bits, so its value is exact in BF16 and
 * FP16. The sign of a zero is lost. Reasons and error figures: daemon/IMAGE.md.
 *
 * Integers only, total functions, any thread: as fp8.h, whose arithmetic of 16-bit floats it uses.
 */
#pragma once

#include "fp8.h"

enum {
	INT8_MAX_CODE = 127,

	/* amax from here on is raw: it is Inf or NaN, or would round to 65536, which FP16 lacks */
	INT8_BF16_LIMIT = 0x7f80,
	INT8_FP16_LIMIT = 0x7bf9,

	/* Below this amax, the least of k = -125, a BF16 group is raw. From there on a subnormal
	 * source value is less than half a step and becomes 0, whether or not hardware flushes it.
	 * FP16 needs no lower limit, for the reason that fp8.h gives. */
	INT8_BF16_LEAST = 0x0400,
	INT8_BF16_K_MIN = -125,
	INT8_BF16_K_MAX = 121,
	INT8_FP16_K_MIN = -30,
	INT8_FP16_K_MAX = 9,
};

/* k of a group from its amax code, or FP8_K_NONE: the group is not for int8. */
FP8_FN int int8_exponent(int is_fp16, uint32_t amax)
{
	const struct fp8_source s = fp8_source(is_fp16);
	uint32_t m;
	int e, p;

	if (amax == 0)
		return FP8_K_ZEROS;
	if (amax >= (is_fp16 ? (uint32_t)INT8_FP16_LIMIT : (uint32_t)INT8_BF16_LIMIT) ||
	    (!is_fp16 && amax < INT8_BF16_LEAST))
		return FP8_K_NONE;
	m = fp8_split(&s, amax, &e);
	p = fp8_msb(m);
	return e + p - 6 + (128 * m > 255u << p); /* 127.5 = 255/128 * 2^6 */
}

/* Source code -> int8 code at exponent k, -127 <= k <= 127. Beyond 127 (Inf and NaN too) it
 * saturates. */
FP8_FN int8_t int8_encode(int is_fp16, int k, uint32_t code)
{
	const struct fp8_source s = fp8_source(is_fp16);
	int e;
	const uint32_t m = fp8_split(&s, code, &e);
	uint32_t magnitude = INT8_MAX_CODE;

	if (m == 0)
		return 0;
	if ((code & 0x7fff) < s.inf && e - k <= 7)
		magnitude = fp8_shift_rne(m, k - e);
	if (magnitude > INT8_MAX_CODE)
		magnitude = INT8_MAX_CODE;
	return (int8_t)(code & 0x8000 ? -(int)magnitude : (int)magnitude);
}

/* int8 code -> source code at exponent k, -127 <= k <= 128. Exact for codes that int8_encode()
 * wrote at a k from int8_exponent(). With a foreign scale a value may be rounded (nearest even), be
 * Inf, or be NaN. */
FP8_FN uint16_t int8_decode(int is_fp16, int k, int8_t code)
{
	const struct fp8_source s = fp8_source(is_fp16);

	if (k == FP8_K_NAN)
		return (uint16_t)(s.inf | (1u << (s.mantissa - 1)));
	if (code == 0)
		return 0;
	return fp8_join(&s, code < 0 ? 0x8000 : 0, (uint32_t)(code < 0 ? -code : code), k);
}
