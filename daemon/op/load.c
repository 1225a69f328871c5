/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load.c - the steps of a block that is loaded or prefetched (step.h). Core thread only.
 *
 * A page is served from host memory alone: from a block's slot, which a lease pins, or from the
 * slot of a flight that has landed. Bringing a block there is flight.c's.
 *
 * A block that came from Redis is kept only under the block before it in its chain. So the blocks
 * of an op are kept in order: in KEEP a part waits for those before it, which never wait for one
 * behind. Without its parent a block is served and not kept.
 */
#include "load.h"

#include <assert.h>
#include <errno.h>

#include "daemon/stats/stats.h"
#include "daemon/base/container_of.h"
#include "daemon/base/loop.h"
#include "daemon/config/config.h"
#include "daemon/shared/client.h"
#include "daemon/nvme/writeback.h"
#include "daemon/store/block.h"
#include "daemon/store/copies.h"
#include "daemon/store/extents.h"
#include "daemon/store/space.h"
#include "daemon/store/store.h"
#include "flight.h"
#include "part.h"

/* The blocks behind it in a prefetch could not be kept. */
static void miss(struct ops *all, struct part *part)
{
	part->status = -ENOENT;
	part->step = LOAD_END;
	if (part->source != SOURCE_REDIS)
		return;
	stats_add(&all->store->stats->v.tiers_redis_miss_blocks_total, 1);
	if (part->at < part->op->remote_end)
		part->op->remote_end = part->at;
}

/* --- LOOKUP --- */

static bool redis_wanted(const struct store *store, const struct space *space,
			 const uint8_t key[32])
{
	const struct tier_name name = { .key = key, .seal = space->seal };

	return tier_readable(store->tiers[source_tiers[SOURCE_REDIS]], &name);
}

/* What has the block, as far as the tables say; SOURCES: nothing has. Redis is asked for a block
 * whose disk is out, as for a block that no local tier has. */
static enum source where_is(const struct store *store, const struct space *space,
			    const uint8_t key[32], uint32_t *ret_block)
{
	const uint32_t block = *ret_block = blocks_find(store->blocks, key, space->number);
	const bool known = block != BLOCK_NONE;

	if (known && blocks_host_slot(store->blocks, block) != BLOCK_NONE)
		return SOURCE_HOST;
	if ((!known || !extents_away(store, block, NULL)) && redis_wanted(store, space, key))
		return SOURCE_REDIS;
	return known ? SOURCE_NVME : SOURCES;
}

static enum verdict found(struct ops *all, struct part *part, uint32_t block)
{
	struct op *op = part->op;

	part->source = SOURCE_HOST;
	lease_take(all->store, &part->lease, block);
	copies_touch(all->store, block, op->tick);
	writeback_add(all->store->writeback, block);
	part->step = LOAD_END;
	if (op->sqe.op == WIRE_OP_LOAD) {
		const bool there = extents_in_host(all->store, block, &part->where);

		assert(there); /* pinned: it cannot be stale */
		part->step = LOAD_SERVE;
	}
	return CONTINUE;
}

enum verdict load_lookup(struct ops *all, struct part *part)
{
	struct op *op = part->op;
	enum source source;
	uint32_t block;

	if (op->sqe.op == WIRE_OP_LOAD && part->job.page >= op->mount->pages) {
		part->status = -EFAULT;
		part->step = LOAD_END;
		return CONTINUE;
	}
	source = where_is(all->store, op->mount->space, part->job.identity.key, &block);
	if (source == SOURCE_HOST)
		return found(all, part, block);
	part->source = source == SOURCES ? SOURCE_HOST : source;
	if (source == SOURCES || part_is_useless(part)) {
		miss(all, part);
		return CONTINUE;
	}
	if (source == SOURCE_NVME)
		copies_touch(all->store, block, op->tick);
	part->step = LOAD_BRING;
	flight_join(all, part, source, block);
	return CONTINUE;
}

bool load_must_wait(const struct op *op)
{
	const struct ops *all = op->all;
	uint8_t key[32];
	enum source source;
	uint32_t block;

	if (op->sqe.op == WIRE_OP_STORE ||
	    all->flights.n_parts + all->room.n < all->n_parts - all->n_parts / 4)
		return false;
	ring_key(&op->client->ring, op->sqe.first + op->next_block, key);
	source = where_is(all->store, op->mount->space, key, &block);
	return source == SOURCE_NVME || source == SOURCE_REDIS;
}

/* --- BRING --- */

enum verdict load_bring(struct ops *all, struct part *part)
{
	const bool load = part->op->sqe.op == WIRE_OP_LOAD;

	if (part->flight && !part->flight->landed) {
		part->wait = WAIT_OTHER;
		return WAIT;
	}
	part->step = LOAD_END;
	if (part->flight) {
		part->where = part->flight->where;
		part->step = load                         ? LOAD_SERVE :
			     part->source == SOURCE_REDIS ? LOAD_KEEP :
							    LOAD_END;
	} else if (part->brought > 0) {
		part->step = LOAD_LOOKUP;
	} else if (part->brought == -ENOENT) {
		miss(all, part);
	} else {
		part->status = part->brought;
	}
	return CONTINUE;
}

/* --- SERVE, CHECK --- */

static void served(struct device_job *job)
{
	struct part *part = container_of(job, struct part, job);

	part->step = LOAD_CHECK;
	part_wake(part);
}

enum verdict load_serve(struct ops *all, struct part *part)
{
	part->job.image = extents_address(all->store, &part->where);
	assert(part->job.image);
	part->job.image_bytes = extents_bytes(all->store, &part->where);
	part->job.geometry = &part->op->mount->space->geometry;
	part->job.verify = all->config->host_verify == CONFIG_VERIFY_ALWAYS && !part->flight;
	part_submit(part, DEVICE_DECODE, served);
	return WAIT;
}

static void count_loaded(struct ops *all, struct part *part)
{
	struct op *op = part->op;
	struct stats_values *v = &all->store->stats->v;
	const struct space *space = op->mount->space;
	enum source source = SOURCE_HOST;
	struct stats_tier *tier;

	if (part->flight && !part->flight->credited) {
		/* the other parts of the flight found it in memory */
		source = part->source;
		part->flight->credited = true;
	}
	op->client->loaded_blocks++;
	op->mount->space->loaded_blocks++;
	stats_add(&v->load_blocks_total, 1);
	stats_add(&v->load_logical_bytes_total, space->shape.logical_bytes);
	tier = stats_tier(all->store->stats, source_tiers[source]);
	stats_add(&tier->hit_blocks_total, 1);
	if (source == SOURCE_HOST) /* of others it is counted when it arrives */
		stats_add(&tier->read_bytes_total, part->job.out_codec_k == CODEC_RAW ?
							   space->raw_shape.image_bytes :
							   space->shape.image_bytes);
}

/* The block is about to be dropped. */
static void count_corrupt(struct ops *all, const struct part *part)
{
	log_limited(
		&all->log, loop_now(all->loop), LOG_LEVEL_ERROR,
		"an image in the host tier failed its checks and was dropped (slab %u): a miss, "
		"not data; if this repeats, test the machine's memory",
		part->where.slot >> 16);
	stats_add(&all->store->stats->v.tiers_host_corrupt_blocks_total, 1);
	stats_health_set(all->store->stats, STATS_HEALTH_CORRUPT, true);
}

/* Another load of the block may have been quicker. */
static void condemn(struct ops *all, const struct lease *lease)
{
	if (lease->held && blocks_live(all->store->blocks, lease->block))
		copies_condemn(all->store, lease->block);
}

enum verdict load_check(struct ops *all, struct part *part)
{
	part->step = LOAD_END;
	if (part->job.status == 0) {
		count_loaded(all, part);
		if (part->flight && part->source == SOURCE_REDIS)
			part->step = LOAD_KEEP;
		return CONTINUE;
	}
	if (part_stopped(part, &part->status))
		return CONTINUE;
	count_corrupt(all, part);
	if (!part->flight)
		condemn(all, &part->lease);
	else if (!part->flight->placed) /* the slot is the block's */
		condemn(all, &part->flight->lease);
	part->status = -ENOENT;
	return CONTINUE;
}

/* --- KEEP, END --- */

/* True: there is no parent, or it is there and leased, so that room in a full table is not made by
 * dropping it. */
static bool take_parent(struct ops *all, const struct part *part, struct lease *ret)
{
	const struct op *op = part->op;
	uint32_t parent;

	if (part->at == 0 && !(op->sqe.flags & WIRE_SQE_HAS_PARENT))
		return true;
	parent = blocks_find(all->store->blocks, part->before, op->mount->space->number);
	if (parent == BLOCK_NONE)
		return false;
	lease_take(all->store, ret, parent);
	return true;
}

/* If the block is in the table, away or not, its copies have this codec, and so this size. */
static bool fits(const struct flight *f)
{
	const struct blocks *blocks = f->all->store->blocks;
	const uint32_t block = blocks_find(blocks, f->job.identity.key, f->space->number);

	return block == BLOCK_NONE ||
	       blocks_variant(blocks, block) ==
		       space_variant(f->space, (enum image_codec)f->job.codec_k);
}

/* The image becomes a block, if no other part of the flight made it one: 0. -ENOENT: without the
 * block before it nobody would find it. -ENOSPC. */
static int keep(struct ops *all, struct part *part)
{
	struct flight *f = part->flight;
	const struct image_header *header = (const void *)f->job.image;
	struct lease parent = { .block = BLOCK_NONE };
	uint32_t block;
	int r;

	f->job.codec_k = header->codec_k; /* as verified */
	if (f->lease.held || !fits(f))
		return 0;
	if (!take_parent(all, part, &parent))
		return -ENOENT;
	r = part_enter(all->store, f->space, &f->job, &f->where, parent.block, &block);
	lease_drop(all->store, &parent);
	if (r < 0)
		return r;
	if (r == 0) {
		f->placed = false;
		lease_take(all->store, &f->lease, block); /* the slot stays while parts use it */
	}
	copies_touch(all->store, block, part->op->tick);
	writeback_add(all->store->writeback, block);
	return 0;
}

enum verdict load_keep(struct ops *all, struct part *part)
{
	struct op *op = part->op;
	int r = 0;

	if (!part_is_first(part)) {
		part->wait = WAIT_TURN;
		return WAIT;
	}
	if (!op->abandoned)
		r = keep(all, part);
	if (r && op->sqe.op == WIRE_OP_PREFETCH) /* a load was served all the same */
		part->status = r;
	part->step = LOAD_END;
	return CONTINUE;
}

enum verdict load_end(struct ops *all, struct part *part)
{
	if (part->flight && !flight_leave(all, part)) {
		part->wait = WAIT_OTHER;
		return WAIT;
	}
	lease_drop(all->store, &part->lease);
	return DONE;
}
