/* SPDX-License-Identifier: Apache-2.0 */
/*
 * place.h - decides where an image is put, and which blocks must be evicted first. It is pure: it
 * gets a state and returns a plan, without I/O, clock, log or allocation, so traces replay by the
 * million (tests/sim/sim_place.c).
 *
 * The caller executes the plan and asks again, until the answer is PLACE_ALLOC, PLACE_MOVE,
 * PLACE_WAIT or PLACE_FAIL. The answer is the first of these that holds:
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
 * Only leaves that may be taken (quota_may_take()) count in oldest_tick. Blocks of a sparse class
 * are charged with its whole slab.
 *
 * Progress: EVICT frees a slot, MOVE begins to free a slab, and one LOOK a class is answered
 * between two of them.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "tiers/tier.h"

enum place_action { PLACE_ALLOC = 1, PLACE_EVICT, PLACE_MOVE, PLACE_LOOK, PLACE_WAIT, PLACE_FAIL };

/* The caller's answer to PLACE_LOOK, which is void after the next EVICT or MOVE. */
enum place_look { PLACE_UNSEEN, PLACE_FOUND, PLACE_NONE };

enum { PLACE_NO_CLASS = -1 };
#define PLACE_NO_TICK UINT64_MAX

struct place_class {
	struct tier_class_view view;
	/* last access of its least recent evictable leaf; PLACE_NO_TICK: it has no such leaf */
	uint64_t oldest_tick;
	enum place_look look;
	uint32_t slab; /* PLACE_FOUND: the sparsest slab that can be emptied */
};

struct place_state {
	uint64_t now_tick;
	uint32_t sparse_max; /* slabs that sparse classes may hold; 0: no bound */
	/* evictions and moves of slabs that may still be done for this image */
	uint32_t steps_left;
	uint32_t n_classes;
	uint32_t free_slabs;
	bool moving;    /* a slab is being emptied */
	bool hurried;   /* enough was evicted for this image to clear a slab of another class */
	int32_t wanted; /* the image's class; PLACE_NO_CLASS: it has none yet */
	/* the class that the last step evicted from to empty one of its slabs, which is finished
	 * first; else PLACE_NO_CLASS */
	int32_t donor;
	const struct place_class *classes;
};

struct place_plan {
	enum place_action action;
	uint32_t class; /* EVICT, MOVE, LOOK: the class */
	uint32_t count; /* EVICT: so many leaves, or all if there are fewer */
	uint32_t slab;  /* MOVE: the slab to be emptied */
	int32_t donor;  /* the caller gives it back in the next state */
	bool left;      /* hurried: the donor's evictions are left to the next image's calls */
};

/* The bytes that an account is charged with for its `slots` in a class. */
uint64_t place_charge(const struct tier_class_view *c, uint32_t slots);

void place_plan(const struct place_state *state, struct place_plan *ret);

/* The class with the least recent evictable leaf of all, or PLACE_NO_CLASS. */
int32_t place_oldest(const struct place_class *classes, uint32_t n_classes);
