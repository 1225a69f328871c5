/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store.c - the steps of a block that is stored: ADMIT -> PLACE -> ENCODE ~> COMMIT (task.h). Core
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
#include "base/list.h"
#include "base/loop.h"
#include "daemon/session/peer.h"
#include "daemon/write/writeback.h"
#include "daemon/write/outbox.h"
#include "daemon/table/block.h"
#include "daemon/move/copies.h"
#include "daemon/move/lesser.h"
#include "daemon/table/space.h"
#include "daemon/move/tables.h"
#include "part.h"
#include "schedule.h"

/* A block whose disk is out of reach is stored again, since its bytes are here now; as is one that
 * was requantised, or may have been. */
static bool can_be_loaded(const struct tables *tables, const struct space *space, uint32_t block)
{
	struct extent where;

	if (blocks_host_slot(tables->blocks, block) == BLOCK_NONE)
		return extents_away(tables, block, NULL) &&
		       !lesser_wanted(tables->spaces, space, tables->codec_of[TIER_NVME]);
	return !extents_in_host(tables, block, &where) || !lesser_at(tables, space, &where);
}

/* Whether the block is of the first tokens of a prompt, in a space of four bits. All tokens after
 * them attend to them most, and what they lose is lost everywhere. */
static bool is_kept_raw(const struct part *part)
{
	const struct op *op = part->op;
	const struct space *space = op->mount->space;

	return space->codec == CODECS_Q4 &&
	       (uint64_t)(op->before + part->at) * space->geometry.block_tokens <
		       SPACE_FIRST_TOKENS;
}

enum step store_admit(struct task *task)
{
	struct part *part = task->part;
	const struct op *op = part->op;
	struct tables *tables = task->all->tables;
	const struct image_codecs codecs =
		is_kept_raw(part) ? image_codecs(CODEC_RAW) : op->mount->space->codecs;
	uint32_t block;

	task->job.codec_k = (uint8_t)codecs.k;
	task->job.codec_v = (uint8_t)codecs.v;
	part->status = task->job.page >= op->mount->pages ? -EFAULT : op->chain_error;
	if (part->status)
		return STORE_COMMIT;
	block = blocks_find(tables->blocks, task->job.identity.key, op->mount->space->number);
	if (block != BLOCK_NONE && can_be_loaded(tables, op->mount->space, block)) {
		lease_take(tables, &task->lease, block);
		part->status = 1; /* KVTIER_BLOCK_PRESENT */
		return STORE_COMMIT;
	}
	return STORE_PLACE;
}

enum step store_place(struct task *task)
{
	struct part *part = task->part;
	int r;

	task->job.image_bytes = task_image_bytes(task, task->job.codec_k);
	/* Later blocks of its chain may hold slots, and wait for this block's commit. */
	r = room_take(task, task->job.image_bytes, task_is_first(task));
	if (r == -EAGAIN)
		return WAIT_ROOM;
	part->status = r;
	return r ? STORE_COMMIT : STORE_ENCODE;
}

static void encoded(struct device_job *job)
{
	struct task *task = container_of(job, struct task, job);

	if (job->status)
		task_unplace(task);
	if (job->status && gpu_use_any(&task->part->gpu))
		gpu_cache_settle(task->part->op->gpu, &task->part->gpu, job);
	if (job->status == -ERANGE && job->codec_k != CODEC_RAW) {
		job->codec_k = job->codec_v = CODEC_RAW;
		task->step = STORE_PLACE;
	} else if (job->status) {
		const int stopped = task_stopped(task);

		task->part->status = stopped ? stopped : -EIO;
	} else {
		space_measured(task_space(task), &job->error);
	}
	task_wake(task);
}

enum step store_encode(struct task *task)
{
	const struct op *op = task->part->op;

	task->job.image = extents_address(task->all->tables, &task->where);
	task->job.done = encoded;
	task->job.measure = task->job.codec_k != CODEC_RAW &&
			    space_measures(task_space(task), loop_now(task->all->loop));
	task->job.error = (struct codec_error){ 0 };
	if (op->gpu)
		gpu_cache_reserve(op->gpu, &task->part->gpu, task->job.image_bytes, &task->job);
	return task_job(task, op->mount->device, DEVICE_ENCODE, STORE_COMMIT);
}

static void count_stored(const struct task *task)
{
	struct client *client = task->part->op->client;
	struct space *space = task_space(task);
	struct stats_values *v = &task->all->tables->stats->v;

	client->stored_blocks++;
	space->stored_blocks++;
	stats_add(&v->store_blocks_total, 1);
	stats_add(&v->store_tokens_total, space->geometry.block_tokens);
	stats_add(&v->store_logical_bytes_total, space->shape.logical_bytes);
	stats_add(&v->store_image_bytes_total, task->job.image_bytes);
	stats_add(&v->tiers_host_written_bytes_total, task->job.image_bytes);
	if (task->job.codec_k == CODEC_RAW && space->codec != CODEC_RAW &&
	    !is_kept_raw(task->part)) {
		stats_add(&v->store_raw_blocks_total, 1);
		space->raw_blocks++;
	}
}

/* The image is ready and its parent is the tail of the chain. */
static int commit(struct task *task)
{
	const struct op *op = task->part->op;
	const uint32_t parent = op->tail.held ? op->tail.block : BLOCK_NONE;
	uint32_t block = BLOCK_NONE;
	const int r = task_enter(task, parent, &block);

	if (r == 0)
		count_stored(task);
	if (r == 0 || (r < 0 && r != -EXFULL))
		stats_health_set(task->all->tables->stats, STATS_HEALTH_INDEX_FULL, r < 0);
	if (r < 0)
		return -ENOSPC;
	lease_take(task->all->tables, &task->lease, block);
	return r;
}

enum step store_commit(struct task *task)
{
	struct part *part = task->part;
	struct op *op = part->op;
	struct tables *tables = task->all->tables;

	room_leave(task); /* ended early while it waited */
	if (!task_is_first(task))
		return WAIT_PREVIOUS;
	if (part->status >= 0 && op->chain_error)
		part->status = op->chain_error;
	/* The client may have given its pages up while the daemon was stopped: then the page may
	 * have changed under the encoder. */
	if (part->status >= 0 && (op->abandoned || ring_given_up(&op->client->ring)))
		part->status = -ECONNRESET;
	if (part->status == 0)
		part->status = commit(task);
	if (part->status < 0) {
		task->job.kept = false; /* the table has another image by this key */
		if (!op->chain_error)
			op->chain_error = -ENOENT;
		return DONE;
	}
	op->fresh = part->status == 0 ? op->fresh + 1 : 0;
	copies_touch(tables, task->lease.block, op->used, part->at + 1);
	if (tables->writeback)
		writeback_add(tables->writeback, task->lease.block);
	if (part->status == 0 && tables->outbox)
		outbox_add(tables->outbox, task->lease.block);
	lease_drop(tables, &op->tail);
	op->tail = task->lease; /* the lease moves: it now holds the chain's end */
	task->lease.held = false;
	return DONE;
}
