/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unit_block - the table of blocks: identity, pins, chains, condemned blocks, counts.
 * Method: a few blocks in a small table, keys by number; one promise of block.h a case.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <string.h>

#include "../daemon/block.h"
#include "random.h"

enum { MAX = 64, SPACE = 5 };

struct fixture {
	struct index *index;
	struct blocks *blocks;
};

static int set_up(void **state)
{
	static struct fixture fixture;

	if (index_open(MAX, &fixture.index) < 0)
		return -1;
	*state = &fixture;
	return blocks_open(&(struct blocks_conf){ .max_blocks = MAX, .classes = 4 }, fixture.index,
			   &fixture.blocks);
}

static int tear_down(void **state)
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
	return (struct extent){ .tier = TIER_HOST, .class = 1, .slot = slot, .generation = 1000 + slot };
}

static int try_commit(struct blocks *blocks, uint64_t number, uint32_t parent, uint32_t *ret)
{
	const struct extent where = at((uint32_t)number);
	uint8_t key[32];

	random_key(number, key);
	return blocks_commit(blocks, key, SPACE, parent, &where, ret);
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

static void committed_is_found_with_its_place(void **state)
{
	struct blocks *blocks = of(state);
	struct extent where;
	uint8_t key[32];

	random_key(7, key);
	const struct extent wide = { .tier = TIER_REDIS, .device = 255, .class = 3, .slot = 0xffff0001,
				     .generation = 0xfffffffe };
	uint32_t block;
	assert_int_equal(blocks_commit(blocks, key, TIER_MAX_SPACES - 1, BLOCK_NONE, &wide, &block), 0);
	assert_int_equal(blocks_find(blocks, key, TIER_MAX_SPACES - 1), block);
	assert_int_equal(blocks_space(blocks, block), TIER_MAX_SPACES - 1);
	assert_memory_equal(blocks_key(blocks, block), key, 32);
	blocks_extent(blocks, block, &where);
	assert_memory_equal(&where, &wide, sizeof(where));
}

static void same_key_is_eexist(void **state)
{
	uint32_t block = 77;

	commit(of(state), 1, BLOCK_NONE);
	assert_int_equal(try_commit(of(state), 1, BLOCK_NONE, &block), -EEXIST);
	assert_int_equal(block, 77);
	assert_int_equal(blocks_count(of(state)), 1);
}

static void all_32_bytes_and_the_space_decide(void **state)
{
	struct blocks *blocks = of(state);
	const struct extent where = at(1);
	uint8_t key[32];
	uint32_t a, b, c;

	random_key(1, key);
	assert_int_equal(blocks_commit(blocks, key, 1, BLOCK_NONE, &where, &a), 0);
	assert_int_equal(blocks_commit(blocks, key, 2, BLOCK_NONE, &where, &b), 0);
	key[31] ^= 1;		/* the same fingerprint */
	assert_int_equal(blocks_find(blocks, key, 1), BLOCK_NONE);
	assert_int_equal(blocks_commit(blocks, key, 1, BLOCK_NONE, &where, &c), 0);
	assert_int_equal(blocks_find(blocks, key, 1), c);
	key[31] ^= 1;
	assert_int_equal(blocks_find(blocks, key, 1), a);
	assert_int_equal(blocks_find(blocks, key, 2), b);
	assert_int_equal(blocks_find(blocks, key, 3), BLOCK_NONE);
}

static void full_is_enospc_and_a_drop_makes_room(void **state)
{
	struct blocks *blocks = of(state);
	struct extent where;
	uint32_t block;

	for (uint64_t i = 0; i < MAX; i++)
		commit(blocks, i, BLOCK_NONE);
	assert_int_equal(try_commit(blocks, MAX, BLOCK_NONE, &block), -ENOSPC);
	assert_int_equal(find(blocks, MAX), BLOCK_NONE);
	blocks_drop(blocks, find(blocks, 3), &where);
	assert_int_equal(where.slot, 3);
	assert_int_equal(find(blocks, 3), BLOCK_NONE);
	commit(blocks, MAX, BLOCK_NONE);
	assert_int_equal(blocks_count(blocks), MAX);
}

static void least_recent_leaf_goes_first(void **state)
{
	struct blocks *blocks = of(state);
	const uint32_t a = commit(blocks, 1, BLOCK_NONE), b = commit(blocks, 2, BLOCK_NONE);
	uint64_t tick;

	blocks_touch(blocks, a, 10);
	blocks_touch(blocks, b, 11);
	assert_int_equal(blocks_victim(blocks, 1, &tick), a);
	assert_int_equal(tick, 10);
	blocks_touch(blocks, a, 12);
	assert_int_equal(blocks_victim(blocks, 1, NULL), b);
	assert_int_equal(blocks_victim(blocks, 2, NULL), BLOCK_NONE);
}

static void a_parent_outlives_its_children(void **state)
{
	struct blocks *blocks = of(state);
	const uint32_t parent = commit(blocks, 1, BLOCK_NONE);
	const uint32_t child = commit(blocks, 2, parent), other = commit(blocks, 3, BLOCK_NONE);
	uint64_t tick;

	blocks_touch(blocks, parent, 5);
	blocks_touch(blocks, other, 7);
	blocks_touch(blocks, child, 9);
	assert_int_equal(blocks_victim(blocks, 1, NULL), other);
	blocks_drop(blocks, child, NULL);
	/* A leaf again, by its own last access. */
	assert_int_equal(blocks_victim(blocks, 1, &tick), parent);
	assert_int_equal(tick, 5);
}

static void a_pinned_leaf_is_no_victim_until_unpinned(void **state)
{
	struct blocks *blocks = of(state);
	const uint32_t a = commit(blocks, 1, BLOCK_NONE), b = commit(blocks, 2, BLOCK_NONE);

	blocks_touch(blocks, a, 1);
	blocks_touch(blocks, b, 2);
	blocks_pin(blocks, a);
	blocks_pin(blocks, a);
	assert_int_equal(blocks_victim(blocks, 1, NULL), b);
	blocks_unpin(blocks, a);
	assert_int_equal(blocks_victim(blocks, 1, NULL), b);
	assert_int_equal(blocks_pins(blocks, a), 1);
	blocks_unpin(blocks, a);
	assert_int_equal(blocks_victim(blocks, 1, NULL), a);
}

static void moving_changes_place_and_class(void **state)
{
	struct blocks *blocks = of(state);
	const uint32_t a = commit(blocks, 1, BLOCK_NONE);
	struct extent to = at(500), where;

	to.class = 3;
	to.tier = TIER_NVME;
	blocks_move(blocks, a, &to);
	blocks_extent(blocks, a, &where);
	assert_memory_equal(&where, &to, sizeof(where));
	assert_int_equal(blocks_victim(blocks, 1, NULL), BLOCK_NONE);
	assert_int_equal(blocks_victim(blocks, 3, NULL), a);
	assert_int_equal(find(blocks, 1), a);
}

static void condemned_is_invisible_and_freed_after_its_pins(void **state)
{
	struct blocks *blocks = of(state);
	const uint32_t a = commit(blocks, 1, BLOCK_NONE);
	struct extent where;

	blocks_pin(blocks, a);
	blocks_condemn(blocks, a);
	assert_int_equal(find(blocks, 1), BLOCK_NONE);
	assert_int_equal(blocks_count(blocks), 0);
	assert_int_equal(blocks_space_count(blocks, SPACE), 0);
	assert_false(blocks_condemned(blocks, &where));
	blocks_extent(blocks, a, &where);
	assert_int_equal(where.slot, 1);
	blocks_unpin(blocks, a);
	assert_true(blocks_condemned(blocks, &where));
	assert_int_equal(where.slot, 1);
	assert_int_equal(where.generation, 1001);
	assert_false(blocks_condemned(blocks, &where));
	assert_int_equal(blocks_victim(blocks, 1, NULL), BLOCK_NONE);
}

static void the_key_of_a_condemned_block_can_come_again(void **state)
{
	struct blocks *blocks = of(state);
	const uint32_t a = commit(blocks, 1, BLOCK_NONE);
	struct extent where;

	blocks_pin(blocks, a);
	blocks_condemn(blocks, a);
	const uint32_t b = commit(blocks, 1, BLOCK_NONE);
	assert_int_not_equal(a, b);
	blocks_unpin(blocks, a);
	assert_true(blocks_condemned(blocks, &where));
	assert_int_equal(find(blocks, 1), b);
}

/* The orphan's parent number is not given to another block, which would get a child that is not its own. */
static void orphans_stay_and_age_out(void **state)
{
	struct blocks *blocks = of(state);
	const uint32_t parent = commit(blocks, 1, BLOCK_NONE), child = commit(blocks, 2, parent);
	struct extent where;

	blocks_condemn(blocks, parent);
	assert_true(blocks_condemned(blocks, &where));
	assert_int_equal(find(blocks, 2), child);
	const uint32_t other = commit(blocks, 3, BLOCK_NONE);
	assert_int_not_equal(other, parent);
	blocks_touch(blocks, child, 1);
	blocks_touch(blocks, other, 2);
	assert_int_equal(blocks_victim(blocks, 1, NULL), child);
	blocks_drop(blocks, child, NULL);
	assert_int_equal(blocks_victim(blocks, 1, NULL), other);
	blocks_drop(blocks, other, NULL);
	assert_int_equal(blocks_victim(blocks, 1, NULL), BLOCK_NONE);
	/* Nothing leaked: the whole table can be used. */
	for (uint64_t i = 0; i < MAX; i++)
		commit(blocks, 100 + i, BLOCK_NONE);
}

static void condemning_a_whole_chain_returns_everything(void **state)
{
	struct blocks *blocks = of(state);
	uint32_t chain[MAX], n = 0;
	struct extent where;

	for (uint32_t i = 0; i < MAX; i++)
		chain[i] = commit(blocks, i, i ? chain[i - 1] : BLOCK_NONE);
	for (uint32_t i = 0; i < MAX; i++)
		blocks_condemn(blocks, chain[(i * 37) % MAX]);
	while (blocks_condemned(blocks, &where))
		n++;
	assert_int_equal(n, MAX);
	for (uint64_t i = 0; i < MAX; i++)
		commit(blocks, i, BLOCK_NONE);
}

static void a_parent_that_went_counts_as_none(void **state)
{
	struct blocks *blocks = of(state);
	const uint32_t gone = commit(blocks, 1, BLOCK_NONE), condemned = commit(blocks, 2, BLOCK_NONE);

	commit(blocks, 3, BLOCK_NONE);
	blocks_pin(blocks, condemned);
	blocks_condemn(blocks, condemned);
	blocks_drop(blocks, gone, NULL);
	/* The last free number is `gone` itself: it must not become its own parent. */
	const uint32_t a = commit(blocks, 4, gone), b = commit(blocks, 5, condemned);
	blocks_drop(blocks, a, NULL);
	blocks_drop(blocks, b, NULL);
}

static void a_parent_of_another_space_counts_as_none(void **state)
{
	struct blocks *blocks = of(state);
	const uint32_t parent = commit(blocks, 1, BLOCK_NONE);
	const struct extent where = at(2);
	uint8_t key[32];
	uint32_t block;

	random_key(2, key);
	assert_int_equal(blocks_commit(blocks, key, SPACE + 1, parent, &where, &block), 0);
	blocks_drop(blocks, parent, NULL);	/* still a leaf */
}

static void spaces_are_counted(void **state)
{
	struct blocks *blocks = of(state);
	const struct extent where = at(1);
	uint8_t key[32];
	uint32_t block;

	for (uint32_t i = 0; i < 9; i++) {
		random_key(i, key);
		assert_int_equal(blocks_commit(blocks, key, i % 3, BLOCK_NONE, &where, &block), 0);
	}
	blocks_drop(blocks, block, NULL);
	assert_int_equal(blocks_space_count(blocks, 0), 3);
	assert_int_equal(blocks_space_count(blocks, 2), 2);
	assert_int_equal(blocks_space_count(blocks, 3), 0);
}

struct walk {
	struct blocks *blocks;
	uint32_t n;
};

static void walk_drop(void *arg, uint32_t block)
{
	struct walk *walk = arg;

	walk->n++;
	blocks_drop(walk->blocks, block, NULL);
}

static void walk_sees_each_once_and_may_drop(void **state)
{
	struct walk walk = { .blocks = of(state) };
	uint32_t cursor = 0;

	for (uint64_t i = 0; i < 50; i++)
		commit(walk.blocks, i, BLOCK_NONE);
	while (blocks_walk(walk.blocks, &cursor, 7, walk_drop, &walk))
		;
	assert_int_equal(walk.n, 50);
	assert_int_equal(blocks_count(walk.blocks), 0);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(committed_is_found_with_its_place),
		CASE(same_key_is_eexist),
		CASE(all_32_bytes_and_the_space_decide),
		CASE(full_is_enospc_and_a_drop_makes_room),
		CASE(least_recent_leaf_goes_first),
		CASE(a_parent_outlives_its_children),
		CASE(a_pinned_leaf_is_no_victim_until_unpinned),
		CASE(moving_changes_place_and_class),
		CASE(condemned_is_invisible_and_freed_after_its_pins),
		CASE(the_key_of_a_condemned_block_can_come_again),
		CASE(orphans_stay_and_age_out),
		CASE(condemning_a_whole_chain_returns_everything),
		CASE(a_parent_that_went_counts_as_none),
		CASE(a_parent_of_another_space_counts_as_none),
		CASE(spaces_are_counted),
		CASE(walk_sees_each_once_and_may_drop),
	};

	return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
