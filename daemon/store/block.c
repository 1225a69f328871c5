/* SPDX-License-Identifier: Apache-2.0 */
/*
 * block.c - the table of blocks: names, numbers, chain. Recency is evict.c's, fingerprints are index.c's, where the
 * image lies is block_copies.c's. Core thread only.
 *
 * A block is a number into parallel arrays: 32 bytes of key, 13 of places, 20 in evict.c, and 30.5 in the
 * index: 95.5 in all. States of a number:
 *
 *	  ┌─────────────────────────── blocks_drop ───────────────────────────┐
 *	  v                                                                   │
 *	free ── blocks_commit, blocks_commit_away ──> live ───────────────────┘
 *	  ^                         ┌───────────────────┘ blocks_condemn
 *	  │                         v
 *	  │                     condemned ── last unpin ──> ripe ── blocks_condemned ──> tomb
 *	  │                         └────── last unpin of one that has no slot ───────────^│
 *	  └────────────────────────────── no children (any more) ──────────────────────────┘
 *
 * A live number has copies as block.h draws it: "away" is a live one without a host slot, and exactly then evict.c
 * has it as away. The tiers that its index entry names are those copies.
 *
 * A tomb holds nothing but its number: its children still name it as their parent, so the number may not
 * be given to another block before the last of them went. There are never more tombs than children of tombs.
 */
#include "block_inner.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>

#include "index.h"

static void *reserve(uint64_t bytes)
{
	void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
			  -1, 0);

	return base == MAP_FAILED ? NULL : base;
}

static uint32_t account_of(void *arg, uint32_t block)
{
	return blocks_account(arg, block);
}

int blocks_open(const struct blocks_conf *conf, struct index *index, struct blocks **ret)
{
	struct evict_groups groups = { .n = BLOCK_ACCOUNTS, .of = account_of };
	struct blocks *blocks;
	uint64_t seed;
	int r;

	if (conf->max_blocks == 0 || conf->max_blocks >= BLOCK_NONE || conf->classes > TIER_MAX_CLASSES)
		return -EINVAL;
	if (getrandom(&seed, sizeof(seed), 0) != sizeof(seed))
		return -EIO;
	blocks = calloc(1, sizeof(*blocks));
	if (!blocks)
		return -ENOMEM;
	blocks->index = index;
	blocks->max_blocks = conf->max_blocks;
	blocks->free = blocks->ripe = BLOCK_NONE;
	r = -ENOMEM;
	blocks->name = reserve((uint64_t)conf->max_blocks * sizeof(union name));
	if (!blocks->name)
		goto fail;
	blocks->place = reserve((uint64_t)conf->max_blocks * sizeof(struct place));
	if (!blocks->place)
		goto fail;
	blocks->space = reserve((uint64_t)TIER_MAX_SPACES * sizeof(struct space_blocks));
	if (!blocks->space)
		goto fail;
	groups.arg = blocks;
	blocks->accounts = 1;
	for (uint32_t i = 0; i < BLOCK_ACCOUNTS; i++)
		blocks->account[i].space = BLOCK_NONE;
	r = evict_open_groups(conf->max_blocks, TIER_MAX_CLASSES, &groups, seed, &blocks->evict);
	if (r < 0)
		goto fail;
	*ret = blocks;
	return 0;
fail:
	blocks_close(blocks);
	return r;
}

void blocks_close(struct blocks *blocks)
{
	if (!blocks)
		return;
	evict_close(blocks->evict);
	if (blocks->space)
		(void)munmap(blocks->space, (uint64_t)TIER_MAX_SPACES * sizeof(struct space_blocks));
	if (blocks->place)
		(void)munmap(blocks->place, (uint64_t)blocks->max_blocks * sizeof(struct place));
	if (blocks->name)
		(void)munmap(blocks->name, (uint64_t)blocks->max_blocks * sizeof(union name));
	free(blocks);
}

static void number_free(struct blocks *blocks, uint32_t block)
{
	blocks->place[block].state = BLOCK_FREE;
	blocks->name[block].next = blocks->free;
	blocks->free = block;
}

/* BLOCK_NONE: none left. */
static uint32_t number_take(struct blocks *blocks)
{
	const uint32_t block = blocks->free;

	if (block != BLOCK_NONE) {
		blocks->free = blocks->name[block].next;
		return block;
	}
	return blocks->used < blocks->max_blocks ? blocks->used++ : BLOCK_NONE;
}

void block_tomb_settle(struct blocks *blocks, uint32_t block)
{
	if (block == BLOCK_NONE || blocks->place[block].state != BLOCK_TOMB)
		return;
	if (evict_children(blocks->evict, block))
		return;
	(void)evict_remove(blocks->evict, block);
	number_free(blocks, block);
}

static void condemned_settle(struct blocks *blocks, uint32_t block)
{
	struct place *place = &blocks->place[block];

	if (place->state != BLOCK_CONDEMNED || evict_pins(blocks->evict, block))
		return;
	blocks->space[place->space].held--;
	if (block_away(blocks, block)) {	/* nothing to return */
		place->state = BLOCK_TOMB;
		block_tomb_settle(blocks, block);
		return;
	}
	place->state = BLOCK_RIPE;
	blocks->name[block].next = blocks->ripe;
	blocks->ripe = block;
}

uint32_t blocks_find(const struct blocks *blocks, const uint8_t key[32], uint32_t space)
{
	uint32_t found[2 * WIRE_BUCKET_ENTRIES];	/* no fingerprint can be there more often */
	const struct print print = block_print(blocks, key, space);
	const uint32_t n = index_find(blocks->index, &print, found, 2 * WIRE_BUCKET_ENTRIES);

	for (uint32_t i = 0; i < n; i++)
		if (blocks->place[found[i]].space == space &&
		    memcmp(blocks->name[found[i]].key, key, 32) == 0)
			return found[i];
	return BLOCK_NONE;
}

uint32_t block_linkable(const struct blocks *blocks, uint32_t parent, uint32_t space)
{
	if (parent == BLOCK_NONE || !block_live(blocks, parent) || block_away(blocks, parent))
		return BLOCK_NONE;
	return blocks->place[parent].space == space ? parent : BLOCK_NONE;
}

/* The part that both commits share: a number with name, space and a place in the index, but in no chain yet. It is
 * the caller's to settle copies and chain before anything else is called. */
static int enter(struct blocks *blocks, const uint8_t key[32], uint32_t space, uint32_t variant, enum tier_id tier,
		 uint32_t *ret)
{
	const struct print print = block_print(blocks, key, space);
	struct space_blocks *of = &blocks->space[space];
	uint32_t block;
	int r;

	assert(space < TIER_MAX_SPACES && variant <= 1);
	if (blocks_find(blocks, key, space) != BLOCK_NONE)
		return -EEXIST;
	block = number_take(blocks);
	if (block == BLOCK_NONE)
		return -ENOSPC;
	r = index_insert(blocks->index, &print, block, 1u << tier, ++blocks->commits);
	if (r < 0) {
		blocks->crowded += r == -EXFULL;
		number_free(blocks, block);
		return r;
	}
	memcpy(blocks->name[block].key, key, 32);
	blocks->place[block] = (struct place){ .slot = BLOCK_NONE, .space = space & 0x7fffu, .state = BLOCK_LIVE };
	of->count[variant]++;
	of->held++;
	blocks->doomed += of->doomed;
	blocks->count++;
	*ret = block;
	return 0;
}

int blocks_commit(struct blocks *blocks, const uint8_t key[32], uint32_t space, uint32_t parent, uint32_t variant,
		  const struct extent *host, uint32_t *ret)
{
	const uint32_t above = block_linkable(blocks, parent, space);	/* first: its number may be the next taken */
	uint32_t block;
	const int r = enter(blocks, key, space, variant, TIER_HOST, &block);

	if (r < 0)
		return r;
	block_host_put(blocks, block, host);
	evict_add(blocks->evict, block, above, host->class, blocks->tick);
	evict_set_mark(blocks->evict, block, variant);
	*ret = block;
	return 0;
}

int blocks_commit_away(struct blocks *blocks, const uint8_t key[32], uint32_t space, uint32_t variant,
		       const struct extent *nvme, uint64_t tick, uint32_t *ret)
{
	uint32_t block;
	const int r = enter(blocks, key, space, variant, TIER_NVME, &block);

	if (r < 0)
		return r;
	evict_add_away(blocks->evict, block, tick);
	evict_set_mark(blocks->evict, block, variant);
	block_nvme_put(blocks, block, nvme);
	if (tick > blocks->tick)
		blocks->tick = tick;
	*ret = block;
	return 0;
}

void blocks_touch(struct blocks *blocks, uint32_t block, uint64_t tick)
{
	assert(block_held(blocks, block));
	if (tick > blocks->tick)
		blocks->tick = tick;
	evict_touch(blocks->evict, block, tick);
}

void blocks_pin(struct blocks *blocks, uint32_t block)
{
	assert(block_held(blocks, block));
	evict_pin(blocks->evict, block);
}

void blocks_unpin(struct blocks *blocks, uint32_t block)
{
	assert(block_held(blocks, block));
	evict_unpin(blocks->evict, block);
	condemned_settle(blocks, block);
}

uint32_t blocks_pins(const struct blocks *blocks, uint32_t block)
{
	assert(block_held(blocks, block));
	return evict_pins(blocks->evict, block);
}

uint32_t blocks_parent(const struct blocks *blocks, uint32_t block)
{
	assert(block_held(blocks, block));
	const uint32_t parent = evict_parent(blocks->evict, block);

	return block_live(blocks, parent) ? parent : BLOCK_NONE;
}

bool blocks_live(const struct blocks *blocks, uint32_t block)
{
	return block_live(blocks, block);
}

bool blocks_leaf(const struct blocks *blocks, uint32_t block)
{
	assert(block_held(blocks, block));
	return evict_children(blocks->evict, block) == 0;
}

bool blocks_evictable(const struct blocks *blocks, uint32_t block)
{
	return block_live(blocks, block) && evict_pins(blocks->evict, block) == 0 &&
	       evict_children(blocks->evict, block) == 0;
}

uint64_t blocks_tick(const struct blocks *blocks, uint32_t block)
{
	assert(block_held(blocks, block));
	return evict_tick(blocks->evict, block);
}

uint32_t blocks_space(const struct blocks *blocks, uint32_t block)
{
	assert(block_held(blocks, block));
	return blocks->place[block].space;
}

uint32_t blocks_variant(const struct blocks *blocks, uint32_t block)
{
	assert(block_held(blocks, block));
	return evict_mark(blocks->evict, block) & MARK_VARIANT;
}

const uint8_t *blocks_key(const struct blocks *blocks, uint32_t block)
{
	assert(block_held(blocks, block));
	return blocks->name[block].key;
}

/* The part that drop and condemn share: nobody finds the block any more. Its slot stays, for its holders. */
static void vanish(struct blocks *blocks, uint32_t block)
{
	struct place *place = &blocks->place[block];
	const struct print print = block_print(blocks, blocks->name[block].key, place->space);
	struct space_blocks *of = &blocks->space[place->space];

	index_remove(blocks->index, &print, block);
	of->count[blocks_variant(blocks, block)]--;
	blocks->doomed -= of->doomed;
	blocks->count--;
	block_nvme_clear(blocks, block);
}

uint32_t blocks_drop(struct blocks *blocks, uint32_t block)
{
	assert(blocks_evictable(blocks, block));
	const uint32_t slot = blocks->place[block].slot, class = evict_class(blocks->evict, block);
	uint32_t parent;

	vanish(blocks, block);
	blocks->space[blocks->place[block].space].held--;
	parent = evict_remove(blocks->evict, block);
	if (slot != BLOCK_NONE)
		block_host_gone(blocks, block, class);
	block_tomb_settle(blocks, parent);
	number_free(blocks, block);
	return slot;
}

void blocks_condemn(struct blocks *blocks, uint32_t block)
{
	assert(block_live(blocks, block));
	vanish(blocks, block);
	blocks->place[block].state = BLOCK_CONDEMNED;
	const uint32_t class = evict_class(blocks->evict, block), parent = evict_hide(blocks->evict, block);

	if (!block_away(blocks, block))
		block_host_gone(blocks, block, class);
	block_tomb_settle(blocks, parent);
	condemned_settle(blocks, block);
}

bool blocks_condemned(struct blocks *blocks, uint32_t *ret_slot)
{
	const uint32_t block = blocks->ripe;

	if (block == BLOCK_NONE)
		return false;
	*ret_slot = blocks->place[block].slot;
	blocks->ripe = blocks->name[block].next;
	blocks->place[block].state = BLOCK_TOMB;
	block_tomb_settle(blocks, block);
	return true;
}

void blocks_free_condemned(struct blocks *blocks, struct tier *host)
{
	struct extent where;
	uint32_t slot;

	while (blocks_condemned(blocks, &slot)) {
		const int err = tier_extent(host, slot, &where);

		assert(!err);	/* a slot is in use as long as its block has it */
		tier_free(host, &where);
	}
}

bool blocks_walk(struct blocks *blocks, uint32_t *cursor, uint32_t budget,
		 void (*fn)(void *arg, uint32_t block), void *arg)
{
	while (budget-- > 0 && *cursor < blocks->used) {
		const uint32_t block = (*cursor)++;

		if (block_live(blocks, block))
			fn(arg, block);
	}
	return *cursor < blocks->used;
}

uint32_t blocks_count(const struct blocks *blocks)
{
	return blocks->count;
}

uint32_t blocks_host_count(const struct blocks *blocks)
{
	return blocks->host_count;
}

uint32_t blocks_nvme_count(const struct blocks *blocks)
{
	return blocks->nvme_count;
}

void blocks_space_is(struct blocks *blocks, uint32_t space, const uint8_t index_key[16])
{
	assert(space < TIER_MAX_SPACES && blocks->space[space].held == 0);
	blocks->space[space] = (struct space_blocks){ .index_key = fingerprint_key_of(index_key) };
}

uint32_t blocks_space_count(const struct blocks *blocks, uint32_t space)
{
	assert(space < TIER_MAX_SPACES);
	return blocks->space[space].count[0] + blocks->space[space].count[1];
}

uint32_t blocks_space_variant_count(const struct blocks *blocks, uint32_t space, uint32_t variant)
{
	assert(space < TIER_MAX_SPACES && variant <= 1);
	return blocks->space[space].count[variant];
}

uint32_t blocks_space_held(const struct blocks *blocks, uint32_t space)
{
	assert(space < TIER_MAX_SPACES);
	return blocks->space[space].held;
}

void blocks_space_doom(struct blocks *blocks, uint32_t space, bool doomed)
{
	struct space_blocks *of = &blocks->space[space];
	const uint32_t count = blocks_space_count(blocks, space);

	blocks->doomed = blocks->doomed - of->doomed * count + doomed * count;
	of->doomed = doomed;
}

uint32_t blocks_doomed(const struct blocks *blocks)
{
	return blocks->doomed;
}

void blocks_walk_doomed(struct blocks *blocks, uint32_t *cursor, uint32_t numbers, uint32_t budget,
			void (*fn)(void *arg, uint32_t block), void *arg)
{
	while (numbers-- > 0 && budget > 0 && blocks->doomed > 0) {
		const uint32_t block = *cursor < blocks->used ? *cursor : 0;

		*cursor = block + 1;
		if (!block_live(blocks, block) || !blocks->space[blocks->place[block].space].doomed)
			continue;
		fn(arg, block);
		budget--;
	}
}

uint64_t blocks_crowded(const struct blocks *blocks)
{
	return blocks->crowded;
}

uint64_t blocks_memory(const struct blocks *blocks)
{
	const uint64_t block_bytes = sizeof(union name) + sizeof(struct place) + evict_block_bytes();

	return sizeof(*blocks) + blocks->used * block_bytes;
}
