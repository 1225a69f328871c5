/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lossless.h - the lossless rule: how a pack of BF16 or FP16 values becomes fewer bytes, every bit
 * of them kept. Every implementation must agree with this file, and with ref.c.
 *
 * The exponents of KV lie close together; signs and mantissas are noise. So a pack keeps the noise
 * as it is, and has codes of fixed widths for the exponents. A pack has a base b. The distance of
 * an exponent e is d = (b - e) mod 256:
 *	d = 2, 3, 4          near: two bits, 0 to 2
 *	d = 0, 1, 5 .. 9     far: the two bits are 3, and three more are 0 to 6
 *	else                 beyond: the three bits are 7, and a byte is e
 * A pack has n values (image.h says how many), the last of which is repeated up to whole steps of
 * 64. Its parts, words being 64 bits, little endian, with a bit for each place of a step:
 *	low    64 bytes a step: sign and mantissa (BF16), or the low byte (FP16)
 *	high   FP16 alone: 3 words a step: bits 8, 9 and 15
 *	near   2 words a step: both bits
 *	far    3 words for each 64 values that near has as 3, in the order of their places; then the
 *	       bytes of those beyond
 * Then zeros up to a multiple of 8. The length of `far` follows from the bits that are set, so a
 * length that lies is found before a value of the pack is written. A decoder takes any base; an
 * encoder chooses lossless_base(). Reasons and figures: daemon/IMAGE.md.
 *
 * Any thread.
 */
#pragma once

#include <stdint.h>

#ifndef FP8_FN
#define FP8_FN static inline
#endif

enum {
	LOSSLESS_STEP = 64, /* values */
	/* bytes: of each of the parts a step has, and of the words of 64 far values */
	LOSSLESS_LOW_BYTES = 64,
	LOSSLESS_HIGH_BYTES = 24,
	LOSSLESS_NEAR_BYTES = 16,
	LOSSLESS_FAR_BYTES = 24,
	LOSSLESS_NEAR = 2, /* the least distance that is near; there are three */
	LOSSLESS_BEYOND = 7,
	LOSSLESS_SAMPLES = 8, /* steps that the base is chosen by, or a few more */
	LOSSLESS_WINDOWS = 9, /* bases that it is chosen from */
};

/* Bytes of a step that do not depend on its values: all but the far part. */
FP8_FN uint32_t lossless_step_bytes(int is_fp16)
{
	return (uint32_t)(LOSSLESS_LOW_BYTES + (is_fp16 ? LOSSLESS_HIGH_BYTES : 0) +
			  LOSSLESS_NEAR_BYTES);
}

/* Which value of a step has this place in `low` and in words, both 0 to 63. It is the order in
 * which x86 packs two registers of 16-bit lanes into one of bytes. */
FP8_FN uint32_t lossless_value_at(uint32_t place)
{
	return (place >> 3 & 1) << 5 | (place >> 4) << 3 | (place & 7);
}

FP8_FN uint32_t lossless_exponent(int is_fp16, uint32_t code)
{
	return is_fp16 ? code >> 10 & 31 : code >> 7 & 255;
}

/* All of a code but its exponent. BF16: the byte `low`. FP16: `low`, and the bits of `high` from
 * bit 8 on. */
FP8_FN uint32_t lossless_rest(int is_fp16, uint32_t code)
{
	return is_fp16 ? (code & 0x3ff) | (code >> 5 & 0x400) : (code & 0x7f) | (code >> 8 & 0x80);
}

FP8_FN uint16_t lossless_code(int is_fp16, uint32_t exponent, uint32_t rest)
{
	if (is_fp16)
		return (uint16_t)((rest & 0x400) << 5 | (exponent & 31) << 10 | (rest & 0x3ff));
	return (uint16_t)((rest & 0x80) << 8 | exponent << 7 | (rest & 0x7f));
}

/* The two near bits of a distance, and from bit 2 on the three far bits. */
FP8_FN uint32_t lossless_bits(uint32_t distance)
{
	if (distance - LOSSLESS_NEAR < 3)
		return distance - LOSSLESS_NEAR;
	if (distance < LOSSLESS_NEAR)
		return 3 | distance << 2;
	return 3 | (distance < 10 ? distance - 3 : (uint32_t)LOSSLESS_BEYOND) << 2;
}

/* The distance that these bits mean. A value beyond has none. */
FP8_FN uint32_t lossless_distance(uint32_t near, uint32_t far)
{
	if (near < 3)
		return near + LOSSLESS_NEAR;
	return far < LOSSLESS_NEAR ? far : far + 3;
}

/* lossless_bits() of the distances up to 9, and of all beyond as 10. */
static const uint8_t lossless_table[16] = {
	3, 7, 0, 1, 2, 11, 15, 19, 23, 27, 31, 31, 31, 31, 31, 31,
};
/* lossless_distance() by the sum of its two arguments. */
static const uint8_t lossless_distances[16] = { 2, 3, 4, 0, 1, 5, 6, 7, 8, 9 };

/* How far apart the sampled steps of a pack are. The number is odd: rows often have two steps, and
 * both halves of rows are to be among the samples. */
FP8_FN uint32_t lossless_stride(uint32_t steps)
{
	return (steps / LOSSLESS_SAMPLES) | 1;
}

/* How many values with an exponent, or a larger one, make it the top. Fewer may be outliers. */
FP8_FN uint32_t lossless_enough(uint32_t sampled)
{
	return sampled / 16;
}

/* The base that makes the most sampled values near. `top` is the largest exponent that enough of
 * them have or exceed; least[i] says how many have at least the exponent top - i. */
FP8_FN uint8_t lossless_base(uint32_t top, const uint32_t least[LOSSLESS_WINDOWS + 2])
{
	uint32_t best = 0, most = 0;

	for (uint32_t i = 0; i < LOSSLESS_WINDOWS; i++) {
		const uint32_t n = least[i + 2] - (i ? least[i - 1] : 0);

		if (n > most) {
			most = n;
			best = i;
		}
	}
	return (uint8_t)(top - best + LOSSLESS_NEAR);
}
