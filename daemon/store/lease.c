/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lease.c - pins with an owner. `stats.leases` counts those held, so a leak shows.
 */
#include "lease.h"

#include <assert.h>

#include "copies.h"
#include "daemon/kvtierd.h"

void lease_take(struct kvtierd *d, struct lease *lease, uint32_t block)
{
	assert(!lease->held);
	blocks_pin(d->blocks, block);
	lease->block = block;
	lease->held = true;
	stats_add(&d->stats->v.leases, 1);
}

void lease_drop(struct kvtierd *d, struct lease *lease)
{
	if (!lease->held)
		return;
	lease->held = false;
	blocks_unpin(d->blocks, lease->block);
	stats_set(&d->stats->v.leases, stats_get(&d->stats->v.leases) - 1);
	copies_free_condemned(d);
}
