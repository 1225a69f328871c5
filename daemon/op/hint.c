/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hint.c - see hint.h. Core thread only.
 *
 *	keys		APPLY a block each; to prefetch, on to LOOKUP
 *	a session	APPLY the next of its blocks, as often as it had blocks at the start; to
 *			prefetch one, on to LOOKUP with its key
 *	a revision	APPLY once
 */
#include "hint.h"

#include <errno.h>
#include <string.h>

#include "daemon/write/writeback.h"
#include "daemon/session/peer.h"
#include "daemon/table/block.h"
#include "daemon/move/hints.h"
#include "daemon/table/space.h"
#include "daemon/move/tables.h"
#include "part.h"

/* A status that only parts have: the hint does not mean this block of the session. The block is of
 * an earlier turn, is gone, or is of another space. */
enum { NOT_MEANT = 1000 };

void hint_begin(struct op *op)
{
	const struct wire_sqe *sqe = &op->sqe;
	const bool hint = sqe->op == WIRE_OP_HINT;

	op->hint = (struct op_hint){
		.fields = !hint &&
			  (sqe->session || sqe->ttl_s || sqe->priority || sqe->expected_back_s),
		.scope = sqe->scope,
		.hint = { .action = hint ? (enum wire_hint_action)sqe->action : WIRE_HINT_RETAIN,
			  .ttl_s = sqe->ttl_s,
			  .priority = sqe->priority,
			  .back_s = (uint32_t)sqe->expected_back_s,
			  .session = sqe->session,
			  .turn = sqe->turn,
			  .soft = !hint },
	};
	if (hint && sqe->action == WIRE_HINT_PREFETCH && sqe->scope != WIRE_HINT_REVISION)
		op->sqe.op = WIRE_OP_PREFETCH;
}

uint32_t hint_blocks(const struct op *op)
{
	uint32_t n = 1;

	if (op->hint.scope == WIRE_HINT_SESSION)
		n = hints_session_blocks(op->all->tables->hints, op->mount->space,
					 op->hint.hint.session);
	else if (op->hint.scope == WIRE_HINT_KEYS)
		n = op->sqe.n;
	return n > 0 ? n : 1;
}

bool hint_may_bring(const struct op *op)
{
	return op->hint.scope == WIRE_HINT_SESSION && op->sqe.op == WIRE_OP_PREFETCH;
}

/* --- one block --- */

enum wire_hint_answer hint_on_block(struct tables *tables, uint32_t block, const struct hint *hint)
{
	bool write = false;
	const enum wire_hint_answer answer = hints_block(tables->hints, block, hint, &write);

	if (write)
		writeback_add(tables->writeback, block);
	return answer;
}

static int status_of(enum wire_hint_answer answer)
{
	return answer == WIRE_HINT_REJECTED ? -EPERM :
	       answer == WIRE_HINT_MISSING  ? -ENOENT :
					      (int)answer;
}

static enum wire_hint_answer on_key(const struct part *part)
{
	const struct op *op = part->op;
	struct tables *tables = op->all->tables;
	const uint32_t block =
		blocks_find(tables->blocks, part->task.job.identity.key, op->mount->space->number);

	return block == BLOCK_NONE ? WIRE_HINT_MISSING :
				     hint_on_block(tables, block, &op->hint.hint);
}

/* --- APPLY --- */

/* A flight can only bring a block of the op's space. */
static enum step bring(struct part *part, uint32_t block)
{
	const struct blocks *blocks = part->task.all->tables->blocks;

	if (blocks_space(blocks, block) != part->op->mount->space->number) {
		part->status = NOT_MEANT;
		return DONE;
	}
	memcpy(part->task.job.identity.key, blocks_key(blocks, block), 32);
	return LOAD_LOOKUP;
}

static enum step on_session(struct part *part)
{
	const struct op *op = part->op;
	struct tables *tables = op->all->tables;
	const bool any =
		hints_session_blocks(tables->hints, op->mount->space, op->hint.hint.session) > 0;
	const uint32_t block = hints_session_next(tables->hints, op->mount->space, &op->hint.hint);

	if (block == BLOCK_NONE) {
		part->status = !any && op->total == 1 ? -ENOENT : NOT_MEANT;
		return DONE;
	}
	if (op->sqe.op == WIRE_OP_PREFETCH)
		return bring(part, block);
	part->status = status_of(hint_on_block(tables, block, &op->hint.hint));
	return DONE;
}

enum step hint_apply(struct task *task)
{
	struct part *part = task->part;
	const struct op *op = part->op;

	if (op->hint.scope == WIRE_HINT_SESSION)
		return on_session(part);
	if (op->sqe.op == WIRE_OP_PREFETCH)
		return LOAD_LOOKUP;
	if (op->hint.scope == WIRE_HINT_KEYS)
		part->status = status_of(on_key(part));
	else
		part->status =
			status_of(hints_revision(task->all->tables->hints,
						 op->mount->space->revision, op->hint.hint.action));
	return DONE;
}

/* --- answers --- */

int hint_status(struct op *op, int status)
{
	enum wire_hint_answer answer = (enum wire_hint_answer)status;

	if (status == -ENOSPC) /* of a prefetch */
		answer = WIRE_HINT_CLIPPED;
	else if (status == -EPERM)
		answer = WIRE_HINT_REJECTED;
	else if (status == -ENOENT)
		answer = WIRE_HINT_MISSING;
	else if (status < 0 || status > WIRE_HINT_DEFERRED)
		return status > 0 ? 0 : status; /* not meant, or the op ended before it */
	op->hint.answers[answer]++;
	hints_count(op->all->tables->hints, answer);
	return status_of(answer);
}

int hint_status_of_all(const struct op *op)
{
	const uint32_t *n = op->hint.answers;

	if (op->early)
		return op->early;
	if (n[WIRE_HINT_ACCEPTED] + n[WIRE_HINT_CLIPPED] + n[WIRE_HINT_DEFERRED] > 0)
		return 0;
	return n[WIRE_HINT_REJECTED] > 0 ? -EPERM : n[WIRE_HINT_MISSING] > 0 ? -ENOENT : 0;
}

static void hint_field(const struct op *op, const uint8_t key[32], bool fresh)
{
	struct tables *tables = op->all->tables;
	struct hint hint = op->hint.hint;
	const uint32_t block = blocks_find(tables->blocks, key, op->mount->space->number);

	hint.fresh = fresh;
	if (block != BLOCK_NONE) /* a block that a load got from Redis is not always kept */
		hints_count(tables->hints, hint_on_block(tables, block, &hint));
}

void hint_fields(const struct part *part)
{
	const struct op *op = part->op;
	const bool store = op->sqe.op == WIRE_OP_STORE, later = store && op->hint.hint.back_s > 0;

	/* A leaf that is expected late would make room for the next block of its own op: it has to
	 * have a child before. The op has used its parent, too. */
	if (op->hint.hint.back_s > 0 && (store || part->at == 0))
		hint_field(op, part->before, true);
	if (!later || part->at + 1 == op->sqe.n)
		hint_field(op, part->task.job.identity.key, store && part->status == 0);
}
