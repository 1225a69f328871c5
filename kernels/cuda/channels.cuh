/* SPDX-License-Identifier: Apache-2.0 */
/*
 * channels.cuh - int8.h's arithmetic on a chunk, whose eight values are of eight channels. Only for
 * codec.cu.
 *
 * A code is an integer, so floats of 32 bits do what fp8 does by shifts. A value is widened
 * (exact), multiplied by a power of two (exact, or far below half a step), cut to +-127, and
 * added to 1.5
 *
 * 2^23, whose last place is 1: the sum's low byte is the code, rounded to nearest even. Decoding is
 * that backwards. An FP16 is widened by a shift alone, to a float that is 2^112 too small.
 *
 * These are sums, products and comparisons of IEEE 754, the same on the host. An FP16 that is
 * subnormal is so as a float until its first product: the compilers are told to keep subnormals.
 */
#pragma once

#include "packed.cuh"
#include "team.cuh"
#include "kernels/int8.h"

enum { CHANNELS = CUDA_CHUNK_BYTES / 2, E8M0_ONE = 127 };

/* What a thread knows of its eight channels. */
struct channels {
	uint64_t scales; /* a byte each */
	float factor[CHANNELS];
	float least[CHANNELS]; /* k4 */
	/* 2^112 where an FP16 was widened by a shift, else 1 */
	float widened;
	uint32_t up; /* bits from a float's exponent to the source's */
};

MEM_FN float float_of(uint32_t bits)
{
	union {
		uint32_t bits;
		float value;
	} x;

	x.bits = bits;
	return x.value;
}

MEM_FN uint32_t bits_of(float value)
{
	union {
		uint32_t bits;
		float value;
	} x;

	x.value = value;
	return x.bits;
}

/* The value in the upper half of `bits`, if it is finite. */
MEM_FN float channel_value(const struct channels *c, uint32_t bits)
{
	const uint32_t sign = bits & 0x80000000, magnitude = bits & 0x7fff0000;

	return float_of(sign | magnitude >> c->up) * c->widened;
}

/* What that takes. */
MEM_FN void channels_widen(int is_fp16, struct channels *ret)
{
	ret->widened = float_of(kept((uint32_t)(is_fp16 ? E8M0_ONE + 112 : E8M0_ONE) << 23));
	ret->up = kept(is_fp16 ? 3 : 0);
}

/* The largest magnitude of each channel, two in a word as values are. */
MEM_FN void channels_largest(const uint4 *v, uint32_t *ret)
{
	ret[0] = ret[1] = ret[2] = ret[3] = 0;
#pragma unroll
	for (uint32_t i = 0; i < CUDA_CHUNKS; i++) {
		ret[0] = __vmaxs2(ret[0], v[i].x & ~(uint32_t)SIGNS);
		ret[1] = __vmaxs2(ret[1], v[i].y & ~(uint32_t)SIGNS);
		ret[2] = __vmaxs2(ret[2], v[i].z & ~(uint32_t)SIGNS);
		ret[3] = __vmaxs2(ret[3], v[i].w & ~(uint32_t)SIGNS);
	}
}

/* Makes each the largest of the lanes that are `from`, 2 * from, ... below `end` apart. All lanes
 * of the warp call it. */
MEM_FN void lanes_agree(uint32_t *halves, uint32_t from, uint32_t end)
{
#pragma unroll 1
	for (uint32_t distance = from; distance < end; distance *= 2) {
#pragma unroll
		for (uint32_t j = 0; j < 4; j++)
			halves[j] = __vmaxs2(halves[j], __shfl_xor_sync((unsigned)ALL_LANES,
									halves[j], (int)distance));
	}
}

/* By int8.h; false: it cannot hold one. */
MEM_FN bool plain_scales(int is_fp16, const uint32_t *amax, uint64_t *ret)
{
	uint64_t low = mem_u64(amax[0], amax[1]), high = mem_u64(amax[2], amax[3]), scales = 0;
	bool fits = true;

#pragma unroll 1
	for (uint32_t i = 0; i < CHANNELS; i++) {
		const int k = int8_exponent(is_fp16, (uint32_t)low & 0xffff);

		fits &= k != FP8_K_NONE;
		scales = scales >> 8 | (uint64_t)(uint8_t)(k + FP8_BIAS) << 56;
		low = low >> 16 | high << 48;
		high >>= 16;
	}
	*ret = scales;
	return fits;
}

/* The scales of these amax codes, and what encodes by them; false: int8 cannot hold one. The common
 * case of int8_exponent(): amax is a normal value. Then the exponent follows from its field, and
 * from an FP16's mantissa, which may be beyond 127.5 / 64. */
MEM_FN bool channels_encode_at(int is_fp16, const uint32_t *amax, struct channels *ret)
{
	const uint32_t least = kept(is_fp16 ? 1024 : INT8_BF16_LEAST),
		       range = kept((is_fp16 ? INT8_FP16_LIMIT : INT8_BF16_LIMIT) - least),
		       round = kept(is_fp16 ? 7 : 0), shift = kept(is_fp16 ? 10 : 7),
		       bias = kept(is_fp16 ? 106 : 0u - 6);
	uint64_t scales = 0;
	bool common = true, fits = true;

#pragma unroll
	for (uint32_t i = 0; i < CHANNELS; i++) {
		const uint32_t code = i % 2 ? amax[i / 2] >> 16 : amax[i / 2] & 0xffff;

		common &= code - least < range;
		scales |= (uint64_t)((((code + round) >> shift) + bias) & 0xff) << 8 * i;
	}
	if (!common)
		fits = plain_scales(is_fp16, amax, &scales);
#pragma unroll
	for (uint32_t i = 0; i < CHANNELS; i++)
		ret->factor[i] =
			float_of((2 * E8M0_ONE - ((uint32_t)(scales >> 8 * i) & 0xff)) << 23);
	ret->scales = scales;
	channels_widen(is_fp16, ret);
	return fits;
}

/* A value in the upper half of `bits` -> 1.5 * 2^23 + its code. */
MEM_FN uint32_t channel_encode(const struct channels *c, uint32_t bits, float factor)
{
	float x = channel_value(c, bits) * factor;

	x = x > 127.0f ? 127.0f : x;
	x = x < -127.0f ? -127.0f : x;
	return bits_of(x + 12582912.0f);
}

MEM_FN uint32_t channels_encode4(const struct channels *c, uint32_t a, uint32_t b,
				 const float *factor)
{
	const uint32_t v0 = channel_encode(c, a << 16, factor[0]),
		       v1 = channel_encode(c, a, factor[1]),
		       v2 = channel_encode(c, b << 16, factor[2]),
		       v3 = channel_encode(c, b, factor[3]);

	return __byte_perm(__byte_perm(v0, v1, 0x0040), __byte_perm(v2, v3, 0x0040), 0x5410);
}

MEM_FN uint2 channels_encode(const struct channels *c, uint4 v)
{
	uint2 codes;

	codes.x = channels_encode4(c, v.x, v.y, c->factor);
	codes.y = channels_encode4(c, v.z, v.w, c->factor + 4);
	return codes;
}

/* What decodes by the first n of these scales; false: at one of them a result may be subnormal or
 * too large for its dtype, so int8.h is to do it. */
MEM_FN bool channels_decode_at(int is_fp16, uint64_t scales, uint32_t n, struct channels *ret)
{
	const uint32_t least = kept((uint32_t)(is_fp16 ? -14 : INT8_BF16_K_MIN) + E8M0_ONE),
		       most = kept((uint32_t)(is_fp16 ? INT8_FP16_K_MAX : INT8_BF16_K_MAX) +
				   E8M0_ONE),
		       lower = kept(is_fp16 ? 112 : 0);
	bool common = true;

#pragma unroll
	for (uint32_t i = 0; i < CHANNELS; i++) {
		const uint32_t scale = (uint32_t)(scales >> 8 * i) & 0xff;

		common &= i >= n || scale - least <= most - least;
		ret->factor[i] = float_of((scale - lower) << 23);
	}
	ret->scales = scales;
	ret->up = kept(is_fp16 ? 3 : 0);
	return common;
}

/* Byte i of the codes, their signs flipped -> the value, in the upper half. */
MEM_FN uint32_t channel_decode(const struct channels *c, uint32_t flipped, uint32_t i, float factor)
{
	/* 2^23 + 128 + code */
	const float x = float_of(__byte_perm(flipped, 0x4b000000, 0x7440 + i)) - 8388736.0f;
	const uint32_t bits = bits_of(x * factor);

	return (bits & 0x80000000) | (bits << c->up & 0x7fffffff);
}

MEM_FN uint32_t channels_decode2(const struct channels *c, uint32_t flipped, uint32_t i,
				 const float *factor)
{
	return __byte_perm(channel_decode(c, flipped, i, factor[0]),
			   channel_decode(c, flipped, i + 1, factor[1]), 0x7632);
}

MEM_FN uint4 channels_decode(const struct channels *c, uint2 codes)
{
	const uint32_t low = codes.x ^ 0x80808080, high = codes.y ^ 0x80808080;
	uint4 v;

	v.x = channels_decode2(c, low, 0, c->factor);
	v.y = channels_decode2(c, low, 2, c->factor + 2);
	v.z = channels_decode2(c, high, 0, c->factor + 4);
	v.w = channels_decode2(c, high, 2, c->factor + 6);
	return v;
}

/* Any eight codes at any scales, by int8.h. */
MEM_FN uint4 plain_channels(int is_fp16, uint64_t scales, uint64_t codes)
{
	uint64_t low = 0, high = 0;

#pragma unroll 1
	for (int i = 0; i < CHANNELS; i++) {
		const uint64_t value = int8_decode(is_fp16, (int)(scales & 0xff) - FP8_BIAS,
						   (int8_t)(codes & 0xff));

		low = low >> 16 | high << 48;
		high = high >> 16 | value << 48;
		codes >>= 8;
		scales >>= 8;
	}
	return mem_uint4(low, high);
}
