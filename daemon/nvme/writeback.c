/* SPDX-License-Identifier: Apache-2.0 */
/*
 * writeback.c - see writeback.h. Core thread only; nothing is allocated after open.
 *
 *	          writeback_add                    policy (admit.c), room in the tier           ended
 *	host only ──────────────> queued, in order ───────────────────────────────> writing ─────────> host and NVMe
 *	    ^                        │ dropped, or refused by the policy               │
 *	    └────────────────────────┴────────────────────── error ───────────────────┘
 *
 * Invariants
 *   W1 a block is marked queued (block.h) from writeback_add() until its write ended, so it stands in the queue once.
 *      The queue holds numbers without pins: what it finds at a number's turn may be gone, or another block; then
 *      the mark is missing, or is that of the other one, whose write is just as good.
 *   W2 while it is written a block is leased: neither evicted nor moved. At most `writes` are.
 *   W3 order is that of commits, so a parent is asked for before its children, and no child is written whose parent
 *      is not (being) written: without it nobody could find it.
 */
#include "writeback.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/container_of.h"
#include "daemon/store/admit.h"
#include "daemon/store/copies.h"
#include "daemon/kvtierd.h"
#include "daemon/store/lease.h"
#include "daemon/base/log.h"
#include "storage.h"

enum {
	QUEUE = 1 << 16,		/* blocks */
	TURN = 64,			/* queue entries looked at in one turn of the loop */
	FLUSH_SLICE = 4096,		/* block numbers looked at in one turn */
	RETRY_NS = 200000000,		/* after the tier refused, if it does not tell: events.changed in nvme.h */
	PAUSE_NS = 500000000,		/* longer than a tier that works pauses for reasons of its own */
	STUCK_NS = 1000000000,		/* a flush is looked at so often, ... */
	STUCK_LIMIT = 10,		/* ... and given up after so many times without anything written */
};

struct write {
	struct xfer x;			/* first: done() gets back to us */
	struct writeback *writeback;
	struct lease lease;
	uint64_t number;		/* of starts_total */
	struct write *next;		/* free */
};

/* QUEUE: the table is walked. WRITE: what the queue held then is started. END: what was in flight then ends. What is
 * stored meanwhile comes behind that, so a flush ends though stores go on. */
enum flush_stage { FLUSH_IDLE, FLUSH_QUEUE, FLUSH_WRITE, FLUSH_END, FLUSH_SEAL };

struct flush {
	enum flush_stage stage;
	bool last;
	int status;			/* of the first write that failed */
	uint32_t cursor;
	uint64_t until;			/* WRITE: of dequeues_total; END: of write.number */
	uint64_t writes_before;		/* writes_total when it was last looked at */
	uint32_t stuck;			/* looks without any */
	struct loop_timer watch;
	void (*done)(void *arg, int status);
	void *arg;
};

struct writeback {
	struct kvtierd *d;
	struct admit *admit;
	struct loop_poller poller;
	struct loop_timer retry;
	bool head_admitted;		/* the policy was asked about the head, which waits for room in the tier */
	bool blocked;			/* the tier refused; until a write ends, a kick, or the timer */
	uint32_t head, count;		/* of the queue */
	uint32_t in_flight;
	uint64_t dequeues_total, starts_total;
	uint64_t writes_total;		/* ended, well or not */
	uint64_t moved_ns;		/* when a write was last started or ended, or the queue was empty */
	uint32_t n_writes;
	struct write *writes, *free;
	struct flush flush;
	struct log_limit log;
	uint32_t queue[QUEUE];
};

void writeback_kick(struct writeback *w)
{
	w->blocked = false;
}

uint32_t writeback_in_flight(const struct writeback *w)
{
	return w ? w->in_flight : 0;
}

bool writeback_moving(const struct writeback *w)
{
	return w && (w->in_flight > 0 || w->count > 0) && loop_now(w->d->loop) - w->moved_ns < PAUSE_NS;
}

uint64_t writeback_ended(const struct writeback *w)
{
	return w ? w->writes_total : 0;
}

bool writeback_holds(const struct kvtierd *d, uint32_t block)
{
	const struct writeback *w = d->writeback;

	if (!w || !blocks_queued(d->blocks, block))
		return false;
	for (uint32_t i = 0; i < w->n_writes; i++)
		if (w->writes[i].lease.held && w->writes[i].lease.block == block)
			return true;
	return false;
}

static bool wanted(const struct kvtierd *d, uint32_t block)
{
	return blocks_host_slot(d->blocks, block) != BLOCK_NONE && !blocks_nvme(d->blocks, block, NULL);
}

/* False: the queue is full. */
static bool enqueue(struct writeback *w, uint32_t block)
{
	if (w->count == QUEUE)
		return false;
	blocks_set_queued(w->d->blocks, block, true);
	if (w->count == 0 && w->in_flight == 0)
		w->moved_ns = loop_now(w->d->loop);
	w->queue[(w->head + w->count++) % QUEUE] = block;
	stats_set(&w->d->stats->v.tiers_nvme_queued_blocks, w->count);
	return true;
}

void writeback_add(struct kvtierd *d, uint32_t block)
{
	struct writeback *w = d->writeback;

	/* It may be gone: a store met it, and before its turn came it was purged. */
	if (!w || !blocks_live(d->blocks, block) || !wanted(d, block) || blocks_queued(d->blocks, block))
		return;
	if (!enqueue(w, block))
		stats_add(&d->stats->v.tiers_nvme_skipped_queue_blocks_total, 1);
}

static void dequeue(struct writeback *w)
{
	w->head = (w->head + 1) % QUEUE;
	w->head_admitted = false;
	w->count--;
	w->dequeues_total++;
	stats_set(&w->d->stats->v.tiers_nvme_queued_blocks, w->count);
}

/* --- one write --- */

static void flush_failed(struct writeback *w, int status)
{
	if (!w->flush.status)
		w->flush.status = status;
}

static void write_ended(struct writeback *w, struct write *write)
{
	struct kvtierd *d = w->d;

	write->next = w->free;
	w->free = write;
	w->in_flight--;
	w->writes_total++;
	w->moved_ns = loop_now(d->loop);
	w->blocked = false;
	lease_drop(d, &write->lease);
}

static void write_done(struct xfer *x)
{
	struct write *write = (struct write *)(void *)x;
	struct writeback *w = write->writeback;
	struct kvtierd *d = w->d;
	const uint32_t block = write->lease.block;

	if (x->status) {
		flush_failed(w, x->status);
		log_limited(&w->log, loop_now(d->loop), LOG_LEVEL_WARNING, "a block could not be written to NVMe: %s",
			    strerror(-x->status));
	} else if (!blocks_live(d->blocks, block) || blocks_nvme(d->blocks, block, NULL)) {
		/* it went, or an older copy of it was found, while we wrote */
		nvme_forget(d->tiers[TIER_NVME], &x->where, x->record.tick);
	} else {
		blocks_set_nvme(d->blocks, block, &x->where);
		nvme_touch(d->tiers[TIER_NVME], &x->where, x->record.tick, blocks_tick(d->blocks, block));
		stats_add(&d->stats->v.tiers_nvme_written_bytes_total, x->bytes);
	}
	if (blocks_live(d->blocks, block))
		blocks_set_queued(d->blocks, block, false);
	write_ended(w, write);
}

/* 0: on its way. -EAGAIN: not now. Else not at all. */
static int start(struct writeback *w, uint32_t block)
{
	struct kvtierd *d = w->d;
	const struct space *space = space_at(d->spaces, blocks_space(d->blocks, block));
	const uint32_t parent = blocks_parent(d->blocks, block), bytes = copies_image_bytes(d, block);
	struct write *write = w->free;
	struct extent where;
	int r;

	if (!write)
		return -EAGAIN;
	if (!space || !bytes || tier_extent(d->tiers[TIER_HOST], blocks_host_slot(d->blocks, block), &where))
		return -EINVAL;
	memset(&write->x, 0, sizeof write->x);
	write->x.op = XFER_WRITE;
	write->x.where.tier = TIER_NVME;
	write->x.buffer = tier_address(d->tiers[TIER_HOST], &where);
	write->x.bytes = bytes;
	write->x.done = write_done;
	write->x.record.tick = blocks_tick(d->blocks, block);
	memcpy(write->x.record.owner, space->owner, sizeof space->owner);
	if (parent != BLOCK_NONE)
		memcpy(write->x.record.parent, blocks_key(d->blocks, parent), 32);
	r = tier_submit(d->tiers[TIER_NVME], &write->x);
	if (r)
		return r;
	w->free = write->next;
	w->in_flight++;
	w->moved_ns = loop_now(d->loop);
	write->number = ++w->starts_total;
	lease_take(d, &write->lease, block);
	return 0;
}

static bool parent_there(const struct kvtierd *d, uint32_t block)
{
	const uint32_t parent = blocks_parent(d->blocks, block);

	return parent == BLOCK_NONE || blocks_nvme(d->blocks, parent, NULL) || blocks_queued(d->blocks, parent);
}

static bool admitted(struct writeback *w, uint32_t block)
{
	struct kvtierd *d = w->d;

	if (w->head_admitted || w->flush.stage == FLUSH_QUEUE || w->flush.stage == FLUSH_WRITE)
		return true;	/* a flush asks for everything */
	w->head_admitted = true;
	if (admit_ask(w->admit, blocks_key(d->blocks, block), storage_budget_percent(d), parent_there(d, block)))
		return true;
	stats_add(&d->stats->v.tiers_nvme_skipped_budget_blocks_total, 1);
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
	loop_timer_unset(w->d->loop, &w->retry);
	loop_timer_set(w->d->loop, &w->retry, loop_now(w->d->loop) + RETRY_NS);
}

/* The entry at the head of the queue. False: it stays there, the tier takes nothing now. */
static bool serve_head(struct writeback *w)
{
	struct kvtierd *d = w->d;
	const uint32_t block = w->queue[w->head];
	int r;

	if (!blocks_live(d->blocks, block) || !blocks_queued(d->blocks, block)) {
		dequeue(w);	/* gone, or written already */
		return true;
	}
	if (writeback_holds(d, block)) {
		dequeue(w);	/* a number used again: the other entry's write is under way */
		return true;
	}
	if (!wanted(d, block)) {
		blocks_set_queued(d->blocks, block, false);
		dequeue(w);
		return true;
	}
	if (!nvme_writable(d->tiers[TIER_NVME], blocks_key(d->blocks, block))) {
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
		blocks_set_queued(d->blocks, block, false);
		if (r != -EPERM)
			flush_failed(w, r);
	}
	dequeue(w);
	return true;
}

/* --- flush --- */

static void flush_end(struct writeback *w, int status)
{
	struct flush *f = &w->flush;
	void (*done)(void *arg, int status) = f->done;

	f->stage = FLUSH_IDLE;
	f->done = NULL;
	loop_timer_unset(w->d->loop, &f->watch);
	if (done)
		done(f->arg, status);
}

static void flush_sealed(void *arg, int status)
{
	struct writeback *w = arg;

	if (w->flush.stage == FLUSH_SEAL)	/* else it is that of an asker who was told to give up */
		flush_end(w, status ? status : w->flush.status);
}

static void flush_add(void *arg, uint32_t block)
{
	struct writeback *w = arg;

	if (wanted(w->d, block) && !blocks_queued(w->d->blocks, block))
		(void)enqueue(w, block);	/* there is room: flush_step() saw to it */
}

/* What is queued will not be written, and there is nothing to wait for: no disk takes writes, or the budget is used
 * up, and a day is long. 0: it will. */
static int hopeless(const struct writeback *w)
{
	static const uint8_t any[32];
	const struct tier *t = w->d->tiers[TIER_NVME];

	if (w->count == 0 || w->in_flight > 0 || tier_state(t) == TIER_STARTING)
		return 0;
	if (!nvme_writable(t, any) && (w->flush.last || storage_answers(w->d)))
		return tier_state(t) == TIER_OFFLINE ? -ENODEV : -EROFS;
	return w->blocked && storage_budget_percent(w->d) == 0 ? -EDQUOT : 0;
}

static bool older_in_flight(const struct writeback *w)
{
	for (uint32_t i = 0; i < w->n_writes; i++)
		if (w->writes[i].lease.held && w->writes[i].number <= w->flush.until)
			return true;
	return false;
}

static bool flush_seal(struct writeback *w)
{
	const int r = nvme_flush(w->d->tiers[TIER_NVME], w->flush.last, flush_sealed, w);

	if (r == -EBUSY)	/* an earlier one is not over, though its asker is gone: its end wakes us */
		return false;
	w->flush.stage = FLUSH_SEAL;
	if (r)
		flush_end(w, r);
	return true;
}

static bool flush_step(struct writeback *w)
{
	struct flush *f = &w->flush;

	if ((f->stage == FLUSH_QUEUE || f->stage == FLUSH_WRITE) && hopeless(w)) {
		flush_end(w, hopeless(w));
		return true;
	}
	switch (f->stage) {
	case FLUSH_QUEUE:
		if (QUEUE - w->count < FLUSH_SLICE)
			return false;	/* first some must be written */
		if (!blocks_walk(w->d->blocks, &f->cursor, FLUSH_SLICE, flush_add, w)) {
			f->stage = FLUSH_WRITE;
			f->until = w->dequeues_total + w->count;
		}
		return true;
	case FLUSH_WRITE:
		if (w->dequeues_total < f->until)
			return false;
		f->stage = FLUSH_END;
		f->until = w->starts_total;
		return true;
	case FLUSH_END:
		return !older_in_flight(w) && (f->last || storage_answers(w->d)) && flush_seal(w);
	default:
		return false;
	}
}

/* Every wait has an end: a disk that stalls, or a budget that is used up, must not keep the asker for ever. */
static void on_flush_watch(struct loop_timer *timer)
{
	struct flush *f = container_of(timer, struct flush, watch);
	struct writeback *w = container_of(f, struct writeback, flush);

	f->stuck = w->writes_total == f->writes_before || f->stage == FLUSH_SEAL ? f->stuck + 1 : 0;
	f->writes_before = w->writes_total;
	if (f->stuck >= STUCK_LIMIT)
		flush_end(w, f->stage == FLUSH_SEAL ? -ETIMEDOUT : storage_answers(w->d) ? -EDQUOT : -EIO);
	else
		loop_timer_set(w->d->loop, &f->watch, loop_now(w->d->loop) + STUCK_NS);
}

int writeback_flush(struct kvtierd *d, bool last, void (*done)(void *arg, int status), void *arg)
{
	struct writeback *w = d->writeback;

	if (!w)
		return -ENODEV;
	if (w->flush.stage != FLUSH_IDLE)
		return -EBUSY;
	w->flush = (struct flush){
		.stage = FLUSH_QUEUE, .last = last, .done = done, .arg = arg, .writes_before = w->writes_total,
		.watch.fire = on_flush_watch,
	};
	w->blocked = false;
	loop_timer_set(d->loop, &w->flush.watch, loop_now(d->loop) + STUCK_NS);
	return 0;
}

void writeback_flush_abort(struct kvtierd *d)
{
	if (d->writeback && d->writeback->flush.stage != FLUSH_IDLE)
		flush_end(d->writeback, -ESHUTDOWN);
}

void writeback_flush_cancel(struct kvtierd *d, void *arg)
{
	if (d->writeback && d->writeback->flush.arg == arg)
		d->writeback->flush.done = NULL;
}

/* --- life --- */

static bool poll(struct loop_poller *poller)
{
	struct writeback *w = container_of(poller, struct writeback, poller);
	bool worked = flush_step(w);

	for (int i = 0; i < TURN && w->count > 0 && !w->blocked; i++)
		worked = serve_head(w) || worked;
	return worked;
}

int writeback_open(struct kvtierd *d, uint32_t writes, struct writeback **ret)
{
	struct writeback *w = calloc(1, sizeof *w);

	if (!w)
		return -ENOMEM;
	w->d = d;
	w->n_writes = writes;
	w->poller.poll = poll;
	w->retry.fire = on_retry;
	w->writes = calloc(writes, sizeof *w->writes);
	if (!w->writes || admit_open(&w->admit)) {
		free(w->writes);
		free(w);
		return -ENOMEM;
	}
	for (uint32_t i = writes; i-- > 0;) {
		w->writes[i].writeback = w;
		w->writes[i].next = w->free;
		w->free = &w->writes[i];
	}
	loop_poller_add(d->loop, &w->poller);
	*ret = w;
	return 0;
}

void writeback_close(struct writeback *w)
{
	if (!w)
		return;
	assert(w->in_flight == 0);
	loop_poller_remove(w->d->loop, &w->poller);
	loop_timer_unset(w->d->loop, &w->retry);
	loop_timer_unset(w->d->loop, &w->flush.watch);
	admit_close(w->admit);
	free(w->writes);
	free(w);
}
