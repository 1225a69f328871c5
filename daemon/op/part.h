/* SPDX-License-Identifier: Apache-2.0 */
/*
 * part.h - one block of an op in flight, the op, and all ops: the structs that the files of this
 * folder share. Types alone. Core thread only.
 *
 *	file       owns of it             does
 *	op.c       op, link, at           the pools, made at start; the life of an op: its entry is
 *					  checked, its blocks begin in turn, tasks go from step to
 *					  step, it completes
 *	task.c     task.ready, .full      waking, jobs of the device, images that become blocks
 *	store.c    status                 the steps of a store
 *	load.c     task.source, before,   the steps of a load and of a prefetch; which layers are in
 *		   group, groups          the pages of all blocks
 *	flight.c   flight, with, brought  brings a block into host memory, for all that want it
 *	hint.c     hint                   hints about blocks
 *	room.c     task.room              slots, and the queue for them
 *	schedule.c queue, in_flight_bytes whose block begins next; how much a process may have
 *	trace.c    trace (of an op)       the last steps
 *
 * The order of calls: conn/conn.c -> op.c; op.c -> through the table of task.c store.c, hint.c,
 * load.c -> flight.c -> room.c -> schedule.c; all of them use task.c, schedule.c and trace.c, which
 * call no other file of these. Waking is a push on the run queue (task.h).
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "client/abi/wire.h"
#include "base/list.h"
#include "base/log.h"
#include "base/loop.h"
#include "daemon/move/copies.h"
#include "daemon/move/gpu_cache.h"
#include "flight.h"
#include "load.h"
#include "hint.h"
#include "room.h"
#include "task.h"

struct part {
	struct task task; /* lease. load: while read; store: on a block that was there already */
	struct op *op;
	struct list link; /* the op's parts, in order of blocks; or the pool */
	uint32_t at;      /* position in the op */
	uint32_t group;   /* the group of layers that it is about; 0 in a store */
	int status;       /* the block's status, as the client will get it (kvtier.h) */
	/* key of the block before it: in the op, or the op's parent; all 0 if there is none */
	uint8_t before[32];
	struct flight *flight; /* the flight that it has joined, or NULL */
	struct list with;      /* links it with the other parts of that flight */
	/* result of its last flight: 0: landed; 1: look the block up again; < 0: -errno */
	int brought;
	uint64_t in_flight_bytes;
	struct gpu_use gpu; /* what it has in the memory of the GPU that its pages are in */
};

/* One op. */
struct op {
	struct ops *all;
	struct client *client;
	struct mount *mount;
	struct op *next, **link; /* the connection's list, newest first; next: or the pool */
	/* store: the older one in this list that stores the parent, until it has ended */
	struct op *after;
	struct list queue;     /* in its process's queue while it has blocks to begin */
	uint32_t passed_round; /* the round of pump() in which it was passed over */
	bool abandoned;        /* its client is gone */
	/* the status that it was ended early with, after which its parts may not wait; else 0 */
	int early;
	struct wire_sqe sqe;
	struct stream_order *order; /* the ORDER that its event and word belong to, or NULL */
	/* used: its blocks' ticks begin here, below those of the blocks before them */
	uint64_t tick, used, submit_ns;
	/* Counts of blocks. total: to begin; a load with groups begins all of them for each group
	 * (load.h). Those from next_block on have not begun. settled: done or failed. */
	uint32_t total, next_block, settled;
	struct groups groups;
	/* NULL: its pages are in host memory, or in a GPU that keeps no images */
	struct gpu_cache *gpu;
	struct list growing; /* gpu_cache.c's: copies that grow on that GPU */
	struct op_hint hint;
	uint32_t given; /* store: groups of layers that entries LAYERS have given */
	/* store in four bits: blocks of the chain before its first, as far as they are in host
	 * memory, at most SPACE_FIRST_TOKENS */
	uint32_t before;
	/* store: why no further block can be committed; else 0 */
	int chain_error;
	/* store: blocks at the end of the chain that this op committed */
	uint32_t fresh;
	enum tier_id farthest; /* load: that a block came from so far */
	/* load: where load_must_wait() saw the block before `seen_block` (0: none), which may have
	 * come or gone since. Each round asks every op that waits. */
	enum source seen;
	uint32_t seen_block;
	struct list parts;    /* blocks that have begun and not ended, in order */
	uint8_t last_key[32]; /* of the block begun last; at first the parent's */
	/* load, prefetch: the first block that Redis does not have */
	uint32_t remote_end;
	struct lease tail; /* store: the last committed block of the chain */
	struct loop_timer deadline;
	struct trace *trace;
	/* schedule.c's */
	uint64_t in_flight_bytes; /* store: for the end of its chain */
};

/* Whether the part is about the last of its op's layer groups, or the op has no groups. */
static inline bool is_last_group(const struct part *part)
{
	return !part->op->groups.landed || part->group + 1u == part->op->sqe.groups;
}

/* All ops. The pointers to other rooms do not change after ops_open(). */
struct ops {
	struct tables *tables;
	struct loop *loop;
	struct devices *devices;
	const struct config *config;
	struct quota *quota;
	/* schedule.c's */
	uint64_t guaranteed_ns; /* when the guarantees of spaces were made last; 0: never */
	struct list asking;     /* clients that began an op; client.asking */
	uint32_t n_peers;       /* processes with ops */
	uint32_t max_ops, outstanding;
	uint32_t n_parts, n_free_parts;
	/* free: a list; and all of the pool from n_used on, which is untouched */
	struct op *op_pool, *free_ops;
	uint32_t n_used;
	uint32_t (*landed_pool)[WIRE_MAX_GROUPS]; /* load.c's: a row for each op of op_pool */
	struct part *part_pool;
	struct list free_parts;
	struct list ready; /* the run queue: tasks that can go on */
	struct list full;  /* tasks that a device had no room for */
	struct room room;
	struct flights flights;
	struct traces *traces;
	/* op.c's */
	struct loop_poller poller;
	uint32_t n_stores; /* outstanding */
	struct list queue; /* clients with blocks to begin, served in turn */
	uint32_t n_queued; /* ops of these clients */
	/* ops in a row whose next block could not begin... */
	uint32_t n_passed;
	uint32_t round; /* ...and which of these rounds it is, from 1 */
};
