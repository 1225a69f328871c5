/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op.h - what request.c (the steps of a block) and op.c (the life of an op) share. Nobody else includes it.
 */
#ifndef KVTIER_OP_H
#define KVTIER_OP_H

#include "../tiers/tier.h"
#include "device.h"
#include "lease.h"
#include "log.h"
#include "loop.h"
#include "request.h"

struct mount;

enum step { STORE_ADMIT, STORE_PLACE, STORE_ENCODE, STORE_COMMIT, LOAD_LOOKUP, LOAD_PIN, LOAD_SERVE, LOAD_CHECK };

/* One block of a request in flight. */
struct part {
	struct device_job job;		/* also key (job.identity), page, and slot (job.image) */
	struct request *request;
	struct part *next;		/* pool, or the request's parts in chain order (stores) */
	uint32_t at;			/* position in the op */
	enum step step;
	int status;			/* as it will be told: enum in kvtier.h */
	bool placed;			/* owns `where` */
	bool waiting_turn;
	struct extent where;
	struct lease lease;		/* load: while read. store: on a block that was already there */
};

/* One op. */
struct request {
	struct kvtierd *d;
	struct conn *conn;
	struct mount *mount;
	struct request *next, **link;		/* the connection's list; next: or the pool */
	struct request *queue_next;
	bool queued;				/* stands in its client's queue: may not be freed */
	bool abandoned;				/* its client is gone */
	struct wire_sqe sqe;
	uint64_t tick, submit_ns;
	uint32_t next_block;			/* not yet begun: from here on */
	uint32_t settled;			/* blocks that have their status */
	int chain_error;			/* store: why no further block can be committed; 0 = none */
	uint32_t fresh;				/* store: blocks at the end of the chain that this op committed */
	struct part *parts, **parts_end;	/* store: begun and not committed, in chain order */
	struct lease tail;			/* store: the last committed block of the chain */
	struct loop_timer deadline;
};

struct requests {
	struct kvtierd *d;
	uint32_t max_ops, outstanding;
	struct request *free_requests;
	struct part *free_parts;
	struct conn *queue, **queue_end;	/* clients with blocks to begin, served in turn */
	struct loop_poller poller;
	struct log_limit log;
	struct request *request_pool;
	struct part *part_pool;
};

/* request.c: walks the part's steps as far as they go, then those of parts that waited for it. */
void part_run(struct part *part);

/* op.c: the block's status is final; the part goes back to the pool. Returns the part whose turn has come. */
struct part *op_part_done(struct part *part);
/* op.c: completes the op if all its blocks are settled; q may be gone afterwards. */
void op_finish_if_settled(struct request *q);

#endif
