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
 *      up). A part that wants the block joins it, in any of its steps, and shares what it brings,
 *      or its miss.
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

#include "daemon/base/container_of.h"
#include "daemon/device/devices.h"
#include "daemon/shared/client.h"
#include "daemon/store/extents.h"
#include "daemon/store/space.h"
#include "daemon/store/store.h"
#include "part.h"
#include "trace.h"

int flights_open(struct ops *all, uint32_t max)
{
	struct flights *flights = &all->flights;
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
	for (uint32_t i = 0; i < max; i++) {
		flights->pool[i].all = all;
		list_add(flights->free.next, &flights->pool[i].link);
	}
	return 0;
}

void flights_close(struct flights *flights)
{
	assert(flights->n_parts == 0);
	free(flights->pool);
	free(flights->buckets);
}

static void run(struct task *task);

/* --- its parts --- */

static struct part *part_at(struct list *link)
{
	return container_of(link, struct part, with);
}

static struct part *payer(const struct flight *f)
{
	return part_at(f->parts.next);
}

static uint32_t held(const struct flight *f)
{
	return (f->placed ? HELD_SLOT : 0u) | (f->lease.held ? HELD_LEASE : 0u) |
	       (list_has(&f->waiter.link) || list_has(&f->full) ? HELD_PLACE : 0u) |
	       (f->xfer.in_flight || f->job.in_flight ? HELD_LENT : 0u);
}

static void wake(struct flight *f)
{
	f->wait = WAIT_NONE;
	ready_push(&f->all->ready, &f->task);
}

/* The client that pays may be another one now: it may get what the first one was refused. */
static void let_pay(struct flight *f)
{
	if (list_empty(&f->parts))
		return;
	f->waiter.op = payer(f)->op;
	if (f->wait == WAIT_ROOM)
		wake(f);
}

/* The flight lets go of a part. brought: see part.h. */
static void let_go(struct flight *f, struct part *part, int brought)
{
	list_remove(&part->with);
	f->all->flights.n_parts--;
	part->flight = NULL;
	part->brought = brought;
	part_wake(part);
}

static void over(struct flight *f)
{
	struct ops *all = f->all;

	assert(list_empty(&f->parts) && !(held(f) & HELD_LENT));
	if (f->placed)
		extents_free(all->store, &f->where);
	lease_drop(all->store, &f->lease);
	room_leave(all, &f->waiter);
	list_remove(&f->full);
	ready_remove(&f->task);
	list_remove(&f->link);
	list_add(all->flights.free.next, &f->link);
}

/* Also the end of a flight that was given up: its last part has its status already. */
static enum verdict end(struct flight *f, int brought)
{
	while (!list_empty(&f->parts))
		let_go(f, payer(f), brought);
	return DONE;
}

/* --- steps --- */

static enum verdict flight_miss(struct flight *f)
{
	return end(f, -ENOENT);
}

/* The block went, or came to host memory another way: its parts look it up again. */
static enum verdict flight_again(struct flight *f)
{
	return end(f, 1);
}

static enum verdict go(struct flight *f, enum step step)
{
	f->step = step;
	return CONTINUE;
}

static void probed(struct xfer *x)
{
	struct flight *f = container_of(x, struct flight, xfer);

	f->step = FLIGHT_ROOM;
	wake(f);
}

static bool submit(struct flight *f, enum xfer_op op, void (*done)(struct xfer *x), int *ret)
{
	struct xfer *x = &f->xfer;

	memset(x, 0, sizeof(*x));
	x->op = op;
	x->done = done;
	f->from->aim(f);
	if (op == XFER_READ) {
		x->home = f->where;
		x->buffer = extents_address(f->all->store, &f->where);
		x->bytes = f->bytes;
	}
	*ret = tier_submit(f->all->store->tiers[source_tiers[f->source]], x);
	if (*ret == 0)
		f->wait = WAIT_READ;
	return *ret == 0;
}

static enum verdict flight_probe(struct flight *f)
{
	int r;

	f->asked = true;
	return submit(f, XFER_PROBE, probed, &r) ? WAIT : go(f, FLIGHT_MISS);
}

/* Lets go of parts that have no use for the block any more. Returns whether there are others. */
static bool useful(struct flight *f)
{
	for (struct list *l = f->parts.next, *next; l != &f->parts; l = next) {
		struct part *part = part_at(l);

		next = l->next;
		if (part_is_useless(part))
			let_go(f, part, -ENOENT);
	}
	let_pay(f);
	return !list_empty(&f->parts);
}

static enum verdict flight_room(struct flight *f)
{
	struct ops *all = f->all;
	const enum step step = f->from->look(f);
	int r = 0;

	if (step != FLIGHT_ROOM)
		return go(f, step);
	if (!useful(f))
		return DONE;
	if (f->bytes == 0)
		return end(f, -ENOSPC);
	if (!f->asked && !room_take_free(all, f->waiter.op, f->bytes, &f->where))
		return go(f, FLIGHT_PROBE);
	if (f->asked)
		r = room_take(all, &f->waiter, f->bytes, &f->where);
	if (r == -EAGAIN) {
		f->wait = WAIT_ROOM;
		return WAIT;
	}
	if (r) {
		let_go(f, payer(f), r);
		let_pay(f);
		return list_empty(&f->parts) ? DONE : CONTINUE;
	}
	f->placed = true;
	return go(f, FLIGHT_READ);
}

/* The slot goes back unless it is to be read into once more. */
static enum verdict fail(struct flight *f, enum step next)
{
	if (f->placed && next != FLIGHT_READ) {
		extents_free(f->all->store, &f->where);
		f->placed = false;
	}
	return go(f, next == FLIGHT_READ && !f->placed ? FLIGHT_ROOM : next);
}

static enum verdict flight_fail(struct flight *f)
{
	return fail(f, f->from->failed(f));
}

static void arrived(struct xfer *x)
{
	struct flight *f = container_of(x, struct flight, xfer);

	if (x->kept)
		f->placed = false;
	f->step = x->status ? FLIGHT_FAIL : FLIGHT_VERIFY;
	wake(f);
}

/* The tier, or the device, takes no more now. */
static enum verdict wait_for_taker(struct flight *f, enum wait wait)
{
	if (!list_has(&f->full))
		list_add(&f->all->flights.full, &f->full);
	f->wait = wait;
	return WAIT;
}

static enum verdict flight_read(struct flight *f)
{
	const enum step step = f->from->look(f);
	int r;

	if (step != FLIGHT_ROOM)
		return fail(f, step);
	if (submit(f, XFER_READ, arrived, &r)) {
		list_remove(&f->full);
		return WAIT;
	}
	if (r == -EAGAIN && f->from->waits)
		return wait_for_taker(f, WAIT_TIER_FULL);
	f->xfer.status = r;
	return fail(f, f->from->failed(f));
}

static void verified(struct device_job *job)
{
	struct flight *f = container_of(job, struct flight, job);

	f->step = FLIGHT_LAND;
	wake(f);
}

/* An image's codec is the space's, or raw where that could not hold the block. Another one with a
 * good header was not made by a kvtierd for this space: it may be less exact than the space
 * promises. */
static bool fits(const struct flight *f)
{
	const struct image_header *header = (const void *)f->xfer.buffer;

	return header->codec_k == header->codec_v &&
	       (header->codec_k == CODEC_RAW || header->codec_k == f->space->codec);
}

static enum verdict flight_verify(struct flight *f)
{
	struct ops *all = f->all;
	int r;

	if (!fits(f))
		return fail(f, f->from->bad(f));
	f->job.kind = DEVICE_VERIFY;
	f->job.geometry = &f->space->geometry;
	f->job.image = f->xfer.buffer;
	f->job.image_bytes = f->xfer.bytes;
	f->job.client = payer(f)->op->client->turn;
	f->job.done = verified;
	r = device_submit(devices_cpu(all->devices), &f->job);
	if (r == -EAGAIN)
		return wait_for_taker(f, WAIT_JOBS_FULL);
	assert(r == 0);
	list_remove(&f->full);
	f->wait = WAIT_JOB;
	return WAIT;
}

/* --- landing --- */

static enum verdict flight_land(struct flight *f)
{
	if (f->job.status)
		return fail(f, f->from->bad(f));
	f->from->landed(f);
	f->landed = true;
	for (struct list *l = f->parts.next; l != &f->parts; l = l->next)
		part_wake(part_at(l));
	return WAIT;
}

/* --- the machine --- */

static enum verdict (*const steps[STEPS])(struct flight *f) = {
	[FLIGHT_PROBE] = flight_probe, [FLIGHT_ROOM] = flight_room,     [FLIGHT_READ] = flight_read,
	[FLIGHT_FAIL] = flight_fail,   [FLIGHT_VERIFY] = flight_verify, [FLIGHT_LAND] = flight_land,
	[FLIGHT_MISS] = flight_miss,   [FLIGHT_AGAIN] = flight_again,
};

/* A flight that was given up ends as soon as nothing of it is lent. */
static void run(struct task *task)
{
	struct flight *f = container_of(task, struct flight, task);
	enum verdict v = CONTINUE;

	f->wait = WAIT_NONE;
	while (v == CONTINUE && !f->given_up) {
		const enum step step = f->step;
		const struct part *part = payer(f);

		assert(step_allows(step, held(f)));
		trace_step(part->op, part->at, step, f->source);
		v = steps[step](f);
		if (v == WAIT)
			trace_wait(part->op, f->wait);
	}
	if (f->given_up)
		v = end(f, -ECANCELED);
	if (v == DONE)
		over(f);
}

bool flights_retry(struct flights *flights)
{
	struct list *first = flights->full.next;
	struct flight *f;

	if (list_empty(&flights->full))
		return false;
	f = container_of(first, struct flight, full);
	ready_remove(&f->task);
	run(&f->task);
	return flights->full.next != first;
}

/* --- for load.c --- */

static struct list *bucket(struct flights *flights, const uint8_t key[32])
{
	uint32_t hash;

	memcpy(&hash, key, sizeof(hash));
	return &flights->buckets[hash & flights->mask];
}

static struct flight *find(struct flights *flights, const struct space *space,
			   const uint8_t key[32])
{
	struct list *head = bucket(flights, key);

	for (struct list *l = head->next; l != head; l = l->next) {
		struct flight *f = container_of(l, struct flight, link);

		if (f->space == space && memcmp(f->job.identity.key, key, 32) == 0)
			return f;
	}
	return NULL;
}

static struct flight *begin(struct ops *all, struct part *part, enum source source, uint32_t block)
{
	struct flights *flights = &all->flights;
	struct flight *f;

	assert(!list_empty(&flights->free)); /* F4 */
	f = container_of(flights->free.next, struct flight, link);
	list_remove(&f->link);
	*f = (struct flight){
		.all = all,
		.task.run = run,
		.space = part->op->mount->space,
		.source = source,
		.step = FLIGHT_ROOM,
		.job.identity = part->job.identity,
		.waiter = { .task = &f->task, .op = part->op },
	};
	list_open(&f->parts);
	list_add(bucket(flights, part->job.identity.key), &f->link);
	f->from = source == SOURCE_NVME ? &from_nvme : &from_redis;
	f->from->begin(f, part, block);
	return f;
}

void flight_join(struct ops *all, struct part *part, enum source source, uint32_t block)
{
	struct flights *flights = &all->flights;
	struct flight *f = find(flights, part->op->mount->space, part->job.identity.key);

	if (!f) {
		f = begin(all, part, source, block);
		ready_push(&all->ready, &f->task);
	}
	part->flight = f;
	part->source = f->source;
	part->brought = 0;
	list_add(&f->parts, &part->with);
	flights->n_parts++;
}

/* The last part is about to leave a flight that has lent its slot. */
static void give_up(struct flight *f)
{
	f->given_up = true;
	list_remove(&f->link); /* nobody joins */
	if (f->xfer.in_flight)
		tier_cancel(f->xfer.tier, &f->xfer);
	else
		device_cancel(&f->job);
}

bool flight_leave(struct ops *all, struct part *part)
{
	struct flight *f = part->flight;

	if (f->given_up)
		return false;
	if (f->parts.next == f->parts.prev && (held(f) & HELD_LENT)) {
		give_up(f);
		return false;
	}
	list_remove(&part->with);
	part->flight = NULL;
	all->flights.n_parts--;
	if (list_empty(&f->parts))
		over(f);
	else
		let_pay(f);
	return true;
}
