/* SPDX-License-Identifier: Apache-2.0 */
/*
 * chunk.c - blocks of an op on the wire. Ring lock held. No allocation.
 *
 * Shared pages: one sqe an op. Staged ones: one sqe a chunk of as many pages as the staging memory
 * has free; the caller of ops_turn() pumps them. In engine mode:
 *
 *	store	range --kernels--> images --wire--> ended	(op->kernel: kernels, or images that
 *	load	range --wire--> images --kernels--> ended	 wait for room in the ring)
  */
#include "chunk.h"

#include <errno.h>
#include <string.h>

#include "arena.h"
#include "client.h"
#include "cuda_order.h"
#include "encoded.h"
#include "error.h"
#include "op.h"
#include "ring.h"
#include "space.h"
#include "staged.h"

static uint32_t slot_of(const struct op *op)
{
	return (uint32_t)(op->id & (KVTIER_MAX_OPS - 1));
}

static uint32_t page_on_wire(const struct op *op, uint32_t page)
{
	const struct encoded *e = staged_encoded(op->space->staged);

	return e && op->hints.op == WIRE_OP_STORE ? encoded_page(e, page) : page;
}

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
		link->pages[range.first + i] = pages      ? pages[i] :
					       op->staged ? page_on_wire(op, page + i) :
							    page + i;
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
	/* rather later than earlier: the op would end without a reason that its caller sees */
	sqe.deadline_ns = op->deadline_ns + (uint64_t)link->ahead_most_ns;
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

/* The op's range of staging pages, to the wire. */
static int staged_push(struct kvtier_client *c, struct op *op)
{
	const struct kvtier_key *parent = op->has_parent ? &op->keys[KVTIER_MAX_BLOCKS] : NULL;

	if (op->chunk_done)
		parent = &op->keys[op->chunk_done - 1];
	return chunk_push(c, op, &op->keys[op->chunk_done], parent, NULL, op->stage_first,
			  op->stage_n);
}

/* --- engine mode: kernels --- */

/* A chunk ended: so does the op, or its next one is due. */
static void advance(struct kvtier_client *c, struct op *op)
{
	op->chunk_done += op->chunk;
	if (op->chunk_done == op->n || op->cancel)
		op_finish(c, op, -ECANCELED);
}

/* Kernels have begun; nobody is woken when they are done. */
static void begun(struct kvtier_client *c, struct op *op)
{
	op->kernel = true;
	ops_event(c);
}

static int kernel_store(struct kvtier_client *c, struct op *op)
{
	struct staged *staged = op->space->staged;
	const int rc = encoded_store(staged_encoded(staged), slot_of(op),
				     &op->pages[op->chunk_done], op->stage_first, op->stage_n);

	if (!rc) {
		begun(c, op);
		return 0;
	}
	arena_give(staged_arena(staged), op->stage_first);
	op_finish(c, op, rc);
	return 0;
}

static void fail_chunk(struct op *op, int error)
{
	for (uint32_t i = 0; i < op->chunk; i++)
		if (op->blocks[op->chunk_done + i] >= 0)
			op->blocks[op->chunk_done + i] = error;
}

/* Are its kernels done? Then a store goes to the wire, and keeps its images while there is no room
 * in the ring; a load's chunk ends. As chunk_staged(). */
static int kernel_look(struct kvtier_client *c, struct op *op, uint64_t now)
{
	struct staged *staged = op->space->staged;
	const bool store = op->hints.op == WIRE_OP_STORE;
	int rc = encoded_look(staged_encoded(staged), slot_of(op));

	if (rc == 0)
		return -EAGAIN;
	if (rc > 0 && store && !op->cancel && now < op->deadline_ns) {
		rc = staged_push(c, op);
		op->kernel = rc != 0;
		return rc;
	}
	op->kernel = false;
	arena_give(staged_arena(staged), op->stage_first);
	if (store) {
		op_finish(c, op, rc < 0 ? rc : op->cancel ? -ECANCELED : -ETIMEDOUT);
		return 0;
	}
	if (rc < 0)
		fail_chunk(op, rc);
	advance(c, op);
	return 0;
}

/* --- */

int chunk_staged(struct kvtier_client *c, struct op *op, uint64_t now)
{
	const struct link *link = atomic_load(&c->link);
	struct staged *staged = op->space->staged;
	uint32_t most;
	struct range range;
	int rc;

	if (op->kernel)
		return kernel_look(c, op, now);
	most = staged_run(op);
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
	op->stage_first = range.first;
	op->stage_n = range.n;
	if (staged_encoded(staged) && op->hints.op == WIRE_OP_STORE)
		return kernel_store(c, op);
	rc = staged_encoded(staged) ? 0 : staged_fill(op, &range);
	if (rc) {
		arena_give(staged_arena(staged), range.first);
		op_finish(c, op, rc);
		return 0;
	}
	rc = staged_push(c, op);
	if (rc)
		arena_give(staged_arena(staged), range.first);
	return rc;
}

/* 0, -errno; 1: kernels are at it. */
static int bring(struct kvtier_client *c, struct op *op)
{
	struct staged *staged = op->space->staged;
	int rc = 0, waited;

	if (staged_encoded(staged)) {
		if (op->hints.op == WIRE_OP_LOAD)
			rc = encoded_load(staged_encoded(staged), slot_of(op),
					  &op->pages[op->chunk_done], op->stage_first, op->chunk,
					  &op->blocks[op->chunk_done]);
		if (op->hints.op == WIRE_OP_LOAD && rc == 0) {
			begun(c, op);
			return 1;
		}
		return rc < 0 ? rc : 0;
	}
	for (uint32_t i = 0; i < op->chunk && !rc && op->hints.op == WIRE_OP_LOAD; i++)
		if (op->blocks[op->chunk_done + i] >= 0)
			rc = staged_copy_out(staged, op->pages[op->chunk_done + i],
					     op->stage_first + i);
	waited = staged_copied(staged);
	return rc ? rc : waited;
}

void chunk_done(struct kvtier_client *c, struct op *op)
{
	const int rc = bring(c, op);

	if (rc == 1)
		return;
	arena_give(staged_arena(op->space->staged), op->stage_first);
	if (rc)
		fail_chunk(op, rc);
	advance(c, op);
}
