/* SPDX-License-Identifier: Apache-2.0 */
#include "lib_block.h"
#include "daemon/table/space_counts.h"

struct index *table;
struct blocks *blocks;
static struct map *map;

int table_set_up(TEST_UNUSED void **state)
{
	const struct blocks_conf conf = { .max_blocks = MAX };

	assert_int_equal(index_open(MAX, &table), 0);
	assert_int_equal(blocks_open(&conf, table, &blocks), 0);
	counts_space_is(blocks_counts(blocks), SPACE, index_key_bytes, 0);
	assert_int_equal(map_open(index_fd(table), index_bytes(table), &map), 0);
	return 0;
}

int table_tear_down(TEST_UNUSED void **state)
{
	map_close(map);
	blocks_close(blocks);
	index_close(table);
	return 0;
}

struct extent table_host_at(uint32_t slot)
{
	return (struct extent){ .tier = TIER_HOST, .class = CLASS, .slot = slot, .generation = 1 };
}

/* With the largest values that a place can have for number 0. */
static struct extent nvme_at(uint32_t number)
{
	return (struct extent){ .tier = TIER_NVME,
				.unit = (uint8_t)(15 - number % 16),
				.slot = ~number,
				.generation = 0xfffff - number };
}

int table_try(uint64_t number, uint32_t parent, uint32_t *ret)
{
	const struct extent where = table_host_at((uint32_t)number);

	return blocks_commit(blocks, random_key_of(number).bytes, SPACE, parent, 0, &where, ret);
}

uint32_t table_commit(uint64_t number, uint32_t parent)
{
	uint32_t block = BLOCK_NONE;

	assert_int_equal(table_try(number, parent, &block), 0);
	return block;
}

int table_try_away(uint32_t number, uint64_t tick, uint32_t *ret)
{
	const struct extent where = nvme_at(number);

	return blocks_commit_away(blocks, random_key_of(number).bytes, SPACE, 1, &where, tick, ret);
}

uint32_t table_commit_away(uint32_t number, uint64_t tick)
{
	uint32_t block = BLOCK_NONE;

	assert_int_equal(table_try_away(number, tick, &block), 0);
	return block;
}

void table_set_nvme(uint32_t block, uint32_t number)
{
	const struct extent where = nvme_at(number);

	blocks_set_nvme(blocks, block, &where);
}

void table_promote(uint32_t block, uint32_t parent, uint32_t slot)
{
	const struct extent where = table_host_at(slot);

	blocks_promote(blocks, block, parent, &where);
}

uint32_t table_commit_both(uint32_t number)
{
	const uint32_t block = table_commit(number, BLOCK_NONE);

	table_set_nvme(block, number);
	return block;
}

uint32_t table_demoted(uint32_t number)
{
	const uint32_t block = table_commit_both(number);

	assert_int_equal(blocks_demote(blocks, block), number);
	return block;
}

uint32_t table_find(uint64_t number)
{
	return blocks_find(blocks, random_key_of(number).bytes, SPACE);
}

void table_is_seen(uint32_t number, uint32_t tiers, uint32_t in_host, uint32_t in_nvme)
{
	const struct fingerprint_key index_key = fingerprint_key_of(index_key_bytes);
	struct kvtier_key key;
	uint8_t seen;

	random_key(number, key.bytes);
	map_probe(map, &index_key, &key, 1, &seen);
	assert_int_equal(seen, tiers);
	assert_int_equal(blocks_copies(blocks, TIER_HOST), in_host);
	assert_int_equal(blocks_copies(blocks, TIER_NVME), in_nvme);
}

void table_is_nvme(uint32_t block, uint32_t number)
{
	const struct extent expected = nvme_at(number);
	struct extent where;

	assert_true(blocks_nvme(blocks, block, &where));
	assert_memory_equal(&where, &expected, sizeof(where));
}
