/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_cache.h - keeps images in the memory of GPUs: it has the slots there, knows which block is in
 * each of them and which copy is evicted next, and lets copies grow. Core thread only; all memory
 * is allocated before ops run.
 *
 * A daemon without a GPU, or with [gpu] bytes = 0, has no cache: a caller looks at the pointer
 * once, and enters no function here. No byte of a GPU's memory is touched here: the GPU's own
 * thread has the memory (daemon/cuda), makes it with the GPU's context, and loses it with it. Each
 * GPU is a unit:
 *
 *	            memory came                   it is gone
 *	ABSENT ───────────────────────> UP ────────────────────────> LEAVING
 *	  ^                                                             │
 *	  └────────────────── its last slot is free ────────────────────┘
 *
 *	a slot:  reserved for a job ──the image is there──> the block's copy ──> evicted, or its
 *	            │  growing: a group of layers a job        │                 block went: free
 *	            │                                          └──> loose: pinned, without block
 *	            └──not kept, or another image came──> free
 *
 * Invariants
 *   G1 a copy is a cache: its block is in host memory or on NVMe, too (block.h, B1). So any copy
 *      without pins may be evicted at any time, and all of a GPU's are lost with its memory. When
 *      a block is dropped its copies are dropped with it; dropping a copy changes no other place.
 *   G2 a slot becomes a copy only after all of its image was written, by jobs that have ended. So a
 *      part that finds a copy finds it whole. A copy that grew is of one image: each group was of
 *      an image with the same checksum.
 *   G3 a copy that a job reads is pinned until the job has ended: it is no victim, and its slot is
 *      not free even if its block is dropped meanwhile.
 *   G4 a copy serves the GPU that has it, alone, and is unsealed (daemon/IMAGE.md). An address is
 *      given of a unit that is UP, together with the memory's generation: the GPU's thread refuses
 *      a job that carries an older one.
 *   G5 no space reads another space's bytes: a slot that may hold them is scrubbed first. Bytes
 *      that an image of the same space does not overwrite are that space's own.
 *   G6 each unit has an order of its own for each class of slots: the copy that was stored, loaded
 *      or hit last is evicted last, unless hints say when blocks are used again. Room is never
 *      made by evicting from another unit, from host memory, or from NVMe.
 *
 * Memory: 15 bytes a copy, where slots are of one size, beside the 8 of its slot (slabs.h), which
 * know the block; reserved at open and touched as used.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "tiers/tier.h"

struct blocks_gpu;
struct device_job;
struct devices;
struct gpu_cache;
struct growing;
struct loop;
struct space;
struct tables;

enum { GPU_UNITS_MAX = 64 };

/* A slot, as a job needs it. */
struct gpu_slot {
	struct extent where;
	uint64_t address;
	uint32_t generation; /* of the memory */
	uint32_t bytes;      /* of the slot */
	bool scrub;          /* bytes of other spaces may be in it: it must be zeroed first */
};

/* What a job has in the memory of its GPU. It is embedded in its owner; if all but unit and space
 * is zero, the job has nothing there. */
struct gpu_use {
	uint32_t unit;
	const struct space *space;
	bool pinned;   /* a copy, by its number */
	bool reserved; /* a slot */
	/* the GPU did not have the image that the tables named, so the image is served from
	 * elsewhere */
	bool refused;
	uint32_t copy;
	struct extent where;
	struct growing *growing; /* a copy that its job adds to */
};

struct gpu_cache_conf {
	struct tables *tables;
	struct loop *loop;
	struct devices *devices; /* each GPU of these is a unit */
	uint64_t unit_bytes;     /* of memory that each may have; UINT64_MAX: not known yet */
	uint64_t slab_bytes;     /* [host] slab_bytes: an image that fits there fits here */
};

/* To be called before the block table, which is opened with gpu_cache_blocks(). *ret stays as it is
 * if there is no GPU, or no memory is wanted. 0, or -errno with text. */
int gpu_cache_open(const struct gpu_cache_conf *conf, struct gpu_cache **ret, char *text, size_t n);
/* The blocks are closed, and no copy is pinned or slot reserved. May be NULL. */
void gpu_cache_close(struct gpu_cache *c);
/* For blocks_conf; NULL: there is no cache. */
const struct blocks_gpu *gpu_cache_blocks(const struct gpu_cache *c);

static inline bool gpu_use_any(const struct gpu_use *use)
{
	return use->pinned || use->reserved || use->growing;
}

/* The block's copy on this unit, where it can be read now; ret may be NULL. */
bool gpu_cache_find(const struct gpu_cache *c, uint32_t block, uint32_t unit, struct gpu_slot *ret);
/* Lets the job read the block's copy on the use's unit, for an op that has touched the block. At
 * most one pin is taken. False: the copy was dropped meanwhile. */
bool gpu_cache_pin(struct gpu_cache *c, struct gpu_use *use, uint32_t block,
		   struct device_job *job);
/* Lets the job, which reads or writes an image of so many bytes in host memory, keep the image on
 * the GPU, too. It takes at most one slot, for which it evicts a few hundred copies at most.
 * Without room, or if the GPU has the image, the job goes on as on a GPU that keeps no images. */
void gpu_cache_reserve(struct gpu_cache *c, struct gpu_use *use, uint32_t bytes,
		       struct device_job *job);
/* The same for a job of some layers. It leaves them in the copy that grows for the block at this
 * position of an op; of_op is the op's list of such copies. With the first layers a copy begins to
 * grow. */
void gpu_cache_grow(struct gpu_cache *c, struct gpu_use *use, uint32_t bytes,
		    struct device_job *job, struct list *of_op, uint32_t at);
/* The job has ended, or has not begun. If it kept the whole image, and the block is in the table by
 * now with this codec, the image becomes the block's copy; else the slot is freed. It may be called
 * twice. */
void gpu_cache_settle(struct gpu_cache *c, struct gpu_use *use, const struct device_job *job);
/* The op has no part any more: frees the slots of copies that still grow for it. */
void gpu_cache_end_op(struct gpu_cache *c, struct list *of_op);

/* A hint has said when the block is used again: its copies are evicted first if it is used later
 * than those that would be. */
void gpu_cache_expected(struct gpu_cache *c, uint32_t block);

/* For the check of all copies. gpu_cache_units() says how many units there are. gpu_cache_hold()
 * pins the block's copy on the use's unit, which must be there, without counting it as used.
 * gpu_cache_condemn() drops a bad copy, pinned or not. */
uint32_t gpu_cache_units(const struct gpu_cache *c);
void gpu_cache_hold(struct gpu_cache *c, struct gpu_use *use, uint32_t block);
void gpu_cache_unpin(struct gpu_cache *c, struct gpu_use *use); /* may be not pinned */
void gpu_cache_condemn(struct gpu_cache *c, uint32_t block, uint32_t unit);

/* Evicts copies of up to so many bytes from all units, at most `steps` of them, and of each class
 * the least recent first. Returns the freed bytes; *ret_blocks is the number of copies. */
uint64_t gpu_cache_evict(struct gpu_cache *c, uint64_t bytes, uint32_t steps, uint64_t *ret_blocks);
