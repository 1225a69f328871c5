/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mem.cuh - every access of the kernels to global memory. `address` is a device address, a multiple
 * of the bytes accessed; the *_some() take any.
 *
 * A compiler for the host, which has no __CUDACC__, brings host_access(), which says where the
 * bytes of a device address lie and checks that they may be touched.
 */
#pragma once

#include <stdint.h>

#ifdef __CUDACC__

#define MEM_FN __device__ static __forceinline__

/* Pages and images are read once: evict-first. Tables are read often, and are not written while
 * a kernel runs: through the read-only path. */
#define MEM_LOAD(name, type)                            \
	MEM_FN type name(uint64_t address)              \
	{                                               \
		return __ldcs((const type *)(address)); \
	}
#define MEM_STORE(name, type)                          \
	MEM_FN void name(uint64_t address, type value) \
	{                                              \
		*(type *)(address) = value;            \
	}
MEM_FN uint4 mem_table16(uint64_t address)
{
	return __ldg((const uint4 *)(address));
}

#else

#define MEM_FN static inline
#define MEM_LOAD(name, type)                                                 \
	MEM_FN type name(uint64_t address)                                   \
	{                                                                    \
		return *(const type *)host_access(address, sizeof(type), 0); \
	}
#define MEM_STORE(name, type)                                           \
	MEM_FN void name(uint64_t address, type value)                  \
	{                                                               \
		*(type *)host_access(address, sizeof(type), 1) = value; \
	}
MEM_FN uint4 mem_table16(uint64_t address)
{
	return *(const uint4 *)host_access(address, 16, 0);
}

#endif

MEM_LOAD(mem_load1, uint8_t)
MEM_LOAD(mem_load2, uint16_t)
MEM_LOAD(mem_load4, uint32_t)
MEM_LOAD(mem_load8, uint2)
MEM_LOAD(mem_load16, uint4)
MEM_STORE(mem_store1, uint8_t)
MEM_STORE(mem_store2, uint16_t)
MEM_STORE(mem_store4, uint32_t)
MEM_STORE(mem_store8, uint2)
MEM_STORE(mem_store16, uint4)

MEM_FN uint64_t mem_u64(uint32_t low, uint32_t high)
{
	return (uint64_t)high << 32 | low;
}

/* The widest access, up to 4 bytes, that address and length allow. */
MEM_FN uint32_t mem_width(uint64_t address, uint32_t n)
{
	const uint32_t bits = (uint32_t)address | n;

	return bits & 1 ? 1 : bits & 2 ? 2 : 4;
}

/* n <= 8 bytes at any address, the rest 0. */
MEM_FN uint64_t mem_load_some8(uint64_t address, uint32_t n)
{
	const uint32_t width = mem_width(address, n);
	uint64_t bytes = 0;

#pragma unroll 1
	for (uint32_t i = 0; i < n; i += width) {
		const uint32_t x = width == 4 ? mem_load4(address + i) :
				   width == 2 ? mem_load2(address + i) :
						mem_load1(address + i);

		bytes |= (uint64_t)x << 8 * i;
	}
	return bytes;
}

MEM_FN void mem_store_some8(uint64_t address, uint32_t n, uint64_t bytes)
{
	const uint32_t width = mem_width(address, n);

#pragma unroll 1
	for (uint32_t i = 0; i < n; i += width, bytes >>= 8 * width) {
		if (width == 4)
			mem_store4(address + i, (uint32_t)bytes);
		else if (width == 2)
			mem_store2(address + i, (uint16_t)bytes);
		else
			mem_store1(address + i, (uint8_t)bytes);
	}
}

MEM_FN uint4 mem_uint4(uint64_t low, uint64_t high)
{
	uint4 v;

	v.x = (uint32_t)low;
	v.y = (uint32_t)(low >> 32);
	v.z = (uint32_t)high;
	v.w = (uint32_t)(high >> 32);
	return v;
}

/* n <= 16. */
MEM_FN uint4 mem_load_some16(uint64_t address, uint32_t n)
{
	const uint64_t low = mem_load_some8(address, n < 8 ? n : 8),
		       high = n > 8 ? mem_load_some8(address + 8, n - 8) : 0;

	return mem_uint4(low, high);
}

MEM_FN void mem_store_some16(uint64_t address, uint32_t n, uint4 v)
{
	mem_store_some8(address, n < 8 ? n : 8, mem_u64(v.x, v.y));
	if (n > 8)
		mem_store_some8(address + 8, n - 8, mem_u64(v.z, v.w));
}
