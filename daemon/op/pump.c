/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pump.c - runs what is ready, and begins blocks in turn. Core thread only.
 *
 *	a turn:	ready tasks -> those that wait for room or a tier try again -> blocks of queued ops
 *		begin -> devices start
 *
 * Nothing else runs a part: completions, deadlines and cancels wake it (part_wake()), which is a
 * push. So a part's step never runs below another one's, and what a step holds when it begins can
 * be checked: step_allows().
 */
#include "pump.h"

#include <assert.h>

#include "daemon/base/container_of.h"
#include "daemon/base/loop.h"
#include "daemon/device/devices.h"
#include "daemon/store/store.h"
#include "flight.h"
#include "load.h"
#include "op.h"
#include "part.h"
#include "share.h"
#include "store.h"
#include "trace.h"
#include "turn.h"

enum {
	/* tasks a turn of the loop: each takes about a microsecond */
	READY_BUDGET = 256,
	BEGIN_BUDGET = 64, /* blocks begun a turn of the loop... */
	/* ...or fewer, when so many were evicted for them: half a millisecond. Likewise for those
	 * that wait for room. */
	EVICTED = 4 * MOVER_BATCH,
};

/* --- a part --- */

static enum verdict (*const steps[STEPS])(struct ops *all, struct part *part) = {
	[STORE_ADMIT] = store_admit,   [STORE_PLACE] = store_place, [STORE_ENCODE] = store_encode,
	[STORE_COMMIT] = store_commit, [LOAD_LOOKUP] = load_lookup, [LOAD_BRING] = load_bring,
	[LOAD_SERVE] = load_serve,     [LOAD_CHECK] = load_check,   [LOAD_KEEP] = load_keep,
	[LOAD_END] = load_end,
};

/* An op that is to end waits for nothing more. */
static void leave_early(struct part *part)
{
	const enum step early = step_rules[part->step].early;

	if (part->status || early == part->step)
		return;
	part->status = part->op->early;
	part->step = early;
}

/* What it holds, as bits of enum held. */
static uint32_t held(const struct part *part)
{
	return (part->placed ? HELD_SLOT : 0u) | (part->lease.held ? HELD_LEASE : 0u) |
	       (part->flight ? HELD_FLIGHT : 0u) |
	       (list_has(&part->waiter.link) ? HELD_PLACE : 0u) |
	       (part->job.in_flight ? HELD_LENT : 0u);
}

/* Walks the part's steps as far as they go now. */
static void run_part(struct task *task)
{
	struct part *part = container_of(task, struct part, task);
	struct op *op = part->op;
	enum verdict v = CONTINUE;

	part->wait = WAIT_NONE;
	while (v == CONTINUE) {
		if (op->early)
			leave_early(part);
		assert(step_allows(part->step, held(part)));
		trace_step(op, part->at, part->step, part->source);
		v = steps[part->step](op->all, part);
	}
	if (v == WAIT) {
		trace_wait(op, part->wait);
		return;
	}
	assert(held(part) == 0);
	op_part_done(part);
}

/* --- beginning blocks --- */

/* Since `before`: evicted_blocks, as it was then. */
static bool evicted_many(const struct ops *all, uint64_t before)
{
	return all->store->mover.counts.evicted_blocks - before >= EVICTED;
}

/* Takes the next op in turn, and begins its next block if that may be. */
static void begin_one(struct ops *all)
{
	struct part *part;
	struct op *op;

	if (share_of_parts_is_used(all, turn_client(all))) {
		turn_pass_client(all);
		return;
	}
	op = turn_take(all);
	if (share_of_memory_is_used(all, op) || load_must_wait(op)) {
		turn_pass(op);
		return;
	}
	turn_look_again(all);
	if (op->next_block + 1 < op->sqe.n)
		turn_add(op);
	part = op_begin_block(op);
	part->task.run = run_part;
	run_part(&part->task);
}

/* --- the turn --- */

/* Those that wait for room try one after another: what one of them is told depends on nothing else
 * being ready. */
static bool run_ready(struct ops *all)
{
	const uint64_t before = all->store->mover.counts.evicted_blocks;
	bool worked = ready_run(&all->ready, READY_BUDGET);

	worked |= flights_retry(&all->flights);
	while (!ready_any(&all->ready) && !evicted_many(all, before) && room_retry(all))
		worked |= ready_run(&all->ready, READY_BUDGET);
	return worked || ready_any(&all->ready);
}

/* Ops whose next block must wait are passed over, until all were: then nothing can begin before a
 * part or a flight ends. */
static bool pump(struct loop_poller *poller)
{
	struct ops *all = container_of(poller, struct ops, poller);
	uint32_t budget = BEGIN_BUDGET;
	bool worked = run_ready(all);
	const uint64_t before = all->store->mover.counts.evicted_blocks;

	if (worked)
		turn_look_again(all);
	while (turn_any(all) && all->n_free_parts > 0 && budget-- > 0 &&
	       !evicted_many(all, before)) {
		begin_one(all);
		worked = true;
	}
	/* the loop asks its pollers once more before it sleeps */
	devices_kick(all->devices);
	return worked || ready_any(&all->ready);
}

void pump_start(struct ops *all)
{
	all->poller.poll = pump;
	loop_poller_add(all->loop, &all->poller);
}

void pump_stop(struct ops *all)
{
	if (all)
		loop_poller_remove(all->loop, &all->poller);
}
