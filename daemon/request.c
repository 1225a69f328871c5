/* SPDX-License-Identifier: Apache-2.0 */
/*
 * request.c - how an op runs. A request is one op; each of its blocks is a part that walks a step table. Waiting
 * for the device (or, in a store, for the parent block) is the only asynchrony.
 *
 *	store:     ADMIT -> PLACE -> ENCODE ~> COMMIT -> done	   ~> : waits
 *	               `------------^  ^ `-> PLACE (again, raw)
 *	               `-> COMMIT (already present, or failed: its turn still comes)
 *	load:      LOOKUP -> PIN -> SERVE ~> CHECK -> done
 *	prefetch:  LOOKUP -> PIN -> done
 *
 * Invariants
 *   Q1 every block of an op gets exactly one status, and the op exactly one completion, after the last part let
 *      go of its page.
 *   Q2 blocks of a store are committed in chain order, each under its parent: the last committed one is
 *      leased until the next is. Where one fails, those after it fail with -ENOENT: no lookup could find them.
 *   Q3 a block becomes visible only after its image is complete and checksummed, and only for a client that lives
 *      and has not given its pages up.
 *   Q4 key and page are each read once from the arena; the entry was copied by ring_peek().
 *   Q5 parts and requests come from pools made at start; nothing is allocated here.
 */
#include "request.h"

#include <assert.h>
#include <errno.h>
#include <stddef.h>

#include "conn.h"
#include "kvtierd.h"
#include "op.h"

enum verdict { CONTINUE, WAIT, DONE };

/* --- store --- */

static enum verdict store_admit(struct kvtierd *d, struct part *part)
{
	struct request *q = part->request;
	uint32_t block;

	part->step = STORE_COMMIT;
	if (part->job.page >= q->mount->pages)
		part->status = -EFAULT;
	else if (q->chain_error)
		part->status = q->chain_error;
	if (part->status)
		return CONTINUE;
	block = blocks_find(d->blocks, part->job.identity.key, q->mount->space->number);
	if (block != BLOCK_NONE) {
		lease_take(d, &part->lease, block);
		part->status = 1;	/* KVTIER_BLOCK_PRESENT */
		return CONTINUE;
	}
	part->job.codec_k = part->job.codec_v = (uint8_t)q->mount->space->codec;
	part->step = STORE_PLACE;
	return CONTINUE;
}

static enum verdict store_place(struct kvtierd *d, struct part *part)
{
	const struct space *space = part->request->mount->space;
	const bool raw = part->job.codec_k == CODEC_RAW;
	const uint32_t bytes = raw ? space->raw_shape.image_bytes : space->shape.image_bytes;
	struct tier *host = d->tiers[TIER_HOST];
	const int r = mover_make_room(host, d->blocks, d->tick, bytes, MOVER_STEPS, &d->moved, &part->where);

	if (r) {
		part->status = -ENOSPC;
		part->step = STORE_COMMIT;
		return CONTINUE;
	}
	part->placed = true;
	part->job.image = tier_address(host, &part->where);
	part->job.image_bytes = bytes;
	part->step = STORE_ENCODE;
	return CONTINUE;
}

static void unplace(struct kvtierd *d, struct part *part)
{
	if (part->placed)
		tier_free(d->tiers[part->where.tier], &part->where);
	part->placed = false;
}

static void encode_done(struct device_job *job)
{
	struct part *part = (struct part *)(void *)((char *)job - offsetof(struct part, job));
	struct kvtierd *d = part->request->d;

	part->step = STORE_COMMIT;
	if (job->status == -ERANGE && job->codec_k != CODEC_RAW) {
		unplace(d, part);
		job->codec_k = job->codec_v = CODEC_RAW;
		part->step = STORE_PLACE;
	} else if (job->status) {
		unplace(d, part);
		part->status = -EIO;
	}
	part_run(part);
}

static enum verdict store_encode(struct kvtierd *d, struct part *part)
{
	int r;

	part->job.kind = DEVICE_ENCODE;
	part->job.done = encode_done;
	r = device_submit(d->device, &part->job);
	assert(r == 0);		/* there are as many parts as the device takes jobs */
	return WAIT;
}

static void count_stored(struct kvtierd *d, const struct part *part)
{
	struct request *q = part->request;
	struct stats_values *v = &d->stats->v;

	q->conn->stored_blocks++;
	q->mount->space->stored_blocks++;
	stats_add(&v->store_blocks_total, 1);
	stats_add(&v->store_logical_bytes_total, q->mount->space->shape.logical_bytes);
	stats_add(&v->store_image_bytes_total, part->job.image_bytes);
	stats_add(&v->tiers_host_written_bytes_total, part->job.image_bytes);
	if (part->job.codec_k == CODEC_RAW && q->mount->space->codec == CODEC_FP8) {
		stats_add(&v->store_raw_blocks_total, 1);
		q->mount->space->raw_blocks++;
	}
}

/* A full table makes room as a full tier does: the least recent leaf goes. */
static int enter(struct kvtierd *d, const struct part *part, uint32_t parent, uint32_t *ret)
{
	const uint32_t space = part->request->mount->space->number;
	const uint8_t *key = part->job.identity.key;
	int r = blocks_commit(d->blocks, key, space, parent, &part->where, ret);

	if (r == -ENOSPC && mover_evict_bytes(d->tiers[TIER_HOST], d->blocks, 1, 1, &d->moved) > 0)
		r = blocks_commit(d->blocks, key, space, parent, &part->where, ret);
	return r;
}

/* The image is ready and its parent is the tail of the chain. */
static int commit(struct kvtierd *d, struct part *part)
{
	struct request *q = part->request;
	const uint32_t parent = q->tail.held ? q->tail.block : BLOCK_NONE, space = q->mount->space->number;
	uint32_t block = BLOCK_NONE;
	int r = enter(d, part, parent, &block);

	if (r == -EEXIST) {	/* somebody stored the same block meanwhile */
		unplace(d, part);
		block = blocks_find(d->blocks, part->job.identity.key, space);
		assert(block != BLOCK_NONE);
		r = 1;
	} else if (r) {
		unplace(d, part);
		stats_health_set(d->stats, STATS_HEALTH_INDEX_FULL, true);
		return -ENOSPC;
	} else {
		part->placed = false;
		stats_health_set(d->stats, STATS_HEALTH_INDEX_FULL, false);
		host_set_owner(d->tiers[TIER_HOST], &part->where, block);
		count_stored(d, part);
	}
	lease_take(d, &part->lease, block);
	return r;
}

static enum verdict store_commit(struct kvtierd *d, struct part *part)
{
	struct request *q = part->request;

	if (q->parts != part) {
		part->waiting_turn = true;
		return WAIT;
	}
	if (part->status >= 0 && q->chain_error)
		part->status = q->chain_error;
	/* Given up: the page may have changed under the encoder, which a stopped daemon learns only now. */
	if (part->status >= 0 && (q->abandoned || ring_given_up(&q->conn->ring)))
		part->status = -ECONNRESET;
	if (part->status == 0)
		part->status = commit(d, part);
	if (part->status < 0) {
		unplace(d, part);
		lease_drop(d, &part->lease);
		if (!q->chain_error)
			q->chain_error = -ENOENT;
		return DONE;
	}
	q->fresh = part->status == 0 ? q->fresh + 1 : 0;
	blocks_touch(d->blocks, part->lease.block, q->tick);
	lease_drop(d, &q->tail);
	q->tail = part->lease;		/* the lease moves: it now holds the chain's end */
	part->lease.held = false;
	return DONE;
}

/* --- load, prefetch --- */

static enum verdict load_lookup(struct kvtierd *d, struct part *part)
{
	struct request *q = part->request;
	const uint32_t block = blocks_find(d->blocks, part->job.identity.key, q->mount->space->number);

	if (q->sqe.op == WIRE_OP_LOAD && part->job.page >= q->mount->pages) {
		part->status = -EFAULT;
		return DONE;
	}
	if (block == BLOCK_NONE) {
		part->status = -ENOENT;
		return DONE;
	}
	lease_take(d, &part->lease, block);
	part->step = LOAD_PIN;
	return CONTINUE;
}

static enum verdict load_pin(struct kvtierd *d, struct part *part)
{
	struct request *q = part->request;

	blocks_touch(d->blocks, part->lease.block, q->tick);
	if (q->sqe.op == WIRE_OP_PREFETCH) {
		lease_drop(d, &part->lease);
		return DONE;
	}
	blocks_extent(d->blocks, part->lease.block, &part->where);
	part->step = LOAD_SERVE;
	return CONTINUE;
}

static void decode_done(struct device_job *job)
{
	struct part *part = (struct part *)(void *)((char *)job - offsetof(struct part, job));

	part->step = LOAD_CHECK;
	part_run(part);
}

static enum verdict load_serve(struct kvtierd *d, struct part *part)
{
	struct tier *tier = d->tiers[part->where.tier];
	int r;

	part->job.image = tier_address(tier, &part->where);
	assert(part->job.image);	/* pinned: it cannot be stale */
	part->job.image_bytes = host_extent_bytes(tier, &part->where);
	part->job.kind = DEVICE_DECODE;
	part->job.verify = d->config->host_verify == CONFIG_VERIFY_ALWAYS;
	part->job.done = decode_done;
	r = device_submit(d->device, &part->job);
	assert(r == 0);
	return WAIT;
}

static void count_loaded(struct kvtierd *d, const struct part *part)
{
	struct request *q = part->request;
	struct stats_values *v = &d->stats->v;
	const struct space *space = q->mount->space;

	q->conn->loaded_blocks++;
	q->mount->space->loaded_blocks++;
	stats_add(&v->load_blocks_total, 1);
	stats_add(&v->load_logical_bytes_total, space->shape.logical_bytes);
	stats_add(&v->tiers_host_hit_blocks_total, 1);
	stats_add(&v->tiers_host_read_bytes_total, part->job.out_codec_k == CODEC_RAW ? space->raw_shape.image_bytes
										     : space->shape.image_bytes);
}

static enum verdict load_check(struct kvtierd *d, struct part *part)
{
	struct requests *all = d->requests;

	if (part->job.status == 0) {
		count_loaded(d, part);
		lease_drop(d, &part->lease);
		return DONE;
	}
	if (part->job.status == -ECANCELED) {
		lease_drop(d, &part->lease);
		part->status = -ECONNRESET;
		return DONE;
	}
	log_limited(&all->log, loop_now(d->loop), LOG_LEVEL_ERROR, "an image in the %s tier failed its checks and was "
		    "dropped (slot %u): a miss, not data; if this repeats, test the machine's memory",
		    d->tiers[part->where.tier]->ops->name, part->where.slot);
	stats_add(&d->stats->v.tiers_host_corrupt_blocks_total, 1);
	stats_health_set(d->stats, STATS_HEALTH_CORRUPT, true);
	/* Another load of it may have been quicker. */
	if (blocks_find(d->blocks, part->job.identity.key, part->request->mount->space->number) == part->lease.block)
		blocks_condemn(d->blocks, part->lease.block);
	lease_drop(d, &part->lease);
	part->status = -ENOENT;
	return DONE;
}

/* --- the machine --- */

static enum verdict (*const steps[])(struct kvtierd *d, struct part *part) = {
	[STORE_ADMIT] = store_admit,   [STORE_PLACE] = store_place, [STORE_ENCODE] = store_encode,
	[STORE_COMMIT] = store_commit, [LOAD_LOOKUP] = load_lookup, [LOAD_PIN] = load_pin,
	[LOAD_SERVE] = load_serve,     [LOAD_CHECK] = load_check,
};

void part_run(struct part *part)
{
	while (part) {
		struct request *q = part->request;
		const enum verdict v = steps[part->step](q->d, part);

		if (v == WAIT)
			return;
		if (v == CONTINUE)
			continue;
		assert(!part->placed && !part->lease.held);
		part = op_part_done(part);
		if (!part)
			op_finish_if_settled(q);
	}
}
