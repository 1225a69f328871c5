/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fetch.c - a part gets a slot, and a part of a load or prefetch brings its block from NVMe into it. Core thread only.
 *
 *	PIN ──away──> ROOM ──slot──> FETCH ~read~> SERVE ~verified, decoded~> CHECK ──> promoted, done
 *	  ^            │ none          │  ^                                     │ bad
 *	  │            └── waits       │  └── AGAIN: the tier is full           ├──> FETCH, once more
 *	  └── woken ── JOINED <────────┤                                        └──> the copy is dropped: a miss
 *	                               └──> END: stale, device away, error
 *
 * Invariants
 *   F1 a block is read by one part at a time; others that want it are JOINED and look again when that part ends.
 *   F2 until it is promoted, the slot is the part's own: nobody else can see what was read before its checksum was
 *      verified by the job that serves it (or, for a prefetch, by a job that does nothing else).
 *   F3 no page is touched while a part waits here, so a deadline or a cancel ends it at once. A slot that is being
 *      read into stays with the tier until the device is done with it (xfer.kept).
 *   F4 a part waits for room only while something is under way that will free some: jobs and reads hold pins, writes
 *      make blocks fit to be demoted. When nothing is, whose client holds most is told -ENOSPC.
 *   F5 the list has at most one entry a part, so walking it is cheap. It is in order of need; those that wait for room
 *      overtake none of their own client, and any of another.
 *   F6 a quarter of the parts never begins a fetch, so that memory serves on while a device stalls.
 */
#include <assert.h>
#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "daemon/base/container_of.h"
#include "daemon/front/conn.h"
#include "daemon/store/copies.h"
#include "daemon/kvtierd.h"
#include "part.h"
#include "daemon/redis/outbox.h"
#include "share.h"
#include "daemon/nvme/writeback.h"

/* For reads, which hold slots and pins. */
#define PATIENCE_NS 500000000ull

/* At the end: whoever waited longest is tried first. */
void fetch_list(struct ops *all, struct part *part, enum fetch why)
{
	assert(part->fetch == FETCH_NOT);
	part->fetch = why;
	part->fetch_next = NULL;
	part->fetch_link = all->fetches_end;
	*all->fetches_end = part;
	all->fetches_end = &part->fetch_next;
	all->n_fetches++;
}

static void list_add_first(struct ops *all, struct part *part, enum fetch why)
{
	if (!all->fetches) {
		fetch_list(all, part, why);
		return;
	}
	assert(part->fetch == FETCH_NOT);
	part->fetch = why;
	part->fetch_next = all->fetches;
	part->fetch_link = &all->fetches;
	part->fetch_next->fetch_link = &part->fetch_next;
	all->fetches = part;
	all->n_fetches++;
}

static void list_remove(struct ops *all, struct part *part)
{
	assert(part->fetch != FETCH_NOT);
	part->fetch = FETCH_NOT;
	*part->fetch_link = part->fetch_next;
	if (part->fetch_next)
		part->fetch_next->fetch_link = part->fetch_link;
	else
		all->fetches_end = part->fetch_link;
	all->n_fetches--;
	op_look_again(all);
}

/* So that a device that stalls does not get all parts: what is in memory is still served. */
bool fetch_must_wait(const struct op *q)
{
	const struct kvtierd *d = q->d;
	uint8_t key[32];
	uint32_t block;

	if (q->sqe.op == WIRE_OP_STORE || d->ops->n_fetches < d->ops->max_fetches || q->next_block >= q->sqe.n)
		return false;
	ring_key(&q->conn->ring, q->sqe.first + q->next_block, key);
	block = blocks_find(d->blocks, key, q->mount->space->number);
	return block == BLOCK_NONE ? remote_wanted(d, q->mount->space, key) : blocks_host_slot(d->blocks, block) == BLOCK_NONE;
}

static enum verdict miss(struct part *part, int status)
{
	part->status = status;
	part->step = LOAD_END;
	return CONTINUE;
}

static bool being_read(const struct ops *all, uint32_t block)
{
	for (const struct part *other = all->fetches; other; other = other->fetch_next)
		if (other->fetch >= FETCH_AGAIN && other->fetch <= FETCH_READ && other->lease.block == block)
			return true;
	return false;
}

/* --- room --- */

static struct part *first_waiting(const struct ops *all, enum fetch why)
{
	struct part *part = all->fetches;

	while (part && part->fetch != why)
		part = part->fetch_next;
	return part;
}

/* The first of a client's. */
static struct part *first_for_room(const struct ops *all, const struct conn *conn)
{
	struct part *part = all->fetches;

	while (part && (part->fetch != FETCH_ROOM || part->op->conn != conn))
		part = part->fetch_next;
	return part;
}

/* Grows with everything that may have made room. */
static uint64_t progress(const struct kvtierd *d)
{
	uint64_t ret = devices_jobs_total(&d->devices) + writeback_ended(d->writeback);

	for (int i = TIER_NVME; i <= TIER_REDIS; i++)
		ret += d->tiers[i] ? d->tiers[i]->xfers_total - d->tiers[i]->in_flight : 0;
	return ret;
}

static bool reads_under_way(const struct kvtierd *d)
{
	const struct tier *nvme = d->tiers[TIER_NVME], *redis = d->tiers[TIER_REDIS];

	return (nvme && nvme->in_flight > writeback_in_flight(d->writeback)) ||
	       (redis && redis->in_flight > outbox_in_flight(d->outbox));
}

/* Something that may make room will end soon. Jobs always do; of a device that is not believed for ever. */
static bool something_under_way(const struct kvtierd *d)
{
	if (devices_in_flight(&d->devices) > 0 || writeback_moving(d->writeback))
		return true;
	return reads_under_way(d) &&
	       loop_now(d->loop) - d->ops->room_progress_ns < PATIENCE_NS;
}

static void note_progress(const struct kvtierd *d)
{
	struct ops *all = d->ops;

	/* Nobody waited: nobody looked. */
	if (progress(d) != all->room_progress || !first_waiting(all, FETCH_ROOM))
		all->room_progress_ns = loop_now(d->loop);
	all->room_progress = progress(d);
}

/* Somebody else waits and holds more: when nothing else helps he is refused first, and what he held may go. */
static bool another_holds_more(const struct ops *all, const struct conn *conn)
{
	const struct part *part = all->fetches;

	while (part && (part->fetch != FETCH_ROOM || part->op->conn->in_flight_bytes <= conn->in_flight_bytes))
		part = part->fetch_next;
	return part != NULL;
}

static void wait_for_room(struct ops *all, struct part *part)
{
	const struct op *q = part->op;

	if (part->fetch == FETCH_ROOM)
		return;		/* it keeps its place */
	/* Later blocks of its chain may hold slots, and wait for this one's commit. */
	if (q->sqe.op == WIRE_OP_STORE && q->parts == part)
		list_add_first(all, part, FETCH_ROOM);
	else
		fetch_list(all, part, FETCH_ROOM);
}

/* What is to be written and cannot be now is dropped only when there is nothing to wait for. */
static int look_for_room(struct kvtierd *d, const struct part *part, uint32_t bytes, struct extent *ret)
{
	struct tier *host = d->tiers[TIER_HOST];
	struct mover_for whom = { .space = part->op->mount->space->number, .guaranteed = share_guaranteed(d) };
	int r = mover_find_room_for(host, d->blocks, d->tick, bytes, &whom, &d->moved, ret);

	/* All that could go went there. More each time: one slot may help, or it takes a whole slab of them. */
	for (uint32_t n = 1; r == -ENOSPC && outbox_give_back(d->outbox, n); n *= 2)
		r = mover_find_room_for(host, d->blocks, d->tick, bytes, &whom, &d->moved, ret);
	note_progress(d);
	if (r != -EAGAIN || (!part->op->early && something_under_way(d)))
		return r;
	whom.desperate = true;
	r = mover_find_room_for(host, d->blocks, d->tick, bytes, &whom, &d->moved, ret);
	for (uint32_t n = 1; (r == -ENOSPC || r == -EAGAIN) && outbox_give_back(d->outbox, n); n *= 2)
		r = mover_find_room_for(host, d->blocks, d->tick, bytes, &whom, &d->moved, ret);
	return r;
}

int fetch_slot(struct kvtierd *d, struct part *part, uint32_t bytes)
{
	const struct part *first = first_for_room(d->ops, part->op->conn);
	const int early = part->op->early;
	int r = -EAGAIN;

	if (!first || part->fetch == FETCH_ROOM)	/* no part overtakes another of its client */
		r = look_for_room(d, part, bytes, &part->where);
	if ((r == -ENOSPC || r == -EAGAIN) && !early &&
	    (something_under_way(d) || (first && first != part) ||
	     another_holds_more(d->ops, part->op->conn))) {
		wait_for_room(d->ops, part);
		return -EAGAIN;
	}
	if (part->fetch == FETCH_ROOM)
		list_remove(d->ops, part);
	part->placed = r == 0;
	if (r)
		return early ? early : -ENOSPC;
	return 0;
}

bool fetch_free_slot(struct kvtierd *d, struct part *part, uint32_t bytes)
{
	if (!first_for_room(d->ops, part->op->conn))
		part->placed = tier_alloc(d->tiers[TIER_HOST], bytes, &part->where) == 0;
	return part->placed;
}

enum verdict load_room(struct kvtierd *d, struct part *part)
{
	const uint32_t bytes = copies_image_bytes(d, part->lease.block);
	int r;

	if (part->op->early)
		return miss(part, part->op->early);
	if (being_read(d->ops, part->lease.block)) {
		if (part->fetch == FETCH_ROOM)
			list_remove(d->ops, part);
		fetch_list(d->ops, part, FETCH_JOINED);
		return WAIT;
	}
	if (!blocks_live(d->blocks, part->lease.block))
		return miss(part, -ENOENT);
	if (blocks_host_slot(d->blocks, part->lease.block) != BLOCK_NONE) {	/* while we waited */
		fetch_leave(d, part);
		part->step = LOAD_PIN;
		return CONTINUE;
	}
	r = bytes ? fetch_slot(d, part, bytes) : -ENOSPC;
	if (r == -EAGAIN)
		return WAIT;
	if (r)
		return miss(part, r);
	part->step = LOAD_FETCH;
	return CONTINUE;
}

/* --- the read --- */

static void read_failed(struct kvtierd *d, struct part *part)
{
	const int error = part->xfer.status;

	/* Given up, or the device is away: the block may be read another time. */
	if (error == -ECANCELED || error == -ETIMEDOUT || !nvme_readable(d->tiers[TIER_NVME], &part->xfer.where))
		part->step = LOAD_END;
	else
		part->step = fetch_again(d, part) ? LOAD_FETCH : LOAD_END;
	if (part->step == LOAD_END && part->status == 0)
		part->status = -ENOENT;
}

static void read_done(struct xfer *x)
{
	struct part *part = container_of(x, struct part, xfer);
	struct kvtierd *d = part->op->d;

	part->fetch = FETCH_READ;
	if (x->kept)
		part->placed = false;
	if (part->status < 0)		/* ended early meanwhile */
		part->step = LOAD_END;
	else if (x->status)
		read_failed(d, part);
	else
		part->step = LOAD_SERVE;
	part_run(part);
}

enum verdict load_fetch(struct kvtierd *d, struct part *part)
{
	const uint32_t block = part->lease.block;
	struct xfer *x = &part->xfer;
	int r;

	if (part->fetch == FETCH_NOT)
		fetch_list(d->ops, part, FETCH_AGAIN);
	if (part->op->early)	/* once more? Not for an op that was told to end */
		return miss(part, part->op->early);
	if (!blocks_live(d->blocks, block))
		return miss(part, -ENOENT);
	if (blocks_host_slot(d->blocks, block) != BLOCK_NONE) {		/* it was stored again */
		unplace(d, part);
		fetch_leave(d, part);
		part->step = LOAD_PIN;
		return CONTINUE;
	}
	(void)blocks_nvme(d->blocks, block, &x->where);		/* being away it has one */
	x->op = XFER_READ;
	x->home = part->where;
	x->buffer = tier_address(d->tiers[TIER_HOST], &part->where);
	x->bytes = copies_image_bytes(d, block);
	x->kept = false;
	x->done = read_done;
	r = tier_submit(d->tiers[TIER_NVME], x);
	part->fetch = r == 0 ? FETCH_READING : FETCH_AGAIN;
	if (r == 0 || r == -EAGAIN)
		return WAIT;
	if (r == -ESTALE)	/* its segment was lost without a footer to tell of it */
		copies_condemn(d, block);
	return miss(part, -ENOENT);
}

/* The first of the client that holds least, of those not yet tried in this round. */
static struct part *next_for_room(const struct ops *all)
{
	struct part *best = NULL;

	for (struct part *part = all->fetches; part; part = part->fetch_next) {
		const struct conn *conn = part->op->conn;

		if (part->fetch == FETCH_ROOM && conn->room_round != all->room_round &&
		    (!best || conn->in_flight_bytes < best->op->conn->in_flight_bytes))
			best = part;
	}
	return best;
}

/* Each client's first in turn: a large image that finds no room holds up nobody else's small one. */
static bool retry_room(struct ops *all)
{
	struct part *part = first_waiting(all, FETCH_ROOM);
	const bool worked = part && (progress(all->d) != all->room_progress || !something_under_way(all->d));

	if (!worked)
		return false;
	all->room_round++;
	while ((part = next_for_room(all)) != NULL) {
		part->op->conn->room_round = all->room_round;
		part_run(part);
	}
	return true;
}

/* Where the tier, or the room, is still short the step puts the part back; what ends then will bring us here again. */
bool fetch_retry(struct ops *all)
{
	struct part *part = first_waiting(all, FETCH_AGAIN);
	bool worked = false;

	if (part) {
		part_run(part);
		worked = first_waiting(all, FETCH_AGAIN) != part;
	}
	return retry_room(all) || worked;
}

/* --- after it --- */

void fetch_promote(struct kvtierd *d, struct part *part)
{
	static const uint8_t none[32];
	const uint32_t block = part->lease.block;
	const uint8_t *parent_key = part->xfer.record.parent;
	uint32_t parent = BLOCK_NONE;

	stats_add(&d->stats->v.tiers_nvme_read_bytes_total, part->xfer.bytes);
	if (!blocks_live(d->blocks, block) || blocks_host_slot(d->blocks, block) != BLOCK_NONE) {
		unplace(d, part);	/* condemned meanwhile: right bytes, but nothing to keep */
		return;
	}
	if (memcmp(parent_key, none, sizeof none) != 0)
		parent = blocks_find(d->blocks, parent_key, blocks_space(d->blocks, block));
	if (parent == block)
		parent = BLOCK_NONE;
	blocks_promote(d->blocks, block, parent, &part->where);
	host_set_owner(d->tiers[TIER_HOST], &part->where, block);
	part->placed = false;
	stats_add(&d->stats->v.tiers_host_promoted_blocks_total, 1);
}

bool fetch_again(struct kvtierd *d, struct part *part)
{
	struct extent now;

	if (!blocks_live(d->blocks, part->lease.block))
		return false;
	/* Its segment was used again while we read: what came was another block. The next read is from where it is. */
	if (blocks_nvme(d->blocks, part->lease.block, &now) &&
	    (now.unit != part->xfer.where.unit || now.slot != part->xfer.where.slot ||
	     now.generation != part->xfer.where.generation))
		return true;
	if (!part->reread) {
		part->reread = true;
		return true;
	}
	copies_drop_nvme(d, part->lease.block);
	return false;
}

void fetch_leave(struct kvtierd *d, struct part *part)
{
	const enum fetch was = part->fetch;
	const uint32_t block = part->lease.block;
	struct part *other;

	if (was != FETCH_NOT)
		list_remove(d->ops, part);
	if (was < FETCH_AGAIN || was >= FETCH_JOINED)
		return;
	do {
		other = d->ops->fetches;
		while (other && (other->fetch != FETCH_JOINED || other->lease.block != block))
			other = other->fetch_next;
		if (!other)
			return;
		list_remove(d->ops, other);
		other->step = LOAD_PIN;
		part_run(other);
	} while (!being_read(d->ops, block));	/* else the rest has joined that one */
}

/* Called while q->ending keeps q from being freed under us. */
void fetch_end_early(struct op *q, int status)
{
	struct ops *all = q->d->ops;
	struct part *part = all->fetches;

	while (part) {
		struct part *next = part->fetch_next;

		if (part->op == q && part->status == 0 && part->fetch != FETCH_READ) {
			part->status = status;
			if (part->fetch == FETCH_READING) {
				tier_cancel(part->xfer.tier, &part->xfer);
			} else {
				part->step = q->sqe.op == WIRE_OP_STORE ? STORE_COMMIT : LOAD_END;
				part_run(part);
			}
			next = all->fetches;	/* others may have come or gone */
		}
		part = next;
	}
}
