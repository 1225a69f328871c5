/* SPDX-License-Identifier: Apache-2.0 */
/*
 * writeback.c - see writeback.h. Core thread only; nothing is allocated after open.
 *
 *          writeback_add               policy (admit.c), room in the tier      ended
 *  host only ──────> queued, in order ────────────────────────────────> writing ──> host and NVMe
 *      ^                  │ dropped, or refused by the policy               │
 *      └──────────────────┴────────────────────── error ────────────────────┘
 *
 * Invariants
 *   W1 A block is marked queued (block.h) from writeback_add() until its write has ended, so it
 *      stands in the queue once. The queue holds block numbers without pins. At a number's turn the
 *      block may be gone: then the mark is missing. The number may also have been given to another
 *      block, which has its own mark and is written in its stead.
 *   W2 A block is leased while it is written: nothing evicts or moves it. At most `writes` blocks
 *      are written at once.
 *   W3 The queue keeps the order of commits, so the policy is asked about a parent before its
 *      children. It refuses a child whose parent is neither on NVMe nor queued: after a restart
 *      nobody could find that child.
 */
#include "writeback.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/stats/stats.h"
#include "daemon/base/container_of.h"
#include "daemon/store/admit.h"
#include "daemon/store/copies.h"
#include "daemon/store/extents.h"
#include "daemon/store/space.h"
#include "daemon/store/store.h"
#include "daemon/store/lease.h"
#include "daemon/base/log.h"
#include "daemon/base/loop.h"
#include "tiers/nvme/nvme.h"

enum {
	QUEUE = 1 << 16, /* blocks */
	TURN = 64,       /* queue entries looked at in one turn of the loop */
	/* after the tier refused, if it does not tell: events.changed in nvme.h */
	RETRY_NS = 200000000,
	PAUSE_NS = 500000000, /* a tier that works may pause so long, for any reason */
};

struct write {
	struct xfer x; /* first: done() gets back to us */
	struct writeback *writeback;
	struct lease lease;
	uint64_t number;    /* of starts_total */
	struct write *next; /* free */
};

struct writeback {
	struct store *store;
	struct tier *tier;
	struct loop *loop;
	struct admit *admit;
	struct loop_poller poller;
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
	bool write_all; /* a flush asks for everything: the policy is not asked */
	int failure;    /* first one since that flush began; 0 */
	struct log_limit log;
	uint32_t queue[QUEUE];
};

void writeback_kick(struct writeback *w)
{
	w->blocked = false;
}

void writeback_stop(struct writeback *w)
{
	w->stopped = true;
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

uint32_t writeback_queued(const struct writeback *w)
{
	return w->count;
}

uint32_t writeback_room(const struct writeback *w)
{
	return QUEUE - w->count;
}

bool writeback_blocked(const struct writeback *w)
{
	return w->blocked;
}

uint64_t writeback_served(const struct writeback *w)
{
	return w->served_total;
}

uint64_t writeback_started(const struct writeback *w)
{
	return w->starts_total;
}

uint64_t writeback_oldest(const struct writeback *w)
{
	uint64_t oldest = UINT64_MAX;

	for (uint32_t i = 0; i < w->n_writes; i++)
		if (w->writes[i].lease.held && w->writes[i].number < oldest)
			oldest = w->writes[i].number;
	return oldest;
}

void writeback_write_all(struct writeback *w, bool on)
{
	w->write_all = on;
	if (!on)
		return;
	w->failure = 0;
	w->blocked = false;
}

int writeback_failure(const struct writeback *w)
{
	return w->failure;
}

uint64_t writeback_ended(const struct writeback *w)
{
	return w ? w->ended_total : 0;
}

bool writeback_holds(const struct writeback *w, uint32_t block)
{
	if (!w || !blocks_queued(w->store->blocks, block))
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
	blocks_set_queued(w->store->blocks, block, true);
	if (w->count == 0 && w->in_flight == 0)
		w->moved_ns = loop_now(w->loop);
	w->queue[(w->head + w->count++) % QUEUE] = block;
	stats_set(&w->store->stats->v.tiers_nvme_queued_blocks, w->count);
	return true;
}

void writeback_add(struct writeback *w, uint32_t block)
{
	/* A purge may have dropped it since the store that met it. */
	if (!w || !blocks_live(w->store->blocks, block) || !wanted(w->store->blocks, block) ||
	    blocks_queued(w->store->blocks, block))
		return;
	if (!enqueue(w, block))
		stats_add(&w->store->stats->v.tiers_nvme_skipped_queue_blocks_total, 1);
}

static void dequeue(struct writeback *w)
{
	w->head = (w->head + 1) % QUEUE;
	w->head_admitted = false;
	w->count--;
	w->served_total++;
	stats_set(&w->store->stats->v.tiers_nvme_queued_blocks, w->count);
}

/* --- one write --- */

static void note_failure(struct writeback *w, int status)
{
	if (!w->failure)
		w->failure = status;
}

static void write_ended(struct writeback *w, struct write *write)
{
	struct store *store = w->store;

	write->next = w->free;
	w->free = write;
	w->in_flight--;
	w->ended_total++;
	w->moved_ns = loop_now(w->loop);
	w->blocked = false;
	lease_drop(store, &write->lease);
}

static void write_done(struct xfer *x)
{
	struct write *write = (struct write *)(void *)x;
	struct writeback *w = write->writeback;
	struct store *store = w->store;
	const uint32_t block = write->lease.block;

	if (x->status) {
		note_failure(w, x->status);
		log_limited(&w->log, loop_now(w->loop), LOG_LEVEL_WARNING,
			    "a block could not be written to NVMe: %s", strerror(-x->status));
	} else if (!blocks_live(store->blocks, block) || blocks_nvme(store->blocks, block, NULL)) {
		/* while it was written it was dropped, or recovery found an older copy of it */
		extents_forget(store, &x->where, x->record.tick);
	} else {
		blocks_set_nvme(store->blocks, block, &x->where);
		extents_touch(store, &x->where, x->record.tick, blocks_tick(store->blocks, block));
		stats_add(&store->stats->v.tiers_nvme_written_bytes_total, x->bytes);
	}
	if (blocks_live(store->blocks, block))
		blocks_set_queued(store->blocks, block, false);
	write_ended(w, write);
}

/* 0: on its way. -EAGAIN: try again. Another -errno: this block cannot be written. */
static int start(struct writeback *w, uint32_t block)
{
	struct store *store = w->store;
	const struct space *space = space_at(store->spaces, blocks_space(store->blocks, block));
	const uint32_t parent = blocks_parent(store->blocks, block),
		       bytes = copies_image_bytes(store, block);
	struct write *write = w->free;
	struct extent where;
	int r;

	if (!write)
		return -EAGAIN;
	if (!space || !bytes || !extents_in_host(store, block, &where))
		return -EINVAL;
	memset(&write->x, 0, sizeof(write->x));
	write->x.op = XFER_WRITE;
	write->x.behind = true;
	write->x.buffer = extents_address(store, &where);
	write->x.bytes = bytes;
	write->x.done = write_done;
	write->x.record.tick = blocks_tick(store->blocks, block);
	memcpy(write->x.record.owner, space->owner, sizeof(space->owner));
	if (parent != BLOCK_NONE)
		memcpy(write->x.record.parent, blocks_key(store->blocks, parent), 32);
	r = tier_submit(w->tier, &write->x);
	if (r)
		return r;
	w->free = write->next;
	w->in_flight++;
	w->moved_ns = loop_now(w->loop);
	write->number = ++w->starts_total;
	lease_take(store, &write->lease, block);
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
	struct store *store = w->store;

	if (w->head_admitted || w->write_all)
		return true;
	w->head_admitted = true;
	if (admit_ask(w->admit, blocks_key(store->blocks, block), nvme_budget_percent(w->tier),
		      parent_there(store->blocks, block)))
		return true;
	stats_add(&store->stats->v.tiers_nvme_skipped_budget_blocks_total, 1);
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

/* The entry at the head of the queue. False: it stays there, the tier takes nothing now. */
static bool serve_head(struct writeback *w)
{
	struct store *store = w->store;
	const uint32_t block = w->queue[w->head];
	int r;

	if (!blocks_live(store->blocks, block) || !blocks_queued(store->blocks, block)) {
		dequeue(w); /* gone, or written already */
		return true;
	}
	if (writeback_holds(w, block)) {
		dequeue(w); /* a number used again: the other entry's write is under way */
		return true;
	}
	if (!wanted(store->blocks, block)) {
		blocks_set_queued(store->blocks, block, false);
		dequeue(w);
		return true;
	}
	if (!tier_writable(w->tier,
			   &(struct tier_name){ .key = blocks_key(store->blocks, block) })) {
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
		blocks_set_queued(store->blocks, block, false);
		if (r != -EPERM)
			note_failure(w, r);
	}
	dequeue(w);
	return true;
}

/* --- life --- */

static bool poll(struct loop_poller *poller)
{
	struct writeback *w = container_of(poller, struct writeback, poller);
	bool worked = false;

	for (int i = 0; i < TURN && w->count > 0 && !w->blocked && !w->stopped; i++)
		worked = serve_head(w) || worked;
	return worked;
}

int writeback_open(const struct writeback_conf *conf, struct writeback **ret)
{
	struct writeback *w = calloc(1, sizeof(*w));

	if (!w)
		return -ENOMEM;
	assert(conf->tier);
	w->store = conf->store;
	w->tier = conf->tier;
	w->loop = conf->loop;
	w->n_writes = conf->writes;
	w->poller.poll = poll;
	w->retry.fire = on_retry;
	w->writes = calloc(conf->writes, sizeof(*w->writes));
	if (!w->writes || admit_open(&w->admit)) {
		free(w->writes);
		free(w);
		return -ENOMEM;
	}
	for (uint32_t i = conf->writes; i-- > 0;) {
		w->writes[i].writeback = w;
		w->writes[i].next = w->free;
		w->free = &w->writes[i];
	}
	loop_poller_add(w->loop, &w->poller);
	*ret = w;
	return 0;
}

void writeback_close(struct writeback *w)
{
	if (!w)
		return;
	assert(w->in_flight == 0);
	loop_poller_remove(w->loop, &w->poller);
	loop_timer_unset(w->loop, &w->retry);
	admit_close(w->admit);
	free(w->writes);
	free(w);
}
