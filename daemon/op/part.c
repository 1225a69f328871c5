/* SPDX-License-Identifier: Apache-2.0 */
/*
 * part.c - a part's turn, its job, and what becomes of its image. See part.h.
 */
#include "part.h"

#include <assert.h>
#include <errno.h>

#include "daemon/stats/stats.h"
#include "daemon/base/loop.h"
#include "daemon/shared/client.h"
#include "daemon/store/block.h"
#include "daemon/store/copies.h"
#include "daemon/store/extents.h"
#include "daemon/store/space.h"
#include "daemon/store/store.h"

void part_wake(struct part *part)
{
	part->wait = WAIT_NONE;
	ready_push(&part->op->all->ready, &part->task);
}

bool part_is_first(const struct part *part)
{
	return part->op->parts.next == &part->link;
}

bool part_is_useless(const struct part *part)
{
	return part->source == SOURCE_REDIS && part->op->sqe.op == WIRE_OP_PREFETCH &&
	       part->at > part->op->remote_end;
}

void part_submit(struct part *part, enum device_job_kind kind, void (*done)(struct device_job *job))
{
	int r;

	part->job.kind = kind;
	part->job.done = done;
	part->job.client = part->op->client->turn;
	part->job.deadline_ns = part->op->sqe.deadline_ns;
	r = device_submit(part->op->mount->device, &part->job);
	assert(r == 0 || r == -EAGAIN);
	part->wait = r == 0 ? WAIT_JOB : WAIT_JOBS_FULL;
}

void part_room(void *arg, struct device *device)
{
	struct ops *all = arg;

	for (uint32_t i = 0; i < all->n_parts; i++) {
		struct part *part = &all->part_pool[i];

		if (part->op && part->wait == WAIT_JOBS_FULL && part->op->mount->device == device)
			part_wake(part);
	}
}

/* The client has not allocated all of the page. */
static int sparse(const struct part *part)
{
	struct op *op = part->op;
	struct stats_values *v = &op->all->store->stats->v;

	op->client->sparse_blocks++;
	stats_add(op->sqe.op == WIRE_OP_STORE ? &v->store_sparse_blocks_total :
						&v->load_sparse_blocks_total,
		  1);
	log_limited(
		&op->all->log, loop_now(op->all->loop), LOG_LEVEL_WARNING,
		"client %u (pid %ld, \"%s\"): page %llu is not allocated, and the daemon does not "
		"do that for it: libkvtier touches pages before it lends them, another client must,"
		" and may punch no hole into them",
		op->client->id, (long)op->client->pid, op->client->name,
		(unsigned long long)part->job.page);
	return -EFAULT;
}

bool part_stopped(const struct part *part, int *ret)
{
	const int early = part->op->early;

	if (part->job.status == -ETIMEDOUT)
		*ret = -ETIMEDOUT;
	else if (part->job.status == -ECANCELED)
		*ret = early ? early : -ECONNRESET; /* cancelled by us, or given up */
	else if (part->job.status == -EFAULT)
		*ret = sparse(part);
	else if (part->job.status == -EIO)
		*ret = -EIO; /* the device's trouble: the image is as good as it was */
	else
		return false;
	return true;
}

/* A full table makes room as a full tier does: an old block goes. A crowded neighbourhood (-EXFULL)
 * is another case: only the new block is refused, or keys made to collide would empty the table. */
static int commit(struct store *store, const struct space *space, const struct device_job *job,
		  const struct extent *where, uint32_t parent, uint32_t *ret)
{
	const uint32_t variant = space_variant(space, (enum image_codec)job->codec_k);
	const uint8_t *key = job->identity.key;
	int r = blocks_commit(store->blocks, key, space->number, parent, variant, where, ret);

	if (r == -ENOSPC && copies_make_room(store))
		r = blocks_commit(store->blocks, key, space->number, parent, variant, where, ret);
	return r;
}

int part_enter(struct store *store, const struct space *space, const struct device_job *job,
	       const struct extent *where, uint32_t parent, uint32_t *ret)
{
	const int r = commit(store, space, job, where, parent, ret);
	uint32_t block;

	if (r == 0)
		extents_set_owner(store, where, *ret);
	if (r != -EEXIST)
		return r;
	*ret = block = blocks_find(store->blocks, job->identity.key, space->number);
	assert(block != BLOCK_NONE);
	if (blocks_host_slot(store->blocks, block) != BLOCK_NONE)
		return 1; /* the same block was stored meanwhile */
	blocks_promote(store->blocks, block, parent == block ? BLOCK_NONE : parent, where);
	extents_set_owner(store, where, block);
	/* Its disk is away. If another takes writes, it gets a copy there. */
	if (!extents_away(store, block, NULL) && extents_durable(store, job->identity.key))
		copies_drop_nvme(store, block);
	return 0;
}
