/* SPDX-License-Identifier: Apache-2.0 */
/*
 * extents.c - see extents.h. Core thread only.
 */
#include "extents.h"

#include <assert.h>

#include "block.h"
#include "store.h"

static struct tier *tier_of(const struct store *store, const struct extent *where)
{
	return where->tier < TIER_COUNT ? store->tiers[where->tier] : NULL;
}

void extents_free(const struct store *store, const struct extent *where)
{
	tier_free(tier_of(store, where), where);
}

uint8_t *extents_address(const struct store *store, const struct extent *where)
{
	return tier_address(tier_of(store, where), where);
}

uint32_t extents_bytes(const struct store *store, const struct extent *where)
{
	return tier_extent_bytes(tier_of(store, where), where);
}

void extents_set_owner(const struct store *store, const struct extent *where, uint32_t block)
{
	tier_set_owner(tier_of(store, where), where, block);
}

bool extents_readable(const struct store *store, const struct extent *where)
{
	return tier_readable(tier_of(store, where), &(struct tier_name){ .where = where });
}

void extents_forget(const struct store *store, const struct extent *where, uint64_t tick)
{
	tier_forget(tier_of(store, where), where, tick);
}

void extents_touch(const struct store *store, const struct extent *where, uint64_t tick,
		   uint64_t now_tick)
{
	tier_touch(tier_of(store, where), where, tick, now_tick);
}

bool extents_in_host(const struct store *store, uint32_t block, struct extent *ret)
{
	const uint32_t slot = blocks_host_slot(store->blocks, block);

	return slot != BLOCK_NONE && tier_extent(store_host(store), slot, ret) == 0;
}

struct extent extents_beside(const struct store *store, uint32_t unit, uint32_t copy)
{
	struct extent ret;
	const int r = tier_slot_numbered(store->tiers[TIER_GPU], unit, copy, &ret);

	assert(r == 0);
	return ret;
}

bool extents_away(const struct store *store, uint32_t block, struct extent *ret)
{
	struct extent where;

	if (!blocks_nvme(store->blocks, block, &where) || !extents_readable(store, &where))
		return false;
	if (ret)
		*ret = where;
	return true;
}

bool extents_durable(const struct store *store, const uint8_t key[32])
{
	const struct tier_name name = { .key = key };

	for (int i = 0; i < TIER_COUNT; i++) {
		const struct tier *t = store->tiers[i];

		if (t && (t->ops->caps & TIER_CAP_DURABLE) && tier_writable(t, &name))
			return true;
	}
	return false;
}
