/* SPDX-License-Identifier: Apache-2.0 */
/*
 * room.c - a slot of host memory for a part that stores, or for a flight. Core thread only.
 *
 * Invariants
 *   R1 a waiter waits only while something is under way that will free a slot: jobs and reads hold
 *      pins, writes make blocks fit to be demoted, ready tasks go on. When nothing is under way,
 *      the process that holds most is refused.
 *   R2 a waiter overtakes no other one of its own process, and any of another process: a large
 *      image that finds no room holds up no small one of theirs.
 *   R3 a disk or endpoint that stalls is believed for as long as one request of it may take, not
 *      for ever; the deadline of the waiter's op ends its wait before that.
 */
#include "room.h"

#include <errno.h>

#include "daemon/base/container_of.h"
#include "daemon/base/loop.h"
#include "daemon/config/config.h"
#include "daemon/shared/client.h"
#include "daemon/nvme/writeback.h"
#include "daemon/redis/outbox.h"
#include "daemon/stats/stats.h"
#include "daemon/store/space.h"
#include "daemon/store/store.h"
#include "part.h"
#include "share.h"

static struct walker *waiter_of(struct list *link)
{
	return container_of(link, struct walker, room);
}

/* In whose name room is looked for. */
static struct peer *peer_of(struct list *link)
{
	return waiter_of(link)->part->op->client->peer;
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

/* Whether a slab is being cleared, by a few evictions a turn of the walkers that wait for it. */
static bool clearing(const struct store *store)
{
	return store->mover.clearing_bytes > 0;
}

static bool something_under_way(const struct ops *all)
{
	if (clearing(all->store) || devices_in_flight(all->devices) > 0 ||
	    writeback_moving(all->store->writeback) || !list_empty(&all->ready))
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

/* Whether another process waits that holds more. When nothing else helps, that process is refused
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
static bool is_behind(const struct walker *w)
{
	struct room *room = &w->all->room;

	for (struct list *l = room->waiters.next; l != &room->waiters; l = l->next)
		if (peer_of(l) == w->part->op->client->peer)
			return waiter_of(l) != w;
	return false;
}

/* The unit of the host tier that is nearest to the pages. */
static uint8_t near_of(const struct walker *w)
{
	return w->part->op->mount->device->near;
}

/* A GPU's image has a slot: is it on the GPU's NUMA node? */
static void count_near(const struct walker *w)
{
	struct stats_values *v = &w->all->store->stats->v;

	if (near_of(w) != TIER_ANY_UNIT)
		stats_add(w->where.unit == near_of(w) ? &v->tiers_host_near_slots_total :
							&v->tiers_host_far_slots_total,
			  1);
}

/* Slots that the outbox keeps go when nothing else does. More each time: one slot may help, or it
 * takes a slab. */
static int find(struct store *store, uint32_t bytes, const struct mover_for *whom,
		struct extent *ret)
{
	for (uint32_t n = 1;; n *= 2) {
		const int r = mover_find_room_for(store_host(store), store->blocks, store->tick,
						  bytes, whom, &store->mover, ret);
		const bool stuck = r == -EAGAIN && whom->desperate && !clearing(store);

		if ((r != -ENOSPC && !stuck) || !outbox_give_back(store->outbox, n))
			return r;
	}
}

/* A block that is to be written, and cannot be now, is dropped only when there is nothing to wait
 * for. */
static int look(struct walker *w, uint32_t bytes)
{
	struct ops *all = w->all;
	struct mover_for whom = { .space = walk_space(w)->number,
				  .near = near_of(w),
				  .guaranteed = share_guaranteed(all) };
	int r = find(all->store, bytes, &whom, &w->where);

	note_progress(all);
	if (r != -EAGAIN || something_under_way(all))
		return r;
	whom.desperate = true;
	return find(all->store, bytes, &whom, &w->where);
}

int room_take(struct walker *w, uint32_t bytes, bool first)
{
	struct room *room = &w->all->room;
	const bool behind = is_behind(w);
	const int r = behind ? -EAGAIN : look(w, bytes);

	if ((r == -ENOSPC || r == -EAGAIN) &&
	    (something_under_way(w->all) || behind ||
	     another_holds_more(room, w->part->op->client->peer))) {
		if (!list_has(&w->room)) {
			list_add(first ? room->waiters.next : &room->waiters, &w->room);
			room->n++;
		}
		return -EAGAIN;
	}
	room_leave(w);
	w->placed = r == 0;
	if (r == 0)
		count_near(w);
	return r ? -ENOSPC : 0;
}

bool room_take_free(struct walker *w, uint32_t bytes)
{
	w->placed = !is_behind(w) &&
		    tier_alloc_near(store_host(w->all->store), bytes, near_of(w), &w->where) == 0;
	if (w->placed)
		count_near(w);
	return w->placed;
}

void room_leave(struct walker *w)
{
	w->all->room.n -= list_has(&w->room);
	list_remove(&w->room);
}

/* --- again --- */

/* The first waiter of the process that holds least, of those not yet tried in this round. */
static struct walker *next_to_try(struct room *room)
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
	struct walker *w;

	if (!room->in_round &&
	    (list_empty(&room->waiters) || (progress(all) == room->progress &&
					    something_under_way(all) && !clearing(all->store))))
		return false;
	room->round += !room->in_round;
	w = next_to_try(room);
	room->in_round = w != NULL;
	if (!w)
		return false;
	w->part->op->client->peer->room_round = room->round;
	walk_push(&all->ready, w);
	return true;
}
