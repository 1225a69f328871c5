/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu.h - the GPU tier: images in the memory of GPUs, an allocator (slabs.h) for each GPU. Core
 * thread only. It knows addresses and offsets, and touches no memory: the GPU's own thread has the
 * memory (daemon/cuda), makes it with the GPU's context, and loses it with it.
 *
 * It is a cache in front of the host tier, never the place of a last copy. Its images are unsealed
 * (daemon/IMAGE.md): scales and payload alone, read by their own GPU and by nobody else.
 *
 * Each GPU is a unit (extent.unit):
 *
 *	  gpu_gain: memory came                gpu_lose: it is gone
 *	ABSENT ───────────────────────> UP ────────────────────────> LEAVING
 *	  ^                                                             │
 *	  └──────────────── gpu_settle: its last slot is free ──────────┘
 *
 * Invariants
 *   U1 an address is given of a unit that is UP, together with the memory's generation: a job that
 *      carries an older one is refused by the GPU's thread. So nothing is read or written at an
 *      address of memory that is gone.
 *   U2 the extents of a unit that is LEAVING are live until they are freed, so that the holder of
 *      an extent frees it as ever; their bytes cannot be had any more.
 *   U3 no space reads another space's bytes: a slot that may hold them has to be scrubbed first
 *      (gpu_alloc()). Bytes that an image of the same space does not overwrite are that space's
 *      own.
 */
#ifndef KVTIER_GPU_H
#define KVTIER_GPU_H

#include "tiers/tier.h"

extern const struct tier_ops gpu_ops;

enum { GPU_UNITS_MAX = 64 };

/* Memory of a GPU, for images; zeroed. */
struct gpu_memory {
	uint64_t base; /* a device address, a multiple of 4096 */
	uint64_t bytes;
	uint32_t generation; /* > 0; another one: other memory, and its images are lost */
};

/* A slot, as a job needs it. */
struct gpu_slot {
	struct extent where;
	uint64_t address;
	uint32_t generation; /* of the memory */
	uint32_t bytes;      /* of the slot */
	bool scrub;          /* bytes of other spaces may be in it: zeroes first */
};

/* The unit's memory came. The unit is ABSENT; memory of less than a slab is none. 0, -ENOMEM. */
int gpu_gain(struct tier *t, uint32_t unit, const struct gpu_memory *memory);
/* It is gone. The unit is LEAVING, or ABSENT if no slot was in use. Not UP: nothing happens. */
void gpu_lose(struct tier *t, uint32_t unit);
/* LEAVING and without slots in use: it is ABSENT. */
void gpu_settle(struct tier *t, uint32_t unit);
bool gpu_up(const struct tier *t, uint32_t unit);
bool gpu_leaving(const struct tier *t, uint32_t unit);
uint32_t gpu_generation(const struct tier *t, uint32_t unit); /* UP; else 0 */

/* A slot of the unit for an image of `bytes` of this space: a number that no other space ever had,
 * neither 0 nor UINT64_MAX.
 * -ENOSPC: something must be freed first; -E2BIG: larger than a slab; -ENODEV: the unit is not
 * UP. */
int gpu_alloc(struct tier *t, uint32_t unit, uint32_t bytes, uint64_t space, struct gpu_slot *ret);
/* Of a live extent; false: its unit is not UP. */
bool gpu_slot_of(const struct tier *t, const struct extent *where, struct gpu_slot *ret);
/* The unit's allocator; NULL: it is ABSENT. */
struct slabs *gpu_slabs(const struct tier *t, uint32_t unit);

#endif
