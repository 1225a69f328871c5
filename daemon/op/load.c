/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load.c - the steps of a block that is loaded or prefetched (step.h). Core thread only.
 *
 * A page is served from the memory of its own GPU, where near.h finds a copy, or else from host
 * memory: from a block's slot, which a lease pins, or from the slot of a flight that has landed.
 * Bringing a block there is flight.c's. An image that is served from host memory is kept on the GPU
 * as it passes.
 *
 * A block that came from Redis is kept only under the block before it in its chain. So the blocks
 * of an op are kept in order: in KEEP a part waits for the parts before it, which never wait for
 * one behind. Without its parent a block is served and not kept.
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

static enum step end(struct part *part, int status)
{
	part->status = status;
	return LOAD_END;
}

/* The blocks behind it in a prefetch could not be kept. */
static enum step miss(struct part *part)
{
	if (part->w.source == SOURCE_REDIS) {
		stats_add(&part->w.all->store->stats->v.tiers_redis_miss_blocks_total, 1);
		if (part->at < part->op->remote_end)
			part->op->remote_end = part->at;
	}
	return end(part, -ENOENT);
}

/* --- LOOKUP --- */

/* Where the block is, as far as the tables say; SOURCES: nowhere. Redis is asked for a block whose
 * disk is out, as for a block that no local tier has. */
static enum source where_is(const struct store *store, const struct op *op, const struct near *near,
			    const uint8_t key[32], uint32_t *ret_block)
{
	const struct space *space = op->mount->space;
	const uint32_t block = *ret_block = blocks_find(store->blocks, key, space->number);
	const bool known = block != BLOCK_NONE;
	const struct tier_name name = { .key = key, .seal = space->seal };

	if (known && op->sqe.op == WIRE_OP_LOAD && near_has(store, op->mount, near, block))
		return SOURCE_GPU;
	if (known && blocks_host_slot(store->blocks, block) != BLOCK_NONE)
		return SOURCE_HOST;
	if ((!known || !extents_away(store, block, NULL)) &&
	    tier_readable(store->tiers[TIER_REDIS], &name))
		return SOURCE_REDIS;
	return known ? SOURCE_NVME : SOURCES;
}

static enum step found(struct walker *w, uint32_t block)
{
	const struct op *op = w->part->op;
	struct store *store = w->all->store;
	bool there;

	lease_take(store, &w->lease, block);
	copies_touch(store, block, op->tick);
	writeback_add(store->writeback, block);
	if (op->sqe.op == WIRE_OP_PREFETCH)
		return LOAD_END;
	if (w->source == SOURCE_GPU)
		return LOAD_SERVE;
	there = extents_in_host(store, block, &w->where);
	assert(there); /* pinned: it cannot be stale */
	return LOAD_SERVE;
}

enum step load_lookup(struct walker *w)
{
	struct part *part = w->part;
	const struct op *op = part->op;
	enum source source;
	uint32_t block;

	if (op->sqe.op == WIRE_OP_LOAD && w->job.page >= op->mount->pages)
		return end(part, -EFAULT);
	if (groups_status(op, part->at) < 0) /* of a group before it */
		return end(part, groups_status(op, part->at));
	source = where_is(w->all->store, op, &part->near, w->job.identity.key, &block);
	w->source = source == SOURCES ? SOURCE_HOST : source;
	if (source == SOURCE_HOST || source == SOURCE_GPU)
		return found(w, block);
	if (source == SOURCES || walk_is_useless(w))
		return miss(part);
	if (source == SOURCE_NVME)
		copies_touch(w->all->store, block, op->tick);
	flight_join(part, source, block);
	return LOAD_BRING;
}

bool load_must_wait(const struct op *op)
{
	const struct ops *all = op->all;
	const struct near near = { 0 };
	uint8_t key[32];
	enum source source;
	uint32_t block;

	if (op->sqe.op == WIRE_OP_STORE || op->sqe.op == WIRE_OP_HINT ||
	    all->flights.n_parts + all->room.n < all->n_parts - all->n_parts / 4)
		return false;
	if (hint_may_bring(op))
		return true;
	ring_key(&op->client->ring, op->sqe.first + op->next_block % op->sqe.n, key);
	source = where_is(all->store, op, &near, key, &block);
	return source == SOURCE_NVME || source == SOURCE_REDIS;
}

/* --- BRING --- */

enum step load_bring(struct walker *w)
{
	struct part *part = w->part;

	if (part->flight) {
		if (!part->flight->landed)
			return WAIT_OTHER;
		w->where = part->flight->w.where;
		if (part->op->sqe.op == WIRE_OP_LOAD)
			return LOAD_SERVE;
		return w->source == SOURCE_REDIS ? LOAD_KEEP : LOAD_END;
	}
	if (part->brought > 0)
		return LOAD_LOOKUP;
	return part->brought == -ENOENT ? miss(part) : end(part, part->brought);
}

/* --- SERVE, CHECK --- */

/* The GPU's copy went meanwhile: the block is elsewhere, too, or nowhere any more. */
static enum step look_elsewhere(struct walker *w)
{
	struct near *near = &w->part->near;

	near_settle(w->all->store, walk_space(w), near, &w->job);
	lease_drop(w->all->store, &w->lease);
	near->refused = true;
	return LOAD_LOOKUP;
}

static enum step serve_near(struct walker *w)
{
	const struct op *op = w->part->op;

	if (!near_aim(w->all->store, op->mount, &w->part->near, w->lease.block, &w->job))
		return look_elsewhere(w);
	return walk_job(w, op->mount->device, DEVICE_DECODE, LOAD_CHECK);
}

/* Bytes of the image in the slot: it has a good header, or else the job fails. */
static uint32_t image_bytes(const struct walker *w)
{
	const struct image_header *header = (const void *)w->job.image;
	const uint32_t bytes = walk_image_bytes(w, header->codec_k);

	return bytes < w->job.image_bytes ? bytes : w->job.image_bytes;
}

enum step load_serve(struct walker *w)
{
	if (w->source == SOURCE_GPU)
		return serve_near(w);
	w->job.image = extents_address(w->all->store, &w->where);
	assert(w->job.image);
	w->job.image_bytes = extents_bytes(w->all->store, &w->where);
	w->job.geometry = &walk_space(w)->geometry;
	w->job.verify = w->all->config->host_verify == CONFIG_VERIFY_ALWAYS && !w->part->flight;
	if (w->job.end_layer > 0)
		grow_join(w->part, image_bytes(w));
	else
		near_keep(w->all->store, w->part->op->mount, &w->part->near, image_bytes(w),
			  &w->job);
	return walk_job(w, w->part->op->mount->device, DEVICE_DECODE, LOAD_CHECK);
}

static void count_loaded(const struct walker *w)
{
	struct flight *f = w->part->flight;
	struct stats *stats = w->all->store->stats;
	struct space *space = walk_space(w);
	/* the other parts of the flight found it in memory */
	const enum source source = !f || !f->credited ? w->source : SOURCE_HOST;
	struct stats_tier *tier = stats_tier(stats, source_tiers[source]);

	if (f)
		f->credited = true;
	if (groups_are_last(w->part->op, w->part->group)) {
		w->part->op->client->loaded_blocks++;
		space->loaded_blocks++;
		stats_add(&stats->v.load_blocks_total, 1);
		stats_add(&stats->v.load_logical_bytes_total, space->shape.logical_bytes);
	}
	if (w->part->group > 0) /* counted with the first */
		return;
	stats_add(&tier->hit_blocks_total, 1);
	if (source == SOURCE_HOST ||
	    source == SOURCE_GPU) /* of others it is counted when it arrives */
		stats_add(&tier->read_bytes_total, walk_image_bytes(w, w->job.out_codec_k));
}

/* The image is dropped, unless another load of the block was quicker. */
static void drop(const struct walker *w)
{
	struct store *store = w->all->store;
	const struct walker *holder = w->part->flight ? &w->part->flight->w : w;

	log_limited(
		&w->all->log, loop_now(w->all->loop), LOG_LEVEL_ERROR,
		"an image in the host tier failed its checks and was dropped (slab %u): a miss, "
		"not data; if this repeats, test the machine's memory",
		w->where.slot >> 16);
	stats_add(&store->stats->v.tiers_host_corrupt_blocks_total, 1);
	stats_health_set(store->stats, STATS_HEALTH_CORRUPT, true);
	if (!holder->placed && holder->lease.held &&
	    blocks_live(store->blocks, holder->lease.block))
		copies_condemn(store, holder->lease.block);
}

/* In engine mode its client has to know which codec the image has. */
static int served(const struct walker *w)
{
	const struct mount *mount = w->part->op->mount;

	return mount->layout.image_stride > 0 && mount->space->codec == CODEC_FP8 &&
			       w->job.out_codec_k == CODEC_RAW ?
		       WIRE_BLOCK_RAW :
		       0;
}

enum step load_check(struct walker *w)
{
	struct part *part = w->part;

	if (w->job.status == 0) {
		count_loaded(w);
		part->status = served(w);
		return part->flight && w->source == SOURCE_REDIS ? LOAD_KEEP : LOAD_END;
	}
	part->status = walk_stopped(w);
	if (part->status)
		return LOAD_END;
	if (w->source == SOURCE_GPU)
		return look_elsewhere(w);
	drop(w);
	return end(part, -ENOENT);
}

/* --- KEEP, END --- */

/* If the block is in the table, away or not, its copies have this codec, and so this size. */
static bool fits(const struct walker *w)
{
	const struct blocks *blocks = w->all->store->blocks;
	const struct space *space = walk_space(w);
	const uint32_t block = blocks_find(blocks, w->job.identity.key, space->number);

	return block == BLOCK_NONE ||
	       blocks_variant(blocks, block) ==
		       space_variant(space, (enum image_codec)w->job.codec_k);
}

/* The image becomes a block, if no other part of the flight made it one: 0. -ENOENT: without the
 * block before it nobody would find it. -ENOSPC. */
static int keep(const struct part *part)
{
	struct walker *w = &part->flight->w;
	struct store *store = w->all->store;
	const bool chained = part->at > 0 || (part->op->sqe.flags & WIRE_SQE_HAS_PARENT) != 0;
	struct lease parent = { .block = BLOCK_NONE };
	uint32_t block;
	int r;

	if (w->lease.held || !fits(w))
		return 0;
	if (chained) {
		block = blocks_find(store->blocks, part->before, walk_space(w)->number);
		if (block == BLOCK_NONE)
			return -ENOENT;
		/* so room in a full table is not made by dropping it */
		lease_take(store, &parent, block);
	}
	r = walk_enter(w, parent.block, &block);
	lease_drop(store, &parent);
	if (r < 0)
		return r;
	if (r == 0)
		lease_take(store, &w->lease, block); /* the slot stays while parts use it */
	copies_touch(store, block, part->op->tick);
	writeback_add(store->writeback, block);
	return 0;
}

enum step load_keep(struct walker *w)
{
	struct part *part = w->part;
	int r;

	if (!walk_is_first(w))
		return WAIT_TURN;
	r = part->op->abandoned ? 0 : keep(part);
	if (part->op->sqe.op == WIRE_OP_PREFETCH) /* a load was served all the same */
		part->status = r;
	return LOAD_END;
}

enum step load_end(struct walker *w)
{
	return w->part->flight && !flight_leave(w->part) ? WAIT_OTHER : DONE;
}
