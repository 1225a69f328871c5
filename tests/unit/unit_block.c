/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * unit_block - the table of blocks: identity, pins, chains, condemned blocks, counts, memory.
 * Copies of a block are unit_block_copies.c's. Method: a few blocks in a small table, keys by
 * number; one promise of block.h a case.
 */

#include "tests/lib/lib_block.h"
#include "daemon/table/space_counts.h"
#include "daemon/policy/victim.h"

TEST_EACH(table_set_up, table_tear_down);

static uint32_t slot; /* that a condemned block gave back */

TEST(committed_is_found_with_its_place)
{
	const struct extent wide = { .tier = TIER_HOST, .class = 3, .slot = 0xfffeffff };
	uint8_t key[32];
	uint32_t block;

	random_key(7, key);
	assert_int_equal(blocks_commit(blocks, key, TIER_MAX_SPACES - 1, BLOCK_NONE, 1, &wide,
				       &block),
			 0);
	assert_int_equal(blocks_find(blocks, key, TIER_MAX_SPACES - 1), block);
	assert_int_equal(blocks_space(blocks, block), TIER_MAX_SPACES - 1);
	assert_int_equal(blocks_variant(blocks, block), 1);
	assert_memory_equal(blocks_key(blocks, block), key, 32);
	assert_int_equal(blocks_host_slot(blocks, block), wide.slot);
	assert_false(blocks_nvme(blocks, block, NULL));
	assert_int_equal(victim_of(blocks, 3, NULL, NULL), block);
}

TEST(same_key_is_eexist)
{
	uint32_t block = 77;

	table_commit(1, BLOCK_NONE);
	assert_int_equal(table_try(1, BLOCK_NONE, &block), -EEXIST);
	assert_int_equal(block, 77);
	assert_int_equal(blocks_count(blocks), 1);
}

TEST(all_32_bytes_and_the_space_decide)
{
	const struct extent where = table_host_at(1);
	uint8_t key[32];
	uint32_t a, b, c;

	random_key(1, key);
	assert_int_equal(blocks_commit(blocks, key, 1, BLOCK_NONE, 0, &where, &a), 0);
	assert_int_equal(blocks_commit(blocks, key, 2, BLOCK_NONE, 0, &where, &b), 0);
	key[31] ^= 1; /* the same fingerprint */
	assert_int_equal(blocks_find(blocks, key, 1), BLOCK_NONE);
	assert_int_equal(blocks_commit(blocks, key, 1, BLOCK_NONE, 0, &where, &c), 0);
	assert_int_equal(blocks_find(blocks, key, 1), c);
	key[31] ^= 1;
	assert_int_equal(blocks_find(blocks, key, 1), a);
	assert_int_equal(blocks_find(blocks, key, 2), b);
	assert_int_equal(blocks_find(blocks, key, 3), BLOCK_NONE);
}

TEST(full_is_enospc_and_a_drop_makes_room)
{
	uint32_t block;

	for (uint64_t i = 0; i < MAX; i++)
		table_commit(i, BLOCK_NONE);
	assert_int_equal(table_try(MAX, BLOCK_NONE, &block), -ENOSPC);
	assert_int_equal(table_find(MAX), BLOCK_NONE);
	assert_int_equal(blocks_drop(blocks, table_find(3)), 3);
	assert_int_equal(table_find(3), BLOCK_NONE);
	table_commit(MAX, BLOCK_NONE);
	assert_int_equal(blocks_count(blocks), MAX);
}

TEST(least_recent_leaf_goes_first)
{
	const uint32_t a = table_commit(1, BLOCK_NONE), b = table_commit(2, BLOCK_NONE);
	uint64_t tick;

	blocks_touch(blocks, a, 10);
	blocks_touch(blocks, b, 11);
	assert_int_equal(victim_of(blocks, 1, NULL, &tick), a);
	assert_int_equal(tick, 10);
	blocks_touch(blocks, a, 12);
	assert_int_equal(victim_of(blocks, 1, NULL, NULL), b);
	assert_int_equal(victim_of(blocks, 2, NULL, NULL), BLOCK_NONE);
}

TEST(a_parent_outlives_its_children)
{
	const uint32_t parent = table_commit(1, BLOCK_NONE);
	const uint32_t child = table_commit(2, parent), other = table_commit(3, BLOCK_NONE);
	uint64_t tick;

	blocks_touch(blocks, parent, 5);
	blocks_touch(blocks, other, 7);
	blocks_touch(blocks, child, 9);
	assert_int_equal(victim_of(blocks, 1, NULL, NULL), other);
	(void)blocks_drop(blocks, child);
	/* A leaf again, by its own last access. */
	assert_int_equal(victim_of(blocks, 1, NULL, &tick), parent);
	assert_int_equal(tick, 5);
}

TEST(a_pinned_leaf_is_no_victim_until_unpinned)
{
	const uint32_t a = table_commit(1, BLOCK_NONE), b = table_commit(2, BLOCK_NONE);

	blocks_touch(blocks, a, 1);
	blocks_touch(blocks, b, 2);
	blocks_pin(blocks, a);
	blocks_pin(blocks, a);
	assert_int_equal(victim_of(blocks, 1, NULL, NULL), b);
	blocks_unpin(blocks, a);
	assert_int_equal(victim_of(blocks, 1, NULL, NULL), b);
	assert_int_equal(blocks_pins(blocks, a), 1);
	blocks_unpin(blocks, a);
	assert_int_equal(victim_of(blocks, 1, NULL, NULL), a);
}

TEST(moving_changes_place_and_class)
{
	const uint32_t a = table_commit(1, BLOCK_NONE);
	struct extent to = table_host_at(500);

	to.class = 3;
	blocks_move(blocks, a, &to);
	assert_int_equal(blocks_host_slot(blocks, a), 500);
	assert_int_equal(victim_of(blocks, 1, NULL, NULL), BLOCK_NONE);
	assert_int_equal(victim_of(blocks, 3, NULL, NULL), a);
	assert_int_equal(table_find(1), a);
}

TEST(condemned_is_invisible_and_freed_after_its_pins)
{
	const uint32_t a = table_commit(1, BLOCK_NONE);

	blocks_pin(blocks, a);
	blocks_condemn(blocks, a);
	assert_int_equal(table_find(1), BLOCK_NONE);
	assert_false(blocks_live(blocks, a));
	assert_int_equal(blocks_count(blocks), 0);
	assert_int_equal(blocks_copies(blocks, TIER_HOST), 0);
	assert_int_equal(counts_blocks(blocks_counts(blocks), SPACE), 0);
	assert_false(blocks_condemned(blocks, &slot));
	assert_int_equal(blocks_host_slot(blocks, a), 1);
	blocks_unpin(blocks, a);
	assert_true(blocks_condemned(blocks, &slot));
	assert_int_equal(slot, 1);
	assert_false(blocks_condemned(blocks, &slot));
	assert_int_equal(victim_of(blocks, 1, NULL, NULL), BLOCK_NONE);
}

TEST(the_key_of_a_condemned_block_can_come_again)
{
	const uint32_t a = table_commit(1, BLOCK_NONE);

	blocks_pin(blocks, a);
	blocks_condemn(blocks, a);
	const uint32_t b = table_commit(1, BLOCK_NONE);
	assert_int_not_equal(a, b);
	blocks_unpin(blocks, a);
	assert_true(blocks_condemned(blocks, &slot));
	assert_int_equal(table_find(1), b);
}

/* The orphan's parent number is not given to another block, which would get a child that is not its
 * own. */
TEST(orphans_stay_and_age_out)
{
	const uint32_t parent = table_commit(1, BLOCK_NONE), child = table_commit(2, parent);

	blocks_condemn(blocks, parent);
	assert_true(blocks_condemned(blocks, &slot));
	assert_int_equal(table_find(2), child);
	const uint32_t other = table_commit(3, BLOCK_NONE);
	assert_int_not_equal(other, parent);
	blocks_touch(blocks, child, 1);
	blocks_touch(blocks, other, 2);
	assert_int_equal(victim_of(blocks, 1, NULL, NULL), child);
	(void)blocks_drop(blocks, child);
	assert_int_equal(victim_of(blocks, 1, NULL, NULL), other);
	(void)blocks_drop(blocks, other);
	assert_int_equal(victim_of(blocks, 1, NULL, NULL), BLOCK_NONE);
	/* Nothing leaked: the whole table can be used. */
	for (uint64_t i = 0; i < MAX; i++)
		table_commit(100 + i, BLOCK_NONE);
}

TEST(condemning_a_whole_chain_returns_everything)
{
	uint32_t chain[MAX], n = 0;

	for (uint32_t i = 0; i < MAX; i++)
		chain[i] = table_commit(i, i ? chain[i - 1] : BLOCK_NONE);
	for (uint32_t i = 0; i < MAX; i++)
		blocks_condemn(blocks, chain[(i * 37) % MAX]);
	while (blocks_condemned(blocks, &slot))
		n++;
	assert_int_equal(n, MAX);
	for (uint64_t i = 0; i < MAX; i++)
		table_commit(i, BLOCK_NONE);
}

TEST(a_parent_that_went_counts_as_none)
{
	const uint32_t gone = table_commit(1, BLOCK_NONE), condemned = table_commit(2, BLOCK_NONE);

	table_commit(3, BLOCK_NONE);
	blocks_pin(blocks, condemned);
	blocks_condemn(blocks, condemned);
	(void)blocks_drop(blocks, gone);
	/* The last free number is `gone` itself: it must not become its own parent. */
	const uint32_t a = table_commit(4, gone), b = table_commit(5, condemned);
	(void)blocks_drop(blocks, a);
	(void)blocks_drop(blocks, b);
}

TEST(a_parent_of_another_space_counts_as_none)
{
	const uint32_t parent = table_commit(1, BLOCK_NONE);
	const struct extent where = table_host_at(2);
	uint32_t block;

	assert_int_equal(blocks_commit(blocks, random_key_of(2).bytes, SPACE + 1, parent, 0, &where,
				       &block),
			 0);
	(void)blocks_drop(blocks, parent); /* still a leaf */
}

TEST(spaces_are_counted)
{
	const struct extent where = table_host_at(1);
	uint32_t block;

	for (uint32_t i = 0; i < 9; i++)
		assert_int_equal(blocks_commit(blocks, random_key_of(i).bytes, i % 3, BLOCK_NONE, 0,
					       &where, &block),
				 0);
	(void)blocks_drop(blocks, block);
	assert_int_equal(counts_blocks(blocks_counts(blocks), 0), 3);
	assert_int_equal(counts_blocks(blocks_counts(blocks), 2), 2);
	assert_int_equal(counts_blocks(blocks_counts(blocks), 3), 0);
}

static void drop_and_count(void *arg, uint32_t block)
{
	++*(uint32_t *)arg;
	(void)blocks_drop(blocks, block);
}

TEST(walk_sees_each_once_and_may_drop)
{
	uint32_t cursor = 0, n = 0;

	for (uint64_t i = 0; i < 50; i++)
		table_commit(i, BLOCK_NONE);
	while (blocks_walk(blocks, &cursor, 7, drop_and_count, &n))
		;
	assert_int_equal(n, 50);
	assert_int_equal(blocks_count(blocks), 0);
}

TEST(costs_at_most_96_bytes_a_block)
{
	/* key, row, node of the order: block.c and evict.c assert these sizes */
	enum { MANY = 1 << 18, ROW = 32 + 13 + 20 };
	const struct extent where = table_host_at(1);
	struct index *large;
	struct blocks *many;
	uint32_t block, n = 0;

	assert_int_equal(index_open(MANY, &large), 0);
	assert_int_equal(blocks_open(&(struct blocks_conf){ .max_blocks = MANY }, large, &many), 0);
	while (n < MANY &&
	       !blocks_commit(many, random_key_of(n).bytes, 0, BLOCK_NONE, 0, &where, &block))
		n++;
	assert_int_equal(n, MANY);
	const double each = ROW + (double)index_memory(large) / n;
	printf("%.2f bytes a block\n", each);
	assert_true(each <= 96);
	blocks_close(many);
	index_close(large);
}

static void condemn(void *arg, uint32_t block)
{
	blocks_condemn(arg, block);
}

/* A space that goes loses its blocks a few at a time, and no other does; pinned blocks still carry
 * its number. */
TEST(doomed_spaces_lose_their_blocks)
{
	uint32_t cursor = 40, pinned = BLOCK_NONE, block;
	const struct extent where = table_host_at(1);

	for (uint32_t i = 0; i < 30; i++) {
		assert_int_equal(blocks_commit(blocks, random_key_of(i).bytes, i % 3, BLOCK_NONE,
					       i % 2, &where, &block),
				 0);
		if (i == 4)
			pinned = block;
	}
	blocks_pin(blocks, pinned);
	assert_int_equal(counts_variant(blocks_counts(blocks), 1, 0), 5);
	counts_doom(blocks_counts(blocks), 0, true);
	counts_doom(blocks_counts(blocks), 1, true);
	assert_int_equal(counts_doomed(blocks_counts(blocks)), 20);
	counts_doom(blocks_counts(blocks), 0, false);
	assert_int_equal(counts_doomed(blocks_counts(blocks)), 10);
	blocks_walk_doomed(blocks, &cursor, 1000, 3, condemn, blocks);
	assert_int_equal(counts_doomed(blocks_counts(blocks)), 7);
	while (counts_doomed(blocks_counts(blocks)))
		blocks_walk_doomed(blocks, &cursor, 5, 3, condemn, blocks);
	assert_int_equal(blocks_count(blocks), 20);
	assert_int_equal(counts_blocks(blocks_counts(blocks), 0), 10);
	assert_int_equal(counts_blocks(blocks_counts(blocks), 1), 0);
	assert_int_equal(counts_held(blocks_counts(blocks), 1), 1);
	blocks_unpin(blocks, pinned);
	assert_int_equal(counts_held(blocks_counts(blocks), 1), 0);
	assert_int_equal(counts_held(blocks_counts(blocks), 2), 10);
	while (blocks_condemned(blocks, &slot))
		;
	counts_space_is(blocks_counts(blocks), 1, (const uint8_t[16]){ 1 }, 0);
	assert_int_equal(counts_doomed(blocks_counts(blocks)), 0);
}

/* Keys whose buckets are the same two, also when the table has grown to 512. A client can find such
 * keys for a space of its own. A block that does not fit there is refused with an error of its own,
 * though the table has room, and blocks of others stay. */
TEST(crowded_neighbourhood_is_not_a_full_table)
{
	enum { ALIKE = 12 };
	const struct fingerprint_key index_key = { { 0, 0 } }; /* of spaces that nobody named */
	const struct extent where = table_host_at(1);
	uint32_t refused = 0, found = 0, block;
	uint8_t key[32];

	for (uint64_t i = 1ull << 40; found < ALIKE; i++) {
		random_key(i, key);
		const struct print print = fingerprint(&index_key, key);

		if ((print.half[0] & 511) > 1 || (print.half[1] & 511) > 1)
			continue;
		const int r = blocks_commit(blocks, key, SPACE + 1, BLOCK_NONE, 0, &where, &block);

		found++;
		refused += r == -EXFULL;
		assert_true(r == 0 || r == -EXFULL);
	}
	assert_int_equal(refused, ALIKE - 2 * WIRE_BUCKET_ENTRIES);
	assert_int_equal(index_crowded(table), refused);
	assert_int_equal(blocks_count(blocks), 2 * WIRE_BUCKET_ENTRIES);
	for (uint32_t i = 0; i < MAX - 2 * WIRE_BUCKET_ENTRIES; i++)
		(void)table_commit(3000 + i, BLOCK_NONE);
	assert_int_equal(blocks_count(blocks), MAX);
}
