/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vbmi2_lossless.h - packs of lossless values, both ways, with AVX-512 VBMI2, only for vbmi2.c.
 * x86_lossless.h calls them; read kernels/lossless.h first.
 *
 * A step moves its values that are not near together, in one instruction, and appends them to the
 * pack's others. These are a quarter of the values; 64 of them at a time become their words, and
 * the bytes beyond. Decode does the same backwards. So no loop has a branch that depends on values,
 * and a step has a third of the instructions that it has in x86_lossless.h.
 */
#pragma once

enum {
	OTHERS_AT = PACK_PLANES_AT, /* in scratch: a pack's values that are not near, a byte each */
};
static_assert(OTHERS_AT + IMAGE_PACK_VALUES + LINE <= CODEC_SCRATCH_BYTES - POWERS_BYTES,
	      "scratch");

MATH_FN uint32_t ones(__mmask64 bits)
{
	return (uint32_t)_mm_popcnt_u64(bits);
}

/* The first n of 64 places, or all. */
MATH_FN __mmask64 places(uint32_t n)
{
	return n < 64 ? _bzhi_u64(UINT64_MAX, n) : UINT64_MAX;
}

MATH_FN void put_mask(uint8_t *to, __mmask64 bits)
{
	const uint64_t word = bits;

	memcpy(to, &word, sizeof(word));
}

/* The far part of n values, of which `others` has the distances less LOSSLESS_NEAR. Returns its
 * end. */
MATH_FN uint8_t *far_encode(const uint8_t *others, uint32_t n, uint8_t base, uint8_t *to,
			    uint8_t *beyond)
{
	const __m512i table = _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)lossless_table));
	uint8_t *last = beyond;

	for (uint32_t i = 0; i < n; i += 64, to += LOSSLESS_FAR_BYTES) {
		const __mmask64 there = places(n - i);
		const __m512i d = _mm512_add_epi8(_mm512_loadu_si512(others + i),
						  _mm512_set1_epi8(LOSSLESS_NEAR));
		const __m512i x =
			_mm512_shuffle_epi8(table, _mm512_min_epu8(d, _mm512_set1_epi8(10)));
		__mmask64 bits = there;

#pragma GCC unroll 3
		for (int b = 0; b < 3; b++) {
			const __mmask64 now =
				_mm512_mask_test_epi8_mask(there, x,
							   _mm512_set1_epi8((char)(4 << b)));

			put_mask(to + 8 * b, now);
			bits &= now;
		}
		_mm512_storeu_si512(last,
				    _mm512_maskz_compress_epi8(
					    bits,
					    _mm512_sub_epi8(_mm512_set1_epi8((char)base), d)));
		last += ones(bits);
	}
	memcpy(to, beyond, (size_t)(last - beyond));
	return to + (last - beyond);
}

/* A pack of whole steps to dst. Returns the bytes of its far part. */
MATH_FN uint32_t pack_encode_as(bool is_fp16, const struct page_tile *in, uint8_t base,
				struct far far, uint8_t *dst, uint8_t *scratch)
{
	const struct page_tile u = *in;
	const uint32_t steps = u.rows * (u.row_bytes / (2 * LOSSLESS_STEP));
	const __m512i near_base = _mm512_set1_epi8((char)(base - LOSSLESS_NEAR)),
		      three = _mm512_set1_epi8(3);
	uint8_t *low = dst, *high = low + (size_t)steps * LOSSLESS_LOW_BYTES,
		*near = high + (is_fp16 ? (size_t)steps * LOSSLESS_HIGH_BYTES : 0),
		*const from = near + (size_t)steps * LOSSLESS_NEAR_BYTES,
		*const others = scratch + OTHERS_AT, *last = others;

	for (uint32_t r = 0; r < u.rows; r++) {
		const uint8_t *row = u.base + r * u.stride, *far_row = far.base + r * far.stride;

		for (uint32_t i = 0; i < u.row_bytes; i += 2 * LOSSLESS_STEP) {
			const struct wide_parts x = wide_take(is_fp16, row + i);
			/* distance less LOSSLESS_NEAR: 0, 1, 2 are near */
			const __m512i d = _mm512_sub_epi8(near_base, x.exponents.all),
				      code = _mm512_min_epu8(d, three);
			const __mmask64 other = _mm512_cmpeq_epi8_mask(code, three);

			prefetch_values(far, far_row + i);
			_mm512_storeu_si512(low, x.low.all);
			low += LOSSLESS_LOW_BYTES;
			if (is_fp16) {
				memcpy(high, x.high, sizeof(x.high));
				high += sizeof(x.high);
			}
			put_mask(near, _mm512_test_epi8_mask(code, _mm512_set1_epi8(1)));
			put_mask(near + 8, _mm512_test_epi8_mask(code, _mm512_set1_epi8(2)));
			near += LOSSLESS_NEAR_BYTES;
			_mm512_storeu_si512(last, _mm512_maskz_compress_epi8(other, d));
			last += ones(other);
		}
	}
	return (uint32_t)(far_encode(others, (uint32_t)(last - others), base, from,
				     scratch + PACK_BEYOND_AT) -
			  from);
}

/* The exponents of the values that are not near, from `words` bytes of words and the bytes behind
 * them. */
MATH_FN void far_decode(const uint8_t *far, uint32_t words, uint8_t base, uint8_t *others)
{
	/* by the three bits */
	const __m512i distances = _mm512_broadcast_i32x4(
		_mm_setr_epi8(0, 1, 5, 6, 7, 8, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0));
	const uint8_t *beyond = far + words;

	for (uint32_t i = 0; i < words; i += LOSSLESS_FAR_BYTES, others += 64) {
		const uint64_t a = word_at(far + i), b = word_at(far + i + 8),
			       c = word_at(far + i + 16);
		__m512i x = _mm512_maskz_set1_epi8(a, 1);

		x = _mm512_mask_add_epi8(x, b, x, _mm512_set1_epi8(2));
		x = _mm512_mask_add_epi8(x, c, x, _mm512_set1_epi8(4));
		x = _mm512_sub_epi8(_mm512_set1_epi8((char)base),
				    _mm512_shuffle_epi8(distances, x));
		x = _mm512_mask_expand_epi8(x, a & b & c, _mm512_loadu_si512(beyond));
		beyond += ones(a & b & c);
		_mm512_storeu_si512(others, x);
	}
}

MATH_FN void pack_decode_as(bool is_fp16, bool lines, const struct page_tile *in, uint8_t base,
			    uint32_t words, const uint8_t *src, uint8_t *scratch)
{
	const struct page_tile u = *in;
	const uint32_t steps = u.rows * (u.row_bytes / (2 * LOSSLESS_STEP));
	const uint8_t *low = src, *high = low + (size_t)steps * LOSSLESS_LOW_BYTES,
		      *near = high + (is_fp16 ? (size_t)steps * LOSSLESS_HIGH_BYTES : 0);
	const uint8_t *ahead = src + AHEAD_BYTES, *others = scratch + OTHERS_AT;
	const __m512i near_base = _mm512_set1_epi8((char)(base - LOSSLESS_NEAR));

	far_decode(near + (size_t)steps * LOSSLESS_NEAR_BYTES, words, base, scratch + OTHERS_AT);
	for (uint32_t r = 0; r < u.rows; r++) {
		uint8_t *const row = u.base + r * u.stride;

		for (uint32_t i = 0; i < u.row_bytes; i += 2 * LOSSLESS_STEP) {
			const uint64_t first = word_at(near), second = word_at(near + 8),
				       other = first & second;
			__m512i e = _mm512_mask_sub_epi8(near_base, first, near_base,
							 _mm512_set1_epi8(1));
			struct wide_parts x;

			_mm_prefetch((const char *)ahead, _MM_HINT_T1);
			_mm_prefetch((const char *)(ahead + LINE), _MM_HINT_T1);
			ahead += is_fp16 ? 112 : 96; /* about the bytes of a step */
			e = _mm512_mask_sub_epi8(e, second, e, _mm512_set1_epi8(2));
			x.exponents.all =
				_mm512_mask_expand_epi8(e, other, _mm512_loadu_si512(others));
			others += ones(other);
			x.low.all = _mm512_loadu_si512(low);
			if (is_fp16)
				memcpy(x.high, high, sizeof(x.high));
			wide_give(is_fp16, &x, row + i, lines);
			low += LOSSLESS_LOW_BYTES;
			high += LOSSLESS_HIGH_BYTES;
			near += LOSSLESS_NEAR_BYTES;
		}
	}
}
