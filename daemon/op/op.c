/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op.c - the life of an op: from an entry of its client's ring, through the steps of its blocks
 * (task.h), to the completion. Core thread only.
 *
 *  op_start -> queued (schedule.c) -> (blocks begun in turn with other ops') -> all settled
 *                |                                                              ^ |
 *                `-- deadline, cancel, space closed, client gone: --------------' v
 *                    blocks not begun are settled at once              completion -> pool
 *
 *  an entry:  ring_peek() copies -> proto_sqe() knows no state -> op_check_entry() -> it acts
 *
 *  in an iteration:     ready tasks -> tasks that wait for room or a tier try again -> blocks of
 *                       queued ops begin -> devices start
 *
 * Invariants
 *   O1 each block of an op gets exactly one status, and the op exactly one completion, after the
 *      last part has given its page back.
 *   O2 key and page are each read once from the arena; the entry was copied by ring_peek().
 *   O3 parts and ops come from pools made at start: a list of the free ones, and of ops the
 *      first one that was never used; no other memory is allocated.
 *   O4 an op that is ended early wakes its parts, and ends when the last of them has. Completions,
 *      deadlines and cancels only wake a part or a flight, which is a push on the run queue; pump()
 *      alone runs steps. So no step runs below another one, and the things held when a step begins
 *      can be checked: step_allows().
 *   E1 an entry is compared with its client's state, and no state is changed by that: open spaces,
 *      outstanding ops, free arena slots, layers, devices, events.
 *   E2 an entry that passes can be started: any lack after that shows as statuses of its blocks.
 *   E3 each refusal names the field, its value and the reason.
 */
#include "op.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/config/config.h"
#include "daemon/device/device.h"
#include "daemon/quota/quota.h"
#include "daemon/stats/stats.h"
#include "base/clock.h"
#include "base/list.h"
#include "base/loop.h"
#include "daemon/session/peer.h"
#include "daemon/policy/reuse.h"
#include "tiers/slabs.h"
#include "daemon/write/writeback.h"
#include "daemon/write/outbox.h"
#include "daemon/table/block.h"
#include "daemon/move/copies.h"
#include "daemon/table/space.h"
#include "daemon/move/tables.h"
#include "flight.h"
#include "load.h"
#include "part.h"
#include "store.h"
#include "trace.h"
#include "schedule.h"

/* Later deadlines are cut to MAX_DEADLINE_S, or to MAX_WAIT_S if the daemon waits for the client:
 * for layers or a word. */
enum { MAX_DEADLINE_S = 3600, MAX_WAIT_S = 60 };

enum {
	/* tasks per iteration of the loop: each takes about a microsecond */
	READY_BUDGET = 256,
	BEGIN_BUDGET = 64, /* blocks begun per iteration of the loop, or ops passed over */
	ROW = 16,          /* of these of an op, in a row */
};

/* --- settling --- */

static void count(const struct op *op, int status)
{
	struct stats_values *v = &op->all->tables->stats->v;

	if (op->sqe.op == WIRE_OP_STORE) {
		stats_add(&v->store_present_blocks_total, status == 1);
		if (status < 0)
			stats_count_dropped(v, status, op->early == -ENOSPC);
	} else if (op->sqe.op == WIRE_OP_LOAD) {
		stats_add(&v->load_missed_blocks_total, status == -ENOENT);
		if (status < 0 && status != -ENOENT)
			stats_count_failed(v, status);
		op->client->missed_blocks += status == -ENOENT;
	} else if (op->sqe.op == WIRE_OP_PREFETCH) {
		stats_add(&v->prefetch_missed_blocks_total, status < 0);
		stats_add(&v->prefetch_blocks_total, status >= 0);
	}
}

/* A block that has groups of layers keeps the first error of them. */
static void set_status(struct op *op, uint32_t at, int status)
{
	if (op->groups.landed && groups_status(op, at) < 0)
		return;
	if (op->hint.scope > 0)
		status = hint_status(op, status);
	ring_set_status(&op->client->ring, op->sqe.first + at, status);
	count(op, status);
}

/* Settles all that was not begun. */
static void settle_rest(struct op *op, int status)
{
	const uint32_t n = op->sqe.n, left = op->total - op->next_block;

	for (uint32_t at = left < n ? n - left : 0; left > 0 && at < n; at++)
		set_status(op, at, status);
	op->next_block = op->total;
	op->settled += left;
}

/* --- completion --- */

/* Misses are quick, and no measure of how long a load takes. */
static void count_time(const struct op *op, uint32_t ok)
{
	struct stats *stats = op->all->tables->stats;
	const uint64_t took_ns = clock_ns() - op->submit_ns;

	if (ok > 0 && op->sqe.op == WIRE_OP_LOAD) {
		histogram_add(&stats->v.load_duration_ns, took_ns);
		histogram_add(&stats_tier(stats, op->farthest)->load_duration_ns, took_ns);
	} else if (ok > 0 && op->sqe.op == WIRE_OP_STORE) {
		histogram_add(&stats->v.store_duration_ns, took_ns);
	}
}

/* For reuse_chain(): loaded blocks, and stored ones that were absent. Their keys are read from the
 * arena once more. A client that changed them meanwhile makes these numbers wrong, nothing else. */
static bool used_key(void *arg, uint32_t at, uint8_t ret[32])
{
	const struct op *op = arg;
	const int32_t status = ring_status(&op->client->ring, op->sqe.first + at);

	if (op->sqe.op == WIRE_OP_LOAD ? status < 0 : op->sqe.op != WIRE_OP_STORE || status != 0)
		return false;
	ring_key(&op->client->ring, op->sqe.first + at, ret);
	return true;
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
	if (op->groups.landed)
		groups_end(op);
	count_time(op, cqe.ok);
	if (op->all->tables->reuse)
		reuse_chain(op->all->tables->reuse, op->sqe.n,
			    slabs_slot_bytes(tier_slabs(tables_host(op->all->tables)),
					     op->mount->space->shape.image_bytes),
			    used_key, op);
	if (op->order)
		stream_order_done(op->order, &op->sqe);
	if (ring_complete(&op->client->ring, &cqe))
		op->client->wake = true;
}

/* Whether no block was built on this one and no op uses it; a write to NVMe or Redis does not
 * count. False for a block that is gone (purged, damaged): the block before it is not known any
 * more. */
static bool undoable(const struct tables *tables, uint32_t block)
{
	return blocks_live(tables->blocks, block) && blocks_leaf(tables->blocks, block) &&
	       blocks_pins(tables->blocks, block) ==
		       writeback_holds(tables->writeback, block) +
			       (uint32_t)outbox_holds(tables->outbox, block);
}

/* A client that died before its store completed leaves no block of it: the blocks this op committed
 * are dropped, newest first, as long as no other op has built on them. */
static void undo(struct op *op)
{
	struct tables *tables = op->all->tables;
	uint32_t block = op->tail.block;

	if (!op->tail.held)
		return;
	lease_drop(tables, &op->tail);
	for (; op->fresh > 0 && undoable(tables, block); op->fresh--) {
		const uint32_t parent = blocks_parent(tables->blocks, block);

		copies_condemn(tables, block);
		block = parent;
	}
}

/* Whether the op may not stand in a queue yet. A store's pages are not read before all layers are
 * there, unless the store's device waits for layers itself. They are not read before the op that
 * stores the parent has ended. */
static bool is_unready(const struct op *op)
{
	return op->after || (op->sqe.op == WIRE_OP_STORE && !(op->sqe.flags & WIRE_SQE_GIVEN) &&
			     op->given < op->sqe.groups);
}

/* The op ends: the ops that waited for it alone stand in a queue now. They are newer than it. */
static void queue_followers(const struct op *op)
{
	for (struct op *later = op->client->ops; later != op; later = later->next) {
		if (later->after != op)
			continue;
		later->after = NULL;
		if (!is_unready(later))
			schedule_add(later);
	}
}

static void finish_if_settled(struct op *op)
{
	struct ops *all = op->all;

	if (op->settled < op->total)
		return;
	assert(list_empty(&op->parts) && !list_has(&op->queue));
	loop_timer_unset(all->loop, &op->deadline);
	if (!op->abandoned)
		complete(op);
	else if (op->sqe.op == WIRE_OP_STORE)
		undo(op);
	if (op->gpu)
		gpu_cache_end_op(op->gpu, &op->growing);
	lease_drop(all->tables, &op->tail);
	queue_followers(op);
	*op->link = op->next;
	if (op->next)
		op->next->link = op->link;
	op->client->n_ops--;
	schedule_op_ended(all, op);
	trace_end(all->traces, op);
	op->client->arena_claimed -= wire_arena_slots(&op->sqe);
	op->mount->ops--;
	all->outstanding--;
	all->n_stores -= op->sqe.op == WIRE_OP_STORE;
	stats_set(&all->tables->stats->v.ops_outstanding, all->outstanding);
	op->next = all->free_ops;
	all->free_ops = op;
}

static struct part *part_of(struct list *link)
{
	return container_of(link, struct part, link);
}

static void part_done(struct part *part)
{
	struct op *op = part->op;
	struct ops *all = op->all;
	struct part *first = part_of(op->parts.next);

	assert(op->sqe.op != WIRE_OP_STORE || first == part);
	list_remove(&part->link);
	set_status(op, part->at, part->status);
	op->settled++;
	if (part->status >= 0 && op->groups.landed)
		groups_landed(op, part->group);
	if (part->status >= 0 && op->hint.fields && is_last_group(part))
		hint_fields(part);
	trace_done(op, part->at, part->status);
	schedule_part_ended(all, part);
	list_add(all->free_parts.next, &part->link);
	first = part_of(op->parts.next);
	if (!list_empty(&op->parts) && first->task.wait == WAIT_PREVIOUS)
		task_wake(&first->task);
	finish_if_settled(op);
}

/* --- ending early --- */

/* Blocks not yet begun get their status now. Blocks in flight get it as soon as their jobs and
 * reads have ended. */
static void end_early(struct op *op, int status)
{
	struct ops *all = op->all;

	if (op->early)
		return;
	op->early = status;
	schedule_look_again(all);
	schedule_remove(op);
	settle_rest(op, status);
	for (struct list *l = op->parts.next; l != &op->parts; l = l->next) {
		struct part *part = part_of(l);

		if (part->task.wait == WAIT_JOB)
			/* it ends between two pieces */
			device_cancel(&part->task.job);
		else if (part->task.wait != WAIT_PREVIOUS)
			task_wake(&part->task);
	}
	finish_if_settled(op);
}

static void on_deadline(struct loop_timer *timer)
{
	struct op *op = container_of(timer, struct op, deadline);

	stats_add(&op->all->tables->stats->v.ops_timed_out_total, 1);
	end_early(op, -ETIMEDOUT);
}

/* --- beginning blocks --- */

/* A store's chain begins under its parent or not at all, and a load keeps the blocks that it brings
 * only under its parent. A store leases the parent when its first block begins: an op that is
 * queued has no pin. */
static void take_parent(struct ops *all, struct op *op)
{
	uint32_t parent;

	ring_key(&op->client->ring, op->sqe.first + op->sqe.n, op->last_key);
	parent = blocks_find(all->tables->blocks, op->last_key, op->mount->space->number);
	if (parent != BLOCK_NONE)
		op->used = copies_touch_chain(all->tables, parent, op->tick);
	if (op->sqe.op != WIRE_OP_STORE)
		return;
	if (parent == BLOCK_NONE) {
		op->chain_error = -ENOENT;
		return;
	}
	lease_take(all->tables, &op->tail, parent);
	if (op->mount->space->codec == CODECS_Q4)
		for (; parent != BLOCK_NONE && op->before < SPACE_FIRST_TOKENS; op->before++)
			parent = blocks_parent(all->tables->blocks, parent);
}

/* The lookup of the next block will wait for little but the index's memory: asks for it. */
static void look_ahead(const struct op *op)
{
	uint8_t key[32];

	if (op->next_block >= op->sqe.n)
		return;
	ring_key(&op->client->ring, op->sqe.first + op->next_block, key);
	blocks_soon_key(op->all->tables->blocks, key, op->mount->space->number);
}

static struct part *begin_block(struct op *op)
{
	struct ops *all = op->all;
	struct ring *ring = &op->client->ring;
	struct part *part = part_of(all->free_parts.next);
	struct device_job *job = &part->task.job;
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
	part->task.all = all;
	part->task.part = part;
	part->task.step = op->hint.scope > 0          ? HINT_APPLY :
			  op->sqe.op == WIRE_OP_STORE ? STORE_ADMIT :
							LOAD_LOOKUP;
	schedule_part_begun(all, part);
	job->layout = &op->mount->layout;
	if (op->groups.landed)
		groups_begin(op, part->group, job);
	if (op->gpu)
		part->gpu = (struct gpu_use){ .unit = op->mount->device->unit,
					      .space = op->mount->space };
	job->done = task_job_done;
	job->deadline_ns = op->sqe.deadline_ns;
	if (op->order)
		job->order = stream_order_of(op->order, &op->sqe);
	job->page = ring_page(ring, slot);
	memcpy(job->identity.space_id, op->mount->space->id, sizeof(job->identity.space_id));
	ring_key(ring, slot, job->identity.key);
	memcpy(part->before, op->last_key, sizeof(part->before));
	memcpy(op->last_key, job->identity.key, sizeof(op->last_key));
	job->given_up = ring_given_up_word(ring);
	list_add(&op->parts, &part->link);
	look_ahead(op);
	return part;
}

/* --- tasks go on --- */

/* What a task holds, as bits of enum held. */
static uint32_t held(struct task *task)
{
	const struct flight *f = flight_of(task);

	return (task->placed ? HELD_SLOT : 0u) | (task->lease.held ? HELD_LEASE : 0u) |
	       (!f && task->part->flight ? HELD_FLIGHT : 0u) |
	       (!f && gpu_use_any(&task->part->gpu) ? HELD_GPU : 0u) |
	       (list_has(&task->room) || list_has(&task->full) ? HELD_PLACE : 0u) |
	       (task->job.in_flight || (f && f->xfer.in_flight) ? HELD_LENT : 0u);
}

/* A part of an op that is to end does not wait any more: it goes to another step, or keeps its
 * step. */
static enum step early(struct part *part, enum step step)
{
	if (part->op->early == 0 || part->status != 0 || step_rules[step].early == step)
		return step;
	part->status = part->op->early;
	return step_rules[step].early;
}

static void end_part(struct part *part)
{
	if (gpu_use_any(&part->gpu))
		gpu_cache_settle(part->op->gpu, &part->gpu, &part->task.job);
	task_unplace(&part->task);
	lease_drop(part->task.all->tables, &part->task.lease);
	assert(held(&part->task) == 0);
	part_done(part);
}

/* Runs the task as far as it can go now. A flight that was given up ends when its job and its
 * transfer are back. */
static void go_on(struct task *task)
{
	struct flight *f = flight_of(task);
	enum step next = f && f->given_up ? DONE : task->step;

	task->wait = 0;
	while (next < STEPS) {
		struct op *op = task->part->op;

		task->step = f ? next : early(task->part, next);
		assert(step_allows(task->step, held(task)));
		trace_step(op, task->part->at, task->step, task->source);
		next = step_rules[task->step].run(task);
		if (next > DONE)
			trace_wait(op, next);
	}
	if (next > DONE)
		task->wait = next;
	else if (f)
		flight_over(f);
	else
		end_part(task->part);
}

/* The first flight that a tier had no room for tries again. Returns whether the tier had room. */
static bool retry_first(const struct list *full)
{
	const struct list *first = full->next;

	if (list_empty(full))
		return false;
	go_on(container_of(first, struct task, full));
	return full->next != first;
}

/* Whether its next block may not begin now. begins: a row of them does. */
static bool must_wait(struct op *op, bool begins)
{
	if (schedule_memory_used(op->all, op))
		return true;
	if (op->sqe.op == WIRE_OP_STORE) /* as many jobs wait for layers as may */
		return (op->sqe.flags & WIRE_SQE_GIVEN) && schedule_waiting_used(op);
	return load_must_wait(op, begins);
}

/* Takes the next op in turn, and begins its next blocks if that may be: several, so that they are
 * stored side by side, and read at once (tiers/io/io.h, "Runs"). */
static void begin_some(struct ops *all, int *budget)
{
	struct op *op = schedule_take(all);
	bool more = op && !must_wait(op, true);

	--*budget;
	if (op && !more)
		schedule_pass(op);
	for (uint32_t left = ROW; more && left > 0; left--) {
		schedule_look_again(all);
		schedule_remove(op);
		more = op->next_block + 1 < op->total;
		if (more) /* room is looked for while it may begin another one */
			schedule_add(op);
		go_on(&begin_block(op)->task); /* the last one may end the op */
		--*budget;
		more = more && !schedule_parts_used(all, op->client->peer) && !must_wait(op, false);
	}
}

/* --- the iteration --- */

/* Tasks that wait for room try one after another. Each tries when no other task is ready, so the
 * answer depends on no order among them. */
static bool run_ready(struct ops *all)
{
	bool worked = task_run(&all->ready, READY_BUDGET, go_on);

	worked |= retry_first(&all->flights.full);
	while (list_empty(&all->ready) && room_is_waited_for(&all->room) && room_retry(all))
		worked |= task_run(&all->ready, READY_BUDGET, go_on);
	return worked || !list_empty(&all->ready);
}

/* Ops whose next block must wait are passed over. When all were, no block can begin before a part
 * or a flight ends. */
static bool pump(struct loop_poller *poller)
{
	struct ops *all = container_of(poller, struct ops, poller);
	int budget = BEGIN_BUDGET;
	bool worked;

	mover_iteration(&all->tables->mover);
	if (all->tables->reuse)
		reuse_now(all->tables->reuse, loop_now(all->loop));
	worked = run_ready(all);
	if (worked)
		schedule_look_again(all);
	while (schedule_may_begin(all) && budget > 0) {
		begin_some(all, &budget);
		worked = true;
	}
	/* the loop asks its pollers once more before it sleeps */
	devices_kick(all->devices);
	return worked || !list_empty(&all->ready);
}

void op_pump_start(struct ops *all)
{
	all->poller.poll = pump;
	loop_poller_add(all->loop, &all->poller);
}

void op_pump_stop(struct ops *all)
{
	if (all)
		loop_poller_remove(all->loop, &all->poller);
}

/* --- may an entry be acted on? --- */

static int violation(char *text, size_t n, const char *field, unsigned long long value,
		     const char *why)
{
	snprintf(text, n, "sqe.%s %llu %s", field, value, why);
	return -EPROTO;
}

static struct op *find_op(const struct client *client, uint64_t op_id)
{
	for (struct op *op = client->ops; op; op = op->next)
		if (op->sqe.op_id == op_id)
			return op;
	return NULL;
}

static int check_layers(const struct wire_sqe *sqe, const struct op *target, char *text, size_t n)
{
	if (target && (target->sqe.op != WIRE_OP_STORE || sqe->n > target->sqe.groups))
		return violation(text, n, "n", sqe->n, "is more than the groups of its target");
	return 0;
}

static int check_order(const struct client *client, const struct wire_sqe *sqe,
		       const struct device *device, char *text, size_t n)
{
	if ((sqe->flags & WIRE_SQE_GIVEN) && !device->layered)
		return violation(text, n, "flags", sqe->flags,
				 "says GIVEN, but the device of this space waits for no word");
	if (sqe->word && !stream_order_find(client->orders, device))
		return violation(text, n, "word", sqe->word,
				 "is of no ORDER for the device of this space");
	return 0;
}

static int check_blocks(const struct client *client, const struct wire_sqe *sqe, char *text,
			size_t n)
{
	const struct mount *mount = client->mounts[sqe->space];

	if (!mount || mount->closing)
		return violation(text, n, "space", sqe->space, "is not open on this connection");
	if (find_op(client, sqe->op_id))
		return violation(text, n, "op_id", sqe->op_id, "is in use by an outstanding op");
	/* Slots that overlap would be work without limit: each op walks all of its own when it ends
	 * early. */
	if (wire_arena_slots(sqe) > client->ring.arena_blocks - client->arena_claimed)
		return violation(text, n, "n", sqe->n,
				 "is more than the arena slots that no outstanding op uses");
	if (sqe->groups > mount->space->geometry.layers)
		return violation(text, n, "groups", sqe->groups,
				 "is more than the layers of its space");
	return check_order(client, sqe, mount->device, text, n);
}

int op_check_entry(const struct client *client, const struct wire_sqe *sqe, struct op **ret_target,
		   char *text, size_t n)
{
	*ret_target = NULL;
	if (sqe->op == WIRE_OP_NOP)
		return 0;
	if (sqe->op != WIRE_OP_CANCEL && sqe->op != WIRE_OP_LAYERS)
		return check_blocks(client, sqe, text, n);
	*ret_target = find_op(client, sqe->target);
	return sqe->op == WIRE_OP_LAYERS ? check_layers(sqe, *ret_target, text, n) : 0;
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
	stats_add(&op->all->tables->stats->v.ops_canceled_total, 1);
	end_early(op, -ECANCELED);
}

/* There is always one, since a client has no more ops than its ring has entries. */
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
	return (sqe->op == WIRE_OP_STORE && sqe->groups > 0) || sqe->word;
}

static uint64_t deadline_of(const struct ops *all, const struct wire_sqe *sqe)
{
	const uint64_t s = waits_for_client(sqe) ? MAX_WAIT_S : MAX_DEADLINE_S,
		       latest = loop_now(all->loop) + s * 1000000000ull;

	return sqe->deadline_ns < latest ? sqe->deadline_ns : latest;
}

/* The newest of the client's ops that will store the parent of this store. NULL: there is none, or
 * the parent is present. An engine may give a part of a prompt while the part before is stored.
 * Keys are read from the arena once more: a client that changes them delays its own op. */
static struct op *op_of_parent(const struct op *op)
{
	const struct ring *ring = &op->client->ring;
	const struct space *space = op->mount->space;
	uint8_t parent[32], last[32];

	if (op->sqe.op != WIRE_OP_STORE || !(op->sqe.flags & WIRE_SQE_HAS_PARENT))
		return NULL;
	ring_key(ring, op->sqe.first + op->sqe.n, parent);
	if (blocks_find(op->all->tables->blocks, parent, space->number) != BLOCK_NONE)
		return NULL;
	for (struct op *older = op->next; older; older = older->next) {
		if (older->sqe.op != WIRE_OP_STORE || older->mount->space != space)
			continue;
		ring_key(ring, older->sqe.first + older->sqe.n - 1, last);
		if (memcmp(last, parent, sizeof(last)) == 0)
			return older;
	}
	return NULL;
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
		.order = sqe->word ? stream_order_find(client->orders, mount->device) : NULL,
		.tick = tables_tick(all->tables, loop_now(all->loop)),
		.used = all->tables->tick,
		.submit_ns = loop_now(all->loop),
		.deadline.fire = on_deadline,
		.remote_end = sqe->n,
	};
	if (op->order)
		stream_order_prefetch(op->order, sqe);
	list_open(&op->parts);
	list_open(&op->growing);
	/* of an unsealed lossless image nothing would say how long it is: GPUs keep none */
	if (mount->device->unit != DEVICE_NO_UNIT && mount->space->codec != CODEC_LOSSLESS)
		op->gpu = all->tables->gpu_cache;
	op->total = sqe->n;
	hint_begin(op);
	if (op->hint.scope > 0)
		op->total = hint_blocks(op);
	else if (sqe->op == WIRE_OP_LOAD && sqe->groups > 0)
		op->total = groups_start(op);
	op->next = client->ops;
	op->link = &client->ops;
	if (op->next)
		op->next->link = &op->next;
	client->ops = op;
	op->after = op_of_parent(op);
	client->n_ops++;
	schedule_op_started(all, op);
	client->arena_claimed += wire_arena_slots(sqe);
	mount->ops++;
	all->outstanding++;
	all->n_stores += sqe->op == WIRE_OP_STORE;
	stats_set(&all->tables->stats->v.ops_outstanding, all->outstanding);
	op->sqe.deadline_ns = deadline_of(all, sqe);
	loop_timer_set(all->loop, &op->deadline, op->sqe.deadline_ns);
	trace_begin(all->traces, op);
	if (all->tables->draining && sqe->op == WIRE_OP_STORE) {
		end_early(op, -ENOSPC); /* as no other op is */
	} else if (!is_unready(op)) {
		schedule_look_again(all);
		schedule_add(op);
	}
}

/* More of a store's layers are in its pages. */
static void give(struct op *op, uint32_t groups)
{
	const bool was_unready = is_unready(op);

	if (groups > op->given)
		op->given = groups;
	if (was_unready && !is_unready(op))
		schedule_add(op);
	schedule_look_again(op->all);
}

int op_start(struct ops *all, struct client *client, const struct wire_sqe *sqe, char *text,
	     size_t n)
{
	struct op *target;
	const int r = op_check_entry(client, sqe, &target, text, n);

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
	schedule_client_cut(client);
}

/* --- the pools --- */

int ops_open(struct tables *tables, struct loop *loop, struct devices *devices,
	     const struct config *config, struct ops **ret)
{
	const uint32_t max_ops = config->socket_max_clients * config_ring_entries(config),
		       parts = devices_sum(devices).depth;
	struct ops *all = calloc(1, sizeof(*all));

	if (!all)
		return -ENOMEM;
	*all = (struct ops){
		.tables = tables,
		.loop = loop,
		.devices = devices,
		.config = config,
		.quota = tables->quota,
		.max_ops = max_ops,
		.n_parts = parts,
		.n_free_parts = parts,
		.op_pool = calloc(max_ops, sizeof(*all->op_pool)),
		.landed_pool = calloc(max_ops, sizeof(*all->landed_pool)),
		.part_pool = calloc(parts, sizeof(*all->part_pool)),
	};
	quota_set(all->quota, QUOTA_parts, parts, quota_lines[QUOTA_parts].percent);
	schedule_open(all);
	list_open(&all->ready);
	list_open(&all->full);
	list_open(&all->free_parts);
	list_open(&all->room.waiters);
	if (!all->op_pool || !all->landed_pool || !all->part_pool ||
	    flights_open(&all->flights, parts) || traces_open(max_ops, &all->traces)) {
		ops_close(all);
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < parts; i++)
		list_add(&all->free_parts, &all->part_pool[i].link);
	devices->hooks.room = task_wake_full;
	devices->hooks.room_arg = all;
	*ret = all;
	return 0;
}

void ops_close(struct ops *all)
{
	if (!all)
		return;
	assert(all->outstanding == 0);
	traces_close(all->traces);
	flights_close(&all->flights);
	free(all->op_pool);
	free(all->landed_pool);
	free(all->part_pool);
	free(all);
}

uint32_t ops_outstanding(const struct ops *all)
{
	return all ? all->outstanding : 0;
}

uint32_t ops_stores(const struct ops *all)
{
	return all->n_stores;
}

uint64_t ops_pages(const struct client *client)
{
	uint64_t pages = 0;

	for (const struct op *op = client->ops; op; op = op->next)
		if (op->sqe.op == WIRE_OP_STORE || op->sqe.op == WIRE_OP_LOAD)
			pages += op->abandoned && op->total - op->settled < op->sqe.n ?
					 op->total - op->settled :
					 op->sqe.n;
	return pages;
}
