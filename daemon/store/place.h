/* SPDX-License-Identifier: Apache-2.0 */
/*
 * place.h - where an image goes, and which blocks must go first. Pure: state in, plan out; no I/O,
 * clock, log or allocation, so traces replay by the million (tests/sim/sim_place.c).
 *
 * Asked again after each executed step until it says PLACE_ALLOC, PLACE_MOVE, PLACE_WAIT or
 * PLACE_FAIL. The first that holds:
 *   1. PLACE_ALLOC: the class has a free slot, or a free slab exists.
 *   2. PLACE_MOVE: another class holds a slab's worth of free slots. One of its slabs is packed
 *      into the others, and is free when that is done.
 *   3. PLACE_EVICT of another class, until it holds a slab's worth of free slots, then 2: the least
 *      recent leaf of that class is more than twice as old as the class's own, or the class has no
 *      victim.
 *   4. PLACE_EVICT: the class has a victim, its own least recent leaf.
 *   5. PLACE_WAIT: for the end of 2 or 3.
 *   6. PLACE_FAIL.
 * 2 and 3 take long, for one image, and give room for many. So an image does not wait for them: one
 * slab is packed at a time, and while one is, or when the caller is hurried, 4 comes next. A class
 * that waited would wait for thousands of evictions, however many victims it has of its own.
 *
 * A class is sparse while less than half a slab of its slots are in use: one image makes it hold a
 * whole slab. Where sparse classes that may be taken from hold a sixteenth of all slabs, a new
 * class takes the slab of the least recent of them. Where they hold more, a class that has slabs
 * takes theirs if they are older at all. So images of many sizes take that much from other classes,
 * not a slab for each size.
 *
 * A class that holds as many free slots as a slab has can give away any one slab, because its
 * images fit into the rest; the sparsest slab is the cheapest. Which slab can be emptied at all (no
 * slot pinned or being written) costs a walk over slots, some 50 ns each. So the plan asks for it
 * only of the class it is about to take from, before the first eviction and before the move:
 * PLACE_LOOK.
 *
 * Whose blocks may go is place_may_take(): each account (the blocks of a space, block.h) has bytes
 * that are guaranteed to it, as its clients are active (share.h). An account takes from itself, and
 * from all accounts that hold more than is guaranteed to them. Only leaves that may be taken count
 * in oldest_tick. Blocks of a sparse class are charged with its whole slab. So most of memory goes
 * by recency alone, and a client that stores as fast as it can pays with its own blocks once the
 * others are down to their guarantee.
 *
 * Numbers of the table of blocks are divided in the same way, where all are in use:
 * place_may_drop(). Here a space within its guarantee does not pay for itself as long as another
 * holds more than its own, however old its blocks are: any number will do, of whichever class.
 *
 * Progress: EVICT frees a slot, MOVE begins to free a slab, and one LOOK a class is answered
 * between two of them.
 */
#ifndef KVTIER_PLACE_H
#define KVTIER_PLACE_H

#include <stdbool.h>
#include <stdint.h>

#include "tiers/tier.h"

enum place_action { PLACE_ALLOC = 1, PLACE_EVICT, PLACE_MOVE, PLACE_LOOK, PLACE_WAIT, PLACE_FAIL };

/* The answer to PLACE_LOOK; void after the next EVICT or MOVE. */
enum place_look { PLACE_UNSEEN, PLACE_FOUND, PLACE_NONE };

enum { PLACE_NO_CLASS = -1 };
#define PLACE_NO_TICK UINT64_MAX

struct place_class {
	struct tier_class_view view;
	/* of its least recent evictable leaf; PLACE_NO_TICK: none */
	uint64_t oldest_tick;
	enum place_look look;
	uint32_t slab; /* PLACE_FOUND: the sparsest that can be emptied */
};

struct place_state {
	uint64_t now_tick;
	uint32_t sparse_max; /* slabs that sparse classes may hold; 0: no bound */
	/* slots that may still be evicted, or slabs moved, for this image */
	uint32_t steps_left;
	uint32_t n_classes;
	uint32_t free_slabs;
	bool moving;    /* a slab is being emptied */
	bool hurried;   /* enough was done for this image towards a slab of another class */
	int32_t wanted; /* class, or PLACE_NO_CLASS: a new one */
	/* class that the last step evicted from to empty a slab of it: that is finished first; else
	 * PLACE_NO_CLASS */
	int32_t donor;
	const struct place_class *classes;
};

struct place_plan {
	enum place_action action;
	uint32_t class; /* EVICT, MOVE, LOOK: of this class */
	uint32_t count; /* EVICT: so many leaves, or as many as there are */
	uint32_t slab;  /* MOVE: the slab to be emptied */
	int32_t donor;  /* to be given back with the next state */
	bool left;      /* hurried: the donor's evictions are left to the next image's calls */
};

struct place_account {
	uint64_t held; /* place_charge() of all classes; of place_may_drop(): numbers of blocks */
	uint64_t guaranteed;
};

/* The bytes that an account is charged with for its `slots` in a class. */
uint64_t place_charge(const struct tier_class_view *c, uint32_t slots);

/* May a leaf of `account` go for an image of `own`'s? desperate: nothing is under way that could
 * help; then a space that is within its guarantee (with the bytes that it asks for: own_asks) takes
 * from anybody. */
bool place_may_take(const struct place_account *account, const struct place_account *own,
		    uint64_t own_asks, bool desperate);

/* Where a number for a new block of `own`'s comes from. In this order, until there is a block. */
enum place_from {
	PLACE_FROM_RICH, /* those that hold more than is guaranteed to them */
	PLACE_FROM_OWN,
	PLACE_FROM_ANY, /* only while own holds less than is guaranteed to it */
};

/* May a block of `account` be dropped for it? */
bool place_may_drop(const struct place_account *account, const struct place_account *own,
		    enum place_from from);

void place_plan(const struct place_state *state, struct place_plan *ret);

/* The class with the least recent evictable leaf of all, or PLACE_NO_CLASS. */
int32_t place_oldest(const struct place_class *classes, uint32_t n_classes);

#endif
