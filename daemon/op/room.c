/* SPDX-License-Identifier: Apache-2.0 */
/*
 * room.c - a slot of host memory for a part that stores, or for a flight. Core thread only.
 *
 * Invariants
 *   R1 a waiter waits only while something is under way that will free a slot: jobs and reads hold
 *      pins, writes make blocks fit to be demoted, ready tasks go on, and ops that may begin their
 *      next block come here or end. When no work is under way, the process that holds most is
 *      refused. An op that has begun holds its whole chain, by the chain's end: it may hold most
 *      of memory while no part of it waits here.
 *   R2 a waiter overtakes no other one of its own process, and any of another process: a large
 *      image that finds no room holds up no small one of theirs.
 *   R3 a disk or endpoint that stalls is believed for as long as one request of it may take, not
 *      for ever; the deadline of the waiter's op ends its wait before that.
 */
#include "room.h"

#include <errno.h>

#include "base/list.h"
#include "base/loop.h"
#include "daemon/config/config.h"
#include "daemon/session/peer.h"
#include "daemon/write/writeback.h"
#include "daemon/write/outbox.h"
#include "daemon/stats/stats.h"
#include "daemon/table/space.h"
#include "daemon/move/tables.h"
#include "part.h"
#include "schedule.h"

static struct task *waiter_of(struct list *link)
{
	return container_of(link, struct task, room);
}

/* The process in whose name room is looked for. */
static struct peer *peer_of(struct list *link)
{
	return waiter_of(link)->part->op->client->peer;
}

/* --- is it worth to wait? --- */

/* Grows with everything that may have made room. */
static uint64_t progress(const struct ops *all)
{
	uint64_t ret = devices_sum(all->devices).jobs_total;

	for (int i = 0; i < TIER_COUNT; i++) {
		const struct tier *t = all->tables->tiers[i];

		ret += t ? t->xfers_total - t->in_flight : 0;
	}
	return ret;
}

/* How long reads, which hold slots and pins, may be under way without progress: as long as one of
 * the tiers may take for a transfer. 0: no read is under way. */
static uint64_t reads_patience_ns(const struct ops *all)
{
	uint64_t ret = 0;

	for (int i = 0; i < TIER_COUNT; i++) {
		const struct tier *t = all->tables->tiers[i];

		if (t && t->in_flight > t->behind_in_flight && t->patience_ns > ret)
			ret = t->patience_ns;
	}
	return ret;
}

static bool something_under_way(const struct ops *all)
{
	if (all->tables->mover.clearing_bytes > 0 || devices_sum(all->devices).in_flight > 0 ||
	    writeback_moving(all->tables->writeback) || !list_empty(&all->ready) ||
	    schedule_may_begin(all))
		return true;
	return loop_now(all->loop) - all->room.progress_ns < reads_patience_ns(all);
}

static void note_progress(struct ops *all)
{
	struct room *room = &all->room;

	/* No task waited, so no one looked. */
	if (progress(all) != room->progress || list_empty(&room->waiters))
		room->progress_ns = loop_now(all->loop);
	room->progress = progress(all);
}

/* Whether another process waits that holds more. When no other way is left, that process is refused
 * first, and its slots may go. */
static bool another_holds_more(const struct room *room, const struct peer *peer)
{
	for (struct list *l = room->waiters.next; l != &room->waiters; l = l->next)
		if (peer_of(l)->in_flight_bytes > peer->in_flight_bytes)
			return true;
	return false;
}

/* --- taking --- */

/* Another waiter of its process is before it. */
static bool is_behind(const struct task *task)
{
	struct room *room = &task->all->room;

	for (struct list *l = room->waiters.next; l != &room->waiters; l = l->next)
		if (peer_of(l) == task->part->op->client->peer)
			return waiter_of(l) != task;
	return false;
}

/* The unit of the host tier that is nearest to the pages. */
static uint8_t near_of(const struct task *task)
{
	return task->part->op->mount->device->near;
}

/* A GPU's image has a slot: is it on the GPU's NUMA node? */
static void count_near(const struct task *task)
{
	struct stats_values *v = &task->all->tables->stats->v;

	if (near_of(task) != TIER_ANY_UNIT)
		stats_add(task->where.unit == near_of(task) ? &v->tiers_host_near_slots_total :
							      &v->tiers_host_far_slots_total,
			  1);
}

/* Slots that the outbox keeps are taken last, twice as many each time: one may be enough, or a
 * whole slab may be needed. */
static int find(struct tables *tables, uint32_t bytes, const struct mover_for *whom,
		struct extent *ret)
{
	for (uint32_t n = 1;; n *= 2) {
		const int r = mover_find_room(tables_host(tables), tables->blocks, tables->tick,
					      bytes, whom, &tables->mover, ret);
		const bool stuck =
			r == -EAGAIN && whom->desperate && tables->mover.clearing_bytes == 0;

		if ((r != -ENOSPC && !stuck) || !outbox_give_back(tables->outbox, n))
			return r;
	}
}

/* A block that is to be written, and cannot be now, is dropped only when there is no work to wait
 * for. */
static int look(struct task *task, uint32_t bytes)
{
	struct ops *all = task->all;
	struct mover_for whom = { .space = task_space(task)->number, .near = near_of(task) };
	int r;

	schedule_guarantee(all);
	r = find(all->tables, bytes, &whom, &task->where);

	note_progress(all);
	if (r != -EAGAIN || something_under_way(all))
		return r;
	whom.desperate = true;
	return find(all->tables, bytes, &whom, &task->where);
}

int room_take(struct task *task, uint32_t bytes, bool first)
{
	struct room *room = &task->all->room;
	const bool behind = is_behind(task);
	const int r = behind ? -EAGAIN : look(task, bytes);

	if ((r == -ENOSPC || r == -EAGAIN) &&
	    (something_under_way(task->all) || behind ||
	     another_holds_more(room, task->part->op->client->peer))) {
		if (!list_has(&task->room)) {
			list_add(first ? room->waiters.next : &room->waiters, &task->room);
			room->n++;
		}
		return -EAGAIN;
	}
	room_leave(task);
	task->placed = r == 0;
	if (r == 0)
		count_near(task);
	if (r)
		quota_refused(task->all->quota, QUOTA_host_bytes, task->part->op->client->tenant);
	return r ? -ENOSPC : 0;
}

bool room_take_free(struct task *task, uint32_t bytes)
{
	task->placed = !is_behind(task) && tier_alloc_near(tables_host(task->all->tables), bytes,
							   near_of(task), &task->where) == 0;
	if (task->placed)
		count_near(task);
	return task->placed;
}

void room_leave(struct task *task)
{
	task->all->room.n -= list_has(&task->room);
	list_remove(&task->room);
}

/* --- again --- */

/* The first waiter of the process that holds least, of those not yet tried in this round. */
static struct task *next_to_try(struct room *room)
{
	struct list *best = NULL;

	for (struct list *l = room->waiters.next; l != &room->waiters; l = l->next)
		if (peer_of(l)->room_round != room->round &&
		    (!best || peer_of(l)->in_flight_bytes < peer_of(best)->in_flight_bytes))
			best = l;
	return best ? waiter_of(best) : NULL;
}

bool room_retry(struct ops *all)
{
	struct room *room = &all->room;
	struct task *task;

	if (!room->in_round && (list_empty(&room->waiters) ||
				(progress(all) == room->progress && something_under_way(all) &&
				 all->tables->mover.clearing_bytes == 0)))
		return false;
	room->round += !room->in_round;
	task = next_to_try(room);
	room->in_round = task != NULL;
	if (!task)
		return false;
	task->part->op->client->peer->room_round = room->round;
	task_push(&all->ready, task);
	return true;
}
