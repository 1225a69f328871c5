/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client_op.c - the ops of a client, on their way from a slot of the table over the wire to their
 * result (states: client_op.h). The library has no thread, so the engine's calls carry them on.
 * Nothing is allocated here. The ring lock is held.
 *
 * An op over shared pages has one entry on the wire. An op over staged pages has one for each
 * chunk, of as many pages as the staging memory has free, and ops_poll() begins the next chunk.
 */
#include "client_op.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client.h"
#include "base/clock.h"
#include "client/lib/base/client_ring.h"
#include "client/lib/base/last_error.h"
#include "client/lib/base/lent.h"
#include "client/lib/base/pages.h"
#include "client/lib/memory/cuda_order.h"
#include "client_space.h"
#include "client/lib/memory/staged.h"

/* ---- the table ---- */

/* What a staged op keeps copies of: its keys, its parent's key, its pages. */
enum {
	STAGED_KEYS_BYTES = (KVTIER_MAX_BLOCKS + 1) * sizeof(struct kvtier_key),
	STAGED_COPY_BYTES = STAGED_KEYS_BYTES + KVTIER_MAX_BLOCKS * sizeof(uint32_t),
};

/* Reserves address space. It becomes memory as it is touched, and slots are reused last in, first
 * out. */
static void *reserve(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

int ops_open(struct kvtier_client *c)
{
	TAILQ_INIT(&c->done);
	c->statuses = reserve(sizeof(int32_t) * KVTIER_MAX_BLOCKS * KVTIER_MAX_OPS);
	if (!c->statuses)
		return error_set(-ENOMEM, "out of address space");
	for (uint32_t i = 0; i < KVTIER_MAX_OPS; i++) {
		c->ops[i].blocks = c->statuses + (size_t)i * KVTIER_MAX_BLOCKS;
		c->free_slots[i] = (uint16_t)(KVTIER_MAX_OPS - 1 - i);
	}
	c->n_free = KVTIER_MAX_OPS;
	return 0;
}

void ops_close(struct kvtier_client *c)
{
	if (c->statuses)
		(void)munmap(c->statuses, sizeof(int32_t) * KVTIER_MAX_BLOCKS * KVTIER_MAX_OPS);
	if (c->staged_copies)
		(void)munmap(c->staged_copies, (size_t)STAGED_COPY_BYTES * KVTIER_MAX_OPS);
}

int ops_stage_copies(struct kvtier_client *c)
{
	uint8_t *copies;

	if (c->staged_copies)
		return 0;
	copies = reserve((size_t)STAGED_COPY_BYTES * KVTIER_MAX_OPS);
	if (!copies)
		return error_set(-ENOMEM, "out of address space for staged ops");
	(void)pthread_mutex_lock(&c->ring);
	c->staged_copies = copies;
	for (size_t i = 0; i < KVTIER_MAX_OPS; i++) {
		c->ops[i].keys = (struct kvtier_key *)(void *)(copies + i * STAGED_COPY_BYTES);
		c->ops[i].pages =
			(uint32_t *)(void *)(copies + i * STAGED_COPY_BYTES + STAGED_KEYS_BYTES);
	}
	(void)pthread_mutex_unlock(&c->ring);
	return 0;
}

void ops_event(struct kvtier_client *c)
{
	const uint64_t one = 1;

	if (!c->event_used || c->event_set)
		return;
	c->event_set = write(c->event_fd, &one, sizeof(one)) == sizeof(one);
}

int op_new(struct kvtier_client *c, struct kvtier_space *space, struct op **ret)
{
	struct op *op;

	if (!c->n_free)
		return error_set(-EAGAIN, "%d ops are outstanding: take results first",
				 KVTIER_MAX_OPS);
	op = &c->ops[c->free_slots[--c->n_free]];
	assert(op->state == OP_FREE);
	op->space = space;
	op->wire_id = op->cancelled_id = 0;
	op->orphan = 0;
	op->cancel = op->staged = op->has_parent = op->ordered = op->reached = op->gives = false;
	op->given = 0;
	op->order = space->order;
	op->chunk = op->chunk_done = 0;
	memset(op->answers, 0, sizeof(op->answers));
	op->state = OP_RUNNING;
	op->id = op_next_id(c, op);
	*ret = op;
	return 0;
}

uint64_t op_next_id(struct kvtier_client *c, const struct op *op)
{
	return ++c->op_serial << 8 | (uint64_t)(op - c->ops);
}

bool op_has_pages(uint8_t kind)
{
	return kind == WIRE_OP_STORE || kind == WIRE_OP_LOAD;
}

/* Whether the op is on the wire, with pages that the daemon itself touches. */
static bool op_lends(const struct op *op)
{
	return op->state == OP_RUNNING && op->wire_id && !op->staged && op_has_pages(op->hints.op);
}

/* The slot of this id, whatever is in it. */
static struct op *op_at(struct kvtier_client *c, uint64_t id)
{
	static_assert(KVTIER_MAX_OPS == 256, "a slot is the low byte of an id");
	return &c->ops[id & 255];
}

struct op *op_find(struct kvtier_client *c, uint64_t id)
{
	struct op *op = op_at(c, id);

	return op->state != OP_FREE && op->id == id ? op : NULL;
}

void op_finish(struct kvtier_client *c, struct op *op, int32_t rest)
{
	assert(op->state == OP_RUNNING);
	for (uint32_t i = op->chunk_done; i < op->n; i++)
		op->blocks[i] = rest;
	op->status = 0;
	op->ok = op->prefix = 0;
	for (uint32_t i = 0; i < op->n; i++) {
		if (op->blocks[i] >= 0)
			op->ok++;
		else if (!op->status)
			op->status = op->blocks[i];
		if (op->ok == i + 1)
			op->prefix = op->ok;
	}
	if (op->staged)
		c->staged_running--;
	if (op->order)
		cuda_order_done(op->order, op->id, op->hints.groups > 0);
	op->wire_id = 0;
	op->state = OP_DONE;
	TAILQ_INSERT_TAIL(&c->done, op, done_link);
	ops_event(c);
}

void op_drop(struct kvtier_client *c, struct op *op)
{
	if (op->state == OP_DONE)
		TAILQ_REMOVE(&c->done, op, done_link);
	else if (op->staged)
		c->staged_running--;
	op->state = OP_FREE;
	op->space = NULL;
	c->free_slots[c->n_free++] = (uint16_t)(op - c->ops);
}

static void result_write(const struct op *op, struct kvtier_result *ret)
{
	const uint32_t n = ret->blocks_max < op->n ? ret->blocks_max : op->n;

	ret->status = op->status;
	ret->op = op->id;
	ret->user = op->user;
	ret->n = op->n;
	ret->ok = op->ok;
	ret->prefix = op->prefix;
	ret->lent = op->orphan ? lent_op(op->orphan, op->id) : 0;
	memcpy(ret->answers, op->answers, sizeof(ret->answers));
	if (ret->blocks)
		memcpy(ret->blocks, op->blocks, n * sizeof(op->blocks[0]));
}

void op_take(struct kvtier_client *c, struct op *op, struct kvtier_result *ret, uint32_t size)
{
	assert(op->state == OP_DONE);
	if (ret && size < sizeof(*ret)) { /* an older program's */
		struct kvtier_result all = { 0 };

		memcpy(&all, ret, size);
		result_write(op, &all);
		memcpy(ret, &all, size);
	} else if (ret) {
		ret->size = size;
		result_write(op, ret);
	}
	op_drop(c, op);
}

/* ---- blocks of an op on the wire ---- */

int op_push(struct kvtier_client *c, struct op *op, const struct kvtier_key *keys,
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
	sqe.op_id = op->staged ? op_next_id(c, op) : op->id;
	if (op->staged)
		sqe.groups = 0; /* a chunk is done as a whole */
	else if (op->order)
		cuda_order_entry(op->order, op->ordered, &sqe);
	op->gives = sqe.flags & WIRE_SQE_GIVEN;
	sqe.space = (uint16_t)op->space->handle;
	sqe.n = n;
	sqe.first = range.first;
	/* rather too late than too early: its caller would see no reason for that */
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
	const uint64_t pages = op->space->staged->user_pages;
	uint32_t end;

	while (op->chunk_done < op->n && op->pages[op->chunk_done] >= pages)
		op->blocks[op->chunk_done++] = -EFAULT;
	end = op->chunk_done;
	while (end < op->n && op->pages[end] < pages)
		end++;
	return end - op->chunk_done;
}

/* Whether it is a store whose groups its engine gives: staged, it waits until all are given. */
static bool needs_groups(const struct op *op)
{
	return op->hints.op == WIRE_OP_STORE && op->hints.groups > 0;
}

/* Whether the op's pages may be touched now. */
static bool staged_ready(struct op *op)
{
	if (!op->reached)
		op->reached =
			(!op->ordered || cuda_order_reached(op->order, op->id)) &&
			(!needs_groups(op) || op->given == op->hints.groups ||
			 (op->order && cuda_order_all_given(op->order, op->id, op->hints.groups)));
	return op->reached;
}

static int staged_fill(const struct op *op, const struct range *range)
{
	struct staged *staged = op->space->staged;
	int rc = 0, waited;

	staged_populate(staged, range->first + range->n);
	for (uint32_t i = 0; i < range->n && !rc && op->hints.op == WIRE_OP_STORE; i++)
		rc = staged_copy(staged, op->pages[op->chunk_done + i], range->first + i, false);
	waited = staged_copied(staged); /* after a copy that failed, too: others are under way */
	return rc ? rc : waited;
}

/* Puts the op's range of staging pages on the wire. */
static int staged_push(struct kvtier_client *c, struct op *op, uint32_t n)
{
	const struct kvtier_key *parent = op->has_parent ? &op->keys[KVTIER_MAX_BLOCKS] : NULL;

	if (op->chunk_done)
		parent = &op->keys[op->chunk_done - 1];
	return op_push(c, op, &op->keys[op->chunk_done], parent, NULL, op->stage_first, n);
}

/* A chunk has ended. So has the op, or its next chunk is due. */
static void advance(struct kvtier_client *c, struct op *op)
{
	op->chunk_done += op->chunk;
	if (op->chunk_done == op->n || op->cancel)
		op_finish(c, op, -ECANCELED);
}

int op_stage(struct kvtier_client *c, struct op *op, uint64_t now)
{
	const struct link *link = atomic_load(&c->link);
	struct staged *staged = op->space->staged;
	uint32_t most = staged_run(op);
	struct range range;
	int rc;

	if (op->cancel || now >= op->deadline_ns || !most) {
		op_finish(c, op, op->cancel ? -ECANCELED : -ETIMEDOUT);
		return 0;
	}
	if (!staged_ready(op))
		return -EAGAIN;
	if (most > link->arena_blocks - 1)
		most = link->arena_blocks - 1;
	if (link->in_flight == link->cq_entries || arena_take(&staged->arena, 1, most, &range))
		return -EAGAIN;
	op->stage_first = range.first;
	rc = staged_fill(op, &range);
	if (rc) {
		arena_give(&staged->arena, range.first);
		op_finish(c, op, rc);
		return 0;
	}
	rc = staged_push(c, op, range.n);
	if (rc)
		arena_give(&staged->arena, range.first);
	return rc;
}

/* Brings a load's pages from the staging memory to the engine. */
static int bring(const struct op *op)
{
	struct staged *staged = op->space->staged;
	int rc = 0, waited;

	for (uint32_t i = 0; i < op->chunk && !rc && op->hints.op == WIRE_OP_LOAD; i++)
		if (op->blocks[op->chunk_done + i] >= 0)
			rc = staged_copy(staged, op->pages[op->chunk_done + i], op->stage_first + i,
					 true);
	waited = staged_copied(staged);
	return rc ? rc : waited;
}

/* A chunk's statuses are in op->blocks. The chunk ends when its pages are where they belong. */
static void chunk_done(struct kvtier_client *c, struct op *op)
{
	const int rc = bring(op);

	arena_give(&op->space->staged->arena, op->stage_first);
	for (uint32_t i = 0; i < op->chunk && rc; i++)
		if (op->blocks[op->chunk_done + i] >= 0)
			op->blocks[op->chunk_done + i] = rc;
	advance(c, op);
}

/* ---- completions ---- */

/* The greatest status that a block of the op can have. */
static int32_t best_status(const struct op *op)
{
	if (op->hints.op == WIRE_OP_STORE)
		return KVTIER_BLOCK_PRESENT;
	return op->hints.op == WIRE_OP_HINT ? WIRE_HINT_DEFERRED : KVTIER_BLOCK_OK;
}

/* Applies one completion. It is believed only as far as it fits an op of ours. */
static int cqe_apply(struct kvtier_client *c, struct link *link, const struct wire_cqe *cqe)
{
	struct op *op = op_at(c, cqe->op_id);
	int32_t best;

	if (op->state != OP_RUNNING || !op->wire_id || op->wire_id != cqe->op_id ||
	    cqe->n != op->chunk || cqe->first != op->first)
		return -EPROTO;
	best = best_status(op);
	for (uint32_t i = 0; i < op->chunk; i++) {
		const int32_t status =
			__atomic_load_n(&link->statuses[op->first + i], __ATOMIC_RELAXED);

		if (status > best || status < -4095)
			return -EPROTO;
		op->blocks[op->chunk_done + i] = status;
		if (status == -EFAULT && !op->staged)
			populate_forget(op->space->populate, link->pages[op->first + i]);
	}
	if (op->hints.op == WIRE_OP_HINT)
		memcpy(op->answers, cqe->answers, sizeof(op->answers));
	arena_give(&link->arena, op->first);
	link->in_flight--;
	op->wire_id = 0;
	if (op->staged)
		chunk_done(c, op);
	else
		advance(c, op);
	return 0;
}

bool ops_wait_for_stream(const struct kvtier_client *c)
{
	bool wait = false;

	for (size_t i = 0; i < KVTIER_MAX_OPS && c->staged_running && !wait; i++)
		wait = c->ops[i].state == OP_RUNNING && c->ops[i].staged && c->ops[i].order &&
		       !c->ops[i].reached && (c->ops[i].ordered || needs_groups(&c->ops[i]));
	return wait;
}

static int staged_poll(struct kvtier_client *c)
{
	const uint64_t now = clock_ns();
	const uint32_t from = c->staged_next;

	for (uint32_t i = 0; i < KVTIER_MAX_OPS; i++) {
		const uint32_t slot = (from + i) % KVTIER_MAX_OPS;
		struct op *op = &c->ops[slot];
		int rc;

		if (op->state != OP_RUNNING || !op->staged || op->wire_id)
			continue;
		rc = op_stage(c, op, now);
		if (rc == -EPROTO)
			return rc;
		if (!rc)
			/* the op that got a chunk comes last the next time */
			c->staged_next = slot + 1;
	}
	return 0;
}

int ops_poll(struct kvtier_client *c)
{
	struct link *link = atomic_load(&c->link);
	struct wire_cqe cqe;
	int rc = 0;

	if (!link || c->lied)
		return 0;
	/* Each completion must name an op in flight, so this ends. */
	while (!rc && (rc = ring_next(link, &cqe)) == 1)
		rc = cqe_apply(c, link, &cqe);
	if (!rc && c->staged_running)
		rc = staged_poll(c);
	if (rc)
		c->lied = true;
	return rc;
}

/* ---- the connection ends ---- */

bool ops_orphan(struct kvtier_client *c, struct link *link, uint32_t sq_head)
{
	struct orphan *orphan = link->orphan;
	uint64_t serial = 0;
	uint32_t n = 0;

	link->orphan = NULL;
	for (size_t i = 0; i < KVTIER_MAX_OPS; i++) {
		struct op *op = &c->ops[i];

		if (op_lends(op) && (int32_t)(sq_head - op->sq_at) > 0) {
			orphan_add(orphan, op->space->lent, op->id, &link->pages[op->first],
				   op->chunk);
			n++;
		}
	}
	if (n > 0)
		serial = orphan_keep(orphan, c->fd);
	else
		orphan_close(orphan);
	for (size_t i = 0; i < KVTIER_MAX_OPS && serial; i++)
		if (op_lends(&c->ops[i]))
			c->ops[i].orphan = serial;
	return n > 0;
}

void ops_fail(struct kvtier_client *c, int32_t status)
{
	for (size_t i = 0; i < KVTIER_MAX_OPS; i++)
		if (c->ops[i].state == OP_RUNNING)
			op_finish(c, &c->ops[i], status);
	c->lied = false;
}
