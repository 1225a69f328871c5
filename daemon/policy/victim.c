/* SPDX-License-Identifier: Apache-2.0 */
/*
 * victim.c - see victim.h. Core thread only.
 */
#include "victim.h"

#include "daemon/table/evict.h"
#include "daemon/table/space_counts.h"

struct candidate {
	uint32_t block;    /* BLOCK_NONE: none */
	uint32_t priority; /* of its tenant */
	uint64_t tick;     /* the block's worth (evict.h), or its last access */
};

static const struct candidate no_candidate = { BLOCK_NONE, UINT32_MAX, UINT64_MAX };

/* A space that has lost its standing: its blocks count as never accessed. */
static bool lowered(const struct blocks *blocks, uint32_t account)
{
	const struct space_counts *counts = blocks_counts(blocks);
	const uint32_t space = counts_account_space(counts, account);

	return space != COUNTS_NO_SPACE && counts_standing(counts, space) != HINT_USUAL;
}

/* The first block of an account and a band by its worth. */
static struct candidate first_of(const struct blocks *blocks, uint32_t account, uint32_t class,
				 enum evict_band band)
{
	const struct evict *order = blocks_order(blocks);
	const uint64_t now = blocks_latest(blocks);
	struct candidate ret = {
		.block = band == EVICT_EXPECTED ? evict_farthest(order, account, class, now) :
						  evict_victim(order, account, class, band),
		.priority = counts_account_priority(blocks_counts(blocks), account),
	};

	if (ret.block == BLOCK_NONE)
		return no_candidate;
	ret.tick = lowered(blocks, account) ? 0 : evict_worth(order, ret.block, now);
	return ret;
}

/* The first block of an account and a band by its last access, which blocks of FIRST do not have.
 */
static struct candidate least_recent(const struct blocks *blocks, uint32_t account, uint32_t class,
				     enum evict_band band)
{
	struct candidate ret = {
		.block = evict_victim(blocks_order(blocks), account, class, band),
		.priority = counts_account_priority(blocks_counts(blocks), account),
	};

	if (ret.block == BLOCK_NONE)
		return no_candidate;
	if (band != EVICT_FIRST && !lowered(blocks, account))
		ret.tick = evict_tick(blocks_order(blocks), ret.block);
	return ret;
}

static bool goes_before(const struct candidate *a, const struct candidate *b)
{
	if (a->priority != b->priority)
		return a->priority < b->priority;
	return a->tick != b->tick ? a->tick < b->tick : a->block < b->block;
}

static bool may_take(const struct victim_filter *filter, uint32_t account)
{
	return !filter || filter->may_take(filter->arg, account);
}

/* Picks the tenant that pays: among those of the lowest priority, the one with the least recent
 * block, whatever hints say of that block. QUOTA_TENANTS: there is no block. */
static uint32_t who_pays(const struct blocks *blocks, uint32_t class,
			 const struct victim_filter *filter)
{
	struct candidate least = no_candidate;
	uint32_t tenant = QUOTA_TENANTS;

	for (uint32_t i = 0; i < counts_accounts(blocks_counts(blocks)); i++) {
		struct candidate oldest = no_candidate;

		for (int band = EVICT_FIRST; band < EVICT_BANDS; band++) {
			const struct candidate c =
				least_recent(blocks, i, class, (enum evict_band)band);

			if (c.block != BLOCK_NONE && goes_before(&c, &oldest))
				oldest = c;
		}
		if (oldest.block == BLOCK_NONE)
			continue;
		if (!may_take(filter, i)) {
			*filter->ret_spared = true;
		} else if (goes_before(&oldest, &least)) {
			least = oldest;
			tenant = counts_account_tenant(blocks_counts(blocks), i);
		}
	}
	return tenant;
}

/* The first block in the order that hints ask for; without hints there is one band. tenant: only
 * this tenant's blocks; QUOTA_TENANTS: all. */
static struct candidate pick(const struct blocks *blocks, uint32_t class,
			     const struct victim_filter *filter, bool hinted, uint32_t tenant)
{
	const struct space_counts *counts = blocks_counts(blocks);
	struct candidate best = no_candidate;

	for (uint32_t i = 0; i < counts_accounts(counts); i++) {
		if (tenant != QUOTA_TENANTS && counts_account_tenant(counts, i) != tenant)
			continue;
		for (int band = hinted ? EVICT_FIRST : EVICT_USUAL;
		     band < (hinted ? EVICT_BANDS : EVICT_KEPT); band++) {
			const struct candidate c =
				first_of(blocks, i, class, (enum evict_band)band);

			if (c.block == BLOCK_NONE)
				continue;
			if (!may_take(filter, i))
				*filter->ret_spared = true;
			else if ((band != EVICT_HELD || c.tick == 0) && goes_before(&c, &best))
				best = c;
		}
	}
	return best;
}

uint32_t victim_of(const struct blocks *blocks, uint32_t class, const struct victim_filter *filter,
		   uint64_t *ret_tick)
{
	const bool hinted =
		evict_banded(blocks_order(blocks)) > 0 || counts_unusual(blocks_counts(blocks)) > 0;
	const uint32_t tenant = hinted ? who_pays(blocks, class, filter) : QUOTA_TENANTS;
	struct candidate best = pick(blocks, class, filter, hinted, tenant);

	if (best.block == BLOCK_NONE && tenant != QUOTA_TENANTS)
		best = pick(blocks, class, filter, hinted, QUOTA_TENANTS);
	if (best.block != BLOCK_NONE && ret_tick)
		*ret_tick = best.tick;
	return best.block;
}

uint64_t victim_worth(const struct blocks *blocks, uint32_t block)
{
	if (counts_standing(blocks_counts(blocks), blocks_space(blocks, block)) == HINT_RETIRED)
		return 0;
	return evict_worth(blocks_order(blocks), block, blocks_latest(blocks));
}

uint32_t victim_away(const struct blocks *blocks, uint32_t *hand, uint32_t budget,
		     bool (*may_drop)(void *arg, uint32_t space), void *arg)
{
	struct candidate best = no_candidate, c;

	for (uint32_t i = 0; i < budget && i < blocks_used(blocks); i++) {
		const uint32_t block = *hand < blocks_used(blocks) ? *hand : 0;

		*hand = block + 1;
		if (!blocks_evictable(blocks, block) ||
		    blocks_host_slot(blocks, block) != BLOCK_NONE ||
		    (may_drop && !may_drop(arg, blocks_space(blocks, block))))
			continue;
		c = (struct candidate){
			block, counts_priority(blocks_counts(blocks), blocks_space(blocks, block)),
			victim_worth(blocks, block)
		};
		if (best.block == BLOCK_NONE || goes_before(&c, &best))
			best = c;
	}
	return best.block;
}
