/* SPDX-License-Identifier: Apache-2.0 */
/*
 * avx2_q4.h - the arithmetic of q4.h, for avx2.c, and what avx512_q4.h does not have wider. Read
 * avx2_int8.h first: values become floats as there, even columns apart from odd ones, so two codes
 * that share a byte lie in one lane of 32 bits.
 *
 * What a row needs of its columns lies in scratch, in that order: of each sixteen columns, those of
 * the even ones first. Each product and each sum is an instruction of its own, as q4.h asks for.
 */
#pragma once

#include "avx2_int8.h"
#include "kernels/image.h"
#include "kernels/q4.h"

/* The least values of k4's columns, and their steps or the inverses of these. */
struct q4_columns {
	float lo[IMAGE_MAX_HEAD_DIM], step[IMAGE_MAX_HEAD_DIM];
};

static const int32_t k4_mantissas[K4_OCTAVE] = K4_MANTISSAS;
static const int32_t k4_ranges[K4_OCTAVE] = K4_RANGES;

/* Sixteen columns: codes as numbers that order as their values do; its own inverse. */
MATH_FN __m256i k4_ranks16(__m256i x)
{
	return _mm256_xor_si256(x, _mm256_and_si256(_mm256_srai_epi16(x, 15),
						    _mm256_set1_epi16(0x7fff)));
}

/* The least and the largest in 64 columns, as ranks. */
struct math_ends {
	__m256i least[4], most[4];
};

MATH_FN void math_ends_start(struct math_ends *ends, const uint8_t *row)
{
	for (int i = 0; i < 4; i++)
		ends->least[i] = ends->most[i] =
			k4_ranks16(_mm256_loadu_si256((const void *)(row + 32 * i)));
}

MATH_FN void math_ends_look(struct math_ends *ends, const uint8_t *row)
{
	for (int i = 0; i < 4; i++) {
		const __m256i x = k4_ranks16(_mm256_loadu_si256((const void *)(row + 32 * i)));

		ends->least[i] = _mm256_min_epi16(ends->least[i], x);
		ends->most[i] = _mm256_max_epi16(ends->most[i], x);
	}
}

/* 2^(n / 12) for eight n, which k4_power() takes, plus 22 octaves. */
MATH_FN __m256i k4_powers8(__m256i up)
{
	/* 5,462 / 65,536 is 1 / 12 for all up < 8,000 */
	const __m256i octave = _mm256_mulhi_epu16(up, _mm256_set1_epi32(5462));
	const __m256i left =
		_mm256_sub_epi32(up, _mm256_mullo_epi16(octave, _mm256_set1_epi32(K4_OCTAVE)));

	return _mm256_add_epi32(
		_mm256_i32gather_epi32(k4_mantissas, left, 4),
		_mm256_slli_epi32(_mm256_add_epi32(octave, _mm256_set1_epi32(127 - 22)), 23));
}

/* j of eight columns, from floats; Q4_STEP_MOST + 1: there is none. */
MATH_FN __m256i k4_steps8(bool is_fp16, __m256i lo, __m256i hi)
{
	const __m256i range =
		_mm256_and_si256(_mm256_castps_si256(_mm256_sub_ps(_mm256_castsi256_ps(hi),
								   _mm256_castsi256_ps(lo))),
				 _mm256_set1_epi32(0x7fffffff));
	const __m256i m = _mm256_and_si256(range, _mm256_set1_epi32(0x7fffff)),
		      octave = _mm256_set1_epi32(K4_OCTAVE),
		      /* of a FP16 number, the exponent that it has there, or less */
		e = _mm256_sub_epi32(_mm256_and_si256(_mm256_srli_epi32(lo, 23),
						      _mm256_set1_epi32(255)),
				     _mm256_set1_epi32(is_fp16 ? 112 + 22 : 131));
	__m256i j = _mm256_sub_epi32(_mm256_srli_epi32(range, 23), _mm256_set1_epi32(127 + 4));

	j = _mm256_add_epi32(_mm256_mullo_epi32(j, octave), _mm256_set1_epi32(K4_ONE + 1));
	for (int i = 0; i < K4_OCTAVE; i++)
		j = _mm256_sub_epi32(j, _mm256_cmpgt_epi32(m, _mm256_set1_epi32(k4_ranges[i])));
	j = _mm256_max_epi32(j, _mm256_add_epi32(_mm256_mullo_epi32(e, octave),
						 _mm256_set1_epi32(K4_ONE)));
	j = _mm256_max_epi32(j, _mm256_setzero_si256());
	/* tables end */
	return _mm256_min_epi32(j, _mm256_set1_epi32(Q4_STEP_MOST + 1));
}

/* Lanes that are not 0: Inf and NaN. */
MATH_FN __m256i q4_refuses16(bool is_fp16, __m256i codes)
{
	return _mm256_cmpgt_epi16(_mm256_and_si256(codes, _mm256_set1_epi16(0x7fff)),
				  _mm256_set1_epi16(is_fp16 ? 0x7bff : 0x7f7f));
}

/* Eight columns, of which `at` is the first in ret's order. Returns their j. */
MATH_FN __m256i k4_columns8(bool is_fp16, __m256i lo, __m256i hi, struct q4_columns *ret,
			    uint32_t at)
{
	const __m256i j = k4_steps8(is_fp16, lo, hi);

	_mm256_storeu_si256((void *)(ret->lo + at), lo);
	_mm256_storeu_si256((void *)(ret->step + at),
			    k4_powers8(_mm256_sub_epi32(_mm256_set1_epi32(K4_ONE + 22 * K4_OCTAVE),
							j)));
	return j;
}

/* The scales of 64 columns, the first of which is number `at`: their lo and j, and what
 * math_k4_64() takes. False: k4 cannot hold one of them. */
MATH_FN bool math_k4_scales(bool is_fp16, const struct math_ends *ends, uint32_t at,
			    uint8_t ret_lo[128], uint8_t ret_j[64], struct q4_columns *ret)
{
	const __m256i magnitude = _mm256_set1_epi16(is_fp16 ? 0x7fff : 0x7f80);
	__m256i refused = _mm256_setzero_si256();

	for (uint32_t i = 0; i < 4; i++) {
		const __m256i least = k4_ranks16(ends->least[i]), most = k4_ranks16(ends->most[i]);
		const __m256i zero = _mm256_cmpeq_epi16(_mm256_and_si256(least, magnitude),
							_mm256_setzero_si256());
		const __m256i lo = _mm256_andnot_si256(zero, least);
		const struct split16 x = int8_floats16(is_fp16, lo),
				     y = int8_floats16(is_fp16, most);
		const __m256i even = k4_columns8(is_fp16, x.even, y.even, ret, at + 16 * i),
			      odd = k4_columns8(is_fp16, x.odd, y.odd, ret, at + 16 * i + 8);
		const __m256i j = join16(even, odd);

		refused = _mm256_or_si256(refused, q4_refuses16(is_fp16, least));
		refused = _mm256_or_si256(refused, q4_refuses16(is_fp16, most));
		refused = _mm256_or_si256(refused,
					  _mm256_cmpgt_epi16(j, _mm256_set1_epi16(Q4_STEP_MOST)));
		_mm256_storeu_si256((void *)(ret_lo + 32 * i), lo);
		_mm_storeu_si128((void *)(ret_j + 16 * i),
				 _mm_packus_epi16(_mm256_castsi256_si128(j),
						  _mm256_extracti128_si256(j, 1)));
	}
	return _mm256_testz_si256(refused, refused);
}

/* Two codes in each lane, at most 15 before. */
MATH_FN __m256i q4_pairs8(__m256i even, __m256i odd)
{
	const __m256i most = _mm256_set1_epi32(Q4_MOST);

	return _mm256_or_si256(_mm256_min_epu32(even, most),
			       _mm256_slli_epi32(_mm256_min_epu32(odd, most), 4));
}

/* The bytes of 32 lanes. */
MATH_FN __m256i q4_bytes32(const __m256i pairs[4])
{
	const __m256i a = _mm256_packus_epi32(pairs[0], pairs[1]),
		      b = _mm256_packus_epi32(pairs[2], pairs[3]);

	return _mm256_permutevar8x32_epi32(_mm256_packus_epi16(a, b),
					   _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

MATH_FN __m256i k4_encode8(__m256i x, const float *lo, const float *inverse)
{
	const __m256 above = _mm256_sub_ps(_mm256_castsi256_ps(x), _mm256_loadu_ps(lo));

	return _mm256_cvtps_epi32(_mm256_mul_ps(above, _mm256_loadu_ps(inverse)));
}

/* 64 source values at src, in columns from `at` on -> 32 bytes. */
MATH_FN __m256i math_k4_64(bool is_fp16, const uint8_t *src, const struct q4_columns *columns,
			   uint32_t at)
{
	__m256i pairs[4];

	for (int i = 0; i < 4; i++, at += 16) {
		const struct split16 x =
			int8_floats16(is_fp16, _mm256_loadu_si256((const void *)(src + 32 * i)));

		pairs[i] =
			q4_pairs8(k4_encode8(x.even, columns->lo + at, columns->step + at),
				  k4_encode8(x.odd, columns->lo + at + 8, columns->step + at + 8));
	}
	return q4_bytes32(pairs);
}

/* What math_k4_decode32() needs of sixteen columns, the first of which is number `at`. False: a
 * least value is Inf or NaN. */
MATH_FN bool math_k4_columns16(bool is_fp16, const uint8_t *lo, const uint8_t *steps, uint32_t at,
			       struct q4_columns *ret)
{
	const __m256i code = _mm256_loadu_si256((const void *)lo),
		      refused = q4_refuses16(is_fp16, code);
	const __m256i j = _mm256_cvtepu8_epi16(_mm_loadu_si128((const void *)steps));
	const __m256i zero = _mm256_set1_epi32(22 * K4_OCTAVE - K4_ONE);
	const struct split16 x = int8_floats16(is_fp16, code), up = split16(j);

	_mm256_storeu_si256((void *)(ret->lo + at), x.even);
	_mm256_storeu_si256((void *)(ret->lo + at + 8), x.odd);
	_mm256_storeu_si256((void *)(ret->step + at),
			    k4_powers8(_mm256_add_epi32(_mm256_srli_epi32(up.even, 16), zero)));
	_mm256_storeu_si256((void *)(ret->step + at + 8),
			    k4_powers8(_mm256_add_epi32(_mm256_srli_epi32(up.odd, 16), zero)));
	return _mm256_testz_si256(refused, refused);
}

/* Floats, none a NaN, to BF16 in the upper halves of their lanes; below is anything. */
MATH_FN __m256i q4_bf16_8(__m256 x)
{
	const __m256i bits = _mm256_castps_si256(x);
	const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));

	return _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
}

/* Sixteen floats, split, to source values in order. */
MATH_FN __m256i q4_join16(bool is_fp16, __m256 even, __m256 odd)
{
	if (is_fp16)
		return join_halves16(even, odd);
	return _mm256_blend_epi16(_mm256_srli_epi32(q4_bf16_8(even), 16), q4_bf16_8(odd), 0xaa);
}

MATH_FN __m256 k4_decode8(__m256i codes, const float *lo, const float *step)
{
	return _mm256_add_ps(_mm256_loadu_ps(lo),
			     _mm256_mul_ps(_mm256_cvtepi32_ps(codes), _mm256_loadu_ps(step)));
}

MATH_FN __m256i k4_decode16(bool is_fp16, const uint8_t *src, const struct q4_columns *c,
			    uint32_t at)
{
	const __m256i pairs = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)src));
	const __m256i even = _mm256_and_si256(pairs, _mm256_set1_epi32(Q4_MOST)),
		      odd = _mm256_srli_epi32(pairs, 4);

	return q4_join16(is_fp16, k4_decode8(even, c->lo + at, c->step + at),
			 k4_decode8(odd, c->lo + at + 8, c->step + at + 8));
}

/* 16 bytes at src, columns from `at` on -> 32 source values. lines: as for math_decode32(). */
MATH_FN void math_k4_decode32(bool is_fp16, const uint8_t *src, const struct q4_columns *columns,
			      uint32_t at, uint8_t *dst, bool lines)
{
	put32(k4_decode16(is_fp16, src, columns, at),
	      k4_decode16(is_fp16, src + 8, columns, at + 16), dst, lines);
}

/* --- v4 --- */

/* The code of the largest magnitude of 32 values. */
MATH_FN uint32_t math_v4_amax32(const uint8_t *src)
{
	const __m256i mask = _mm256_set1_epi16(0x7fff);
	const __m256i x =
		_mm256_max_epi16(_mm256_and_si256(_mm256_loadu_si256((const void *)src), mask),
				 _mm256_and_si256(_mm256_loadu_si256((const void *)(src + 32)),
						  mask));
	const __m128i y = _mm_max_epi16(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));

	/* there is an instruction for the least of eight */
	return ~(uint32_t)_mm_cvtsi128_si32(
		       _mm_minpos_epu16(_mm_xor_si128(y, _mm_set1_epi16(-1)))) &
	       0xffff;
}

/* v4_step() */
MATH_FN int math_v4_step(bool is_fp16, uint32_t amax)
{
	static const int32_t mantissas[V4_OCTAVE] = V4_MANTISSAS;
	const uint32_t bits = is_fp16 ? q4_bits(_cvtsh_ss((uint16_t)amax)) : amax << 16;
	const __m256i above = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)(bits & 0x7fffff)),
						 _mm256_loadu_si256((const void *)mantissas));
	const int n = __builtin_popcount((uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(above)));
	const int j = V4_OCTAVE * ((int)(bits >> 23) - 127 - 3) + V4_ONE + n;

	if (amax == 0)
		return V4_STEP_ZEROS;
	if (j > Q4_STEP_MOST) /* Inf and NaN, too */
		return Q4_STEP_NONE;
	return j > V4_STEP_LEAST ? j : V4_STEP_LEAST;
}

MATH_FN __m256i v4_encode8(__m256i x, __m256 inverse)
{
	return _mm256_cvttps_epi32(
		_mm256_add_ps(_mm256_mul_ps(_mm256_castsi256_ps(x), inverse), _mm256_set1_ps(8)));
}

/* 64 source values at src, at two steps -> 32 bytes. */
MATH_FN __m256i math_v4_64(bool is_fp16, const uint8_t *src, int first, int second)
{
	const __m256 inverse[2] = { _mm256_set1_ps(v4_power(V4_ONE - first)),
				    _mm256_set1_ps(v4_power(V4_ONE - second)) };
	__m256i pairs[4];

	for (int i = 0; i < 4; i++) {
		const struct split16 x =
			int8_floats16(is_fp16, _mm256_loadu_si256((const void *)(src + 32 * i)));

		pairs[i] = q4_pairs8(v4_encode8(x.even, inverse[i / 2]),
				     v4_encode8(x.odd, inverse[i / 2]));
	}
	return q4_bytes32(pairs);
}

/* The source values of all codes at a step, in order. */
MATH_FN __m256i v4_values(bool is_fp16, uint8_t j)
{
	const __m256 step = _mm256_set1_ps(v4_power((int)j - V4_ONE));
	const __m256 even = _mm256_setr_ps(-7.5f, -5.5f, -3.5f, -1.5f, .5f, 2.5f, 4.5f, 6.5f),
		     odd = _mm256_add_ps(even, _mm256_set1_ps(1));
	const __m256i values =
		q4_join16(is_fp16, _mm256_mul_ps(even, step), _mm256_mul_ps(odd, step));

	return j == V4_STEP_ZEROS ? _mm256_setzero_si256() : values;
}

/* Sixteen codes, a byte each -> source values. low, high: of each value that may be. */
MATH_FN __m256i v4_look_up16(__m128i low, __m128i high, __m128i codes)
{
	const __m128i a = _mm_shuffle_epi8(low, codes), b = _mm_shuffle_epi8(high, codes);

	return _mm256_set_m128i(_mm_unpackhi_epi8(a, b), _mm_unpacklo_epi8(a, b));
}

/* 16 bytes at src, at step j -> 32 source values. lines: as for math_decode32(). */
MATH_FN void math_v4_decode32(bool is_fp16, const uint8_t *src, uint8_t j, uint8_t *dst, bool lines)
{
	const __m256i apart = _mm256_permute4x64_epi64(
		_mm256_shuffle_epi8(v4_values(is_fp16, j),
				    _mm256_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11,
						     13, 15, 0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7,
						     9, 11, 13, 15)),
		0xd8);
	const __m128i low = _mm256_castsi256_si128(apart),
		      high = _mm256_extracti128_si256(apart, 1);
	const __m128i pairs = _mm_loadu_si128((const void *)src), most = _mm_set1_epi8(Q4_MOST);
	const __m128i even = _mm_and_si128(pairs, most),
		      odd = _mm_and_si128(_mm_srli_epi16(pairs, 4), most);

	put32(v4_look_up16(low, high, _mm_unpacklo_epi8(even, odd)),
	      v4_look_up16(low, high, _mm_unpackhi_epi8(even, odd)), dst, lines);
}
