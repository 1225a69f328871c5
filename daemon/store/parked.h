/* SPDX-License-Identifier: Apache-2.0 */
/*
 * parked.h - GPUs' memory for images that outlives the daemon ([gpu] outlive): for each GPU two
 * descriptors, its memory's and its book's (gpu_book.h), which the service manager keeps for the
 * next kvtierd (fd_store.h). Core thread only.
 *
 *	start: both are there, and are this GPU's: device_outlive() maps the memory again
 *	memory came: that memory, whose slots parked_next() gives, to be checked; or new memory
 *		  with a new book, and both are parked
 *	memory is gone: neither is parked any more
 *
 * Nothing that comes back is believed. parked_next() says which block an image may be of; the
 * caller compares the bytes with the block's sealed image, and gives the slot to beside_keep(), or
 * back. Until then the slot is nobody's copy, so no op sees it.
 */
#ifndef KVTIER_PARKED_H
#define KVTIER_PARKED_H

#include <stdbool.h>
#include <stdint.h>

#include "tiers/gpu/gpu.h"

struct device_memory;
struct devices;
struct fd_store;
struct parked;

struct parked_conf {
	struct fd_store *fds;
	struct devices *devices; /* each GPU of these is a unit */
	uint64_t unit_bytes;     /* as wanted; UINT64_MAX: any size that is parked will do */
	uint64_t slab_bytes;
};

/* Takes back the memory that there is. 0, -ENOMEM. */
int parked_open(const struct parked_conf *conf, struct parked **ret);
void parked_close(struct parked *parked); /* parked memory stays so. NULL is fine */

/* All of these: parked may be NULL: nothing outlives the daemon. */

/* The unit's memory came, or is gone; the unit of the GPU tier is not UP. memory->fd is taken. */
void parked_memory(struct parked *parked, uint32_t unit, const struct device_memory *memory);
/* Of the memory that came last; NULL: it will not outlive the daemon. */
struct gpu_book *parked_book(const struct parked *parked, uint32_t unit);
/* The next slot that the book of the process before speaks of: the caller's. False: there is none
 * (any more). The unit is UP. */
bool parked_next(struct parked *parked, struct tier *t, uint32_t unit, struct gpu_claim *ret);
/* The unit is about to be lost: frees the slots that parked_next() has not given yet. */
void parked_forget(struct parked *parked, struct tier *t, uint32_t unit);
/* The daemon stops: parked memory is not zeroed. */
void parked_leave(struct parked *parked);

#endif
