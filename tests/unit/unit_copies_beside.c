/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * unit_copies_beside - copies of a block on devices: how clients see them, and their fate when the
 * block is demoted, promoted, dropped, condemned, or loses its NVMe copy. Method: a small table,
 * two units of slabs without memory as a tier of devices; slots that are in use there are counted
 * after each step.
 */
#include <errno.h>

#include "client/lib/map.h"
#include "daemon/stats/stats.h"
#include "daemon/store/copies.h"
#include "daemon/store/copy_table.h"
#include "daemon/store/extents.h"
#include "daemon/store/lease.h"
#include "daemon/store/store.h"
#include "daemon/store/tally.h"
#include "tests/lib/random.h"
#include "tests/lib/test.h"
#include "tiers/slabs.h"

enum { BLOCKS = 16, SPACE = 3, SLOT = 4096, SLABS = 4, SLAB = 4 * SLOT };
enum { GPU = 1 << TIER_GPU, HOST = 1 << TIER_HOST, NVME = 1 << TIER_NVME };

/* --- a tier of slots --- */

struct slots {
	struct tier base;
	struct slabs *slabs;
	uint32_t given;
};

static uint32_t more(void *arg, bool hurry)
{
	struct slots *s = arg;

	(void)hurry;
	return s->given < SLABS ? s->given++ : SLABS_NONE;
}

static uint32_t lost(void *arg)
{
	(void)arg;
	return 0;
}

static int slots_alloc(struct tier *t, uint32_t bytes, uint32_t unit, struct extent *ret)
{
	return slabs_alloc(((struct slots *)(void *)t)->slabs, bytes, unit, ret);
}

static void slots_free(struct tier *t, const struct extent *where)
{
	slabs_free(((struct slots *)(void *)t)->slabs, where);
}

static struct slabs *slots_slabs(const struct tier *t)
{
	return ((const struct slots *)(const void *)t)->slabs;
}

static const struct tier_ops device_ops = { .name = "gpu",
					    .id = TIER_GPU,
					    .caps = TIER_CAP_DEVICE_ADDRESSABLE,
					    .alloc = slots_alloc,
					    .free = slots_free,
					    .slabs = slots_slabs };
static const struct tier_ops memory_ops = { .name = "host",
					    .id = TIER_HOST,
					    .caps = TIER_CAP_CPU_ADDRESSABLE,
					    .alloc = slots_alloc,
					    .free = slots_free,
					    .slabs = slots_slabs };

static void slots_open(struct slots *s, const struct tier_ops *ops)
{
	*s = (struct slots){ .base.ops = ops };
	const struct slabs_conf conf = { .tier = &s->base,
					 .slab_bytes = SLAB,
					 .n_slabs = SLABS,
					 .more = more,
					 .lost = lost,
					 .arg = s };

	assert_int_equal(slabs_open(&conf, &s->slabs), 0);
}

/* --- a store --- */

struct world {
	struct store store;
	struct slots host, device;
	struct map *map;
	struct copy_table *copies;
	struct fingerprint_key index_key;
};

static struct world w;

static uint32_t owner_of(void *arg, uint32_t unit, uint32_t copy)
{
	(void)arg;
	assert_int_equal(unit, 0);
	return slabs_owner_numbered(w.device.slabs, copy);
}

FIXTURE(set_up)
{
	const struct copy_table_conf conf = {
		.units = 1, .copies = BLOCKS, .classes = TIER_MAX_CLASSES, .block_of = owner_of
	};
	uint8_t bytes[32];

	w = (struct world){ 0 };
	slots_open(&w.host, &memory_ops);
	slots_open(&w.device, &device_ops);
	w.store.tiers[TIER_HOST] = &w.host.base;
	w.store.tiers[TIER_GPU] = &w.device.base;
	assert_int_equal(stats_open(NULL, 1, &w.store.stats), 0);
	assert_int_equal(copy_table_open(&conf, &w.copies), 0);
	assert_int_equal(index_open(BLOCKS, &w.store.index), 0);
	assert_int_equal(blocks_open(&(struct blocks_conf){ .max_blocks = BLOCKS,
							    .classes = TIER_MAX_CLASSES,
							    .beside = w.copies },
				     w.store.index, &w.store.blocks),
			 0);
	random_key(1, bytes);
	w.index_key = fingerprint_key_of(bytes);
	tally_space_is(blocks_tally(w.store.blocks), SPACE, bytes, 0);
	return map_open(index_fd(w.store.index), index_bytes(w.store.index), &w.map);
}

FIXTURE(tear_down)
{
	map_close(w.map);
	blocks_close(w.store.blocks);
	copy_table_close(w.copies);
	index_close(w.store.index);
	stats_close(w.store.stats, NULL);
	slabs_close(w.host.slabs);
	slabs_close(w.device.slabs);
	return 0;
}

TEST_EACH(set_up, tear_down);

static uint32_t block_in_host(uint32_t number)
{
	struct extent where;
	uint8_t key[32];
	uint32_t block;

	random_key(number, key);
	assert_int_equal(tier_alloc(&w.host.base, SLOT, &where), 0);
	assert_int_equal(blocks_commit(w.store.blocks, key, SPACE, BLOCK_NONE, 0, &where, &block),
			 0);
	return block;
}

static void give_nvme(uint32_t block)
{
	const struct extent where = { .tier = TIER_NVME, .slot = 77 };

	blocks_set_nvme(w.store.blocks, block, &where);
}

static void demote(uint32_t block)
{
	struct extent where;

	assert_int_equal(tier_extent(&w.host.base, blocks_demote(w.store.blocks, block), &where),
			 0);
	tier_free(&w.host.base, &where);
}

static struct extent give_device(uint32_t block)
{
	struct extent where;

	assert_int_equal(tier_alloc(&w.device.base, SLOT, &where), 0);
	assert_int_equal(copies_add_beside(&w.store, block, &where), 0);
	assert_int_equal(slabs_owner(w.device.slabs, &where), block);
	return where;
}

/* Asserts the client's view, and how many slots the device has in use. */
static void is(uint32_t number, uint32_t tiers, uint32_t on_device)
{
	struct kvtier_key key;
	uint8_t seen;

	random_key(number, key.bytes);
	map_probe(w.map, &w.index_key, &key, 1, &seen);
	assert_int_equal(seen, tiers);
	assert_int_equal(w.device.base.extents, on_device);
	assert_int_equal(blocks_copies(w.store.blocks, TIER_GPU), (tiers & GPU) != 0);
}

/* --- cases --- */

TEST(clients_see_the_copy_come_and_go)
{
	const uint32_t block = block_in_host(1);
	struct extent where, found;
	uint32_t copy;

	is(1, HOST, 0);
	blocks_pin(w.store.blocks, block); /* which keeps its host slot, and nothing else */
	where = give_device(block);
	is(1, HOST | GPU, 1);
	assert_true(copy_table_find(w.copies, block, 0, &copy));
	found = extents_beside(&w.store, 0, copy);
	assert_memory_equal(&found, &where, sizeof(found));
	copies_drop_beside(&w.store, block, 0);
	is(1, HOST, 0);
	blocks_unpin(w.store.blocks, block);
}

TEST(a_second_copy_on_a_unit_is_refused)
{
	const uint32_t block = block_in_host(1);
	struct extent where;

	(void)give_device(block);
	assert_int_equal(tier_alloc(&w.device.base, SLOT, &where), 0);
	assert_int_equal(copies_add_beside(&w.store, block, &where), -EEXIST);
	assert_int_equal(slabs_owner(w.device.slabs, &where), SLABS_NO_OWNER);
	tier_free(&w.device.base, &where);
	is(1, HOST | GPU, 1);
}

TEST(demoted_and_promoted_it_stays)
{
	const uint32_t block = block_in_host(1);
	struct extent where;

	give_nvme(block);
	(void)give_device(block);
	demote(block);
	is(1, NVME | GPU, 1);
	assert_int_equal(tier_alloc(&w.host.base, SLOT, &where), 0);
	blocks_promote(w.store.blocks, block, BLOCK_NONE, &where);
	is(1, HOST | NVME | GPU, 1);
}

TEST(a_block_may_get_it_while_away)
{
	const uint32_t block = block_in_host(1);

	give_nvme(block);
	demote(block);
	(void)give_device(block);
	is(1, NVME | GPU, 1);
}

TEST(dropped_with_its_block)
{
	const uint32_t block = block_in_host(1);

	(void)give_device(block);
	copies_drop(&w.store, block);
	copies_free_condemned(&w.store);
	is(1, 0, 0);
	/* the number is another block's, which has none */
	assert_int_equal(block_in_host(2), block);
	is(2, HOST, 0);
	assert_int_equal(copy_table_units(w.copies, block), 0);
}

TEST(condemned_with_its_block_pinned_or_not)
{
	const uint32_t block = block_in_host(1);
	struct lease lease = { 0 };

	(void)give_device(block);
	lease_take(&w.store, &lease, block);
	copies_condemn(&w.store, block);
	is(1, 0, 0); /* whose device's slot nobody reads */
	assert_int_equal(w.host.base.extents, 1);
	lease_drop(&w.store, &lease);
	assert_int_equal(w.host.base.extents, 0);
}

/* It is a cache of blocks in host memory or on NVMe, so it does not keep a block alive. */
TEST(the_last_copy_is_never_a_devices)
{
	const uint32_t block = block_in_host(1);

	give_nvme(block);
	(void)give_device(block);
	demote(block);
	copies_drop_nvme(&w.store, block);
	is(1, 0, 0);
	assert_int_equal(blocks_count(w.store.blocks), 0);
}

TEST(what_a_device_reads_stays_until_it_has_read)
{
	const uint32_t block = block_in_host(1);

	(void)give_device(block);
	const uint32_t pinned = copy_table_pin(w.copies, block, 0);

	copies_drop(&w.store, block);
	copies_free_condemned(&w.store);
	is(1, 0, 1);
	copy_table_unpin(w.copies, 0, pinned);
	copies_free_condemned(&w.store);
	is(1, 0, 0);
}
