/* SPDX-License-Identifier: Apache-2.0 */
/*
 * avx512_nibbles.h - nibbles.h's arithmetic, a step of 64 codes at a time, only for avx512.c.
 */
#pragma once

#include "avx512_math.h"
#include "kernels/nibbles.h"

MATH_FN __m512i wide_nibbles(__m512i codes)
{
	return _mm512_and_si512(_mm512_srli_epi16(codes, 3), _mm512_set1_epi8(15));
}

MATH_FN void wide_count(const uint8_t *codes, uint32_t counts[16])
{
	const __m512i x = wide_nibbles(_mm512_loadu_si512(codes));

#pragma GCC unroll 16
	for (int i = 0; i < 16; i++)
		counts[i] += (uint32_t)__builtin_popcountll(
			_mm512_cmpeq_epi8_mask(x, _mm512_set1_epi8((char)i)));
}

/* The noise of a step's codes. */
MATH_FN void wide_rest(__m512i v, uint8_t *rest)
{
	/* bit by bit: of v the low three, of v >> 4 the fourth */
	const __m512i noise =
		_mm512_and_si512(_mm512_ternarylogic_epi32(_mm512_set1_epi8(7), v,
							   _mm512_srli_epi16(v, 4), 0xca),
				 _mm512_set1_epi8(15));
	const __m256i low = _mm512_castsi512_si256(noise),
		      high = _mm512_extracti64x4_epi64(noise, 1);

	_mm256_storeu_si256((void *)rest, _mm256_or_si256(low, _mm256_slli_epi16(high, 4)));
}

/* The noise of a step to `rest`; the words of near and far, as nibbles_bits() has them. */
MATH_FN void wide_ranked(const uint8_t *codes, __m128i bits_of, uint8_t *rest, uint64_t ret[5])
{
	const __m512i v = _mm512_loadu_si512(codes);
	const __m512i bits = _mm512_shuffle_epi8(_mm512_broadcast_i32x4(bits_of), wide_nibbles(v));

	wide_rest(v, rest);
#pragma GCC unroll 5
	for (int i = 0; i < 5; i++)
		ret[i] = _mm512_test_epi8_mask(bits, _mm512_set1_epi8((char)(1 << i)));
}

/* The same step's codes beyond, and their three words. */
MATH_FN uint64_t wide_ranked_beyond(const uint8_t *codes, __m128i bits_of, uint64_t ret[3])
{
	const __m512i bits = _mm512_shuffle_epi8(_mm512_broadcast_i32x4(bits_of),
						 wide_nibbles(_mm512_loadu_si512(codes)));
	const __m512i far = _mm512_set1_epi8(31);

#pragma GCC unroll 3
	for (int i = 0; i < 3; i++)
		ret[i] = _mm512_test_epi8_mask(bits, _mm512_set1_epi8((char)(32 << i)));
	return _mm512_cmpeq_epi8_mask(_mm512_and_si512(bits, far), far);
}

/* A step back into its codes; those beyond are as if they had rank 10. */
MATH_FN void wide_unranked(const uint8_t *rest, __m128i table, const uint64_t bits[5],
			   uint8_t *codes)
{
	const __m256i packed = _mm256_loadu_si256((const void *)rest);
	const __m512i both =
		_mm512_inserti64x4(_mm512_castsi256_si512(packed), _mm256_srli_epi16(packed, 4), 1);
	const __m512i sign = _mm512_and_si512(_mm512_slli_epi16(both, 4), _mm512_set1_epi8(-128));
	__m512i x = _mm512_maskz_set1_epi8(bits[0], 1);

	x = _mm512_mask_add_epi8(x, bits[1], x, _mm512_set1_epi8(2));
	x = _mm512_mask_add_epi8(x, bits[2], x, _mm512_set1_epi8(1));
	x = _mm512_mask_add_epi8(x, bits[3], x, _mm512_set1_epi8(2));
	x = _mm512_mask_add_epi8(x, bits[4], x, _mm512_set1_epi8(4));
	x = _mm512_slli_epi16(_mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), x), 3);
	x = _mm512_or_si512(x, sign);
	_mm512_storeu_si512(codes, _mm512_ternarylogic_epi32(_mm512_set1_epi8(7), both, x, 0xca));
}

/* Then the codes beyond. */
MATH_FN void wide_unranked_beyond(uint8_t *codes, __m128i table, uint64_t which,
				  const uint64_t bits[3])
{
	const __m512i v = _mm512_loadu_si512(codes), noise = _mm512_set1_epi8((char)0x87);
	__m512i x = _mm512_set1_epi8(10);

	x = _mm512_mask_add_epi8(x, bits[0], x, _mm512_set1_epi8(1));
	x = _mm512_mask_add_epi8(x, bits[1], x, _mm512_set1_epi8(2));
	x = _mm512_mask_add_epi8(x, bits[2], x, _mm512_set1_epi8(4));
	x = _mm512_and_si512(x, _mm512_set1_epi8(15));
	x = _mm512_slli_epi16(_mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), x), 3);
	x = _mm512_ternarylogic_epi32(noise, v, x, 0xca);
	_mm512_mask_storeu_epi8(codes, which, x);
}

/* The names that x86_nibbles.h uses. */
#define math_count           wide_count
#define math_ranked          wide_ranked
#define math_ranked_beyond   wide_ranked_beyond
#define math_unranked        wide_unranked
#define math_unranked_beyond wide_unranked_beyond
