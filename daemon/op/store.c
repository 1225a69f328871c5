/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store.c - the steps of a block that is stored: ADMIT -> PLACE -> ENCODE ~> COMMIT (step.h). Core
 * thread only.
 *
 * Invariants
 *   S1 blocks of a store are committed in chain order, each under its parent: the last committed
 *      block is leased until the next one is. Where a block fails, the blocks after it fail with
 *      -ENOENT: no lookup could find them.
 *   S2 a block becomes visible only after its image is complete and checksummed, and only for a
 *      client that lives and has not given its pages up.
 */
#include "store.h"

#include <errno.h>

#include "daemon/stats/stats.h"
#include "daemon/base/container_of.h"
#include "daemon/base/loop.h"
#include "daemon/shared/client.h"
#include "daemon/nvme/writeback.h"
#include "daemon/redis/outbox.h"
#include "daemon/store/block.h"
#include "daemon/store/copies.h"
#include "daemon/store/extents.h"
#include "daemon/store/space.h"
#include "daemon/store/store.h"
#include "part.h"
#include "share.h"

/* A block that is away on a disk that is away, too, is stored again: its bytes are here now. */
static bool can_be_loaded(const struct store *store, uint32_t block)
{
	return blocks_host_slot(store->blocks, block) != BLOCK_NONE ||
	       extents_away(store, block, NULL);
}

bool store_must_wait(const struct op *op)
{
	return op->sqe.op == WIRE_OP_STORE && (op->sqe.flags & WIRE_SQE_GIVEN) &&
	       share_of_waiting_is_used(op);
}

/* The codec of its image. In engine mode its client has encoded it, and says where fp8 could not
 * hold it. */
static uint8_t codec_of(struct walker *w)
{
	const struct mount *mount = w->part->op->mount;

	if (mount->layout.image_stride > 0 && mount->space->codec == CODEC_FP8 &&
	    w->job.page & WIRE_PAGE_RAW) {
		w->job.page &= ~(uint64_t)WIRE_PAGE_RAW;
		return CODEC_RAW;
	}
	return (uint8_t)mount->space->codec;
}

enum step store_admit(struct walker *w)
{
	struct part *part = w->part;
	const struct op *op = part->op;
	struct store *store = w->all->store;
	uint32_t block;

	w->job.codec_k = w->job.codec_v = codec_of(w);
	part->status = w->job.page >= op->mount->pages ? -EFAULT : op->chain_error;
	if (part->status)
		return STORE_COMMIT;
	block = blocks_find(store->blocks, w->job.identity.key, op->mount->space->number);
	if (block != BLOCK_NONE && can_be_loaded(store, block)) {
		lease_take(store, &w->lease, block);
		part->status = 1; /* KVTIER_BLOCK_PRESENT */
		return STORE_COMMIT;
	}
	return STORE_PLACE;
}

enum step store_place(struct walker *w)
{
	struct part *part = w->part;
	int r;

	w->job.image_bytes = walk_image_bytes(w, w->job.codec_k);
	/* Later blocks of its chain may hold slots, and wait for this block's commit. */
	r = room_take(w, w->job.image_bytes, walk_is_first(w));
	if (r == -EAGAIN)
		return WAIT_ROOM;
	part->status = r;
	return r ? STORE_COMMIT : STORE_ENCODE;
}

static void encoded(struct device_job *job)
{
	struct walker *w = container_of(job, struct walker, job);

	if (job->status)
		walk_unplace(w);
	if (job->status)
		near_settle(w->all->store, walk_space(w), &w->part->near, job);
	if (job->status == -ERANGE && job->codec_k != CODEC_RAW) {
		job->codec_k = job->codec_v = CODEC_RAW;
		w->step = STORE_PLACE;
	} else if (job->status) {
		const int stopped = walk_stopped(w);

		w->part->status = stopped ? stopped : -EIO;
	} else {
		space_measured(walk_space(w), &job->error);
	}
	walk_wake(w);
}

enum step store_encode(struct walker *w)
{
	w->job.image = extents_address(w->all->store, &w->where);
	w->job.done = encoded;
	w->job.measure = space_measures(walk_space(w), loop_now(w->all->loop));
	w->job.error = (struct codec_error){ 0 };
	near_keep(w->all->store, w->part->op->mount, &w->part->near, w->job.image_bytes, &w->job);
	return walk_job(w, w->part->op->mount->device, DEVICE_ENCODE, STORE_COMMIT);
}

static void count_stored(const struct walker *w)
{
	struct client *client = w->part->op->client;
	struct space *space = walk_space(w);
	struct stats_values *v = &w->all->store->stats->v;

	client->stored_blocks++;
	space->stored_blocks++;
	stats_add(&v->store_blocks_total, 1);
	stats_add(&v->store_logical_bytes_total, space->shape.logical_bytes);
	stats_add(&v->store_image_bytes_total, w->job.image_bytes);
	stats_add(&v->tiers_host_written_bytes_total, w->job.image_bytes);
	if (w->job.codec_k == CODEC_RAW && space->codec == CODEC_FP8) {
		stats_add(&v->store_raw_blocks_total, 1);
		space->raw_blocks++;
	}
}

/* The image is ready and its parent is the tail of the chain. */
static int commit(struct walker *w)
{
	const struct op *op = w->part->op;
	const uint32_t parent = op->tail.held ? op->tail.block : BLOCK_NONE;
	uint32_t block = BLOCK_NONE;
	const int r = walk_enter(w, parent, &block);

	if (r == 0)
		count_stored(w);
	if (r == 0 || (r < 0 && r != -EXFULL))
		stats_health_set(w->all->store->stats, STATS_HEALTH_INDEX_FULL, r < 0);
	if (r < 0)
		return -ENOSPC;
	lease_take(w->all->store, &w->lease, block);
	return r;
}

enum step store_commit(struct walker *w)
{
	struct part *part = w->part;
	struct op *op = part->op;
	struct store *store = w->all->store;

	room_leave(w); /* ended early while it waited */
	if (!walk_is_first(w))
		return WAIT_TURN;
	if (part->status >= 0 && op->chain_error)
		part->status = op->chain_error;
	/* Given up: the page may have changed under the encoder, which a stopped daemon learns only
	 * now. */
	if (part->status >= 0 && (op->abandoned || ring_given_up(&op->client->ring)))
		part->status = -ECONNRESET;
	if (part->status == 0)
		part->status = commit(w);
	if (part->status < 0) {
		w->job.kept = false; /* the table has another image by this key */
		if (!op->chain_error)
			op->chain_error = -ENOENT;
		return DONE;
	}
	op->fresh = part->status == 0 ? op->fresh + 1 : 0;
	copies_touch(store, w->lease.block, op->tick);
	writeback_add(store->writeback, w->lease.block);
	if (part->status == 0)
		outbox_add(store->outbox, w->lease.block);
	lease_drop(store, &op->tail);
	op->tail = w->lease; /* the lease moves: it now holds the chain's end */
	w->lease.held = false;
	return DONE;
}
