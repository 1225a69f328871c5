/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tier.c - the list of tiers, and the only layer through which the core calls them. It asserts the
 * contract of tier.h on both sides, and decides nothing itself. Core thread only.
 *
 *            all ready                 probe ok
 *  starting ----------> up <------------------------- degraded, readonly, offline
 *      |                 \----------------------------->  (each tier says which errors lead
 *      \--- part of it could not be had ---> degraded      where; NVMe and Redis use all)
 */
#include "tier.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/histogram.h"
#include "tiers/host/host.h"
#include "tiers/nvme/nvme.h"
#include "tiers/redis/redis.h"
#include "slabs.h"

enum { BUFFER_ALIGN = 4096 };

/* Adding a tier is one line here, one file, one test. GPUs' memory is no such tier, but a cache:
 * its keeper (daemon/move/gpu_cache.c) makes a struct tier of its own. */
static const struct tier_ops *const tiers[TIER_COUNT] = {
	[TIER_HOST] = &host_ops,
	[TIER_NVME] = &nvme_ops,
	[TIER_REDIS] = &redis_ops,
};

static const char *const tier_names[TIER_COUNT] = { "gpu", "host", "nvme", "redis" };

int tier_open(enum tier_id id, const struct tier_conf *conf, struct loop *loop, struct tier **ret,
	      char *text, size_t n)
{
	struct tier *t = NULL;
	int err;

	assert((unsigned int)id < TIER_COUNT && tiers[id] && n >= TIER_TEXT_BYTES);
	err = tiers[id]->open(conf, loop, &t, text, n);
	assert(err <= 0 && !err == !!t);
	if (err)
		return err;
	assert(t->ops == tiers[id] && t->ops->id == id);
	*ret = t;
	return 0;
}

void tier_close(struct tier *t)
{
	if (!t)
		return;
	/* a keyed tier ends them: it keeps no place */
	assert(t->in_flight == 0 || t->ops->caps & TIER_CAP_KEYED);
	t->ops->close(t);
}

int tier_alloc(struct tier *t, uint32_t bytes, struct extent *ret)
{
	return tier_alloc_near(t, bytes, TIER_ANY_UNIT, ret);
}

int tier_alloc_near(struct tier *t, uint32_t bytes, uint32_t unit, struct extent *ret)
{
	struct extent where = { .tier = TIER_COUNT };
	int err;

	assert(bytes > 0);
	if (!t->ops->alloc)
		return -ENOTSUP;
	err = t->ops->alloc(t, bytes, unit, &where);
	assert(err <= 0 && (err || where.tier == t->ops->id));
	assert(t->used_bytes <= t->capacity_bytes);
	if (!err)
		*ret = where;
	return err;
}

void tier_free(struct tier *t, const struct extent *where)
{
	assert(where->tier == t->ops->id && t->extents > 0 && t->ops->free);
	t->ops->free(t, where);
}

uint8_t *tier_address(struct tier *t, const struct extent *where)
{
	uint8_t *ret;

	assert(t->ops->address);
	ret = where->tier == t->ops->id ? t->ops->address(t, where) : NULL;
	assert((uintptr_t)ret % BUFFER_ALIGN == 0);
	return ret;
}

/* The tier itself, under its wrappers. */
static struct tier *innermost(const struct tier *t)
{
	while (t && t->inner)
		t = t->inner;
	return (struct tier *)(uintptr_t)t;
}

/* Whether its writes go where it likes. */
static bool chooses_places(const struct tier *t)
{
	return !innermost(t)->ops->alloc;
}

int tier_submit(struct tier *t, struct xfer *x)
{
	const bool keyed = t->ops->caps & TIER_CAP_KEYED;
	int err;

	assert(!x->in_flight && x->done);
	assert(x->op == XFER_PROBE || (x->bytes > 0 && (uintptr_t)x->buffer % BUFFER_ALIGN == 0));
	assert(x->op == XFER_READ || x->op == XFER_WRITE || (x->op == XFER_PROBE && keyed));
	if (!t->ops->submit)
		return -ENOTSUP;
	if (!keyed && x->where.tier != t->ops->id && (x->op == XFER_READ || !chooses_places(t)))
		return -ESTALE;
	x->tier = t;
	x->status = -EINPROGRESS;
	x->kept = false;
	/* before the call: a worker may have finished before submit returns */
	x->in_flight = true;
	x->submit_ns = clock_ns();
	t->in_flight++;
	t->behind_in_flight += x->behind;
	err = t->ops->submit(t, x);
	if (!err) {
		assert(x->in_flight); /* done never runs inside submit */
		t->xfers_total++;
		return 0;
	}
	assert(err < 0);
	x->in_flight = false;
	t->in_flight--;
	t->behind_in_flight -= x->behind;
	return err;
}

void tier_complete(struct xfer *x, int status)
{
	struct tier *t = x->tier;
	const uint64_t took_ns = clock_ns() - x->submit_ns;

	assert(x->in_flight && t->in_flight > 0 && status <= 0);
	assert(!x->kept || (status < 0 && x->op == XFER_READ));
	x->in_flight = false;
	x->status = status;
	t->in_flight--;
	t->behind_in_flight -= x->behind;
	if (t->times)
		histogram_add(t->times, took_ns);
	if (t->store_times && x->op == XFER_WRITE && status == 0)
		histogram_add(t->store_times, took_ns);
	x->done(x); /* x may be gone, or submitted again, after this */
}

void tier_cancel(struct tier *t, struct xfer *x)
{
	if (x->in_flight && t->ops->cancel) {
		assert(x->tier == t);
		t->ops->cancel(t, x);
	}
}

const char *tier_name(enum tier_id id)
{
	assert((unsigned int)id < TIER_COUNT);
	return tier_names[id];
}

enum tier_state tier_state(const struct tier *t)
{
	return t->ops->state(t);
}

const char *tier_state_name(enum tier_state state)
{
	static const char *const names[] = {
		[TIER_STARTING] = "starting", [TIER_UP] = "up",
		[TIER_DEGRADED] = "degraded", [TIER_READONLY] = "readonly",
		[TIER_OFFLINE] = "offline",   [TIER_MISCONFIGURED] = "misconfigured",
	};

	assert((unsigned int)state < sizeof(names) / sizeof(names[0]));
	return names[state];
}

/* --- slots --- */

struct slabs *tier_slabs(const struct tier *t)
{
	const struct tier *in = innermost(t);

	return in && in->ops->slabs ? in->ops->slabs(in) : NULL;
}

int tier_extent(const struct tier *t, uint32_t slot, struct extent *ret)
{
	return slabs_extent(tier_slabs(t), slot, ret);
}

uint32_t tier_extent_bytes(const struct tier *t, const struct extent *where)
{
	return slabs_extent_bytes(tier_slabs(t), where);
}

void tier_set_owner(struct tier *t, const struct extent *where, uint32_t owner)
{
	slabs_set_owner(tier_slabs(t), where, owner);
}

/* --- questions to any tier --- */

bool tier_readable(const struct tier *t, const struct tier_name *name)
{
	const struct tier *in = innermost(t);

	return in && in->ops->readable && in->ops->readable(in, name);
}

bool tier_writable(const struct tier *t, const struct tier_name *name)
{
	const struct tier *in = innermost(t);

	return in && in->ops->writable && in->ops->writable(in, name);
}

void tier_forget(struct tier *t, const struct extent *where, uint64_t tick)
{
	struct tier *in = innermost(t);

	if (in && in->ops->forget)
		in->ops->forget(in, where, tick);
}

void tier_touch(struct tier *t, const struct extent *where, uint64_t tick, uint64_t now_tick)
{
	struct tier *in = innermost(t);

	if (in && in->ops->touch)
		in->ops->touch(in, where, tick, now_tick);
}

void tier_condemn(struct tier *t, const struct redis_seal *seal, const uint8_t *image,
		  uint32_t bytes)
{
	struct tier *in = innermost(t);

	if (in && in->ops->condemn)
		in->ops->condemn(in, seal, image, bytes);
}

int tier_flush(struct tier *t, bool last, void (*done)(void *arg, int status), void *arg)
{
	struct tier *in = innermost(t);

	return in && in->ops->flush ? in->ops->flush(in, last, done, arg) : -ENOTSUP;
}

int tier_purge(struct tier *t, const uint8_t tenant[16], void (*done)(void *arg, int status),
	       void *arg)
{
	struct tier *in = innermost(t);

	return in && in->ops->purge ? in->ops->purge(in, tenant, done, arg) : -ENOTSUP;
}

bool tier_idle(const struct tier *t)
{
	const struct tier *in = innermost(t);

	return !in || !in->ops->idle || in->ops->idle(in);
}

uint8_t *tier_memory(const struct tier *t, uint64_t *ret_bytes)
{
	const struct tier *in = innermost(t);

	*ret_bytes = 0;
	return in && in->ops->memory ? in->ops->memory(in, ret_bytes) : NULL;
}
