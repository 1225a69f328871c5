/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_gpu_range.h - memory of a GPU in several allocations, side by side in one range of addresses,
 * and ALLOCS by hand. Helpers end the test when they cannot do their part.
 */
#pragma once

#include "lib_gpu_raw.h"

enum { GPU_ALLOCS_MAX = 1024 };

struct gpu_range {
	const struct gpu *gpu;
	uint32_t memory; /* WIRE_DEVICE_FD, WIRE_DEVICE_FABRIC */
	CUdeviceptr base;
	uint64_t alloc_bytes; /* of each */
	uint32_t n;
	CUmemGenericAllocationHandle handles[GPU_ALLOCS_MAX];
};

/* The driver makes handles of that kind. */
bool gpu_range_possible(const struct gpu *g, uint32_t memory);
/* n allocations of the smallest size, mapped at base. */
void gpu_range_make(const struct gpu *g, uint32_t memory, uint32_t n, struct gpu_range *ret);
void gpu_range_free(struct gpu_range *range);

/* A SPACE_OPEN's region in one of them, whose descriptor is the caller's, the message's first one;
 * -1: it has none. */
struct wire_region gpu_range_alloc(const struct gpu_range *range, uint32_t i, uint64_t offset,
				   uint64_t length, int *ret_fd);

/* An ALLOCS that can be changed before it is sent. */
struct gpu_allocs {
	struct wire_allocs m;
	struct wire_alloc allocs[WIRE_MAX_ALLOCS];
	int fds[WIRE_MAX_ALLOCS];
	uint32_t n_fds;
};

/* Allocations [first, first + n) of the range, which is the wire's range `number`. */
void gpu_allocs_fill(const struct gpu_range *range, uint32_t number, uint32_t first, uint32_t n,
		     struct gpu_allocs *ret);
void gpu_allocs_close(struct gpu_allocs *allocs); /* its descriptors */
/* Sends it and closes the descriptors: the answer's errno (text: >= 232 bytes, or NULL). */
int gpu_allocs_send(struct raw *r, struct gpu_allocs *allocs, char *text);
/* All of the range, so many a message. Ends the test if it is refused. */
void gpu_range_send(struct raw *r, const struct gpu_range *range, uint32_t number, uint32_t step);
/* A SPACE_OPEN's region of it. */
struct wire_region gpu_range_region(const struct gpu_range *range, uint32_t number, uint64_t offset,
				    uint64_t length);
