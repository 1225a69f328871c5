/* SPDX-License-Identifier: Apache-2.0 */
/*
 * writeback.c - blocks that have only a host copy are written to NVMe. Contract: writeback.h. Core
 * thread only; no memory is allocated after open.
 *
 *          writeback_add               admit_ask(), room in the tier           ended
 *  host only ──────> queued, in order ────────────────────────────────> writing ──> host and NVMe
 *      ^                  │ dropped, or refused by admit_ask()              │
 *      └──────────────────┴────────────────────── error ────────────────────┘
 *
 * A flush:
 *	    writeback_flush  table walked       queue served      writes ended
 *  IDLE ──────────────> QUEUE ───────────> WRITE ───────────> END ───────────> SEAL
 *    ^                    │ hopeless         │ hopeless         │ stuck          │ tier_flush()
 *    │                    v                  v                  v                v ended, or stuck
 *    └──────────────── done(status) ─────────────────────────────────────────────┘
 *
 * Invariants
 *   W1 A block is marked queued (block.h) from writeback_add() until its write has ended, so it
 *      stands in the queue once. The queue holds block numbers without pins. At a number's turn the
 *      block may be gone: then the mark is missing. The number may also have been given to another
 *      block, which has its own mark and is written in its stead.
 *   W2 A block is leased while it is written: it is not evicted or moved. At most `writes` blocks
 *      are written at once.
 *   W3 The queue keeps the order of commits, so admit_ask() is asked about a parent before its
 *      children. It refuses a child whose parent is not on NVMe and not queued: after a restart
 *      no load could find that child.
 *   F1 QUEUE puts each block without an NVMe copy into the queue. WRITE waits until the queue has
 *      served the entries that it held at the end of QUEUE. END waits for the writes that had been
 *      started by then. Blocks stored meanwhile stand behind them, so a flush ends though stores go
 *      on.
 *   F2 Every wait has an end: a disk that stalls and a write budget that is used up do not keep the
 *      asker for ever.
 */
#include "writeback.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/stats/stats.h"
#include "base/list.h"
#include "daemon/move/copies.h"
#include "daemon/move/lesser.h"
#include "daemon/table/space.h"
#include "daemon/move/tables.h"
#include "base/log.h"
#include "base/loop.h"
#include "tiers/nvme/nvme.h"

enum {
	QUEUE = 1 << 16,    /* blocks */
	PER_ITERATION = 64, /* queue entries looked at in one iteration of the loop */
	/* While blocks are written the next ones wait until there are so many, which are one
	 * transfer or a few (tiers/io/io.h, "Runs"), or until all writes have ended. */
	ROW = 16,
	/* after the tier refused, if it does not tell: events.changed in nvme.h */
	RETRY_NS = 200000000,
	PAUSE_NS = 500000000, /* a tier that works may pause so long, for any reason */
	/* a flush */
	SLICE = 4096,          /* block numbers looked at in one iteration */
	WATCH_NS = 1000000000, /* it is looked at so often; */
	STUCK_LOOKS = 10,      /* so many looks without a write that ended: it is stuck */
};

struct write {
	struct xfer x; /* first: done() gets back to us */
	struct writeback *writeback;
	struct lease lease;
	uint64_t number;    /* of starts_total */
	struct write *next; /* free */
};

enum flush_stage { STAGE_IDLE, STAGE_QUEUE, STAGE_WRITE, STAGE_END, STAGE_SEAL };

struct flush {
	enum flush_stage stage;
	bool last;
	uint32_t cursor;       /* QUEUE: in the block table */
	uint64_t until;        /* WRITE: of served_total, END: of starts_total */
	uint64_t ended_before; /* ended_total at the last look */
	uint32_t stuck;        /* looks in a row at which it had not grown */
	struct loop_timer watch;
	void (*done)(void *arg, int status); /* NULL: the asker has gone */
	void *arg;
	/* a stop: its limit, and whom to tell */
	struct loop_timer limit;
	void (*drained)(void *arg);
	void *drained_arg;
};

struct writeback {
	struct tables *tables;
	struct tier *tier;
	struct loop *loop;
	struct admit admit;
	struct flush flush;
	uint32_t stop_us;
	struct loop_poller poller, flush_poller;
	struct loop_timer retry;
	/* the policy was asked about the head, which waits for room in the tier */
	bool head_admitted;
	/* the tier refused; until a write ends, a kick, or the timer */
	bool blocked, stopped;
	uint32_t head, count; /* of the queue */
	uint32_t in_flight;
	uint64_t served_total, starts_total;
	uint64_t ended_total; /* writes, of any status */
	/* when a write was last started or ended, or the queue was empty */
	uint64_t moved_ns;
	uint32_t n_writes;
	struct write *writes, *free;
	bool write_all; /* a flush asks for everything: admit_ask() is not asked */
	int failure;    /* first one since that flush began; 0 */
	uint32_t queue[QUEUE];
};

/* --- admission --- */

/* Whether the key was there; it is now, as the latest of its bucket. */
static bool remember(struct admit *admit, const uint8_t key[32])
{
	uint32_t word[2], at = 0;

	memcpy(word, key, sizeof(word));
	uint32_t *const bucket = admit->bucket[word[0] % ADMIT_BUCKETS];
	const uint32_t fingerprint = word[1] ? word[1] : 1;

	while (at < ADMIT_WAYS - 1 && bucket[at] != fingerprint)
		at++;
	const bool found = bucket[at] == fingerprint;
	memmove(bucket + 1, bucket, at * sizeof(*bucket)); /* over it, or over the oldest */
	bucket[0] = fingerprint;
	return found;
}

bool admit_ask(struct admit *admit, const uint8_t key[32], uint32_t budget_percent,
	       bool parent_there)
{
	if (parent_there && budget_percent >= ADMIT_PLENTY_PERCENT)
		return true;
	return remember(admit, key) && parent_there;
}

/* --- the queue --- */

void writeback_kick(struct writeback *w)
{
	w->blocked = false;
}

uint32_t writeback_in_flight(const struct writeback *w)
{
	return w ? w->in_flight : 0;
}

/* Whether the tier may still take queued blocks or end writes under way. Every I/O of a disk that
 * is up ends within [nvme] stall_us, or the disk is offline then; a pause as long as that is a slow
 * disk's. */
static bool may_go_on(const struct writeback *w)
{
	static const uint8_t any[32];
	const struct tier *t = w->tier;

	return tier_writable(t, &(struct tier_name){ .key = any }) &&
	       (w->in_flight > 0 || nvme_budget_percent(t) > 0);
}

bool writeback_moving(const struct writeback *w)
{
	uint64_t still_ns;

	if (!w || (w->in_flight == 0 && w->count == 0))
		return false;
	still_ns = loop_now(w->loop) - w->moved_ns;
	return still_ns < PAUSE_NS || (still_ns < w->tier->patience_ns && may_go_on(w));
}

/* The number of the oldest write under way; UINT64_MAX: no write is. */
static uint64_t oldest_write(const struct writeback *w)
{
	uint64_t oldest = UINT64_MAX;

	for (uint32_t i = 0; i < w->n_writes; i++)
		if (w->writes[i].lease.held && w->writes[i].number < oldest)
			oldest = w->writes[i].number;
	return oldest;
}

bool writeback_holds(const struct writeback *w, uint32_t block)
{
	if (!w || !blocks_queued(w->tables->blocks, block))
		return false;
	for (uint32_t i = 0; i < w->n_writes; i++)
		if (w->writes[i].lease.held && w->writes[i].lease.block == block)
			return true;
	return false;
}

static bool wanted(const struct blocks *blocks, uint32_t block)
{
	return blocks_host_slot(blocks, block) != BLOCK_NONE && !blocks_nvme(blocks, block, NULL);
}

/* False: the queue is full. */
static bool enqueue(struct writeback *w, uint32_t block)
{
	if (w->count == QUEUE)
		return false;
	blocks_set_queued(w->tables->blocks, block, true);
	if (w->count == 0 && w->in_flight == 0)
		w->moved_ns = loop_now(w->loop);
	w->queue[(w->head + w->count++) % QUEUE] = block;
	stats_set(&w->tables->stats->v.tiers_nvme_queued_blocks, w->count);
	return true;
}

void writeback_add(struct writeback *w, uint32_t block)
{
	/* A purge may have dropped it since the store that met it. */
	if (!w || !blocks_live(w->tables->blocks, block) || !wanted(w->tables->blocks, block) ||
	    blocks_queued(w->tables->blocks, block))
		return;
	if (!enqueue(w, block))
		stats_add(&w->tables->stats->v.tiers_nvme_skipped_queue_blocks_total, 1);
}

static void dequeue(struct writeback *w)
{
	w->head = (w->head + 1) % QUEUE;
	w->head_admitted = false;
	w->count--;
	w->served_total++;
	stats_set(&w->tables->stats->v.tiers_nvme_queued_blocks, w->count);
}

/* --- one write --- */

static void note_failure(struct writeback *w, int status)
{
	if (!w->failure)
		w->failure = status;
}

static void write_ended(struct writeback *w, struct write *write)
{
	struct tables *tables = w->tables;

	write->next = w->free;
	w->free = write;
	w->in_flight--;
	w->ended_total++;
	w->moved_ns = loop_now(w->loop);
	w->blocked = false;
	lease_drop(tables, &write->lease);
}

static void write_done(struct xfer *x)
{
	struct write *write = (struct write *)(void *)x;
	struct writeback *w = write->writeback;
	struct tables *tables = w->tables;
	const uint32_t block = write->lease.block;

	if (x->status) {
		note_failure(w, x->status);
		log_warning("nvme_write", "a block could not be written to NVMe: %s",
			    strerror(-x->status));
	} else if (!blocks_live(tables->blocks, block) ||
		   blocks_nvme(tables->blocks, block, NULL)) {
		/* while it was written it was dropped, or recovery found an older copy of it */
		extents_forget(tables, &x->where, x->record.tick);
	} else {
		blocks_set_nvme(tables->blocks, block, &x->where);
		extents_touch(tables, &x->where, x->record.tick,
			      blocks_tick(tables->blocks, block));
		stats_add(&tables->stats->v.tiers_nvme_written_bytes_total, x->bytes);
		stats_add(&tables->stats->v.tiers_nvme_requantised_blocks_total, x->codec != 0);
	}
	if (blocks_live(tables->blocks, block))
		blocks_set_queued(tables->blocks, block, false);
	write_ended(w, write);
}

/* 0: on its way. -EAGAIN: try again. Another -errno: this block cannot be written. */
static int start(struct writeback *w, uint32_t block)
{
	struct tables *tables = w->tables;
	const struct space *space = space_at(tables->spaces, blocks_space(tables->blocks, block));
	const uint32_t parent = blocks_parent(tables->blocks, block),
		       bytes = copies_image_bytes(tables, block);
	struct write *write = w->free;
	struct extent where;
	int r;

	if (!write)
		return -EAGAIN;
	if (!space || !bytes || !extents_in_host(tables, block, &where))
		return -EINVAL;
	memset(&write->x, 0, sizeof(write->x));
	write->x.op = XFER_WRITE;
	write->x.behind = true;
	write->x.buffer = extents_address(tables, &where);
	write->x.bytes = bytes;
	write->x.done = write_done;
	write->x.codec = lesser_codec(tables, block, TIER_NVME);
	write->x.record.tick = blocks_tick(tables->blocks, block);
	memcpy(write->x.record.owner, space->owner, sizeof(space->owner));
	if (parent != BLOCK_NONE)
		memcpy(write->x.record.parent, blocks_key(tables->blocks, parent), 32);
	r = tier_submit(w->tier, &write->x);
	if (r)
		return r;
	w->free = write->next;
	w->in_flight++;
	w->moved_ns = loop_now(w->loop);
	write->number = ++w->starts_total;
	lease_take(tables, &write->lease, block);
	return 0;
}

static bool parent_there(const struct blocks *blocks, uint32_t block)
{
	const uint32_t parent = blocks_parent(blocks, block);

	return parent == BLOCK_NONE || blocks_nvme(blocks, parent, NULL) ||
	       blocks_queued(blocks, parent);
}

static bool admitted(struct writeback *w, uint32_t block)
{
	struct tables *tables = w->tables;

	if (w->head_admitted || w->write_all)
		return true;
	w->head_admitted = true;
	if (admit_ask(&w->admit, blocks_key(tables->blocks, block), nvme_budget_percent(w->tier),
		      parent_there(tables->blocks, block)))
		return true;
	stats_add(&tables->stats->v.tiers_nvme_skipped_budget_blocks_total, 1);
	return false;
}

static void on_retry(struct loop_timer *timer)
{
	struct writeback *w = container_of(timer, struct writeback, retry);

	w->blocked = false;
}

static void block_for_now(struct writeback *w)
{
	w->blocked = true;
	loop_timer_unset(w->loop, &w->retry);
	loop_timer_set(w->loop, &w->retry, loop_now(w->loop) + RETRY_NS);
}

/* The entry at the head of the queue. False: it stays there, the tier takes no write now. */
static bool serve_head(struct writeback *w)
{
	struct tables *tables = w->tables;
	const uint32_t block = w->queue[w->head];
	int r;

	/* It is gone, or written already; or its number was used again, and the other entry's write
	 * is under way. */
	if (!blocks_live(tables->blocks, block) || !blocks_queued(tables->blocks, block) ||
	    writeback_holds(w, block)) {
		dequeue(w);
		return true;
	}
	if (!wanted(tables->blocks, block)) {
		blocks_set_queued(tables->blocks, block, false);
		dequeue(w);
		return true;
	}
	if (!tier_writable(w->tier,
			   &(struct tier_name){ .key = blocks_key(tables->blocks, block) })) {
		block_for_now(w);
		return false;
	}
	r = w->free ? 0 : -EAGAIN;
	if (r == 0 && !admitted(w, block))
		r = -EPERM;
	if (r == 0)
		r = start(w, block);
	if (r == -EAGAIN) {
		block_for_now(w);
		return false;
	}
	if (r) {
		blocks_set_queued(tables->blocks, block, false);
		if (r != -EPERM)
			note_failure(w, r);
	}
	dequeue(w);
	return true;
}

/* --- a flush --- */

static void end(struct writeback *w, int status)
{
	void (*done)(void *arg, int status) = w->flush.done;

	w->flush.stage = STAGE_IDLE;
	w->flush.done = NULL;
	w->write_all = false;
	loop_timer_unset(w->loop, &w->flush.watch);
	if (done)
		done(w->flush.arg, status);
}

static void sealed(void *arg, int status)
{
	struct writeback *w = arg;

	if (w->flush.stage == STAGE_SEAL) /* else its flush was given up */
		end(w, status ? status : w->failure);
}

static void add(void *arg, uint32_t block)
{
	struct writeback *w = arg;

	writeback_add(w, block); /* there is room: step() saw to it */
}

/* Why the queue will not be written, where waiting is in vain: no disk takes writes, or
 * the budget is used up, and a day is long. 0: it will be written. */
static int hopeless(const struct writeback *w)
{
	static const uint8_t any[32];
	const struct tier *t = w->tier;

	if (w->count == 0 || w->in_flight > 0 || tier_state(t) == TIER_STARTING)
		return 0;
	if (!tier_writable(t, &(struct tier_name){ .key = any }) &&
	    (w->flush.last || nvme_answers(t)))
		return tier_state(t) == TIER_OFFLINE ? -ENODEV : -EROFS;
	return w->blocked && nvme_budget_percent(t) == 0 ? -EDQUOT : 0;
}

static bool seal(struct writeback *w)
{
	const int r = tier_flush(w->tier, w->flush.last, sealed, w);

	if (r == -EBUSY) /* a flush that was given up is still sealing: asked again later */
		return false;
	w->flush.stage = STAGE_SEAL;
	if (r)
		end(w, r);
	return true;
}

static bool step(struct writeback *w)
{
	const int why =
		w->flush.stage == STAGE_QUEUE || w->flush.stage == STAGE_WRITE ? hopeless(w) : 0;

	if (why) {
		end(w, why);
		return true;
	}
	switch (w->flush.stage) {
	case STAGE_QUEUE:
		if (QUEUE - w->count < SLICE)
			return false; /* first some must be written */
		if (!blocks_walk(w->tables->blocks, &w->flush.cursor, SLICE, add, w)) {
			w->flush.stage = STAGE_WRITE;
			w->flush.until = w->served_total + w->count;
		}
		return true;
	case STAGE_WRITE:
		if (w->served_total < w->flush.until)
			return false;
		w->flush.stage = STAGE_END;
		w->flush.until = w->starts_total;
		w->write_all = false;
		return true;
	case STAGE_END:
		return oldest_write(w) > w->flush.until &&
		       (w->flush.last || nvme_answers(w->tier)) && seal(w);
	default:
		return false;
	}
}

static bool flush_poll(struct loop_poller *poller)
{
	return step(container_of(poller, struct writeback, flush_poller));
}

static void on_watch(struct loop_timer *timer)
{
	struct writeback *w = container_of(timer, struct writeback, flush.watch);
	const uint64_t ended = w->ended_total;

	w->flush.stuck = ended == w->flush.ended_before || w->flush.stage == STAGE_SEAL ?
				 w->flush.stuck + 1 :
				 0;
	w->flush.ended_before = ended;
	if (w->flush.stuck < STUCK_LOOKS)
		loop_timer_set(w->loop, &w->flush.watch, loop_now(w->loop) + WATCH_NS);
	else if (w->flush.stage == STAGE_SEAL)
		end(w, -ETIMEDOUT);
	else
		end(w, nvme_answers(w->tier) ? -EDQUOT : -EIO);
}

int writeback_flush(struct writeback *w, bool last, void (*done)(void *arg, int status), void *arg)
{
	if (!w)
		return -ENODEV;
	if (w->flush.stage != STAGE_IDLE)
		return -EBUSY;
	w->flush.stage = STAGE_QUEUE;
	w->flush.last = last;
	w->flush.cursor = w->flush.stuck = 0;
	w->flush.ended_before = w->ended_total;
	w->flush.done = done;
	w->flush.arg = arg;
	w->write_all = true;
	w->failure = 0;
	w->blocked = false;
	loop_timer_set(w->loop, &w->flush.watch, loop_now(w->loop) + WATCH_NS);
	return 0;
}

void writeback_flush_cancel(struct writeback *w, void *arg)
{
	if (w && w->flush.arg == arg)
		w->flush.done = NULL;
}

/* --- at a stop --- */

/* Blocks still to be written are given up: a disk ends the writes that it has. */
static void drain_over(struct writeback *w)
{
	w->stopped = true;
	loop_timer_unset(w->loop, &w->flush.limit);
	w->flush.drained(w->flush.drained_arg);
}

static void drained(void *arg, int status)
{
	struct writeback *w = arg;

	if (status)
		log_warning("nvme_drain", "the NVMe tier could not take all that was in memory: %s",
			    strerror(-status));
	drain_over(w);
}

static void late(struct loop_timer *limit)
{
	struct writeback *w = container_of(limit, struct writeback, flush.limit);

	log_warning(
		"nvme_drain",
		"[daemon] stop_us is over: what was not yet written stays out of the NVMe tier");
	writeback_flush_cancel(w, w);
	drain_over(w);
}

void writeback_drain(struct writeback *w, void (*done)(void *arg), void *arg)
{
	if (!w) {
		done(arg);
		return;
	}
	if (w->flush.stage != STAGE_IDLE)
		end(w, -ESHUTDOWN); /* the flush of an operator, who is gone by now */
	w->flush.drained = done;
	w->flush.drained_arg = arg;
	w->flush.limit.fire = late;
	loop_timer_set(w->loop, &w->flush.limit, loop_now(w->loop) + w->stop_us * 1000ull);
	(void)writeback_flush(w, true, drained, w); /* no flush is under way */
	log_info("nvme_drain", "writing what is only in memory to NVMe, at most %u ms",
		 w->stop_us / 1000);
}

/* --- life --- */

static bool poll(struct loop_poller *poller)
{
	struct writeback *w = container_of(poller, struct writeback, poller);
	bool worked = false;

	if (w->in_flight > 0 && w->count < ROW)
		return false;
	for (int i = 0; i < PER_ITERATION && w->count > 0 && !w->blocked && !w->stopped; i++)
		worked = serve_head(w) || worked;
	return worked;
}

int writeback_open(const struct writeback_conf *conf, struct writeback **ret)
{
	struct writeback *w = calloc(1, sizeof(*w));

	if (!w)
		return -ENOMEM;
	assert(conf->tier);
	w->tables = conf->tables;
	w->tier = conf->tier;
	w->loop = conf->loop;
	w->n_writes = conf->writes;
	w->poller.poll = poll;
	w->retry.fire = on_retry;
	w->stop_us = conf->stop_us;
	w->flush_poller.poll = flush_poll;
	w->flush.watch.fire = on_watch;
	w->writes = calloc(conf->writes, sizeof(*w->writes));
	if (!w->writes) {
		free(w);
		return -ENOMEM;
	}
	for (uint32_t i = conf->writes; i-- > 0;) {
		w->writes[i].writeback = w;
		w->writes[i].next = w->free;
		w->free = &w->writes[i];
	}
	loop_poller_add(w->loop, &w->poller);
	loop_poller_add(w->loop, &w->flush_poller);
	*ret = w;
	return 0;
}

void writeback_close(struct writeback *w)
{
	if (!w)
		return;
	assert(w->in_flight == 0);
	loop_poller_remove(w->loop, &w->flush_poller);
	loop_poller_remove(w->loop, &w->poller);
	loop_timer_unset(w->loop, &w->flush.watch);
	loop_timer_unset(w->loop, &w->retry);
	free(w->writes);
	free(w);
}
