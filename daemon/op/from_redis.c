/* SPDX-License-Identifier: Apache-2.0 */
/*
 * from_redis.c - the steps of a block that comes from Redis: no table says that it is there.
 *
 * So nothing is evicted for it before the value's header has come and is good: a load reads at once
 * only where a slot is free. Else, and always for a prefetch, the flight begins with PROBE, at the
 * price of a round trip; so keys that nobody has cost nobody a block. Of a Redis user that may not
 * GETRANGE the probe knows only that there is a value, by STRLEN; of a user that may neither, no
 * room is made: a miss, which is counted. Any trouble of Redis is a miss, within [redis] timeout_ms
 * for each of the three times at most that it is asked.
 */
#include "from_redis.h"

#include <errno.h>

#include "daemon/stats/stats.h"
#include "daemon/base/container_of.h"
#include "daemon/store/space.h"
#include "daemon/store/store.h"
#include "part.h"

static struct stats_values *counters(const struct flight *f)
{
	return &f->w.all->store->stats->v;
}

static void begin(struct flight *f, uint32_t block)
{
	(void)block;
	f->bytes = walk_space(&f->w)->shape.image_bytes;
	if (f->w.part->op->sqe.op == WIRE_OP_PREFETCH)
		f->w.step = FLIGHT_PROBE;
}

static bool has_load(const struct flight *f)
{
	for (struct list *l = f->parts.next; l != &f->parts; l = l->next)
		if (container_of(l, struct part, with)->op->sqe.op == WIRE_OP_LOAD)
			return true;
	return false;
}

/* What Redis said to a PROBE. */
static enum step look(struct flight *f)
{
	const int error = f->xfer.status;

	if (f->xfer.op != XFER_PROBE)
		return FLIGHT_ROOM;
	f->xfer.op = XFER_READ;
	if (error == 0 && f->xfer.bytes > 0) /* 0: there is a value of some size */
		f->bytes = f->xfer.bytes;
	if (error == -EBADMSG)
		stats_add(&counters(f)->tiers_redis_corrupt_blocks_total, 1);
	/* a Redis user who may not ask, but perhaps read */
	if ((error == -EACCES || error == -EREMOTEIO) && has_load(f))
		stats_add(&counters(f)->tiers_redis_unasked_blocks_total, 1);
	return error ? FLIGHT_MISS : FLIGHT_ROOM;
}

static enum step bad(struct flight *f)
{
	stats_add(&counters(f)->tiers_redis_corrupt_blocks_total, 1);
	tier_condemn(f->w.all->store->tiers[TIER_REDIS], f->xfer.seal, f->xfer.buffer,
		     f->xfer.bytes);
	return FLIGHT_MISS;
}

static enum step failed(struct flight *f)
{
	const struct xfer *x = &f->xfer;
	const uint32_t usual = walk_space(&f->w)->shape.image_bytes;

	if (x->status == -EFBIG && f->bytes == usual && x->bytes > f->bytes) {
		f->bytes = x->bytes; /* stored raw: its codec could not hold it */
		f->asked = true;
		return FLIGHT_ROOM;
	}
	if (x->status == -EBADMSG)
		stats_add(&counters(f)->tiers_redis_corrupt_blocks_total, 1);
	return FLIGHT_MISS;
}

const struct source_ops from_redis = {
	.begin = begin,
	.look = look,
	.failed = failed,
	.bad = bad,
};
