/* SPDX-License-Identifier: Apache-2.0 */
/*
 * avx512_int8.h - int8.h's arithmetic, 32 values at a time, only for vbmi2.c. Read avx2_int8.h
 * first: this is its encode in wider registers. Here the even columns of 32 are taken apart from
 * the odd ones. Decode is taken from there.
 */
#pragma once

#include "avx2_int8.h"
#include "avx512_math.h"

struct split32 {
	__m512i even, odd;
};

MATH_FN __m512i join32(__m512i even, __m512i odd)
{
	return _mm512_mask_blend_epi16(0xaaaaaaaa, even, _mm512_slli_epi32(odd, 16));
}

MATH_FN struct split32 int8_floats32(bool is_fp16, __m512i x)
{
	const __m512i apart =
		_mm512_set_epi16(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1, 30, 28,
				 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);

	if (!is_fp16)
		return (struct split32){
			_mm512_slli_epi32(x, 16),
			_mm512_and_si512(x, _mm512_set1_epi32((int)0xffff0000)),
		};
	x = _mm512_permutexvar_epi16(apart, x);
	return (struct split32){
		_mm512_castps_si512(_mm512_cvtph_ps(_mm512_castsi512_si256(x))),
		_mm512_castps_si512(_mm512_cvtph_ps(_mm512_extracti64x4_epi64(x, 1))),
	};
}

MATH_FN __m512i int8_scales16(__m512i amax)
{
	const __m512i above = _mm512_add_epi32(amax, _mm512_set1_epi32(0xffff));
	const __m512i s = _mm512_sub_epi32(_mm512_srli_epi32(above, 23), _mm512_set1_epi32(6));

	return _mm512_mask_mov_epi32(s, _mm512_testn_epi32_mask(amax, amax),
				     _mm512_set1_epi32(FP8_BIAS));
}

MATH_FN bool int8_refuses32(bool is_fp16, __m512i amax)
{
	const int least = is_fp16 ? 1 : INT8_BF16_LEAST;
	const int limit = is_fp16 ? INT8_FP16_LIMIT : INT8_BF16_LIMIT;
	/* less one: zeros are the largest numbers, and not refused */
	const __m512i x = _mm512_sub_epi16(amax, _mm512_set1_epi16(1));

	return _mm512_cmplt_epu16_mask(x, _mm512_set1_epi16((short)(least - 1))) != 0 ||
	       _mm512_cmpge_epu16_mask(amax, _mm512_set1_epi16((short)limit)) != 0;
}

struct wide_columns {
	__m512i amax[2];
};

MATH_FN struct wide_columns wide_columns_start(void)
{
	return (struct wide_columns){ { _mm512_setzero_si512(), _mm512_setzero_si512() } };
}

MATH_FN void wide_columns_max(struct wide_columns *c, const uint8_t *row)
{
	const __m512i mask = _mm512_set1_epi16(0x7fff);

	for (int i = 0; i < 2; i++)
		c->amax[i] =
			_mm512_max_epi16(c->amax[i],
					 _mm512_and_si512(_mm512_loadu_si512(row + 64 * i), mask));
}

MATH_FN bool wide_columns_scales(bool is_fp16, const struct wide_columns *c, uint8_t *ret,
				 float *ret_powers)
{
	bool good = true;

	for (int i = 0; i < 2; i++) {
		const struct split32 x = int8_floats32(is_fp16, c->amax[i]);
		const __m512i even = int8_scales16(x.even), odd = int8_scales16(x.odd);
		const __m512i one = _mm512_set1_epi32(2 * FP8_BIAS);
		float *powers = ret_powers + 32 * i;

		_mm512_storeu_si512(powers, _mm512_slli_epi32(_mm512_sub_epi32(one, even), 23));
		_mm512_storeu_si512(powers + 16, _mm512_slli_epi32(_mm512_sub_epi32(one, odd), 23));
		_mm256_storeu_si256((void *)(ret + 32 * i),
				    _mm512_cvtepi16_epi8(join32(even, odd)));
		good = good && !int8_refuses32(is_fp16, c->amax[i]);
	}
	return good;
}

MATH_FN __m512i wide_int8_32(bool is_fp16, const uint8_t *src, const float *powers)
{
	const struct split32 x = int8_floats32(is_fp16, _mm512_loadu_si512(src));
	const __m512 even = _mm512_mul_ps(_mm512_castsi512_ps(x.even), _mm512_loadu_ps(powers)),
		     odd = _mm512_mul_ps(_mm512_castsi512_ps(x.odd), _mm512_loadu_ps(powers + 16));

	return join32(_mm512_cvtps_epi32(even), _mm512_cvtps_epi32(odd));
}

MATH_FN struct wide_line wide_int8_64(bool is_fp16, const uint8_t *src, const float *powers)
{
	const __m512i order = _mm512_set_epi64(7, 5, 3, 1, 6, 4, 2, 0);
	const __m512i codes = _mm512_packs_epi16(wide_int8_32(is_fp16, src, powers),
						 wide_int8_32(is_fp16, src + 64, powers + 32));

	return (struct wide_line){ _mm512_max_epi8(_mm512_permutexvar_epi64(order, codes),
						   _mm512_set1_epi8(-127)) };
}

/* The names that x86_codec.h uses. */
#define math_columns        wide_columns
#define math_columns_start  wide_columns_start
#define math_columns_max    wide_columns_max
#define math_columns_scales wide_columns_scales
#define math_int8_64        wide_int8_64
