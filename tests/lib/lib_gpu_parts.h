/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_gpu_parts.h - memory of a GPU in several allocations, side by side in one range of addresses,
 * and PARTS by hand. Helpers end the test when they cannot do their part.
 */
#ifndef KVTIER_TESTS_LIB_GPU_PARTS_H
#define KVTIER_TESTS_LIB_GPU_PARTS_H

#include "lib_gpu_raw.h"

enum { GPU_PARTS_MAX = 1024 };

struct gpu_range {
	const struct gpu *gpu;
	uint32_t memory; /* WIRE_DEVICE_FD, WIRE_DEVICE_FABRIC */
	CUdeviceptr base;
	uint64_t part_bytes; /* of each */
	uint32_t n;
	CUmemGenericAllocationHandle handles[GPU_PARTS_MAX];
};

/* The driver makes handles of that kind. */
bool gpu_range_possible(const struct gpu *g, uint32_t memory);
/* n allocations of the smallest size, mapped at base. */
void gpu_range_make(const struct gpu *g, uint32_t memory, uint32_t n, struct gpu_range *ret);
void gpu_range_free(struct gpu_range *range);

/* A PARTS that can be changed before it is sent. */
struct gpu_parts {
	struct wire_parts m;
	struct wire_part parts[WIRE_MAX_PARTS];
	int fds[WIRE_MAX_PARTS];
	uint32_t n_fds;
};

/* Parts [first, first + n) of the range, which is the wire's range `number`. */
void gpu_parts_fill(const struct gpu_range *range, uint32_t number, uint32_t first, uint32_t n,
		    struct gpu_parts *ret);
/* Sends it and closes the descriptors: the answer's errno (text: >= 232 bytes, or NULL). */
int gpu_parts_send(struct raw *r, struct gpu_parts *parts, char *text);
/* All of the range, so many a message. Ends the test if it is refused. */
void gpu_range_send(struct raw *r, const struct gpu_range *range, uint32_t number, uint32_t step);
/* A SPACE_OPEN's region of it. */
struct wire_region gpu_range_region(const struct gpu_range *range, uint32_t number, uint64_t offset,
				    uint64_t length);

#endif
