/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mover.h - executes place.c's plans on the host tier and decides nothing. Core thread only; no
 * allocation.
 *
 * An evicted block that has an NVMe copy is demoted, any other is dropped. So an eviction frees a
 * slot, but not always a number (herd_sample_away() is for that). No plan helps when all leaves are
 * in use, as with a chain longer than the tier. Then blocks with children are demoted, too: of the
 * image's own class, the blocks that a short walk meets.
 *
 * mover_find_room_for() heeds the guarantee of each space; the other functions go by recency alone.
 *
 * Cost on the core: an eviction is a few hundred nanoseconds. Where a slab has to be emptied for
 * another class, workers copy its images (emptier.h): the answer is -EAGAIN, and there is room when
 * that has ended. It gains a whole slab, so the copied bytes per allocated byte stay below 1
 * (tests/sim/sim_place.c measures it).
 */
#ifndef KVTIER_MOVER_H
#define KVTIER_MOVER_H

#include "block.h"
#include "emptier.h"
#include "place.h"

/* An heir may keep the slot of an evicted block for a while. Its answer: no; the heir owns the slot
 * now; the heir owns the slot now and gave another slot back for it. */
enum mover_heir { MOVER_NO_HEIR, MOVER_TAKEN, MOVER_SWAPPED };

/* evicted: blocks that left the host tier, dropped or demoted; demoted: the blocks that NVMe
 * keeps. */
struct mover_counts {
	uint64_t evicted_blocks, demoted_blocks, moved_blocks, evicted_bytes, moved_bytes;
};

/* Of one host tier and its table of blocks. Zeroed, and with an emptier, it is ready. */
struct mover {
	struct mover_counts counts;
	struct emptier *emptier;
	/* All NULL: there is no heir. disinherit: a purge; the heir gives back the slots that it
	 * keeps. */
	enum mover_heir (*inherit)(void *heir, uint32_t block, const struct extent *slot);
	void (*disinherit)(void *heir);
	void *heir;
	/* The last call left off, for an image of so many bytes; 0: it did not. Of which class the
	 * slab is; PLACE_NO_CLASS: of the image's own */
	uint32_t clearing_bytes;
	int32_t clearing_class;
	uint32_t cleared; /* evictions of this turn for slabs of another class */
};

/* Enough steps for any plan on slabs of this many slots: one slab's slots evicted, and one slab to
 * be emptied. */
enum { MOVER_STEPS = TIER_MAX_SLAB_SLOTS + 1 };

/* Evictions of one turn that clear slabs: 50 us of the core, and up to 200 where others use its
 * CPU and caches. To clear a slab of 5,461 slots at once took 3 to 6 ms, in which no client was
 * answered. The bound is of a turn, not of a call, because a turn begins many blocks, and each of
 * them may need a slab. */
enum { MOVER_BATCH = 128 };

/* A turn of the loop begins: MOVER_BATCH evictions may clear slabs in it, for all requests
 * together. */
void mover_turn(struct mover *mover);

/* Finds a slot for `bytes`: first frees condemned blocks, then evicts and moves as planned, at most
 * `max_steps` (> 0) evictions. After MOVER_BATCH of this turn for slabs of another class it leaves
 * off, and `clearing_bytes` is set: the next turn's first call for the same size goes on. An image
 * whose class has a victim takes the victim's slot meanwhile; else it is -EAGAIN, and the caller
 * comes again in the next turn. With fewer than MOVER_STEPS a class with many slots per slab may
 * not get to give one away, and then each class evicts its own. The slot belongs to the caller and
 * has no owner until tier_set_owner(). -ENOSPC: nothing that would help can be evicted (pinned, or
 * with pinned children and not on NVMe), or the steps did not suffice: slots that they freed stay
 * free; -EAGAIN: a slab is being cleared or emptied, and there may be room when that has ended;
 * -E2BIG: larger than a slab. */
int mover_make_room(struct tier *host, struct blocks *blocks, uint64_t now_tick, uint32_t bytes,
		    uint32_t max_steps, struct mover *mover, struct extent *ret);

/* Likewise, but spares blocks that are queued to be written to NVMe (blocks_queued()): dropped now
 * they would be lost, soon they can be demoted. -EAGAIN also: there is room if such blocks go. */
int mover_find_room(struct tier *host, struct blocks *blocks, uint64_t now_tick, uint32_t bytes,
		    uint32_t max_steps, struct mover *mover, struct extent *ret);

/* For a block of `space`, with regard to the guarantees of other spaces (place_may_take()): their
 * blocks are spared as well. -EAGAIN also: there is room if spared blocks go. desperate: only the
 * emptying of slabs is under way. Then no queued block is spared, and an emptying that is stuck is
 * given up. */
struct mover_for {
	uint32_t space;
	bool desperate;
	uint8_t near;               /* the unit whose slots are best (tier_alloc_near()) */
	const uint64_t *guaranteed; /* bytes, by space */
};
int mover_find_room_for(struct tier *host, struct blocks *blocks, uint64_t now_tick, uint32_t bytes,
			const struct mover_for *whom, struct mover *mover, struct extent *ret);

/* Evicts up to `bytes` of images, least recent leaves of all classes first. Returns bytes freed. */
uint64_t mover_evict_bytes(struct tier *host, struct blocks *blocks, uint64_t bytes,
			   uint32_t max_steps, struct mover *mover);

#endif
