/* SPDX-License-Identifier: Apache-2.0 */
/*
 * submit.c - store, load, prefetch, hint, cancel: calls that make and end ops, with checked
 * arguments.
 */
#include "submit.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <time.h>

#include "check.h"
#include "chunk.h"
#include "client.h"
#include "clock.h"
#include "cuda_order.h"
#include "error.h"
#include "lent.h"
#include "op.h"
#include "populate.h"
#include "ring.h"
#include "session.h"
#include "space.h"
#include "turn.h"

/* A caller's request, checked. */
struct request {
	struct kvtier_space *space;
	enum wire_op kind;
	const struct kvtier_key *keys;
	const uint32_t *pages; /* NULL: prefetch */
	uint32_t n;
	struct kvtier_op_options options;
	uint8_t action, scope; /* of a hint, whose other fields are in options; else 0 */
	uint64_t deadline_ns;  /* counted from the call */
};

static int groups_check(const struct request *r)
{
	const uint32_t n = r->options.layer_groups;

	if (n > KVTIER_MAX_LAYER_GROUPS)
		return error_set(-EINVAL, "options.layer_groups is %u, must be at most %d", n,
				 KVTIER_MAX_LAYER_GROUPS);
	if (n > r->space->layout->geometry.layers)
		return error_set(-EINVAL,
				 "options.layer_groups is %u, must be at most the layers of the "
				 "space, %u",
				 n, r->space->layout->geometry.layers);
	return 0;
}

static int request_check(struct request *r, size_t n, const struct kvtier_op_options *options,
			 const uint64_t *ret_op)
{
	int rc;

	if (!r->space || !r->keys || !ret_op || (op_has_pages((uint8_t)r->kind) && !r->pages))
		return error_set(-EINVAL, "space, keys, pages and ret_op must not be NULL");
	if (!n || n > KVTIER_MAX_BLOCKS)
		return error_set(-EINVAL,
				 "n is %zu, must be in 1..%d; a longer prompt is several ops", n,
				 KVTIER_MAX_BLOCKS);
	r->n = (uint32_t)n;
	if (op_has_pages((uint8_t)r->kind) && !r->space->has_pages)
		return error_set(
			-EINVAL,
			"the space was opened without regions: it can look up and prefetch only");
	if (options) {
		rc = error_struct_in(&r->options, sizeof(r->options), options, "options");
		if (rc)
			return rc;
	}
	if (r->options.priority < -100 || r->options.priority > 100)
		return error_set(-EINVAL, "options.priority is %d, must be in -100..100",
				 r->options.priority);
	rc = groups_check(r);
	if (rc)
		return rc;
	if (r->options.cuda_stream && !r->space->cuda)
		return error_set(-EINVAL,
				 "options.cuda_stream is set, but the space's pages are not "
				 "KVTIER_CUDA");
	return 0;
}

static void op_fill(struct op *op, const struct request *r)
{
	op->n = r->n;
	op->deadline_ns = r->deadline_ns;
	op->hints = (struct wire_sqe){
		.op = (uint8_t)r->kind,
		.priority = r->options.priority,
		.session = r->options.session,
		.turn = r->options.turn,
		.ttl_s = r->options.ttl_s,
		.groups = (uint16_t)r->options.layer_groups,
		.action = r->action,
		.scope = r->scope,
	};
	if (r->kind == WIRE_OP_HINT)
		op->order = NULL; /* no page, so no stream waits for it */
}

/* A staged op outlives the call, chunk by chunk, and so needs copies. */
static int op_start_staged(struct kvtier_client *c, struct op *op, const struct request *r)
{
	int rc;

	op->staged = true;
	c->staged_running++;
	if (op->ordered)
		ops_event(c); /* a thread that sleeps on it has to look at the stream */
	memcpy(op->keys, r->keys, r->n * sizeof(*r->keys));
	memcpy(op->pages, r->pages, r->n * sizeof(*r->pages));
	op->has_parent = r->options.parent != NULL;
	if (op->has_parent)
		op->keys[KVTIER_MAX_BLOCKS] = *r->options.parent;
	rc = chunk_staged(c, op, client_now());
	return rc == -EAGAIN ? 0 : rc; /* the op's turn comes */
}

static int op_start(struct kvtier_client *c, struct op *op, const struct request *r)
{
	const struct link *link = atomic_load(&c->link);
	int rc;

	if (r->space->staged && op_has_pages((uint8_t)r->kind))
		return op_start_staged(c, op, r);
	if (r->n + (r->options.parent != NULL) > link->arena_blocks)
		return error_set(-EINVAL, "n is %u, this daemon takes at most %u blocks an op",
				 r->n, link->arena_blocks - (r->options.parent != NULL));
	for (int again = 1;; again--) {
		rc = chunk_push(c, op, r->keys, r->options.parent, r->pages, 0, r->n);
		if (rc != -EAGAIN || !again)
			return rc;
		(void)ops_turn(c); /* completions give room back */
	}
}

/* The stream may be full: other threads' calls must not wait for it. 0; 1: the op has ended
 * meanwhile; -errno. Ring held on entry and exit, not throughout. */
static int op_order(struct kvtier_client *c, struct op *op, const struct request *r)
{
	const uint64_t id = op->id;
	const bool staged = r->space->staged != NULL;
	int rc;

	op->ordered = true;
	(void)pthread_mutex_unlock(&c->ring);
	rc = cuda_order_after(r->space->order, op, staged, r->options.cuda_stream);
	(void)pthread_mutex_lock(&c->ring);
	if (op->id != id || op->state != OP_RUNNING)
		return 1;
	return rc;
}

static int submit(struct request *r, size_t n, const struct kvtier_op_options *options,
		  uint64_t *ret_op)
{
	struct kvtier_client *c;
	struct op *op;
	int rc = request_check(r, n, options, ret_op);

	if (!rc)
		rc = space_check(r->space);
	if (rc)
		return rc;
	c = r->space->client;
	r->deadline_ns = client_now() +
			 ms_to_ns(r->options.timeout_ms ? r->options.timeout_ms : c->timeout_ms);
	if (!atomic_load(&r->space->open))
		session_nudge(c);
	if (op_has_pages((uint8_t)r->kind) && atomic_load(&r->space->open))
		rc = populate_pages(r->space->populate, r->pages, r->n, r->deadline_ns);
	if (rc)
		return rc;
	(void)pthread_mutex_lock(&c->ring);
	if (!atomic_load(&r->space->open)) {
		rc = r->space->error ?
			     error_set(-ENOTCONN, "the space could not be opened again: %s",
				       r->space->text) :
			     error_set(
				     -ENOTCONN,
				     "the daemon is away, or has not opened this space again yet");
	} else {
		rc = atomic_load(&lent_graves) && r->pages && r->space->lent ?
			     lent_check(r->space->lent, r->pages, r->n) :
			     0;
		if (!rc)
			rc = op_new(c, r->space, &op);
		if (!rc) {
			const uint64_t id = op->id;

			op_fill(op, r);
			rc = r->options.cuda_stream ? op_order(c, op, r) : 0;
			if (!rc)
				rc = op_start(c, op, r);
			if (rc < 0)
				op_drop(c, op);
			else
				*ret_op = id; /* 1: the result waits */
			c->lied |= rc == -EPROTO;
			rc = rc < 0 ? rc : 0;
		}
	}
	ops_unlock(c);
	return rc;
}

int kvtier_store(struct kvtier_space *space, const struct kvtier_key *keys, const uint32_t *pages,
		 size_t n, const struct kvtier_op_options *options, uint64_t *ret_op)
{
	struct request r = { .space = space, .kind = WIRE_OP_STORE, .keys = keys, .pages = pages };

	return submit(&r, n, options, ret_op);
}

int kvtier_load(struct kvtier_space *space, const struct kvtier_key *keys, const uint32_t *pages,
		size_t n, const struct kvtier_op_options *options, uint64_t *ret_op)
{
	struct request r = { .space = space, .kind = WIRE_OP_LOAD, .keys = keys, .pages = pages };

	return submit(&r, n, options, ret_op);
}

int kvtier_prefetch(struct kvtier_space *space, const struct kvtier_key *keys, size_t n,
		    uint64_t *ret_op)
{
	struct request r = { .space = space, .kind = WIRE_OP_PREFETCH, .keys = keys };

	return submit(&r, n, NULL, ret_op);
}

static_assert((int)KVTIER_HINT_RETAIN == (int)WIRE_HINT_RETAIN &&
		      (int)KVTIER_HINT_PIN == (int)WIRE_HINT_PIN &&
		      (int)KVTIER_HINT_DEMOTE == (int)WIRE_HINT_DEMOTE &&
		      (int)KVTIER_HINT_PREFETCH == (int)WIRE_HINT_PREFETCH &&
		      (int)KVTIER_HINT_RELEASE == (int)WIRE_HINT_RELEASE &&
		      (int)KVTIER_HINT_SUPERSEDED == (int)WIRE_HINT_SUPERSEDED &&
		      (int)KVTIER_HINT_ENDED == (int)WIRE_HINT_ENDED &&
		      (int)KVTIER_HINT_REVISION == (int)WIRE_HINT_REVISION &&
		      (int)KVTIER_HINT_MISSING == (int)WIRE_HINT_MISSING,
	      "the wire has the numbers of kvtier.h");

static int hint_check(const struct kvtier_hint *h)
{
	const bool keys = h->scope == KVTIER_HINT_KEYS;

	if (h->action < KVTIER_HINT_RETAIN || h->action > KVTIER_HINT_ENDED)
		return error_set(-EINVAL, "hint.action is %u, must be in 1..%d", h->action,
				 KVTIER_HINT_ENDED);
	if (h->scope < KVTIER_HINT_KEYS || h->scope > KVTIER_HINT_REVISION)
		return error_set(-EINVAL, "hint.scope is %u, must be in 1..%d", h->scope,
				 KVTIER_HINT_REVISION);
	if (keys != (h->keys != NULL) || (!keys && h->n != 0))
		return error_set(-EINVAL, "hint.keys and hint.n: KVTIER_HINT_KEYS has them, and no "
					  "other scope");
	if (h->scope == KVTIER_HINT_SESSION && h->session == 0)
		return error_set(-EINVAL, "hint.session is 0, which is no session");
	if (h->priority < -100 || h->priority > 100)
		return error_set(-EINVAL, "hint.priority is %d, must be in -100..100", h->priority);
	if (h->reserved)
		return error_set(-EINVAL, "hint.reserved is %u, must be 0", h->reserved);
	return 0;
}

int kvtier_hint(struct kvtier_space *space, const struct kvtier_hint *hint, uint64_t *ret_op)
{
	static const struct kvtier_key none; /* of a session or revision: not looked at */
	struct kvtier_op_options options = { .size = sizeof(options) };
	struct request r = { .space = space, .kind = WIRE_OP_HINT };
	struct kvtier_hint h;
	int rc = error_struct_in(&h, sizeof(h), hint, "hint");

	if (!rc)
		rc = hint_check(&h);
	if (rc)
		return rc;
	options.timeout_ms = h.timeout_ms;
	options.session = h.session;
	options.turn = h.turn;
	options.ttl_s = h.ttl_s;
	options.priority = h.priority;
	r.action = (uint8_t)h.action;
	r.scope = (uint8_t)h.scope;
	r.keys = h.keys ? h.keys : &none;
	return submit(&r, h.keys ? h.n : 1, &options, ret_op);
}

/* Asks for the op's end. 0: asked, or nothing to ask; -EAGAIN: ring full. */
static int cancel_push(struct kvtier_client *c, uint64_t id)
{
	struct op *op = op_find(c, id);
	struct wire_sqe sqe = { .op = WIRE_OP_CANCEL };
	struct link *link;
	int rc;

	if (!op || op->state == OP_DONE)
		return 0;
	op->cancel = true;
	if (op->kernel)
		return 0; /* it ends once its kernels have: chunk.c */
	if (!op->wire_id) {
		op_finish(c, op, -ECANCELED);
		return 0;
	}
	if (op->cancelled_id == op->wire_id)
		return 0;
	link = atomic_load(&c->link);
	sqe.space = (uint16_t)op->space->handle;
	sqe.op_id = op_next_id(c, op);
	sqe.target = op->wire_id;
	rc = ring_push(link, &sqe);
	if (rc == -EPROTO)
		c->lied = true;
	if (rc)
		return rc;
	op->cancelled_id = op->wire_id;
	c->doorbell |= ring_asleep(link);
	return 0;
}

int submit_cancel(struct kvtier_client *c, uint64_t id, uint64_t limit_ns)
{
	for (;;) {
		const uint64_t now = client_now();
		uint64_t until = limit_ns;
		int rc;

		(void)pthread_mutex_lock(&c->ring);
		(void)ops_turn(c);
		rc = cancel_push(c, id);
		ops_unlock(c);
		if (rc == -EAGAIN && now + ms_to_ns(1) < limit_ns)
			until = now + ms_to_ns(1); /* room comes as the daemon reads */
		rc = op_await(c, id, until, false, NULL);
		if (rc != -ETIMEDOUT || until == limit_ns)
			return rc;
	}
}
