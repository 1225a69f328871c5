/* SPDX-License-Identifier: Apache-2.0 */
/*
 * flush.c - see flush.h. Core thread only; nothing is allocated after open.
 *
 *	    flush_begin      table walked       queue served      writes ended
 *  IDLE ──────────────> QUEUE ───────────> WRITE ───────────> END ───────────> SEAL
 *    ^                    │ hopeless         │ hopeless         │ stuck          │ tier_flush()
 *    │                    v                  v                  v                v ended, or stuck
 *    └──────────────── done(status) ─────────────────────────────────────────────┘
 *
 * Invariants
 *   F1 QUEUE puts each block without an NVMe copy into the write-behind queue. WRITE waits until
 *      the queue has served the entries that it held at the end of QUEUE. END waits for the writes
 *      that had been started by then. Blocks stored meanwhile stand behind them, so a flush ends
 *      though stores go on.
 *   F2 Every wait has an end: a disk that stalls and a write budget that is used up do not keep the
 *      asker for ever.
 */
#include "flush.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/container_of.h"
#include "daemon/base/drain.h"
#include "daemon/base/log.h"
#include "daemon/base/loop.h"
#include "daemon/store/herd.h"
#include "daemon/store/store.h"
#include "tiers/nvme/nvme.h"
#include "writeback.h"

enum {
	SLICE = 4096,          /* block numbers looked at in one turn */
	WATCH_NS = 1000000000, /* a flush is looked at so often; */
	STUCK_LOOKS = 10,      /* so many looks without a write that ended: it is stuck */
};

enum flush_stage { STAGE_IDLE, STAGE_QUEUE, STAGE_WRITE, STAGE_END, STAGE_SEAL };

struct flush {
	struct store *store;
	struct tier *tier;
	struct loop *loop;
	uint32_t drain_us;
	struct loop_poller poller;
	enum flush_stage stage;
	bool last;
	uint32_t cursor;       /* QUEUE: in the block table */
	uint64_t until;        /* WRITE: writeback_served(), END: writeback_started() */
	uint64_t ended_before; /* writeback_ended() at the last look */
	uint32_t stuck;        /* looks in a row at which it had not grown */
	struct loop_timer watch;
	void (*done)(void *arg, int status); /* NULL: the asker has gone */
	void *arg;
	struct drain drain;
};

static void end(struct flush *f, int status)
{
	void (*done)(void *arg, int status) = f->done;

	f->stage = STAGE_IDLE;
	f->done = NULL;
	writeback_write_all(f->store->writeback, false);
	loop_timer_unset(f->loop, &f->watch);
	if (done)
		done(f->arg, status);
}

static void sealed(void *arg, int status)
{
	struct flush *f = arg;

	if (f->stage == STAGE_SEAL) /* else its flush was given up */
		end(f, status ? status : writeback_failure(f->store->writeback));
}

static void add(void *arg, uint32_t block)
{
	struct flush *f = arg;

	writeback_add(f->store->writeback, block); /* there is room: step() saw to it */
}

/* Why the queue will not be written, where there is nothing to wait for: no disk takes writes, or
 * the budget is used up, and a day is long. 0: it will be written. */
static int hopeless(const struct flush *f)
{
	static const uint8_t any[32];
	const struct writeback *w = f->store->writeback;
	const struct tier *t = f->tier;

	if (writeback_queued(w) == 0 || writeback_in_flight(w) > 0 ||
	    tier_state(t) == TIER_STARTING)
		return 0;
	if (!tier_writable(t, &(struct tier_name){ .key = any }) && (f->last || nvme_answers(t)))
		return tier_state(t) == TIER_OFFLINE ? -ENODEV : -EROFS;
	return writeback_blocked(w) && nvme_budget_percent(t) == 0 ? -EDQUOT : 0;
}

static bool seal(struct flush *f)
{
	const int r = tier_flush(f->tier, f->last, sealed, f);

	if (r == -EBUSY) /* a flush that was given up is still sealing: asked again later */
		return false;
	f->stage = STAGE_SEAL;
	if (r)
		end(f, r);
	return true;
}

static bool step(struct flush *f)
{
	struct writeback *w = f->store->writeback;
	const int why = f->stage == STAGE_QUEUE || f->stage == STAGE_WRITE ? hopeless(f) : 0;

	if (why) {
		end(f, why);
		return true;
	}
	switch (f->stage) {
	case STAGE_QUEUE:
		if (writeback_room(w) < SLICE)
			return false; /* first some must be written */
		if (!herd_walk(f->store->blocks, &f->cursor, SLICE, add, f)) {
			f->stage = STAGE_WRITE;
			f->until = writeback_served(w) + writeback_queued(w);
		}
		return true;
	case STAGE_WRITE:
		if (writeback_served(w) < f->until)
			return false;
		f->stage = STAGE_END;
		f->until = writeback_started(w);
		writeback_write_all(w, false);
		return true;
	case STAGE_END:
		return writeback_oldest(w) > f->until && (f->last || nvme_answers(f->tier)) &&
		       seal(f);
	default:
		return false;
	}
}

static bool poll(struct loop_poller *poller)
{
	return step(container_of(poller, struct flush, poller));
}

static void on_watch(struct loop_timer *timer)
{
	struct flush *f = container_of(timer, struct flush, watch);
	const uint64_t ended = writeback_ended(f->store->writeback);

	f->stuck = ended == f->ended_before || f->stage == STAGE_SEAL ? f->stuck + 1 : 0;
	f->ended_before = ended;
	if (f->stuck < STUCK_LOOKS)
		loop_timer_set(f->loop, &f->watch, loop_now(f->loop) + WATCH_NS);
	else if (f->stage == STAGE_SEAL)
		end(f, -ETIMEDOUT);
	else
		end(f, nvme_answers(f->tier) ? -EDQUOT : -EIO);
}

int flush_begin(struct flush *f, bool last, void (*done)(void *arg, int status), void *arg)
{
	if (!f)
		return -ENODEV;
	if (f->stage != STAGE_IDLE)
		return -EBUSY;
	f->stage = STAGE_QUEUE;
	f->last = last;
	f->cursor = f->stuck = 0;
	f->ended_before = writeback_ended(f->store->writeback);
	f->done = done;
	f->arg = arg;
	writeback_write_all(f->store->writeback, true);
	loop_timer_set(f->loop, &f->watch, loop_now(f->loop) + WATCH_NS);
	return 0;
}

void flush_cancel(struct flush *f, void *arg)
{
	if (f && f->arg == arg)
		f->done = NULL;
}

/* --- at a stop --- */

/* Blocks still to be written are given up: a disk ends the writes that it has. */
static void drain_over(struct flush *f)
{
	writeback_stop(f->store->writeback);
	drain_end(&f->drain);
}

static void drained(void *arg, int status)
{
	struct flush *f = arg;

	if (status)
		log_warning("the NVMe tier could not take all that was in memory: %s",
			    strerror(-status));
	drain_over(f);
}

static void late(struct drain *drain)
{
	struct flush *f = container_of(drain, struct flush, drain);

	log_warning("[nvme] drain_us is over: what was not yet written stays out of the NVMe tier");
	flush_cancel(f, f);
	drain_over(f);
}

void flush_drain(struct flush *f, void (*done)(void *arg), void *arg)
{
	if (!f) {
		done(arg);
		return;
	}
	if (f->stage != STAGE_IDLE)
		end(f, -ESHUTDOWN); /* the flush of an operator, who is gone by now */
	drain_begin(&f->drain, f->loop, f->drain_us, late, done, arg);
	(void)flush_begin(f, true, drained, f); /* none is under way */
	log_info("writing what is only in memory to NVMe, at most %u ms", f->drain_us / 1000);
}

/* --- life --- */

int flush_open(struct store *store, struct tier *tier, struct loop *loop, uint32_t drain_us,
	       struct flush **ret)
{
	struct flush *f = calloc(1, sizeof(*f));

	if (!f)
		return -ENOMEM;
	f->store = store;
	f->tier = tier;
	f->loop = loop;
	f->drain_us = drain_us;
	f->poller.poll = poll;
	f->watch.fire = on_watch;
	loop_poller_add(f->loop, &f->poller);
	*ret = f;
	return 0;
}

void flush_close(struct flush *f)
{
	if (!f)
		return;
	loop_poller_remove(f->loop, &f->poller);
	loop_timer_unset(f->loop, &f->watch);
	free(f);
}
