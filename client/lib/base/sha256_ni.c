/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sha256_ni.c - SHA-256 by the CPU's SHA instructions. The compiler gets their flags for this file;
 * sha256.c calls it only where the CPU has them.
 *
 * The instructions keep the standard's state a to h in two registers, abef and cdgh, from the
 * highest word to the lowest. One does two rounds with the two words of the schedule that are
 * lowest in its third operand, and its result is the new abef, while the old abef is the new cdgh.
 */
#include "sha256.h"

#include <immintrin.h>

static __m128i load(const void *from)
{
	return _mm_loadu_si128(from);
}

/* Four words of the schedule from the 16 before them. */
static __m128i words_after(__m128i w0, __m128i w1, __m128i w2, __m128i w3)
{
	const __m128i sum = _mm_add_epi32(_mm_sha256msg1_epu32(w0, w1), _mm_alignr_epi8(w3, w2, 4));

	return _mm_sha256msg2_epu32(sum, w3);
}

/* Four rounds, of which i is the first. */
static void four_rounds(__m128i *abef, __m128i *cdgh, __m128i w, int i)
{
	const __m128i wk = _mm_add_epi32(w, load(&sha256_constants[i]));

	*cdgh = _mm_sha256rnds2_epu32(*cdgh, *abef, wk);
	*abef = _mm_sha256rnds2_epu32(*abef, *cdgh, _mm_shuffle_epi32(wk, 0x0e));
}

void sha256_ni(uint32_t state[8], const uint8_t *bytes, size_t n)
{
	/* the message's words have their highest byte first */
	const __m128i swap = _mm_set_epi8(12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3);
	const __m128i badc = _mm_shuffle_epi32(load(&state[0]), 0xb1);
	const __m128i hgfe = _mm_shuffle_epi32(load(&state[4]), 0x1b);
	__m128i abef = _mm_alignr_epi8(badc, hgfe, 8), cdgh = _mm_blend_epi16(hgfe, badc, 0xf0);

	for (; n > 0; n--, bytes += SHA256_BLOCK) {
		const __m128i abef_before = abef, cdgh_before = cdgh;
		__m128i w0 = _mm_shuffle_epi8(load(bytes), swap);
		__m128i w1 = _mm_shuffle_epi8(load(bytes + 16), swap);
		__m128i w2 = _mm_shuffle_epi8(load(bytes + 32), swap);
		__m128i w3 = _mm_shuffle_epi8(load(bytes + 48), swap);

		for (int i = 0;; i += 16) {
			four_rounds(&abef, &cdgh, w0, i);
			four_rounds(&abef, &cdgh, w1, i + 4);
			four_rounds(&abef, &cdgh, w2, i + 8);
			four_rounds(&abef, &cdgh, w3, i + 12);
			if (i == 48)
				break;
			w0 = words_after(w0, w1, w2, w3);
			w1 = words_after(w1, w2, w3, w0);
			w2 = words_after(w2, w3, w0, w1);
			w3 = words_after(w3, w0, w1, w2);
		}
		abef = _mm_add_epi32(abef, abef_before);
		cdgh = _mm_add_epi32(cdgh, cdgh_before);
	}
	const __m128i feba = _mm_shuffle_epi32(abef, 0x1b);
	const __m128i dchg = _mm_shuffle_epi32(cdgh, 0xb1);

	_mm_storeu_si128((void *)&state[0], _mm_blend_epi16(feba, dchg, 0xf0));
	_mm_storeu_si128((void *)&state[4], _mm_alignr_epi8(dchg, feba, 8));
}
