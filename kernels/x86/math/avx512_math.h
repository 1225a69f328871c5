/* SPDX-License-Identifier: Apache-2.0 */
/*
 * avx512_math.h - fp8.h's arithmetic, 64 values at a time. Only for vbmi2.c. Read avx2_math.h
 * first: this is its encode in wider registers, with the same common case. Decode is taken from
 * there.
 *
 * The codes tell whether all values were common: the common way makes a code below 8, the least
 * normal one, of each smaller value, and where it makes 8 of one, 8 is right. One look serves four
 * steps. A compare and a branch for each step took a tenth of the time (Zen 4).
 *
 * Smaller values have a way of their own: their significands are shifted by what their exponents
 * lack. It does not hold at the largest k, and not for FP16 below k = -8, where sources that are
 * not normal can have normal codes; there all 64 values go the general way of avx2_math.h.
 */
#pragma once

#include "avx2_math.h"

struct wide_encode {
	__m512i offset; /* as in struct math_encode */
	__m512i least;  /* code, a byte, from which on all are common */
	__m512i last;   /* the last mantissa bit that a code has */
	__m512i magnitude, one, most, sign, order;
	int k;
};

struct wide_trial {
	__m512i least; /* of the codes */
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

/* At the largest k: no code. For FP16 below k = -8: the code after that of the least normal
 * source. */
MATH_FN int wide_least(bool is_fp16, int k)
{
	if (math_is_largest(is_fp16, k))
		return 0xff;
	return is_fp16 && k < -8 ? -8 * (7 + k) + 1 : 8;
}

/* Constants stay in registers: the compiler would make them anew for each row. */
MATH_FN struct wide_encode wide_encode_at(bool is_fp16, int k)
{
	struct wide_encode m = {
		.offset = _mm512_set1_epi16((short)math_offset(is_fp16, k)),
		.least = _mm512_set1_epi8((char)wide_least(is_fp16, k)),
		.last = _mm512_set1_epi16(is_fp16 ? 1 << 7 : 1 << 4),
		.magnitude = _mm512_set1_epi16(0x7fff),
		.one = _mm512_set1_epi16(1),
		.most = _mm512_set1_epi8(FP8_MAX),
		.sign = _mm512_set1_epi8(-128),
		.order = _mm512_set_epi64(7, 5, 3, 1, 6, 4, 2, 0),
		.k = k,
	};

	MATH_STAY(m.last);
	MATH_STAY(m.magnitude);
	MATH_STAY(m.one);
	MATH_STAY(m.most);
	MATH_STAY(m.sign);
	MATH_STAY(m.order);
	return m;
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

MATH_FN __m512i wide_magnitude32(const struct wide_encode *m, const uint8_t *src)
{
	return _mm512_and_si512(_mm512_loadu_si512(src), m->magnitude);
}

/* Values below the common ones become negative; larger ones saturate. */
MATH_FN __m512i wide_common32(bool is_fp16, const struct wide_encode *m, __m512i magnitude)
{
	const __mmask32 odd = _mm512_test_epi16_mask(magnitude, m->last);
	const __m512i x = _mm512_subs_epi16(magnitude, m->offset);
	const __m512i sum = _mm512_mask_adds_epi16(x, odd, x, m->one);

	return is_fp16 ? _mm512_srai_epi16(sum, 7) : _mm512_srai_epi16(sum, 4);
}

/* Values whose codes are at most 8 = 2^-6: the significand in units of 2^-9, rounded. A shift by
 * more than its bits gives zero, as it should. */
MATH_FN __m512i wide_small32(bool is_fp16, const struct wide_encode *m, __m512i magnitude)
{
	const __m512i field =
		is_fp16 ? _mm512_srli_epi16(magnitude, 10) : _mm512_srli_epi16(magnitude, 7);
	const __m512i exponent = _mm512_max_epu16(field, m->one);
	const __m512i over = _mm512_sub_epi16(exponent, m->one);
	const __m512i hidden = is_fp16 ? _mm512_slli_epi16(over, 10) : _mm512_slli_epi16(over, 7);
	const __m512i x = _mm512_sub_epi16(magnitude, hidden);
	const __m512i shift =
		_mm512_sub_epi16(_mm512_set1_epi16((short)(m->k + (is_fp16 ? 16 : 125))), exponent);
	const __m512i half = _mm512_sllv_epi16(m->one, _mm512_sub_epi16(shift, m->one));
	const __m512i bit = _mm512_and_si512(_mm512_srlv_epi16(x, shift), m->one);
	const __m512i sum = _mm512_add_epi16(x, _mm512_sub_epi16(half, m->one));

	return _mm512_srlv_epi16(_mm512_add_epi16(sum, bit), shift);
}

/* Packing saturates, from below to 0; it works in quarters. */
MATH_FN __m512i wide_pack(const struct wide_encode *m, __m512i a, __m512i b)
{
	return _mm512_min_epu8(_mm512_packus_epi16(a, b), m->most);
}

MATH_FN __m512i wide_common64(bool is_fp16, const struct wide_encode *m, const uint8_t *src)
{
	const __m512i a = wide_magnitude32(m, src), b = wide_magnitude32(m, src + 64);

	return wide_pack(m, wide_common32(is_fp16, m, a), wide_common32(is_fp16, m, b));
}

MATH_FN bool wide_is_common(const struct wide_encode *m, __m512i codes)
{
	return __builtin_expect(_mm512_cmplt_epu8_mask(codes, m->least) == 0, 1);
}

/* Packed codes with the signs of their values, in order. */
MATH_FN struct wide_line wide_finish(const struct wide_encode *m, __m512i codes, const uint8_t *src)
{
	const __m512i signs =
		_mm512_packs_epi16(_mm512_loadu_si512(src), _mm512_loadu_si512(src + 64));

	/* sign ? signs : codes, bit by bit */
	codes = _mm512_ternarylogic_epi64(m->sign, signs, codes, 0xca);
	return (struct wide_line){ _mm512_permutexvar_epi64(m->order, codes) };
}

MATH_FN __m512i wide_either32(bool is_fp16, const struct wide_encode *m, __m512i magnitude)
{
	const __m512i least = _mm512_set1_epi16((short)math_least(is_fp16, m->k));

	return _mm512_mask_mov_epi16(wide_common32(is_fp16, m, magnitude),
				     _mm512_cmplt_epu16_mask(magnitude, least),
				     wide_small32(is_fp16, m, magnitude));
}

/* math_encode64() for any 64 values. A call, so that its constants take no registers of the
 * common case; one step in 125 of Gaussian data. */
static __attribute__((noinline)) __m512i wide_any64(bool is_fp16, int k, const uint8_t *src)
{
	const struct wide_encode m = wide_encode_at(is_fp16, k);
	__m512i codes = wide_common64(is_fp16, &m, src);

	if (math_is_largest(is_fp16, k) || (is_fp16 && k < -8)) {
		const struct math_encode narrow = math_encode_at(is_fp16, k);
		const struct math_line line = math_encode64(is_fp16, &narrow, src);

		return _mm512_inserti64x4(_mm512_castsi256_si512(line.a), line.b, 1);
	}
	if (!wide_is_common(&m, codes))
		codes = wide_pack(&m, wide_either32(is_fp16, &m, wide_magnitude32(&m, src)),
				  wide_either32(is_fp16, &m, wide_magnitude32(&m, src + 64)));
	return wide_finish(&m, codes, src).all;
}

/* math_encode64() for 64 common values. */
MATH_FN struct wide_line wide_encode64(bool is_fp16, const struct wide_encode *m,
				       const uint8_t *src)
{
	const __m512i codes = wide_common64(is_fp16, m, src);

	if (wide_is_common(m, codes))
		return wide_finish(m, codes, src);
	return (struct wide_line){ wide_any64(is_fp16, m->k, src) };
}

MATH_FN struct wide_trial wide_trial_start(void)
{
	return (struct wide_trial){ _mm512_set1_epi8(-1) };
}

MATH_FN struct wide_line wide_try64(bool is_fp16, const struct wide_encode *m, const uint8_t *src,
				    struct wide_trial *t)
{
	const __m512i codes = wide_common64(is_fp16, m, src);

	t->least = _mm512_min_epu8(t->least, codes);
	return wide_finish(m, codes, src);
}

MATH_FN bool wide_trial_holds(const struct wide_encode *m, const struct wide_trial *t)
{
	return wide_is_common(m, t->least);
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
#define math_trial        wide_trial
#define math_trial_start  wide_trial_start
#define math_try64        wide_try64
#define math_trial_holds  wide_trial_holds
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
