/* SPDX-License-Identifier: Apache-2.0 */
/*
 * avx2_lossless.h - lossless.h's arithmetic, a step of 64 values at a time, for avx2.c. The places
 * of a step are those that packus leaves, and unpack takes: a register of bytes is made of 16
 * values and of the 16 that are 32 further on.
 */
#pragma once

#include "avx2_math.h"
#include "kernels/lossless.h"

/* A step that was taken apart. */
struct math_parts {
	struct math_line low, exponents;
	uint64_t high[3];
};

MATH_FN uint64_t lossless_mask(__m256i a, __m256i b, int bit)
{
	return (uint32_t)_mm256_movemask_epi8(_mm256_slli_epi16(a, 7 - bit)) |
	       (uint64_t)(uint32_t)_mm256_movemask_epi8(_mm256_slli_epi16(b, 7 - bit)) << 32;
}

/* Half a step: low bytes, exponents, and the bytes that `high` is in. */
MATH_FN void lossless_take32(bool is_fp16, const uint8_t *src, __m256i *low, __m256i *exponents,
			     __m256i *upper)
{
	const __m256i byte = _mm256_set1_epi16(0xff), seven = _mm256_set1_epi8(0x7f);
	const __m256i a = _mm256_loadu_si256((const void *)src),
		      b = _mm256_loadu_si256((const void *)(src + 64));
	const __m256i lower =
		_mm256_packus_epi16(_mm256_and_si256(a, byte), _mm256_and_si256(b, byte));
	const __m256i one = _mm256_set1_epi8(1);

	*upper = _mm256_packus_epi16(_mm256_srli_epi16(a, 8), _mm256_srli_epi16(b, 8));
	if (is_fp16) {
		*low = lower;
		*exponents = _mm256_and_si256(_mm256_srli_epi16(*upper, 2), _mm256_set1_epi8(31));
		return;
	}
	*low = _mm256_or_si256(_mm256_and_si256(lower, seven), _mm256_andnot_si256(seven, *upper));
	*exponents = _mm256_or_si256(_mm256_andnot_si256(one, _mm256_slli_epi16(*upper, 1)),
				     _mm256_and_si256(_mm256_srli_epi16(lower, 7), one));
}

MATH_FN struct math_parts math_take(bool is_fp16, const uint8_t *src)
{
	struct math_parts x;
	__m256i a, b;

	lossless_take32(is_fp16, src, &x.low.a, &x.exponents.a, &a);
	lossless_take32(is_fp16, src + 32, &x.low.b, &x.exponents.b, &b);
	if (is_fp16) {
		x.high[0] = lossless_mask(a, b, 0);
		x.high[1] = lossless_mask(a, b, 1);
		x.high[2] = lossless_mask(a, b, 7);
	}
	return x;
}

MATH_FN uint32_t math_at_least(struct math_line x, uint32_t least)
{
	const __m256i l = _mm256_set1_epi8((char)least);
	const __m256i a = _mm256_cmpeq_epi8(_mm256_max_epu8(x.a, l), x.a),
		      b = _mm256_cmpeq_epi8(_mm256_max_epu8(x.b, l), x.b);

	return (uint32_t)__builtin_popcountll(lossless_mask(a, b, 7));
}

/* near's two words, and far's three before those of near values are taken out. */
MATH_FN void math_bits(struct math_line exponents, uint8_t base, uint64_t ret[5])
{
	const __m256i bits =
		_mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)lossless_table));
	const __m256i b = _mm256_set1_epi8((char)base), ten = _mm256_set1_epi8(10);
	const __m256i x =
		_mm256_shuffle_epi8(bits, _mm256_min_epu8(_mm256_sub_epi8(b, exponents.a), ten));
	const __m256i y =
		_mm256_shuffle_epi8(bits, _mm256_min_epu8(_mm256_sub_epi8(b, exponents.b), ten));

#pragma GCC unroll 5
	for (int i = 0; i < 5; i++)
		ret[i] = lossless_mask(x, y, i);
}

/* A byte of this value where its bit is set, else 0. */
MATH_FN __m256i lossless_spread(uint64_t bits, int half, int value)
{
	const __m256i bytes =
		_mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
	const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201u);
	const __m256i x = _mm256_shuffle_epi8(_mm256_set1_epi32((int)(bits >> (32 * half))), bytes);

	return _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(x, bit), bit),
				_mm256_set1_epi8((char)value));
}

MATH_FN __m256i lossless_exponents32(uint8_t base, const uint64_t bits[5], int half)
{
	const __m256i distance =
		_mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)lossless_distances));
	__m256i x = lossless_spread(bits[0], half, 1);

	x = _mm256_add_epi8(x, lossless_spread(bits[1], half, 2));
	x = _mm256_add_epi8(x, lossless_spread(bits[2], half, 1));
	x = _mm256_add_epi8(x, lossless_spread(bits[3], half, 2));
	x = _mm256_add_epi8(x, lossless_spread(bits[4], half, 4));
	return _mm256_sub_epi8(_mm256_set1_epi8((char)base), _mm256_shuffle_epi8(distance, x));
}

/* The exponents of a step from its five words. `beyond`: bytes of the values whose three bits are
 * all set; returns the bytes after them. */
MATH_FN const uint8_t *math_exponents(uint8_t base, const uint64_t bits[5], const uint8_t *beyond,
				      struct math_line *ret)
{
	uint64_t left = bits[2] & bits[3] & bits[4];
	uint8_t bytes[64];

	ret->a = lossless_exponents32(base, bits, 0);
	ret->b = lossless_exponents32(base, bits, 1);
	if (!left)
		return beyond;
	math_store(bytes, *ret);
	for (; left; left &= left - 1)
		bytes[__builtin_ctzll(left)] = *beyond++;
	*ret = math_load(bytes);
	return beyond;
}

MATH_FN void lossless_give32(bool is_fp16, __m256i low, __m256i e, __m256i high, uint8_t *dst,
			     bool lines)
{
	const __m256i seven = _mm256_set1_epi8(0x7f);
	__m256i lower = low, upper, a, b;

	if (is_fp16) {
		upper = _mm256_slli_epi16(_mm256_and_si256(e, _mm256_set1_epi8(31)), 2);
		upper = _mm256_or_si256(upper, high);
	} else {
		lower = _mm256_or_si256(_mm256_and_si256(low, seven),
					_mm256_andnot_si256(seven, _mm256_slli_epi16(e, 7)));
		upper = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(e, 1), seven),
					_mm256_andnot_si256(seven, low));
	}
	a = _mm256_unpacklo_epi8(lower, upper);
	b = _mm256_unpackhi_epi8(lower, upper);
	if (lines) {
		_mm256_stream_si256((void *)dst, a);
		_mm256_stream_si256((void *)(dst + 64), b);
	} else {
		_mm256_storeu_si256((void *)dst, a);
		_mm256_storeu_si256((void *)(dst + 64), b);
	}
}

MATH_FN __m256i lossless_high32(const uint64_t high[3], int half)
{
	return _mm256_or_si256(lossless_spread(high[0], half, 1),
			       _mm256_or_si256(lossless_spread(high[1], half, 2),
					       lossless_spread(high[2], half, -128)));
}

/* A step back into its values. lines: dst is a line. */
MATH_FN void math_give(bool is_fp16, const struct math_parts *x, uint8_t *dst, bool lines)
{
	__m256i a = _mm256_setzero_si256(), b = a;

	if (is_fp16) {
		a = lossless_high32(x->high, 0);
		b = lossless_high32(x->high, 1);
	}
	lossless_give32(is_fp16, x->low.a, x->exponents.a, a, dst, lines);
	lossless_give32(is_fp16, x->low.b, x->exponents.b, b, dst + 32, lines);
}
