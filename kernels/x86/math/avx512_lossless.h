/* SPDX-License-Identifier: Apache-2.0 */
/*
 * avx512_lossless.h - lossless.h's arithmetic, a step of 64 values at a time, only for vbmi2.c.
 * Read avx2_lossless.h first.
 */
#pragma once

#include "avx512_math.h"
#include "kernels/lossless.h"

struct wide_parts {
	struct wide_line low, exponents;
	uint64_t high[3];
};

MATH_FN struct wide_parts wide_take(bool is_fp16, const uint8_t *src)
{
	const __m512i a = _mm512_loadu_si512(src), b = _mm512_loadu_si512(src + 64);
	const __m512i upper = _mm512_packus_epi16(_mm512_srli_epi16(a, 8), _mm512_srli_epi16(b, 8));
	struct wide_parts x;

	if (is_fp16) {
		const __m512i byte = _mm512_set1_epi16(0xff);

		x.low.all =
			_mm512_packus_epi16(_mm512_and_si512(a, byte), _mm512_and_si512(b, byte));
		x.exponents.all =
			_mm512_and_si512(_mm512_srli_epi16(upper, 2), _mm512_set1_epi8(31));
		x.high[0] = _mm512_test_epi8_mask(upper, _mm512_set1_epi8(1));
		x.high[1] = _mm512_test_epi8_mask(upper, _mm512_set1_epi8(2));
		x.high[2] = _mm512_movepi8_mask(upper);
	} else {
		const __m512i lower =
			_mm512_packus_epi16(_mm512_and_si512(a, _mm512_set1_epi16(0xff)),
					    _mm512_and_si512(b, _mm512_set1_epi16(0xff)));
		/* bit by bit: of `upper` the sign, of `lower` the rest */
		const __m512i seven = _mm512_set1_epi8(0x7f);

		x.low.all = _mm512_ternarylogic_epi32(seven, lower, upper, 0xca);
		x.exponents.all =
			_mm512_ternarylogic_epi32(_mm512_set1_epi8(1), _mm512_srli_epi16(lower, 7),
						  _mm512_slli_epi16(upper, 1), 0xca);
	}
	return x;
}

MATH_FN uint32_t wide_at_least(struct wide_line x, uint32_t least)
{
	return (uint32_t)__builtin_popcountll(
		_mm512_cmpge_epu8_mask(x.all, _mm512_set1_epi8((char)least)));
}

MATH_FN void wide_give(bool is_fp16, const struct wide_parts *x, uint8_t *dst, bool lines)
{
	const __m512i low = x->low.all, e = x->exponents.all;
	__m512i lower = low, upper, a, b;

	if (is_fp16) {
		upper = _mm512_slli_epi16(_mm512_and_si512(e, _mm512_set1_epi8(31)), 2);
		upper = _mm512_mask_add_epi8(upper, x->high[0], upper, _mm512_set1_epi8(1));
		upper = _mm512_mask_add_epi8(upper, x->high[1], upper, _mm512_set1_epi8(2));
		upper = _mm512_mask_add_epi8(upper, x->high[2], upper, _mm512_set1_epi8(-128));
	} else {
		const __m512i seven = _mm512_set1_epi8(0x7f);

		lower = _mm512_ternarylogic_epi32(seven, low, _mm512_slli_epi16(e, 7), 0xca);
		upper = _mm512_ternarylogic_epi32(seven, _mm512_srli_epi16(e, 1), low, 0xca);
	}
	a = _mm512_unpacklo_epi8(lower, upper);
	b = _mm512_unpackhi_epi8(lower, upper);
	if (lines) {
		_mm512_stream_si512((void *)dst, a);
		_mm512_stream_si512((void *)(dst + 64), b);
	} else {
		_mm512_storeu_si512(dst, a);
		_mm512_storeu_si512(dst + 64, b);
	}
}

/* The names that x86_lossless.h uses. */
#define math_take     wide_take
#define math_at_least wide_at_least
