/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lease.c - pins with an owner. `stats.leases` counts the leases held, so a leak shows.
 */
#include "lease.h"

#include <assert.h>

#include "block.h"
#include "copies.h"
#include "daemon/stats/stats.h"
#include "store.h"

void lease_take(struct store *store, struct lease *lease, uint32_t block)
{
	assert(!lease->held);
	blocks_pin(store->blocks, block);
	lease->block = block;
	lease->held = true;
	stats_add(&store->stats->v.leases, 1);
}

void lease_drop(struct store *store, struct lease *lease)
{
	if (!lease->held)
		return;
	lease->held = false;
	blocks_unpin(store->blocks, lease->block);
	stats_set(&store->stats->v.leases, stats_get(&store->stats->v.leases) - 1);
	copies_free_condemned(store);
}
