/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store.h - all tables of kept blocks, in one struct: the data plane's. Made in main.c as a member
 * of struct kvtierd, and passed down in its stead to rooms that need nothing else of the daemon.
 * Core thread only.
 *
 * Rights to change: a block's copies change through copies.h alone, and through mover.h and
 * emptier.h, which keep table and tiers in step; everybody who has the store may ask blocks.h,
 * index.h and tier.h. Each member but the counters is set once, when its part is opened, and is
 * NULL before and after.
 */
#ifndef KVTIER_STORE_STORE_H
#define KVTIER_STORE_STORE_H

#include <stdint.h>

#include "mover.h"
#include "tiers/tier.h"

struct beside;    /* beside.c: copies on GPUs */
struct blocks;    /* block.c: the table */
struct hints;     /* hints.c: clients' hints about blocks */
struct index;     /* index.c: the part that clients read */
struct outbox;    /* redis/outbox.c: blocks to be written to Redis */
struct spaces;    /* space.c: whose blocks these are */
struct stats;     /* stats/stats.c: events are counted there */
struct writeback; /* nvme/writeback.c: blocks to be written to NVMe */

struct store {
	struct stats *stats; /* plain increments: the core thread alone writes */
	struct index *index;
	struct blocks *blocks;
	struct spaces *spaces;
	struct tier *tiers[TIER_COUNT]; /* NULL: not configured */
	/* NULL: no such tier. They are told of blocks that were stored or used */
	struct writeback *writeback;
	struct outbox *outbox;
	uint64_t tick;         /* the policies' clock: +1 per op */
	uint32_t away_hand;    /* copies.c's: where it looks for an old away block next */
	struct mover mover;    /* how blocks leave host memory */
	struct beside *beside; /* NULL: no GPU tier */
	struct hints *hints;   /* NULL: nobody says anything */
};

/* The tier in which images are made and checked, and from which they are served: every block goes
 * through it. */
static inline struct tier *store_host(const struct store *store)
{
	return store->tiers[TIER_HOST];
}

/* The table of spaces knows how many blocks the table of blocks has of each. Both are open, and
 * empty. */
void store_attach_spaces(struct store *store);

#endif
