/* SPDX-License-Identifier: Apache-2.0 */
/*
 * avx2_math.h - fp8.h's arithmetic, 32 values at a time. Only for avx2.c.
 *
 * The common case works on the 16-bit codes as integers. To divide by 2^k, it subtracts k from the
 * exponent field. To round the mantissa to three bits, it adds half a step (less one, plus the last
 * kept bit: ties to even) and shifts; a carry runs into the exponent as it should. That holds while
 * source and result are both normal. If one of the 32 values is not normal (a zero is not), all 32
 * go the general way: exact 32-bit floats. In Gaussian data that is one step in 250. Both ways
 * agree with fp8.h bit for bit.
 *
 * Encoding takes -116 <= k <= 120 (BF16) or -32 <= k <= 8 (FP16). There every product with 2^-k
 * that can round to a code other than zero is a normal float, so the flush-to-zero flags do not
 * matter.
 */
#pragma once

#include <immintrin.h>
#include <stdbool.h>
#include <string.h>

#include "kernels/fp8.h"

/* Inlined whatever the compiler thinks: is_fp16 is a constant where it matters, and folds away. */
#define MATH_FN static inline __attribute__((always_inline))

/* 64 bytes. */
struct math_line {
	__m256i a, b;
};

/* XXH3's eight accumulators, see x86_hash.h. */
struct math_acc {
	__m256i a, b;
};

struct math_encode {
	__m256i least;  /* smallest magnitude code of the common case, less one */
	__m256i offset; /* k's part of the exponent field, less (half a step - 1) */
	__m256 scale;   /* 2^-k */
};

struct math_amax {
	__m256i a, b;
};

struct math_decode {
	__m256i least;  /* smallest E4M3 magnitude of the common case */
	__m256i offset; /* what to add to the exponent field */
	__m256 scale;   /* 2^(k + 8): see general_decode16() */
};

MATH_FN __m256 math_power(int exponent) /* 2^exponent, -126 <= exponent <= 127 */
{
	return _mm256_castsi256_ps(_mm256_set1_epi32((exponent + 127) << 23));
}

/* k's part of the exponent field: the difference of the exponent biases, and k. */
MATH_FN int math_exponent(bool is_fp16, int k)
{
	return is_fp16 ? (8 + k) * 1024 : (120 + k) * 128;
}

/* What the common case subtracts: k's part, less half a step less one. */
MATH_FN int math_offset(bool is_fp16, int k)
{
	return math_exponent(is_fp16, k) - (is_fp16 ? 63 : 7);
}

MATH_FN bool math_is_largest(bool is_fp16, int k)
{
	return k == (is_fp16 ? FP8_FP16_K_MAX : FP8_BF16_K_MAX);
}

/* The smallest magnitude code of the common case. */
MATH_FN int math_least(bool is_fp16, int k)
{
	const int one = is_fp16 ? 1024 : 128, normal = math_exponent(is_fp16, k) + one;

	/* At the largest k an Inf's code would look like 256: no value is common there. */
	if (math_is_largest(is_fp16, k))
		return 0x8000;
	return is_fp16 && normal < one ? one : normal;
}

MATH_FN struct math_encode math_encode_at(bool is_fp16, int k)
{
	return (struct math_encode){
		.least = _mm256_set1_epi16((short)(math_least(is_fp16, k) - 1)),
		.offset = _mm256_set1_epi16((short)math_offset(is_fp16, k)),
		.scale = math_power(-k),
	};
}

/* The largest magnitude code of any number of values; magnitudes are positive as signed 16-bit
 * numbers. */
MATH_FN struct math_amax math_amax_start(void)
{
	return (struct math_amax){ _mm256_setzero_si256(), _mm256_setzero_si256() };
}

MATH_FN void math_amax64(struct math_amax *m, const uint8_t *p)
{
	const __m256i mask = _mm256_set1_epi16(0x7fff);

	for (int i = 0; i < 2; i++, p += 64) {
		const __m256i a = _mm256_loadu_si256((const void *)p),
			      b = _mm256_loadu_si256((const void *)(p + 32));

		m->a = _mm256_max_epi16(m->a, _mm256_and_si256(a, mask));
		m->b = _mm256_max_epi16(m->b, _mm256_and_si256(b, mask));
	}
}

MATH_FN uint32_t math_amax_end(const struct math_amax *m)
{
	const __m256i a = _mm256_max_epi16(m->a, m->b);
	const __m128i x = _mm_max_epi16(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
	/* There is an instruction for the least of eight: take it of the complements. */
	const __m128i least = _mm_minpos_epu16(_mm_xor_si128(x, _mm_set1_epi16(-1)));

	return 0xffffu ^ ((uint32_t)_mm_cvtsi128_si32(least) & 0xffff);
}

/* Eight values -> eight magnitudes of codes in 32-bit lanes, not yet bounded by 448. */
MATH_FN __m256i general_encode8(bool is_fp16, const struct math_encode *m, __m128i values)
{
	const __m256 x =
		is_fp16 ? _mm256_cvtph_ps(values) :
			  _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(values), 16));
	const __m256i y = _mm256_and_si256(_mm256_castps_si256(_mm256_mul_ps(x, m->scale)),
					   _mm256_set1_epi32(0x7fffffff));
	/* Normal results: the same rounding in the 32-bit format; bias 127 becomes 7. */
	const __m256i bit = _mm256_and_si256(_mm256_srli_epi32(y, 20), _mm256_set1_epi32(1));
	const __m256i sum = _mm256_add_epi32(_mm256_add_epi32(y, bit),
					     _mm256_set1_epi32(0x7ffff - (120 << 23)));
	const __m256i normal = _mm256_srli_epi32(sum, 20);
	/* Below 2^-6 the step is 2^-9, which is one unit in the last place of 2^14: adding that
	 * rounds. */
	const __m256 at_magic = _mm256_add_ps(_mm256_castsi256_ps(y), math_power(14));
	const __m256i small = _mm256_sub_epi32(_mm256_castps_si256(at_magic),
					       _mm256_castps_si256(math_power(14)));
	const __m256i is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32((127 - 6) << 23), y);

	return _mm256_blendv_epi8(normal, small, is_small);
}

MATH_FN __m256i general_encode16(bool is_fp16, const struct math_encode *m, __m256i values)
{
	const __m256i low = general_encode8(is_fp16, m, _mm256_castsi256_si128(values));
	const __m256i high = general_encode8(is_fp16, m, _mm256_extracti128_si256(values, 1));

	return _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8);
}

MATH_FN __m256i common_encode16(bool is_fp16, const struct math_encode *m, __m256i magnitude)
{
	const int shift = is_fp16 ? 7 : 4;
	const __m256i bit =
		_mm256_and_si256(_mm256_srli_epi16(magnitude, shift), _mm256_set1_epi16(1));

	return _mm256_srli_epi16(_mm256_add_epi16(_mm256_sub_epi16(magnitude, m->offset), bit),
				 shift);
}

/* 32 source values -> 32 codes. */
MATH_FN __m256i math_encode32(bool is_fp16, const struct math_encode *m, __m256i a, __m256i b)
{
	const __m256i mask = _mm256_set1_epi16(0x7fff);
	const __m256i ma = _mm256_and_si256(a, mask), mb = _mm256_and_si256(b, mask);
	const __m256i ok = _mm256_cmpgt_epi16(_mm256_min_epi16(ma, mb), m->least);
	__m256i codes, signs;

	if (__builtin_expect(_mm256_movemask_epi8(ok) == -1, 1))
		codes = _mm256_packus_epi16(common_encode16(is_fp16, m, ma),
					    common_encode16(is_fp16, m, mb));
	else
		codes = _mm256_packus_epi16(general_encode16(is_fp16, m, a),
					    general_encode16(is_fp16, m, b));
	codes = _mm256_min_epu8(codes, _mm256_set1_epi8(FP8_MAX)); /* packing saturated to 255 */
	signs = _mm256_and_si256(_mm256_packs_epi16(a, b), _mm256_set1_epi8(-128));
	return _mm256_permute4x64_epi64(_mm256_or_si256(codes, signs), 0xd8);
}

/* 64 source values at src, any alignment -> 64 codes. */
MATH_FN struct math_line math_encode64(bool is_fp16, const struct math_encode *m,
				       const uint8_t *src)
{
	return (struct math_line){
		math_encode32(is_fp16, m, _mm256_loadu_si256((const void *)src),
			      _mm256_loadu_si256((const void *)(src + 32))),
		math_encode32(is_fp16, m, _mm256_loadu_si256((const void *)(src + 64)),
			      _mm256_loadu_si256((const void *)(src + 96))),
	};
}

/* Steps that are encoded in turn, and looked at once: whether each was right. Here each is. */
struct math_trial {
	int none;
};

MATH_FN struct math_trial math_trial_start(void)
{
	return (struct math_trial){ 0 };
}

MATH_FN struct math_line math_try64(bool is_fp16, const struct math_encode *m, const uint8_t *src,
				    struct math_trial *t)
{
	(void)t;
	return math_encode64(is_fp16, m, src);
}

MATH_FN bool math_trial_holds(const struct math_encode *m, const struct math_trial *t)
{
	(void)m;
	(void)t;
	return true;
}

MATH_FN struct math_line math_load(const uint8_t *src)
{
	return (struct math_line){ _mm256_loadu_si256((const void *)src),
				   _mm256_loadu_si256((const void *)(src + 32)) };
}

MATH_FN void math_store(uint8_t *dst, struct math_line line)
{
	_mm256_storeu_si256((void *)dst, line.a);
	_mm256_storeu_si256((void *)(dst + 32), line.b);
}

/* dst: a whole line, past the cache */
MATH_FN void math_stream(uint8_t *dst, struct math_line line)
{
	_mm256_stream_si256((void *)dst, line.a);
	_mm256_stream_si256((void *)(dst + 32), line.b);
}

MATH_FN struct math_acc math_acc_get(const uint64_t *p)
{
	const struct math_line line = math_load((const uint8_t *)p);

	return (struct math_acc){ line.a, line.b };
}

MATH_FN void math_acc_put(uint64_t *p, struct math_acc acc)
{
	math_store((uint8_t *)p, (struct math_line){ acc.a, acc.b });
}

MATH_FN __m256i acc_mix32(__m256i acc, __m256i data, const uint8_t *secret)
{
	const __m256i key = _mm256_xor_si256(data, _mm256_loadu_si256((const void *)secret));
	const __m256i product = _mm256_mul_epu32(key, _mm256_srli_epi64(key, 32));

	return _mm256_add_epi64(acc, _mm256_add_epi64(product, _mm256_shuffle_epi32(data, 0x4e)));
}

/* Sums of many lines are not to be ordered anew: all products would be live at once, and in
 * memory. */
#define MATH_STAY(x) __asm__("" : "+v"(x))

MATH_FN struct math_acc math_acc_mix(struct math_acc acc, struct math_line line,
				     const uint8_t *secret)
{
	acc.a = acc_mix32(acc.a, line.a, secret);
	acc.b = acc_mix32(acc.b, line.b, secret + 32);
	MATH_STAY(acc.a);
	MATH_STAY(acc.b);
	return acc;
}

MATH_FN __m256i acc_scramble32(__m256i acc, const uint8_t *secret)
{
	const __m256i prime = _mm256_set1_epi64x(0x9e3779b1);
	const __m256i x = _mm256_xor_si256(_mm256_xor_si256(acc, _mm256_srli_epi64(acc, 47)),
					   _mm256_loadu_si256((const void *)secret));
	const __m256i high = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), prime);

	return _mm256_add_epi64(_mm256_mul_epu32(x, prime), _mm256_slli_epi64(high, 32));
}

MATH_FN struct math_acc math_acc_scramble(struct math_acc acc, const uint8_t *secret)
{
	return (struct math_acc){ acc_scramble32(acc.a, secret),
				  acc_scramble32(acc.b, secret + 32) };
}

/* Whether math_decode32() takes this scale. It takes those that fp8_exponent() gives for the dtype,
 * but for the largest one, at which foreign codes can overflow. fp8_decode() takes all others. */
MATH_FN bool math_decode_takes(bool is_fp16, int k)
{
	return is_fp16 ? k >= FP8_FP16_K_MIN && k < FP8_FP16_K_MAX :
			 k >= FP8_BF16_K_MIN && k < FP8_BF16_K_MAX;
}

MATH_FN struct math_decode math_decode_at(bool is_fp16, int k)
{
	/* Smallest normal E4M3 magnitude (8 = 2^-6) whose value is a normal FP16 (>= 2^-14) as
	 * well. */
	const int least = is_fp16 && k < -8 ? (-k - 7) * 8 : 8;

	return (struct math_decode){
		.least = _mm256_set1_epi8((char)(least > 127 ? 127 : least)),
		.offset = _mm256_set1_epi16((short)(is_fp16 ? (8 + k) * 1024 : (120 + k) * 128)),
		.scale = math_power(k + 8),
	};
}

/* Sixteen codes, each in the high byte of its lane -> source values. An E4M3 code without its sign,
 * shifted left by 7, is the FP16 of its value times 2^-8, subnormals included; the rest is a
 * product, exact. */
MATH_FN __m256i general_decode16(bool is_fp16, const struct math_decode *m, __m256i codes)
{
	const __m256i nan = _mm256_cmpeq_epi16(_mm256_and_si256(codes, _mm256_set1_epi16(0x7f00)),
					       _mm256_set1_epi16(0x7f00));
	const __m256i half =
		_mm256_and_si256(_mm256_srai_epi16(codes, 1), _mm256_set1_epi16((short)0xbf80));
	const __m256 low = _mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(half)), m->scale);
	const __m256 high =
		_mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(half, 1)), m->scale);
	__m256i values, quiet;

	if (is_fp16) {
		values = _mm256_set_m128i(_mm256_cvtps_ph(high, _MM_FROUND_TO_NEAREST_INT),
					  _mm256_cvtps_ph(low, _MM_FROUND_TO_NEAREST_INT));
		quiet = _mm256_set1_epi16(0x7e00);
	} else {
		values = _mm256_packus_epi32(_mm256_srli_epi32(_mm256_castps_si256(low), 16),
					     _mm256_srli_epi32(_mm256_castps_si256(high), 16));
		values = _mm256_permute4x64_epi64(values, 0xd8);
		quiet = _mm256_set1_epi16(0x7fc0);
	}
	quiet = _mm256_or_si256(quiet, _mm256_and_si256(codes, _mm256_set1_epi16((short)0x8000)));
	return _mm256_blendv_epi8(values, quiet, nan);
}

MATH_FN __m256i common_decode16(bool is_fp16, const struct math_decode *m, __m256i codes)
{
	const __m256i field = is_fp16 ? _mm256_and_si256(_mm256_srai_epi16(codes, 1),
							 _mm256_set1_epi16((short)0xbf80)) :
					_mm256_and_si256(_mm256_srai_epi16(codes, 4),
							 _mm256_set1_epi16((short)0x87f0));

	return _mm256_add_epi16(field, m->offset);
}

/* 32 codes at src -> 32 source values at dst. lines: dst is 32-byte aligned, and the values go past
 * the cache. */
MATH_FN void math_decode32(bool is_fp16, const struct math_decode *m, const uint8_t *src,
			   uint8_t *dst, bool lines)
{
	const __m256i zero = _mm256_setzero_si256();
	/* Unpacking works in halves: order the quarters so that it comes out straight. */
	const __m256i codes = _mm256_permute4x64_epi64(_mm256_loadu_si256((const void *)src), 0xd8);
	const __m256i a = _mm256_unpacklo_epi8(zero, codes), b = _mm256_unpackhi_epi8(zero, codes);
	const __m256i magnitude = _mm256_and_si256(codes, _mm256_set1_epi8(0x7f));
	const __m256i odd =
		_mm256_or_si256(_mm256_cmpgt_epi8(m->least, magnitude),
				_mm256_cmpeq_epi8(magnitude, _mm256_set1_epi8(FP8_NAN)));
	__m256i x, y;

	if (__builtin_expect(_mm256_testz_si256(odd, odd), 1)) {
		x = common_decode16(is_fp16, m, a);
		y = common_decode16(is_fp16, m, b);
	} else {
		x = general_decode16(is_fp16, m, a);
		y = general_decode16(is_fp16, m, b);
	}
	if (lines) {
		_mm256_stream_si256((void *)dst, x);
		_mm256_stream_si256((void *)(dst + 32), y);
	} else {
		_mm256_storeu_si256((void *)dst, x);
		_mm256_storeu_si256((void *)(dst + 32), y);
	}
}
