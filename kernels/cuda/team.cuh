/* SPDX-License-Identifier: Apache-2.0 */
/*
 * team.cuh - the threads that do one tile together: a warp, or several of a block.
 *
 * Teams of a block do not wait for each other. A team of several warps meets at a named barrier of
 * its own; a block has 16. Only a team's maxima go through shared memory, in two sets, one after
 * the other. A thread that writes a set has passed the barrier before which all threads had read
 * this set.
 */
#pragma once

#include "mem.cuh"

enum { WARP = 32, TEAM_WARPS = 32, ALL_LANES = -1 };

#ifdef __CUDACC__

/* A barrier for `threads` threads of the block. A thread that has passed it sees all that the
 * others stored before. */
MEM_FN void team_barrier(uint32_t id, uint32_t threads)
{
	asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

#define SHARED_LOAD(field)         (field)
#define SHARED_STORE(field, value) ((field) = (value))

#else /* the compiler for the host brings host_barrier(), host_shared_load(), host_shared_store() */

#define team_barrier(id, threads)  host_barrier(id, threads)
#define SHARED_LOAD(field)         host_shared_load(&(field))
#define SHARED_STORE(field, value) host_shared_store(&(field), value)

#endif

struct team_shared {
	uint32_t largest[2][TEAM_WARPS];
};

struct team {
	uint32_t lanes; /* threads of a team: a power of two, a warp or more */
	uint32_t teams; /* in the block */
	uint32_t index; /* this team's */
	uint32_t lane;  /* of this thread in it */
	uint32_t set;   /* 0, 1: the set that is next */
};

MEM_FN struct team team_of(uint32_t lanes)
{
	struct team t;

	t.lanes = lanes;
	t.teams = blockDim.x / lanes;
	t.index = threadIdx.x / lanes;
	t.lane = threadIdx.x % lanes;
	t.set = 0;
	return t;
}

MEM_FN uint32_t warp_max(uint32_t x)
{
#pragma unroll
	for (int distance = WARP / 2; distance; distance /= 2) {
		const uint32_t other = __shfl_xor_sync((unsigned)ALL_LANES, x, distance);

		x = other > x ? other : x;
	}
	return x;
}

MEM_FN uint32_t warp_told(uint32_t x, uint32_t lane)
{
	return __shfl_sync((unsigned)ALL_LANES, x, (int)lane);
}

MEM_FN uint64_t warp_told8(uint64_t x, uint32_t lane)
{
	const uint32_t low = warp_told((uint32_t)x, lane),
		       high = warp_told((uint32_t)(x >> 32), lane);

	return mem_u64(low, high);
}

/* The largest x of the team, for each thread of it. All of them call it. */
MEM_FN uint32_t team_max(struct team *t, struct team_shared *shared, uint32_t x)
{
	const uint32_t warps = t->lanes / WARP, warp = threadIdx.x / WARP,
		       lane = threadIdx.x % WARP;

	x = warp_max(x);
	if (warps == 1)
		return x;
	if (lane == 0)
		SHARED_STORE(shared->largest[t->set][warp], x);
	team_barrier(t->index, t->lanes);
	x = lane < warps ? SHARED_LOAD(shared->largest[t->set][t->index * warps + lane]) : 0;
	t->set ^= 1;
	return warp_max(x);
}
