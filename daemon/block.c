/* SPDX-License-Identifier: Apache-2.0 */
/*
 * block.c - the table of blocks: name, place, state. Chain and recency are evict.c's, fingerprints index.c's.
 * Core thread only.
 *
 * A block is a number into parallel arrays: 32 bytes of key, 12 of place, 20 in evict.c, and 30.5 in the
 * index: 94.5 in all. States of a number:
 *
 *	  ┌─────────────────────────── blocks_drop ───────────────────────────┐
 *	  v                                                                   │
 *	free ── blocks_commit ──> live ───────────────────────────────────────┘
 *	  ^                         │ blocks_condemn
 *	  │                         v
 *	  │                     condemned ── last unpin ──> ripe ── blocks_condemned ──> tomb
 *	  └────────────────────────────── no children (any more) ──────────────────────────┘
 *
 * A tomb holds nothing but its number: its children still name it as their parent, so the number may not
 * be given to another block before the last of them went. There are never more tombs than children of tombs.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>

#include "block.h"
#include "evict.h"

static_assert((int)BLOCK_NONE == (int)EVICT_NONE, "the same numbers");

enum block_state { BLOCK_FREE = 0, BLOCK_LIVE, BLOCK_CONDEMNED, BLOCK_RIPE, BLOCK_TOMB };

/* The key, or for a number on the free or the ripe list the next one on it. */
union name {
	uint8_t  key[32];
	uint32_t next;
};

struct place {
	uint32_t slot;
	uint32_t generation;
	uint16_t space;
	uint8_t  device;
	uint8_t  tier : 4;
	uint8_t  state : 4;	/* enum block_state */
};
static_assert(sizeof(struct place) == 12, "the memory budget of a block counts on it");

struct blocks {
	struct index *index;
	struct evict *evict;
	union name *name;
	struct place *place;
	uint32_t max_blocks;
	uint32_t used;			/* numbers >= used were never given out */
	uint32_t count;			/* live */
	uint32_t free, ripe;		/* lists; BLOCK_NONE: empty */
	uint32_t commits;		/* generation of the next index entry */
	uint64_t tick;			/* the latest access of any block */
	uint32_t space_count[TIER_MAX_SPACES];
};

static void *reserve(uint64_t bytes)
{
	void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
			  -1, 0);

	return base == MAP_FAILED ? NULL : base;
}

int blocks_open(const struct blocks_conf *conf, struct index *index, struct blocks **ret)
{
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
	r = evict_open(conf->max_blocks, conf->classes, seed, &blocks->evict);
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
	if (blocks->place)
		(void)munmap(blocks->place, (uint64_t)blocks->max_blocks * sizeof(struct place));
	if (blocks->name)
		(void)munmap(blocks->name, (uint64_t)blocks->max_blocks * sizeof(union name));
	free(blocks);
}

static bool is_live(const struct blocks *blocks, uint32_t block)
{
	return block < blocks->used && blocks->place[block].state == BLOCK_LIVE;
}

/* Live, or condemned and still pinned: its holder may go on asking. */
static bool is_held(const struct blocks *blocks, uint32_t block)
{
	return is_live(blocks, block) ||
	       (block < blocks->used && blocks->place[block].state == BLOCK_CONDEMNED);
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

static void tomb_settle(struct blocks *blocks, uint32_t block)
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
	if (blocks->place[block].state != BLOCK_CONDEMNED || evict_pins(blocks->evict, block))
		return;
	blocks->place[block].state = BLOCK_RIPE;
	blocks->name[block].next = blocks->ripe;
	blocks->ripe = block;
}

uint32_t blocks_find(const struct blocks *blocks, const uint8_t key[32], uint32_t space)
{
	uint32_t found[2 * WIRE_BUCKET_ENTRIES];	/* no fingerprint can be there more often */
	const uint32_t n = index_find(blocks->index, key, found, 2 * WIRE_BUCKET_ENTRIES);

	for (uint32_t i = 0; i < n; i++)
		if (blocks->place[found[i]].space == space &&
		    memcmp(blocks->name[found[i]].key, key, 32) == 0)
			return found[i];
	return BLOCK_NONE;
}

int blocks_commit(struct blocks *blocks, const uint8_t key[32], uint32_t space, uint32_t parent,
		  const struct extent *where, uint32_t *ret)
{
	struct place *place;
	uint32_t block;
	int r;

	assert(space < TIER_MAX_SPACES && where->tier < TIER_COUNT);
	if (blocks_find(blocks, key, space) != BLOCK_NONE)
		return -EEXIST;
	block = number_take(blocks);
	if (block == BLOCK_NONE)
		return -ENOSPC;
	r = index_insert(blocks->index, key, block, 1u << where->tier, ++blocks->commits);
	if (r < 0) {
		number_free(blocks, block);
		return r;
	}
	if (parent != BLOCK_NONE && (!is_live(blocks, parent) || blocks->place[parent].space != space))
		parent = BLOCK_NONE;
	place = &blocks->place[block];
	memcpy(blocks->name[block].key, key, 32);
	place->space = (uint16_t)space;
	place->device = where->device;
	place->slot = where->slot;
	place->generation = where->generation;
	place->tier = where->tier & 0xfu;
	place->state = BLOCK_LIVE;
	evict_add(blocks->evict, block, parent, where->class, blocks->tick);
	blocks->space_count[space]++;
	blocks->count++;
	*ret = block;
	return 0;
}

void blocks_touch(struct blocks *blocks, uint32_t block, uint64_t tick)
{
	assert(is_held(blocks, block));
	if (tick > blocks->tick)
		blocks->tick = tick;
	evict_touch(blocks->evict, block, tick);
}

void blocks_pin(struct blocks *blocks, uint32_t block)
{
	assert(is_held(blocks, block));
	evict_pin(blocks->evict, block);
}

void blocks_unpin(struct blocks *blocks, uint32_t block)
{
	assert(is_held(blocks, block));
	evict_unpin(blocks->evict, block);
	condemned_settle(blocks, block);
}

uint32_t blocks_pins(const struct blocks *blocks, uint32_t block)
{
	assert(is_held(blocks, block));
	return evict_pins(blocks->evict, block);
}

uint32_t blocks_parent(const struct blocks *blocks, uint32_t block)
{
	assert(is_held(blocks, block));
	return evict_parent(blocks->evict, block);
}

bool blocks_evictable(const struct blocks *blocks, uint32_t block)
{
	return is_live(blocks, block) && evict_pins(blocks->evict, block) == 0 &&
	       evict_children(blocks->evict, block) == 0;
}

static void extent_get(const struct blocks *blocks, uint32_t block, struct extent *ret)
{
	const struct place *place = &blocks->place[block];

	*ret = (struct extent){
		.tier = place->tier,
		.device = place->device,
		.class = (uint8_t)evict_class(blocks->evict, block),
		.slot = place->slot,
		.generation = place->generation,
	};
}

void blocks_extent(const struct blocks *blocks, uint32_t block, struct extent *ret)
{
	assert(is_held(blocks, block));
	extent_get(blocks, block, ret);
}

uint32_t blocks_space(const struct blocks *blocks, uint32_t block)
{
	assert(is_held(blocks, block));
	return blocks->place[block].space;
}

const uint8_t *blocks_key(const struct blocks *blocks, uint32_t block)
{
	assert(is_held(blocks, block));
	return blocks->name[block].key;
}

void blocks_move(struct blocks *blocks, uint32_t block, const struct extent *to)
{
	struct place *place = &blocks->place[block];

	assert(is_live(blocks, block) && to->tier < TIER_COUNT && evict_pins(blocks->evict, block) == 0);
	/* Within a tier nothing that a reader can see has changed. */
	if (to->tier != place->tier)
		index_update(blocks->index, blocks->name[block].key, block, 1u << to->tier,
			     ++blocks->commits);
	place->device = to->device;
	place->slot = to->slot;
	place->generation = to->generation;
	place->tier = to->tier & 0xfu;
	evict_move(blocks->evict, block, to->class);
}

uint32_t blocks_victim(const struct blocks *blocks, uint32_t class, uint64_t *ret_tick)
{
	const uint32_t block = evict_victim(blocks->evict, class);

	if (block != BLOCK_NONE && ret_tick)
		*ret_tick = evict_tick(blocks->evict, block);
	return block;
}

/* The part that drop and condemn share: nobody finds the block any more. */
static void vanish(struct blocks *blocks, uint32_t block)
{
	index_remove(blocks->index, blocks->name[block].key, block);
	blocks->space_count[blocks->place[block].space]--;
	blocks->count--;
}

void blocks_drop(struct blocks *blocks, uint32_t block, struct extent *ret)
{
	assert(is_live(blocks, block));
	if (ret)
		extent_get(blocks, block, ret);
	vanish(blocks, block);
	tomb_settle(blocks, evict_remove(blocks->evict, block));	/* asserts: a leaf without pins */
	number_free(blocks, block);
}

void blocks_condemn(struct blocks *blocks, uint32_t block)
{
	assert(is_live(blocks, block));
	vanish(blocks, block);
	blocks->place[block].state = BLOCK_CONDEMNED;
	tomb_settle(blocks, evict_hide(blocks->evict, block));
	condemned_settle(blocks, block);
}

bool blocks_condemned(struct blocks *blocks, struct extent *ret)
{
	const uint32_t block = blocks->ripe;

	if (block == BLOCK_NONE)
		return false;
	extent_get(blocks, block, ret);
	blocks->ripe = blocks->name[block].next;
	blocks->place[block].state = BLOCK_TOMB;
	tomb_settle(blocks, block);
	return true;
}

bool blocks_walk(struct blocks *blocks, uint32_t *cursor, uint32_t budget,
		 void (*fn)(void *arg, uint32_t block), void *arg)
{
	while (budget-- > 0 && *cursor < blocks->used) {
		const uint32_t block = (*cursor)++;

		if (is_live(blocks, block))
			fn(arg, block);
	}
	return *cursor < blocks->used;
}

uint32_t blocks_count(const struct blocks *blocks)
{
	return blocks->count;
}

uint32_t blocks_space_count(const struct blocks *blocks, uint32_t space)
{
	assert(space < TIER_MAX_SPACES);
	return blocks->space_count[space];
}

uint64_t blocks_memory(const struct blocks *blocks)
{
	const uint64_t block_bytes = sizeof(union name) + sizeof(struct place) + evict_block_bytes();

	return sizeof(*blocks) + blocks->used * block_bytes;
}
