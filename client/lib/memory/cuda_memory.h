/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_memory.h - the regions of one space in a GPU's memory, as the daemon is shown them. Control
 * held.
 *
 * Pages reach the daemon by the first rung of this ladder that works:
 *
 *	IPC     handle of a cudaMalloc() allocation; needs one PID namespace
 *	FD      descriptor of an allocation by cuMemCreate()
 *	FABRIC  handle of the same, where descriptors do not reach
 *	STAGED  the library copies between the pages and memory that it shares with the daemon
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/abi/cuda_api.h"
#include "client/abi/wire.h"
#include "client/kvtier.h"
#include "cuda.h"

/* The driver's answers about an address. */
struct cuda_facts {
	unsigned type;
	int ordinal;
	bool managed, legacy_ipc, pool;
	bool mapped;           /* by cuMemMap() */
	uint64_t start, bytes; /* of its allocation, or of its mapping */
	uint64_t handle_types;
	CUcontext context; /* NULL: by cuMemMap, which belongs to no context */
};

/* The allocations that lie side by side and hold a region. */
struct cuda_range {
	uint64_t start, bytes;
	uint32_t allocs;
};

enum cuda_rung { CUDA_RUNG_IPC, CUDA_RUNG_FD, CUDA_RUNG_FABRIC, CUDA_RUNG_STAGED, CUDA_RUNGS };

struct cuda_memory {
	struct cuda_device device;
	struct kvtier_region regions[KVTIER_MAX_REGIONS];
	struct cuda_range ranges[KVTIER_MAX_REGIONS];
	size_t n_regions;
	uint32_t possible; /* the rungs that this process has, each 1 << enum cuda_rung */
	uint32_t rungs;    /* those of them that were not tried in vain */
	bool anew;         /* all are to be tried anew, and the space has no memory for that yet */
	enum cuda_rung rung;
	/* why it is not a better rung; "" if it is the best */
	char why[200], why_possible[200];
	CUstream stream; /* staged: the copies' */
	/* Regions in several allocations: on this connection the daemon was told of all before
	 * told_region and of `told` bytes of that one; of `telling` once the message that was made
	 * last is sent. */
	size_t told_region;
	uint64_t told, telling;
	bool told_any;
};

enum { CUDA_ALLOCS_A_MESSAGE = 64 };

/* A message, the allocations behind it, and their descriptors, which the caller closes. */
struct cuda_allocs {
	struct wire_allocs message;
	struct wire_alloc allocs[CUDA_ALLOCS_A_MESSAGE];
	int fds[CUDA_ALLOCS_A_MESSAGE];
	size_t n_fds;
};
static_assert(offsetof(struct cuda_allocs, allocs) == sizeof(struct wire_allocs), "one message");

/* Asks about regions[i]: the kind of its base, the allocations that hold it, its rungs (each 1 <<
 * enum cuda_rung) and why it has no more. -EINVAL: not all of it is allocated memory of a GPU. */
int cuda_probe(const struct cuda_api *api, const struct kvtier_region *region, size_t i,
	       struct cuda_facts *ret, struct cuda_range *ret_range, uint32_t *ret_rungs,
	       char why[200]);
/* Asks the driver about each region. shares_pids: the daemon is in this PID namespace.
 * -EINVAL: they are not a GPU's memory, are of several GPUs, or are not all allocated. */
int cuda_memory_open(const struct kvtier_region *regions, size_t n, bool shares_pids,
		     struct cuda_memory **ret);
void cuda_memory_close(struct cuda_memory *memory); /* may be NULL */
/* The rung was refused for this reason. Takes the next one. False: it was the last. */
bool cuda_memory_next(struct cuda_memory *memory, const char *why);
/* Has all rungs tried anew, and sets `anew`, which the caller clears. False: none of them was tried
 * in vain. */
bool cuda_memory_again(struct cuda_memory *memory);
/* There is a new connection, over which the daemon was told of no part yet. */
void cuda_memory_begin(struct cuda_memory *memory);
/* Makes the next message about regions in several allocations, except its head: 1. 0: all was told.
 * -errno with its sentence. Call cuda_memory_told() when the message was sent. */
int cuda_memory_allocs(struct cuda_memory *memory, struct cuda_allocs *ret);
void cuda_memory_told(struct cuda_memory *memory);
/* Exports each region by the rung, which is not STAGED, into ret[n_regions]. The
 * caller closes the descriptors. 0, or -errno with its sentence. */
int cuda_memory_export(const struct cuda_memory *memory, struct wire_region *ret, int *ret_fds,
		       size_t *ret_n_fds);
/* Says how the daemon reaches the memory, and writes that for people: "CUDA IPC", "CUDA staged:
 * WHY". */
enum kvtier_reach cuda_memory_text(const struct cuda_memory *memory, char *ret, size_t n);

/* One piece of a page: rows of `run` bytes. Copies queue up on the memory's stream. */
struct cuda_copy {
	uint64_t device; /* address of the first row */
	uint8_t *host;   /* rows end to end */
	uint64_t run, rows, stride;
	bool to_device;
};
int cuda_memory_copy(const struct cuda_memory *memory, const struct cuda_copy *copy);
int cuda_memory_copied(const struct cuda_memory *memory); /* waits for them */
/* Pins host memory, so that copies run at the wire's speed. False: it is not pinned, which only
 * costs speed. */
bool cuda_memory_pin(const struct cuda_memory *memory, void *base, size_t bytes);
void cuda_memory_unpin(const struct cuda_memory *memory, void *base);
