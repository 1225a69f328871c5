/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pump.c - runs ready parts, and begins blocks in turn. Core thread only.
 *
 *	a turn:	ready tasks -> walkers that wait for room or a tier try again -> blocks of queued
 *		ops begin -> devices start
 *
 * Nothing else runs a step: completions, deadlines and cancels wake a part or a flight, which is a
 * push. So no step runs below another one, and the things held when a step begins can be checked:
 * step_allows().
 */
#include "pump.h"

#include <assert.h>

#include "daemon/base/container_of.h"
#include "daemon/base/loop.h"
#include "daemon/device/devices.h"
#include "daemon/shared/client.h"
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
	BEGIN_BUDGET = 64, /* blocks begun a turn of the loop */
};

/* --- a walk --- */

/* The things that a walker holds, as bits of enum held. */
static uint32_t held(struct walker *w)
{
	const struct flight *f = flight_of(w);

	return (w->placed ? HELD_SLOT : 0u) | (w->lease.held ? HELD_LEASE : 0u) |
	       (!f && w->part->flight ? HELD_FLIGHT : 0u) |
	       (!f && (near_held(&w->part->near) || w->part->growing) ? HELD_NEAR : 0u) |
	       (list_has(&w->room) || list_has(&w->full) ? HELD_PLACE : 0u) |
	       (w->job.in_flight || (f && f->xfer.in_flight) ? HELD_LENT : 0u);
}

/* An op that is to end waits for nothing more: the part goes to another step, or stays. */
static enum step early(struct part *part, enum step step)
{
	if (part->op->early == 0 || part->status != 0 || step_rules[step].early == step)
		return step;
	part->status = part->op->early;
	return step_rules[step].early;
}

static void end_part(struct part *part)
{
	if (near_held(&part->near))
		near_settle(part->w.all->store, walk_space(&part->w), &part->near, &part->w.job);
	if (part->growing)
		grow_leave(part);
	walk_unplace(&part->w);
	lease_drop(part->w.all->store, &part->w.lease);
	assert(held(&part->w) == 0);
	op_part_done(part);
}

/* It goes as far as it can now. A flight that was given up ends when nothing of it is lent. */
static void walk(struct walker *w)
{
	struct flight *f = flight_of(w);
	enum step next = f && f->given_up ? DONE : w->step;

	w->wait = 0;
	while (next < STEPS) {
		struct op *op = w->part->op;

		w->step = f ? next : early(w->part, next);
		assert(step_allows(w->step, held(w)));
		trace_step(op, w->part->at, w->step, w->source);
		next = step_rules[w->step].run(w);
		if (next > DONE)
			trace_wait(op, next);
	}
	if (next > DONE)
		w->wait = next;
	else if (f)
		flight_over(f);
	else
		end_part(w->part);
}

/* The first flight that a tier had no room for tries again. Returns whether the tier had room. */
static bool retry_first(const struct list *full)
{
	const struct list *first = full->next;

	if (list_empty(full))
		return false;
	walk(container_of(first, struct walker, full));
	return full->next != first;
}

/* --- beginning blocks --- */

/* Takes the next op in turn, and begins its next block if that may be. */
static void begin_one(struct ops *all)
{
	struct op *op;

	if (share_of_parts_is_used(all, turn_peer(all))) {
		turn_pass_peer(all);
		return;
	}
	op = turn_take(all);
	if (share_of_memory_is_used(all, op) || load_must_wait(op) || store_must_wait(op)) {
		turn_pass(op);
		return;
	}
	turn_look_again(all);
	if (op->next_block + 1 < op->total)
		turn_add(op);
	walk(&op_begin_block(op)->w);
}

/* --- the turn --- */

/* Walkers that wait for room try one after another. Each tries when nothing else is ready, so the
 * answer depends on nothing else. */
static bool run_ready(struct ops *all)
{
	bool worked = walk_run(&all->ready, READY_BUDGET, walk);

	worked |= retry_first(&all->flights.full);
	while (list_empty(&all->ready) && room_retry(all))
		worked |= walk_run(&all->ready, READY_BUDGET, walk);
	return worked || !list_empty(&all->ready);
}

/* Ops whose next block must wait are passed over, until all were: then nothing can begin before a
 * part or a flight ends. */
static bool pump(struct loop_poller *poller)
{
	struct ops *all = container_of(poller, struct ops, poller);
	uint32_t budget = BEGIN_BUDGET;
	bool worked;

	mover_turn(&all->store->mover);
	worked = run_ready(all);
	if (worked)
		turn_look_again(all);
	while (turn_any(all) && all->n_free_parts > 0 && budget-- > 0) {
		begin_one(all);
		worked = true;
	}
	/* the loop asks its pollers once more before it sleeps */
	devices_kick(all->devices);
	return worked || !list_empty(&all->ready);
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
