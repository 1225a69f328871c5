/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op.c - the life of an op, around the steps that request.c takes with each of its blocks.
 *
 *	op_start -> queued -> (blocks begun in turn with other ops') -> all settled -> completion -> pool
 *	                   `-- deadline, cancel, space closed, client gone: blocks not begun are settled at once --^
 *
 * Fairness: clients with blocks to begin are served in turn, one block a visit, and so are the ops of each. So
 * neither a long op nor many of them delay another client's by more than the blocks already in flight, and of those no
 * client has more than its share (share.h).
 */
#include "part.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/container_of.h"
#include "daemon/front/conn.h"
#include "daemon/store/copies.h"
#include "daemon/kvtierd.h"
#include "daemon/redis/outbox.h"
#include "share.h"
#include "daemon/nvme/writeback.h"

enum {
	MAX_DEADLINE_S = 3600,	/* later deadlines are cut to this */
	PUMP_BUDGET = 64,	/* blocks begun a turn of the loop... */
	PUMP_MOVED_BYTES = 32 << 20,	/* ...or fewer, when so much was copied to make room for them: 4-8 ms */
	PUMP_EVICTED = 16384,		/* or so many evicted: about as long */
};

/* --- pools --- */

static bool pump(struct loop_poller *poller);

int ops_open(struct kvtierd *d, uint32_t max_ops, uint32_t parts, struct ops **ret)
{
	struct ops *all = calloc(1, sizeof *all);

	if (!all)
		return -ENOMEM;
	all->d = d;
	all->max_ops = max_ops;
	all->n_parts = parts;
	all->max_fetches = parts - parts / 4;
	all->queue_end = &all->queue;
	all->fetches_end = &all->fetches;
	all->poller.poll = pump;
	all->op_pool = calloc(max_ops, sizeof *all->op_pool);
	all->part_pool = calloc(parts, sizeof *all->part_pool);
	all->n_free_parts = parts;
	all->round = 1;
	if (!all->op_pool || !all->part_pool || shares_open(&d->shares)) {
		ops_close(all);
		return -ENOMEM;
	}
	for (uint32_t i = max_ops; i-- > 0;) {
		all->op_pool[i].next = all->free_ops;
		all->free_ops = &all->op_pool[i];
	}
	for (uint32_t i = parts; i-- > 0;) {
		all->part_pool[i].next = all->free_parts;
		all->free_parts = &all->part_pool[i];
	}
	loop_poller_add(d->loop, &all->poller);
	*ret = all;
	return 0;
}

void ops_close(struct ops *all)
{
	if (!all)
		return;
	assert(all->outstanding == 0);
	loop_poller_remove(all->d->loop, &all->poller);
	shares_close(all->d->shares);
	all->d->shares = NULL;
	free(all->op_pool);
	free(all->part_pool);
	free(all);
}

bool ops_room(const struct ops *all)
{
	return all->free_ops != NULL;
}

uint32_t ops_share(const struct ops *all, uint32_t clients)
{
	return clients < all->max_ops ? all->max_ops / clients : 1;
}

uint32_t ops_outstanding(const struct ops *all)
{
	return all->outstanding;
}

uint64_t ops_pages(const struct conn *conn)
{
	uint64_t pages = 0;

	for (const struct op *q = conn->ops; q; q = q->next)
		if (q->sqe.op != WIRE_OP_PREFETCH)
			pages += q->abandoned ? q->sqe.n - q->settled : q->sqe.n;
	return pages;
}

/* --- settling --- */

void op_look_again(struct ops *all)
{
	all->n_passed = 0;
	all->round++;
}


static void count(const struct op *q, int status)
{
	struct stats_values *v = &q->d->stats->v;

	if (q->sqe.op == WIRE_OP_STORE) {
		if (status == 1)
			stats_add(&v->store_present_blocks_total, 1);
		else if (status < 0)
			stats_add(&v->store_dropped_blocks_total, 1);
	} else if (q->sqe.op == WIRE_OP_LOAD) {
		if (status == -ENOENT) {
			stats_add(&v->load_missed_blocks_total, 1);
			q->conn->missed_blocks++;
		} else if (status < 0) {
			stats_add(&v->load_failed_blocks_total, 1);
		}
	} else {
		stats_add(status < 0 ? &v->prefetch_missed_blocks_total : &v->prefetch_blocks_total, 1);
	}
}

static void settle(struct op *q, uint32_t at, int status)
{
	assert(q->settled < q->sqe.n);
	ring_set_status(&q->conn->ring, q->sqe.first + at, status);
	q->settled++;
	count(q, status);
}

/* There are few parts, and few ops whose blocks come from Redis. */
static struct part *find_part(const struct ops *all, const struct op *q, uint32_t at)
{
	for (uint32_t i = 0; i < all->n_parts; i++)
		if (all->part_pool[i].op == q && all->part_pool[i].at == at)
			return &all->part_pool[i];
	return NULL;
}

bool op_part_runs(const struct op *q, uint32_t at)
{
	return find_part(q->d->ops, q, at) != NULL;
}

struct part *op_part_done(struct part *part)
{
	struct op *q = part->op;
	struct ops *all = q->d->ops;
	struct part *turn = NULL;

	if (q->sqe.op == WIRE_OP_STORE) {
		assert(q->parts == part);
		q->parts = part->next;
		if (!q->parts)
			q->parts_end = &q->parts;
		turn = q->parts;
	} else if (q->n_waiting > 0)
		turn = find_part(all, q, part->at + 1);
	settle(q, part->at, part->status);
	share_part_ended(q->d, part);
	op_look_again(all);
	part->op = NULL;
	part->next = all->free_parts;
	all->free_parts = part;
	return turn && turn->waiting_turn ? turn : NULL;
}

/* Its pages are let go between two pieces. */
static void cancel_jobs(struct op *q)
{
	struct ops *all = q->d->ops;

	for (uint32_t i = 0; i < all->n_parts; i++)
		if (all->part_pool[i].op == q)
			device_cancel(&all->part_pool[i].job);
}

/* Blocks not yet begun, or waiting for NVMe, get their status now; those in flight as soon as their jobs have ended. */
static void end_early(struct op *q, int status)
{
	q->ending = true;
	q->early = status;
	op_look_again(q->d->ops);	/* it may stand in the queue */
	while (q->next_block < q->sqe.n)
		settle(q, q->next_block++, status);
	fetch_end_early(q, status);
	cancel_jobs(q);
	q->ending = false;
	op_finish_if_settled(q);
}

static void on_deadline(struct loop_timer *timer)
{
	struct op *q = container_of(timer, struct op, deadline);

	stats_add(&q->d->stats->v.ops_timed_out_total, 1);
	end_early(q, -ETIMEDOUT);
}

/* --- completion --- */

/* What it has claimed of its client's arena. */
static uint32_t slots_of(const struct wire_sqe *sqe)
{
	return sqe->n + ((sqe->flags & WIRE_SQE_HAS_PARENT) ? 1u : 0u);
}

/* Misses are quick and say nothing of how long a load takes. */
static void count_time(struct stats *stats, uint16_t op, const struct wire_cqe *cqe)
{
	if (cqe->ok > 0 && op == WIRE_OP_LOAD)
		histogram_add(&stats->load_times, loop_clock() - cqe->submit_ns);
	if (cqe->ok > 0 && op == WIRE_OP_STORE)
		histogram_add(&stats->store_times, loop_clock() - cqe->submit_ns);
}

static void complete(struct op *q)
{
	struct wire_cqe cqe = {
		.op_id = q->sqe.op_id, .n = q->sqe.n, .first = q->sqe.first,
		.submit_ns = q->submit_ns, .done_ns = loop_now(q->d->loop),
	};

	for (uint32_t i = 0; i < q->sqe.n; i++) {
		const int32_t status = ring_status(&q->conn->ring, q->sqe.first + i);

		if (status < 0 && cqe.status == 0)
			cqe.status = status;
		if (status >= 0)
			cqe.ok++;
		if (status >= 0 && cqe.prefix == i)
			cqe.prefix = i + 1;
	}
	count_time(q->d->stats, q->sqe.op, &cqe);
	if (ring_complete(&q->conn->ring, &cqe))
		conn_wake(q->conn);
}

/* A block that nobody built on and nobody uses; being written to NVMe is no use. One that is gone (purged, damaged) is
 * none, and what came before it is not known any more. */
static bool undoable(const struct kvtierd *d, uint32_t block)
{
	return blocks_live(d->blocks, block) && blocks_leaf(d->blocks, block) &&
	       blocks_pins(d->blocks, block) == writeback_holds(d, block) + (uint32_t)outbox_holds(d, block);
}

/* A client that died before its store completed leaves nothing of it: the blocks this op committed go
 * again, newest first, as long as nobody else has built on them. */
static void undo(struct op *q)
{
	struct kvtierd *d = q->d;
	uint32_t block = q->tail.block;

	if (!q->tail.held)
		return;
	lease_drop(d, &q->tail);
	for (; q->fresh > 0 && undoable(d, block); q->fresh--) {
		const uint32_t parent = blocks_parent(d->blocks, block);

		copies_condemn(d, block);
		block = parent;
	}
}

void op_finish_if_settled(struct op *q)
{
	struct ops *all = q->d->ops;

	if (q->queued || q->ending || q->settled < q->sqe.n)
		return;
	assert(!q->parts);
	loop_timer_unset(q->d->loop, &q->deadline);
	if (!q->abandoned)
		complete(q);
	else if (q->sqe.op == WIRE_OP_STORE)
		undo(q);
	lease_drop(q->d, &q->tail);
	*q->link = q->next;
	if (q->next)
		q->next->link = q->link;
	q->conn->n_ops--;
	share_op_ended(q->d, q);
	q->conn->arena_claimed -= slots_of(&q->sqe);
	q->mount->ops--;
	all->outstanding--;
	stats_set(&q->d->stats->v.ops_outstanding, all->outstanding);
	q->next = all->free_ops;
	all->free_ops = q;
}

/* --- beginning blocks --- */

/* A store's chain begins under its parent, or not at all; what a load brings from elsewhere is kept only
 * there. Taken with its first block: what waits for its turn pins nothing. */
static void take_parent(struct kvtierd *d, struct op *q)
{
	uint32_t parent;

	ring_key(&q->conn->ring, q->sqe.first + q->sqe.n, q->last_key);
	if (q->sqe.op != WIRE_OP_STORE)
		return;
	parent = blocks_find(d->blocks, q->last_key, q->mount->space->number);
	if (parent == BLOCK_NONE) {
		q->chain_error = -ENOENT;
		return;
	}
	lease_take(d, &q->tail, parent);
	copies_touch(d, parent, q->tick);
}

static void begin_next_block(struct ops *all, struct op *q)
{
	struct part *part = all->free_parts;
	const uint32_t slot = q->sqe.first + q->next_block;

	if (!q->begun && (q->sqe.flags & WIRE_SQE_HAS_PARENT))
		take_parent(q->d, q);
	all->free_parts = part->next;
	memset(part, 0, sizeof *part);
	part->op = q;
	share_part_begun(q->d, part);
	part->at = q->next_block++;
	part->job.layout = &q->mount->layout;
	part->job.page = ring_page(&q->conn->ring, slot);
	memcpy(part->job.identity.space_id, q->mount->space->id, sizeof q->mount->space->id);
	ring_key(&q->conn->ring, slot, part->job.identity.key);
	memcpy(part->before, q->last_key, sizeof part->before);
	memcpy(q->last_key, part->job.identity.key, sizeof q->last_key);
	part->job.given_up = ring_given_up_word(&q->conn->ring);
	part->step = LOAD_LOOKUP;
	if (q->sqe.op == WIRE_OP_STORE) {
		part->step = STORE_ADMIT;
		*q->parts_end = part;
		q->parts_end = &part->next;
	}
	part_run(part);
}

static void enqueue(struct ops *all, struct op *q)
{
	struct conn *c = q->conn;

	q->queue_next = NULL;
	q->queued = true;
	all->n_queued++;
	c->n_queued++;
	if (c->queue) {
		*c->queue_end = q;
		c->queue_end = &q->queue_next;
		return;
	}
	c->queue = q;
	c->queue_end = &q->queue_next;
	c->queue_next = NULL;
	*all->queue_end = c;
	all->queue_end = &c->queue_next;
}

/* The first op of the first client; the client goes to the end if it has more. */
static struct op *dequeue(struct ops *all)
{
	struct conn *c = all->queue;
	struct op *q = c->queue;

	all->queue = c->queue_next;
	if (!all->queue)
		all->queue_end = &all->queue;
	c->queue = q->queue_next;
	q->queued = false;
	all->n_queued--;
	c->n_queued--;
	if (c->queue) {
		c->queue_next = NULL;
		*all->queue_end = c;
		all->queue_end = &c->queue_next;
	}
	return q;
}

static bool moved_much(const struct mover_counts *now, const struct mover_counts *before)
{
	return now->moved_bytes - before->moved_bytes >= PUMP_MOVED_BYTES ||
	       now->evicted_blocks - before->evicted_blocks >= PUMP_EVICTED;
}

/* The client goes to the end; all its ops were passed over, unless they were in this round. */
static void pass_client(struct ops *all)
{
	struct conn *c = all->queue;

	if (c->passed_round != all->round)
		all->n_passed += c->n_queued;
	c->passed_round = all->round;
	if (!c->queue_next)
		return;
	all->queue = c->queue_next;
	c->queue_next = NULL;
	*all->queue_end = c;
	all->queue_end = &c->queue_next;
}

/* An op that was ended early has nothing to wait for. */
static bool must_wait(const struct op *q)
{
	return q->next_block < q->sqe.n && (share_of_memory_is_used(q->d, q) || fetch_must_wait(q));
}

/* Takes the next op in turn, and begins its next block if that may be. */
static void pump_one(struct ops *all)
{
	struct op *q;

	if (share_of_parts_is_used(all->d, all->queue)) {
		pass_client(all);
		return;
	}
	q = dequeue(all);
	if (must_wait(q)) {
		enqueue(all, q);
		all->n_passed += q->passed_round != all->round;
		q->passed_round = all->round;
		return;
	}
	op_look_again(all);
	if (q->next_block + 1 < q->sqe.n)
		enqueue(all, q);
	if (q->next_block < q->sqe.n)
		begin_next_block(all, q);
	else
		op_finish_if_settled(q);	/* it was ended early while it stood in the queue */
}

/* Begins blocks of queued requests in turn, while there are parts for them. Those that must wait are passed over, until
 * all were: then nothing can be begun before a part or a fetch ends. */
static bool pump(struct loop_poller *poller)
{
	struct ops *all = container_of(poller, struct ops, poller);
	const struct mover_counts before = all->d->moved;
	uint32_t budget = PUMP_BUDGET;
	bool worked = fetch_retry(all);

	worked |= remote_retry(all);
	while (all->n_passed < all->n_queued && all->free_parts && budget-- > 0 && !moved_much(&all->d->moved, &before)) {
		pump_one(all);
		worked = true;
	}
	devices_kick(&all->d->devices);		/* the loop asks its pollers once more before it sleeps */
	return worked;
}

/* --- starting and ending ops --- */

static int violation(char *text, size_t n, const char *field, unsigned long long value, const char *why)
{
	snprintf(text, n, "sqe.%s %llu %s", field, value, why);
	return -EPROTO;
}

static struct op *find(const struct conn *conn, uint64_t op_id)
{
	for (struct op *q = conn->ops; q; q = q->next)
		if (q->sqe.op_id == op_id)
			return q;
	return NULL;
}

static void start_nop(struct kvtierd *d, struct conn *conn, const struct wire_sqe *sqe)
{
	const struct wire_cqe cqe = {
		.op_id = sqe->op_id, .submit_ns = loop_now(d->loop), .done_ns = loop_now(d->loop),
	};

	if (ring_complete(&conn->ring, &cqe))
		conn_wake(conn);
}

static void cancel(struct kvtierd *d, struct op *q)
{
	stats_add(&d->stats->v.ops_canceled_total, 1);
	end_early(q, -ECANCELED);
}

static void start_op(struct kvtierd *d, struct conn *conn, struct mount *mount, const struct wire_sqe *sqe)
{
	struct ops *all = d->ops;
	struct op *q = all->free_ops;
	const uint64_t latest = loop_now(d->loop) + MAX_DEADLINE_S * 1000000000ull;

	all->free_ops = q->next;
	*q = (struct op){
		.d = d, .conn = conn, .mount = mount, .sqe = *sqe, .tick = ++d->tick,
		.submit_ns = loop_now(d->loop), .deadline.fire = on_deadline, .remote_end = sqe->n,
	};
	q->parts_end = &q->parts;
	q->next = conn->ops;
	q->link = &conn->ops;
	if (q->next)
		q->next->link = &q->next;
	conn->ops = q;
	conn->n_ops++;
	share_op_started(d, conn);
	conn->arena_claimed += slots_of(sqe);
	mount->ops++;
	all->outstanding++;
	stats_set(&d->stats->v.ops_outstanding, all->outstanding);
	loop_timer_set(d->loop, &q->deadline, sqe->deadline_ns < latest ? sqe->deadline_ns : latest);
	op_look_again(all);
	enqueue(all, q);
}

int op_start(struct kvtierd *d, struct conn *conn, const struct wire_sqe *sqe, char *text, size_t n)
{
	struct mount *mount;

	if (sqe->op == WIRE_OP_NOP) {
		start_nop(d, conn, sqe);
		return 0;
	}
	if (sqe->op == WIRE_OP_CANCEL) {
		struct op *q = find(conn, sqe->target);

		if (q)
			cancel(d, q);	/* else it has completed: nothing to do */
		return 0;
	}
	mount = conn->mounts[sqe->space];
	if (!mount || mount->closing)
		return violation(text, n, "space", sqe->space, "is not open on this connection");
	if (find(conn, sqe->op_id))
		return violation(text, n, "op_id", sqe->op_id, "is in use by an outstanding op");
	/* Slots that overlap would be work without limit: each op walks all of its own when it ends early. */
	if (slots_of(sqe) > conn->ring.arena_blocks - conn->arena_claimed)
		return violation(text, n, "n", sqe->n, "is more than the arena slots that no outstanding op uses");
	assert(ops_room(d->ops));
	start_op(d, conn, mount, sqe);
	return 0;
}

/* The first that was not yet told. Ending one op can finish another, which waited for a block that the first read: so
 * nobody may hold on to a next one. */
static struct op *first_untold(const struct conn *conn, const struct mount *mount)
{
	struct op *q = conn->ops;

	while (q && (q->told || (mount && q->mount != mount)))
		q = q->next;
	return q;
}

void ops_cancel_mount(struct kvtierd *d, struct conn *conn, const struct mount *mount)
{
	struct op *q;

	while ((q = first_untold(conn, mount)) != NULL) {
		q->told = true;
		cancel(d, q);
	}
}

void ops_abandon(struct kvtierd *d, struct conn *conn)
{
	for (struct op *q = conn->ops; q; q = q->next) {
		q->abandoned = true;
		q->told = false;	/* its space may have been closed before */
	}
	ops_cancel_mount(d, conn, NULL);
}
