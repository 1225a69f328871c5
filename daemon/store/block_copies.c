/* SPDX-License-Identifier: Apache-2.0 */
/*
 * block_copies.c - the copies that a block has: a host slot, a place on NVMe, or both, as block.h draws it. Core
 * thread only.
 *
 * Three things change together when the host copy comes or goes: the slot, the tiers that the index entry names
 * (with a new generation), and whether evict.c has the block in its chain or as away. An NVMe copy changes the entry
 * alone, so it may come, move and go under pins. The space's account (block_inner.h) follows the host copy.
 */
#include "block_inner.h"

#include "index.h"

void block_nvme_put(struct blocks *blocks, uint32_t block, const struct extent *where)
{
	struct place *place = &blocks->place[block];

	assert(where->tier == TIER_NVME && where->unit < 1 << 4 && where->generation < 1 << 20);
	blocks->nvme_count += !place->has_nvme;
	place->has_nvme = 1;
	place->nvme_slot = where->slot;
	place->nvme_generation = where->generation & 0xfffffu;
	evict_set_mark(blocks->evict, block, (evict_mark(blocks->evict, block) & MARK_VARIANT) |
					     (uint32_t)where->unit << MARK_DISK_SHIFT);
}

void block_nvme_clear(struct blocks *blocks, uint32_t block)
{
	blocks->nvme_count -= blocks->place[block].has_nvme;
	blocks->place[block].has_nvme = 0;
}

/* --- accounts --- */

/* With its first host copy a space gets an account, if one is free, and keeps it until the last has gone. */
static void account_open(struct blocks *blocks, uint32_t space)
{
	uint32_t i = 1;

	while (i < BLOCK_ACCOUNTS && blocks->account[i].space != BLOCK_NONE)
		i++;
	if (i == BLOCK_ACCOUNTS) {
		blocks->space[space].account = ACCOUNT_SHARED;
		return;
	}
	blocks->account[i].space = space;
	blocks->space[space].account = i;
	if (i >= blocks->accounts)
		blocks->accounts = i + 1;
}

static void account_close(struct blocks *blocks, uint32_t space)
{
	const uint32_t i = blocks->space[space].account;

	blocks->space[space].account = ACCOUNT_SHARED;
	if (i == ACCOUNT_SHARED)
		return;
	blocks->account[i].space = BLOCK_NONE;
	while (blocks->accounts > 1 && blocks->account[blocks->accounts - 1].space == BLOCK_NONE)
		blocks->accounts--;
}

void block_host_put(struct blocks *blocks, uint32_t block, const struct extent *host)
{
	const uint32_t space = blocks->place[block].space;

	assert(host->tier == TIER_HOST && host->slot != BLOCK_NONE && host->class < TIER_MAX_CLASSES);
	if (blocks->space[space].host++ == 0)
		account_open(blocks, space);
	blocks->account[blocks->space[space].account].slots[host->class]++;
	blocks->place[block].slot = host->slot;
	blocks->host_count++;
}

void block_host_gone(struct blocks *blocks, uint32_t block, uint32_t class)
{
	const uint32_t space = blocks->place[block].space;
	struct account *account = &blocks->account[blocks->space[space].account];

	assert(blocks->space[space].host > 0 && account->slots[class] > 0);
	blocks->host_count--;
	account->slots[class]--;
	if (--blocks->space[space].host == 0)
		account_close(blocks, space);
}

uint32_t blocks_accounts(const struct blocks *blocks)
{
	return blocks->accounts;
}

uint32_t blocks_account(const struct blocks *blocks, uint32_t block)
{
	return blocks->space[blocks->place[block].space].account;
}

uint32_t blocks_account_of(const struct blocks *blocks, uint32_t space)
{
	assert(space < TIER_MAX_SPACES);
	return blocks->space[space].account;
}

uint32_t blocks_account_space(const struct blocks *blocks, uint32_t account)
{
	assert(account < blocks->accounts);
	return blocks->account[account].space;
}

uint32_t blocks_account_slots(const struct blocks *blocks, uint32_t account, uint32_t class)
{
	assert(account < blocks->accounts && class < TIER_MAX_CLASSES);
	return blocks->account[account].slots[class];
}

uint32_t blocks_account_victim(const struct blocks *blocks, uint32_t account, uint32_t class, uint64_t *ret_tick)
{
	const uint32_t block = evict_group_victim(blocks->evict, account, class);

	if (block != BLOCK_NONE)
		*ret_tick = evict_tick(blocks->evict, block);
	return block;
}

uint32_t blocks_victim(const struct blocks *blocks, uint32_t class, uint64_t *ret_tick)
{
	uint64_t least = UINT64_MAX, tick = 0;
	uint32_t ret = BLOCK_NONE;

	for (uint32_t i = 0; i < blocks->accounts; i++) {
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

/* --- copies --- */

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
					.unit = (uint8_t)(evict_mark(blocks->evict, block) >> MARK_DISK_SHIFT),
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
	struct account *account = &blocks->account[blocks_account(blocks, block)];

	blocks->place[block].slot = to->slot;
	account->slots[evict_class(blocks->evict, block)]--;
	account->slots[to->class]++;
	evict_move(blocks->evict, block, to->class);
}

uint32_t blocks_demote(struct blocks *blocks, uint32_t block)
{
	assert(block_live(blocks, block) && !block_away(blocks, block) && blocks->place[block].has_nvme);
	const uint32_t slot = blocks->place[block].slot, class = evict_class(blocks->evict, block);
	uint32_t parent;

	blocks->place[block].slot = BLOCK_NONE;
	publish(blocks, block);
	parent = evict_leave(blocks->evict, block);
	block_host_gone(blocks, block, class);
	block_tomb_settle(blocks, parent);
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
