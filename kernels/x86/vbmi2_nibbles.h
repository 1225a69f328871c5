/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vbmi2_nibbles.h - the nibble rule with AVX-512 VBMI2, both ways, only for vbmi2.c. x86_nibbles.h
 * includes it; read kernels/nibbles.h first. A step moves its codes that are not near together, or
 * apart, and the rest is done for 64 of those at a time, in the way of vbmi2_lossless.h.
 */
#pragma once

/* The name that x86_nibbles.h uses. */
#define math_count wide_count

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

/* The three words of each 64 of n bytes: bits `first`, 2 * first, 4 * first. Bytes that have all
 * three are appended to *all, unless it is NULL. Returns the end of the words. */
MATH_FN uint8_t *nibbles_words_put(const uint8_t *bytes, uint32_t n, int first, uint8_t *to,
				   uint8_t **all)
{
	for (uint32_t i = 0; i < n; i += 64, to += NIBBLES_WORDS_BYTES) {
		const __mmask64 there = places(n - i);
		const __m512i x = _mm512_loadu_si512(bytes + i);
		__mmask64 full = there;

#pragma GCC unroll 3
		for (int b = 0; b < 3; b++) {
			const __mmask64 now =
				_mm512_mask_test_epi8_mask(there, x,
							   _mm512_set1_epi8((char)(first << b)));

			put_mask(to + 8 * b, now);
			full &= now;
		}
		if (!all)
			continue;
		_mm512_storeu_si512(*all, _mm512_maskz_compress_epi8(full, x));
		*all += ones(full);
	}
	return to;
}

MATH_FN uint8_t *nibbles_pack_steps(const uint8_t *codes, uint32_t steps, __m128i lookup,
				    uint8_t *rest, uint8_t *near)
{
	uint8_t others[NIBBLES_MOST + 64], beyond[NIBBLES_MOST + 64], *last = others,
								      *last_beyond = beyond;
	const __m512i bits_of = _mm512_broadcast_i32x4(lookup), three = _mm512_set1_epi8(3);

	for (uint32_t s = 0; s < steps; s++, codes += NIBBLES_STEP) {
		const __m512i v = _mm512_loadu_si512(codes);
		const __m512i bits = _mm512_shuffle_epi8(bits_of, wide_nibbles(v));
		const __mmask64 a = _mm512_test_epi8_mask(bits, _mm512_set1_epi8(1)),
				b = _mm512_test_epi8_mask(bits, _mm512_set1_epi8(2)),
				other = _mm512_cmpge_epu8_mask(bits, three);

		_mm_prefetch((const char *)codes + NIBBLES_AHEAD, _MM_HINT_T0);
		wide_rest(v, rest);
		put_mask(near, a);
		put_mask(near + 8, b);
		_mm512_storeu_si512(last, _mm512_maskz_compress_epi8(other, bits));
		last += ones(other);
		rest += NIBBLES_REST_BYTES;
		near += NIBBLES_NEAR_BYTES;
	}
	near = nibbles_words_put(others, (uint32_t)(last - others), 4, near, &last_beyond);
	return nibbles_words_put(beyond, (uint32_t)(last_beyond - beyond), 32, near, NULL);
}

/* The sums of three words of bits, 1, 2 and 4 each, and `least`. */
MATH_FN __m512i nibbles_ranks(const uint8_t *words, int least)
{
	__m512i x = _mm512_set1_epi8((char)least);

	x = _mm512_mask_add_epi8(x, word_at(words), x, _mm512_set1_epi8(1));
	x = _mm512_mask_add_epi8(x, word_at(words + 8), x, _mm512_set1_epi8(2));
	return _mm512_mask_add_epi8(x, word_at(words + 16), x, _mm512_set1_epi8(4));
}

/* far has far_bytes, and beyond follows it; nibbles_hold() has counted. */
MATH_FN void nibbles_unpack_steps(const uint8_t *rest, const uint8_t *near, uint32_t steps,
				  uint32_t far_bytes, uint32_t beyond_bytes, __m128i lookup,
				  uint8_t *codes)
{
	uint8_t others[NIBBLES_MOST + 64], beyond[NIBBLES_MOST + 64];
	const uint8_t *far = near + (size_t)steps * NIBBLES_NEAR_BYTES, *next = others,
		      *next_beyond = beyond;
	const __m512i table = _mm512_broadcast_i32x4(lookup), seven = _mm512_set1_epi8(7);

	for (uint32_t i = 0, n = 0; i < beyond_bytes; i += NIBBLES_WORDS_BYTES, n += 64)
		_mm512_storeu_si512(beyond + n, nibbles_ranks(far + far_bytes + i, 10));
	for (uint32_t i = 0, n = 0; i < far_bytes; i += NIBBLES_WORDS_BYTES, n += 64) {
		const __mmask64 all =
			word_at(far + i) & word_at(far + i + 8) & word_at(far + i + 16);
		const __m512i x = _mm512_mask_expand_epi8(nibbles_ranks(far + i, 3), all,
							  _mm512_loadu_si512(next_beyond));

		next_beyond += ones(all);
		_mm512_storeu_si512(others + n, _mm512_and_si512(x, _mm512_set1_epi8(15)));
	}
	for (uint32_t s = 0; s < steps; s++, codes += NIBBLES_STEP) {
		const uint64_t a = word_at(near), b = word_at(near + 8), other = a & b;
		const __m256i packed = _mm256_loadu_si256((const void *)rest);
		const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(packed),
							_mm256_srli_epi16(packed, 4), 1);
		const __m512i sign =
			_mm512_and_si512(_mm512_slli_epi16(both, 4), _mm512_set1_epi8(-128));
		__m512i x = _mm512_maskz_set1_epi8(a, 1);

		_mm_prefetch((const char *)rest + NIBBLES_AHEAD, _MM_HINT_T0);
		__builtin_prefetch(codes + NIBBLES_AHEAD, 1);
		x = _mm512_mask_set1_epi8(x, b, 2);
		x = _mm512_mask_expand_epi8(x, other, _mm512_loadu_si512(next));
		next += ones(other);
		x = _mm512_slli_epi16(_mm512_shuffle_epi8(table, x), 3);
		x = _mm512_or_si512(x, sign);
		_mm512_storeu_si512(codes, _mm512_ternarylogic_epi32(seven, both, x, 0xca));
		rest += NIBBLES_REST_BYTES;
		near += NIBBLES_NEAR_BYTES;
	}
}
