/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_region.h - memory of engines, opened in the daemon's context.
 *
 *	helper: cuda_region_import --request--> thread: opens, checks --> helper: address
 *	helper: cuda_region_release --request--> thread: closes
 *
 * Invariants
 *   H1 no word of a client is believed: the memory must lie on this GPU, and the driver's own range
 *      must hold the whole region that the client describes.
 *   H2 a legacy handle is open once, however many regions and clients name it: `users` of its
 *      cuda_handle. Its 64 bytes tell it from every other: the driver makes new ones for memory
 *      that comes to lie where freed memory lay.
 *   H3 the descriptor of a VMM allocation is the asker's; the thread closes none, as to close one
 *      from outside can block. The handle that it stands for is released as soon as it is mapped.
 *   H4 an import that nobody waits for any more is undone by the thread.
 *   H5 a mapping is not the context's: it goes with its region, or, while the GPU is FAILING and
 *      may still use it, once the context is gone.
 */
#ifndef KVTIER_CUDA_REGION_H
#define KVTIER_CUDA_REGION_H

#include "cuda_gpu.h"

/* One legacy handle that is open. */
struct cuda_handle {
	struct list link;
	uint8_t bytes[WIRE_HANDLE_BYTES];
	CUdeviceptr at;
	uint64_t size; /* from `at` on */
	uint32_t users;
};

struct cuda_region {
	struct cuda_request request;
	struct region_desc desc;
	int status;
	char text[200];
	uint32_t generation; /* of the context that it is open in; 0: none */
	CUdeviceptr base;
	struct cuda_handle *handle;           /* NULL: a mapping */
	CUdeviceptr mapping;                  /* of fds or fabric handles: reserved... */
	uint64_t mapping_bytes, mapped_bytes; /* ...and mapped up to there */
	/* engine mode (cuda_engine.c): bytes that were made, and their descriptor for the client;
	 * 0: none were */
	uint64_t made_bytes;
	int made_fd;
};

/* On a helper thread. As in device.h; -EOPNOTSUPP: the driver does not open it this way. */
int cuda_region_import(struct cuda_gpu *gpu, const struct region_desc *desc,
		       struct cuda_region **ret, char *text, size_t n);
void cuda_region_release(struct cuda_gpu *gpu, struct cuda_region *region);

/* On the GPU's thread: the context is gone with all that was open in it, events included. Mappings
 * of regions that left meanwhile go, too. */
void cuda_regions_lost(struct cuda_gpu *gpu);

/* For cuda_engine.c. On a helper thread: as cuda_region_import(), but `work` opens or makes the
 * memory, on the GPU's thread. Its request is that of a struct cuda_region, whose desc has a
 * descriptor of its own; it sets status and text. */
int cuda_region_ask(struct cuda_gpu *gpu, const struct region_desc *desc,
		    void (*work)(struct cuda_gpu *gpu, struct cuda_request *request),
		    struct cuda_region **ret, char *text, size_t n);

/* For cuda_parts.c and cuda_engine.c. On the GPU's thread. */

/* The driver refuses the client's handle or pointer: another way may work. An error of the GPU
 * itself is passed on. */
int cuda_other_way(const struct cuda_gpu *gpu, int error);
void cuda_region_count(struct cuda_gpu *gpu, struct cuda_region *region); /* it is open now */
void cuda_region_undo(struct cuda_gpu *gpu, struct cuda_region *region);  /* it is not any more */
void cuda_region_unmap(struct cuda_gpu *gpu, struct cuda_region *region); /* zeroed is fine */
/* It came from outside, and to close it may block for as long as its maker likes: a thread does.
 * Where none can be made it stays open. */
void cuda_close_elsewhere(int fd);

#endif
