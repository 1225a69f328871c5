/* SPDX-License-Identifier: Apache-2.0 */
/*
 * step.h - the steps of a part (one block of an op) and of a flight (one block that is brought into
 * host memory), and the things that may be held at the door of each. The table is in step.c; pump.c
 * walks through it.
 *
 *	store:	ADMIT -> PLACE -> ENCODE ~> COMMIT
 *		  |        ^        | FP8 cannot hold it: PLACE again, raw
 *		  |        `--------'
 *		  `-> COMMIT	it is here already, or it failed; its turn in the chain still comes
 *
 *	load:	LOOKUP -> SERVE ~> CHECK -> END			it is in host memory, or on the GPU
 *		  `-> BRING ~> SERVE ~> CHECK [-> KEEP] -> END	a flight brings it
 *
 *	prefetch: LOOKUP -> END, or LOOKUP -> BRING ~> [KEEP ->] END
 *
 *	hint:	APPLY (of keys; or of the next block of a session; or of a revision)
 *
 * ~> waits for something that ends by itself. [] are steps of blocks that come from Redis. flight.c
 * shows the steps of a flight.
 *
 * An op that is told to end (deadline, cancel, a closed space, a dead client) sends its parts from
 * any step before CHECK or COMMIT straight to END or COMMIT: step_rule.early says which.
 */
#ifndef KVTIER_STEP_H
#define KVTIER_STEP_H

#include <stdbool.h>
#include <stdint.h>

#include "tiers/tier.h"

/* A step returns the next step; or DONE; or the event that it waits for. Then it is the walker's
 * turn again when that has come, with the same step unless something else was said meanwhile. */
enum step {
	STORE_ADMIT,
	STORE_PLACE,
	STORE_ENCODE,
	STORE_COMMIT,
	LOAD_LOOKUP,
	LOAD_BRING,
	LOAD_SERVE,
	LOAD_CHECK,
	LOAD_KEEP,
	LOAD_END,
	HINT_APPLY,
	FLIGHT_PROBE,
	FLIGHT_ROOM,
	FLIGHT_READ,
	FLIGHT_FAIL,
	FLIGHT_VERIFY,
	FLIGHT_LAND,
	FLIGHT_MISS,
	FLIGHT_AGAIN,
	STEPS,
	DONE = STEPS,
	WAIT_JOB,       /* the device works on its page or image */
	WAIT_READ,      /* a tier has its transfer */
	WAIT_ROOM,      /* no slot of host memory can be had now */
	WAIT_TIER_FULL, /* the tier takes no more transfers now */
	WAIT_JOBS_FULL, /* the device takes no more jobs now */
	WAIT_TURN,      /* the block before it, of the same op */
	WAIT_OTHER,     /* a flight brings the block */
	WAIT_PARTS,     /* a flight that has landed: its parts use the image */
	WAITS
};

/* Where the bytes of a block come from. */
enum source { SOURCE_HOST, SOURCE_NVME, SOURCE_REDIS, SOURCE_GPU, SOURCES };

/* The things that a part or a flight may hold, as bits. */
enum held {
	HELD_SLOT = 1,   /* a slot of host memory that is no block's */
	HELD_LEASE = 2,  /* a block, pinned */
	HELD_FLIGHT = 4, /* a part: it has joined one */
	HELD_PLACE = 8,  /* a place in the queue for room, or for the tier */
	HELD_LENT = 16,  /* the device or a tier has its job or transfer */
	HELD_NEAR = 32,  /* a part: a pin or a slot in the memory of a GPU (near.h) */
};

struct walker;

struct step_rule {
	enum step (*run)(struct walker *w);
	const char *name;   /* as `kvtierctl trace` and the log say it */
	uint32_t must, may; /* be held when it begins; more than that is a bug */
	uint32_t either;    /* exactly one of these is, too */
	/* where a part goes from here when its op is to end: here, if it goes on */
	enum step early;
};

extern const struct step_rule step_rules[STEPS];
extern const char *const wait_names[WAITS], *const source_names[SOURCES];
extern const enum tier_id source_tiers[SOURCES];

/* Whether a step may begin with this held. */
static inline bool step_allows(enum step step, uint32_t held)
{
	const struct step_rule *rule = &step_rules[step];
	const uint32_t one = held & rule->either;

	return (held & rule->must) == rule->must &&
	       (held & ~(rule->must | rule->may | rule->either)) == 0 &&
	       (rule->either == 0 || (one != 0 && (one & (one - 1)) == 0));
}

#endif
