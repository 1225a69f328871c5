/* SPDX-License-Identifier: Apache-2.0 */
/*
 * avx2_int8.h - int8.h's arithmetic, for avx2.c, and decode for vbmi2.c, too. Read avx2_math.h
 * first.
 *
 * Each column has a scale of its own, so a row meets all scales of its tile. They lie beside each
 * other in scratch as *powers*: 2^k, or 2^-k, in 32-bit floats.
 *
 * A 16-bit value becomes a 32-bit float by a shift or a mask, without a move between lanes, if the
 * even columns of sixteen are taken apart from the odd ones: split16(). The powers of sixteen
 * columns lie in that order, those of the even columns first. Nothing in an image does.
 *
 * All scales that int8_exponent() gives have powers that are normal floats, and so has every scale
 * from INT8_SCALE_LEAST to INT8_SCALE_MOST. A subnormal BF16 value is below half a step at all of
 * them: the flush-to-zero flags do not matter.
 */
#pragma once

#include "avx2_math.h"
#include "kernels/int8.h"

enum {
	INT8_SCALE_LEAST = INT8_BF16_K_MIN + FP8_BIAS,
	INT8_SCALE_MOST = INT8_BF16_K_MAX + FP8_BIAS,
};

/* Sixteen 32-bit lanes: of the even columns, and of the odd ones. */
struct split16 {
	__m256i even, odd;
};

MATH_FN struct split16 split16(__m256i x)
{
	return (struct split16){ _mm256_slli_epi32(x, 16),
				 _mm256_and_si256(x, _mm256_set1_epi32((int)0xffff0000)) };
}

/* The low halves of all lanes. */
MATH_FN __m256i join16(__m256i even, __m256i odd)
{
	return _mm256_blend_epi16(even, _mm256_slli_epi32(odd, 16), 0xaa);
}

/* Sixteen source values as floats. */
MATH_FN struct split16 int8_floats16(bool is_fp16, __m256i x)
{
	const __m256i apart =
		_mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15, 0, 1, 4, 5,
				 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);

	if (!is_fp16)
		return split16(x);
	x = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(x, apart), 0xd8);
	return (struct split16){
		_mm256_castps_si256(_mm256_cvtph_ps(_mm256_castsi256_si128(x))),
		_mm256_castps_si256(_mm256_cvtph_ps(_mm256_extracti128_si256(x, 1))),
	};
}

/* The scale bytes k + 127 of eight amaxes, which are floats. 127.5 is 2^6 times a mantissa of
 * 0x7f0000: a larger mantissa carries into the exponent. */
MATH_FN __m256i int8_scales8(__m256i amax)
{
	const __m256i above = _mm256_add_epi32(amax, _mm256_set1_epi32(0xffff));
	const __m256i s = _mm256_sub_epi32(_mm256_srli_epi32(above, 23), _mm256_set1_epi32(6));

	return _mm256_blendv_epi8(s, _mm256_set1_epi32(FP8_BIAS),
				  _mm256_cmpeq_epi32(amax, _mm256_setzero_si256()));
}

/* Lanes that are not 0: int8_exponent() has no k for this amax. */
MATH_FN __m256i int8_refuses16(bool is_fp16, __m256i amax)
{
	const __m256i small =
		_mm256_and_si256(_mm256_cmpgt_epi16(_mm256_set1_epi16(INT8_BF16_LEAST), amax),
				 _mm256_cmpgt_epi16(amax, _mm256_setzero_si256()));

	if (is_fp16)
		return _mm256_cmpgt_epi16(amax, _mm256_set1_epi16(INT8_FP16_LIMIT - 1));
	return _mm256_or_si256(small,
			       _mm256_cmpgt_epi16(amax, _mm256_set1_epi16(INT8_BF16_LIMIT - 1)));
}

/* The largest magnitudes in 64 columns. */
struct math_columns {
	__m256i amax[4];
};

MATH_FN struct math_columns math_columns_start(void)
{
	return (struct math_columns){ { _mm256_setzero_si256(), _mm256_setzero_si256(),
					_mm256_setzero_si256(), _mm256_setzero_si256() } };
}

MATH_FN void math_columns_max(struct math_columns *c, const uint8_t *row)
{
	for (int i = 0; i < 4; i++) {
		const __m256i x = _mm256_loadu_si256((const void *)(row + 32 * i));

		c->amax[i] = _mm256_max_epi16(c->amax[i],
					      _mm256_and_si256(x, _mm256_set1_epi16(0x7fff)));
	}
}

/* Their scales, and powers 2^-k. False: int8 cannot hold one of them. */
MATH_FN bool math_columns_scales(bool is_fp16, const struct math_columns *c, uint8_t *ret,
				 float *ret_powers)
{
	__m256i refused = _mm256_setzero_si256();

	for (int i = 0; i < 4; i++) {
		const struct split16 x = int8_floats16(is_fp16, c->amax[i]);
		const __m256i even = int8_scales8(x.even), odd = int8_scales8(x.odd);
		const __m256i one = _mm256_set1_epi32(2 * FP8_BIAS), all = join16(even, odd);
		__m256i *powers = (void *)(ret_powers + 16 * i);

		_mm256_storeu_si256(powers, _mm256_slli_epi32(_mm256_sub_epi32(one, even), 23));
		_mm256_storeu_si256(powers + 1, _mm256_slli_epi32(_mm256_sub_epi32(one, odd), 23));
		_mm_storeu_si128((void *)(ret + 16 * i),
				 _mm_packus_epi16(_mm256_castsi256_si128(all),
						  _mm256_extracti128_si256(all, 1)));
		refused = _mm256_or_si256(refused, int8_refuses16(is_fp16, c->amax[i]));
	}
	return _mm256_testz_si256(refused, refused);
}

/* Sixteen codes in 16-bit lanes, not yet bounded. */
MATH_FN __m256i int8_encode16(bool is_fp16, const uint8_t *src, const float *powers)
{
	const struct split16 x = int8_floats16(is_fp16, _mm256_loadu_si256((const void *)src));
	const __m256 even = _mm256_mul_ps(_mm256_castsi256_ps(x.even), _mm256_loadu_ps(powers)),
		     odd = _mm256_mul_ps(_mm256_castsi256_ps(x.odd), _mm256_loadu_ps(powers + 8));

	return join16(_mm256_cvtps_epi32(even), _mm256_cvtps_epi32(odd));
}

/* -127.5 rounds to -128. */
MATH_FN __m256i int8_encode32(bool is_fp16, const uint8_t *src, const float *powers)
{
	const __m256i codes = _mm256_packs_epi16(int8_encode16(is_fp16, src, powers),
						 int8_encode16(is_fp16, src + 32, powers + 16));

	return _mm256_max_epi8(_mm256_permute4x64_epi64(codes, 0xd8), _mm256_set1_epi8(-127));
}

/* 64 source values at src -> 64 codes. */
MATH_FN struct math_line math_int8_64(bool is_fp16, const uint8_t *src, const float *powers)
{
	return (struct math_line){ int8_encode32(is_fp16, src, powers),
				   int8_encode32(is_fp16, src + 64, powers + 32) };
}

/* Powers 2^k of sixteen scales. False: math_int8_decode32() does not take one of them. */
MATH_FN bool math_int8_powers16(const uint8_t *scales, float *ret)
{
	const __m128i s = _mm_loadu_si128((const void *)scales);
	const __m128i bounded = _mm_min_epu8(_mm_max_epu8(s, _mm_set1_epi8(INT8_SCALE_LEAST)),
					     _mm_set1_epi8((char)INT8_SCALE_MOST));
	const struct split16 x = split16(_mm256_cvtepu8_epi16(s));

	_mm256_storeu_si256((void *)ret, _mm256_slli_epi32(_mm256_srli_epi32(x.even, 16), 23));
	_mm256_storeu_si256((void *)(ret + 8), _mm256_slli_epi32(_mm256_srli_epi32(x.odd, 16), 23));
	return _mm_movemask_epi8(_mm_cmpeq_epi8(s, bounded)) == 0xffff;
}

/* Sixteen floats as FP16, in order. */
MATH_FN __m256i join_halves16(__m256 even, __m256 odd)
{
	const __m128i a = _mm256_cvtps_ph(even, _MM_FROUND_TO_NEAREST_INT),
		      b = _mm256_cvtps_ph(odd, _MM_FROUND_TO_NEAREST_INT);

	return _mm256_set_m128i(_mm_unpackhi_epi16(a, b), _mm_unpacklo_epi16(a, b));
}

/* 32 source values to dst. lines: as for math_decode32(). */
MATH_FN void put32(__m256i a, __m256i b, uint8_t *dst, bool lines)
{
	if (lines) {
		_mm256_stream_si256((void *)dst, a);
		_mm256_stream_si256((void *)(dst + 32), b);
	} else {
		_mm256_storeu_si256((void *)dst, a);
		_mm256_storeu_si256((void *)(dst + 32), b);
	}
}

MATH_FN __m256i int8_decode16(bool is_fp16, const uint8_t *src, const float *powers)
{
	const __m256i codes = _mm256_cvtepi8_epi16(_mm_loadu_si128((const void *)src));
	const __m256i even = _mm256_srai_epi32(_mm256_slli_epi32(codes, 16), 16),
		      odd = _mm256_srai_epi32(codes, 16);
	const __m256 x = _mm256_mul_ps(_mm256_cvtepi32_ps(even), _mm256_loadu_ps(powers)),
		     y = _mm256_mul_ps(_mm256_cvtepi32_ps(odd), _mm256_loadu_ps(powers + 8));

	if (is_fp16)
		return join_halves16(x, y);
	return _mm256_blend_epi16(_mm256_srli_epi32(_mm256_castps_si256(x), 16),
				  _mm256_castps_si256(y), 0xaa);
}

/* 32 codes at src -> 32 source values at dst. lines: as for math_decode32(). */
MATH_FN void math_int8_decode32(bool is_fp16, const uint8_t *src, const float *powers, uint8_t *dst,
				bool lines)
{
	put32(int8_decode16(is_fp16, src, powers), int8_decode16(is_fp16, src + 16, powers + 16),
	      dst, lines);
}
