/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op_calls.c - ops as their caller sees them: submitted with checked arguments, given their layer
 * groups, waited for, cancelled; and the pages that they lend. The calling threads carry ops on
 * meanwhile, as the library has no thread.
 *
 * The layer groups of a store are given by an entry LAYERS in the ring or, on a GPU whose words the
 * daemon knows, by the word given[], which a stream may write. A store of staged pages waits until
 * all are given (client_op.c). For the groups of a load the daemon raises layers[] of the ring,
 * where a waiting call looks, and the word that streams wait for. A stream waits for no op that
 * this process itself has to carry on: the op's copies and kernels may stand behind the stream's
 * work in a queue of the GPU, and the threads that would carry it on may be in a call that waits
 * for the whole context.
 */
#include "op_calls.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "client.h"
#include "base/clock.h"
#include "client/lib/base/client_ring.h"
#include "client/lib/base/last_error.h"
#include "client/lib/base/lent.h"
#include "client/lib/base/pages.h"
#include "client/lib/base/process.h"
#include "client/lib/memory/cuda_order.h"
#include "client_op.h"
#include "client_space.h"
#include "session.h"

enum { LOOKS = 16 }; /* at the ring, between two at the clock */

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

static const uint8_t wire_kinds[] = {
	[KVTIER_STORE] = WIRE_OP_STORE,
	[KVTIER_LOAD] = WIRE_OP_LOAD,
	[KVTIER_PREFETCH] = WIRE_OP_PREFETCH,
	[KVTIER_HINT] = WIRE_OP_HINT,
};

/* Unlocks ring, then does the work that needs it unlocked: rings the daemon's bell, cuts off a
 * liar. Control not held. */
static void ops_unlock(struct kvtier_client *c)
{
	const struct link *link = atomic_load(&c->link);
	const uint64_t serial = link ? link->serial : 0;
	const bool doorbell = c->doorbell && link, lied = c->lied && link;

	c->doorbell = false;
	(void)pthread_mutex_unlock(&c->ring);
	if (lied)
		session_cut(c, serial, -EPROTO,
			    "the daemon put something into the rings that cannot be");
	else if (doorbell)
		session_doorbell(c, serial);
}

/* The op, whose completion may have come; or NULL, with the sentence of -ENOENT. Ring held. */
static struct op *op_asked(struct kvtier_client *c, uint64_t id)
{
	struct op *op;

	(void)ops_poll(c);
	op = op_find(c, id);
	if (!op)
		(void)error_set(-ENOENT,
				"no op %llu: never submitted here, or its result was taken",
				(unsigned long long)id);
	return op;
}

/* An entry about an op that is on the wire. Ring held. */
static int push_about(struct kvtier_client *c, const struct op *op, uint8_t what, uint32_t n)
{
	struct link *link = atomic_load(&c->link);
	const struct wire_sqe sqe = {
		.op = what,
		.space = (uint16_t)op->space->handle,
		.op_id = op_next_id(c, op),
		.target = op->wire_id,
		.n = n,
	};
	const int rc = ring_push(link, &sqe);

	c->lied |= rc == -EPROTO;
	if (!rc)
		c->doorbell |= ring_asleep(link);
	return rc;
}

/* ---- a caller's op, checked ---- */

static bool has_pages(const struct kvtier_op *o)
{
	return o->kind == KVTIER_STORE || o->kind == KVTIER_LOAD;
}

static int groups_check(const struct kvtier_space *space, uint32_t n)
{
	const uint32_t layers = space->layout.geometry.layers;

	if (n > KVTIER_MAX_LAYER_GROUPS)
		return error_set(-EINVAL, "op.layer_groups is %u, must be at most %d", n,
				 KVTIER_MAX_LAYER_GROUPS);
	if (n > layers)
		return error_set(
			-EINVAL,
			"op.layer_groups is %u, must be at most the layers of the space, %u", n,
			layers);
	return 0;
}

/* Fields that an op of this kind does not have. */
static int kind_check(const struct kvtier_op *o)
{
	const char *field = NULL;

	if (!has_pages(o))
		field = o->layer_groups ? "layer_groups" : o->stream ? "stream" : NULL;
	if (o->kind == KVTIER_HINT && o->parent)
		field = "parent";
	if (o->kind != KVTIER_HINT && (o->action || o->scope))
		field = o->action ? "action" : "scope";
	return field ? error_set(-EINVAL, "op.%s is set, which an op of kind %u does not have",
				 field, o->kind) :
		       0;
}

static int hint_check(const struct kvtier_op *o)
{
	const bool keys = o->scope == KVTIER_HINT_KEYS;

	if (o->action < KVTIER_HINT_RETAIN || o->action > KVTIER_HINT_ENDED)
		return error_set(-EINVAL, "op.action is %u, must be in 1..%d", o->action,
				 KVTIER_HINT_ENDED);
	if (o->scope < KVTIER_HINT_KEYS || o->scope > KVTIER_HINT_REVISION)
		return error_set(-EINVAL, "op.scope is %u, must be in 1..%d", o->scope,
				 KVTIER_HINT_REVISION);
	if (keys != (o->keys != NULL) || (!keys && o->n != 0))
		return error_set(-EINVAL, "op.keys and op.n: a hint has them with the scope "
					  "KVTIER_HINT_KEYS, and with no other");
	if (o->expected_back_s &&
	    (o->action != KVTIER_HINT_RETAIN || o->scope == KVTIER_HINT_REVISION))
		return error_set(-EINVAL, "op.expected_back_s is set, which only a "
					  "KVTIER_HINT_RETAIN of keys or of a session has");
	if (o->scope == KVTIER_HINT_SESSION && o->session == 0)
		return error_set(-EINVAL, "op.session is 0, which is no session");
	return 0;
}

static int op_check(const struct kvtier_space *space, const struct kvtier_op *o)
{
	int rc;

	if (o->kind < KVTIER_STORE || o->kind > KVTIER_HINT)
		return error_set(-EINVAL, "op.kind is %u, must be in %d..%d", o->kind, KVTIER_STORE,
				 KVTIER_HINT);
	rc = kind_check(o);
	if (!rc)
		rc = o->kind == KVTIER_HINT ? hint_check(o) : 0;
	if (!rc)
		rc = groups_check(space, o->layer_groups);
	if (rc)
		return rc;
	if (o->kind == KVTIER_HINT && o->scope != KVTIER_HINT_KEYS)
		return 0;
	if (!o->keys || (has_pages(o) && !o->pages))
		return error_set(-EINVAL, "op.keys, and op.pages of a store or load, must not be "
					  "NULL");
	if (!o->n || o->n > KVTIER_MAX_BLOCKS)
		return error_set(-EINVAL,
				 "op.n is %zu, must be in 1..%d; a longer prompt is several ops",
				 o->n, KVTIER_MAX_BLOCKS);
	if (has_pages(o) && !space->has_pages)
		return error_set(
			-EINVAL,
			"the space was opened without regions: it can look up and prefetch only");
	return 0;
}

static int values_check(const struct kvtier_space *space, const struct kvtier_op *o)
{
	if (o->priority < -100 || o->priority > 100)
		return error_set(-EINVAL, "op.priority is %d, must be in -100..100", o->priority);
	if (o->priority && o->expected_back_s)
		return error_set(-EINVAL, "op.priority and op.expected_back_s are both set");
	if (o->stream && !space->cuda)
		return error_set(-EINVAL,
				 "op.stream is set, but the space's pages are not KVTIER_CUDA");
	return 0;
}

/* ---- it begins ---- */

static void op_fill(struct op *op, const struct kvtier_op *o, uint64_t deadline_ns)
{
	op->n = o->keys ? (uint32_t)o->n : 1;
	op->user = o->user;
	op->deadline_ns = deadline_ns;
	op->hints = (struct wire_sqe){
		.op = wire_kinds[o->kind],
		.priority = o->priority,
		.session = o->session,
		.turn = o->turn_number,
		.ttl_s = o->ttl_s,
		.expected_back_s = o->expected_back_s,
		.groups = (uint16_t)o->layer_groups,
		.action = (uint8_t)o->action,
		.scope = (uint8_t)o->scope,
	};
	if (o->kind == KVTIER_HINT)
		op->order = NULL; /* no page, so no stream waits for it */
}

/* A staged op outlives the call, chunk by chunk, and so needs copies. */
static int op_start_staged(struct kvtier_client *c, struct op *op, const struct kvtier_op *o)
{
	int rc;

	op->staged = true;
	c->staged_running++;
	if (op->ordered)
		ops_event(c); /* a thread that sleeps on it has to look at the stream */
	memcpy(op->keys, o->keys, o->n * sizeof(*o->keys));
	memcpy(op->pages, o->pages, o->n * sizeof(*o->pages));
	op->has_parent = o->parent != NULL;
	if (op->has_parent)
		op->keys[KVTIER_MAX_BLOCKS] = *o->parent;
	rc = op_stage(c, op, clock_ns());
	return rc == -EAGAIN ? 0 : rc; /* the op's turn comes */
}

static int op_start(struct kvtier_client *c, struct op *op, const struct kvtier_op *o)
{
	/* of a hint on a session or revision: the daemon does not look at it */
	static const struct kvtier_key no_key;
	const struct link *link = atomic_load(&c->link);
	int rc;

	if (o->expected_back_s && link->version < WIRE_WITH_EXPECTED_BACK) {
		if (o->kind == KVTIER_HINT)
			return error_set(-EOPNOTSUPP, "op.expected_back_s: this kvtierd is older "
						      "than the hint; upgrade it");
		op->hints.expected_back_s = 0;
	}
	if (op->space->staged && has_pages(o))
		return op_start_staged(c, op, o);
	if (op->n + (o->parent != NULL) > link->arena_blocks)
		return error_set(-EINVAL, "op.n is %u, this daemon takes at most %u blocks an op",
				 op->n, link->arena_blocks - (o->parent != NULL));
	for (int again = 1;; again--) {
		rc = op_push(c, op, o->keys ? o->keys : &no_key, o->parent,
			     has_pages(o) ? o->pages : NULL, 0, op->n);
		if (rc != -EAGAIN || !again)
			return rc;
		(void)ops_poll(c); /* completions give room back */
	}
}

/* The stream may be full: other threads' calls must not wait for it. 0; 1: the op has ended
 * meanwhile; -errno. Ring held on entry and exit, not throughout. */
static int op_order(struct kvtier_client *c, struct op *op, void *stream)
{
	const uint64_t id = op->id;
	struct kvtier_space *space = op->space;
	const bool staged = space->staged != NULL;
	int rc;

	op->ordered = true;
	(void)pthread_mutex_unlock(&c->ring);
	rc = cuda_order_after(space->order, op->id, staged, stream);
	(void)pthread_mutex_lock(&c->ring);
	if (op->id != id || op->state != OP_RUNNING)
		return 1;
	return rc;
}

/* Ring held on entry and exit. */
static int op_begin(struct kvtier_space *space, const struct kvtier_op *o, uint64_t deadline_ns,
		    uint64_t *ret_op)
{
	struct kvtier_client *c = space->client;
	struct op *op;
	uint64_t id;
	int rc;

	if (!atomic_load(&space->open))
		return space->error ?
			       error_set(-ENOTCONN, "the space could not be opened again: %s",
					 space->text) :
			       error_set(-ENOTCONN, "the daemon is away, or has not opened this "
						    "space again yet");
	rc = atomic_load(&lent_orphans) && has_pages(o) && space->lent ?
		     lent_check(space->lent, o->pages, o->n) :
		     0;
	if (!rc)
		rc = op_new(c, space, &op);
	if (rc)
		return rc;
	id = op->id;
	op_fill(op, o, deadline_ns);
	rc = o->stream ? op_order(c, op, o->stream) : 0;
	if (!rc)
		rc = op_start(c, op, o);
	if (rc < 0)
		op_drop(c, op);
	else
		*ret_op = id; /* 1: the result waits */
	c->lied |= rc == -EPROTO;
	return rc < 0 ? rc : 0;
}

int kvtier_submit(struct kvtier_space *space, const struct kvtier_op *op, uint64_t *ret_op)
{
	struct kvtier_client *c;
	struct kvtier_op known;
	uint64_t deadline_ns;
	int rc = 0;

	if (!space || !ret_op)
		return error_set(-EINVAL, "space and ret_op must not be NULL");
	if (!op || op->size != sizeof(*op)) {
		rc = error_struct_in(&known, sizeof(known), op, "op");
		op = &known;
	}
	if (!rc)
		rc = op_check(space, op);
	if (!rc)
		rc = values_check(space, op);
	if (!rc)
		rc = space_check(space);
	if (rc)
		return rc;
	c = space->client;
	deadline_ns = clock_ns() + ms_to_ns(op->timeout_ms ? op->timeout_ms : c->timeout_ms);
	if (!atomic_load(&space->open))
		session_nudge(c);
	if (has_pages(op) && atomic_load(&space->open))
		rc = populate_pages(space->populate, op->pages, op->n, deadline_ns);
	if (rc)
		return rc;
	(void)pthread_mutex_lock(&c->ring);
	rc = op_begin(space, op, deadline_ns, ret_op);
	ops_unlock(c);
	return rc;
}

/* ---- a store is given its layer groups ---- */

static int store_check(const struct op *op, uint32_t groups, const void *stream)
{
	if (op->hints.op != WIRE_OP_STORE || groups == 0 || groups > op->hints.groups)
		return error_set(-EINVAL,
				 "groups is %u: must be 1 to layer_groups of a store, which "
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

/* The op runs. 1: a word has to be written, which may block. Ring held. */
static int give(struct kvtier_client *c, struct op *op, uint32_t groups, const void *stream)
{
	int rc = 0;

	if (op->gives || stream)
		return 1;
	if (groups <= op->given)
		return 0;
	if (!op->staged)
		rc = push_about(c, op, WIRE_OP_LAYERS, groups);
	if (rc)
		return error_set(rc, "the submission ring is full: call again");
	op->given = groups;
	if (op->staged)
		(void)ops_poll(c);
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
	op = op_asked(c, id);
	if (op)
		o = op->order;
	rc = op ? store_check(op, groups, stream) : -ENOENT;
	if (!rc && op->state == OP_RUNNING)
		rc = give(c, op, groups, stream);
	ops_unlock(c);
	return rc == 1 ? cuda_order_give(o, id, groups, stream) : rc;
}

/* ---- a thread waits ---- */

/* Between two looks at the op: spins first, then sleeps, a slice at most. The clock is read seldom:
 * it costs more than a look at the ring, and would delay the answer. */
static void await_completion(struct link *link, uint32_t seen, uint64_t now, uint64_t spin_until,
			     uint64_t limit_ns, uint64_t slice)
{
	while (now < spin_until && now < limit_ns) {
		for (int i = 0; i < LOOKS; i++) {
			if (ring_news(link) != seen)
				return;
			cpu_relax();
		}
		now = clock_ns();
	}
	if (now < limit_ns)
		ring_sleep(link, seen, limit_ns - now < slice ? limit_ns - now : slice);
}

static uint64_t spin_ns(const struct kvtier_client *c)
{
	uint32_t us = c->spin_us;

	if (us == UINT32_MAX)
		return 0;
	if (!us)
		us = atomic_load(&c->spin_advised_us);
	return (us < CLIENT_SPIN_MAX_US ? us : CLIENT_SPIN_MAX_US) * 1000ull;
}

#define OWN_LIMIT UINT64_MAX /* until a while after the op's own deadline */

/* A caller's goal: the op's end, or groups of its layers. */
struct goal {
	uint64_t id, limit_ns;
	uint32_t groups; /* of layers; 0: the op's end */
	bool take;
	struct kvtier_result *ret;
};

/* -EINVAL: it is no load with so many groups. */
static int load_check(const struct op *op, uint32_t groups)
{
	if (op->hints.op == WIRE_OP_LOAD && groups <= op->hints.groups)
		return 0;
	return error_set(-EINVAL, "group is %u: op %llu is %s with layer_groups %u", groups - 1,
			 (unsigned long long)op->id,
			 op->hints.op == WIRE_OP_LOAD ? "a load" : "no load", op->hints.groups);
}

/* 0: so many groups are in the pages; -EAGAIN: not yet. The daemon's word is believed as far as it
 * can be. */
static int groups_look(struct kvtier_client *c, const struct op *op, uint32_t groups)
{
	const struct link *link = atomic_load(&c->link);
	uint32_t there;

	if (op->staged || !op->wire_id)
		return -EAGAIN;
	there = __atomic_load_n(&link->layers[op->first], __ATOMIC_ACQUIRE);
	c->lied |= there > op->hints.groups;
	return there >= groups && there <= op->hints.groups ? 0 : -EAGAIN;
}

/* The op is there. 0; -EAGAIN; or how the wait ends, with its sentence. */
static int goal_look(struct kvtier_client *c, struct op *op, const struct goal *goal)
{
	if (goal->groups > 0 && load_check(op, goal->groups))
		return -EINVAL;
	if (op->state != OP_DONE)
		return goal->groups > 0 ? groups_look(c, op, goal->groups) : -EAGAIN;
	if (goal->groups > 0 && op->status)
		return error_set(-ENODATA,
				 "op %llu has ended without group %u in all of its pages: %s",
				 (unsigned long long)op->id, goal->groups - 1,
				 strerrordesc_np(-op->status));
	if (goal->take)
		op_take(c, op, goal->ret, goal->ret ? goal->ret->size : 0);
	return 0;
}

/* One look: 0, -EAGAIN with a reference to the link to sleep on, or another -errno. Gives back the
 * reference that the look before it took, under the same lock. */
static int await_look(struct kvtier_client *c, struct goal *goal, struct link **link,
		      uint32_t *ret_seen, uint64_t *ret_slice)
{
	const struct link *before;
	struct op *op;
	int rc;

	(void)pthread_mutex_lock(&c->ring);
	if (*link)
		(*link)->refs--;
	*link = NULL;
	before = atomic_load(&c->link);
	*ret_seen = before ? ring_news(before) : 0;
	op = op_asked(c, goal->id);
	rc = op ? goal_look(c, op, goal) : -ENOENT;
	if (rc == -EAGAIN && goal->limit_ns == OWN_LIMIT)
		goal->limit_ns = op->deadline_ns + ms_to_ns(CLIENT_GRACE_MS);
	if (rc == -EAGAIN && !c->lied) {
		*link = atomic_load(&c->link);
		(*link)->refs++;
		if (*link != before) /* another one's news: another look before the sleep */
			*ret_seen = ring_news(*link) - 1;
		/* a stream that has come so far wakes no thread */
		*ret_slice =
			ops_wait_for_stream(c) ? CLIENT_STREAM_SLICE_NS : ms_to_ns(CLIENT_SLICE_MS);
	}
	ops_unlock(c);
	return rc;
}

static void await_leave(struct kvtier_client *c, struct link **link)
{
	if (!*link)
		return;
	(void)pthread_mutex_lock(&c->ring);
	(*link)->refs--;
	(void)pthread_mutex_unlock(&c->ring);
	*link = NULL;
}

/* Waits for the goal. -ETIMEDOUT: not before its limit. No lock held. */
static int await(struct kvtier_client *c, struct goal *goal)
{
	uint64_t spin_until = 0, looked = 0;
	struct link *link = NULL;

	for (;;) {
		uint64_t now, slice;
		uint32_t seen;
		const int rc = await_look(c, goal, &link, &seen, &slice);

		if (rc != -EAGAIN)
			return rc;
		now = clock_ns();
		if (!looked) {
			looked = now;
			spin_until = now + spin_ns(c);
		}
		if (now >= goal->limit_ns) {
			await_leave(c, &link);
			/* for a caller that comes again and again without time to wait */
			session_nudge(c);
			return error_set(-ETIMEDOUT,
					 "op %llu is not done yet; its pages are lent until it is",
					 (unsigned long long)goal->id);
		}
		if (now - looked >= ms_to_ns(CLIENT_SLICE_MS)) {
			await_leave(c, &link);
			looked = now;
			session_nudge(c); /* is the daemon still there? */
		} else if (link) {
			await_completion(link, seen, now, spin_until, goal->limit_ns, slice);
		}
	}
}

/* The limit of a call with this timeout. */
static uint64_t call_limit(int timeout_ms)
{
	if (timeout_ms < 0)
		return OWN_LIMIT;
	return timeout_ms ? clock_ns() + ms_to_ns((uint64_t)timeout_ms) : 0;
}

int op_await(struct kvtier_client *c, uint64_t id, uint64_t limit_ns)
{
	return await(c, &(struct goal){ .id = id, .limit_ns = limit_ns });
}

/* ---- one op, or its layer groups ---- */

static int result_check(const struct kvtier_result *ret)
{
	if (ret && ret->size < sizeof(ret->size))
		return error_set(-EINVAL, "ret.size is %u: set it to sizeof the struct, %zu",
				 ret->size, sizeof(*ret));
	return 0;
}

int kvtier_wait(struct kvtier_client *c, uint64_t id, int timeout_ms, struct kvtier_result *ret)
{
	int rc = client_check(c);

	if (!rc)
		rc = result_check(ret);
	return rc ? rc :
		    await(c, &(struct goal){ .id = id,
					     .limit_ns = call_limit(timeout_ms),
					     .take = true,
					     .ret = ret });
}

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
	return rc ? rc :
		    await(c, &(struct goal){ .id = id,
					     .limit_ns = call_limit(timeout_ms),
					     .groups = group + 1 });
}

int kvtier_stream_wait(struct kvtier_client *c, uint64_t id, uint32_t group, void *stream)
{
	const uint32_t groups = group + 1; /* 0: until the op has ended */
	struct cuda_order *o = NULL;
	bool runs = false, staged = false;
	const struct op *op;
	int rc = client_check(c);

	static_assert(KVTIER_ALL + 1 == 0, "no number of groups is ALL");
	if (!rc && groups > 0)
		rc = group_check(group);
	if (rc)
		return rc;
	(void)pthread_mutex_lock(&c->ring);
	op = op_asked(c, id);
	rc = !op ? -ENOENT : groups > 0 ? load_check(op, groups) : 0;
	if (!rc) {
		o = op->order;
		runs = op->state == OP_RUNNING;
		staged = op->staged;
	}
	ops_unlock(c);
	if (rc || !runs)
		return rc; /* the op is done: work that is launched now finds its bytes */
	if (staged && o)
		return error_set(-EOPNOTSUPP,
				 "op %llu: its pages are staged, so this client's calls end it, "
				 "which a stream that waits may stop for ever: use %s()",
				 (unsigned long long)id,
				 groups ? "kvtier_wait_layers" : "kvtier_wait");
	return cuda_order_wait(o, id, groups, stream);
}

/* ---- any op ---- */

int kvtier_event_fd(const struct kvtier_client *client)
{
	struct kvtier_client *c = (struct kvtier_client *)(uintptr_t)client;
	struct link *link;
	const int rc = client_check(c);

	if (rc)
		return rc;
	(void)pthread_mutex_lock(&c->ring);
	if (!c->event_used) {
		c->event_used = true;
		/* completions that came before: the first kvtier_poll() finds them, and asks for
		 * WAKEs */
		ops_event(c);
		link = atomic_load(&c->link);
		if (link)
			__atomic_store_n(&link->submit->want_wake, 1, __ATOMIC_SEQ_CST);
	}
	(void)pthread_mutex_unlock(&c->ring);
	return c->epoll_fd;
}

/* Drains the event, takes completions, asks for the next WAKE, and looks once more. So no
 * completion is missed. Ring held. */
static void poll_once(struct kvtier_client *c)
{
	struct link *link = atomic_load(&c->link);
	uint64_t drained;

	if (c->event_set && read(c->event_fd, &drained, sizeof(drained)) == sizeof(drained))
		c->event_set = false;
	if (ops_poll(c) || !link || !c->event_used)
		return;
	__atomic_store_n(&link->submit->want_wake, 1, __ATOMIC_SEQ_CST);
	if (ring_moved(link, link->cq_head))
		(void)ops_poll(c);
}

int kvtier_poll(struct kvtier_client *c, struct kvtier_result *ret, size_t max)
{
	const uint64_t now = clock_ns();
	int n = 0, rc;

	if (!c || (max && !ret))
		return error_set(-EINVAL, "client and ret must not be NULL");
	if (!process_ours(c->process))
		return process_refuse();
	rc = max ? result_check(ret) : 0;
	if (rc)
		return rc;
	(void)pthread_mutex_lock(&c->control);
	session_advance(c, now);
	(void)pthread_mutex_unlock(&c->control);
	(void)pthread_mutex_lock(&c->ring);
	poll_once(c);
	for (; (size_t)n < max && n < KVTIER_MAX_OPS && !TAILQ_EMPTY(&c->done); n++) {
		void *to = (uint8_t *)ret + (size_t)n * ret->size;

		op_take(c, TAILQ_FIRST(&c->done), to, ret->size);
	}
	if (!TAILQ_EMPTY(&c->done) || ops_wait_for_stream(c))
		ops_event(c);
	ops_unlock(c);
	return n;
}

/* ---- it is cancelled ---- */

/* Asks for the op's end. 0: asked, or it has ended; -EAGAIN: ring full. */
static int cancel_push(struct kvtier_client *c, uint64_t id)
{
	struct op *op = op_find(c, id);
	int rc;

	if (!op || op->state == OP_DONE)
		return 0;
	op->cancel = true;
	if (!op->wire_id) {
		op_finish(c, op, -ECANCELED);
		return 0;
	}
	if (op->cancelled_id == op->wire_id)
		return 0;
	rc = push_about(c, op, WIRE_OP_CANCEL, 0);
	if (!rc)
		op->cancelled_id = op->wire_id;
	return rc;
}

int op_cancel(struct kvtier_client *c, uint64_t id, uint64_t limit_ns)
{
	for (;;) {
		const uint64_t now = clock_ns();
		uint64_t until = limit_ns;
		int rc;

		(void)pthread_mutex_lock(&c->ring);
		(void)ops_poll(c);
		rc = cancel_push(c, id);
		ops_unlock(c);
		if (rc == -EAGAIN && now + ms_to_ns(1) < limit_ns)
			until = now + ms_to_ns(1); /* room comes as the daemon reads */
		rc = op_await(c, id, until);
		if (rc != -ETIMEDOUT || until == limit_ns)
			return rc;
	}
}

/* 0: it has ended, and its pages are free; else how many are lent still is in the sentence. */
static int cancel_check(struct kvtier_client *c, uint64_t id)
{
	const struct op *op;
	uint32_t n = 0;
	bool runs;

	(void)pthread_mutex_lock(&c->ring);
	op = op_find(c, id);
	runs = op && op->state == OP_RUNNING;
	if (op)
		n = runs ? op->n : lent_op(op->orphan, id);
	(void)pthread_mutex_unlock(&c->ring);
	if (runs)
		return error_set(-ETIMEDOUT,
				 "op %llu still runs: its %u pages are lent until it ends",
				 (unsigned long long)id, n);
	if (n)
		return error_set(
			-ETIMEDOUT,
			"op %llu has ended with its connection, but %u of its pages are lent "
			"still: kvtier_lent() names them",
			(unsigned long long)id, n);
	return 0;
}

int kvtier_cancel(struct kvtier_client *c, uint64_t id, int timeout_ms)
{
	int rc = client_check(c);

	if (!rc)
		rc = op_cancel(c, id,
			       clock_ns() + ms_to_ns(timeout_ms < 0 ? c->timeout_ms :
								      (uint64_t)timeout_ms));
	return rc && rc != -ETIMEDOUT ? rc : cancel_check(c, id);
}

/* ---- lent pages ---- */

/* Where kvtier_lent() writes to. */
struct lent_room {
	uint8_t *to;
	size_t stride, max;
};

static void lent_put(void *arg, size_t at, const struct kvtier_lent *lent)
{
	const struct lent_room *room = arg;
	struct kvtier_lent out = *lent;

	if (at >= room->max)
		return;
	out.size = room->stride < sizeof(out) ? (uint32_t)room->stride : (uint32_t)sizeof(out);
	memcpy(room->to + at * room->stride, &out, out.size);
}

/* Pages of running ops. Ring held. */
static size_t lent_running(struct kvtier_client *c, struct lent_room *room)
{
	const struct link *link = atomic_load(&c->link);
	size_t at = 0;

	for (size_t i = 0; link && i < KVTIER_MAX_OPS; i++) {
		const struct op *op = &c->ops[i];

		if (op->state != OP_RUNNING || !op_has_pages(op->hints.op))
			continue;
		for (uint32_t k = 0; k < op->n; k++) {
			struct kvtier_lent lent = { .op = op->id };

			if (op->staged)
				lent.page = op->pages[k];
			else
				lent_fill(op->space->lent, link->pages[op->first + k], &lent);
			lent_put(room, at++, &lent);
		}
	}
	return at;
}

int kvtier_lent(struct kvtier_client *c, struct kvtier_lent *ret, size_t max)
{
	struct lent_room room = { (uint8_t *)ret, ret && max ? ret->size : 0, max };
	size_t n = 0;
	int rc = c ? client_check(c) : 0;

	if (rc)
		return rc;
	if (max && (!ret || ret->size < sizeof(ret->size)))
		return error_set(
			-EINVAL,
			"ret must not be NULL, and ret[0].size must be sizeof the struct, %zu",
			sizeof(*ret));
	if (c) {
		(void)pthread_mutex_lock(&c->ring);
		(void)ops_poll(c);
		n = lent_running(c, &room);
		ops_unlock(c);
	}
	n = lent_list(n, lent_put, &room);
	return n <= INT32_MAX ? (int)n : INT32_MAX;
}
