/* SPDX-License-Identifier: Apache-2.0 */
/*
 * four_bits.cuh - the rules k4 and v4 of q4.h on chunks. Only for codec.cu.
 *
 * A chunk of k4 has eight groups, one for each of its channels, and all chunks of a thread have the
 * same. A chunk of v4 is of one group, and a thread's eight chunks are of eight. So either way a
 * thread has eight groups, which it shares with other lanes. Each of them finds the steps of some,
 * by q4.h. With these all values go one way: no value or code is rare, but for a foreign least
 * value that is no number.
 *
 * The sums and products are those of q4.h. Values leave through the hardware's conversion to BF16
 * and FP16 (sm_80 and later), which rounds as q4_code().
 */
#pragma once

#include "channels.cuh"
#include "chunks.cuh"
#include "kernels/q4.h"

/* The lanes of a warp that have the same groups: `apart`, 2 * apart, ... apart. */
struct sharing {
	uint32_t lanes, apart; /* how many: a power of two */
	uint32_t mine;         /* which of them this one is */
};

/* width: of the strip, in chunks. */
MEM_FN struct sharing sharing_of(bool k4, uint32_t width)
{
	const uint32_t chunks = IMAGE_V4_VALUES / CHANNELS, lane = threadIdx.x % WARP;
	struct sharing s;

	s.lanes = k4 ? WARP / width : width < chunks ? width : chunks;
	s.apart = k4 ? width : 1;
	s.mine = k4 ? lane / width : lane % s.lanes;
	return s;
}

/* Codes, two in a word, so that they order as signed numbers: q4_rank(). It is its own inverse. */
MEM_FN uint32_t ranks(uint32_t halves)
{
	return halves ^ (halves >> 15 & HALVES) * 0x7fff;
}

/* kept(): an array that is indexed would lie in memory. */
MEM_FN uint32_t half_of(const uint32_t *words, uint32_t i)
{
	const uint32_t a = kept(words[0]), b = kept(words[1]), c = kept(words[2]),
		       d = kept(words[3]), x = i < 4 ? (i < 2 ? a : b) : (i < 6 ? c : d);

	return x >> i % 2 * 16 & 0xffff;
}

/* The least value of each channel, as it is kept, and the largest one, as codes. */
MEM_FN void k4_ends(int is_fp16, const struct chunks *s, const uint4 *v,
		    const struct sharing *sharing, uint32_t *lo, uint32_t *hi)
{
#pragma unroll
	for (uint32_t j = 0; j < CHANNELS / 2; j++) {
		lo[j] = hi[j] = 0x80008000;
#pragma unroll
		for (uint32_t i = 0; i < CUDA_CHUNKS; i++) {
			const uint32_t rank = ranks(j == 0 ? v[i].x :
						    j == 1 ? v[i].y :
						    j == 2 ? v[i].z :
							     v[i].w);

			if (chunk_is(s, i)) { /* zeros are no end of its values */
				lo[j] = __vmaxs2(lo[j], ~rank);
				hi[j] = __vmaxs2(hi[j], rank);
			}
		}
	}
	lanes_agree(lo, sharing->apart, sharing->apart * sharing->lanes);
	lanes_agree(hi, sharing->apart, sharing->apart * sharing->lanes);
#pragma unroll
	for (uint32_t j = 0; j < CHANNELS / 2; j++) {
		const uint32_t least = ranks(~lo[j]);

		lo[j] = k4_least(is_fp16, least & 0xffff) | k4_least(is_fp16, least >> 16) << 16;
		hi[j] = ranks(hi[j]);
	}
}

/* amax of each chunk's group. */
MEM_FN void v4_ends(const uint4 *v, const struct sharing *sharing, uint32_t *ret)
{
#pragma unroll
	for (uint32_t i = 0; i < CUDA_CHUNKS; i++) {
		const uint32_t a = __vmaxs2(v[i].x & ~(uint32_t)SIGNS, v[i].y & ~(uint32_t)SIGNS),
			       b = __vmaxs2(v[i].z & ~(uint32_t)SIGNS, v[i].w & ~(uint32_t)SIGNS),
			       both = __vmaxs2(a, b), amax = __vmaxs2(both, both >> 16) & 0xffff;

		ret[i / 2] = i % 2 ? ret[i / 2] | amax << 16 : amax;
	}
	lanes_agree(ret, sharing->apart, sharing->apart * sharing->lanes);
}

/* The steps of the groups with these ends, a byte each. False: four bits cannot hold a group that
 * this lane has looked at. All lanes of the warp call it. */
MEM_FN bool q4_steps(bool k4, int is_fp16, const struct sharing *sharing, const uint32_t *lo,
		     const uint32_t *hi, uint64_t *ret)
{
	uint32_t low, high;
	uint64_t steps = 0;
	bool fits = true;

#pragma unroll 1
	for (uint32_t i = sharing->mine; i < CHANNELS; i += sharing->lanes) {
		const int j = k4 ? k4_step(is_fp16, half_of(lo, i), half_of(hi, i)) :
				   v4_step(is_fp16, half_of(hi, i));

		fits &= j != Q4_STEP_NONE;
		steps |= (uint64_t)(uint8_t)j << 8 * i;
	}
	low = (uint32_t)steps;
	high = (uint32_t)(steps >> 32);
#pragma unroll 1
	for (uint32_t i = 1, distance = sharing->apart; i < sharing->lanes; i *= 2, distance *= 2) {
		low |= __shfl_xor_sync((unsigned)ALL_LANES, low, (int)distance);
		high |= __shfl_xor_sync((unsigned)ALL_LANES, high, (int)distance);
	}
	*ret = mem_u64(low, high);
	return fits;
}

MEM_FN bool k4_finite(int is_fp16, const uint32_t *lo)
{
	const uint32_t inf = fp8_source(is_fp16).inf;
	bool finite = true;

#pragma unroll
	for (uint32_t j = 0; j < CHANNELS / 2; j++)
		finite &= (lo[j] & 0x7fff) < inf && (lo[j] >> 16 & 0x7fff) < inf;
	return finite;
}

/* What encodes or decodes k4 by these scales, whose least values are finite. */
MEM_FN void k4_at(bool encode, const uint32_t *lo, uint64_t steps, struct channels *ret)
{
#pragma unroll
	for (uint32_t i = 0; i < CHANNELS; i++) {
		const int j = (int)(steps >> 8 * i & 0xff) - K4_ONE;

		ret->least[i] = channel_value(ret, i % 2 ? lo[i / 2] : lo[i / 2] << 16);
		ret->factor[i] = k4_power(encode ? -j : j);
	}
}

/* The same of v4. */
MEM_FN void v4_at(bool encode, uint32_t step, struct channels *ret)
{
	const int j = (int)step - V4_ONE;
	const float factor = encode ? v4_power(-j) : step == V4_STEP_ZEROS ? 0 : v4_power(j);

#pragma unroll
	for (uint32_t i = 0; i < CHANNELS; i++) {
		ret->least[i] = 0;
		ret->factor[i] = factor;
	}
}

/* The value in the upper half of `bits` -> 2^23 + its code. None is below its least value. */
MEM_FN uint32_t q4_encode1(bool k4, const struct channels *c, uint32_t bits, uint32_t i)
{
	const float x = channel_value(c, bits);

	if (k4)
		return bits_of(Q4_ADD(fminf(Q4_MUL(Q4_ADD(x, -c->least[i]), c->factor[i]), 15.0f),
				      8388608.0f));
	return bits_of(__fadd_rz(fmaxf(fminf(Q4_ADD(Q4_MUL(x, c->factor[i]), 8.0f), 15.0f), 0.0f),
				 8388608.0f));
}

MEM_FN uint32_t q4_encode8(bool k4, const struct channels *c, uint4 v)
{
	const uint32_t words[CHANNELS / 2] = { v.x, v.y, v.z, v.w };
	uint32_t codes = 0;

#pragma unroll
	for (uint32_t i = CHANNELS; i--;) {
		const uint32_t word = words[i / 2];

		codes = codes * 16 + q4_encode1(k4, c, i % 2 ? word : word << 16, i);
	}
	return codes - 0xfb000000; /* what eight times 2^23 left */
}

/* Two floats as values of the source's dtype, low half first. */
MEM_FN uint32_t narrow2(int is_fp16, float low, float high)
{
#ifdef __CUDACC__
	uint32_t x;

	if (is_fp16)
		asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
	else
		asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
	return x;
#else
	return q4_code(is_fp16, low) | (uint32_t)q4_code(is_fp16, high) << 16;
#endif
}

MEM_FN float q4_decode1(bool k4, const struct channels *c, uint32_t codes, uint32_t i)
{
	/* 2^19 + code */
	const float x =
		float_of(0x49000000 | ((i ? codes >> 4 * (i - 1) : codes << 4) & (Q4_MOST << 4)));

	return Q4_ADD(c->least[i], Q4_MUL(x - (k4 ? 524288.0f : 524295.5f), c->factor[i]));
}

MEM_FN uint4 q4_decode8(bool k4, int is_fp16, const struct channels *c, uint32_t codes)
{
	uint32_t words[CHANNELS / 2];
	uint4 v;

#pragma unroll
	for (uint32_t i = 0; i < CHANNELS; i += 2)
		words[i / 2] = narrow2(is_fp16, q4_decode1(k4, c, codes, i),
				       q4_decode1(k4, c, codes, i + 1));
	v.x = words[0];
	v.y = words[1];
	v.z = words[2];
	v.w = words[3];
	return v;
}

/* Any eight codes at any scales, by q4.h. */
MEM_FN uint4 q4_plain8(bool k4, int is_fp16, const uint32_t *lo, uint64_t steps, uint32_t codes)
{
	uint64_t low = 0, high = 0;

#pragma unroll 1
	for (uint32_t i = 0; i < CHANNELS; i++) {
		const int j = (int)(steps & 0xff);
		const uint32_t code = codes & Q4_MOST;
		const uint64_t value = k4 ? k4_decode(is_fp16, half_of(lo, i), j, code) :
					    v4_decode(is_fp16, j, code);

		low = low >> 16 | high << 48;
		high = high >> 16 | value << 48;
		codes >>= 4;
		steps >>= 8;
	}
	return mem_uint4(low, high);
}
