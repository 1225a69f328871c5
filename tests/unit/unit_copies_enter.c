/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * unit_copies_enter - an image in a slot becomes a block's, or does not, and then the slot is the
 * caller's still: a new block, one that host memory has already, one that only NVMe has, on a disk
 * that is there or away, and one that finds the table full, where another's block goes as shares
 * say. Method: a small table over slabs
 * without memory, and a tier of durable copies whose answers the test gives; slots, owners and what
 * that tier was told are looked at after each step.
 */

#include "daemon/stats/stats.h"
#include "daemon/move/copies.h"
#include "daemon/table/space.h"
#include "daemon/move/tables.h"
#include "daemon/table/space_counts.h"
#include "tests/lib/test.h"
#include "tiers/slabs.h"

enum {
	BLOCKS = 4,
	SPACE = 3,
	OTHER,
	NEWCOMER,
	SLOT = 4096,
	SLABS = 4,
	SLAB = 4 * SLOT,
	DISK_SLOT = 77
};

/* --- host memory, and a disk --- */

struct host {
	struct tier base;
	struct slabs *slabs;
	uint32_t given;
};

struct disk {
	struct tier base;
	bool readable, writable;
	uint32_t forgotten; /* extents */
};

static uint32_t more(void *arg, TEST_UNUSED bool hurry)
{
	struct host *h = arg;

	return h->given < SLABS ? h->given++ : SLABS_NONE;
}

static uint32_t lost(TEST_UNUSED void *arg)
{
	return 0;
}

static int host_alloc(struct tier *t, uint32_t bytes, uint32_t unit, struct extent *ret)
{
	return slabs_alloc(((struct host *)(void *)t)->slabs, bytes, unit, ret);
}

static void host_free(struct tier *t, const struct extent *where)
{
	slabs_free(((struct host *)(void *)t)->slabs, where);
}

/* The memory of all slots. */
_Alignas(SLOT) static uint8_t memory[SLABS * SLAB];

static struct image_header *header_of(const struct extent *at)
{
	return (void *)(memory + (at->slot >> 16) * SLAB + (at->slot & 0xffff) * SLOT);
}

static uint8_t *host_address(TEST_UNUSED struct tier *t, const struct extent *at)
{
	return (uint8_t *)(void *)header_of(at);
}

static struct slabs *host_slabs(const struct tier *t)
{
	return ((const struct host *)(const void *)t)->slabs;
}

static bool disk_readable(const struct tier *t, const struct tier_name *name)
{
	assert_int_equal(name->where->slot, DISK_SLOT);
	return ((const struct disk *)(const void *)t)->readable;
}

static bool disk_writable(const struct tier *t, const struct tier_name *name)
{
	assert_non_null(name->key);
	return ((const struct disk *)(const void *)t)->writable;
}

static void disk_forget(struct tier *t, const struct extent *where, TEST_UNUSED uint64_t tick)
{
	assert_int_equal(where->slot, DISK_SLOT);
	((struct disk *)(void *)t)->forgotten++;
}

static const struct tier_ops memory_ops = { .id = TIER_HOST,
					    .alloc = host_alloc,
					    .free = host_free,
					    .address = host_address,
					    .slabs = host_slabs };
static const struct tier_ops disk_ops = { .id = TIER_NVME,
					  .caps = TIER_CAP_DURABLE,
					  .forget = disk_forget,
					  .readable = disk_readable,
					  .writable = disk_writable };

/* --- a store --- */

static struct tables tables;
static struct host host;
static struct disk disk;
static struct space space = {
	.number = SPACE, /* or OTHER: whose blocks are entered next */
	.codec = CODEC_FP8,
	.known = true,
	.shape = { .image_bytes = 4096 },
	.raw_shape = { .image_bytes = 8192 },
	.variant_bytes = { 4096, 8192 },
};

FIXTURE(set_up)
{
	const struct slabs_conf conf = { .tier = &host.base,
					 .slab_bytes = SLAB,
					 .n_slabs = SLABS,
					 .more = more,
					 .lost = lost,
					 .arg = &host };
	uint8_t bytes[32];

	tables = (struct tables){ 0 };
	memset(memory, 0, sizeof(memory)); /* the codecs of the space */
	host = (struct host){ .base.ops = &memory_ops, .base.capacity_bytes = SLABS * SLAB };
	disk = (struct disk){ .base.ops = &disk_ops, .readable = true, .writable = true };
	assert_int_equal(slabs_open(&conf, &host.slabs), 0);
	tables.tiers[TIER_HOST] = &host.base;
	tables.tiers[TIER_NVME] = &disk.base;
	assert_int_equal(stats_open(NULL, 1, &tables.stats), 0);
	assert_int_equal(index_open(BLOCKS, &tables.index), 0);
	assert_int_equal(blocks_open(&(struct blocks_conf){ .max_blocks = BLOCKS }, tables.index,
				     &tables.blocks),
			 0);
	random_key(1, bytes);
	for (uint32_t i = SPACE; i <= NEWCOMER; i++) {
		counts_space_is(blocks_counts(tables.blocks), i, bytes, 0);
	}
	space.number = SPACE;
	return 0;
}

FIXTURE(tear_down)
{
	blocks_close(tables.blocks);
	index_close(tables.index);
	stats_close(tables.stats, NULL);
	slabs_close(host.slabs);
	return 0;
}

TEST_EACH(set_up, tear_down);

static struct extent where; /* the slot of the last that was to be entered */
static uint32_t got;        /* the block that it became */

static int enter(uint32_t number, enum image_codec codec, uint32_t parent)
{
	assert_int_equal(tier_alloc(&host.base, SLOT, &where), 0);
	assert_int_equal(slabs_owner(host.slabs, &where), SLABS_NO_OWNER);
	got = BLOCK_NONE;
	return copies_enter(&tables, &space, random_key_of(number).bytes, codec, &where, parent,
			    &got);
}

static uint32_t entered(uint32_t number, uint32_t parent)
{
	assert_int_equal(enter(number, CODEC_FP8, parent), 0);
	return got;
}

static bool has(uint32_t number, uint32_t name)
{
	return blocks_find(tables.blocks, random_key_of(name).bytes, number) != BLOCK_NONE;
}

/* The slot is the block's, and it says so from both sides. */
static void owns(uint32_t block, const struct extent *its)
{
	struct extent found;

	assert_true(extents_in_host(&tables, block, &found));
	assert_true(extent_equal(&found, its));
	assert_int_equal(slabs_owner(host.slabs, its), block);
}

/* Only NVMe has it. */
static uint32_t away(uint32_t number)
{
	const struct extent there = { .tier = TIER_NVME, .slot = DISK_SLOT };
	const uint32_t block = entered(number, BLOCK_NONE);

	blocks_set_nvme(tables.blocks, block, &there);
	assert_int_equal(tier_extent(&host.base, blocks_demote(tables.blocks, block), &where), 0);
	tier_free(&host.base, &where);
	return block;
}

/* --- cases --- */

TEST(a_new_block_has_slot_parent_and_codec)
{
	const uint32_t parent = entered(1, BLOCK_NONE);

	assert_int_equal(enter(2, CODEC_RAW, parent), 0);
	owns(got, &where);
	assert_int_equal(blocks_parent(tables.blocks, got), parent);
	assert_int_equal(blocks_parent(tables.blocks, parent), BLOCK_NONE);
	assert_int_equal(blocks_variant(tables.blocks, got), 1); /* the larger image */
	assert_int_equal(blocks_variant(tables.blocks, parent), 0);
	assert_int_equal(host.base.extents, 2);
}

TEST(one_that_memory_has_leaves_the_slot_to_the_caller)
{
	const uint32_t block = entered(1, BLOCK_NONE);
	const struct extent first = where;

	assert_int_equal(enter(1, CODEC_FP8, BLOCK_NONE), 1);
	assert_int_equal(got, block);
	owns(block, &first);
	assert_int_equal(slabs_owner(host.slabs, &where), SLABS_NO_OWNER);
	tier_free(&host.base, &where);
	assert_int_equal(blocks_count(tables.blocks), 1);
}

/* Its copy on NVMe is as the lesser image was. */
TEST(a_lesser_image_gives_its_place_to_another)
{
	const uint32_t block = entered(1, BLOCK_NONE);
	const struct extent first = where;
	struct extent nvme = { .tier = TIER_NVME, .slot = DISK_SLOT };

	blocks_set_nvme(tables.blocks, block, &nvme);
	header_of(&first)->codec_k = CODEC_K4;
	header_of(&first)->codec_v = CODEC_V4;
	assert_int_equal(enter(1, CODEC_FP8, BLOCK_NONE), 0);
	assert_int_equal(got, block);
	owns(block, &where);
	assert_int_equal(slabs_extent(host.slabs, first.slot, &nvme), -ESTALE);
	assert_false(blocks_nvme(tables.blocks, block, NULL));
	assert_int_equal(disk.forgotten, 1);
}

TEST(a_lesser_image_in_use_keeps_its_place)
{
	const uint32_t block = entered(1, BLOCK_NONE);
	const struct extent first = where;

	header_of(&first)->codec_k = CODEC_K4;
	header_of(&first)->codec_v = CODEC_V4;
	blocks_pin(tables.blocks, block);
	assert_int_equal(enter(1, CODEC_FP8, BLOCK_NONE), 1);
	owns(block, &first);
	tier_free(&host.base, &where);
	(void)blocks_unpin(tables.blocks, block);
}

TEST(one_that_is_away_comes_back_under_its_parent)
{
	const uint32_t block = away(1), parent = entered(2, BLOCK_NONE);

	assert_int_equal(entered(1, parent), block);
	owns(block, &where);
	assert_int_equal(blocks_parent(tables.blocks, block), parent);
	assert_true(blocks_nvme(tables.blocks, block, NULL));
	assert_int_equal(disk.forgotten, 0);
}

/* It is its own parent by key: a client may name any. */
TEST(one_that_is_away_is_not_its_own_parent)
{
	const uint32_t block = away(1);

	assert_int_equal(entered(1, block), block);
	assert_int_equal(blocks_parent(tables.blocks, block), BLOCK_NONE);
}

/* Another disk takes writes: the copy that nobody can read goes, and a new one is to be written. */
TEST(the_copy_on_a_disk_that_is_away_goes_if_another_takes_it)
{
	const uint32_t block = away(1);

	disk.readable = false;
	assert_int_equal(entered(1, BLOCK_NONE), block);
	owns(block, &where);
	assert_false(blocks_nvme(tables.blocks, block, NULL));
	assert_int_equal(disk.forgotten, 1);
}

TEST(without_another_disk_it_stays)
{
	const uint32_t block = away(1);

	disk.readable = disk.writable = false;
	assert_int_equal(entered(1, BLOCK_NONE), block);
	assert_true(blocks_nvme(tables.blocks, block, NULL));
	assert_int_equal(disk.forgotten, 0);
}

TEST(a_full_table_loses_its_oldest_leaf)
{
	uint32_t blocks[BLOCKS];

	for (uint32_t i = 0; i < BLOCKS; i++)
		blocks[i] = entered(i + 1, BLOCK_NONE);
	for (uint32_t i = 0; i < BLOCKS; i++) /* the third is the oldest */
		copies_touch(&tables, blocks[(i + 2) % BLOCKS], 10 + i, 0);
	owns(entered(9, BLOCK_NONE), &where);
	assert_false(has(SPACE, 3));
	assert_int_equal(blocks_count(tables.blocks), BLOCKS);
	assert_int_equal(host.base.extents, BLOCKS); /* its slot is free */
	assert_int_equal(tables.mover.counts.evicted_blocks, 1);
}

/* `theirs` blocks of SPACE, each older than all of OTHER's, which fill the table. away: all of them
 * are on NVMe alone. Their names are 1, 2, ... in this order. */
static void fill(uint32_t theirs, bool are_away)
{
	for (uint32_t i = 0; i < BLOCKS; i++) {
		space.number = i < theirs ? SPACE : OTHER;
		copies_touch(&tables, are_away ? away(i + 1) : entered(i + 1, BLOCK_NONE), 10 + i,
			     0);
	}
}

/* So many of the numbers. */
static void guarantee(uint32_t number, uint32_t numbers)
{
	counts_guarantee(blocks_counts(tables.blocks), number,
			 host.base.capacity_bytes / BLOCKS * numbers);
}

TEST(a_full_table_drops_of_whoever_has_more_than_its_share)
{
	for (uint32_t round = 0; round < 2; round++) {
		guarantee(SPACE, 2);
		fill(2, round == 1);
		space.number = OTHER;
		(void)entered(9, BLOCK_NONE);
		assert_true(has(SPACE, 1) && has(SPACE, 2) && has(OTHER, 4));
		assert_false(has(OTHER, 3)); /* its oldest */
		tear_down(NULL);
		set_up(NULL);
	}
}

TEST(one_within_its_share_does_not_pay_for_itself)
{
	for (uint32_t round = 0; round < 2; round++) {
		guarantee(SPACE, 2);
		fill(1, round == 1);
		space.number = SPACE;
		(void)entered(9, BLOCK_NONE);
		assert_true(has(SPACE, 1) && has(OTHER, 3) && has(OTHER, 4));
		assert_false(has(OTHER, 2));
		tear_down(NULL);
		set_up(NULL);
	}
}

TEST(where_nobody_has_more_each_pays_for_itself)
{
	guarantee(SPACE, 2);
	guarantee(OTHER, 2);
	fill(2, false);
	space.number = OTHER;
	(void)entered(9, BLOCK_NONE);
	assert_true(has(SPACE, 1) && has(SPACE, 2));
	assert_false(has(OTHER, 3));
}

/* OTHER has more than its share, and all of it is in use. */
TEST(a_newcomer_takes_from_anybody_rather_than_be_refused)
{
	guarantee(SPACE, 1);
	guarantee(NEWCOMER, 1);
	fill(1, false);
	for (uint32_t i = 1; i < BLOCKS; i++)
		blocks_pin(tables.blocks, i);
	space.number = OTHER;
	assert_int_equal(enter(9, CODEC_FP8, BLOCK_NONE), -ENOSPC);
	assert_true(has(SPACE, 1));
	space.number = NEWCOMER;
	(void)entered(9, BLOCK_NONE);
	assert_false(has(SPACE, 1));
	assert_true(has(NEWCOMER, 9));
	for (uint32_t i = 1; i < BLOCKS; i++)
		blocks_unpin(tables.blocks, i);
}

TEST(a_full_table_of_blocks_in_use_refuses)
{
	for (uint32_t i = 0; i < BLOCKS; i++)
		blocks_pin(tables.blocks, entered(i + 1, BLOCK_NONE));
	assert_int_equal(enter(9, CODEC_FP8, BLOCK_NONE), -ENOSPC);
	assert_int_equal(got, BLOCK_NONE);
	assert_int_equal(slabs_owner(host.slabs, &where), SLABS_NO_OWNER);
	assert_int_equal(blocks_count(tables.blocks), BLOCKS);
	tier_free(&host.base, &where);
	for (uint32_t i = 0; i < BLOCKS; i++)
		blocks_unpin(tables.blocks, i);
}
