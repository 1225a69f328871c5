/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op.c - the life of an op, around the steps of its blocks (step.h, pump.c): from an entry of the
 * client's ring, which entry.c has checked, to the completion. Core thread only.
 *
 *  op_start -> queued (turn.c) -> (blocks begun in turn with other ops') -> all settled
 *                |                                                              ^ |
 *                `-- deadline, cancel, space closed, client gone: --------------' v
 *                    blocks not begun are settled at once              completion -> pool
 *
 * Invariants
 *   O1 each block of an op gets exactly one status, and the op exactly one completion, after the
 *      last part let go of its page.
 *   O2 key and page are each read once from the arena; the entry was copied by ring_peek().
 *   O3 parts and ops come from pools made at start (ops.c); nothing is allocated here.
 *   O4 an op that is ended early wakes its parts, and ends when the last of them has: nothing here
 *      runs a part.
 */
#include "op.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "daemon/stats/stats.h"
#include "daemon/base/container_of.h"
#include "daemon/base/loop.h"
#include "daemon/shared/client.h"
#include "daemon/nvme/writeback.h"
#include "daemon/redis/outbox.h"
#include "daemon/store/block.h"
#include "daemon/store/copies.h"
#include "daemon/store/space.h"
#include "daemon/store/store.h"
#include "entry.h"
#include "groups.h"
#include "part.h"
#include "share.h"
#include "trace.h"
#include "turn.h"

/* Later deadlines are cut to this: an op of which the daemon waits for the client, for its layers,
 * event or word, has less time. */
enum { MAX_DEADLINE_S = 3600, MAX_WAIT_S = 60 };

/* --- settling --- */

static void count(const struct op *op, int status)
{
	struct stats_values *v = &op->all->store->stats->v;

	if (op->sqe.op == WIRE_OP_STORE) {
		if (status == 1)
			stats_add(&v->store_present_blocks_total, 1);
		else if (status < 0)
			stats_add(&v->store_dropped_blocks_total, 1);
	} else if (op->sqe.op == WIRE_OP_LOAD) {
		if (status == -ENOENT) {
			stats_add(&v->load_missed_blocks_total, 1);
			op->client->missed_blocks++;
		} else if (status < 0) {
			stats_add(&v->load_failed_blocks_total, 1);
		}
	} else if (op->sqe.op == WIRE_OP_PREFETCH) {
		stats_add(status < 0 ? &v->prefetch_missed_blocks_total : &v->prefetch_blocks_total,
			  1);
	}
}

/* A block that has groups of layers keeps the first error of them. */
static void set_status(struct op *op, uint32_t at, int status)
{
	if (groups_status(op, at) < 0)
		return;
	status = hint_status(op, status);
	ring_set_status(&op->client->ring, op->sqe.first + at, status);
	count(op, status);
}

static void settle(struct op *op, uint32_t at, int status)
{
	assert(op->settled < op->total);
	set_status(op, at, status);
	op->settled++;
}

/* Of all that was not begun. */
static void settle_rest(struct op *op, int status)
{
	const uint32_t n = op->sqe.n, left = op->total - op->next_block;

	for (uint32_t at = left < n ? n - left : 0; left > 0 && at < n; at++)
		set_status(op, at, status);
	op->next_block = op->total;
	op->settled += left;
}

/* --- completion --- */

/* Misses are quick and say nothing of how long a load takes. */
static void count_time(struct stats *stats, uint16_t kind, const struct wire_cqe *cqe)
{
	if (cqe->ok > 0 && kind == WIRE_OP_LOAD)
		histogram_add(&stats->load_times, loop_clock() - cqe->submit_ns);
	if (cqe->ok > 0 && kind == WIRE_OP_STORE)
		histogram_add(&stats->store_times, loop_clock() - cqe->submit_ns);
}

static void complete(struct op *op)
{
	struct wire_cqe cqe = {
		.op_id = op->sqe.op_id,
		.n = op->sqe.n,
		.first = op->sqe.first,
		.submit_ns = op->submit_ns,
		.done_ns = loop_now(op->all->loop),
	};

	memcpy(cqe.answers, op->hint.answers, sizeof(cqe.answers));
	if (op->hint.scope > WIRE_HINT_KEYS)
		ring_set_status(&op->client->ring, op->sqe.first, hint_status_of_all(op));
	for (uint32_t i = 0; i < op->sqe.n; i++) {
		const int32_t status = ring_status(&op->client->ring, op->sqe.first + i);

		if (status < 0 && cqe.status == 0)
			cqe.status = status;
		if (status >= 0)
			cqe.ok++;
		if (status >= 0 && cqe.prefix == i)
			cqe.prefix = i + 1;
	}
	groups_end(op);
	count_time(op->all->store->stats, op->sqe.op, &cqe);
	order_done(op->order, &op->sqe);
	if (ring_complete(&op->client->ring, &cqe))
		op->client->wake = true;
}

/* Whether nobody built on the block and nobody uses it; a write to NVMe or Redis is no use. False
 * for a block that is gone (purged, damaged): which block came before it is not known any more. */
static bool undoable(const struct store *store, uint32_t block)
{
	return blocks_live(store->blocks, block) && blocks_leaf(store->blocks, block) &&
	       blocks_pins(store->blocks, block) ==
		       writeback_holds(store->writeback, block) +
			       (uint32_t)outbox_holds(store->outbox, block);
}

/* A client that died before its store completed leaves nothing of it: the blocks this op committed
 * go again, newest first, as long as nobody else has built on them. */
static void undo(struct op *op)
{
	struct store *store = op->all->store;
	uint32_t block = op->tail.block;

	if (!op->tail.held)
		return;
	lease_drop(store, &op->tail);
	for (; op->fresh > 0 && undoable(store, block); op->fresh--) {
		const uint32_t parent = blocks_parent(store->blocks, block);

		copies_condemn(store, block);
		block = parent;
	}
}

static void finish_if_settled(struct op *op)
{
	struct ops *all = op->all;

	if (op->settled < op->total)
		return;
	assert(list_empty(&op->parts) && op->n_parts == 0 && !list_has(&op->queue));
	loop_timer_unset(all->loop, &op->deadline);
	if (!op->abandoned)
		complete(op);
	else if (op->sqe.op == WIRE_OP_STORE)
		undo(op);
	grow_end(op);
	lease_drop(all->store, &op->tail);
	*op->link = op->next;
	if (op->next)
		op->next->link = op->link;
	op->client->n_ops--;
	share_op_ended(all, op);
	trace_end(all->traces, op);
	op->client->arena_claimed -= wire_arena_slots(&op->sqe);
	op->mount->ops--;
	all->outstanding--;
	stats_set(&all->store->stats->v.ops_outstanding, all->outstanding);
	op->next = all->free_ops;
	all->free_ops = op;
}

static struct part *part_of(struct list *link)
{
	return container_of(link, struct part, link);
}

void op_part_done(struct part *part)
{
	struct op *op = part->op;
	struct ops *all = op->all;
	struct part *first = part_of(op->parts.next);

	assert(op->sqe.op != WIRE_OP_STORE || first == part);
	list_remove(&part->link);
	settle(op, part->at, part->status);
	if (part->status >= 0)
		groups_landed(op, part->group);
	if (op->hint.fields && part->status >= 0 && groups_are_last(op, part->group))
		hint_fields(part);
	trace_done(op, part->at, part->status);
	share_part_ended(all, part);
	turn_look_again(all);
	list_add(all->free_parts.next, &part->link);
	first = part_of(op->parts.next);
	if (!list_empty(&op->parts) && first->w.wait == WAIT_TURN)
		walk_wake(&first->w);
	finish_if_settled(op);
}

/* --- ending early --- */

/* Blocks not yet begun get their status now. Blocks in flight get it as soon as their jobs and
 * reads let go of them. */
static void end_early(struct op *op, int status)
{
	struct ops *all = op->all;

	if (op->early)
		return;
	op->early = status;
	turn_look_again(all);
	turn_remove(op);
	settle_rest(op, status);
	for (struct list *l = op->parts.next; l != &op->parts; l = l->next) {
		struct part *part = part_of(l);

		if (part->w.wait == WAIT_JOB)
			/* its pages are let go between two pieces */
			device_cancel(&part->w.job);
		else if (part->w.wait != WAIT_TURN)
			walk_wake(&part->w);
	}
	finish_if_settled(op);
}

static void on_deadline(struct loop_timer *timer)
{
	struct op *op = container_of(timer, struct op, deadline);

	stats_add(&op->all->store->stats->v.ops_timed_out_total, 1);
	end_early(op, -ETIMEDOUT);
}

/* --- beginning blocks --- */

/* A store's chain begins under its parent or not at all, and a load keeps the blocks that it brings
 * only under its parent. The parent is leased when the op's first block begins: an op that waits
 * for its turn pins nothing. */
static void take_parent(struct ops *all, struct op *op)
{
	uint32_t parent;

	ring_key(&op->client->ring, op->sqe.first + op->sqe.n, op->last_key);
	if (op->sqe.op != WIRE_OP_STORE)
		return;
	parent = blocks_find(all->store->blocks, op->last_key, op->mount->space->number);
	if (parent == BLOCK_NONE) {
		op->chain_error = -ENOENT;
		return;
	}
	lease_take(all->store, &op->tail, parent);
	copies_touch(all->store, parent, op->tick);
}

struct part *op_begin_block(struct op *op)
{
	struct ops *all = op->all;
	struct ring *ring = &op->client->ring;
	struct part *part = part_of(all->free_parts.next);
	struct device_job *job = &part->w.job;
	/* only a load with groups comes to a block again: the others need no division */
	const uint32_t group = op->next_block < op->sqe.n ? 0 : op->next_block / op->sqe.n,
		       at = op->next_block - group * op->sqe.n, slot = op->sqe.first + at;

	if (at == 0 && (op->sqe.flags & WIRE_SQE_HAS_PARENT))
		take_parent(all, op);
	list_remove(&part->link);
	memset(part, 0, sizeof(*part));
	part->op = op;
	part->at = at;
	part->group = group;
	op->next_block++;
	part->w.all = all;
	part->w.part = part;
	part->w.step = op->hint.scope > 0          ? HINT_APPLY :
		       op->sqe.op == WIRE_OP_STORE ? STORE_ADMIT :
						     LOAD_LOOKUP;
	share_part_begun(all, part);
	job->layout = &op->mount->layout;
	groups_begin(op, part->group, job);
	job->done = walk_job_done;
	job->deadline_ns = op->sqe.deadline_ns;
	if (op->order)
		job->order = order_of(op->order, &op->sqe);
	job->page = ring_page(ring, slot);
	memcpy(job->identity.space_id, op->mount->space->id, sizeof(job->identity.space_id));
	ring_key(ring, slot, job->identity.key);
	memcpy(part->before, op->last_key, sizeof(part->before));
	memcpy(op->last_key, job->identity.key, sizeof(op->last_key));
	job->given_up = ring_given_up_word(ring);
	list_add(&op->parts, &part->link);
	return part;
}

/* --- starting and ending ops --- */

static void start_nop(struct ops *all, struct client *client, const struct wire_sqe *sqe)
{
	const struct wire_cqe cqe = {
		.op_id = sqe->op_id,
		.submit_ns = loop_now(all->loop),
		.done_ns = loop_now(all->loop),
	};

	if (ring_complete(&client->ring, &cqe))
		client->wake = true;
}

static void cancel(struct op *op)
{
	stats_add(&op->all->store->stats->v.ops_canceled_total, 1);
	end_early(op, -ECANCELED);
}

/* There is one: a client has no more ops than its ring has entries. */
static struct op *take_free(struct ops *all)
{
	struct op *op = all->free_ops;

	if (op) {
		all->free_ops = op->next;
		return op;
	}
	assert(all->n_used < all->max_ops);
	return &all->op_pool[all->n_used++];
}

static bool waits_for_client(const struct wire_sqe *sqe)
{
	return (sqe->op == WIRE_OP_STORE && sqe->groups > 0) || sqe->event || sqe->word;
}

static uint64_t deadline_of(const struct ops *all, const struct wire_sqe *sqe)
{
	const uint64_t s = waits_for_client(sqe) ? MAX_WAIT_S : MAX_DEADLINE_S,
		       latest = loop_now(all->loop) + s * 1000000000ull;

	return sqe->deadline_ns < latest ? sqe->deadline_ns : latest;
}

/* Nothing of its pages is read before all layers are there, unless its device waits for them
 * itself: it has no turn until then. */
static bool lacks_layers(const struct op *op)
{
	return op->sqe.op == WIRE_OP_STORE && !(op->sqe.flags & WIRE_SQE_GIVEN) &&
	       op->given < op->sqe.groups;
}

static void start_op(struct ops *all, struct client *client, struct mount *mount,
		     const struct wire_sqe *sqe)
{
	struct op *op = take_free(all);

	*op = (struct op){
		.all = all,
		.client = client,
		.mount = mount,
		.sqe = *sqe,
		.order = sqe->event || sqe->word ? order_find(client->orders, mount->device) : NULL,
		.tick = ++all->store->tick,
		.submit_ns = loop_now(all->loop),
		.deadline.fire = on_deadline,
		.remote_end = sqe->n,
	};
	if (op->order)
		order_prefetch(op->order, sqe);
	list_open(&op->parts);
	list_open(&op->growing);
	hint_begin(op);
	op->total = op->hint.scope > 0 ? hint_blocks(op) : groups_start(op);
	op->next = client->ops;
	op->link = &client->ops;
	if (op->next)
		op->next->link = &op->next;
	client->ops = op;
	client->n_ops++;
	share_op_started(all, op);
	client->arena_claimed += wire_arena_slots(sqe);
	mount->ops++;
	all->outstanding++;
	stats_set(&all->store->stats->v.ops_outstanding, all->outstanding);
	op->sqe.deadline_ns = deadline_of(all, sqe);
	loop_timer_set(all->loop, &op->deadline, op->sqe.deadline_ns);
	trace_begin(all->traces, op);
	if (lacks_layers(op))
		return;
	turn_look_again(all);
	turn_add(op);
}

/* More of a store's layers are in its pages. */
static void give(struct op *op, uint32_t groups)
{
	const bool lacked = lacks_layers(op);

	if (groups > op->given)
		op->given = groups;
	if (lacked && !lacks_layers(op))
		turn_add(op);
	turn_look_again(op->all);
}

int op_start(struct ops *all, struct client *client, const struct wire_sqe *sqe, char *text,
	     size_t n)
{
	struct op *target;
	const int r = entry_check(client, sqe, &target, text, n);

	if (r)
		return r;
	if (sqe->op == WIRE_OP_NOP) {
		start_nop(all, client, sqe);
	} else if (sqe->op == WIRE_OP_CANCEL || sqe->op == WIRE_OP_LAYERS) {
		if (target && sqe->op == WIRE_OP_CANCEL)
			cancel(target);
		else if (target)
			give(target, sqe->n);
	} else {
		ring_prefetch(&client->ring, sqe->first);
		start_op(all, client, client->mounts[sqe->space], sqe);
	}
	return 0;
}

void op_cancel_all(struct client *client, const struct mount *mount)
{
	for (struct op *op = client->ops, *next; op; op = next) {
		next = op->next; /* op may be gone when it was cancelled */
		if (!mount || op->mount == mount)
			cancel(op);
	}
}

void op_abandon_all(struct client *client)
{
	for (struct op *op = client->ops; op; op = op->next)
		op->abandoned = true;
	op_cancel_all(client, NULL);
	share_client_cut(client);
}
