/* SPDX-License-Identifier: Apache-2.0 */
/*
 * block_copies.c - the copies that a block has: a host slot, a place on NVMe, or both, as block.h draws it. Core
 * thread only.
 *
 * Three things change together when the host copy comes or goes: the slot, the tiers that the index entry names
 * (with a new generation), and whether evict.c has the block in its chain or as away. An NVMe copy changes the entry
 * alone, so it may come, move and go under pins.
 */
#include "block_inner.h"

#include "index.h"

void block_nvme_put(struct blocks *blocks, uint32_t block, const struct extent *where)
{
	struct place *place = &blocks->place[block];

	assert(where->tier == TIER_NVME && where->device < 1 << 4 && where->generation < 1 << 20);
	blocks->nvme_count += !place->has_nvme;
	place->has_nvme = 1;
	place->nvme_slot = where->slot;
	place->nvme_generation = where->generation & 0xfffffu;
	evict_set_mark(blocks->evict, block, (evict_mark(blocks->evict, block) & MARK_VARIANT) |
					     (uint32_t)where->device << MARK_DEVICE_SHIFT);
}

void block_nvme_clear(struct blocks *blocks, uint32_t block)
{
	blocks->nvme_count -= blocks->place[block].has_nvme;
	blocks->place[block].has_nvme = 0;
}

void block_host_put(struct blocks *blocks, uint32_t block, const struct extent *host)
{
	assert(host->tier == TIER_HOST && host->slot != BLOCK_NONE);
	blocks->place[block].slot = host->slot;
	blocks->host_count++;
}

static uint32_t tiers_of(const struct blocks *blocks, uint32_t block)
{
	const struct place *place = &blocks->place[block];

	return (place->slot != BLOCK_NONE ? 1u << TIER_HOST : 0) | (place->has_nvme ? 1u << TIER_NVME : 0);
}

/* After a copy came or went. */
static void publish(struct blocks *blocks, uint32_t block)
{
	const struct print print = block_print(blocks, blocks->name[block].key, blocks->place[block].space);

	index_update(blocks->index, &print, block, tiers_of(blocks, block), ++blocks->commits);
}

uint32_t blocks_host_slot(const struct blocks *blocks, uint32_t block)
{
	assert(block_held(blocks, block));
	return blocks->place[block].slot;
}

bool blocks_nvme(const struct blocks *blocks, uint32_t block, struct extent *ret)
{
	const struct place *place = &blocks->place[block];

	assert(block_held(blocks, block));
	if (place->has_nvme && ret)
		*ret = (struct extent){ .tier = TIER_NVME, .slot = place->nvme_slot,
					.device = (uint8_t)(evict_mark(blocks->evict, block) >> MARK_DEVICE_SHIFT),
					.generation = place->nvme_generation };
	return place->has_nvme;
}

void blocks_set_nvme(struct blocks *blocks, uint32_t block, const struct extent *where)
{
	assert(block_live(blocks, block) && (where || !block_away(blocks, block)));
	const uint32_t before = tiers_of(blocks, block);

	if (where)
		block_nvme_put(blocks, block, where);
	else
		block_nvme_clear(blocks, block);
	if (tiers_of(blocks, block) != before)
		publish(blocks, block);
}

/* Nothing that a reader of the index can see changes. */
void blocks_move(struct blocks *blocks, uint32_t block, const struct extent *to)
{
	assert(block_live(blocks, block) && !block_away(blocks, block) && evict_pins(blocks->evict, block) == 0);
	assert(to->tier == TIER_HOST && to->slot != BLOCK_NONE);
	blocks->place[block].slot = to->slot;
	evict_move(blocks->evict, block, to->class);
}

uint32_t blocks_demote(struct blocks *blocks, uint32_t block)
{
	assert(block_live(blocks, block) && !block_away(blocks, block) && blocks->place[block].has_nvme);
	const uint32_t slot = blocks->place[block].slot;

	blocks->place[block].slot = BLOCK_NONE;
	blocks->host_count--;
	publish(blocks, block);
	block_tomb_settle(blocks, evict_leave(blocks->evict, block));
	return slot;
}

void blocks_promote(struct blocks *blocks, uint32_t block, uint32_t parent, const struct extent *host)
{
	assert(block_live(blocks, block) && block_away(blocks, block));
	/* Before it has a slot: a block that is named as its own parent is away, hence none. One that kept children could
	 * be named below one of them, by clients who make keys up: a cycle would never be evicted. */
	const uint32_t above = evict_children(blocks->evict, block)
				       ? BLOCK_NONE
				       : block_linkable(blocks, parent, blocks->place[block].space);

	block_host_put(blocks, block, host);
	evict_return(blocks->evict, block, above, host->class);
	publish(blocks, block);
}

bool blocks_queued(const struct blocks *blocks, uint32_t block)
{
	return block_live(blocks, block) && blocks->place[block].queued;
}

void blocks_set_queued(struct blocks *blocks, uint32_t block, bool queued)
{
	assert(block_live(blocks, block));
	blocks->place[block].queued = queued;
}

uint32_t blocks_sample_away(struct blocks *blocks, uint32_t budget)
{
	uint32_t best = BLOCK_NONE;

	for (uint32_t i = 0; i < budget && i < blocks->used; i++) {
		const uint32_t block = blocks->sample_hand < blocks->used ? blocks->sample_hand : 0;

		blocks->sample_hand = block + 1;
		if (!blocks_evictable(blocks, block) || !block_away(blocks, block))
			continue;
		if (best == BLOCK_NONE || evict_tick(blocks->evict, block) < evict_tick(blocks->evict, best))
			best = block;
	}
	return best;
}
