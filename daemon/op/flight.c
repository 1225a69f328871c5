/* SPDX-License-Identifier: Apache-2.0 */
/*
 * flight.c - a block that host memory does not have is brought there. Core thread only.
 *
 *  join ─> PROBE ~there~> ROOM ──slot──> READ ~bytes~> VERIFY ~good~> LAND ─> parts use it ─> over
 *    │       │ no         │ ^ none        │  │           │ bad               ^ the last part left
 *    └────── │ ──────────>│ └~ waits      │  └~ tier full│
 *            │            │ came back     └─ error ──────┴─> FAIL: READ once more; ROOM, for a
 *            │            v                                        larger slot; or MISS
 *            `─> MISS     AGAIN: its parts look it up again
 *
 * The sources differ in struct source_ops (flight.h): from_nvme.c, from_redis.c.
 *
 * Invariants
 *   F1 there is one flight a block and space (a new one may begin beside one that is being given
 *      up). A part that wants the block joins it, in any of its steps, and shares its image, or its
 *      miss.
 *   F2 a flight waits for room, a tier, or a job; never for a part, nor for another flight. A part
 *      waits for its flight, or in KEEP for the parts of its op before it. So there is no cycle,
 *      and each wait ends.
 *   F3 until it has landed nobody sees the slot: the header was compared with key, space and
 *      geometry, and the checksum verified. No page is touched by a flight, so the deadline or
 *      cancel of an op takes its part out at once.
 *   F4 a flight has at least one part, so there are no more flights than parts, nor more jobs than
 *      the device takes. The last part stays while a tier or the device has the slot; a slot that a
 *      stalled disk keeps stays with the tier (xfer.kept).
 *   F5 room is looked for in the name of the first part's client. When room is refused, that part
 *      goes without, and the next one asks.
 *   F6 from NVMe the block exists already: at landing the slot becomes the block's. From Redis it
 *      becomes a block under the block before it in the chain, which its parts know (KEEP, load.c):
 *      before that it serves the parts of this flight alone.
 */
#include "flight.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/stats/stats.h"
#include "daemon/base/container_of.h"
#include "daemon/device/devices.h"
#include "daemon/shared/client.h"
#include "daemon/store/block.h"
#include "daemon/store/extents.h"
#include "daemon/store/space.h"
#include "daemon/store/store.h"
#include "from_nvme.h"
#include "from_redis.h"
#include "part.h"

int flights_open(struct flights *flights, uint32_t max)
{
	uint32_t buckets = 1;

	while (buckets < max)
		buckets *= 2;
	flights->mask = buckets - 1;
	flights->buckets = calloc(buckets, sizeof(*flights->buckets));
	flights->pool = calloc(max, sizeof(*flights->pool));
	if (!flights->buckets || !flights->pool)
		return -ENOMEM;
	for (uint32_t i = 0; i < buckets; i++)
		list_open(&flights->buckets[i]);
	list_open(&flights->free);
	list_open(&flights->full);
	for (uint32_t i = 0; i < max; i++)
		list_add(flights->free.next, &flights->pool[i].link);
	return 0;
}

void flights_close(struct flights *flights)
{
	assert(flights->n_parts == 0);
	free(flights->pool);
	free(flights->buckets);
}

struct flight *flight_of(struct walker *w)
{
	return w->step < FLIGHT_PROBE ? NULL : container_of(w, struct flight, w);
}

/* The device or a tier has something of it. */
static bool is_lent(const struct flight *f)
{
	return f->xfer.in_flight || f->w.job.in_flight;
}

/* --- its parts --- */

static struct part *part_at(struct list *link)
{
	return container_of(link, struct part, with);
}

/* The client that pays may be another one now: it may get what the first one was refused. */
static void remove_part(struct flight *f, struct part *part)
{
	list_remove(&part->with);
	f->w.all->flights.n_parts--;
	part->flight = NULL;
	if (list_empty(&f->parts))
		return;
	f->w.part = part_at(f->parts.next);
	if (f->w.wait == WAIT_ROOM)
		walk_wake(&f->w);
}

/* The flight lets go of a part. brought: see part.h. */
static void let_go(struct flight *f, struct part *part, int brought)
{
	remove_part(f, part);
	part->brought = brought;
	walk_wake(&part->w);
}

void flight_over(struct flight *f)
{
	assert(!is_lent(f));
	while (!list_empty(&f->parts))
		let_go(f, f->w.part, f->brought);
	walk_unplace(&f->w);
	lease_drop(f->w.all->store, &f->w.lease);
	room_leave(&f->w);
	list_remove(&f->w.full);
	list_remove(&f->w.ready);
	list_remove(&f->link);
	list_add(f->w.all->flights.free.next, &f->link);
}

/* --- steps --- */

static enum step end(struct flight *f, int brought)
{
	f->brought = brought;
	return DONE;
}

enum step flight_miss(struct walker *w)
{
	return end(flight_of(w), -ENOENT);
}

/* The block went, or came to host memory another way: its parts look it up again. */
enum step flight_again(struct walker *w)
{
	return end(flight_of(w), 1);
}

static void transferred(struct xfer *x)
{
	struct flight *f = container_of(x, struct flight, xfer);

	if (x->kept)
		f->w.placed = false;
	if (x->op == XFER_PROBE)
		f->w.step = FLIGHT_ROOM;
	else
		f->w.step = x->status ? FLIGHT_FAIL : FLIGHT_VERIFY;
	walk_wake(&f->w);
}

/* The tier looks at those members that it needs: where, if a local tier has the block (then it is
 * leased), or whose and which it is. */
static int submit(struct flight *f, enum xfer_op op)
{
	struct store *store = f->w.all->store;
	const struct space *space = walk_space(&f->w);
	struct xfer *x = &f->xfer;

	*x = (struct xfer){
		.op = op,
		.identity = &f->w.job.identity,
		.geometry = &space->geometry,
		.seal = space->seal,
		.done = transferred,
	};
	if (f->w.lease.held)
		(void)blocks_nvme(store->blocks, f->w.lease.block, &x->where);
	if (op == XFER_READ) {
		x->home = f->w.where;
		x->buffer = extents_address(store, &f->w.where);
		x->bytes = f->bytes;
	}
	return tier_submit(store->tiers[source_tiers[f->w.source]], x);
}

enum step flight_probe(struct walker *w)
{
	struct flight *f = flight_of(w);

	f->asked = true;
	return submit(f, XFER_PROBE) ? FLIGHT_MISS : WAIT_READ;
}

/* Lets go of parts that have no use for the block any more. Returns whether there are others. */
static bool is_useful(struct flight *f)
{
	for (struct list *l = f->parts.next, *next; l != &f->parts; l = next) {
		struct part *part = part_at(l);

		next = l->next;
		if (walk_is_useless(&part->w))
			let_go(f, part, -ENOENT);
	}
	return !list_empty(&f->parts);
}

enum step flight_room(struct walker *w)
{
	struct flight *f = flight_of(w);
	const enum step step = f->from->look(f);
	int r;

	if (step != FLIGHT_ROOM)
		return step;
	if (!is_useful(f))
		return DONE;
	if (f->bytes == 0)
		return end(f, -ENOSPC);
	if (!f->asked)
		return room_take_free(w, f->bytes) ? FLIGHT_READ : FLIGHT_PROBE;
	r = room_take(w, f->bytes, false);
	if (r == -EAGAIN)
		return WAIT_ROOM;
	if (r == 0)
		return FLIGHT_READ;
	let_go(f, w->part, r);
	return list_empty(&f->parts) ? DONE : FLIGHT_ROOM;
}

/* The slot goes back unless it is to be read into once more. */
static enum step fail(struct flight *f, enum step next)
{
	if (next != FLIGHT_READ)
		walk_unplace(&f->w);
	return next == FLIGHT_READ && !f->w.placed ? FLIGHT_ROOM : next;
}

enum step flight_fail(struct walker *w)
{
	struct flight *f = flight_of(w);

	return fail(f, f->from->failed(f));
}

enum step flight_read(struct walker *w)
{
	struct flight *f = flight_of(w);
	const enum step step = f->from->look(f);
	int r;

	if (step != FLIGHT_ROOM)
		return fail(f, step);
	r = submit(f, XFER_READ);
	if (r == -EAGAIN && f->from->waits) {
		if (!list_has(&w->full))
			list_add(&w->all->flights.full, &w->full);
		return WAIT_TIER_FULL;
	}
	list_remove(&w->full);
	if (r == 0)
		return WAIT_READ;
	f->xfer.status = r;
	return FLIGHT_FAIL;
}

enum step flight_verify(struct walker *w)
{
	struct flight *f = flight_of(w);
	const struct image_header *header = (const void *)f->xfer.buffer;

	/* An image's codec is the space's, or raw where that could not hold the block. Another one
	 * with a good header was not made by a kvtierd for this space: it may be less exact than
	 * the space promises. */
	if (header->codec_k != header->codec_v ||
	    (header->codec_k != CODEC_RAW && header->codec_k != walk_space(w)->codec))
		return fail(f, f->from->bad(f));
	w->job.codec_k = header->codec_k;
	w->job.geometry = &walk_space(w)->geometry;
	w->job.image = f->xfer.buffer;
	w->job.image_bytes = f->xfer.bytes;
	return walk_job(w, devices_cpu(w->all->devices), DEVICE_VERIFY, FLIGHT_LAND);
}

enum step flight_land(struct walker *w)
{
	struct flight *f = flight_of(w);

	if (w->job.status)
		return fail(f, f->from->bad(f));
	stats_add(&stats_tier(w->all->store->stats, source_tiers[w->source])->read_bytes_total,
		  f->xfer.bytes);
	if (f->from->landed)
		f->from->landed(f);
	f->landed = true;
	for (struct list *l = f->parts.next; l != &f->parts; l = l->next)
		walk_wake(&part_at(l)->w);
	return WAIT_PARTS;
}

/* --- for load.c --- */

static struct list *bucket(struct flights *flights, const uint8_t key[32])
{
	uint32_t hash;

	memcpy(&hash, key, sizeof(hash));
	return &flights->buckets[hash & flights->mask];
}

/* One that brings the part's block. */
static struct flight *find(const struct part *part)
{
	const uint8_t *key = part->w.job.identity.key;
	struct list *head = bucket(&part->w.all->flights, key);

	for (struct list *l = head->next; l != head; l = l->next) {
		struct flight *f = container_of(l, struct flight, link);

		if (walk_space(&f->w) == walk_space(&part->w) &&
		    memcmp(f->w.job.identity.key, key, 32) == 0)
			return f;
	}
	return NULL;
}

static struct flight *begin(struct part *part, enum source source, uint32_t block)
{
	struct flights *flights = &part->w.all->flights;
	struct flight *f;

	assert(!list_empty(&flights->free)); /* F4 */
	f = container_of(flights->free.next, struct flight, link);
	list_remove(&f->link);
	*f = (struct flight){
		.w = { .all = part->w.all,
		       .part = part,
		       .step = FLIGHT_ROOM,
		       .source = source,
		       .job = { .identity = part->w.job.identity, .done = walk_job_done } },
		.from = source == SOURCE_NVME ? &from_nvme : &from_redis,
		.brought = -ECANCELED, /* if it was given up */
	};
	list_open(&f->parts);
	list_add(bucket(flights, part->w.job.identity.key), &f->link);
	f->from->begin(f, block);
	walk_wake(&f->w);
	return f;
}

void flight_join(struct part *part, enum source source, uint32_t block)
{
	struct flight *f = find(part);

	if (!f)
		f = begin(part, source, block);
	part->flight = f;
	part->w.source = f->w.source;
	part->brought = 0;
	list_add(&f->parts, &part->with);
	part->w.all->flights.n_parts++;
}

bool flight_leave(struct part *part)
{
	struct flight *f = part->flight;

	if (f->given_up)
		return false;
	if (f->parts.next == f->parts.prev && is_lent(f)) {
		f->given_up = true;
		list_remove(&f->link); /* nobody joins */
		if (f->xfer.in_flight)
			tier_cancel(f->xfer.tier, &f->xfer);
		else
			device_cancel(&f->w.job);
		return false;
	}
	remove_part(f, part);
	if (list_empty(&f->parts))
		flight_over(f);
	return true;
}
