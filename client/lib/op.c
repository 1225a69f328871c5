/* SPDX-License-Identifier: Apache-2.0 */
/* op.c - see op.h. */
#include "op.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client.h"
#include "cuda_order.h"
#include "error.h"
#include "lent.h"
#include "ring.h"
#include "space.h"
#include "staged.h"

/* A staged op's copies: its keys, its parent's key, its pages. */
enum {
	STAGED_KEYS_BYTES = (KVTIER_MAX_BLOCKS + 1) * sizeof(struct kvtier_key),
	STAGED_COPY_BYTES = STAGED_KEYS_BYTES + KVTIER_MAX_BLOCKS * sizeof(uint32_t),
};

/* Address space now, memory only as it is touched: slots are reused last in, first out. */
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
	op->grave = 0;
	op->kernel = false;
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

bool op_lends(const struct op *op)
{
	return op->state == OP_RUNNING && op->wire_id && !op->staged && op_has_pages(op->hints.op);
}

struct op *op_at(struct kvtier_client *c, uint64_t id)
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
		cuda_order_done(op->order, op);
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

void op_take(struct kvtier_client *c, struct op *op, struct kvtier_result *ret)
{
	struct kvtier_result r = { 0 };

	assert(op->state == OP_DONE);
	if (ret) {
		const size_t size = ret->size < sizeof(r) ? ret->size : sizeof(r);

		memcpy(&r, ret, size);
		r.status = op->status;
		r.op = op->id;
		r.n = op->n;
		r.ok = op->ok;
		r.prefix = op->prefix;
		r.lent = lent_op(op->grave, op->id);
		memcpy(r.answers, op->answers, sizeof(r.answers));
		if (r.blocks)
			memcpy(r.blocks, op->blocks,
			       (r.blocks_max < op->n ? r.blocks_max : op->n) *
				       sizeof(op->blocks[0]));
		memcpy(ret, &r, size);
	}
	op_drop(c, op);
}

bool ops_bury(struct kvtier_client *c, struct link *link, uint32_t sq_head)
{
	struct grave *grave = link->grave;
	uint64_t serial = 0;
	uint32_t n = 0;

	link->grave = NULL;
	for (size_t i = 0; i < KVTIER_MAX_OPS; i++) {
		struct op *op = &c->ops[i];

		if (op_lends(op) && (int32_t)(sq_head - op->sq_at) > 0) {
			grave_add(grave, op->space->lent, op->id, &link->pages[op->first],
				  op->chunk);
			n++;
		}
	}
	if (n > 0)
		serial = grave_bury(grave, c->fd);
	else
		grave_close(grave);
	for (size_t i = 0; i < KVTIER_MAX_OPS && serial; i++)
		if (op_lends(&c->ops[i]))
			c->ops[i].grave = serial;
	return n > 0;
}

/* No op may end while kernels of ours have its pages. */
static void kernel_await(struct op *op)
{
	if (op->kernel)
		(void)staged_copied(op->space->staged);
	op->kernel = false;
}

void ops_fail(struct kvtier_client *c, int32_t status)
{
	/* First the ops that streams wait for: kernels may stand behind these streams. */
	for (int kernels = 0; kernels < 2; kernels++)
		for (size_t i = 0; i < KVTIER_MAX_OPS; i++)
			if (c->ops[i].state == OP_RUNNING && (kernels || !c->ops[i].kernel)) {
				kernel_await(&c->ops[i]);
				op_finish(c, &c->ops[i], status);
			}
	c->lied = false;
}
