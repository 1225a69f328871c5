/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load.c - the steps of a block that is loaded or prefetched (task.h). Core thread only.
 *
 * A page is served from the memory of its own GPU, where the GPU cache has a copy, or else from
 * host memory: from a block's slot, which a lease pins, or from the slot of a flight that has
 * landed. Bringing a block there is flight.c's. An image that is served from host memory is kept on
 * the GPU as it passes.
 *
 * A block that came from Redis is kept only under the block before it in its chain. So the blocks
 * of an op are kept in order: in KEEP a part waits for the parts before it, which never wait for
 * one behind. Without its parent a block is served and not kept.
 */
#include "load.h"

#include <assert.h>
#include <errno.h>

#include "daemon/stats/stats.h"
#include "base/list.h"
#include "base/loop.h"
#include "daemon/config/config.h"
#include "daemon/session/peer.h"
#include "daemon/write/outbox.h"
#include "daemon/write/writeback.h"
#include "daemon/table/block.h"
#include "daemon/move/copies.h"
#include "daemon/move/lesser.h"
#include "daemon/table/space.h"
#include "daemon/move/tables.h"
#include "flight.h"
#include "part.h"

static enum step end(struct part *part, int status)
{
	part->status = status;
	return LOAD_END;
}

/* The blocks behind it could not be kept, and an engine has no use for them. */
static enum step miss(struct part *part)
{
	if (part->task.source == SOURCE_REDIS) {
		stats_add(&part->task.all->tables->stats->v.tiers_redis_miss_blocks_total, 1);
		if (part->at < part->op->remote_end)
			part->op->remote_end = part->at;
	}
	return end(part, -ENOENT);
}

/* --- LOOKUP --- */

/* Where the block is, as far as the tables say; SOURCES: nowhere. Redis is asked for a block whose
 * disk is out, as for a block that no local tier has. */
static enum source where_is(const struct tables *tables, const struct op *op, bool refused,
			    const uint8_t key[32], uint32_t *ret_block)
{
	const struct space *space = op->mount->space;
	const uint32_t block = *ret_block = blocks_find(tables->blocks, key, space->number);
	const bool known = block != BLOCK_NONE;
	const struct tier_name name = { .key = key, .seal = space->seal };

	if (known && op->gpu && !refused && op->sqe.op == WIRE_OP_LOAD &&
	    gpu_cache_find(op->gpu, block, op->mount->device->unit, NULL))
		return SOURCE_GPU;
	if (known && blocks_host_slot(tables->blocks, block) != BLOCK_NONE)
		return SOURCE_HOST;
	if ((!known || !extents_away(tables, block, NULL)) &&
	    tier_readable(tables->tiers[TIER_REDIS], &name))
		return SOURCE_REDIS;
	return known ? SOURCE_NVME : SOURCES;
}

static enum step found(struct task *task, uint32_t block)
{
	const struct op *op = task->part->op;
	struct tables *tables = task->all->tables;
	bool there;

	lease_take(tables, &task->lease, block);
	copies_touch(tables, block, op->used, task->part->at + 1);
	if (tables->writeback)
		writeback_add(tables->writeback, block);
	if (op->sqe.op == WIRE_OP_PREFETCH)
		return LOAD_END;
	outbox_use(tables->outbox, block);
	if (task->source == SOURCE_GPU)
		return LOAD_SERVE;
	there = extents_in_host(tables, block, &task->where);
	assert(there); /* pinned: it cannot be stale */
	return LOAD_SERVE;
}

enum step load_lookup(struct task *task)
{
	struct part *part = task->part;
	const struct op *op = part->op;
	enum source source;
	uint32_t block;

	if (op->sqe.op == WIRE_OP_LOAD && task->job.page >= op->mount->pages)
		return end(part, -EFAULT);
	if (op->groups.landed && groups_status(op, part->at) < 0) /* of a group before it */
		return end(part, groups_status(op, part->at));
	source = where_is(task->all->tables, op, part->gpu.refused, task->job.identity.key, &block);
	task->source = source == SOURCES ? SOURCE_HOST : source;
	if (source == SOURCE_HOST || source == SOURCE_GPU)
		return found(task, block);
	if (source == SOURCES || task_is_useless(task))
		return miss(part);
	if (source == SOURCE_NVME)
		copies_touch(task->all->tables, block, op->used, part->at + 1);
	flight_join(part, source, block);
	return LOAD_BRING;
}

/* Whether Redis has two questions of this op to answer: PROBEs, or GETs before a load has its first
 * value. So few questions are about blocks behind the first absent one. */
static bool asks(const struct op *op)
{
	const bool first = op->sqe.op == WIRE_OP_LOAD && op->farthest != TIER_REDIS;
	uint32_t n = 0;

	for (const struct list *l = op->parts.prev; l != &op->parts && n < 2; l = l->prev) {
		const struct flight *f = container_of(l, struct part, link)->flight;

		n += f && (f->xfer.op == XFER_PROBE || (first && f->task.source == SOURCE_REDIS));
	}
	return n == 2;
}

bool load_must_wait(struct op *op, bool begins)
{
	const struct ops *all = op->all;
	const uint32_t most = all->n_parts - all->n_parts / 4,
		       row = begins && op->next_block + 1 < op->total ? (all->n_parts + 1) / 2 :
									most,
		       waiting = all->flights.n_parts + all->room.n;
	uint8_t key[32];
	uint32_t block;

	if (op->sqe.op == WIRE_OP_HINT || (waiting < row && !asks(op)))
		return false;
	if (hint_may_bring(op))
		return true;
	if (op->seen_block != op->next_block + 1) {
		ring_key(&op->client->ring, op->sqe.first + op->next_block % op->sqe.n, key);
		op->seen = where_is(all->tables, op, false, key, &block);
		op->seen_block = op->next_block + 1;
	}
	return op->seen == SOURCE_REDIS ? waiting >= most || asks(op) :
					  op->seen == SOURCE_NVME && waiting >= row;
}

/* --- BRING --- */

enum step load_bring(struct task *task)
{
	struct part *part = task->part;

	if (part->flight) {
		if (!part->flight->landed)
			return WAIT_OTHER;
		task->where = part->flight->task.where;
		if (part->op->sqe.op == WIRE_OP_LOAD)
			return LOAD_SERVE;
		return task->source == SOURCE_REDIS ? LOAD_KEEP : LOAD_END;
	}
	if (part->brought > 0)
		return LOAD_LOOKUP;
	return part->brought == -ENOENT ? miss(part) : end(part, part->brought);
}

/* --- SERVE, CHECK --- */

/* The GPU's copy was dropped meanwhile. The block is elsewhere, too, or it is gone. */
static enum step look_elsewhere(struct task *task)
{
	struct part *part = task->part;

	gpu_cache_settle(part->op->gpu, &part->gpu, &task->job);
	lease_drop(task->all->tables, &task->lease);
	part->gpu.refused = true;
	return LOAD_LOOKUP;
}

static enum step serve_from_gpu(struct task *task)
{
	const struct op *op = task->part->op;

	if (!gpu_cache_pin(op->gpu, &task->part->gpu, task->lease.block, &task->job))
		return look_elsewhere(task);
	return task_job(task, op->mount->device, DEVICE_DECODE, LOAD_CHECK);
}

/* The size of the image in the slot, by its header. If that is damaged, the job fails. */
static uint32_t image_bytes(const struct task *task)
{
	const struct image_header *header = (const void *)task->job.image;
	const uint32_t bytes = task_image_bytes(task, header->codec_k);

	return bytes < task->job.image_bytes ? bytes : task->job.image_bytes;
}

enum step load_serve(struct task *task)
{
	struct op *op = task->part->op;

	if (task->source == SOURCE_GPU)
		return serve_from_gpu(task);
	task->job.image = extents_address(task->all->tables, &task->where);
	assert(task->job.image);
	/* a GPU's kernels do not know its codecs: the engine computes the block, and stores it */
	if (op->mount->device->unit != DEVICE_NO_UNIT &&
	    lesser_is(task_space(task), (const void *)task->job.image))
		return end(task->part, -ENOENT);
	task->job.image_bytes = extents_bytes(task->all->tables, &task->where);
	task->job.geometry = &task_space(task)->geometry;
	task->job.verify =
		task->all->config->host_verify == CONFIG_VERIFY_ALWAYS && !task->part->flight;
	if (op->gpu && op->groups.landed)
		gpu_cache_grow(op->gpu, &task->part->gpu, image_bytes(task), &task->job,
			       &op->growing, task->part->at);
	else if (op->gpu)
		gpu_cache_reserve(op->gpu, &task->part->gpu, image_bytes(task), &task->job);
	return task_job(task, op->mount->device, DEVICE_DECODE, LOAD_CHECK);
}

static void count_loaded(const struct task *task)
{
	struct flight *f = task->part->flight;
	struct stats *stats = task->all->tables->stats;
	struct space *space = task_space(task);
	/* the other parts of the flight found it in memory */
	const enum source source = !f || !f->credited ? task->source : SOURCE_HOST;
	struct stats_tier *tier = stats_tier(stats, source_tiers[source]);

	if (f)
		f->credited = true;
	if (task->part->op->farthest < source_tiers[task->source])
		task->part->op->farthest = source_tiers[task->source];
	if (is_last_group(task->part)) {
		task->part->op->client->loaded_blocks++;
		space->loaded_blocks++;
		stats_add(&stats->v.load_blocks_total, 1);
		stats_add(&stats->v.load_tokens_total, space->geometry.block_tokens);
		stats_add(&stats->v.load_logical_bytes_total, space->shape.logical_bytes);
	}
	if (task->part->group > 0) /* counted with the first */
		return;
	stats_add(&tier->hit_blocks_total, 1);
	if (source == SOURCE_HOST || source == SOURCE_GPU) /* other bytes count on arrival */
		stats_add(&tier->read_bytes_total, task_image_bytes(task, task->job.out_codec_k));
}

/* The image is dropped, unless another load of the block was quicker. */
static void drop(const struct task *task)
{
	struct tables *tables = task->all->tables;
	const struct task *holder = task->part->flight ? &task->part->flight->task : task;

	log_error(
		"host_corrupt",
		"an image in the host tier failed its checks and was dropped (slab %u); its block "
		"is a miss. If this repeats, test the machine's memory",
		task->where.slot >> 16);
	stats_add(&tables->stats->v.tiers_host_corrupt_blocks_total, 1);
	stats_health_set(tables->stats, STATS_HEALTH_CORRUPT, true);
	if (!holder->placed && holder->lease.held &&
	    blocks_live(tables->blocks, holder->lease.block))
		copies_condemn(tables, holder->lease.block);
}

enum step load_check(struct task *task)
{
	struct part *part = task->part;

	if (task->job.status == 0) {
		count_loaded(task);
		part->status = 0;
		return part->flight && task->source == SOURCE_REDIS ? LOAD_KEEP : LOAD_END;
	}
	part->status = task_stopped(task);
	if (part->status)
		return LOAD_END;
	if (task->source == SOURCE_GPU)
		return look_elsewhere(task);
	drop(task);
	return end(part, -ENOENT);
}

/* --- KEEP, END --- */

/* If the block is in the table, away or not, its copies have this codec, and so this size. */
static bool fits(const struct task *task)
{
	const struct blocks *blocks = task->all->tables->blocks;
	const struct space *space = task_space(task);
	const uint32_t block = blocks_find(blocks, task->job.identity.key, space->number);

	return block == BLOCK_NONE ||
	       blocks_variant(blocks, block) ==
		       space_variant(space, (enum image_codec)task->job.codec_k);
}

/* The image becomes a block, if no other part of the flight made it one: 0. -ENOENT: without the
 * block before it no lookup would find it. -ENOSPC. */
static int keep(const struct part *part)
{
	struct task *task = &part->flight->task;
	struct tables *tables = task->all->tables;
	const bool chained = part->at > 0 || (part->op->sqe.flags & WIRE_SQE_HAS_PARENT) != 0;
	struct lease parent = { .block = BLOCK_NONE };
	uint32_t block;
	int r;

	if (task->lease.held || !fits(task))
		return 0;
	if (chained) {
		block = blocks_find(tables->blocks, part->before, task_space(task)->number);
		if (block == BLOCK_NONE)
			return -ENOENT;
		/* so room in a full table is not made by dropping it */
		lease_take(tables, &parent, block);
	}
	r = task_enter(task, parent.block, &block);
	lease_drop(tables, &parent);
	if (r < 0)
		return r;
	if (r == 0)
		lease_take(tables, &task->lease, block); /* the slot stays while parts use it */
	copies_touch(tables, block, part->op->used, part->at + 1);
	if (tables->writeback)
		writeback_add(tables->writeback, block);
	return 0;
}

enum step load_keep(struct task *task)
{
	struct part *part = task->part;
	int r;

	if (!task_is_first(task))
		return WAIT_PREVIOUS;
	r = part->op->abandoned ? 0 : keep(part);
	if (part->op->sqe.op == WIRE_OP_PREFETCH) /* a load was served all the same */
		part->status = r;
	return LOAD_END;
}

enum step load_end(struct task *task)
{
	return task->part->flight && !flight_leave(task->part) ? WAIT_OTHER : DONE;
}

/* --- layer groups ---
 *
 *	begun:	block 0, 1, 2 ... n-1 for group 0, then block 0, 1, 2 ... for group 1, and so on
 *
 * Each time a block is looked up, pinned and served as in any load, but only one group's layers go
 * into its page. So a load of any length needs no more parts, pins and jobs at once than another,
 * and its first group is there when a fraction of all bytes has moved. A block that is evicted
 * between two groups is brought again, or missed; after its first error no more is done for it.
 *
 * Invariants
 *   G1 a word says that a group is there when the device has completed the jobs of all blocks for
 *      it and for the groups before it. It is raised with release.
 *   G2 words are 0 again (in the ring), or release every waiter (on a device), before the op's cqe.
 */

/* It is not known which layer typed and opaque bytes belong to, so a page with such bytes has
 * layers only when it has all. */
static bool has_more_than_planes(const struct op *op)
{
	const struct image_geometry *g = &op->mount->space->geometry;

	return g->typed_segments > 0 || g->opaque_bytes > 0;
}

uint32_t groups_start(struct op *op)
{
	op->groups.landed = op->all->landed_pool[op - op->all->op_pool];
	memset(op->groups.landed, 0, op->sqe.groups * sizeof(*op->groups.landed));
	for (uint32_t i = 0; i < op->sqe.n; i++)
		ring_set_status(&op->client->ring, op->sqe.first + i, 0);
	return op->sqe.n * op->sqe.groups;
}

void groups_begin(const struct op *op, uint32_t group, struct device_job *job)
{
	const uint32_t layers = op->mount->space->geometry.layers, n = op->sqe.groups;

	job->first_layer = (uint16_t)wire_group_layer(layers, n, group);
	job->end_layer = (uint16_t)wire_group_layer(layers, n, group + 1);
}

void groups_landed(struct op *op, uint32_t group)
{
	struct groups *g = &op->groups;
	const uint32_t before = g->there;

	g->landed[group]++;
	while (g->there < op->sqe.groups && g->landed[g->there] == op->sqe.n)
		g->there++;
	if (g->there == before || op->abandoned)
		return;
	if (g->there < op->sqe.groups && has_more_than_planes(op))
		return;
	ring_set_layers(&op->client->ring, op->sqe.first, g->there);
	stream_order_layers(op->order, &op->sqe, g->there);
}

int groups_status(const struct op *op, uint32_t at)
{
	return ring_status(&op->client->ring, op->sqe.first + at);
}

void groups_end(struct op *op)
{
	ring_set_layers(&op->client->ring, op->sqe.first, 0);
}
