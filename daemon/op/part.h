/* SPDX-License-Identifier: Apache-2.0 */
/*
 * part.h - what request.c (the steps of a block) and op.c (the life of an op) share. Nobody else includes it.
 */
#ifndef KVTIER_PART_H
#define KVTIER_PART_H

#include "tiers/tier.h"
#include "daemon/device/device.h"
#include "daemon/store/lease.h"
#include "daemon/base/log.h"
#include "daemon/base/loop.h"
#include "op.h"

struct space;
struct mount;

enum step {
	STORE_ADMIT, STORE_PLACE, STORE_ENCODE, STORE_COMMIT,
	LOAD_LOOKUP, LOAD_PIN, LOAD_ROOM, LOAD_FETCH, LOAD_PROBE, LOAD_REMOTE_ROOM, LOAD_REMOTE, LOAD_SERVE, LOAD_CHECK,
	LOAD_KEEP, LOAD_END,
};
enum verdict { CONTINUE, WAIT, DONE };

/* A part in fetch.c's list. */
enum fetch {
	FETCH_NOT,
	FETCH_ROOM,	/* no slot can be had now; store or load */
	FETCH_AGAIN,	/* the tier takes no more reads now */
	FETCH_READING,	/* its xfer is lent */
	FETCH_READ,	/* that ended; it is being verified and served, or about to end */
	FETCH_JOINED,	/* another part reads the same block */
	FETCH_BEHIND,	/* another part brings the same block from Redis, see remote.c */
};

/* One block of a request in flight. */
struct part {
	struct device_job job;		/* also key (job.identity), page, and slot (job.image) */
	struct op *op;	/* NULL: in the pool */
	struct part *next;		/* pool, or the request's parts in chain order (stores) */
	uint32_t at;			/* position in the op */
	enum step step;
	int status;			/* as it will be told: enum in kvtier.h */
	bool placed;			/* owns `where` */
	bool waiting_turn;
	uint64_t in_flight_bytes;	/* share.c's */
	struct extent where;
	struct lease lease;		/* load: while read. store: on a block that was already there */
	/* fetch.c's */
	enum fetch fetch;
	struct part *fetch_next, **fetch_link;
	bool reread;			/* it was read before, and was bad */
	struct xfer xfer;
	/* remote.c's */
	uint8_t before[32];		/* key of the block before it, in the op or as its parent; else 0 */
	uint32_t remote_bytes;		/* what its image is thought to have; 0: it is in a local tier */
	struct part *leader;		/* BEHIND: who brings it; NULL: that one has ended */
	uint64_t behind_ns;		/* when it first was; 0: never */
	bool asked;			/* Redis said that it has the block, or does not let us ask: room may be made for it */
	bool leads;			/* it brings the block itself; others may stand behind it, once it is no longer BEHIND */
	bool missed;			/* Redis was asked, and did not have it; also for those behind */
	bool unkept;			/* it was served, and is in no tier now */
};

/* One op. */
struct op {
	struct kvtierd *d;
	struct conn *conn;
	struct mount *mount;
	struct op *next, **link;		/* the connection's list; next: or the pool */
	struct op *queue_next;
	bool queued;				/* stands in its client's queue: may not be freed */
	uint32_t passed_round;			/* of pump(): it was passed over in this one */
	bool abandoned;				/* its client is gone */
	bool ending;				/* end_early() is at work: may not be freed */
	int early;				/* it was ended early, with this status: nothing may wait any more; 0 */
	bool told;				/* that it is cancelled */
	struct wire_sqe sqe;
	uint64_t tick, submit_ns;
	uint32_t next_block;			/* not yet begun: from here on */
	uint32_t settled;			/* blocks that have their status */
	int chain_error;			/* store: why no further block can be committed; 0 = none */
	uint32_t fresh;				/* store: blocks at the end of the chain that this op committed */
	struct part *parts, **parts_end;	/* store: begun and not committed, in chain order */
	uint8_t last_key[32];			/* of the block begun last; at first the parent's */
	uint32_t remote_end;			/* prefetch: the first block that Redis does not have */
	uint32_t n_waiting;			/* load: parts in LOAD_KEEP whose turn has not come */
	/* share.c's */
	bool begun;				/* a block was */
	uint32_t n_parts;
	uint64_t in_flight_bytes;		/* store: for the end of its chain */
	struct lease tail;			/* store: the last committed block of the chain */
	struct loop_timer deadline;
};

struct ops {
	struct kvtierd *d;
	uint32_t max_ops, outstanding;
	struct op *free_ops;
	struct part *free_parts;
	struct part *fetches, **fetches_end;	/* parts that wait for NVMe or for room, see fetch.c */
	uint32_t n_fetches, max_fetches;	/* at the maximum no block that is away is begun, see pump() */
	uint64_t room_progress;			/* when room was last looked for in vain... */
	uint64_t room_progress_ns;		/* ...and when that was last another than before */
	struct conn *queue, **queue_end;	/* clients with blocks to begin, served in turn */
	uint32_t n_queued;			/* ops in those */
	uint32_t n_passed;			/* ops in a row whose next block may not be begun now... */
	uint32_t round;				/* ...and which of these rounds it is, from 1 */
	uint32_t room_round;			/* of fetch_retry() */
	uint32_t n_free_parts;
	struct loop_poller poller;
	struct log_limit log;
	struct op *op_pool;
	struct part *part_pool;
	uint32_t n_parts;
};

/* request.c: walks the part's steps as far as they go, then those of parts that waited for it. */
void part_run(struct part *part);

/* request.c: the image becomes a block under parent: 0. 1: it is there already, and the part's slot was given back.
 * -ENOSPC. Of the part: where, job.identity, job.codec_k. */
int  part_enter(struct kvtierd *d, struct part *part, uint32_t parent, uint32_t *ret);

/* fetch.c: a part gets a slot; a block that is away comes into it. Steps of request.c's table, and what it needs around
 * them. */
enum verdict load_room(struct kvtierd *d, struct part *part);
enum verdict load_fetch(struct kvtierd *d, struct part *part);
/* A slot for the part: 0. -EAGAIN: it waits in the list, and its step runs again. -ENOSPC. */
int  fetch_slot(struct kvtierd *d, struct part *part, uint32_t bytes);
/* Whether the part got a slot that is free as it is: nothing is evicted for it, and nobody overtaken. */
bool fetch_free_slot(struct kvtierd *d, struct part *part, uint32_t bytes);
/* The part waits, or reads: deadlines and cancels find it there. */
void fetch_list(struct ops *all, struct part *part, enum fetch why);
/* The image was verified: the slot becomes the block's. */
void fetch_promote(struct kvtierd *d, struct part *part);
/* The image is bad: true: it is read once more; false: for good, the copy was dropped. */
bool fetch_again(struct kvtierd *d, struct part *part);
/* The part is about to end: it leaves the list, if it is there, and those who waited for its read go on. */
void fetch_leave(struct kvtierd *d, struct part *part);
/* Parts of q that wait end with this status, those whose read is under way as soon as the tier let go. */
void fetch_end_early(struct op *q, int status);
/* The next block of q would have to be fetched, and too many are: q has to wait. */
bool fetch_must_wait(const struct op *q);
/* Tries again what the tier refused, and what found no room. */
bool fetch_retry(struct ops *all);
void unplace(struct kvtierd *d, struct part *part);	/* request.c: gives its slot back, if it has one */

/* remote.c: steps, and what request.c needs around them. A block that no local tier has is worth to be asked for: */
bool remote_wanted(const struct kvtierd *d, const struct space *space, const uint8_t key[32]);
enum verdict remote_begin(struct kvtierd *d, struct part *part);
enum verdict load_probe(struct kvtierd *d, struct part *part);
enum verdict load_remote_room(struct kvtierd *d, struct part *part);
enum verdict load_remote(struct kvtierd *d, struct part *part);
enum verdict load_keep(struct kvtierd *d, struct part *part);
void remote_leave(struct kvtierd *d, struct part *part);	/* it ends: those behind it go on, in remote_retry() */
bool remote_retry(struct ops *all);
void remote_count(struct kvtierd *d, const struct part *part);		/* it was good */
void remote_corrupt(struct kvtierd *d, struct part *part);		/* its checksum was wrong */

/* op.c: the block's status is final; the part goes back to the pool. Returns the part whose turn has come. */
struct part *op_part_done(struct part *part);
bool op_part_runs(const struct op *q, uint32_t at);	/* that block was begun, and its status is not final */
/* op.c: something ended: ops that were passed over may go on. */
void op_look_again(struct ops *all);
/* op.c: completes the op if all its blocks are settled; q may be gone afterwards. */
void op_finish_if_settled(struct op *q);

#endif
