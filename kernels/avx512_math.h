/* SPDX-License-Identifier: Apache-2.0 */
/*
 * avx512_math.h - fp8.h's arithmetic, 64 values at a time. Only for avx512.c. Read avx2_math.h
 * first: this is its encode in wider registers, with the same two ways and the same limits; decode
 * is taken from there.
 */
#ifndef KVTIER_AVX512_MATH_H
#define KVTIER_AVX512_MATH_H

#include "avx2_math.h"

struct wide_encode {
	__m512i least, offset;     /* as in struct math_encode */
	struct math_encode narrow; /* for steps that are not common */
};

struct wide_amax {
	__m512i a, b;
};

struct wide_line {
	__m512i all;
};

struct wide_acc {
	__m512i all;
};

MATH_FN struct wide_encode wide_encode_at(bool is_fp16, int k)
{
	const struct math_encode narrow = math_encode_at(is_fp16, k);

	return (struct wide_encode){
		.least = _mm512_broadcastw_epi16(_mm256_castsi256_si128(narrow.least)),
		.offset = _mm512_broadcastw_epi16(_mm256_castsi256_si128(narrow.offset)),
		.narrow = narrow,
	};
}

MATH_FN struct wide_amax wide_amax_start(void)
{
	return (struct wide_amax){ _mm512_setzero_si512(), _mm512_setzero_si512() };
}

MATH_FN void wide_amax64(struct wide_amax *m, const uint8_t *p)
{
	const __m512i mask = _mm512_set1_epi16(0x7fff);

	m->a = _mm512_max_epi16(m->a, _mm512_and_si512(_mm512_loadu_si512(p), mask));
	m->b = _mm512_max_epi16(m->b, _mm512_and_si512(_mm512_loadu_si512(p + 64), mask));
}

MATH_FN uint32_t wide_amax_end(const struct wide_amax *m)
{
	const __m512i a = _mm512_max_epi16(m->a, m->b);
	const struct math_amax halves = { _mm512_castsi512_si256(a),
					  _mm512_extracti64x4_epi64(a, 1) };

	return math_amax_end(&halves);
}

/* Without the mantissa bits that a code has no room for. */
MATH_FN __m512i wide_shift(bool is_fp16, __m512i x)
{
	return is_fp16 ? _mm512_srli_epi16(x, 7) : _mm512_srli_epi16(x, 4);
}

MATH_FN __m512i wide_common32(bool is_fp16, const struct wide_encode *m, __m512i magnitude)
{
	const __m512i bit = _mm512_and_si512(wide_shift(is_fp16, magnitude), _mm512_set1_epi16(1));

	return wide_shift(is_fp16, _mm512_add_epi16(_mm512_sub_epi16(magnitude, m->offset), bit));
}

/* As math_encode64(). */
MATH_FN struct wide_line wide_encode64(bool is_fp16, const struct wide_encode *m,
				       const uint8_t *src)
{
	/* packing works in quarters */
	const __m512i order = _mm512_set_epi64(7, 5, 3, 1, 6, 4, 2, 0);
	const __m512i mask = _mm512_set1_epi16(0x7fff), sign = _mm512_set1_epi8(-128);
	const __m512i a = _mm512_loadu_si512(src), b = _mm512_loadu_si512(src + 64);
	const __m512i ma = _mm512_and_si512(a, mask), mb = _mm512_and_si512(b, mask);
	__m512i codes;

	if (__builtin_expect(_mm512_cmple_epi16_mask(_mm512_min_epi16(ma, mb), m->least) != 0, 0)) {
		const struct math_line line = math_encode64(is_fp16, &m->narrow, src);

		return (struct wide_line){ _mm512_inserti64x4(_mm512_castsi256_si512(line.a),
							      line.b, 1) };
	}
	codes = _mm512_packus_epi16(wide_common32(is_fp16, m, ma), wide_common32(is_fp16, m, mb));
	codes = _mm512_min_epu8(codes, _mm512_set1_epi8(FP8_MAX));
	/* sign ? signs : codes, bit by bit */
	codes = _mm512_ternarylogic_epi64(sign, _mm512_packs_epi16(a, b), codes, 0xca);
	return (struct wide_line){ _mm512_permutexvar_epi64(order, codes) };
}

MATH_FN struct wide_line wide_load(const uint8_t *src)
{
	return (struct wide_line){ _mm512_loadu_si512(src) };
}

MATH_FN void wide_store(uint8_t *dst, struct wide_line line)
{
	_mm512_storeu_si512(dst, line.all);
}

MATH_FN void wide_stream(uint8_t *dst, struct wide_line line)
{
	_mm512_stream_si512((void *)dst, line.all);
}

MATH_FN struct wide_acc wide_acc_get(const uint64_t *p)
{
	return (struct wide_acc){ _mm512_loadu_si512(p) };
}

MATH_FN void wide_acc_put(uint64_t *p, struct wide_acc acc)
{
	_mm512_storeu_si512(p, acc.all);
}

MATH_FN struct wide_acc wide_acc_mix(struct wide_acc acc, struct wide_line line,
				     const uint8_t *secret)
{
	const __m512i key = _mm512_xor_si512(line.all, _mm512_loadu_si512(secret));
	const __m512i product = _mm512_mul_epu32(key, _mm512_srli_epi64(key, 32));
	const __m512i turned = _mm512_shuffle_epi32(line.all, (_MM_PERM_ENUM)0x4e);

	acc.all = _mm512_add_epi64(acc.all, _mm512_add_epi64(product, turned));
	MATH_STAY(acc.all);
	return acc;
}

MATH_FN struct wide_acc wide_acc_scramble(struct wide_acc acc, const uint8_t *secret)
{
	const __m512i prime = _mm512_set1_epi64(0x9e3779b1);
	const __m512i x = _mm512_ternarylogic_epi64(acc.all, _mm512_srli_epi64(acc.all, 47),
						    /* all three xored */
						    _mm512_loadu_si512(secret), 0x96);
	const __m512i high = _mm512_mul_epu32(_mm512_srli_epi64(x, 32), prime);

	return (struct wide_acc){ _mm512_add_epi64(_mm512_mul_epu32(x, prime),
						   _mm512_slli_epi64(high, 32)) };
}

/* The names that x86_codec.h uses. */
#define math_encode       wide_encode
#define math_amax         wide_amax
#define math_line         wide_line
#define math_acc          wide_acc
#define math_encode_at    wide_encode_at
#define math_encode64     wide_encode64
#define math_amax_start   wide_amax_start
#define math_amax64       wide_amax64
#define math_amax_end     wide_amax_end
#define math_load         wide_load
#define math_store        wide_store
#define math_stream       wide_stream
#define math_acc_get      wide_acc_get
#define math_acc_put      wide_acc_put
#define math_acc_mix      wide_acc_mix
#define math_acc_scramble wide_acc_scramble

#endif
