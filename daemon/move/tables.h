/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tables.h - one struct with all tables of kept blocks. It is a member of struct kvtierd, made in
 * main.c, and rooms that need nothing else of the daemon get it alone. Core thread only.
 *
 * Only copies.h and mover.h change a block's copies, since they keep table and tiers in step. Each
 * caller that has the tables may ask block.h, index.h and tier.h. All pointers are set once, when
 * what they point to is opened, and are NULL before and after.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "mover.h"
#include "tiers/tier.h"

struct blocks;    /* block.c: the table */
struct gpu_cache; /* gpu_cache.c: copies on GPUs */
struct hints;     /* hints.c: clients' hints about blocks */
struct index;     /* index.c: the part that clients read */
struct quota;     /* quota/quota.c */
struct reuse;     /* policy/reuse.c: how blocks are used again */
struct foresee;   /* verify/foresee.c: brings blocks before they are expected back */
struct outbox;    /* write/outbox.c: blocks to be written to Redis */
struct spaces;    /* space.c: whose blocks these are */
struct stats;     /* stats/stats.c: events are counted there */
struct writeback; /* write/writeback.c: blocks to be written to NVMe */

struct tables {
	struct stats *stats; /* only the core thread writes them, by plain increments */
	struct index *index;
	struct blocks *blocks;
	struct spaces *spaces;
	struct tier *tiers[TIER_COUNT]; /* NULL: not configured */
	/* [nvme] codec and [redis] codec: enum kvtier_codec; 0: images stay as they are */
	uint32_t codec_of[TIER_COUNT];
	/* they are told of blocks that were stored or used; NULL: there is no such tier */
	struct writeback *writeback;
	struct outbox *outbox;
	struct quota *quota; /* who may have how much of all that */
	struct reuse *reuse; /* NULL: it is not counted */
	/* The policies' clock: microseconds that daemons of this store have served, at least 1 an
	 * op. tables_tick() sets it. */
	uint64_t tick, tick_ns;
	uint32_t away_hand;          /* copies.c's: where it looks for an old away block next */
	struct mover mover;          /* how blocks leave host memory */
	struct gpu_cache *gpu_cache; /* NULL: no GPU keeps images */
	struct hints *hints;         /* NULL: hints are switched off */
	/* told of blocks that are expected back at a tick (verify/foresee.c); NULL: no tier has
	 * them meanwhile */
	struct foresee *foresee;
	void (*expect)(struct foresee *foresee, uint32_t block, uint64_t back);
	bool draining; /* kvtierctl drain: no store begins */
};

/* The tick of a new op, at this time. */
static inline uint64_t tables_tick(struct tables *tables, uint64_t now_ns)
{
	const uint64_t us = tables->tick_ns ? (now_ns - tables->tick_ns) / 1000 : 0;

	tables->tick_ns = tables->tick_ns ? tables->tick_ns + us * 1000 : now_ns;
	tables->tick += us > 0 ? us : 1;
	return tables->tick;
}

/* The tier in which images are made and checked, and from which they are served: every block passes
 * through it. */
static inline struct tier *tables_host(const struct tables *tables)
{
	return tables->tiers[TIER_HOST];
}
