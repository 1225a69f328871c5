/* SPDX-License-Identifier: Apache-2.0 */
/*
 * progress.c - how far an op is, in groups of its layers: callers and streams that wait for it, and
 * stores whose groups are given one after the other.
 *
 *	load	the daemon raises layers[] of the ring, where turn.c looks, and the word that
 *		streams wait for. Streams wait for no op that this process itself has to carry on:
 *		its copies and kernels may stand behind them in a queue of the GPU, and its threads
 *		in a call that waits for the whole context
 *	store	of shared pages: by an entry LAYERS, or, on a GPU whose words the daemon knows, by
 *		the word given[], which a stream may write
 *		of staged pages: the library waits until all are given (chunk.c)
 */
#include <errno.h>

#include "check.h"
#include "client.h"
#include "cuda_order.h"
#include "error.h"
#include "op.h"
#include "ring.h"
#include "space.h"
#include "turn.h"

/* ---- loads ---- */

static int group_check(uint32_t group)
{
	return group < KVTIER_MAX_LAYER_GROUPS ?
		       0 :
		       error_set(-EINVAL, "group is %u, must be less than %d", group,
				 KVTIER_MAX_LAYER_GROUPS);
}

int kvtier_wait_layers(struct kvtier_client *c, uint64_t id, uint32_t group, int timeout_ms)
{
	int rc = client_check(c);

	if (!rc)
		rc = group_check(group);
	return rc ? rc : op_await_groups(c, id, group + 1, op_limit(c, id, timeout_ms));
}

/* groups 0: until the op has ended. */
static int stream_wait(struct kvtier_client *c, uint64_t id, uint32_t groups, void *stream)
{
	struct cuda_order *o = NULL;
	bool runs, staged;
	int rc = client_check(c);

	if (rc)
		return rc;
	(void)pthread_mutex_lock(&c->ring);
	(void)ops_turn(c);
	const struct op *op = op_find(c, id);

	runs = op && op->state == OP_RUNNING;
	staged = op && op->staged;
	if (op)
		o = op->order;
	if (!op)
		rc = error_set(-ENOENT, "no op %llu: never submitted here, or its result was taken",
			       (unsigned long long)id);
	else if (groups > 0 && (op->hints.op != WIRE_OP_LOAD || groups > op->hints.groups))
		rc = error_set(-EINVAL, "group is %u: op %llu is %s with options.layer_groups %u",
			       groups - 1, (unsigned long long)id,
			       op->hints.op == WIRE_OP_LOAD ? "a load" : "no load",
			       op->hints.groups);
	ops_unlock(c);
	if (rc || !runs)
		return rc; /* the op is done: work that is launched now finds its bytes */
	if (staged && o)
		return error_set(
			-EOPNOTSUPP,
			"op %llu: in engine mode and with staged pages this client's calls end it, "
			"which a stream that waits may stop for ever: use %s()",
			(unsigned long long)id, groups ? "kvtier_wait_layers" : "kvtier_wait");
	return cuda_order_wait(o, id, groups, stream);
}

int kvtier_stream_wait(struct kvtier_client *c, uint64_t id, void *stream)
{
	return stream_wait(c, id, 0, stream);
}

int kvtier_stream_wait_layers(struct kvtier_client *c, uint64_t id, uint32_t group, void *stream)
{
	const int rc = group_check(group);

	return rc ? rc : stream_wait(c, id, group + 1, stream);
}

/* ---- stores ---- */

static int store_check(const struct op *op, uint32_t groups, const void *stream)
{
	if (op->hints.op != WIRE_OP_STORE || groups == 0 || groups > op->hints.groups)
		return error_set(
			-EINVAL,
			"groups is %u: must be 1 to options.layer_groups of a store, which "
			"for op %llu is %u",
			groups, (unsigned long long)op->id,
			op->hints.op == WIRE_OP_STORE ? op->hints.groups : 0);
	if (stream && !op->order)
		return error_set(-EINVAL, "stream is set, but the op's pages are not KVTIER_CUDA");
	if (stream && !op->gives && !op->staged)
		return error_set(-EOPNOTSUPP,
				 "stream: the daemon cannot wait for this GPU's streams; "
				 "synchronize the stream, and give NULL");
	return 0;
}

/* To the daemon, by an entry of its own. */
static int push_given(struct kvtier_client *c, struct op *op, uint32_t groups)
{
	struct link *link = atomic_load(&c->link);
	const struct wire_sqe sqe = {
		.op = WIRE_OP_LAYERS,
		.space = (uint16_t)op->space->handle,
		.op_id = op_next_id(c, op),
		.target = op->wire_id,
		.n = groups,
	};
	const int rc = ring_push(link, &sqe);

	if (rc == -EPROTO)
		c->lied = true;
	if (rc)
		return error_set(rc, "the submission ring is full: call again");
	c->doorbell |= ring_asleep(link);
	return 0;
}

/* Of an op that runs. 1: a word has to be written, which may block. Ring held. */
static int give(struct kvtier_client *c, struct op *op, uint32_t groups, const void *stream)
{
	int rc = 0;

	if (op->gives || stream)
		return 1;
	if (groups <= op->given)
		return 0;
	if (!op->staged)
		rc = push_given(c, op, groups);
	if (rc)
		return rc;
	op->given = groups;
	if (op->staged)
		(void)ops_turn(c);
	return 0;
}

int kvtier_store_layers(struct kvtier_client *c, uint64_t id, uint32_t groups, void *stream)
{
	struct cuda_order *o = NULL;
	struct op *op;
	int rc = client_check(c);

	if (rc)
		return rc;
	(void)pthread_mutex_lock(&c->ring);
	(void)ops_turn(c);
	op = op_find(c, id);
	if (op)
		o = op->order;
	rc = op ? store_check(op, groups, stream) :
		  error_set(-ENOENT, "no op %llu: never submitted here, or its result was taken",
			    (unsigned long long)id);
	if (!rc && op->state == OP_RUNNING)
		rc = give(c, op, groups, stream);
	ops_unlock(c);
	return rc == 1 ? cuda_order_give(o, id, groups, stream) : rc;
}
