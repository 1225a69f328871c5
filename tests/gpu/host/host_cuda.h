/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_cuda.h - the parts of CUDA that a .cu file needs, for a compiler of C on the host. The
 * threads that run it are fibers of host_block.c.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define __global__
#define __grid_constant__
#define __launch_bounds__(threads, blocks)
#define __shared__ static _Thread_local /* of the block that this thread of the host runs */
#define __ffs(x)   __builtin_ffs(x)
#define __popc(x)  __builtin_popcount(x)

typedef struct {
	_Alignas(8) uint32_t x;
	uint32_t y;
} uint2;

typedef struct {
	_Alignas(16) uint32_t x;
	uint32_t y, z, w;
} uint4;

/* Of the fiber that runs. */
struct host_ids {
	struct {
		unsigned x, y, z;
	} thread, block, block_dim, grid_dim;
};
extern _Thread_local struct host_ids host_ids __attribute__((tls_model("initial-exec")));
#define threadIdx (host_ids.thread)
#define blockIdx  (host_ids.block)
#define blockDim  (host_ids.block_dim)
#define gridDim   (host_ids.grid_dim)

/* They return only if the access, or the meeting of threads, was right. `site` tells shuffles
 * apart. */
void *host_access(uint64_t address, size_t bytes, int write);
uint32_t host_shuffle(uint32_t mask, uint32_t value, uint32_t lane, uint32_t site);
void host_barrier(uint32_t id, uint32_t threads);
uint32_t host_shared_load(const uint32_t *word);
void host_shared_store(uint32_t *word, uint32_t value);

#define __shfl_sync(mask, value, lane) host_shuffle(mask, value, (uint32_t)(lane), __LINE__)
#define __shfl_xor_sync(mask, value, distance) \
	host_shuffle(mask, value, threadIdx.x % 32 ^ (uint32_t)(distance), __LINE__)

/* Nibble i of `select`: the byte (0 .. 3 of a, 4 .. 7 of b) that is byte i of the result. */
static inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t select)
{
	const uint64_t both = (uint64_t)b << 32 | a;
	uint32_t x = 0;

	for (uint32_t i = 0; i < 4; i++)
		x |= (uint32_t)(both >> 8 * (select >> 4 * i & 7) & 0xff) << 8 * i;
	return x;
}

/* The larger of two signed halves, in each half. */
static inline uint32_t __vmaxs2(uint32_t a, uint32_t b)
{
	const uint32_t high = (int16_t)(a >> 16) > (int16_t)(b >> 16) ? a : b,
		       low = (int16_t)(a & 0xffff) > (int16_t)(b & 0xffff) ? a : b;

	return (high & 0xffff0000) | (low & 0xffff);
}

/* x + y, rounded towards zero, of a sum that a double holds and that is not negative. */
static inline float __fadd_rz(float x, float y)
{
	const double sum = (double)x + (double)y;
	union {
		float value;
		uint32_t bits;
	} near;

	near.value = (float)sum;
	near.bits -= (double)near.value > sum;
	return near.value;
}

#define fminf(x, y) ((x) < (y) ? (x) : (y))
#define fmaxf(x, y) ((x) > (y) ? (x) : (y))
