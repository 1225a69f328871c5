/* SPDX-License-Identifier: Apache-2.0 */
/*
 * packed.cuh - fp8.h's arithmetic on two source values a register, where both are common; the rest
 * goes to fp8.h itself.
 *
 * Common: source and result are both normal. To divide by 2^k is then to subtract k from the
 * exponent field. To round the mantissa to three bits is to add half a step (less one, plus the
 * last kept bit: ties to even) and to shift; a carry runs into the exponent as it should. A zero is
 * not common. In Gaussian data one value in some thousands is not.
 *
 * No instruction of the hardware's own FP8 is used: sm_80 lacks them, and integers can be proven on
 * the host.
 *
 * Halves of a register do not disturb each other: each result is in 0 .. 65535.
 */
#pragma once

#include "mem.cuh"
#include "kernels/fp8.h"

enum { SIGNS = 0x80008000, HALVES = 0x00010001 };

struct packed_encode {
	uint32_t least;  /* smallest magnitude code of the common case */
	uint32_t shift;  /* mantissa bits that go */
	uint32_t factor; /* from there to the upper byte of the half */
	uint32_t offset; /* -factor * (k's part of the exponent field - (half a step - 1) + sign) */
};

struct packed_decode {
	uint32_t least;  /* smallest common E4M3 magnitude, each byte; 128: all are rare */
	uint32_t offset; /* to be added to the exponent field */
	uint32_t down;   /* from the upper byte of the half to the exponent field */
};

/* The compiler is to keep x in a register, not to make it again for each use. */
MEM_FN uint32_t kept(uint32_t x)
{
	__asm__("" : "+r"(x));
	return x;
}

/* k is fp8_exponent()'s of the values' group: no value is beyond 464 * 2^k. */
MEM_FN struct packed_encode packed_encode_at(int is_fp16, int k)
{
	const int offset = is_fp16 ? (8 + k) * 1024 : (120 + k) * 128; /* difference of biases */
	const int normal = offset + (is_fp16 ? 1024 : 128);
	struct packed_encode p;

	/* Both halves by a product: 32-bit sums carry the borrow of a negative half. */
	p.least = kept((uint32_t)(is_fp16 && normal < 1024 ? 1024 : normal) * HALVES);
	p.shift = kept(is_fp16 ? 7 : 4);
	p.factor = kept(is_fp16 ? 2 : 16);
	p.offset = kept(0 - (uint32_t)(offset + 0x8000 - (is_fp16 ? 63 : 7)) * HALVES * p.factor);
	return p;
}

/* Sign bits set: both values are common. */
MEM_FN uint32_t packed_common(const struct packed_encode *p, uint32_t values)
{
	return (values | SIGNS) - p->least;
}

/* Two codes, with their signs, in bytes 1 and 3. The product is below 2^15: it leaves the sign's
 * place free. */
MEM_FN uint32_t packed_encode2(const struct packed_encode *p, uint32_t values)
{
	const uint32_t odd = (values >> p->shift) & HALVES;

	return (((values | SIGNS) + odd) * p->factor + p->offset) | (values & SIGNS);
}

/* Eight values -> eight codes; false: not all are common. */
MEM_FN int packed_encode8(const struct packed_encode *p, uint4 v, uint2 *ret)
{
	const uint32_t common = packed_common(p, v.x) & packed_common(p, v.y) &
				packed_common(p, v.z) & packed_common(p, v.w);

	ret->x = __byte_perm(packed_encode2(p, v.x), packed_encode2(p, v.y), 0x7531);
	ret->y = __byte_perm(packed_encode2(p, v.z), packed_encode2(p, v.w), 0x7531);
	return (common & SIGNS) == (uint32_t)SIGNS;
}

/* Any eight values, by fp8.h. */
MEM_FN uint64_t plain_encode8(int is_fp16, int k, uint4 v)
{
	uint64_t low = mem_u64(v.x, v.y), high = mem_u64(v.z, v.w), codes = 0;

#pragma unroll 1
	for (int i = 0; i < 8; i++) {
		codes = codes >> 8 | (uint64_t)fp8_encode(is_fp16, k, (uint32_t)low & 0xffff) << 56;
		low = low >> 16 | high << 48;
		high >>= 16;
	}
	return codes;
}

/* The scales that fp8_exponent() gives, but for the largest, where foreign codes can overflow. */
MEM_FN int packed_decode_takes(int is_fp16, int k)
{
	return is_fp16 ? k >= FP8_FP16_K_MIN && k < FP8_FP16_K_MAX :
			 k >= FP8_BF16_K_MIN && k < FP8_BF16_K_MAX;
}

MEM_FN struct packed_decode packed_decode_at(int is_fp16, int k)
{
	/* Smallest normal E4M3 magnitude (8 = 2^-6) whose value is a normal FP16 (>= 2^-14). */
	const int least = is_fp16 && k < -8 ? (-k - 7) * 8 : 8;
	struct packed_decode p;

	p.least = kept((uint32_t)(!packed_decode_takes(is_fp16, k) || least > 127 ? 128 : least) *
		       0x01010101u);
	p.offset = kept((uint32_t)(is_fp16 ? (8 + k) * 1024 : (120 + k) * 128) * HALVES);
	p.down = kept(is_fp16 ? 1 : 4);
	return p;
}

/* Two codes, in bytes 1 and 3 -> their values. */
MEM_FN uint32_t packed_decode2(const struct packed_decode *p, uint32_t codes)
{
	return (((codes & ~(uint32_t)SIGNS) >> p->down) + p->offset) | (codes & SIGNS);
}

/* Sign bits set: all four are normal, and not NaN. */
MEM_FN uint32_t packed_normal(const struct packed_decode *p, uint32_t codes)
{
	const uint32_t magnitudes = codes & 0x7f7f7f7fu;

	return ((magnitudes | 0x80808080u) - p->least) & ~(magnitudes + 0x01010101u);
}

/* Eight codes -> eight values; false: not all are common. */
MEM_FN int packed_decode8(const struct packed_decode *p, uint2 codes, uint4 *ret)
{
	const uint32_t normal = packed_normal(p, codes.x) & packed_normal(p, codes.y);

	ret->x = packed_decode2(p, __byte_perm(codes.x, 0, 0x1404));
	ret->y = packed_decode2(p, __byte_perm(codes.x, 0, 0x3424));
	ret->z = packed_decode2(p, __byte_perm(codes.y, 0, 0x1404));
	ret->w = packed_decode2(p, __byte_perm(codes.y, 0, 0x3424));
	return (normal & 0x80808080u) == 0x80808080u;
}

/* Any eight codes, by fp8.h. */
MEM_FN uint4 plain_decode8(int is_fp16, int k, uint64_t codes)
{
	uint64_t low = 0, high = 0;

#pragma unroll 1
	for (int i = 0; i < 8; i++) {
		low = low >> 16 | high << 48;
		high = high >> 16 | (uint64_t)fp8_decode(is_fp16, k, (uint32_t)codes & 0xff) << 48;
		codes >>= 8;
	}
	return mem_uint4(low, high);
}
