/* SPDX-License-Identifier: Apache-2.0 */
/*
 * chunk.c - blocks of an op on the wire. Ring lock held. No allocation.
 *
 * Shared pages: one sqe an op. Staged ones: one sqe a chunk, as many pages as the staging memory
 * has free, pumped by whoever calls ops_turn().
 */
#include "chunk.h"

#include <errno.h>
#include <string.h>

#include "arena.h"
#include "client.h"
#include "cuda_order.h"
#include "error.h"
#include "op.h"
#include "ring.h"
#include "space.h"
#include "staged.h"

int chunk_push(struct kvtier_client *c, struct op *op, const struct kvtier_key *keys,
	       const struct kvtier_key *parent, const uint32_t *pages, uint32_t page, uint32_t n)
{
	struct link *link = atomic_load(&c->link);
	struct wire_sqe sqe = op->hints;
	struct range range;
	int rc;

	if (link->in_flight == link->cq_entries ||
	    arena_take(&link->arena, n + (parent != NULL), n + (parent != NULL), &range))
		return error_set(-EAGAIN, "the submission ring is full: take results first");
	memcpy(&link->keys[range.first], keys, n * sizeof(*keys));
	if (parent)
		link->keys[range.first + n] = *parent;
	for (uint32_t i = 0; i < n; i++)
		link->pages[range.first + i] = pages ? pages[i] : page + i;
	sqe.flags = parent ? WIRE_SQE_HAS_PARENT : 0;
	if (op->staged)
		sqe.groups = 0; /* a chunk is done as a whole */
	else if (op->order)
		cuda_order_entry(op->order, op, &sqe);
	op->gives = sqe.flags & WIRE_SQE_GIVEN;
	sqe.space = (uint16_t)op->space->handle;
	sqe.n = n;
	sqe.first = range.first;
	sqe.op_id = op->staged ? op_next_id(c, op) : op->id;
	sqe.deadline_ns = op->deadline_ns;
	op->sq_at = link->sq_tail;
	rc = ring_push(link, &sqe);
	if (rc) {
		arena_give(&link->arena, range.first);
		return error_set(rc, "the submission ring is full: take results first");
	}
	op->wire_id = sqe.op_id;
	op->first = range.first;
	op->chunk = n;
	link->in_flight++;
	c->doorbell |= ring_asleep(link);
	return 0;
}

/* Skips blocks that have no page; returns how many blocks with a page follow. */
static uint32_t staged_run(struct op *op)
{
	const uint64_t pages = staged_user_pages(op->space->staged);
	uint32_t end;

	while (op->chunk_done < op->n && op->pages[op->chunk_done] >= pages)
		op->blocks[op->chunk_done++] = -EFAULT;
	end = op->chunk_done;
	while (end < op->n && op->pages[end] < pages)
		end++;
	return end - op->chunk_done;
}

bool chunk_needs_groups(const struct op *op)
{
	return op->hints.op == WIRE_OP_STORE && op->hints.groups > 0;
}

/* 0: the op's pages may be touched. -EAGAIN: not yet. Another -errno: the op ends with it. */
static int staged_ready(struct op *op)
{
	int rc;

	if (op->reached)
		return 0;
	rc = op->ordered ? cuda_order_reached(op->order, op) : 1;
	if (rc == 1 && chunk_needs_groups(op))
		rc = op->given == op->hints.groups ||
		     (op->order && cuda_order_given(op->order, op) == op->hints.groups);
	op->reached = rc == 1;
	return rc == 1 ? 0 : rc ? rc : -EAGAIN;
}

static int staged_fill(const struct op *op, const struct range *range)
{
	struct staged *staged = op->space->staged;
	int rc = 0, waited;

	staged_populate(staged, range->first + range->n);
	for (uint32_t i = 0; i < range->n && !rc && op->hints.op == WIRE_OP_STORE; i++)
		rc = staged_copy_in(staged, op->pages[op->chunk_done + i], range->first + i);
	waited = staged_copied(staged); /* after a copy that failed, too: others are under way */
	return rc ? rc : waited;
}

int chunk_staged(struct kvtier_client *c, struct op *op, uint64_t now)
{
	const struct link *link = atomic_load(&c->link);
	struct staged *staged = op->space->staged;
	const struct kvtier_key *parent = op->has_parent ? &op->keys[KVTIER_MAX_BLOCKS] : NULL;
	uint32_t most = staged_run(op);
	struct range range;
	int rc;

	if (op->cancel || now >= op->deadline_ns || !most) {
		op_finish(c, op, op->cancel ? -ECANCELED : -ETIMEDOUT);
		return 0;
	}
	rc = staged_ready(op);
	if (rc == -EAGAIN)
		return rc;
	if (rc) {
		op_finish(c, op, rc);
		return 0;
	}
	if (most > link->arena_blocks - 1)
		most = link->arena_blocks - 1;
	if (link->in_flight == link->cq_entries ||
	    arena_take(staged_arena(staged), 1, most, &range))
		return -EAGAIN;
	rc = staged_fill(op, &range);
	if (rc) {
		arena_give(staged_arena(staged), range.first);
		op_finish(c, op, rc);
		return 0;
	}
	if (op->chunk_done)
		parent = &op->keys[op->chunk_done - 1];
	rc = chunk_push(c, op, &op->keys[op->chunk_done], parent, NULL, range.first, range.n);
	if (rc)
		arena_give(staged_arena(staged), range.first);
	else
		op->stage_first = range.first;
	return rc;
}

int chunk_done(struct op *op)
{
	struct staged *staged = op->space->staged;
	int rc = 0, waited;

	for (uint32_t i = 0; i < op->chunk && !rc && op->hints.op == WIRE_OP_LOAD; i++)
		if (op->blocks[op->chunk_done + i] >= 0)
			rc = staged_copy_out(staged, op->pages[op->chunk_done + i],
					     op->stage_first + i);
	waited = staged_copied(staged);
	arena_give(staged_arena(staged), op->stage_first);
	return rc ? rc : waited;
}
