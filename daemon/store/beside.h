/* SPDX-License-Identifier: Apache-2.0 */
/*
 * beside.h - copies of blocks in the memory of GPUs, beside host memory and NVMe: room for them,
 * pins, and their fate when a GPU's memory comes and goes. Core thread only; nothing is allocated
 * while ops run.
 *
 *	a slot:  beside_take ──image written──> beside_keep: the block's copy ──> evicted, or its
 *	            └──it was not──> beside_give_back                             block went: free
 *
 * Invariants
 *   N1 a copy is a cache: its block is in host memory or on NVMe, too (block.h, B1). So any copy
 *      without pins may go at any time, and all of a GPU's go with its memory.
 *   N2 a slot becomes a copy only after all of its image was written, by jobs that have ended. So a
 *      part that finds a copy finds it whole.
 *   N3 a copy that a job reads is pinned until the job has ended: its slot is no victim, and is not
 *      free even if its block goes meanwhile.
 *   N4 a copy serves the GPU that has it, alone: it is asked for by unit, and is unsealed
 *      (daemon/IMAGE.md).
 *   N5 each unit has an order of its own for each class of slots (copy_table.h): the copy that was
 *      stored, loaded or hit last goes last. Room is never made by evicting from another unit, from
 *      host memory, or from NVMe.
 */
#ifndef KVTIER_BESIDE_H
#define KVTIER_BESIDE_H

#include <stdbool.h>
#include <stdint.h>

#include "tiers/gpu/gpu.h"

struct beside;
struct copy_table;
struct devices;
struct loop;
struct space;
struct store;

/* Embedded in its owner; zeroed: it pins nothing. */
struct beside_pin {
	uint32_t unit, copy;
	bool held;
};

struct beside_conf {
	struct store *store;
	struct loop *loop;
	struct devices *devices; /* each GPU of these is a unit */
	uint64_t unit_bytes;     /* of memory that each may have; UINT64_MAX: not known yet */
	uint64_t slab_bytes;     /* [host] slab_bytes: an image that fits there fits here */
};

/* The GPU tier, and the table of its copies: before the blocks, which are opened with that. 0, and
 * NULL if there is no GPU, or no memory wanted; -errno with text. */
int beside_open(const struct beside_conf *conf, struct beside **ret, char *text, size_t n);
/* The blocks are closed: nothing is pinned or taken. NULL is fine */
void beside_close(struct beside *beside);
struct copy_table *beside_copies(const struct beside *beside); /* NULL: of none */

/* All of these: store->beside may be NULL, and unit that of the CPU: there is no such copy, no
 * room. */

/* A slot of the unit for an image of the space, which the caller owns. At most a few hundred copies
 * are evicted for it. -ENODEV: the unit has no memory now; -ENOSPC: no room; -E2BIG. */
int beside_take(struct store *store, uint32_t unit, const struct space *space, uint32_t bytes,
		struct gpu_slot *ret);
/* A slot of beside_take(), not kept. */
void beside_give_back(struct store *store, const struct extent *where);
/* The image in it is the block's: the slot is a copy, or, if the block has one there already, or is
 * not there any more, free. */
void beside_keep(struct store *store, uint32_t block, const struct extent *where);
/* The block's copy on this unit; false: it has none that can be read now. */
bool beside_find(const struct store *store, uint32_t block, uint32_t unit, struct gpu_slot *ret);
/* The copy, which is there, is about to be read by an op that has touched the block. Not held
 * before. */
void beside_pin(struct store *store, uint32_t block, uint32_t unit, struct beside_pin *ret);
/* Likewise, by nobody whose use counts. */
void beside_hold(struct store *store, uint32_t block, uint32_t unit, struct beside_pin *ret);
void beside_unpin(struct store *store, struct beside_pin *pin); /* not held: fine */
/* How many there are. */
uint32_t beside_units(const struct store *store);

/* Evicts up to so many bytes of copies from all units, least recent first of each class, at most
 * `steps` of them. Returns the freed bytes; *ret_blocks how many. */
uint64_t beside_evict(struct store *store, uint64_t bytes, uint32_t steps, uint64_t *ret_blocks);

#endif
