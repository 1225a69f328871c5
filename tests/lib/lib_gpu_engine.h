/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_gpu_engine.h - an engine whose pages are in a GPU's memory, through libkvtier. Pages are
 * filled and compared in a copy on the host (lib.h), which goes to the GPU and comes from there.
 */
#pragma once

#include "lib.h"
#include "lib_gpu.h"

/* How the memory was made. Of the VMM kinds: with a type of handle, or none; in one allocation, in
 * two, or in as many as can be. */
enum gpu_memory_kind {
	GPU_ALLOC,
	GPU_POOL,
	GPU_VMM_FD,
	GPU_VMM_FABRIC,
	GPU_VMM_NONE,
	GPU_VMM_TWO,
	GPU_VMM_FABRIC_TWO,
	GPU_VMM_MANY,
};

enum { GPU_MEMORY_ALLOCS = 512 };

struct gpu_memory {
	enum gpu_memory_kind kind;
	CUdeviceptr base;
	size_t bytes;  /* of its address range */
	size_t allocs; /* VMM: allocations */
	CUmemGenericAllocationHandle handles[GPU_MEMORY_ALLOCS];
};

void gpu_memory_make(const struct gpu *g, enum gpu_memory_kind kind, size_t bytes,
		     struct gpu_memory *ret);
void gpu_memory_free(const struct gpu *g, struct gpu_memory *memory);

struct gpu_engine {
	struct engine e; /* its memory is the copy on the host, pinned */
	const struct gpu *gpu;
	struct gpu_memory memory;
};

/* r is what a call said that lets a stream wait for an op whose pages the library itself brings:
 * that it cannot, unless the op has ended by then. The op's result. */
struct kvtier_result gpu_not_waited_for(struct gpu_engine *ge, uint64_t op, int r);

/* Tries again while its connection is cut. */
void gpu_engine_open(struct gpu_engine *ge, const struct gpu *gpu, const char *socket,
		     const struct kvtier_geometry *geometry, uint32_t pages,
		     enum gpu_memory_kind kind);
/* In two steps: all but the space; the space, which may fail (0 or -errno) and be tried again. */
void gpu_engine_connect(struct gpu_engine *ge, const struct gpu *gpu, const char *socket,
			const struct kvtier_geometry *geometry, uint32_t pages,
			enum gpu_memory_kind kind);
int gpu_engine_space(struct gpu_engine *ge);
void gpu_engine_close(struct gpu_engine *ge);
/* An engine of 2 n pages of large_fp8 comes, whose pages are reached as `words` say, stores and
 * loads a chain, and goes. */
void gpu_engine_goes(const struct gpu *gpu, const char *socket, enum gpu_memory_kind kind,
		     uint32_t n, const char *words);
/* How its pages are reached. */
void gpu_engine_reached(const struct gpu_engine *ge, const char *words);
void gpu_pages_push(const struct gpu_engine *ge, uint32_t first, uint32_t n); /* host -> GPU */
void gpu_pages_poison(struct gpu_engine *ge, uint32_t first, uint32_t n);     /* on both sides */
void gpu_pages_pull(const struct gpu_engine *ge, uint32_t first, uint32_t n);
/* As chain_store() and chain_load() in lib.h. */
int gpu_chain_store(struct gpu_engine *ge, const struct kvtier_key *keys, uint32_t first,
		    uint32_t n);
uint32_t gpu_chain_load(struct gpu_engine *ge, const struct kvtier_key *keys, uint32_t first,
			uint32_t n);
