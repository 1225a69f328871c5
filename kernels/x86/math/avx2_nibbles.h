/* SPDX-License-Identifier: Apache-2.0 */
/*
 * avx2_nibbles.h - nibbles.h's arithmetic, a step of 64 codes at a time, for avx2.c.
 */
#pragma once

#include "avx2_lossless.h"
#include "kernels/nibbles.h"

MATH_FN __m256i nibbles32(__m256i codes)
{
	return _mm256_and_si256(_mm256_srli_epi16(codes, 3), _mm256_set1_epi8(15));
}

MATH_FN void math_count(const uint8_t *codes, uint32_t counts[16])
{
	const struct math_line v = math_load(codes);
	const __m256i a = nibbles32(v.a), b = nibbles32(v.b);

#pragma GCC unroll 16
	for (int i = 0; i < 16; i++) {
		const __m256i all = _mm256_set1_epi8((char)i);

		counts[i] += (uint32_t)__builtin_popcountll(
			lossless_mask(_mm256_cmpeq_epi8(a, all), _mm256_cmpeq_epi8(b, all), 7));
	}
}

MATH_FN __m256i nibbles_noise32(__m256i v)
{
	return _mm256_or_si256(_mm256_and_si256(v, _mm256_set1_epi8(7)),
			       _mm256_and_si256(_mm256_srli_epi16(v, 4), _mm256_set1_epi8(8)));
}

/* The noise of a step to `rest`; the words of near and far, as nibbles_bits() has them. */
MATH_FN void math_ranked(const uint8_t *codes, __m128i bits_of, uint8_t *rest, uint64_t ret[5])
{
	const struct math_line v = math_load(codes);
	const __m256i t = _mm256_broadcastsi128_si256(bits_of);
	const __m256i a = _mm256_shuffle_epi8(t, nibbles32(v.a)),
		      b = _mm256_shuffle_epi8(t, nibbles32(v.b));

	_mm256_storeu_si256((void *)rest,
			    _mm256_or_si256(nibbles_noise32(v.a),
					    _mm256_slli_epi16(nibbles_noise32(v.b), 4)));
#pragma GCC unroll 5
	for (int i = 0; i < 5; i++)
		ret[i] = lossless_mask(a, b, i);
}

/* The same step's codes beyond, and their three words. */
MATH_FN uint64_t math_ranked_beyond(const uint8_t *codes, __m128i bits_of, uint64_t ret[3])
{
	const struct math_line v = math_load(codes);
	const __m256i t = _mm256_broadcastsi128_si256(bits_of), far = _mm256_set1_epi8(31);
	const __m256i a = _mm256_shuffle_epi8(t, nibbles32(v.a)),
		      b = _mm256_shuffle_epi8(t, nibbles32(v.b));

#pragma GCC unroll 3
	for (int i = 0; i < 3; i++)
		ret[i] = lossless_mask(a, b, 5 + i);
	return lossless_mask(_mm256_cmpeq_epi8(_mm256_and_si256(a, far), far),
			     _mm256_cmpeq_epi8(_mm256_and_si256(b, far), far), 7);
}

MATH_FN __m256i nibbles_give32(__m256i rest, __m128i table, const uint64_t bits[5], int half)
{
	const __m256i sign = _mm256_and_si256(_mm256_slli_epi16(rest, 4), _mm256_set1_epi8(-128));
	__m256i x = lossless_spread(bits[0], half, 1);

	x = _mm256_add_epi8(x, lossless_spread(bits[1], half, 2));
	x = _mm256_add_epi8(x, lossless_spread(bits[2], half, 1));
	x = _mm256_add_epi8(x, lossless_spread(bits[3], half, 2));
	x = _mm256_add_epi8(x, lossless_spread(bits[4], half, 4));
	x = _mm256_slli_epi16(_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), x), 3);
	return _mm256_or_si256(_mm256_or_si256(x, sign),
			       _mm256_and_si256(rest, _mm256_set1_epi8(7)));
}

/* A step back into its codes; those beyond are as if they had rank 10. */
MATH_FN void math_unranked(const uint8_t *rest, __m128i table, const uint64_t bits[5],
			   uint8_t *codes)
{
	const __m256i packed = _mm256_loadu_si256((const void *)rest);

	math_store(codes, (struct math_line){
				  nibbles_give32(packed, table, bits, 0),
				  nibbles_give32(_mm256_srli_epi16(packed, 4), table, bits, 1) });
}

MATH_FN __m256i nibbles_beyond32(__m256i v, __m128i table, uint64_t which, const uint64_t bits[3],
				 int half)
{
	const __m256i noise = _mm256_set1_epi8((char)0x87);
	__m256i x = _mm256_set1_epi8(10);

	x = _mm256_add_epi8(x, lossless_spread(bits[0], half, 1));
	x = _mm256_add_epi8(x, lossless_spread(bits[1], half, 2));
	x = _mm256_add_epi8(x, lossless_spread(bits[2], half, 4));
	x = _mm256_and_si256(x, _mm256_set1_epi8(15));
	x = _mm256_slli_epi16(_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), x), 3);
	x = _mm256_or_si256(x, _mm256_and_si256(v, noise));
	return _mm256_blendv_epi8(v, x, lossless_spread(which, half, -1));
}

/* Then the codes beyond. */
MATH_FN void math_unranked_beyond(uint8_t *codes, __m128i table, uint64_t which,
				  const uint64_t bits[3])
{
	const struct math_line v = math_load(codes);

	math_store(codes, (struct math_line){ nibbles_beyond32(v.a, table, which, bits, 0),
					      nibbles_beyond32(v.b, table, which, bits, 1) });
}
