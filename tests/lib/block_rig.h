/* SPDX-License-Identifier: Apache-2.0 */
/*
 * block_rig.h - a small table of blocks, the client's view of its index, and blocks with copies by number. For cmocka
 * tests, after its headers.
 */
#ifndef KVTIER_TESTS_BLOCK_RIG_H
#define KVTIER_TESTS_BLOCK_RIG_H

#include "client/lib/map.h"
#include "daemon/store/block.h"
#include "random.h"

enum { MAX = 64, SPACE = 5, CLASS = 1, HOST = 1 << TIER_HOST, NVME = 1 << TIER_NVME };

/* Of SPACE. */
static const uint8_t index_key_bytes[16] = { 0xc0, 0xff, 0xee };

struct fixture {
	struct index *index;
	struct blocks *blocks;
	struct map *map;
};

static inline int set_up(void **state)
{
	static struct fixture f;

	assert_int_equal(index_open(MAX, &f.index), 0);
	assert_int_equal(blocks_open(&(struct blocks_conf){ .max_blocks = MAX, .classes = 4 }, f.index, &f.blocks), 0);
	blocks_space_is(f.blocks, SPACE, index_key_bytes);
	assert_int_equal(map_open(index_fd(f.index), index_bytes(f.index), &f.map), 0);
	*state = &f;
	return 0;
}

static inline int tear_down(void **state)
{
	struct fixture *f = *state;

	map_close(f->map);
	blocks_close(f->blocks);
	index_close(f->index);
	return 0;
}

static inline struct blocks *of(void **state)
{
	return ((struct fixture *)*state)->blocks;
}

static inline struct extent host_at(uint32_t slot)
{
	return (struct extent){ .tier = TIER_HOST, .class = CLASS, .slot = slot, .generation = 1 };
}

/* With the largest values that a place can have for number 0. */
static inline struct extent nvme_at(uint32_t number)
{
	return (struct extent){ .tier = TIER_NVME, .unit = (uint8_t)(15 - number % 16), .slot = ~number,
				.generation = 0xfffff - number };
}

static inline uint32_t commit(struct blocks *blocks, uint32_t number, uint32_t parent)
{
	const struct extent where = host_at(number);
	uint8_t key[32];
	uint32_t block;

	random_key(number, key);
	assert_int_equal(blocks_commit(blocks, key, SPACE, parent, 0, &where, &block), 0);
	return block;
}

static inline int try_away(struct blocks *blocks, uint32_t number, uint64_t tick, uint32_t *ret)
{
	const struct extent where = nvme_at(number);
	uint8_t key[32];

	random_key(number, key);
	return blocks_commit_away(blocks, key, SPACE, 1, &where, tick, ret);
}

static inline uint32_t commit_away(struct blocks *blocks, uint32_t number, uint64_t tick)
{
	uint32_t block = BLOCK_NONE;

	assert_int_equal(try_away(blocks, number, tick, &block), 0);
	return block;
}

static inline void set_nvme(struct blocks *blocks, uint32_t block, uint32_t number)
{
	const struct extent where = nvme_at(number);

	blocks_set_nvme(blocks, block, &where);
}

static inline void promote(struct blocks *blocks, uint32_t block, uint32_t parent, uint32_t slot)
{
	const struct extent where = host_at(slot);

	blocks_promote(blocks, block, parent, &where);
}

static inline uint32_t commit_both(struct blocks *blocks, uint32_t number)
{
	const uint32_t block = commit(blocks, number, BLOCK_NONE);

	set_nvme(blocks, block, number);
	return block;
}

/* A block that was in host and is away now. */
static inline uint32_t demoted(struct blocks *blocks, uint32_t number)
{
	const uint32_t block = commit_both(blocks, number);

	assert_int_equal(blocks_demote(blocks, block), number);
	return block;
}

static inline uint32_t find(struct blocks *blocks, uint32_t number)
{
	uint8_t key[32];

	random_key(number, key);
	return blocks_find(blocks, key, SPACE);
}

/* What a client sees, and the counts. */
static inline void assert_seen(void **state, uint32_t number, uint32_t tiers, uint32_t in_host, uint32_t in_nvme)
{
	struct fixture *f = *state;
	const struct fingerprint_key index_key = fingerprint_key_of(index_key_bytes);
	struct kvtier_key key;
	uint8_t seen;

	random_key(number, key.bytes);
	map_probe(f->map, &index_key, &key, 1, &seen);
	assert_int_equal(seen, tiers);
	assert_int_equal(blocks_host_count(f->blocks), in_host);
	assert_int_equal(blocks_nvme_count(f->blocks), in_nvme);
}

static inline void assert_nvme(struct blocks *blocks, uint32_t block, uint32_t number)
{
	const struct extent expected = nvme_at(number);
	struct extent where;

	assert_true(blocks_nvme(blocks, block, &where));
	assert_memory_equal(&where, &expected, sizeof(where));
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

#endif
