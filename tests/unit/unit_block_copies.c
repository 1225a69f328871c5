/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * unit_block_copies - goal: a block's copies go every arrow of block.h's diagram, and a call that
 * must not be made ends in an assertion. Method: a few blocks in a small table; the client's reader
 * is asked beside the table. Each wrong call is made in a child process, which must die of SIGABRT.
 */

#include "tests/lib/lib_block.h"
#include "daemon/table/space_counts.h"
#include "daemon/policy/victim.h"

/* --- the arrows --- */

TEST_EACH(table_set_up, table_tear_down);

static uint32_t slot; /* that a condemned block gave back */

TEST(a_second_copy_is_added_under_pins)
{
	const uint32_t block = table_commit(0, BLOCK_NONE);

	table_is_seen(0, HOST, 1, 0);
	blocks_pin(blocks, block);
	table_set_nvme(block, 0);
	table_is_seen(0, HOST | NVME, 1, 1);
	table_is_nvme(block, 0);
	table_set_nvme(block, 31); /* it was kept, under another location */
	table_is_nvme(block, 31);
	table_is_seen(0, HOST | NVME, 1, 1);
	blocks_set_nvme(blocks, block, NULL);
	assert_false(blocks_nvme(blocks, block, NULL));
	assert_int_equal(blocks_host_slot(blocks, block), 0);
	table_is_seen(0, HOST, 1, 0);
}

TEST(demoted_stays_without_a_slot)
{
	const uint32_t block = table_commit_both(1);

	blocks_touch(blocks, block, 9);
	assert_int_equal(victim_of(blocks, CLASS, NULL, NULL), block);
	assert_int_equal(blocks_demote(blocks, block), 1);
	assert_int_equal(table_find(1), block);
	assert_int_equal(blocks_host_slot(blocks, block), BLOCK_NONE);
	table_is_nvme(block, 1);
	assert_int_equal(victim_of(blocks, CLASS, NULL, NULL), BLOCK_NONE);
	assert_true(blocks_evictable(blocks, block));
	assert_int_equal(blocks_tick(blocks, block), 9);
	table_is_seen(1, NVME, 0, 1);
	assert_int_equal(blocks_count(blocks), 1);
}

TEST(demoting_a_child_makes_its_parent_a_leaf)
{
	const uint32_t parent = table_commit(1, BLOCK_NONE), child = table_commit(2, parent);

	table_set_nvme(child, 2);
	assert_false(blocks_evictable(blocks, parent));
	(void)blocks_demote(blocks, child);
	assert_int_equal(victim_of(blocks, CLASS, NULL, NULL), parent);
	assert_int_equal(blocks_parent(blocks, child), BLOCK_NONE);
}

TEST(promoted_has_slot_parent_and_recency)
{
	const uint32_t block = table_commit_away(1, 5), parent = table_commit(2, BLOCK_NONE);
	uint64_t tick;

	table_promote(block, parent, 77);
	assert_int_equal(blocks_host_slot(blocks, block), 77);
	assert_int_equal(blocks_parent(blocks, block), parent);
	assert_false(blocks_evictable(blocks, parent));
	assert_int_equal(victim_of(blocks, CLASS, NULL, &tick), block);
	assert_int_equal(tick, 5);
	table_is_seen(1, HOST | NVME, 2, 1);
	assert_int_equal(blocks_demote(blocks, block), 77);
	assert_true(blocks_evictable(blocks, parent));
}

TEST(promoted_under_pins_is_no_victim_until_unpinned)
{
	const uint32_t block = table_commit_away(1, 5);

	blocks_pin(blocks, block);
	blocks_touch(blocks, block, 6);
	table_promote(block, BLOCK_NONE, 77);
	assert_int_equal(blocks_pins(blocks, block), 1);
	assert_int_equal(victim_of(blocks, CLASS, NULL, NULL), BLOCK_NONE);
	blocks_unpin(blocks, block);
	assert_int_equal(victim_of(blocks, CLASS, NULL, NULL), block);
	assert_int_equal(blocks_tick(blocks, block), 6);
}

TEST(recovered_is_found_with_its_place)
{
	const uint32_t block = table_commit_away(0, (1ull << 48) - 1);
	uint32_t other = BLOCK_NONE;

	assert_int_equal(table_find(0), block);
	table_is_nvme(block, 0);
	assert_int_equal(blocks_tick(blocks, block), (1ull << 48) - 1);
	assert_int_equal(blocks_variant(blocks, block), 1);
	assert_int_equal(counts_blocks(blocks_counts(blocks), SPACE), 1);
	table_is_seen(0, NVME, 0, 1);
	assert_int_equal(table_try_away(0, 1, &other), -EEXIST);
	assert_int_equal(other, block);
	for (uint32_t i = 1; i < MAX; i++)
		table_commit_away(i, 1);
	assert_int_equal(table_try_away(MAX, 1, &other), -ENOSPC);
}

TEST(what_is_stored_after_recovery_is_more_recent)
{
	table_commit_away(1, 1000);
	assert_int_equal(blocks_tick(blocks, table_commit(2, BLOCK_NONE)), 1000);
}

TEST(an_away_block_is_dropped_without_a_slot)
{
	assert_int_equal(blocks_drop(blocks, table_demoted(1)), BLOCK_NONE);
	assert_int_equal(table_find(1), BLOCK_NONE);
	table_is_seen(1, 0, 0, 0);
	assert_int_equal(counts_blocks(blocks_counts(blocks), SPACE), 0);
}

TEST(a_block_with_both_is_dropped_with_its_slot)
{
	assert_int_equal(blocks_drop(blocks, table_commit_both(1)), 1);
	table_is_seen(1, 0, 0, 0);
	/* nothing left in the number */
	assert_false(blocks_nvme(blocks, table_commit(2, BLOCK_NONE), NULL));
}

/* --- chains and condemned blocks --- */

TEST(an_away_parent_counts_as_none)
{
	const uint32_t parent = table_demoted(1), block = table_commit(2, parent);
	const uint32_t other = table_commit_away(3, 1);

	assert_int_equal(blocks_parent(blocks, block), BLOCK_NONE);
	table_promote(other, parent, 3);
	assert_int_equal(blocks_parent(blocks, other), BLOCK_NONE);
	table_promote(parent, parent, 1); /* nor is it its own */
	assert_int_equal(blocks_parent(blocks, parent), BLOCK_NONE);
	assert_true(blocks_evictable(blocks, parent));
}

TEST(away_blocks_are_known_to_be_before_others)
{
	const uint32_t first = table_commit_both(1);
	uint32_t second, later;

	assert_int_equal(blocks_before(blocks, first), BLOCK_NONE);
	blocks_touch(blocks, first, 20);
	second = table_commit(2, first);
	table_set_nvme(second, 2);
	(void)blocks_demote(blocks, second);
	(void)blocks_demote(blocks, first);
	assert_int_equal(blocks_before(blocks, second), first);
	later = table_commit(3, second);
	blocks_touch(blocks, later, 18);
	assert_int_equal(blocks_parent(blocks, later), BLOCK_NONE);
	assert_int_equal(blocks_before(blocks, later), second);
	blocks_touch(blocks, later, 30); /* another block would have the number by now */
	assert_int_equal(blocks_before(blocks, later), BLOCK_NONE);
}

TEST(a_demoted_parent_keeps_its_children)
{
	const uint32_t parent = table_commit_both(1), child = table_commit(2, parent);
	uint32_t hand = 0;

	assert_int_equal(blocks_demote(blocks, parent), 1);
	table_is_seen(1, NVME, 1, 1);
	assert_int_equal(blocks_parent(blocks, child), parent);
	assert_false(blocks_evictable(blocks, parent));
	assert_int_equal(victim_away(blocks, &hand, MAX, NULL, NULL), BLOCK_NONE);
	(void)blocks_drop(blocks, child);
	assert_true(blocks_evictable(blocks, parent));
	assert_int_equal(victim_of(blocks, CLASS, NULL, NULL),
			 BLOCK_NONE); /* it has no slot to give */
	assert_int_equal(victim_away(blocks, &hand, MAX, NULL, NULL), parent);
}

/* Keys that clients made up could name a child as the parent: nothing of such a cycle would ever be
 * a leaf. */
TEST(promoted_with_children_gets_no_parent)
{
	const uint32_t parent = table_commit_both(1), child = table_commit(2, parent);

	(void)blocks_demote(blocks, parent);
	table_promote(parent, child, 1);
	assert_int_equal(blocks_parent(blocks, parent), BLOCK_NONE);
	assert_int_equal(victim_of(blocks, CLASS, NULL, NULL), child);
	(void)blocks_drop(blocks, child);
	assert_int_equal(victim_of(blocks, CLASS, NULL, NULL), parent);
}

/* A chain of three that are away, as heirs. */
static void demoted_chain(uint32_t ret[3])
{
	for (uint32_t i = 0; i < 3; i++) {
		ret[i] = table_commit(i, i ? ret[i - 1] : BLOCK_NONE);
		table_set_nvme(ret[i], i);
		blocks_touch(blocks, ret[i], 9 - i);
	}
	for (uint32_t i = 3; i-- > 0;)
		(void)blocks_demote(blocks, ret[i]);
}

TEST(heirs_are_lost_with_their_parent)
{
	uint32_t chain[3];

	demoted_chain(chain);
	assert_int_equal(blocks_last_heir(blocks, chain[0]), chain[2]);
	assert_int_equal(blocks_lost(blocks), BLOCK_NONE);
	(void)blocks_drop(blocks, chain[0]);
	assert_int_equal(blocks_lost(blocks), chain[1]);
	assert_int_not_equal(table_commit(3, BLOCK_NONE), chain[0]);
	(void)blocks_drop(blocks, chain[1]);
	assert_int_equal(blocks_lost(blocks), chain[2]);
	(void)blocks_drop(blocks, chain[2]);
	assert_int_equal(blocks_lost(blocks), BLOCK_NONE);
	assert_int_equal(table_commit(4, BLOCK_NONE), chain[0]);
}

TEST(an_heir_that_is_promoted_is_not_lost)
{
	uint32_t chain[3];

	demoted_chain(chain);
	table_promote(chain[1], BLOCK_NONE, 77);
	(void)blocks_drop(blocks, chain[0]);
	assert_int_equal(blocks_lost(blocks), BLOCK_NONE);
	assert_int_equal(table_find(1), chain[1]);
}

/* Reads end in any order. */
TEST(a_parent_that_was_promoted_later_has_its_heir)
{
	uint32_t chain[3];

	demoted_chain(chain);
	table_promote(chain[1], chain[0], 1);
	assert_int_equal(blocks_parent(blocks, chain[1]), BLOCK_NONE);
	table_promote(chain[0], BLOCK_NONE, 0);
	(void)blocks_demote(blocks, chain[1]);
	(void)blocks_drop(blocks, chain[0]);
	assert_int_equal(blocks_lost(blocks), chain[1]);
}

/* It may be stored again at any time. */
TEST(heirs_of_a_damaged_block_stay)
{
	uint32_t chain[3];

	demoted_chain(chain);
	blocks_condemn(blocks, chain[0]);
	assert_int_equal(blocks_lost(blocks), BLOCK_NONE);
	assert_int_not_equal(table_commit(3, BLOCK_NONE), chain[0]);
	(void)blocks_drop(blocks, chain[1]);
	assert_int_equal(blocks_lost(blocks), chain[2]);
	assert_int_equal(table_commit(4, BLOCK_NONE), chain[0]);
}

TEST(a_condemned_away_parent_keeps_its_number_for_its_children)
{
	const uint32_t parent = table_commit_both(1), child = table_commit(2, parent);

	(void)blocks_demote(blocks, parent);
	blocks_condemn(blocks, parent);
	assert_false(blocks_condemned(blocks, &slot));
	assert_int_equal(blocks_parent(blocks, child), BLOCK_NONE);
	assert_int_not_equal(table_commit(3, BLOCK_NONE), parent);
	(void)blocks_drop(blocks, child);
	assert_int_equal(table_commit(4, BLOCK_NONE), child);
	assert_int_equal(table_commit(5, BLOCK_NONE), parent);
}

TEST(an_orphan_that_is_demoted_frees_the_number)
{
	const uint32_t parent = table_commit(1, BLOCK_NONE), child = table_commit(2, parent);

	table_set_nvme(child, 2);
	blocks_condemn(blocks, parent);
	assert_true(blocks_condemned(blocks, &slot));
	assert_int_not_equal(table_commit(3, BLOCK_NONE), parent);
	(void)blocks_demote(blocks, child);
	assert_int_equal(table_commit(4, BLOCK_NONE), parent);
}

TEST(condemned_away_keeps_its_number_while_pinned)
{
	const uint32_t block = table_demoted(1);

	blocks_pin(blocks, block);
	blocks_condemn(blocks, block);
	assert_false(blocks_live(blocks, block));
	assert_int_equal(table_find(1), BLOCK_NONE);
	table_is_seen(1, 0, 0, 0);
	assert_int_equal(blocks_host_slot(blocks, block), BLOCK_NONE);
	assert_false(blocks_nvme(blocks, block, NULL));
	assert_int_not_equal(table_commit(2, BLOCK_NONE), block);
	blocks_unpin(blocks, block);
	assert_false(blocks_condemned(blocks, &slot));
	assert_int_equal(table_commit(3, BLOCK_NONE), block);
}

TEST(condemned_away_without_pins_is_gone_at_once)
{
	const uint32_t block = table_demoted(1);

	blocks_condemn(blocks, block);
	assert_false(blocks_condemned(blocks, &slot));
	assert_int_equal(table_commit(2, BLOCK_NONE), block);
}

TEST(the_mark_of_the_queue_goes_with_its_block)
{
	const uint32_t a = table_commit(1, BLOCK_NONE), b = table_commit(2, BLOCK_NONE);

	assert_false(blocks_queued(blocks, a));
	blocks_set_queued(blocks, a, true);
	blocks_set_queued(blocks, b, true);
	assert_true(blocks_queued(blocks, a));
	(void)blocks_drop(blocks, a);
	assert_false(blocks_queued(blocks, a));
	assert_int_equal(table_commit(3, BLOCK_NONE), a);
	assert_false(blocks_queued(blocks, a));
	blocks_pin(blocks, b);
	blocks_condemn(blocks, b);
	assert_false(blocks_queued(blocks, b));
	assert_false(blocks_queued(blocks, MAX - 1)); /* never used */
}

/* --- sampling --- */

TEST(the_oldest_away_block_in_reach_is_sampled)
{
	uint32_t away[4], hand = 0;

	assert_int_equal(victim_away(blocks, &hand, 100, NULL, NULL), BLOCK_NONE);
	(void)table_commit(100, BLOCK_NONE);
	for (uint32_t i = 0; i < 4; i++)
		away[i] = table_commit_away(i, 40 - 10 * i);
	assert_int_equal(victim_away(blocks, &hand, 100, NULL, NULL), away[3]);
	blocks_pin(blocks, away[3]);
	assert_int_equal(victim_away(blocks, &hand, 100, NULL, NULL), away[2]);
	table_promote(away[2], BLOCK_NONE, 1);
	assert_int_equal(victim_away(blocks, &hand, 100, NULL, NULL), away[1]);
}

TEST(the_hand_goes_round_within_its_budget)
{
	bool seen[MAX] = { false };
	uint32_t hand = 0;

	for (uint32_t i = 0; i < 10; i++)
		(void)table_commit_away(i, i);
	for (uint32_t i = 0; i < 10; i++)
		seen[victim_away(blocks, &hand, 1, NULL, NULL)] = true;
	for (uint32_t i = 0; i < 10; i++)
		assert_true(seen[i]);
}

/* --- calls that only a wrong caller would make: each ends in an assertion, at once --- */

enum wrong {
	DEMOTE_PINNED,
	DROP_AWAY_PARENT,
	DEMOTE_ONLY_COPY,
	DEMOTE_AWAY,
	PROMOTE_WITH_SLOT,
	PROMOTE_CONDEMNED,
	LOSE_ONLY_COPY,
	DROP_PINNED_AWAY,
	MOVE_AWAY,
	PLACE_TOO_LARGE,
	WRONGS
};

/* In a child: the index is shared memory, so this is a table of the child's own. */
static void do_wrong(void *arg)
{
	const enum wrong wrong = *(const enum wrong *)arg;
	const struct extent to = table_host_at(9),
			    large = { .tier = TIER_NVME, .generation = 1 << 20 };
	uint32_t host, both, away;

	(void)table_set_up(NULL);
	host = table_commit(1, BLOCK_NONE);
	both = table_commit_both(2);
	away = table_demoted(3);
	switch (wrong) {
	case DEMOTE_PINNED:
		blocks_pin(blocks, both);
		(void)blocks_demote(blocks, both);
		break;
	case DROP_AWAY_PARENT:
		(void)table_commit(4, both);
		(void)blocks_demote(blocks, both);
		(void)blocks_drop(blocks, both);
		break;
	case DEMOTE_ONLY_COPY:
		(void)blocks_demote(blocks, host);
		break;
	case DEMOTE_AWAY:
		(void)blocks_demote(blocks, away);
		break;
	case PROMOTE_WITH_SLOT:
		blocks_promote(blocks, both, BLOCK_NONE, &to);
		break;
	case PROMOTE_CONDEMNED:
		blocks_pin(blocks, away);
		blocks_condemn(blocks, away);
		blocks_promote(blocks, away, BLOCK_NONE, &to);
		break;
	case LOSE_ONLY_COPY:
		blocks_set_nvme(blocks, away, NULL);
		break;
	case DROP_PINNED_AWAY:
		blocks_pin(blocks, away);
		(void)blocks_drop(blocks, away);
		break;
	case MOVE_AWAY:
		blocks_move(blocks, away, &to);
		break;
	default:
		blocks_set_nvme(blocks, host, &large);
	}
}

TEST(wrong_callers_are_stopped)
{
	for (enum wrong wrong = DEMOTE_PINNED; wrong < WRONGS; wrong++)
		assert_true(test_aborts(do_wrong, &wrong));
}
