/* SPDX-License-Identifier: Apache-2.0 */
/*
 * herd.c - see herd.h. Core thread only.
 */
#include "herd.h"

#include <assert.h>

#include "tally.h"

uint32_t herd_victim(const struct blocks *blocks, uint32_t class, uint64_t *ret_tick)
{
	uint64_t least = UINT64_MAX, tick = 0;
	uint32_t ret = BLOCK_NONE;

	for (uint32_t i = 0; i < tally_accounts(blocks_tally(blocks)); i++) {
		const uint32_t block = blocks_account_victim(blocks, i, class, &tick);

		if (block == BLOCK_NONE || tick > least || (tick == least && block > ret))
			continue;
		least = tick;
		ret = block;
	}
	if (ret != BLOCK_NONE && ret_tick)
		*ret_tick = least;
	return ret;
}

uint32_t herd_sample_away(const struct blocks *blocks, uint32_t *hand, uint32_t budget)
{
	uint32_t best = BLOCK_NONE;

	for (uint32_t i = 0; i < budget && i < blocks_used(blocks); i++) {
		const uint32_t block = *hand < blocks_used(blocks) ? *hand : 0;

		*hand = block + 1;
		if (!blocks_evictable(blocks, block) ||
		    blocks_host_slot(blocks, block) != BLOCK_NONE)
			continue;
		if (best == BLOCK_NONE || blocks_tick(blocks, block) < blocks_tick(blocks, best))
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
