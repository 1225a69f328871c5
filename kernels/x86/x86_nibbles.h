/* SPDX-License-Identifier: Apache-2.0 */
/*
 * x86_nibbles.h - the nibble rule, both ways, with the loops of vbmi2_nibbles.h, or with those here
 * around the arithmetic of avx2_nibbles.h. Only for x86_codec.h; read kernels/nibbles.h first.
 *
 * The loops have no branch that depends on codes. Steps with codes beyond are few: the main loop
 * only lists them.
 */
#pragma once

enum {
	NIBBLES_STEPS = NIBBLES_MOST / NIBBLES_STEP,
	NIBBLES_AHEAD = 4096, /* bytes between prefetch and use */
};

#ifdef X86_VBMI2
#include "vbmi2_nibbles.h"
#else

/* Three words of bits on their way, filled from bit 0 on. */
struct word_planes {
	uint8_t *to;
	uint64_t last[3];
	uint32_t bits;
};

/* Adds n bits to each word, n <= 64; the bits after them are 0. Full words move `to` on. */
MATH_FN void words_put(struct word_planes *w, const uint64_t bits[3], uint32_t n)
{
	const uint32_t now = w->bits + n, full = now >> 6;

#pragma GCC unroll 3
	for (int i = 0; i < 3; i++) {
		const uint64_t all = w->last[i] | bits[i] << w->bits;
		const uint64_t over = bits[i] >> 1 >> (63 - w->bits);

		memcpy(w->to + 8 * i, &all, sizeof(all));
		w->last[i] = full ? over : all;
	}
	w->to += full * NIBBLES_WORDS_BYTES;
	w->bits = now & 63;
}

/* Returns what is behind the words: words_put() has stored the last ones. */
static uint8_t *words_end(const struct word_planes *w)
{
	memcpy(w->to, w->last, sizeof(w->last));
	return w->to + (w->bits ? NIBBLES_WORDS_BYTES : 0);
}

/* The steps' parts. Returns the end of far and beyond, which follow near. */
MATH_FN uint8_t *nibbles_pack_steps(const uint8_t *codes, uint32_t steps, __m128i lookup,
				    uint8_t *rest, uint8_t *near)
{
	uint8_t behind[(NIBBLES_STEPS + 1) * NIBBLES_WORDS_BYTES] = { 0 };
	struct word_planes far = { .to = near + (size_t)steps * NIBBLES_NEAR_BYTES };
	struct word_planes beyond = { .to = behind };
	uint16_t listed[NIBBLES_STEPS] = { 0 };
	uint32_t n_listed = 0;
	size_t n_beyond;
	uint8_t *end;

	for (uint32_t s = 0; s < steps; s++) {
		uint64_t bits[5], three[3], other;

		_mm_prefetch((const char *)codes + (size_t)s * NIBBLES_STEP + NIBBLES_AHEAD,
			     _MM_HINT_T0);
		math_ranked(codes + (size_t)s * NIBBLES_STEP, lookup, rest, bits);
		memcpy(near, &bits[0], 8);
		memcpy(near + 8, &bits[1], 8);
		other = bits[0] & bits[1];
#pragma GCC unroll 3
		for (int i = 0; i < 3; i++)
			three[i] = _pext_u64(bits[2 + i], other);
		words_put(&far, three, (uint32_t)_mm_popcnt_u64(other));
		listed[n_listed] = (uint16_t)s;
		n_listed += (bits[2] & bits[3] & bits[4]) != 0;
		rest += NIBBLES_REST_BYTES;
		near += NIBBLES_NEAR_BYTES;
	}
	for (uint32_t l = 0; l < n_listed; l++) {
		uint64_t bits[3], which;

		which = math_ranked_beyond(codes + (size_t)listed[l] * NIBBLES_STEP, lookup, bits);
#pragma GCC unroll 3
		for (int i = 0; i < 3; i++)
			bits[i] = _pext_u64(bits[i], which);
		words_put(&beyond, bits, (uint32_t)_mm_popcnt_u64(which));
	}
	end = words_end(&far);
	n_beyond = (size_t)(words_end(&beyond) - behind);
	memcpy(end, behind, n_beyond);
	return end + n_beyond;
}

/* far has far_bytes, and beyond follows it; nibbles_hold() has counted. */
MATH_FN void nibbles_unpack_steps(const uint8_t *rest, const uint8_t *near, uint32_t steps,
				  uint32_t far_bytes, uint32_t beyond_bytes, __m128i lookup,
				  uint8_t *codes)
{
	const uint8_t *far = near + (size_t)steps * NIBBLES_NEAR_BYTES, *beyond = far + far_bytes,
		      *ahead = rest + NIBBLES_AHEAD;
	uint32_t at = 0, at_beyond = 0, n_listed = 0;
	uint64_t beyond_of[NIBBLES_STEPS] = { 0 };
	uint16_t listed[NIBBLES_STEPS] = { 0 };

	(void)beyond_bytes;
	for (uint32_t s = 0; s < steps; s++) {
		const uint64_t first = word_at(near), second = word_at(near + 8),
			       other = first & second;
		uint64_t bits[5] = { first, second }, three[3];

		_mm_prefetch((const char *)ahead + s * 56u, _MM_HINT_T0);
		__builtin_prefetch(codes + (size_t)s * NIBBLES_STEP + NIBBLES_AHEAD, 1);
		far_get(far, at, three);
		at += (uint32_t)_mm_popcnt_u64(other);
		far += (at >> 6) * NIBBLES_WORDS_BYTES;
		at &= 63;
#pragma GCC unroll 3
		for (int i = 0; i < 3; i++)
			bits[2 + i] = _pdep_u64(three[i], other);
		math_unranked(rest, lookup, bits, codes + (size_t)s * NIBBLES_STEP);
		listed[n_listed] = (uint16_t)s;
		beyond_of[n_listed] = bits[2] & bits[3] & bits[4];
		n_listed += beyond_of[n_listed] != 0;
		rest += NIBBLES_REST_BYTES;
		near += NIBBLES_NEAR_BYTES;
	}
	for (uint32_t l = 0; l < n_listed; l++) {
		const uint64_t which = beyond_of[l];
		uint64_t three[3];

		far_get(beyond, at_beyond, three);
		at_beyond += (uint32_t)_mm_popcnt_u64(which);
		beyond += (at_beyond >> 6) * NIBBLES_WORDS_BYTES;
		at_beyond &= 63;
#pragma GCC unroll 3
		for (int i = 0; i < 3; i++)
			three[i] = _pdep_u64(three[i], which);
		math_unranked_beyond(codes + (size_t)listed[l] * NIBBLES_STEP, lookup, which,
				     three);
	}
}

#endif

static uint32_t x86_nibbles_pack(const uint8_t *codes, uint32_t n, uint8_t *to)
{
	const uint32_t steps = n / NIBBLES_STEP, stride = nibbles_stride(steps);
	uint8_t *rest = to + NIBBLES_TABLE_BYTES, *near = rest + (size_t)steps * NIBBLES_REST_BYTES;
	uint32_t counts[16] = { 0 };
	uint8_t ranks[16], bits_of[16];

	for (uint32_t s = 0; s < steps; s += stride)
		math_count(codes + (size_t)s * NIBBLES_STEP, counts);
	nibbles_rank(counts, ranks);
	nibbles_table(ranks, to);
	for (uint32_t i = 0; i < 16; i++)
		bits_of[i] = nibbles_bits(ranks[i]);
	return (uint32_t)(nibbles_pack_steps(codes, steps, _mm_loadu_si128((const void *)bits_of),
					     rest, near) -
			  to);
}

static uint32_t nibbles_words(uint64_t codes)
{
	return (uint32_t)((codes + 63) / 64 * NIBBLES_WORDS_BYTES);
}

/* Whether far and beyond have `bytes` bytes, as the bits say. *ret: those of far. */
static bool nibbles_hold(const uint8_t *near, uint32_t steps, uint32_t bytes, uint32_t *ret)
{
	const uint8_t *far = near + (size_t)steps * NIBBLES_NEAR_BYTES;
	uint64_t left = 0, n_beyond = 0;

	for (uint32_t s = 0; s < steps; s++, near += NIBBLES_NEAR_BYTES)
		left += (uint64_t)_mm_popcnt_u64(word_at(near) & word_at(near + 8));
	*ret = nibbles_words(left);
	if (*ret > bytes)
		return false;
	for (; left > 0; far += NIBBLES_WORDS_BYTES) {
		const uint64_t a = word_at(far), b = word_at(far + 8), c = word_at(far + 16);

		if (left < 64 && (a | b | c) >> left)
			return false;
		n_beyond += (uint64_t)_mm_popcnt_u64(a & b & c);
		left -= left < 64 ? left : 64;
	}
	return *ret + nibbles_words(n_beyond) == bytes;
}

static int x86_nibbles_unpack(const uint8_t *from, uint32_t bytes, uint32_t n, uint8_t *codes)
{
	const uint32_t steps = n / NIBBLES_STEP,
		       fixed = NIBBLES_TABLE_BYTES +
			       steps * (NIBBLES_REST_BYTES + NIBBLES_NEAR_BYTES);
	const uint8_t *rest = from + NIBBLES_TABLE_BYTES,
		      *near = rest + (size_t)steps * NIBBLES_REST_BYTES;
	uint32_t far_bytes;
	uint8_t table[16];

	if (bytes < fixed || !nibbles_hold(near, steps, bytes - fixed, &far_bytes))
		return -EBADMSG;
	for (uint32_t i = 0; i < 16; i++)
		table[i] = from[i / 2] >> 4 * (i & 1) & 15;
	nibbles_unpack_steps(rest, near, steps, far_bytes, bytes - fixed - far_bytes,
			     _mm_loadu_si128((const void *)table), codes);
	return 0;
}
