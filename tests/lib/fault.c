/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fault.c - see fault.h. Core thread only.
 *
 * An xfer of the caller is carried by one of our own through the inner tier, so both layers keep
 * their exactly-once accounts: lent -> (inner done) -> held, if so planned -> (fault_release) ->
 * completed
 */
#include "fault.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

struct carrier {
	struct xfer x; /* first: done() gets back to us */
	struct fault *fault;
	struct xfer *outer; /* NULL: unused */
	int status;
	struct carrier *next_held;
};

struct fault {
	struct tier base;
	struct fault_plan plan;
	uint32_t allocs, submits, dones;
	struct carrier *held, **held_end;
	struct carrier carriers[FAULT_MAX_XFERS];
};

static struct fault *fault_of(struct tier *t)
{
	return (struct fault *)t; /* base is the first member */
}

/* Does the call that makes it `count` fail? */
static bool due(const struct fault_plan *plan, uint32_t nth, uint32_t count)
{
	return nth && (count == nth || (plan->sticky && count > nth));
}

static void mirror(struct tier *t)
{
	t->capacity_bytes = t->inner->capacity_bytes;
	t->used_bytes = t->inner->used_bytes;
	t->extents = t->inner->extents;
}

static void fault_close(struct tier *t)
{
	if (!t)
		return;
	assert(!fault_of(t)->held);
	tier_close(t->inner);
	free(t);
}

static int fault_alloc(struct tier *t, uint32_t bytes, uint32_t unit, struct extent *ret)
{
	struct fault *f = fault_of(t);
	int err;

	if (due(&f->plan, f->plan.alloc_nth, ++f->allocs))
		return f->plan.alloc_errno;
	err = tier_alloc_near(t->inner, bytes, unit, ret);
	mirror(t);
	return err;
}

static void fault_free(struct tier *t, const struct extent *where)
{
	tier_free(t->inner, where);
	mirror(t);
}

static uint8_t *fault_address(struct tier *t, const struct extent *where)
{
	return tier_address(t->inner, where);
}

static void finish(struct carrier *c)
{
	struct xfer *outer = c->outer;

	c->outer = NULL;
	tier_complete(outer, c->status);
}

static void inner_done(struct xfer *x)
{
	struct carrier *c = (struct carrier *)x;
	struct fault *f = c->fault;

	c->status = due(&f->plan, f->plan.done_nth, ++f->dones) ? f->plan.done_errno : x->status;
	c->outer->where = x->where;
	c->outer->record = x->record;
	c->outer->kept = x->kept;
	c->outer->bytes = x->bytes;
	mirror(&f->base);
	if (!f->plan.hold) {
		finish(c);
		return;
	}
	c->next_held = NULL;
	*f->held_end = c;
	f->held_end = &c->next_held;
}

static int fault_submit(struct tier *t, struct xfer *x)
{
	struct fault *f = fault_of(t);
	struct carrier *c = f->carriers;
	int err;

	if (due(&f->plan, f->plan.submit_nth, ++f->submits))
		return f->plan.submit_errno;
	while (c < f->carriers + FAULT_MAX_XFERS && c->outer)
		c++;
	if (c == f->carriers + FAULT_MAX_XFERS)
		return -EAGAIN;
	c->x = *x;
	c->x.in_flight = false;
	c->x.done = inner_done;
	c->outer = x;
	err = tier_submit(t->inner, &c->x);
	if (err)
		c->outer = NULL;
	return err;
}

static void fault_cancel(struct tier *t, struct xfer *x)
{
	struct fault *f = fault_of(t);

	for (uint32_t i = 0; !f->plan.deaf && i < FAULT_MAX_XFERS; i++)
		if (f->carriers[i].outer == x)
			tier_cancel(t->inner, &f->carriers[i].x);
}

static enum tier_state fault_state(const struct tier *t)
{
	return tier_state(t->inner);
}

/* One table per wrapped id, because ids and capabilities are asked of tables. */
#define FAULT_OPS(tier_id, tier_caps)                                                             \
	{                                                                                         \
		.id = (tier_id), .caps = (tier_caps), .close = fault_close, .alloc = fault_alloc, \
		.free = fault_free, .address = fault_address, .submit = fault_submit,             \
		.cancel = fault_cancel, .state = fault_state                                      \
	}

static const struct tier_ops fault_ops[TIER_COUNT] = {
	[TIER_GPU] = FAULT_OPS(TIER_GPU, 0),
	[TIER_HOST] = FAULT_OPS(TIER_HOST, 0),
	[TIER_NVME] = FAULT_OPS(TIER_NVME, TIER_CAP_DURABLE),
	[TIER_REDIS] = FAULT_OPS(TIER_REDIS, TIER_CAP_KEYED),
};

int fault_wrap(struct tier *inner, struct tier **ret)
{
	struct fault *f = calloc(1, sizeof(*f));

	if (!f)
		return -ENOMEM;
	assert(inner->ops->caps == fault_ops[inner->ops->id].caps);
	f->base.ops = &fault_ops[inner->ops->id];
	f->base.inner = inner;
	f->held_end = &f->held;
	for (uint32_t i = 0; i < FAULT_MAX_XFERS; i++)
		f->carriers[i].fault = f;
	mirror(&f->base);
	*ret = &f->base;
	return 0;
}

void fault_set(struct tier *t, const struct fault_plan *plan)
{
	struct fault *f = fault_of(t);

	assert(t->inner);
	f->plan = *plan;
	f->allocs = 0;
	f->submits = 0;
	f->dones = 0;
}

uint32_t fault_release(struct tier *t, uint32_t max)
{
	struct fault *f = fault_of(t);
	uint32_t n = 0;

	while (n < max && f->held) {
		struct carrier *c = f->held;

		f->held = c->next_held;
		if (!f->held)
			f->held_end = &f->held;
		finish(c);
		n++;
	}
	return n;
}
