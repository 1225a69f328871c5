/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_memory.h - the regions of one space in a GPU's memory. The space's lock.
 *
 * Pages reach the daemon by the first rung of a ladder that works:
 *
 *	ENGINE  the library's kernels encode, into memory that the daemon lends (where asked for)
 *	IPC     handle of a cudaMalloc() allocation; needs one PID namespace
 *	FD      descriptor of an allocation by cuMemCreate()
 *	FABRIC  handle of the same, where descriptors do not reach
 *	STAGED  the library copies between the pages and memory that it shares with the daemon
 */
#ifndef KVTIER_LIB_CUDA_MEMORY_H
#define KVTIER_LIB_CUDA_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/kvtier.h"
#include "client/wire.h"
#include "cuda.h"
#include "cuda_probe.h"

struct cuda_memory {
	struct cuda_device device;
	struct kvtier_region regions[KVTIER_MAX_REGIONS];
	struct cuda_range ranges[KVTIER_MAX_REGIONS];
	size_t n_regions;
	uint32_t possible; /* 1 << enum cuda_rung of those that this process has */
	uint32_t rungs;    /* of these the ones not tried in vain */
	bool anew;         /* all are tried anew, and the space's memory is not made for that yet */
	enum cuda_rung rung;
	/* why it is not a better one; "" */
	char why[200], why_possible[200];
	char not_engine
		[WIRE_WHY_BYTES]; /* why ENGINE is not the rung, though it was asked for; "" */
	CUstream stream;          /* staged: the copies' */
	/* On this connection the daemon was told of so much of this region, and of all in several
	 * parts before it; telling: once the message that was made last is sent. */
	size_t told_region;
	uint64_t told, telling;
	bool told_any;
};

enum { CUDA_PARTS_A_MESSAGE = 64 };

/* A message, its parts behind it, and their descriptors: the caller's to close. */
struct cuda_parts {
	struct wire_parts message;
	struct wire_part parts[CUDA_PARTS_A_MESSAGE];
	int fds[CUDA_PARTS_A_MESSAGE];
	size_t n_fds;
};
static_assert(offsetof(struct cuda_parts, parts) == sizeof(struct wire_parts), "one message");

/* Asks the driver about each region. -EINVAL: not a GPU's memory, of several GPUs, or not all of
 * it allocated. shares_pids: the daemon is in this PID namespace; engine: its rung is
 * tried. */
int cuda_memory_open(const struct kvtier_region *regions, size_t n, bool shares_pids, bool engine,
		     struct cuda_memory **ret);
void cuda_memory_close(struct cuda_memory *memory); /* NULL is fine */
/* The rung was refused: the next one, with the reason. False: there is none. */
bool cuda_memory_next(struct cuda_memory *memory, const char *why);
/* All rungs are tried anew, and `anew` is set for the caller to clear. False: none was tried in
 * vain. */
bool cuda_memory_again(struct cuda_memory *memory);
/* Nothing was told yet. */
void cuda_memory_begin(struct cuda_memory *memory);
/* The next message for regions in several allocations, but its head: 1; 0: all is told; or -errno
 * and its sentence. cuda_memory_told(): it was sent. */
int cuda_memory_parts(struct cuda_memory *memory, struct cuda_parts *ret);
void cuda_memory_told(struct cuda_memory *memory);
/* Exports each region by the rung, which is not ENGINE and not STAGED: ret[n_regions], and
 * descriptors, which are the caller's to close. The other fields of ret stay. 0, or -errno and its
 * sentence. */
int cuda_memory_export(const struct cuda_memory *memory, struct wire_region *ret, int *ret_fds,
		       size_t *ret_n_fds);
/* As a person reads it: "CUDA IPC", "CUDA staged: WHY". */
void cuda_memory_text(const struct cuda_memory *memory, char *ret, size_t n);

/* One piece of a page: rows of `run` bytes. Copies queue up on the memory's stream. */
struct cuda_copy {
	uint64_t device; /* address of the first row */
	uint8_t *host;   /* rows end to end */
	uint64_t run, rows, stride;
	bool to_device;
};
int cuda_memory_copy(const struct cuda_memory *memory, const struct cuda_copy *copy);
int cuda_memory_copied(const struct cuda_memory *memory); /* waits for them */
/* Pinned, so that copies run at the wire's speed. False: it is not, which only costs speed. */
bool cuda_memory_pin(const struct cuda_memory *memory, void *base, size_t bytes);
void cuda_memory_unpin(const struct cuda_memory *memory, void *base);

#endif
