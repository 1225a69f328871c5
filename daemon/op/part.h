/* SPDX-License-Identifier: Apache-2.0 */
/*
 * part.h - one block of an op in flight, the op, and all ops: the structs that the files of this
 * folder share. Types alone. Core thread only.
 *
 *	file       owns of it             does
 *	ops.c      op_pool, part_pool     the pools, made at start
 *	entry.c                           may an entry of a ring become an op
 *	op.c       op, link, at           the life of an op, and of its parts
 *	pump.c     w.step                 begins parts in turn, walks through the steps
 *	walk.c     w.ready, w.full        waking, jobs of the device, images that become blocks
 *	store.c    status                 the steps of a store
 *	load.c     w.source, before       the steps of a load and of a prefetch
 *	near.c     near                   copies in the memory of the GPU that has its pages
 *	grow.c     growing                such copies, of a load with layer groups
 *	flight.c   flight, with, brought  brings a block into host memory, for all that want it
 *	groups.c   group, groups          which layers are in the pages of all blocks
 *	hint.c     hint                   hints about blocks
 *	room.c     w.room                 slots, and the queue for them
 *	share.c    in_flight_bytes        the share of a client
 *	trace.c    trace (of an op)       the last steps
 *
 * The order of calls: front/conn.c -> op.c -> entry.c; pump.c -> op.c, and through the table of
 * step.c store.c, hint.c, load.c -> flight.c -> room.c -> share.c; all of them use walk.c, turn.c
 * and trace.c, which call none of the former. Waking is a push on the run queue (walk.h).
 */
#ifndef KVTIER_PART_H
#define KVTIER_PART_H

#include <stdbool.h>
#include <stdint.h>

#include "client/wire.h"
#include "daemon/base/list.h"
#include "daemon/base/log.h"
#include "daemon/base/loop.h"
#include "daemon/store/lease.h"
#include "flight.h"
#include "groups.h"
#include "grow.h"
#include "hint.h"
#include "near.h"
#include "room.h"
#include "walk.h"

struct part {
	struct walker w; /* lease. load: while read; store: on a block that was there already */
	struct op *op;
	struct list link; /* the op's parts, in order of blocks; or the pool */
	uint32_t at;      /* position in the op */
	uint32_t group;   /* of layers, that it is about; of a store: 0 */
	int status;       /* as it will be told: enum in kvtier.h */
	/* key of the block before it, in the op or as its parent; else 0 */
	uint8_t before[32];
	struct flight *flight; /* that it has joined; NULL: none */
	struct list with;      /* the others of that flight */
	int brought;           /* by the flight it was in: 0; 1: look again; else -errno */
	uint64_t in_flight_bytes;
	struct near near;        /* in the memory of the GPU that has its pages */
	struct growing *growing; /* there, that its job adds to; NULL: none */
};

/* One op. */
struct op {
	struct ops *all;
	struct client *client;
	struct mount *mount;
	struct op *next, **link; /* the connection's list; next: or the pool */
	struct list queue;       /* its client's: it has blocks to begin */
	uint32_t passed_round;   /* the round of pump() in which it was passed over */
	bool abandoned;          /* its client is gone */
	/* it was ended early, with this status: nothing may wait any more; 0 */
	int early;
	struct wire_sqe sqe;
	struct order *order; /* its event and word are of; NULL: it has none */
	uint64_t tick, submit_ns;
	/* Blocks to begin: of a load with groups all of them for each group (groups.h). Not yet
	 * begun: from next_block on. Settled: they are done, or failed. */
	uint32_t total, next_block, settled;
	struct groups groups;
	struct list growing; /* grow.c's: copies on its GPU */
	struct op_hint hint;
	uint32_t given; /* store: groups of layers, by entries LAYERS */
	/* store: why no further block can be committed; 0 = none */
	int chain_error;
	/* store: blocks at the end of the chain that this op committed */
	uint32_t fresh;
	struct list parts;    /* begun and not ended, in order of blocks */
	uint8_t last_key[32]; /* of the block begun last; at first the parent's */
	/* prefetch: the first block that Redis does not have */
	uint32_t remote_end;
	struct lease tail; /* store: the last committed block of the chain */
	struct loop_timer deadline;
	struct trace *trace;
	/* share.c's */
	bool begun; /* a block was */
	uint32_t n_parts;
	uint64_t in_flight_bytes; /* store: for the end of its chain */
};

/* All of them, and the parts of the daemon that they need: const since ops_open(). */
struct ops {
	struct store *store;
	struct loop *loop;
	struct devices *devices;
	const struct config *config;
	struct shares *shares; /* share.c's */
	uint32_t max_ops, outstanding;
	uint32_t n_parts, n_free_parts;
	/* free: a list; and all of the pool from n_used on, which nobody has touched */
	struct op *op_pool, *free_ops;
	uint32_t n_used;
	uint32_t (*landed_pool)[WIRE_MAX_GROUPS]; /* groups.c's: a row for each op of op_pool */
	struct part *part_pool;
	struct list free_parts;
	struct list ready; /* walkers that can go on... */
	struct list full;  /* ...and parts that the device had no room for */
	struct room room;
	struct flights flights;
	struct grow grow;
	struct traces *traces;
	struct log_limit log;
	/* pump.c's */
	struct loop_poller poller;
	struct list queue; /* clients with blocks to begin, served in turn */
	uint32_t n_queued; /* ops of these clients */
	/* ops in a row whose next block may not be begun now... */
	uint32_t n_passed;
	uint32_t round; /* ...and which of these rounds it is, from 1 */
};

#endif
