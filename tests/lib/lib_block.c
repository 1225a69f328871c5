/* SPDX-License-Identifier: Apache-2.0 */
/* lib_block.c - see lib_block.h. */
#include "lib_block.h"
#include "daemon/store/tally.h"

int table_set_up(void **state)
{
	static struct table f;

	assert_int_equal(index_open(MAX, &f.index), 0);
	assert_int_equal(blocks_open(&(struct blocks_conf){ .max_blocks = MAX, .classes = 4 },
				     f.index, &f.blocks),
			 0);
	tally_space_is(blocks_tally(f.blocks), SPACE, index_key_bytes, 0);
	assert_int_equal(map_open(index_fd(f.index), index_bytes(f.index), &f.map), 0);
	*state = &f;
	return 0;
}

int table_tear_down(void **state)
{
	struct table *f = *state;

	map_close(f->map);
	blocks_close(f->blocks);
	index_close(f->index);
	return 0;
}

struct blocks *table_of(void **state)
{
	return ((struct table *)*state)->blocks;
}

struct extent table_host_at(uint32_t slot)
{
	return (struct extent){ .tier = TIER_HOST, .class = CLASS, .slot = slot, .generation = 1 };
}

struct extent table_nvme_at(uint32_t number)
{
	return (struct extent){ .tier = TIER_NVME,
				.unit = (uint8_t)(15 - number % 16),
				.slot = ~number,
				.generation = 0xfffff - number };
}

uint32_t table_commit(struct blocks *blocks, uint32_t number, uint32_t parent)
{
	const struct extent where = table_host_at(number);
	uint8_t key[32];
	uint32_t block;

	random_key(number, key);
	assert_int_equal(blocks_commit(blocks, key, SPACE, parent, 0, &where, &block), 0);
	return block;
}

int table_try_away(struct blocks *blocks, uint32_t number, uint64_t tick, uint32_t *ret)
{
	const struct extent where = table_nvme_at(number);
	uint8_t key[32];

	random_key(number, key);
	return blocks_commit_away(blocks, key, SPACE, 1, &where, tick, ret);
}

uint32_t table_commit_away(struct blocks *blocks, uint32_t number, uint64_t tick)
{
	uint32_t block = BLOCK_NONE;

	assert_int_equal(table_try_away(blocks, number, tick, &block), 0);
	return block;
}

void table_set_nvme(struct blocks *blocks, uint32_t block, uint32_t number)
{
	const struct extent where = table_nvme_at(number);

	blocks_set_nvme(blocks, block, &where);
}

void table_promote(struct blocks *blocks, uint32_t block, uint32_t parent, uint32_t slot)
{
	const struct extent where = table_host_at(slot);

	blocks_promote(blocks, block, parent, &where);
}

uint32_t table_commit_both(struct blocks *blocks, uint32_t number)
{
	const uint32_t block = table_commit(blocks, number, BLOCK_NONE);

	table_set_nvme(blocks, block, number);
	return block;
}

uint32_t table_demoted(struct blocks *blocks, uint32_t number)
{
	const uint32_t block = table_commit_both(blocks, number);

	assert_int_equal(blocks_demote(blocks, block), number);
	return block;
}

uint32_t table_find(struct blocks *blocks, uint32_t number)
{
	uint8_t key[32];

	random_key(number, key);
	return blocks_find(blocks, key, SPACE);
}

void table_is_seen(void **state, uint32_t number, uint32_t tiers, uint32_t in_host,
		   uint32_t in_nvme)
{
	struct table *f = *state;
	const struct fingerprint_key index_key = fingerprint_key_of(index_key_bytes);
	struct kvtier_key key;
	uint8_t seen;

	random_key(number, key.bytes);
	map_probe(f->map, &index_key, &key, 1, &seen);
	assert_int_equal(seen, tiers);
	assert_int_equal(blocks_copies(f->blocks, TIER_HOST), in_host);
	assert_int_equal(blocks_copies(f->blocks, TIER_NVME), in_nvme);
}

void table_is_nvme(struct blocks *blocks, uint32_t block, uint32_t number)
{
	const struct extent expected = table_nvme_at(number);
	struct extent where;

	assert_true(blocks_nvme(blocks, block, &where));
	assert_memory_equal(&where, &expected, sizeof(where));
}
