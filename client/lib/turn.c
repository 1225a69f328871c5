/* SPDX-License-Identifier: Apache-2.0 */
/*
 * turn.c - carries submitted ops on: completions are taken off the ring, staged ops get their next
 * chunk, callers wait. The calling threads do it; the library has no thread.
 */
#include "turn.h"

#include <errno.h>
#include <string.h>

#include "arena.h"
#include "chunk.h"
#include "client.h"
#include "clock.h"
#include "error.h"
#include "op.h"
#include "populate.h"
#include "ring.h"
#include "session.h"
#include "space.h"
#include "staged.h"

enum { LOOKS = 16 }; /* at the ring, between two at the clock */

/* The greatest that a block of the op can have. */
static int32_t best_status(const struct op *op)
{
	if (op->hints.op == WIRE_OP_STORE)
		return KVTIER_BLOCK_PRESENT;
	if (op->hints.op == WIRE_OP_HINT)
		return WIRE_HINT_DEFERRED;
	return op->staged && staged_encoded(op->space->staged) ? WIRE_BLOCK_RAW : KVTIER_BLOCK_OK;
}

/* One completion, believed only as far as it fits an op of ours. */
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
	if (op->staged) {
		chunk_done(c, op);
		return 0;
	}
	op->chunk_done += op->chunk;
	if (op->chunk_done == op->n || op->cancel)
		op_finish(c, op, -ECANCELED);
	return 0;
}

bool ops_wait_for_stream(const struct kvtier_client *c)
{
	bool wait = false;

	for (size_t i = 0; i < KVTIER_MAX_OPS && c->staged_running && !wait; i++)
		wait = c->ops[i].state == OP_RUNNING && c->ops[i].staged && c->ops[i].order &&
		       (c->ops[i].kernel ||
			(!c->ops[i].reached &&
			 (c->ops[i].ordered || chunk_needs_groups(&c->ops[i]))));
	return wait;
}

static int staged_turn(struct kvtier_client *c)
{
	const uint64_t now = client_now();
	const uint32_t from = c->staged_turn;

	for (uint32_t i = 0; i < KVTIER_MAX_OPS; i++) {
		const uint32_t slot = (from + i) % KVTIER_MAX_OPS;
		struct op *op = &c->ops[slot];
		int rc;

		if (op->state != OP_RUNNING || !op->staged || op->wire_id)
			continue;
		rc = chunk_staged(c, op, now);
		if (rc == -EPROTO)
			return rc;
		if (!rc)
			/* the op that got a chunk comes last the next time */
			c->staged_turn = slot + 1;
	}
	return 0;
}

int ops_turn(struct kvtier_client *c)
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
		rc = staged_turn(c);
	if (rc)
		c->lied = true;
	return rc;
}

void ops_unlock(struct kvtier_client *c)
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

static inline void cpu_relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

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
		now = client_now();
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

/* A caller's goal: the op's end, or groups of its layers. */
struct goal {
	uint64_t id;
	uint32_t groups; /* of layers; 0: the op's end */
	bool take;
	struct kvtier_result *ret;
};

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

/* Of an op that is there. 0; -EAGAIN; or how the wait ends, with its sentence. */
static int goal_look(struct kvtier_client *c, struct op *op, const struct goal *goal)
{
	if (goal->groups > 0 && (op->hints.op != WIRE_OP_LOAD || goal->groups > op->hints.groups))
		return error_set(-EINVAL, "group is %u: op %llu is %s with options.layer_groups %u",
				 goal->groups - 1, (unsigned long long)op->id,
				 op->hints.op == WIRE_OP_LOAD ? "a load" : "no load",
				 op->hints.groups);
	if (op->state != OP_DONE)
		return goal->groups > 0 ? groups_look(c, op, goal->groups) : -EAGAIN;
	if (goal->groups > 0 && op->status)
		return error_set(-ENODATA,
				 "op %llu has ended without group %u in all of its pages: %s",
				 (unsigned long long)op->id, goal->groups - 1,
				 strerrordesc_np(-op->status));
	if (goal->take)
		op_take(c, op, goal->ret);
	return 0;
}

/* One look: 0, -EAGAIN with a reference to the link to sleep on, or another -errno. Gives back the
 * reference that the look before it took, under the same lock. */
static int await_look(struct kvtier_client *c, const struct goal *goal, struct link **link,
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
	(void)ops_turn(c);
	op = op_find(c, goal->id);
	rc = op ? goal_look(c, op, goal) :
		  error_set(-ENOENT, "no op %llu: never submitted here, or its result was taken",
			    (unsigned long long)goal->id);
	if (rc == -EAGAIN && !c->lied) {
		*link = atomic_load(&c->link);
		(*link)->refs++;
		if (*link != before) /* another one's news: another look before the sleep */
			*ret_seen = ring_news(*link) - 1;
		/* nobody is woken when a stream has come so far */
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

static int await(struct kvtier_client *c, const struct goal *goal, uint64_t limit_ns)
{
	uint64_t spin_until = 0, looked = 0;
	struct link *link = NULL;

	for (;;) {
		uint64_t now, slice;
		uint32_t seen;
		const int rc = await_look(c, goal, &link, &seen, &slice);

		if (rc != -EAGAIN)
			return rc;
		now = client_now();
		if (!looked) {
			looked = now;
			spin_until = now + spin_ns(c);
		}
		if (now >= limit_ns) {
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
			await_completion(link, seen, now, spin_until, limit_ns, slice);
		}
	}
}

uint64_t op_limit(struct kvtier_client *c, uint64_t id, int timeout_ms)
{
	uint64_t ret = 0;

	if (timeout_ms > 0) {
		ret = client_now() + ms_to_ns((uint64_t)timeout_ms);
	} else if (timeout_ms < 0) {
		const struct op *op;

		(void)pthread_mutex_lock(&c->ring);
		op = op_find(c, id);
		if (op)
			ret = op->deadline_ns + ms_to_ns(CLIENT_GRACE_MS);
		(void)pthread_mutex_unlock(&c->ring);
	}
	return ret;
}

int op_await(struct kvtier_client *c, uint64_t id, uint64_t limit_ns, bool take,
	     struct kvtier_result *ret)
{
	return await(c, &(struct goal){ .id = id, .take = take, .ret = ret }, limit_ns);
}

int op_await_groups(struct kvtier_client *c, uint64_t id, uint32_t groups, uint64_t limit_ns)
{
	return await(c, &(struct goal){ .id = id, .groups = groups }, limit_ns);
}
