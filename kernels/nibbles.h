/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nibbles.h - the nibble rule: how bytes that are FP8 codes become fewer, every bit of them kept.
 * Every implementation must agree with this file, and with nibbles.c.
 *
 * Bits 3 to 6 of a code, its *nibble*, are nearly its exponent: a few of the 16 are common, and
 * the other half of the code is noise. So n codes, n a multiple of 64, have a table of the nibbles
 * by rank, the commonest first, and each code has its rank in bits of fixed widths:
 *	rank 0, 1, 2     near: two bits, 0 to 2
 *	rank 3 .. 9      far: the two bits are 3, and three more are 0 to 6
 *	rank 10 .. 15    beyond: the three bits are 7, and three more are 0 to 5
 * so a rank is the sum of its bits' numbers. The parts, a *step* being 64 codes and words having 64
 * bits, little endian, with a bit for each code:
 *	table   8 bytes: the nibbles of ranks 0 to 15, each byte's low half first
 *	rest    32 bytes a step: of each code bits 0 to 2, and bit 7 as bit 3. Byte i has code i in
 *	        its low half, and code 32 + i in the other
 *	near    2 words a step: both bits
 *	far     3 words for each 64 codes that near has as 3, in order
 *	beyond  3 words for each 64 codes that far has as 7, in order
 * The last words of far and of beyond are filled up with zeros; that of far is checked. The lengths
 * of far and beyond follow from the bits that are set, so a length that lies is found before a code
 * is written. A decoder takes any table, and ranks modulo 16.
 *
 * Any thread.
 */
#pragma once

#include <stdint.h>

#include "lossless.h"

enum {
	NIBBLES_STEP = 64,
	NIBBLES_MOST = 16384, /* codes under one table */
	NIBBLES_TABLE_BYTES = 8,
	NIBBLES_REST_BYTES = 32, /* of a step, as are the next two */
	NIBBLES_NEAR_BYTES = 16,
	NIBBLES_WORDS_BYTES = 24, /* of 64 codes in far, or in beyond */
	/* the most that NIBBLES_MOST codes take */
	NIBBLES_MOST_BYTES =
		NIBBLES_TABLE_BYTES +
		NIBBLES_MOST / NIBBLES_STEP *
			(NIBBLES_REST_BYTES + NIBBLES_NEAR_BYTES + 2 * NIBBLES_WORDS_BYTES),
	NIBBLES_SPARE = 64, /* bytes behind coded ones that decoders may read */
};

/* Packs n codes, n <= NIBBLES_MOST, into `to`, which has room for NIBBLES_MOST_BYTES. Returns how
 * many bytes they took. */
typedef uint32_t nibbles_pack_fn(const uint8_t *codes, uint32_t n, uint8_t *to);
/* Unpacks `bytes` bytes into n codes, n <= NIBBLES_MOST. Whatever the bytes are, it reads
 * NIBBLES_SPARE behind them at most. 0, or -EBADMSG: it is not their length, and nothing was
 * written. */
typedef int nibbles_unpack_fn(const uint8_t *from, uint32_t bytes, uint32_t n, uint8_t *codes);

nibbles_pack_fn nibbles_pack_ref;
nibbles_unpack_fn nibbles_unpack_ref;

static inline uint32_t nibble_of(uint32_t code)
{
	return code >> 3 & 15;
}

/* How far apart the steps are that the table is chosen by. */
static inline uint32_t nibbles_stride(uint32_t steps)
{
	return lossless_stride(steps);
}

/* The rank of each nibble, by how many of the sampled codes have it; of two that are as common the
 * larger one is first. */
static inline void nibbles_rank(const uint32_t counts[16], uint8_t ranks[16])
{
	uint32_t scores[16];

	for (uint32_t i = 0; i < 16; i++)
		scores[i] = counts[i] << 4 | i;
	for (uint32_t i = 0; i < 16; i++) {
		uint32_t rank = 0;

		for (uint32_t j = 0; j < 16; j++)
			rank += scores[j] > scores[i];
		ranks[i] = (uint8_t)rank;
	}
}

static inline void nibbles_table(const uint8_t ranks[16], uint8_t table[NIBBLES_TABLE_BYTES])
{
	uint64_t word = 0;

	for (uint32_t i = 0; i < 16; i++)
		word |= (uint64_t)i << 4 * ranks[i];
	for (uint32_t i = 0; i < NIBBLES_TABLE_BYTES; i++)
		table[i] = (uint8_t)(word >> 8 * i);
}

/* A rank's bits: near, from bit 2 on far, from bit 5 on beyond. */
static inline uint8_t nibbles_bits(uint32_t rank)
{
	const uint32_t far = rank < 3 ? 0 : rank - 3;

	if (rank < 3)
		return (uint8_t)rank;
	return (uint8_t)(3 | (far < 7 ? far << 2 : 7u << 2 | (far - 7) << 5));
}
