/* SPDX-License-Identifier: Apache-2.0 */
/*
 * room.c - a slot of host memory for a part that stores, or for a flight. Core thread only.
 *
 * Invariants
 *   R1 a waiter waits only while something is under way that will free a slot: jobs and reads hold
 *      pins, writes make blocks fit to be demoted, ready tasks go on. When nothing is under way,
 *      the client that holds most is refused.
 *   R2 a waiter overtakes no other one of its own client, and any of another client: a large image
 *      that finds no room holds up no small one.
 *   R3 a disk or server that stalls is believed for as long as one request of it may take, not for
 *      ever; the deadline of the waiter's op ends its wait before that.
 */
#include "room.h"

#include <errno.h>

#include "daemon/base/container_of.h"
#include "daemon/base/loop.h"
#include "daemon/config/config.h"
#include "daemon/shared/client.h"
#include "daemon/nvme/writeback.h"
#include "daemon/redis/outbox.h"
#include "daemon/store/space.h"
#include "daemon/store/store.h"
#include "part.h"
#include "ready.h"
#include "share.h"

static struct room_waiter *waiter_of(struct list *link)
{
	return container_of(link, struct room_waiter, link);
}

/* --- is it worth to wait? --- */

/* Grows with everything that may have made room. */
static uint64_t progress(const struct ops *all)
{
	uint64_t ret = devices_jobs_total(all->devices);

	for (int i = 0; i < TIER_COUNT; i++) {
		const struct tier *t = all->store->tiers[i];

		ret += t ? t->xfers_total - t->in_flight : 0;
	}
	return ret;
}

/* How long reads, which hold slots and pins, may be under way without progress: as long as one of
 * the tiers may take for a transfer. 0: there are none. */
static uint64_t reads_patience_ns(const struct ops *all)
{
	uint64_t ret = 0;

	for (int i = 0; i < TIER_COUNT; i++) {
		const struct tier *t = all->store->tiers[i];

		if (t && t->in_flight > t->behind_in_flight && t->patience_ns > ret)
			ret = t->patience_ns;
	}
	return ret;
}

/* A slab, a few evictions a turn, by whoever waits for it. */
static bool clearing(const struct ops *all)
{
	return all->store->mover.clearing_bytes > 0;
}

static bool something_under_way(const struct ops *all)
{
	if (clearing(all) || devices_in_flight(all->devices) > 0 ||
	    writeback_moving(all->store->writeback) || ready_any(&all->ready))
		return true;
	return loop_now(all->loop) - all->room.progress_ns < reads_patience_ns(all);
}

static void note_progress(struct ops *all)
{
	struct room *room = &all->room;

	/* Nobody waited: nobody looked. */
	if (progress(all) != room->progress || list_empty(&room->waiters))
		room->progress_ns = loop_now(all->loop);
	room->progress = progress(all);
}

/* Whether another client waits that holds more. When nothing else helps, that client is refused
 * first, and its slots may go. */
static bool another_holds_more(const struct room *room, const struct client *client)
{
	for (struct list *l = room->waiters.next; l != &room->waiters; l = l->next)
		if (waiter_of(l)->op->client->in_flight_bytes > client->in_flight_bytes)
			return true;
	return false;
}

/* --- taking --- */

static struct room_waiter *first_of(struct room *room, const struct client *client)
{
	for (struct list *l = room->waiters.next; l != &room->waiters; l = l->next)
		if (waiter_of(l)->op->client == client)
			return waiter_of(l);
	return NULL;
}

static void wait_for_room(struct room *room, struct room_waiter *waiter)
{
	if (list_has(&waiter->link))
		return;
	list_add(waiter->first ? room->waiters.next : &room->waiters, &waiter->link);
	room->n++;
}

/* Slots that the outbox keeps go when nothing else does. More each time: one slot may help, or it
 * takes a slab. */
static int find(struct ops *all, uint32_t bytes, const struct mover_for *whom, struct extent *ret)
{
	int r = mover_find_room_for(store_host(all->store), all->store->blocks, all->store->tick,
				    bytes, whom, &all->store->mover, ret);

	for (uint32_t n = 1;
	     (r == -ENOSPC || (r == -EAGAIN && whom->desperate && !clearing(all))) &&
	     outbox_give_back(all->store->outbox, n);
	     n *= 2)
		r = mover_find_room_for(store_host(all->store), all->store->blocks,
					all->store->tick, bytes, whom, &all->store->mover, ret);
	return r;
}

/* A block that is to be written, and cannot be now, is dropped only when there is nothing to wait
 * for. */
static int look(struct ops *all, const struct op *op, uint32_t bytes, struct extent *ret)
{
	struct mover_for whom = { .space = op->mount->space->number,
				  .guaranteed = share_guaranteed(all) };
	int r = find(all, bytes, &whom, ret);

	note_progress(all);
	if (r != -EAGAIN || something_under_way(all))
		return r;
	whom.desperate = true;
	return find(all, bytes, &whom, ret);
}

int room_take(struct ops *all, struct room_waiter *waiter, uint32_t bytes, struct extent *ret)
{
	struct room *room = &all->room;
	const struct client *client = waiter->op->client;
	const struct room_waiter *first = first_of(room, client);
	int r = -EAGAIN;

	if (!first || first == waiter)
		r = look(all, waiter->op, bytes, ret);
	if ((r == -ENOSPC || r == -EAGAIN) &&
	    (something_under_way(all) || (first && first != waiter) ||
	     another_holds_more(room, client))) {
		wait_for_room(room, waiter);
		return -EAGAIN;
	}
	room_leave(all, waiter);
	return r ? -ENOSPC : 0;
}

bool room_take_free(struct ops *all, const struct op *op, uint32_t bytes, struct extent *ret)
{
	return !first_of(&all->room, op->client) &&
	       tier_alloc(store_host(all->store), bytes, ret) == 0;
}

void room_leave(struct ops *all, struct room_waiter *waiter)
{
	if (!list_has(&waiter->link))
		return;
	list_remove(&waiter->link);
	all->room.n--;
}

/* --- again --- */

/* Of the clients not yet tried in this round, the first waiter of the one that holds least. */
static struct room_waiter *next_to_try(struct room *room)
{
	struct room_waiter *best = NULL;

	for (struct list *l = room->waiters.next; l != &room->waiters; l = l->next) {
		const struct client *client = waiter_of(l)->op->client;

		if (client->room_round != room->round &&
		    (!best || client->in_flight_bytes < best->op->client->in_flight_bytes))
			best = waiter_of(l);
	}
	return best;
}

bool room_retry(struct ops *all)
{
	struct room *room = &all->room;
	struct room_waiter *waiter;

	if (!room->in_round &&
	    (list_empty(&room->waiters) ||
	     (progress(all) == room->progress && something_under_way(all) && !clearing(all))))
		return false;
	room->round += !room->in_round;
	waiter = next_to_try(room);
	room->in_round = waiter != NULL;
	if (!waiter)
		return false;
	waiter->op->client->room_round = room->round;
	ready_push(&all->ready, waiter->task);
	return true;
}
