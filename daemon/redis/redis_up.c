/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_up.c - the Redis tier's bring-up. Contract in redis_up.h.
 *
 * The tier closes before the outbox: closing it ends the outbox's last transfers, which give back
 * leases and slots.
 */
#include "redis_up.h"

#include <stdio.h>

#include "outbox.h"
#include "daemon/config/config.h"
#include "daemon/kvtierd.h"
#include "tiers/redis/redis.h"

int redis_up(struct kvtierd *d, struct redis_tier_conf *options, char *text, size_t n)
{
	const struct tier_conf conf = { .redis = options };
	struct tier **redis = &d->store.tiers[TIER_REDIS];
	int r;

	if (options->n_endpoints == 0)
		return 0;
	/* one xfer a part of an op, and the writes */
	options->max_in_flight = d->config->device_depth + OUTBOX_WRITES;
	r = tier_open(TIER_REDIS, &conf, d->loop, redis, text, n);
	if (r)
		return r;
	r = outbox_open(&d->store, *redis, d->loop, d->config, &d->store.outbox);
	if (r) {
		(void)snprintf(text, n, "out of memory for what is to be written to Redis");
		return r;
	}
	d->store.mover.inherit = outbox_inherit;
	d->store.mover.disinherit = outbox_disinherit;
	d->store.mover.heir = d->store.outbox;
	return 0;
}

void redis_down(struct kvtierd *d)
{
	struct tier **redis = &d->store.tiers[TIER_REDIS];

	d->store.mover.inherit = NULL;
	d->store.mover.disinherit = NULL;
	outbox_stop(d->store.outbox);
	tier_close(*redis);
	*redis = NULL;
	outbox_close(d->store.outbox);
	d->store.outbox = NULL;
}
