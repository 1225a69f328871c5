/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nibbles.c - the nibble rule in plain C: the oracle and the fallback. Contract: nibbles.h.
 */
#include "nibbles.h"

#include <errno.h>
#include <string.h>

static uint64_t word_at(const uint8_t *p)
{
	uint64_t ret = 0;

	for (uint32_t i = 0; i < 8; i++)
		ret |= (uint64_t)p[i] << 8 * i;
	return ret;
}

static void put_word(uint8_t *p, uint64_t word)
{
	for (uint32_t i = 0; i < 8; i++)
		p[i] = (uint8_t)(word >> 8 * i);
}

/* Three words of bits, filled from bit 0 on. */
struct words {
	uint64_t word[3];
	uint32_t n;
	uint8_t *to;
};

static void words_end(struct words *w)
{
	for (uint32_t i = 0; i < 3 && w->n > 0; i++, w->to += 8)
		put_word(w->to, w->word[i]);
	memset(w->word, 0, sizeof(w->word));
	w->n = 0;
}

static void words_put(struct words *w, uint32_t bits)
{
	for (uint32_t i = 0; i < 3; i++)
		w->word[i] |= (uint64_t)(bits >> i & 1) << w->n;
	if (++w->n == 64)
		words_end(w);
}

uint32_t nibbles_pack_ref(const uint8_t *codes, uint32_t n, uint8_t *to)
{
	const uint32_t steps = n / NIBBLES_STEP, stride = nibbles_stride(steps);
	uint8_t *const rest = to + NIBBLES_TABLE_BYTES, *const near =
								rest +
								(size_t)steps * NIBBLES_REST_BYTES;
	uint8_t beyond_bytes[NIBBLES_MOST / NIBBLES_STEP * NIBBLES_WORDS_BYTES] = { 0 };
	uint8_t ranks[16];
	struct words far = { .to = near + (size_t)steps * NIBBLES_NEAR_BYTES };
	struct words beyond = { .to = beyond_bytes };
	uint32_t counts[16] = { 0 };

	for (uint32_t s = 0; s < steps; s += stride)
		for (uint32_t i = 0; i < NIBBLES_STEP; i++)
			counts[nibble_of(codes[s * NIBBLES_STEP + i])]++;
	nibbles_rank(counts, ranks);
	nibbles_table(ranks, to);
	for (uint32_t s = 0; s < steps; s++, codes += NIBBLES_STEP) {
		uint64_t first = 0, second = 0;

		for (uint32_t i = 0; i < NIBBLES_STEP; i++) {
			const uint32_t noise = (codes[i] & 7) | (codes[i] >> 4 & 8),
				       bits = nibbles_bits(ranks[nibble_of(codes[i])]);
			uint8_t *at = rest + s * NIBBLES_REST_BYTES + i % 32;

			*at = (uint8_t)(i < 32 ? noise : *at | noise << 4);
			first |= (uint64_t)(bits & 1) << i;
			second |= (uint64_t)(bits >> 1 & 1) << i;
			if ((bits & 3) == 3)
				words_put(&far, bits >> 2);
			if ((bits & 31) == 31)
				words_put(&beyond, bits >> 5);
		}
		put_word(near + (size_t)s * NIBBLES_NEAR_BYTES, first);
		put_word(near + (size_t)s * NIBBLES_NEAR_BYTES + 8, second);
	}
	words_end(&far);
	words_end(&beyond);
	memcpy(far.to, beyond_bytes, (size_t)(beyond.to - beyond_bytes));
	return (uint32_t)(far.to - to + (beyond.to - beyond_bytes));
}

static uint32_t words_bytes(uint32_t codes)
{
	return (codes + 63) / 64 * NIBBLES_WORDS_BYTES;
}

/* Whether far and beyond have `bytes` bytes, as the bits say. *ret: those of far. */
static int holds(const uint8_t *near, uint32_t steps, uint32_t bytes, uint32_t *ret)
{
	const uint8_t *far = near + (size_t)steps * NIBBLES_NEAR_BYTES;
	uint32_t n_far = 0, n_beyond = 0;

	for (uint32_t s = 0; s < steps; s++, near += NIBBLES_NEAR_BYTES)
		n_far += (uint32_t)__builtin_popcountll(word_at(near) & word_at(near + 8));
	*ret = words_bytes(n_far);
	if (*ret > bytes)
		return 0;
	for (uint32_t left = n_far; left > 0; far += NIBBLES_WORDS_BYTES) {
		const uint64_t a = word_at(far), b = word_at(far + 8), c = word_at(far + 16);

		if (left < 64 && (a | b | c) >> left)
			return 0;
		n_beyond += (uint32_t)__builtin_popcountll(a & b & c);
		left -= left < 64 ? left : 64;
	}
	return *ret + words_bytes(n_beyond) == bytes;
}

/* The next three bits. */
static uint32_t bits_at(const uint8_t *words, uint32_t *at)
{
	const uint8_t *p = words + *at / 64 * NIBBLES_WORDS_BYTES + *at % 64 / 8;
	const uint32_t bit = (*at)++ % 8;

	return (uint32_t)((p[0] >> bit & 1) | (p[8] >> bit & 1) << 1 | (p[16] >> bit & 1) << 2);
}

int nibbles_unpack_ref(const uint8_t *from, uint32_t bytes, uint32_t n, uint8_t *codes)
{
	const uint32_t steps = n / NIBBLES_STEP,
		       fixed = NIBBLES_TABLE_BYTES +
			       steps * (NIBBLES_REST_BYTES + NIBBLES_NEAR_BYTES);
	const uint8_t *rest = from + NIBBLES_TABLE_BYTES,
		      *near = rest + (size_t)steps * NIBBLES_REST_BYTES, *far = from + fixed;
	uint32_t far_bytes, at_far = 0, at_beyond = 0;

	if (bytes < fixed || !holds(near, steps, bytes - fixed, &far_bytes))
		return -EBADMSG;
	for (uint32_t i = 0; i < n; i++) {
		const uint32_t s = i / NIBBLES_STEP, p = i % NIBBLES_STEP;
		const uint8_t *word = near + (size_t)s * NIBBLES_NEAR_BYTES + p / 8;
		const uint32_t noise =
			rest[s * NIBBLES_REST_BYTES + p % 32] >> (p < 32 ? 0 : 4) & 15;
		uint32_t rank = (uint32_t)((word[0] >> p % 8 & 1) | (word[8] >> p % 8 & 1) << 1);

		if (rank == 3)
			rank += bits_at(far, &at_far);
		if (rank == 10)
			rank += bits_at(far + far_bytes, &at_beyond);
		rank &= 15;
		codes[i] = (uint8_t)((noise & 7) | (noise & 8) << 4 |
				     ((uint32_t)from[rank / 2] >> 4 * (rank & 1) & 15) << 3);
	}
	return 0;
}
