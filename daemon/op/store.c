/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store.c - the steps of a block that is stored: ADMIT -> PLACE -> ENCODE ~> COMMIT (step.h). Core
 * thread only.
 *
 * Invariants
 *   S1 blocks of a store are committed in chain order, each under its parent: the last committed
 *      block is leased until the next one is. Where a block fails, those after it fail with
 *      -ENOENT: no lookup could find them.
 *   S2 a block becomes visible only after its image is complete and checksummed, and only for a
 *      client that lives and has not given its pages up.
 */
#include "store.h"

#include <errno.h>

#include "daemon/stats/stats.h"
#include "daemon/base/container_of.h"
#include "daemon/shared/client.h"
#include "daemon/nvme/writeback.h"
#include "daemon/redis/outbox.h"
#include "daemon/store/block.h"
#include "daemon/store/copies.h"
#include "daemon/store/extents.h"
#include "daemon/store/space.h"
#include "daemon/store/store.h"
#include "part.h"

/* A block that is away on a disk that is away, too, is stored again: its bytes are here now. */
static bool can_be_loaded(const struct store *store, uint32_t block)
{
	return blocks_host_slot(store->blocks, block) != BLOCK_NONE ||
	       extents_away(store, block, NULL);
}

enum verdict store_admit(struct ops *all, struct part *part)
{
	struct op *op = part->op;
	uint32_t block;

	part->step = STORE_COMMIT;
	if (part->job.page >= op->mount->pages)
		part->status = -EFAULT;
	else if (op->chain_error)
		part->status = op->chain_error;
	if (part->status)
		return CONTINUE;
	block = blocks_find(all->store->blocks, part->job.identity.key, op->mount->space->number);
	if (block != BLOCK_NONE && can_be_loaded(all->store, block)) {
		lease_take(all->store, &part->lease, block);
		part->status = 1; /* KVTIER_BLOCK_PRESENT */
		return CONTINUE;
	}
	part->job.codec_k = part->job.codec_v = (uint8_t)op->mount->space->codec;
	part->step = STORE_PLACE;
	return CONTINUE;
}

enum verdict store_place(struct ops *all, struct part *part)
{
	const struct space *space = part->op->mount->space;
	const bool raw = part->job.codec_k == CODEC_RAW;
	const uint32_t bytes = raw ? space->raw_shape.image_bytes : space->shape.image_bytes;
	int r;

	/* Later blocks of its chain may hold slots, and wait for this one's commit. */
	part->waiter.first = part_is_first(part);
	r = room_take(all, &part->waiter, bytes, &part->where);
	if (r == -EAGAIN) {
		part->wait = WAIT_ROOM;
		return WAIT;
	}
	part->placed = r == 0;
	part->status = r;
	part->step = r ? STORE_COMMIT : STORE_ENCODE;
	return CONTINUE;
}

/* Gives its slot back, if it has one. */
static void unplace(struct part *part)
{
	if (part->placed)
		extents_free(part->op->all->store, &part->where);
	part->placed = false;
}

static void encode_done(struct device_job *job)
{
	struct part *part = container_of(job, struct part, job);

	part->step = STORE_COMMIT;
	if (job->status == -ERANGE && job->codec_k != CODEC_RAW) {
		unplace(part);
		job->codec_k = job->codec_v = CODEC_RAW;
		part->step = STORE_PLACE;
	} else if (job->status) {
		unplace(part);
		if (!part_stopped(part, &part->status))
			part->status = -EIO;
	}
	part_wake(part);
}

enum verdict store_encode(struct ops *all, struct part *part)
{
	const struct space *space = part->op->mount->space;

	part->job.image = extents_address(all->store, &part->where);
	part->job.image_bytes = part->job.codec_k == CODEC_RAW ? space->raw_shape.image_bytes :
								 space->shape.image_bytes;
	part_submit(part, DEVICE_ENCODE, encode_done);
	return WAIT;
}

static void count_stored(struct ops *all, const struct part *part)
{
	struct op *op = part->op;
	struct stats_values *v = &all->store->stats->v;

	op->client->stored_blocks++;
	op->mount->space->stored_blocks++;
	stats_add(&v->store_blocks_total, 1);
	stats_add(&v->store_logical_bytes_total, op->mount->space->shape.logical_bytes);
	stats_add(&v->store_image_bytes_total, part->job.image_bytes);
	stats_add(&v->tiers_host_written_bytes_total, part->job.image_bytes);
	if (part->job.codec_k == CODEC_RAW && op->mount->space->codec == CODEC_FP8) {
		stats_add(&v->store_raw_blocks_total, 1);
		op->mount->space->raw_blocks++;
	}
}

/* The image is ready and its parent is the tail of the chain. */
static int commit(struct ops *all, struct part *part)
{
	struct op *op = part->op;
	const uint32_t parent = op->tail.held ? op->tail.block : BLOCK_NONE;
	uint32_t block = BLOCK_NONE;
	const int r =
		part_enter(all->store, op->mount->space, &part->job, &part->where, parent, &block);

	if (r < 0) {
		if (r != -EXFULL)
			stats_health_set(all->store->stats, STATS_HEALTH_INDEX_FULL, true);
		return -ENOSPC;
	}
	if (r == 0) {
		part->placed = false;
		stats_health_set(all->store->stats, STATS_HEALTH_INDEX_FULL, false);
		count_stored(all, part);
	}
	unplace(part);
	lease_take(all->store, &part->lease, block);
	return r;
}

static enum verdict fail(struct ops *all, struct part *part)
{
	unplace(part);
	lease_drop(all->store, &part->lease);
	if (!part->op->chain_error)
		part->op->chain_error = -ENOENT;
	return DONE;
}

enum verdict store_commit(struct ops *all, struct part *part)
{
	struct op *op = part->op;

	room_leave(all, &part->waiter); /* ended early while it waited */
	if (!part_is_first(part)) {
		part->wait = WAIT_TURN;
		return WAIT;
	}
	if (part->status >= 0 && op->chain_error)
		part->status = op->chain_error;
	/* Given up: the page may have changed under the encoder, which a stopped daemon learns only
	 * now. */
	if (part->status >= 0 && (op->abandoned || ring_given_up(&op->client->ring)))
		part->status = -ECONNRESET;
	if (part->status == 0)
		part->status = commit(all, part);
	if (part->status < 0)
		return fail(all, part);
	op->fresh = part->status == 0 ? op->fresh + 1 : 0;
	copies_touch(all->store, part->lease.block, op->tick);
	writeback_add(all->store->writeback, part->lease.block);
	if (part->status == 0)
		outbox_add(all->store->outbox, part->lease.block);
	lease_drop(all->store, &op->tail);
	op->tail = part->lease; /* the lease moves: it now holds the chain's end */
	part->lease.held = false;
	return DONE;
}
