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
 * The sources, NVMe and Redis, differ in struct source_ops.
 *
 * Invariants
 *   F1 there is one flight a block and space (a new one may begin beside one that is being given
 *      up). A part that wants the block joins it, in any of its steps, and shares its image, or its
 *      miss.
 *   F2 a flight waits for room, a tier, or a job; never for a part or for another flight. A part
 *      waits for its flight, or in KEEP for the parts of its op before it. So there is no cycle,
 *      and each wait ends.
 *   F3 until it has landed no part sees the slot: the header was compared with key, space and
 *      geometry, and the checksum verified. No page is touched by a flight, so the deadline or
 *      cancel of an op takes its part out at once.
 *   F4 a flight has at least one part, so there are at most as many flights as parts, and at most
 *      as many jobs as the device takes. The last part stays while a tier or the device has the
 *      slot; a slot that a stalled disk keeps stays with the tier (xfer.kept).
 *   F5 room is looked for in the name of the first part's client. When room is refused, that part
 *      gets no image, and the next one asks.
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
#include "base/list.h"
#include "base/loop.h"
#include "daemon/device/device.h"
#include "daemon/session/peer.h"
#include "daemon/table/block.h"
#include "daemon/move/copies.h"
#include "daemon/move/lesser.h"
#include "daemon/table/space.h"
#include "daemon/move/tables.h"
#include "part.h"

/* What differs by source. The functions return at once; a step that they return is the flight's
 * next one. */
struct source_ops {
	/* the flight waits if the tier takes no more now; else that is an error */
	bool waits;
	void (*begin)(struct flight *f, uint32_t block);
	/* called before ROOM and READ; FLIGHT_ROOM: the flight goes on */
	enum step (*look)(struct flight *f);
	enum step (*failed)(struct flight *f); /* xfer.status says why */
	enum step (*bad)(struct flight *f);    /* the bytes read are no image of the block */
	bool shared; /* other nodes may have what this one's configuration forbids: it stays */
	void (*landed)(struct flight *f); /* may be NULL */
};

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

/* The device or a tier has something of it. */
static bool is_lent(const struct flight *f)
{
	return f->xfer.in_flight || f->task.job.in_flight;
}

/* --- its parts --- */

static struct part *part_at(struct list *link)
{
	return container_of(link, struct part, with);
}

/* Room may be looked for in another client's name now, which may get what the first one was
 * refused. */
static void remove_part(struct flight *f, struct part *part)
{
	list_remove(&part->with);
	f->task.all->flights.n_parts--;
	part->flight = NULL;
	if (list_empty(&f->parts))
		return;
	f->task.part = part_at(f->parts.next);
	if (f->task.wait == WAIT_ROOM)
		task_wake(&f->task);
}

/* The flight gives up a part. brought: see part.h. */
static void let_go(struct flight *f, struct part *part, int brought)
{
	remove_part(f, part);
	part->brought = brought;
	task_wake(&part->task);
}

void flight_over(struct flight *f)
{
	assert(!is_lent(f));
	while (!list_empty(&f->parts))
		let_go(f, f->task.part, f->brought);
	task_unplace(&f->task);
	lease_drop(f->task.all->tables, &f->task.lease);
	room_leave(&f->task);
	list_remove(&f->task.full);
	list_remove(&f->task.ready);
	list_remove(&f->link);
	list_add(f->task.all->flights.free.next, &f->link);
}

/* --- steps --- */

static enum step end(struct flight *f, int brought)
{
	f->brought = brought;
	return DONE;
}

enum step flight_miss(struct task *task)
{
	return end(flight_of(task), -ENOENT);
}

/* The block went, or came to host memory another way: its parts look it up again. */
enum step flight_again(struct task *task)
{
	return end(flight_of(task), 1);
}

static void transferred(struct xfer *x)
{
	struct flight *f = container_of(x, struct flight, xfer);

	if (x->kept)
		f->task.placed = false;
	if (x->op == XFER_PROBE)
		f->task.step = FLIGHT_ROOM;
	else
		f->task.step = x->status ? FLIGHT_FAIL : FLIGHT_VERIFY;
	task_wake(&f->task);
}

/* The tier looks at the members that it needs: at `where`, if a local tier has the block (then it
 * is leased), or at whose block it is, and which. */
static int submit(struct flight *f, enum xfer_op op)
{
	struct tables *tables = f->task.all->tables;
	const struct space *space = task_space(&f->task);
	struct xfer *x = &f->xfer;

	*x = (struct xfer){
		.op = op,
		.identity = &f->task.job.identity,
		.geometry = &space->geometry,
		.seal = space->seal,
		.done = transferred,
	};
	if (f->task.lease.held)
		(void)blocks_nvme(tables->blocks, f->task.lease.block, &x->where);
	if (op == XFER_READ) {
		x->home = f->task.where;
		x->buffer = extents_address(tables, &f->task.where);
		x->bytes = f->bytes;
	}
	return tier_submit(tables->tiers[source_tiers[f->task.source]], x);
}

enum step flight_probe(struct task *task)
{
	struct flight *f = flight_of(task);

	f->asked = true;
	return submit(f, XFER_PROBE) ? FLIGHT_MISS : WAIT_READ;
}

/* Lets parts leave that have no use for the block any more. Returns whether there are others. */
static bool is_useful(struct flight *f)
{
	for (struct list *l = f->parts.next, *next; l != &f->parts; l = next) {
		struct part *part = part_at(l);

		next = l->next;
		if (task_is_useless(&part->task))
			let_go(f, part, -ENOENT);
	}
	return !list_empty(&f->parts);
}

enum step flight_room(struct task *task)
{
	struct flight *f = flight_of(task);
	const enum step step = f->from->look(f);
	int r;

	if (step != FLIGHT_ROOM)
		return step;
	if (!is_useful(f))
		return DONE;
	if (f->bytes == 0)
		return end(f, -ENOSPC);
	if (!f->asked)
		return room_take_free(task, f->bytes) ? FLIGHT_READ : FLIGHT_PROBE;
	r = room_take(task, f->bytes, false);
	if (r == -EAGAIN)
		return WAIT_ROOM;
	if (r == 0)
		return FLIGHT_READ;
	let_go(f, task->part, r);
	return list_empty(&f->parts) ? DONE : FLIGHT_ROOM;
}

/* Frees the slot unless it is to be read into once more. */
static enum step fail(struct flight *f, enum step next)
{
	if (next != FLIGHT_READ)
		task_unplace(&f->task);
	return next == FLIGHT_READ && !f->task.placed ? FLIGHT_ROOM : next;
}

enum step flight_fail(struct task *task)
{
	struct flight *f = flight_of(task);

	return fail(f, f->from->failed(f));
}

enum step flight_read(struct task *task)
{
	struct flight *f = flight_of(task);
	const enum step step = f->from->look(f);
	int r;

	if (step != FLIGHT_ROOM)
		return fail(f, step);
	r = submit(f, XFER_READ);
	if (r == -EAGAIN && f->from->waits) {
		if (!list_has(&task->full))
			list_add(&task->all->flights.full, &task->full);
		return WAIT_TIER_FULL;
	}
	list_remove(&task->full);
	if (r == 0)
		return WAIT_READ;
	f->xfer.status = r;
	return FLIGHT_FAIL;
}

enum step flight_verify(struct task *task)
{
	struct flight *f = flight_of(task);
	const struct image_header *header = (const void *)f->xfer.buffer;

	/* An image's codec is the space's, or raw where that could not hold the block, or a lesser
	 * one that the configuration allows. Another one with a good header may be less exact than
	 * the space promises. */
	if (lesser_is(task_space(task), header) &&
	    !lesser_takes(task->all->tables->spaces, task_space(task), header->codec_k,
			  header->codec_v))
		return fail(f, f->from->shared && header->codec_v == CODEC_V4 ? FLIGHT_MISS :
										f->from->bad(f));
	task->job.codec_k = header->codec_k;
	task->job.geometry = &task_space(task)->geometry;
	task->job.image = f->xfer.buffer;
	task->job.image_bytes = f->xfer.bytes;
	return task_job(task, devices_cpu(task->all->devices), DEVICE_VERIFY, FLIGHT_LAND);
}

enum step flight_land(struct task *task)
{
	struct flight *f = flight_of(task);

	if (task->job.status)
		return fail(f, f->from->bad(f));
	stats_add(
		&stats_tier(task->all->tables->stats, source_tiers[task->source])->read_bytes_total,
		f->xfer.bytes);
	if (f->from->landed)
		f->from->landed(f);
	f->landed = true;
	for (struct list *l = f->parts.next; l != &f->parts; l = l->next)
		task_wake(&part_at(l)->task);
	return WAIT_PARTS;
}

/* --- from NVMe ---
 *
 * The block is in the table already (away), leased by its flight, and at landing the slot becomes
 * the block's. An image that is bad is read once more, since its segment may have been used again
 * meanwhile; then the copy is dropped.
 */

static void nvme_begin(struct flight *f, uint32_t block)
{
	lease_take(f->task.all->tables, &f->task.lease, block);
	f->bytes = copies_image_bytes(f->task.all->tables, block);
	f->asked = true;
}

/* The block is gone, or it came back another way. */
static bool moved_on(const struct flight *f)
{
	const struct blocks *blocks = f->task.all->tables->blocks;

	return !blocks_live(blocks, f->task.lease.block) ||
	       blocks_host_slot(blocks, f->task.lease.block) != BLOCK_NONE;
}

static enum step nvme_look(struct flight *f)
{
	return moved_on(f) ? FLIGHT_AGAIN : FLIGHT_ROOM;
}

/* READ: the image is read once more. MISS: the copy was dropped. */
static enum step once_more(struct flight *f)
{
	struct tables *tables = f->task.all->tables;
	const uint32_t block = f->task.lease.block;
	struct extent now;

	if (!blocks_live(tables->blocks, block))
		return FLIGHT_MISS;
	/* Its segment was used again while we read: another block came. The next read is from the
	 * block's present place. */
	if (blocks_nvme(tables->blocks, block, &now) && !extent_equal(&now, &f->xfer.where))
		return FLIGHT_READ;
	if (!f->reread) {
		f->reread = true;
		return FLIGHT_READ;
	}
	copies_drop_nvme(tables, block);
	return FLIGHT_MISS;
}

static enum step nvme_failed(struct flight *f)
{
	const int error = f->xfer.status;

	if (error == -ESTALE) { /* its segment was lost without a footer to tell of it */
		copies_condemn(f->task.all->tables, f->task.lease.block);
		return FLIGHT_MISS;
	}
	/* Given up, or the disk is away: the block may be read another time. */
	if (error == -ECANCELED || error == -ETIMEDOUT ||
	    !extents_readable(f->task.all->tables, &f->xfer.where))
		return FLIGHT_MISS;
	return once_more(f);
}

static enum step nvme_bad(struct flight *f)
{
	struct ops *all = f->task.all;

	if (once_more(f) == FLIGHT_READ)
		return FLIGHT_READ;
	log_error(
		"nvme_corrupt",
		"an image read from NVMe failed its checks and was dropped (segment %u); its block "
		"is a miss. If this repeats, test the device",
		f->xfer.where.slot >> 16);
	stats_add(&all->tables->stats->v.tiers_nvme_corrupt_blocks_total, 1);
	stats_health_set(all->tables->stats, STATS_HEALTH_NVME_CORRUPT, true);
	return FLIGHT_MISS;
}

/* The block may have gone meanwhile, or been stored again. Then its bytes are right all the same,
 * but they are not kept. */
static void nvme_landed(struct flight *f)
{
	static const uint8_t none[32];
	struct tables *tables = f->task.all->tables;
	const uint8_t *key = f->xfer.record.parent;
	uint32_t parent = BLOCK_NONE;

	if (moved_on(f))
		return;
	if (memcmp(key, none, sizeof(none)) != 0)
		parent = blocks_find(tables->blocks, key, task_space(&f->task)->number);
	copies_promote(tables, f->task.lease.block, &f->task.where, parent);
	f->task.placed = false;
	stats_add(&tables->stats->v.tiers_host_promoted_blocks_total, 1);
}

static const struct source_ops from_nvme = {
	.waits = true,
	.begin = nvme_begin,
	.look = nvme_look,
	.failed = nvme_failed,
	.bad = nvme_bad,
	.landed = nvme_landed,
};

/* --- from Redis ---
 *
 * No table says that the block is there.
 *
 * So no block is evicted for it before the value's header has come and is good: a load reads at
 * once only where a slot is free. Else, and always for a prefetch, the flight begins with PROBE, at
 * the price of a round trip; so keys that no node has cost no block. For a Redis user that may not
 * GETRANGE the probe knows only that there is a value, by STRLEN; of a user that may neither, no
 * room is made: a miss, which is counted. Any trouble of Redis is a miss, within [redis] timeout_ms
 * for each of the three times at most that it is asked.
 */

static struct stats_values *counters(const struct flight *f)
{
	return &f->task.all->tables->stats->v;
}

static void redis_begin(struct flight *f, uint32_t block)
{
	(void)block;
	f->bytes = task_space(&f->task)->shape.image_bytes;
	if (f->task.part->op->sqe.op != WIRE_OP_PREFETCH)
		return;
	f->task.step = FLIGHT_PROBE;
	f->xfer.op = XFER_PROBE;
}

static bool has_load(const struct flight *f)
{
	for (struct list *l = f->parts.next; l != &f->parts; l = l->next)
		if (container_of(l, struct part, with)->op->sqe.op == WIRE_OP_LOAD)
			return true;
	return false;
}

/* Acts on what Redis answered to a PROBE. */
static enum step redis_look(struct flight *f)
{
	const int error = f->xfer.status;

	if (f->xfer.op != XFER_PROBE)
		return FLIGHT_ROOM;
	f->xfer.op = XFER_READ;
	if (error == 0 && f->xfer.bytes > f->bytes) /* else it fits, or its size is not known (0) */
		f->bytes = f->xfer.bytes;
	if (error == -EBADMSG)
		stats_add(&counters(f)->tiers_redis_corrupt_blocks_total, 1);
	/* a Redis user who may not ask, but perhaps read */
	if ((error == -EACCES || error == -EREMOTEIO) && has_load(f))
		stats_add(&counters(f)->tiers_redis_unasked_blocks_total, 1);
	return error ? FLIGHT_MISS : FLIGHT_ROOM;
}

static enum step redis_bad(struct flight *f)
{
	stats_add(&counters(f)->tiers_redis_corrupt_blocks_total, 1);
	tier_condemn(f->task.all->tables->tiers[TIER_REDIS], f->xfer.seal, f->xfer.buffer,
		     f->xfer.bytes);
	return FLIGHT_MISS;
}

static enum step redis_failed(struct flight *f)
{
	const struct xfer *x = &f->xfer;

	if (x->status == -EFBIG && f->bytes == task_space(&f->task)->shape.image_bytes &&
	    x->bytes > f->bytes) {
		f->bytes = x->bytes; /* stored raw: its codec could not hold it */
		f->asked = true;
		return FLIGHT_ROOM;
	}
	if (x->status == -EBADMSG)
		stats_add(&counters(f)->tiers_redis_corrupt_blocks_total, 1);
	return FLIGHT_MISS;
}

static const struct source_ops from_redis = {
	.begin = redis_begin,
	.look = redis_look,
	.failed = redis_failed,
	.bad = redis_bad,
	.shared = true,
};

/* --- for load.c --- */

static struct list *bucket(struct flights *flights, const uint8_t key[32])
{
	uint32_t hash;

	memcpy(&hash, key, sizeof(hash));
	return &flights->buckets[hash & flights->mask];
}

/* The flight that brings the part's block, or NULL. */
static struct flight *find(const struct part *part)
{
	const uint8_t *key = part->task.job.identity.key;
	struct list *head = bucket(&part->task.all->flights, key);

	for (struct list *l = head->next; l != head; l = l->next) {
		struct flight *f = container_of(l, struct flight, link);

		if (task_space(&f->task) == task_space(&part->task) &&
		    memcmp(f->task.job.identity.key, key, 32) == 0)
			return f;
	}
	return NULL;
}

static struct flight *begin(struct part *part, enum source source, uint32_t block)
{
	struct flights *flights = &part->task.all->flights;
	struct flight *f;

	assert(!list_empty(&flights->free)); /* F4 */
	f = container_of(flights->free.next, struct flight, link);
	list_remove(&f->link);
	*f = (struct flight){
		.task = { .all = part->task.all,
			  .part = part,
			  .step = FLIGHT_ROOM,
			  .source = source,
			  .job = { .identity = part->task.job.identity, .done = task_job_done } },
		.from = source == SOURCE_NVME ? &from_nvme : &from_redis,
		.brought = -ECANCELED, /* if it was given up */
	};
	list_open(&f->parts);
	list_add(bucket(flights, part->task.job.identity.key), &f->link);
	f->from->begin(f, block);
	task_wake(&f->task);
	return f;
}

void flight_join(struct part *part, enum source source, uint32_t block)
{
	struct flight *f = find(part);

	if (!f)
		f = begin(part, source, block);
	part->flight = f;
	part->task.source = f->task.source;
	part->brought = 0;
	list_add(&f->parts, &part->with);
	part->task.all->flights.n_parts++;
}

bool flight_leave(struct part *part)
{
	struct flight *f = part->flight;

	if (f->given_up)
		return false;
	if (f->parts.next == f->parts.prev && is_lent(f)) {
		f->given_up = true;
		list_remove(&f->link); /* no part joins it any more */
		if (f->xfer.in_flight)
			tier_cancel(f->xfer.tier, &f->xfer);
		else
			device_cancel(&f->task.job);
		return false;
	}
	remove_part(f, part);
	if (list_empty(&f->parts))
		flight_over(f);
	return true;
}
