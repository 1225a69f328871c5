/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvtierd.h - the daemon's parts in one struct, made in main.c and passed down. No globals elsewhere.
 */
#ifndef KVTIER_KVTIERD_H
#define KVTIER_KVTIERD_H

#include <stdbool.h>
#include <stdint.h>

#include "tiers/tier.h"
#include "daemon/store/block.h"
#include "daemon/config/config.h"
#include "daemon/device/devices.h"
#include "daemon/store/index.h"
#include "daemon/base/loop.h"
#include "daemon/store/mover.h"
#include "daemon/store/space.h"
#include "daemon/admin/stats.h"

struct server;		/* server.c: the listening socket and the table of connections */
struct ops;		/* op.c: ops and the blocks of them in flight */
struct shares;		/* share.c: what a client may have of parts and memory */
struct ctl;		/* ctl.c: admin socket */
struct copies;		/* copies.c: block table and tiers in step */
struct writeback;	/* writeback.c: what is to be written to NVMe */
struct flush;		/* flush.c: all of it, and synced */
struct outbox;		/* outbox.c: what is to be written to Redis */
struct scrub;		/* scrub.c: reads everything back */

struct kvtierd {
	const struct config *config;	/* const after start */
	struct loop *loop;
	struct stats *stats;		/* mapped page; plain increments, core thread is the one writer */
	struct index *index;
	struct blocks *blocks;
	struct tier *tiers[TIER_COUNT];	/* NULL: not configured */
	struct devices devices;
	struct spaces *spaces;
	struct ops *ops;
	struct shares *shares;
	struct server *server;
	struct ctl *ctl;
	struct copies *copies;
	struct writeback *writeback;	/* NULL: no NVMe tier */
	struct flush *flush;		/* likewise */
	struct outbox *outbox;		/* NULL: no Redis tier */
	struct scrub *scrub;		/* NULL: none runs */
	uint64_t tick;			/* +1 per op: the policies' clock */
	struct mover_counts moved;
};

#endif
