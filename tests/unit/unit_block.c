/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * unit_block - the table of blocks: identity, pins, chains, condemned blocks, counts, memory.
 * Copies of a block are unit_block_copies.c's. Method: a few blocks in a small table, keys by
 * number; one promise of block.h a case.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/store/block.h"
#include "tests/lib/random.h"
#include "daemon/store/tally.h"
#include "daemon/store/herd.h"
#include "tests/lib/test.h"

enum { MAX = 64, SPACE = 5 };

struct fixture {
	struct index *index;
	struct blocks *blocks;
};

FIXTURE(set_up)
{
	static struct fixture fixture;

	if (index_open(MAX, &fixture.index) < 0)
		return -1;
	*state = &fixture;
	return blocks_open(&(struct blocks_conf){ .max_blocks = MAX, .classes = 4 }, fixture.index,
			   &fixture.blocks);
}

FIXTURE(tear_down)
{
	struct fixture *fixture = *state;

	blocks_close(fixture->blocks);
	index_close(fixture->index);
	return 0;
}

static struct blocks *of(void **state)
{
	return ((struct fixture *)*state)->blocks;
}

static struct extent at(uint32_t slot)
{
	return (struct extent){
		.tier = TIER_HOST, .class = 1, .slot = slot, .generation = 1000 + slot
	};
}

static int try_commit(struct blocks *blocks, uint64_t number, uint32_t parent, uint32_t *ret)
{
	const struct extent where = at((uint32_t)number);
	uint8_t key[32];

	random_key(number, key);
	return blocks_commit(blocks, key, SPACE, parent, 0, &where, ret);
}

static uint32_t commit(struct blocks *blocks, uint64_t number, uint32_t parent)
{
	uint32_t block = BLOCK_NONE;

	assert_int_equal(try_commit(blocks, number, parent, &block), 0);
	return block;
}

static uint32_t find(struct blocks *blocks, uint64_t number)
{
	uint8_t key[32];

	random_key(number, key);
	return blocks_find(blocks, key, SPACE);
}

TEST_WITH(committed_is_found_with_its_place, set_up, tear_down)
{
	struct blocks *blocks = of(state);
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
	assert_int_equal(herd_victim(blocks, 3, NULL), block);
}

TEST_WITH(same_key_is_eexist, set_up, tear_down)
{
	uint32_t block = 77;

	commit(of(state), 1, BLOCK_NONE);
	assert_int_equal(try_commit(of(state), 1, BLOCK_NONE, &block), -EEXIST);
	assert_int_equal(block, 77);
	assert_int_equal(blocks_count(of(state)), 1);
}

TEST_WITH(all_32_bytes_and_the_space_decide, set_up, tear_down)
{
	struct blocks *blocks = of(state);
	const struct extent where = at(1);
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

TEST_WITH(full_is_enospc_and_a_drop_makes_room, set_up, tear_down)
{
	struct blocks *blocks = of(state);
	uint32_t block;

	for (uint64_t i = 0; i < MAX; i++)
		commit(blocks, i, BLOCK_NONE);
	assert_int_equal(try_commit(blocks, MAX, BLOCK_NONE, &block), -ENOSPC);
	assert_int_equal(find(blocks, MAX), BLOCK_NONE);
	assert_int_equal(blocks_drop(blocks, find(blocks, 3)), 3);
	assert_int_equal(find(blocks, 3), BLOCK_NONE);
	commit(blocks, MAX, BLOCK_NONE);
	assert_int_equal(blocks_count(blocks), MAX);
}

TEST_WITH(least_recent_leaf_goes_first, set_up, tear_down)
{
	struct blocks *blocks = of(state);
	const uint32_t a = commit(blocks, 1, BLOCK_NONE), b = commit(blocks, 2, BLOCK_NONE);
	uint64_t tick;

	blocks_touch(blocks, a, 10);
	blocks_touch(blocks, b, 11);
	assert_int_equal(herd_victim(blocks, 1, &tick), a);
	assert_int_equal(tick, 10);
	blocks_touch(blocks, a, 12);
	assert_int_equal(herd_victim(blocks, 1, NULL), b);
	assert_int_equal(herd_victim(blocks, 2, NULL), BLOCK_NONE);
}

TEST_WITH(a_parent_outlives_its_children, set_up, tear_down)
{
	struct blocks *blocks = of(state);
	const uint32_t parent = commit(blocks, 1, BLOCK_NONE);
	const uint32_t child = commit(blocks, 2, parent), other = commit(blocks, 3, BLOCK_NONE);
	uint64_t tick;

	blocks_touch(blocks, parent, 5);
	blocks_touch(blocks, other, 7);
	blocks_touch(blocks, child, 9);
	assert_int_equal(herd_victim(blocks, 1, NULL), other);
	(void)blocks_drop(blocks, child);
	/* A leaf again, by its own last access. */
	assert_int_equal(herd_victim(blocks, 1, &tick), parent);
	assert_int_equal(tick, 5);
}

TEST_WITH(a_pinned_leaf_is_no_victim_until_unpinned, set_up, tear_down)
{
	struct blocks *blocks = of(state);
	const uint32_t a = commit(blocks, 1, BLOCK_NONE), b = commit(blocks, 2, BLOCK_NONE);

	blocks_touch(blocks, a, 1);
	blocks_touch(blocks, b, 2);
	blocks_pin(blocks, a);
	blocks_pin(blocks, a);
	assert_int_equal(herd_victim(blocks, 1, NULL), b);
	blocks_unpin(blocks, a);
	assert_int_equal(herd_victim(blocks, 1, NULL), b);
	assert_int_equal(blocks_pins(blocks, a), 1);
	blocks_unpin(blocks, a);
	assert_int_equal(herd_victim(blocks, 1, NULL), a);
}

TEST_WITH(moving_changes_place_and_class, set_up, tear_down)
{
	struct blocks *blocks = of(state);
	const uint32_t a = commit(blocks, 1, BLOCK_NONE);
	struct extent to = at(500);

	to.class = 3;
	blocks_move(blocks, a, &to);
	assert_int_equal(blocks_host_slot(blocks, a), 500);
	assert_int_equal(herd_victim(blocks, 1, NULL), BLOCK_NONE);
	assert_int_equal(herd_victim(blocks, 3, NULL), a);
	assert_int_equal(find(blocks, 1), a);
}

TEST_WITH(condemned_is_invisible_and_freed_after_its_pins, set_up, tear_down)
{
	struct blocks *blocks = of(state);
	const uint32_t a = commit(blocks, 1, BLOCK_NONE);
	uint32_t slot;

	blocks_pin(blocks, a);
	blocks_condemn(blocks, a);
	assert_int_equal(find(blocks, 1), BLOCK_NONE);
	assert_false(blocks_live(blocks, a));
	assert_int_equal(blocks_count(blocks), 0);
	assert_int_equal(blocks_copies(blocks, TIER_HOST), 0);
	assert_int_equal(tally_blocks(blocks_tally(blocks), SPACE), 0);
	assert_false(blocks_condemned(blocks, &slot));
	assert_int_equal(blocks_host_slot(blocks, a), 1);
	blocks_unpin(blocks, a);
	assert_true(blocks_condemned(blocks, &slot));
	assert_int_equal(slot, 1);
	assert_false(blocks_condemned(blocks, &slot));
	assert_int_equal(herd_victim(blocks, 1, NULL), BLOCK_NONE);
}

TEST_WITH(the_key_of_a_condemned_block_can_come_again, set_up, tear_down)
{
	struct blocks *blocks = of(state);
	const uint32_t a = commit(blocks, 1, BLOCK_NONE);
	uint32_t slot;

	blocks_pin(blocks, a);
	blocks_condemn(blocks, a);
	const uint32_t b = commit(blocks, 1, BLOCK_NONE);
	assert_int_not_equal(a, b);
	blocks_unpin(blocks, a);
	assert_true(blocks_condemned(blocks, &slot));
	assert_int_equal(find(blocks, 1), b);
}

/* The orphan's parent number is not given to another block, which would get a child that is not its
 * own. */
TEST_WITH(orphans_stay_and_age_out, set_up, tear_down)
{
	struct blocks *blocks = of(state);
	const uint32_t parent = commit(blocks, 1, BLOCK_NONE), child = commit(blocks, 2, parent);
	uint32_t slot;

	blocks_condemn(blocks, parent);
	assert_true(blocks_condemned(blocks, &slot));
	assert_int_equal(find(blocks, 2), child);
	const uint32_t other = commit(blocks, 3, BLOCK_NONE);
	assert_int_not_equal(other, parent);
	blocks_touch(blocks, child, 1);
	blocks_touch(blocks, other, 2);
	assert_int_equal(herd_victim(blocks, 1, NULL), child);
	(void)blocks_drop(blocks, child);
	assert_int_equal(herd_victim(blocks, 1, NULL), other);
	(void)blocks_drop(blocks, other);
	assert_int_equal(herd_victim(blocks, 1, NULL), BLOCK_NONE);
	/* Nothing leaked: the whole table can be used. */
	for (uint64_t i = 0; i < MAX; i++)
		commit(blocks, 100 + i, BLOCK_NONE);
}

TEST_WITH(condemning_a_whole_chain_returns_everything, set_up, tear_down)
{
	struct blocks *blocks = of(state);
	uint32_t chain[MAX], n = 0, slot;

	for (uint32_t i = 0; i < MAX; i++)
		chain[i] = commit(blocks, i, i ? chain[i - 1] : BLOCK_NONE);
	for (uint32_t i = 0; i < MAX; i++)
		blocks_condemn(blocks, chain[(i * 37) % MAX]);
	while (blocks_condemned(blocks, &slot))
		n++;
	assert_int_equal(n, MAX);
	for (uint64_t i = 0; i < MAX; i++)
		commit(blocks, i, BLOCK_NONE);
}

TEST_WITH(a_parent_that_went_counts_as_none, set_up, tear_down)
{
	struct blocks *blocks = of(state);
	const uint32_t gone = commit(blocks, 1, BLOCK_NONE),
		       condemned = commit(blocks, 2, BLOCK_NONE);

	commit(blocks, 3, BLOCK_NONE);
	blocks_pin(blocks, condemned);
	blocks_condemn(blocks, condemned);
	(void)blocks_drop(blocks, gone);
	/* The last free number is `gone` itself: it must not become its own parent. */
	const uint32_t a = commit(blocks, 4, gone), b = commit(blocks, 5, condemned);
	(void)blocks_drop(blocks, a);
	(void)blocks_drop(blocks, b);
}

TEST_WITH(a_parent_of_another_space_counts_as_none, set_up, tear_down)
{
	struct blocks *blocks = of(state);
	const uint32_t parent = commit(blocks, 1, BLOCK_NONE);
	const struct extent where = at(2);
	uint8_t key[32];
	uint32_t block;

	random_key(2, key);
	assert_int_equal(blocks_commit(blocks, key, SPACE + 1, parent, 0, &where, &block), 0);
	(void)blocks_drop(blocks, parent); /* still a leaf */
}

TEST_WITH(spaces_are_counted, set_up, tear_down)
{
	struct blocks *blocks = of(state);
	const struct extent where = at(1);
	uint8_t key[32];
	uint32_t block;

	for (uint32_t i = 0; i < 9; i++) {
		random_key(i, key);
		assert_int_equal(blocks_commit(blocks, key, i % 3, BLOCK_NONE, 0, &where, &block),
				 0);
	}
	(void)blocks_drop(blocks, block);
	assert_int_equal(tally_blocks(blocks_tally(blocks), 0), 3);
	assert_int_equal(tally_blocks(blocks_tally(blocks), 2), 2);
	assert_int_equal(tally_blocks(blocks_tally(blocks), 3), 0);
}

struct walk {
	struct blocks *blocks;
	uint32_t n;
};

static void walk_drop(void *arg, uint32_t block)
{
	struct walk *walk = arg;

	walk->n++;
	(void)blocks_drop(walk->blocks, block);
}

TEST_WITH(walk_sees_each_once_and_may_drop, set_up, tear_down)
{
	struct walk walk = { .blocks = of(state) };
	uint32_t cursor = 0;

	for (uint64_t i = 0; i < 50; i++)
		commit(walk.blocks, i, BLOCK_NONE);
	while (herd_walk(walk.blocks, &cursor, 7, walk_drop, &walk))
		;
	assert_int_equal(walk.n, 50);
	assert_int_equal(blocks_count(walk.blocks), 0);
}

TEST(costs_at_most_96_bytes_a_block)
{
	enum { MANY = 1 << 18 };
	const struct extent where = at(1);
	struct index *index;
	struct blocks *blocks;
	uint32_t block, n = 0;
	uint8_t key[32];

	assert_int_equal(index_open(MANY, &index), 0);
	assert_int_equal(blocks_open(&(struct blocks_conf){ .max_blocks = MANY, .classes = 2 },
				     index, &blocks),
			 0);
	do
		random_key(n, key);
	while (!blocks_commit(blocks, key, 0, BLOCK_NONE, 0, &where, &block) && ++n < MANY);
	assert_int_equal(n, MANY);
	const double each = ((double)blocks_memory(blocks) + (double)index_memory(index)) / n;
	printf("%.2f bytes a block\n", each);
	assert_true(each <= 96);
	blocks_close(blocks);
	index_close(index);
}

static void condemn(void *arg, uint32_t block)
{
	blocks_condemn(arg, block);
}

/* A space that goes loses its blocks a few at a time, and no other does; pinned blocks still carry
 * its number. */
TEST_WITH(doomed_spaces_lose_their_blocks, set_up, tear_down)
{
	struct blocks *blocks = of(state);
	uint32_t cursor = 40, pinned = BLOCK_NONE, block, slot;
	const struct extent where = at(1);
	uint8_t key[32];

	for (uint32_t i = 0; i < 30; i++) {
		random_key(i, key);
		assert_int_equal(blocks_commit(blocks, key, i % 3, BLOCK_NONE, i % 2, &where,
					       &block),
				 0);
		if (i == 4)
			pinned = block;
	}
	blocks_pin(blocks, pinned);
	assert_int_equal(tally_count(blocks_tally(blocks), 1, 0), 5);
	tally_doom(blocks_tally(blocks), 0, true);
	tally_doom(blocks_tally(blocks), 1, true);
	assert_int_equal(tally_doomed(blocks_tally(blocks)), 20);
	tally_doom(blocks_tally(blocks), 0, false);
	assert_int_equal(tally_doomed(blocks_tally(blocks)), 10);
	herd_walk_doomed(blocks, &cursor, 1000, 3, condemn, blocks);
	assert_int_equal(tally_doomed(blocks_tally(blocks)), 7);
	while (tally_doomed(blocks_tally(blocks)))
		herd_walk_doomed(blocks, &cursor, 5, 3, condemn, blocks);
	assert_int_equal(blocks_count(blocks), 20);
	assert_int_equal(tally_blocks(blocks_tally(blocks), 0), 10);
	assert_int_equal(tally_blocks(blocks_tally(blocks), 1), 0);
	assert_int_equal(tally_held(blocks_tally(blocks), 1), 1);
	blocks_unpin(blocks, pinned);
	assert_int_equal(tally_held(blocks_tally(blocks), 1), 0);
	assert_int_equal(tally_held(blocks_tally(blocks), 2), 10);
	while (blocks_condemned(blocks, &slot))
		;
	tally_space_is(blocks_tally(blocks), 1, (const uint8_t[16]){ 1 }, 0);
	assert_int_equal(tally_doomed(blocks_tally(blocks)), 0);
}

/* Keys whose buckets are the same two, also when the table has grown to 512. A client can find such
 * keys for a space of its own. A block that does not fit there is refused with an error of its own,
 * though the table has room, and blocks of others stay. */
TEST_WITH(crowded_neighbourhood_is_not_a_full_table, set_up, tear_down)
{
	enum { ALIKE = 12 };
	const struct fingerprint_key index_key = { { 0, 0 } }; /* of spaces that nobody named */
	const struct extent where = at(1);
	struct blocks *blocks = of(state);
	uint32_t refused = 0, found = 0, block;
	uint8_t key[32];

	for (uint64_t i = 1ull << 40; found < ALIKE; i++) {
		random_key(i, key);
		const struct print print = fingerprint(&index_key, key);

		if ((print.half[0] & 511) > 1 || (print.half[1] & 511) > 1)
			continue;
		const int r = blocks_commit(blocks, key, SPACE, BLOCK_NONE, 0, &where, &block);

		found++;
		refused += r == -EXFULL;
		assert_true(r == 0 || r == -EXFULL);
	}
	assert_int_equal(refused, ALIKE - 2 * WIRE_BUCKET_ENTRIES);
	assert_int_equal(index_crowded(((struct fixture *)*state)->index), refused);
	assert_int_equal(blocks_count(blocks), 2 * WIRE_BUCKET_ENTRIES);
	for (uint32_t i = 0; i < MAX - 2 * WIRE_BUCKET_ENTRIES; i++)
		(void)commit(blocks, 3000 + i, BLOCK_NONE);
	assert_int_equal(blocks_count(blocks), MAX);
}
