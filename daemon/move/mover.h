/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mover.h - executes place.c's plans on the host tier, and has no policy of its own. Core thread
 * only; no allocation.
 *
 * An evicted block that has an NVMe copy is demoted, any other is dropped. So an eviction frees a
 * slot, but not always a number (victim_away() is for that). No plan helps when all leaves are
 * in use, as with a chain longer than the tier. Then blocks with children are demoted, too: of the
 * image's own class, the blocks that a short walk meets.
 *
 * mover_find_room() heeds the guarantee of each space; mover_evict_bytes() looks at recency alone.
 *
 * Cost on the core: an eviction is a few hundred nanoseconds. Where a slab has to be emptied for
 * another class, workers copy its images: the answer is -EAGAIN, and there is room when
 * that has ended. It gains a whole slab, so the copied bytes per allocated byte stay below 1
 * (tests/sim/sim_place.c measures it).
 */
#pragma once

#include "daemon/table/block.h"
#include "daemon/policy/place.h"

struct device_job;
struct loop;

/*
 * The emptier empties a slab, so that another class can have it: the images in it move into free
 * slots of their class. Workers copy them, by jobs of bounded size; the core thread copies no byte.
 * All is allocated by emptier_open().
 *
 * While an image is copied its block is leased and served from the old slot. An image never
 * changes, so the copy is right even if others read it meanwhile. The block moves when the copy is
 * there and no other lease is on it. One slab is emptied at a time; a caller that wants
 * another one waits.
 */
struct emptier;
struct reuse;

enum {
	EMPTIER_JOBS = 4,        /* in flight at once; the device must take so many */
	EMPTIER_JOB_COPIES = 32, /* images of one job at most */
	/* a job takes another image only while those before it are smaller together */
	EMPTIER_JOB_BYTES = 1 << 20,
};

struct emptier_conf {
	struct tier *host;
	struct blocks *blocks;
	/* emptier_poll() is called in each of its iterations, and when a job ends; NULL: the caller
	 * does that */
	struct loop *loop;
	/* works like device_submit(): takes a job of kind DEVICE_COPY, and returns 0 or -EAGAIN.
	 * `done` runs later, on the core thread */
	int (*submit)(void *arg, struct device_job *job);
	void *arg;
	uint64_t *moved_blocks, *moved_bytes; /* counted up by the images that have moved */
};

/* 0 or -ENOMEM. */
int emptier_open(const struct emptier_conf *conf, struct emptier **ret);
void emptier_close(struct emptier *e); /* no job may be in flight; e may be NULL */

bool emptier_busy(const struct emptier *e); /* whether a slab is being emptied; e may be NULL */
/* Starts jobs, and moves images that are copied. Returns whether there was anything to do. */
bool emptier_poll(struct emptier *e);

/* An heir may keep the slot of an evicted block for a while. It answers that it does not; that it
 * owns the slot now; or that it owns the slot now and gave another one back for it. */
enum mover_heir { MOVER_NO_HEIR, MOVER_TAKEN, MOVER_SWAPPED };

/* evicted: blocks that left the host tier, dropped or demoted; demoted: the blocks that NVMe
 * keeps. */
struct mover_counts {
	uint64_t evicted_blocks, demoted_blocks, moved_blocks, evicted_bytes, moved_bytes;
};

/* The mover of one host tier and its table of blocks. Zeroed, and with an emptier, it is ready. */
struct mover {
	struct mover_counts counts;
	struct reuse *reuse; /* it is told of evicted blocks. NULL: it is not */
	struct emptier *emptier;
	/* all NULL: there is no heir. disinherit() is called for a purge: the heir gives back the
	 * slots that it keeps */
	enum mover_heir (*inherit)(void *heir, uint32_t block, const struct extent *slot);
	void (*disinherit)(void *heir);
	void *heir;
	/* the last call left off at clearing a slab, for an image of so many bytes (0: it did not),
	 * and the class of that slab (PLACE_NO_CLASS: the image's own) */
	uint32_t clearing_bytes;
	int32_t clearing_class;
	uint32_t cleared; /* evictions of this iteration for slabs of another class */
};

/* Enough steps for any plan on slabs of this many slots: one slab's slots evicted, and one slab to
 * be emptied. */
enum { MOVER_STEPS = TIER_MAX_SLAB_SLOTS + 1 };

/* Evictions of one iteration that clear slabs: 50 us of the core, and up to 200 where others use
 * its CPU and caches. To clear a slab of 5,461 slots at once took 3 to 6 ms, in which no client was
 * answered. The bound is of an iteration, not of a call, because an iteration begins many blocks,
 * and each of them may need a slab. */
enum { MOVER_BATCH = 128 };

/* An iteration of the loop begins: MOVER_BATCH evictions may clear slabs in it, for all requests
 * together. */
static inline void mover_iteration(struct mover *mover)
{
	mover->cleared = 0;
}

/* Who needs a slot. */
struct mover_for {
	uint32_t space;
	bool desperate; /* only the emptying of slabs is under way */
	uint8_t near;   /* the unit whose slots are best (tier_alloc_near()) */
};

/* Finds a slot for an image of `bytes` of the space. It frees condemned blocks first, then evicts
 * and moves as planned. It spares blocks that are guaranteed to other spaces (quota_may_take()),
 * and blocks that are queued to be written to NVMe (blocks_queued()), which would be lost now and
 * can be demoted soon. For a desperate caller it spares no queued block, and gives up an emptying
 * that is stuck.  After MOVER_BATCH evictions of this iteration for slabs of another class the
 * search leaves off, and `clearing_bytes` is set: the next iteration's first call for the same size
 * goes on. An image whose class has a victim takes the victim's slot meanwhile; else it is -EAGAIN,
 * and the caller comes again in the next iteration.  The slot belongs to the caller and has no
 * owner until tier_set_owner(). -ENOSPC: no block that would help can be evicted (all are pinned,
 * or have pinned children and are not on NVMe), or MOVER_STEPS evictions did not suffice; slots
 * that they freed stay free. -EAGAIN: there would be room without the spared blocks, or there may
 * be some when a slab has been cleared or emptied. -E2BIG: the image is larger than a slab. */
int mover_find_room(struct tier *host, struct blocks *blocks, uint64_t now_tick, uint32_t bytes,
		    const struct mover_for *whom, struct mover *mover, struct extent *ret);

/* Gives the slots of condemned blocks whose last pin is gone back to their tier. */
void mover_free_condemned(struct tier *host, struct blocks *blocks);

/* Evicts up to `bytes` of images, the least recent leaves of all classes first. Returns the freed
 * bytes. */
uint64_t mover_evict_bytes(struct tier *host, struct blocks *blocks, uint64_t bytes,
			   uint32_t max_steps, struct mover *mover);
