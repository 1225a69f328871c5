/* SPDX-License-Identifier: Apache-2.0 */
/*
 * herd.c - see herd.h. Core thread only.
 */
#include "herd.h"

#include <assert.h>

#include "evict.h"
#include "tally.h"

/* --- who goes next --- */

/* One who might. */
struct candidate {
	uint32_t block; /* BLOCK_NONE: nobody */
	uint32_t band;
	uint64_t tick;
};

static const struct candidate nobody = { BLOCK_NONE, EVICT_BANDS, UINT64_MAX };

/* Of an account and a band. Bands of a space that has lost its standing are one, the first. */
static struct candidate first_of(const struct blocks *blocks, uint32_t account, uint32_t class,
				 enum evict_band band)
{
	const struct tally *tally = blocks_tally(blocks);
	const uint32_t block = evict_band_victim(blocks_order(blocks), account, class, band),
		       space = tally_account_space(tally, account);
	const bool fallen = space != TALLY_NO_SPACE && tally_standing(tally, space) != HINT_USUAL;

	if (block == BLOCK_NONE)
		return nobody;
	if (fallen || band == EVICT_FIRST)
		return (struct candidate){ block, EVICT_FIRST, 0 };
	return (struct candidate){ block, band, evict_tick(blocks_order(blocks), block) };
}

static bool goes_before(const struct candidate *a, const struct candidate *b)
{
	if (a->band != b->band)
		return a->band < b->band;
	return a->tick != b->tick ? a->tick < b->tick : a->block < b->block;
}

static uint32_t tenant_of(const struct blocks *blocks, uint32_t account)
{
	const struct tally *tally = blocks_tally(blocks);
	const uint32_t space = tally_account_space(tally, account);

	return space == TALLY_NO_SPACE ? TALLY_MIXED : tally_tenant(tally, space);
}

static bool may_take(const struct herd_filter *filter, uint32_t account)
{
	return !filter || filter->may_take(filter->arg, account);
}

/* The tenant whose block is the least recent of all, whatever it is kept for; NULL: there is no
 * block. */
static bool who_pays(const struct blocks *blocks, uint32_t class, const struct herd_filter *filter,
		     uint32_t *ret_tenant)
{
	uint64_t least = UINT64_MAX;

	for (uint32_t i = 0; i < tally_accounts(blocks_tally(blocks)); i++) {
		uint64_t tick = UINT64_MAX;

		for (int band = EVICT_FIRST; band < EVICT_BANDS; band++) {
			const struct candidate c =
				first_of(blocks, i, class, (enum evict_band)band);

			tick = c.tick < tick ? c.tick : tick;
		}
		if (tick == UINT64_MAX)
			continue;
		if (!may_take(filter, i)) {
			*filter->ret_spared = true;
		} else if (tick < least) {
			least = tick;
			*ret_tenant = tenant_of(blocks, i);
		}
	}
	return least != UINT64_MAX;
}

/* all: of all tenants, not of this one alone. */
static struct candidate pick(const struct blocks *blocks, uint32_t class,
			     const struct herd_filter *filter, uint32_t tenant, bool all)
{
	struct candidate best = nobody;

	for (uint32_t i = 0; i < tally_accounts(blocks_tally(blocks)); i++) {
		if ((!all && tenant_of(blocks, i) != tenant) || !may_take(filter, i))
			continue;
		for (int band = EVICT_FIRST; band < EVICT_BANDS; band++) {
			const struct candidate c =
				first_of(blocks, i, class, (enum evict_band)band);

			if (c.band < EVICT_HELD && goes_before(&c, &best))
				best = c;
		}
	}
	return best;
}

/* Without any hints: one order for each account. */
static struct candidate least_recent(const struct blocks *blocks, uint32_t class,
				     const struct herd_filter *filter)
{
	const struct evict *order = blocks_order(blocks);
	struct candidate best = nobody;

	for (uint32_t i = 0; i < tally_accounts(blocks_tally(blocks)); i++) {
		struct candidate c = { evict_band_victim(order, i, class, EVICT_USUAL), EVICT_USUAL,
				       0 };

		if (c.block == BLOCK_NONE)
			continue;
		c.tick = evict_tick(order, c.block);
		if (!may_take(filter, i))
			*filter->ret_spared = true;
		else if (goes_before(&c, &best))
			best = c;
	}
	return best;
}

uint32_t herd_victim_of(const struct blocks *blocks, uint32_t class,
			const struct herd_filter *filter, uint64_t *ret_tick)
{
	const bool hinted =
		evict_banded(blocks_order(blocks)) > 0 || tally_unusual(blocks_tally(blocks)) > 0;
	struct candidate best = nobody;
	uint32_t tenant;

	if (!hinted)
		best = least_recent(blocks, class, filter);
	else if (who_pays(blocks, class, filter, &tenant))
		best = pick(blocks, class, filter, tenant, false);
	if (hinted && best.block == BLOCK_NONE)
		best = pick(blocks, class, filter, 0, true);
	if (best.block != BLOCK_NONE && ret_tick)
		*ret_tick = best.tick;
	return best.block;
}

uint32_t herd_victim(const struct blocks *blocks, uint32_t class, uint64_t *ret_tick)
{
	return herd_victim_of(blocks, class, NULL, ret_tick);
}

uint64_t herd_worth(const struct blocks *blocks, uint32_t block)
{
	if (tally_standing(blocks_tally(blocks), blocks_space(blocks, block)) == HINT_RETIRED)
		return 0;
	return evict_band(blocks_order(blocks), block) >= EVICT_KEPT ? UINT64_MAX :
								       blocks_tick(blocks, block);
}

/* --- many --- */

uint32_t herd_sample_away(const struct blocks *blocks, uint32_t *hand, uint32_t budget,
			  bool (*may_drop)(void *arg, uint32_t space), void *arg)
{
	uint32_t best = BLOCK_NONE;

	for (uint32_t i = 0; i < budget && i < blocks_used(blocks); i++) {
		const uint32_t block = *hand < blocks_used(blocks) ? *hand : 0;

		*hand = block + 1;
		if (!blocks_evictable(blocks, block) ||
		    blocks_host_slot(blocks, block) != BLOCK_NONE ||
		    (may_drop && !may_drop(arg, blocks_space(blocks, block))))
			continue;
		if (best == BLOCK_NONE || herd_worth(blocks, block) < herd_worth(blocks, best))
			best = block;
	}
	return best;
}

bool herd_walk(struct blocks *blocks, uint32_t *cursor, uint32_t budget,
	       void (*fn)(void *arg, uint32_t block), void *arg)
{
	while (budget-- > 0 && *cursor < blocks_used(blocks)) {
		const uint32_t block = (*cursor)++;

		if (blocks_live(blocks, block))
			fn(arg, block);
	}
	return *cursor < blocks_used(blocks);
}

void herd_walk_doomed(struct blocks *blocks, uint32_t *cursor, uint32_t numbers, uint32_t budget,
		      void (*fn)(void *arg, uint32_t block), void *arg)
{
	const struct tally *tally = blocks_tally(blocks);

	while (numbers-- > 0 && budget > 0 && tally_doomed(tally) > 0) {
		const uint32_t block = *cursor < blocks_used(blocks) ? *cursor : 0;

		*cursor = block + 1;
		if (!blocks_live(blocks, block) ||
		    !tally_is_doomed(tally, blocks_space(blocks, block)))
			continue;
		fn(arg, block);
		budget--;
	}
}

void herd_free_condemned(struct blocks *blocks, struct tier *host)
{
	struct extent where;
	uint32_t slot;

	while (blocks_condemned(blocks, &slot)) {
		const int err = tier_extent(host, slot, &where);

		assert(!err); /* a slot is in use as long as its block has it */
		tier_free(host, &where);
	}
}
