/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * unit_block_copies - a block's copies: every arrow of block.h's diagram. unit_block_wrong.c has
 * the calls that must not be made. Method: a few blocks in a small table; the client's reader is
 * asked beside the table.
 */
#include <errno.h>

#include "tests/lib/lib_block.h"
#include "daemon/store/tally.h"
#include "daemon/store/herd.h"
#include "tests/lib/test.h"

/* --- the arrows --- */

TEST_EACH(table_set_up, table_tear_down);

TEST(a_second_copy_is_added_under_pins)
{
	struct blocks *blocks = table_of(state);
	const uint32_t block = table_commit(blocks, 0, BLOCK_NONE);

	table_is_seen(state, 0, HOST, 1, 0);
	blocks_pin(blocks, block);
	table_set_nvme(blocks, block, 0);
	table_is_seen(state, 0, HOST | NVME, 1, 1);
	table_is_nvme(blocks, block, 0);
	table_set_nvme(blocks, block, 31); /* carried over */
	table_is_nvme(blocks, block, 31);
	table_is_seen(state, 0, HOST | NVME, 1, 1);
	blocks_set_nvme(blocks, block, NULL);
	assert_false(blocks_nvme(blocks, block, NULL));
	assert_int_equal(blocks_host_slot(blocks, block), 0);
	table_is_seen(state, 0, HOST, 1, 0);
}

TEST(demoted_stays_without_a_slot)
{
	struct blocks *blocks = table_of(state);
	const uint32_t block = table_commit_both(blocks, 1);

	blocks_touch(blocks, block, 9);
	assert_int_equal(herd_victim(blocks, CLASS, NULL), block);
	assert_int_equal(blocks_demote(blocks, block), 1);
	assert_int_equal(table_find(blocks, 1), block);
	assert_int_equal(blocks_host_slot(blocks, block), BLOCK_NONE);
	table_is_nvme(blocks, block, 1);
	assert_int_equal(herd_victim(blocks, CLASS, NULL), BLOCK_NONE);
	assert_true(blocks_evictable(blocks, block));
	assert_int_equal(blocks_tick(blocks, block), 9);
	table_is_seen(state, 1, NVME, 0, 1);
	assert_int_equal(blocks_count(blocks), 1);
}

TEST(demoting_a_child_makes_its_parent_a_leaf)
{
	struct blocks *blocks = table_of(state);
	const uint32_t parent = table_commit(blocks, 1, BLOCK_NONE),
		       child = table_commit(blocks, 2, parent);

	table_set_nvme(blocks, child, 2);
	assert_false(blocks_evictable(blocks, parent));
	(void)blocks_demote(blocks, child);
	assert_int_equal(herd_victim(blocks, CLASS, NULL), parent);
	assert_int_equal(blocks_parent(blocks, child), BLOCK_NONE);
}

TEST(promoted_has_slot_parent_and_recency)
{
	struct blocks *blocks = table_of(state);
	const uint32_t block = table_commit_away(blocks, 1, 5),
		       parent = table_commit(blocks, 2, BLOCK_NONE);
	uint64_t tick;

	table_promote(blocks, block, parent, 77);
	assert_int_equal(blocks_host_slot(blocks, block), 77);
	assert_int_equal(blocks_parent(blocks, block), parent);
	assert_false(blocks_evictable(blocks, parent));
	assert_int_equal(herd_victim(blocks, CLASS, &tick), block);
	assert_int_equal(tick, 5);
	table_is_seen(state, 1, HOST | NVME, 2, 1);
	assert_int_equal(blocks_demote(blocks, block), 77);
	assert_true(blocks_evictable(blocks, parent));
}

TEST(promoted_under_pins_is_no_victim_until_unpinned)
{
	struct blocks *blocks = table_of(state);
	const uint32_t block = table_commit_away(blocks, 1, 5);

	blocks_pin(blocks, block);
	blocks_touch(blocks, block, 6);
	table_promote(blocks, block, BLOCK_NONE, 77);
	assert_int_equal(blocks_pins(blocks, block), 1);
	assert_int_equal(herd_victim(blocks, CLASS, NULL), BLOCK_NONE);
	blocks_unpin(blocks, block);
	assert_int_equal(herd_victim(blocks, CLASS, NULL), block);
	assert_int_equal(blocks_tick(blocks, block), 6);
}

TEST(recovered_is_found_with_its_place)
{
	struct blocks *blocks = table_of(state);
	const uint32_t block = table_commit_away(blocks, 0, (1ull << 48) - 1);
	uint32_t other = 77;

	assert_int_equal(table_find(blocks, 0), block);
	table_is_nvme(blocks, block, 0);
	assert_int_equal(blocks_tick(blocks, block), (1ull << 48) - 1);
	assert_int_equal(blocks_variant(blocks, block), 1);
	assert_int_equal(tally_blocks(blocks_tally(blocks), SPACE), 1);
	table_is_seen(state, 0, NVME, 0, 1);
	assert_int_equal(table_try_away(blocks, 0, 1, &other), -EEXIST);
	for (uint32_t i = 1; i < MAX; i++)
		table_commit_away(blocks, i, 1);
	assert_int_equal(table_try_away(blocks, MAX, 1, &other), -ENOSPC);
	assert_int_equal(other, 77);
}

TEST(what_is_stored_after_recovery_is_more_recent)
{
	struct blocks *blocks = table_of(state);

	table_commit_away(blocks, 1, 1000);
	assert_int_equal(blocks_tick(blocks, table_commit(blocks, 2, BLOCK_NONE)), 1000);
}

TEST(an_away_block_is_dropped_without_a_slot)
{
	struct blocks *blocks = table_of(state);

	assert_int_equal(blocks_drop(blocks, table_demoted(blocks, 1)), BLOCK_NONE);
	assert_int_equal(table_find(blocks, 1), BLOCK_NONE);
	table_is_seen(state, 1, 0, 0, 0);
	assert_int_equal(tally_blocks(blocks_tally(blocks), SPACE), 0);
}

TEST(a_block_with_both_is_dropped_with_its_slot)
{
	struct blocks *blocks = table_of(state);
	assert_int_equal(blocks_drop(blocks, table_commit_both(blocks, 1)), 1);
	table_is_seen(state, 1, 0, 0, 0);
	/* nothing left in the number */
	assert_false(blocks_nvme(blocks, table_commit(blocks, 2, BLOCK_NONE), NULL));
}

/* --- chains and condemned blocks --- */

TEST(an_away_parent_counts_as_none)
{
	struct blocks *blocks = table_of(state);
	const uint32_t parent = table_demoted(blocks, 1), block = table_commit(blocks, 2, parent);
	const uint32_t other = table_commit_away(blocks, 3, 1);

	assert_int_equal(blocks_parent(blocks, block), BLOCK_NONE);
	table_promote(blocks, other, parent, 3);
	assert_int_equal(blocks_parent(blocks, other), BLOCK_NONE);
	table_promote(blocks, parent, parent, 1); /* nor is it its own */
	assert_int_equal(blocks_parent(blocks, parent), BLOCK_NONE);
	assert_true(blocks_evictable(blocks, parent));
}

TEST(a_demoted_parent_keeps_its_children)
{
	struct blocks *blocks = table_of(state);
	const uint32_t parent = table_commit_both(blocks, 1),
		       child = table_commit(blocks, 2, parent);
	uint32_t hand = 0;

	assert_int_equal(blocks_demote(blocks, parent), 1);
	table_is_seen(state, 1, NVME, 1, 1);
	assert_int_equal(blocks_parent(blocks, child), parent);
	assert_false(blocks_evictable(blocks, parent));
	assert_int_equal(herd_sample_away(blocks, &hand, MAX, NULL, NULL), BLOCK_NONE);
	(void)blocks_drop(blocks, child);
	assert_true(blocks_evictable(blocks, parent));
	assert_int_equal(herd_victim(blocks, CLASS, NULL), BLOCK_NONE); /* it has no slot to give */
	assert_int_equal(herd_sample_away(blocks, &hand, MAX, NULL, NULL), parent);
}

/* Keys that clients made up could name a child as the parent: nothing of such a cycle would ever be
 * a leaf. */
TEST(promoted_with_children_gets_no_parent)
{
	struct blocks *blocks = table_of(state);
	const uint32_t parent = table_commit_both(blocks, 1),
		       child = table_commit(blocks, 2, parent);

	(void)blocks_demote(blocks, parent);
	table_promote(blocks, parent, child, 1);
	assert_int_equal(blocks_parent(blocks, parent), BLOCK_NONE);
	assert_int_equal(herd_victim(blocks, CLASS, NULL), child);
	(void)blocks_drop(blocks, child);
	assert_int_equal(herd_victim(blocks, CLASS, NULL), parent);
}

TEST(a_condemned_away_parent_keeps_its_number_for_its_children)
{
	struct blocks *blocks = table_of(state);
	const uint32_t parent = table_commit_both(blocks, 1),
		       child = table_commit(blocks, 2, parent);
	uint32_t slot;

	(void)blocks_demote(blocks, parent);
	blocks_condemn(blocks, parent);
	assert_false(blocks_condemned(blocks, &slot));
	assert_int_equal(blocks_parent(blocks, child), BLOCK_NONE);
	assert_int_not_equal(table_commit(blocks, 3, BLOCK_NONE), parent);
	(void)blocks_drop(blocks, child);
	assert_int_equal(table_commit(blocks, 4, BLOCK_NONE), child);
	assert_int_equal(table_commit(blocks, 5, BLOCK_NONE), parent);
}

TEST(an_orphan_that_is_demoted_frees_the_number)
{
	struct blocks *blocks = table_of(state);
	const uint32_t parent = table_commit(blocks, 1, BLOCK_NONE),
		       child = table_commit(blocks, 2, parent);
	uint32_t slot;

	table_set_nvme(blocks, child, 2);
	blocks_condemn(blocks, parent);
	assert_true(blocks_condemned(blocks, &slot));
	assert_int_not_equal(table_commit(blocks, 3, BLOCK_NONE), parent);
	(void)blocks_demote(blocks, child);
	assert_int_equal(table_commit(blocks, 4, BLOCK_NONE), parent);
}

TEST(condemned_away_keeps_its_number_while_pinned)
{
	struct blocks *blocks = table_of(state);
	const uint32_t block = table_demoted(blocks, 1);
	uint32_t slot;

	blocks_pin(blocks, block);
	blocks_condemn(blocks, block);
	assert_false(blocks_live(blocks, block));
	assert_int_equal(table_find(blocks, 1), BLOCK_NONE);
	table_is_seen(state, 1, 0, 0, 0);
	assert_int_equal(blocks_host_slot(blocks, block), BLOCK_NONE);
	assert_false(blocks_nvme(blocks, block, NULL));
	assert_int_not_equal(table_commit(blocks, 2, BLOCK_NONE), block);
	blocks_unpin(blocks, block);
	assert_false(blocks_condemned(blocks, &slot));
	assert_int_equal(table_commit(blocks, 3, BLOCK_NONE), block);
}

TEST(condemned_away_without_pins_is_gone_at_once)
{
	struct blocks *blocks = table_of(state);
	const uint32_t block = table_demoted(blocks, 1);
	uint32_t slot;

	blocks_condemn(blocks, block);
	assert_false(blocks_condemned(blocks, &slot));
	assert_int_equal(table_commit(blocks, 2, BLOCK_NONE), block);
}

TEST(the_mark_of_the_queue_goes_with_its_block)
{
	struct blocks *blocks = table_of(state);
	const uint32_t a = table_commit(blocks, 1, BLOCK_NONE),
		       b = table_commit(blocks, 2, BLOCK_NONE);

	assert_false(blocks_queued(blocks, a));
	blocks_set_queued(blocks, a, true);
	blocks_set_queued(blocks, b, true);
	assert_true(blocks_queued(blocks, a));
	(void)blocks_drop(blocks, a);
	assert_false(blocks_queued(blocks, a));
	assert_int_equal(table_commit(blocks, 3, BLOCK_NONE), a);
	assert_false(blocks_queued(blocks, a));
	blocks_pin(blocks, b);
	blocks_condemn(blocks, b);
	assert_false(blocks_queued(blocks, b));
	assert_false(blocks_queued(blocks, MAX - 1)); /* never used */
}

/* --- sampling --- */

TEST(the_oldest_away_block_in_reach_is_sampled)
{
	struct blocks *blocks = table_of(state);
	uint32_t away[4], hand = 0;

	assert_int_equal(herd_sample_away(blocks, &hand, 100, NULL, NULL), BLOCK_NONE);
	(void)table_commit(blocks, 100, BLOCK_NONE);
	for (uint32_t i = 0; i < 4; i++)
		away[i] = table_commit_away(blocks, i, 40 - 10 * i);
	assert_int_equal(herd_sample_away(blocks, &hand, 100, NULL, NULL), away[3]);
	blocks_pin(blocks, away[3]);
	assert_int_equal(herd_sample_away(blocks, &hand, 100, NULL, NULL), away[2]);
	table_promote(blocks, away[2], BLOCK_NONE, 1);
	assert_int_equal(herd_sample_away(blocks, &hand, 100, NULL, NULL), away[1]);
}

TEST(the_hand_goes_round_within_its_budget)
{
	struct blocks *blocks = table_of(state);
	bool seen[MAX] = { false };
	uint32_t hand = 0;

	for (uint32_t i = 0; i < 10; i++)
		(void)table_commit_away(blocks, i, i);
	for (uint32_t i = 0; i < 10; i++)
		seen[herd_sample_away(blocks, &hand, 1, NULL, NULL)] = true;
	for (uint32_t i = 0; i < 10; i++)
		assert_true(seen[i]);
}
