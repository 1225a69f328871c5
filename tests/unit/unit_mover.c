/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Goal: plans are executed as told: the right blocks are evicted, dropped or demoted; the right
 * ones move with their bytes, and others never do; a plan ends. Method: a real host tier of 64 KiB
 * slabs under a real table of blocks; each image carries its number.
 */
#include "tests/lib/lib_mover.h"
#include "tests/lib/test.h"

#include <errno.h>
#include <string.h>

static void store_all(struct world *w, uint32_t from, uint32_t to)
{
	for (uint32_t i = from; i < to; i++)
		(void)world_store(w, i, SMALL, BLOCK_NONE);
}

static bool present(struct world *w, uint32_t name)
{
	return world_find(w, name) != BLOCK_NONE;
}

TEST(the_least_recent_goes)
{
	struct world w = world_open(1);

	store_all(&w, 0, 9);
	assert_false(present(&w, 0));
	for (uint32_t i = 1; i < 9; i++)
		assert_true(present(&w, i));
	assert_int_equal(w.mover.counts.evicted_blocks, 1);
	assert_int_equal(w.mover.counts.evicted_bytes, SMALL);
	assert_int_equal(w.mover.counts.moved_blocks, 0);
	world_close(&w);
}

TEST(a_pinned_block_stays)
{
	struct world w = world_open(1);
	struct extent where, before, after;
	uint32_t blocks[8];

	for (uint32_t i = 0; i < 8; i++)
		blocks[i] = world_store(&w, i, SMALL, BLOCK_NONE);
	for (uint32_t i = 0; i < 8; i++)
		blocks_pin(w.blocks, blocks[i]);
	assert_int_equal(world_make_room(&w, SMALL, MOVER_STEPS, &where), -ENOSPC);
	assert_int_equal(world_make_room(&w, BIG, MOVER_STEPS, &where), -ENOSPC);
	world_where(&w, blocks[5], &before);
	blocks_unpin(w.blocks, blocks[5]);
	assert_int_equal(world_make_room(&w, SMALL, MOVER_STEPS, &where), 0);
	assert_false(present(&w, 5));
	assert_int_equal(where.slot, before.slot);
	world_where(&w, blocks[4], &after);
	assert_non_null(tier_address(w.host, &after));
	world_close(&w);
}

TEST(another_class_gets_an_old_slab)
{
	struct world w = world_open(3);

	store_all(&w, 0, 24);
	w.tick += 1000;
	(void)world_store(&w, 100, BIG, BLOCK_NONE);
	assert_int_equal(w.mover.counts.evicted_blocks, 8); /* a slab's worth, the oldest ones */
	for (uint32_t i = 0; i < 24; i++) {
		assert_int_equal(present(&w, i), i >= 8);
		if (i >= 8)
			world_bytes_are(&w, i, SMALL);
	}
	world_bytes_are(&w, 100, BIG);
	world_close(&w);
}

TEST(what_moves_keeps_its_bytes_and_owner)
{
	struct world w = world_open(3);
	uint8_t key[32];

	store_all(&w, 0, 24);
	for (uint32_t i = 0; i < 24; i += 3) { /* condemn 8, scattered over all slabs */
		world_key(i, key);
		blocks_condemn(w.blocks, blocks_find(w.blocks, key, 0));
	}
	(void)world_store(&w, 100, BIG, BLOCK_NONE);
	assert_int_equal(w.mover.counts.evicted_blocks, 0);
	assert_in_range(w.mover.counts.moved_blocks, 1, 6);
	assert_int_equal(w.mover.counts.moved_bytes, w.mover.counts.moved_blocks * SMALL);
	for (uint32_t i = 0; i < 24; i++) {
		struct extent where;

		if (i % 3 == 0)
			continue;
		world_bytes_are(&w, i, SMALL);
		world_key(i, key);
		world_where(&w, blocks_find(w.blocks, key, 0), &where);
		assert_int_equal(slabs_owner(tier_slabs(w.host), &where),
				 blocks_find(w.blocks, key, 0));
	}
	world_close(&w);
}

TEST(a_slot_being_written_keeps_its_slab)
{
	struct world w = world_open(1);
	struct extent writing, where;

	assert_int_equal(world_make_room(&w, SMALL, MOVER_STEPS, &writing), 0);
	store_all(&w, 0, 7);
	assert_int_equal(world_make_room(&w, BIG, MOVER_STEPS, &where), -ENOSPC);
	assert_non_null(tier_address(w.host, &writing));
	assert_int_equal(w.mover.counts.evicted_blocks, 0); /* nothing evicted in vain */
	world_close(&w);
}

TEST(the_slab_without_a_pin_is_chosen)
{
	struct world w = world_open(2);
	struct extent pinned, now;
	uint32_t first = BLOCK_NONE;

	for (uint32_t i = 0; i < 16; i++) {
		const uint32_t block = world_store(&w, i, SMALL, BLOCK_NONE);

		if (i == 0)
			first = block;
	}
	blocks_pin(w.blocks, first);
	world_where(&w, first, &pinned);
	w.tick += 1000;
	(void)world_store(&w, 100, BIG, BLOCK_NONE);
	world_where(&w, first, &now);
	assert_int_equal(now.slot, pinned.slot);
	world_bytes_are(&w, 0, SMALL);
	world_close(&w);
}

TEST(parents_of_pinned_blocks_move_but_stay)
{
	struct world w = world_open(2);
	uint32_t parent, child;
	struct extent where;

	parent = world_store(&w, 0, SMALL, BLOCK_NONE);
	store_all(&w, 1, 8);
	child = world_store(&w, 8, SMALL, parent); /* in the second slab */
	blocks_pin(w.blocks, child);
	w.tick += 1000;
	assert_int_equal(world_make_room(&w, BIG, MOVER_STEPS, &where), 0);
	assert_true(present(&w, 0));
	world_bytes_are(&w, 0, SMALL);
	assert_int_equal(w.mover.counts.evicted_blocks, 1); /* makes 8 free slots in all */
	assert_int_equal(w.mover.counts.moved_blocks, 7);
	world_close(&w);
}

TEST(what_is_condemned_is_freed_before_anything_goes)
{
	struct world w = world_open(1);
	uint32_t block = BLOCK_NONE;

	for (uint32_t i = 0; i < 8; i++)
		block = world_store(&w, i, SMALL, BLOCK_NONE);
	blocks_condemn(w.blocks, block);
	(void)world_store(&w, 9, SMALL, BLOCK_NONE);
	assert_int_equal(w.mover.counts.evicted_blocks, 0);
	assert_true(present(&w, 0));
	world_close(&w);
}

TEST(steps_bound_the_work_and_are_not_lost)
{
	struct world w = world_open(1);
	struct extent where;

	store_all(&w, 0, 8);
	assert_int_equal(world_make_room(&w, BIG, 3, &where), -ENOSPC);
	assert_int_equal(w.mover.counts.evicted_blocks, 3);
	assert_int_equal(world_make_room(&w, BIG, 3, &where), -ENOSPC);
	assert_int_equal(world_make_room(&w, BIG, 2, &where), 0);
	assert_int_equal(w.mover.counts.evicted_blocks, 8);
	world_close(&w);
}

TEST(one_step_serves_a_class_with_victims)
{
	struct world w = world_open(2);
	struct extent where;

	store_all(&w, 0, 8);
	w.tick += 1000;
	for (uint32_t i = 8; i < 12; i++)
		(void)world_store(&w, i, BIG, BLOCK_NONE);
	/* though the small ones are far older */
	assert_int_equal(world_make_room(&w, BIG, 1, &where), 0);
	assert_true(present(&w, 0));
	assert_false(present(&w, 8));
	world_close(&w);
}

TEST(larger_than_a_slab)
{
	struct world w = world_open(1);
	struct extent where;

	assert_int_equal(world_make_room(&w, SLAB + 1, MOVER_STEPS, &where), -E2BIG);
	world_close(&w);
}

TEST(evicting_bytes_takes_the_oldest_of_all_classes)
{
	struct world w = world_open(3);

	for (uint32_t i = 0; i < 8; i++)
		(void)world_store(&w, i, i % 2 ? BIG : SMALL, BLOCK_NONE);
	assert_int_equal(mover_evict_bytes(w.host, w.blocks, SMALL + BIG + 1, 100, &w.mover),
			 2 * SMALL + BIG);
	for (uint32_t i = 0; i < 8; i++)
		assert_int_equal(present(&w, i), i >= 3);
	assert_int_equal(mover_evict_bytes(w.host, w.blocks, UINT64_MAX, 2, &w.mover), SMALL + BIG);
	assert_int_equal(mover_evict_bytes(w.host, w.blocks, UINT64_MAX, 100, &w.mover),
			 2 * BIG + SMALL);
	assert_int_equal(w.host->used_bytes, 0);
	world_close(&w);
}

TEST(works_through_a_wrapped_tier)
{
	struct world w = world_open(1);
	struct extent where;

	assert_int_equal(fault_wrap(w.host, &w.host), 0);
	store_all(&w, 0, 12);
	fault_set(w.host, &(struct fault_plan){ .alloc_nth = 1, .alloc_errno = -EIO });
	assert_int_equal(world_make_room(&w, SMALL, MOVER_STEPS, &where), -EIO);
	fault_set(w.host,
		  &(struct fault_plan){ .alloc_nth = 1, .alloc_errno = -ENOSPC, .sticky = true });
	assert_int_equal(world_make_room(&w, SMALL, MOVER_STEPS, &where), -ENOSPC);
	world_close(&w);
}

static void give_nvme_copy(struct world *w, uint32_t block)
{
	blocks_set_nvme(w->blocks, block, &(struct extent){ .tier = TIER_NVME, .slot = block });
}

TEST(what_is_on_nvme_is_demoted_and_stays)
{
	struct world w = world_open(1);

	give_nvme_copy(&w, world_store(&w, 0, SMALL, BLOCK_NONE));
	store_all(&w, 1, 10);
	assert_true(present(&w, 0));
	assert_false(present(&w, 1));
	assert_int_equal(w.mover.counts.evicted_blocks, 2);
	assert_int_equal(w.mover.counts.demoted_blocks, 1);
	assert_int_equal(blocks_copies(w.blocks, TIER_HOST), 8);
	world_close(&w);
}

TEST(demotion_is_leaf_first_too)
{
	struct world w = world_open(1);
	uint32_t block = BLOCK_NONE;

	for (uint32_t i = 0; i < 8; i++) {
		block = world_store(&w, i, SMALL, block);
		give_nvme_copy(&w, block);
	}
	for (uint32_t i = 8; i > 0; i--) {
		const uint64_t demoted = w.mover.counts.demoted_blocks;
		uint8_t key[32];

		assert_int_equal(mover_evict_bytes(w.host, w.blocks, 1, 100, &w.mover), SMALL);
		assert_int_equal(w.mover.counts.demoted_blocks, demoted + 1);
		world_key(i - 1, key);
		assert_int_equal(blocks_host_slot(w.blocks, blocks_find(w.blocks, key, 0)),
				 BLOCK_NONE);
	}
	assert_int_equal(mover_evict_bytes(w.host, w.blocks, 1, 100, &w.mover), 0);
	assert_int_equal(blocks_count(w.blocks), 8);
	world_close(&w);
}

/* Longer than the tier, its end in use: no leaf can go. Returns the end. */
static uint32_t fill_with_a_pinned_chain(struct world *w, uint32_t on_nvme)
{
	uint32_t block = BLOCK_NONE;

	for (uint32_t i = 0; i < 8; i++) {
		block = world_store(w, i, SMALL, block);
		if (on_nvme & 1u << i)
			give_nvme_copy(w, block);
	}
	blocks_pin(w->blocks, block);
	return block;
}

TEST(a_chain_longer_than_the_tier_demotes_its_middle)
{
	struct world w = world_open(1);
	const uint32_t end = fill_with_a_pinned_chain(&w, 1u << 3 | 1u << 7);
	uint32_t block;
	uint8_t key[32];

	block = world_store(&w, 8, SMALL, end);
	assert_int_equal(w.mover.counts.demoted_blocks, 1);
	assert_int_equal(w.mover.counts.evicted_blocks, 1);
	for (uint32_t i = 0; i < 9; i++) {
		assert_true(present(&w, i));
		world_key(i, key);
		assert_int_equal(blocks_host_slot(w.blocks, blocks_find(w.blocks, key, 0)) ==
					 BLOCK_NONE,
				 i == 3);
	}
	assert_int_equal(blocks_parent(w.blocks, block), end);
	world_close(&w);
}

TEST(a_chain_that_is_nowhere_else_is_not_broken)
{
	struct world w = world_open(1);
	struct extent where;

	(void)fill_with_a_pinned_chain(&w, 1u << 7);
	assert_int_equal(world_make_room(&w, SMALL, MOVER_STEPS, &where), -ENOSPC);
	assert_int_equal(w.mover.counts.evicted_blocks, 0);
	world_close(&w);
}

TEST(leaves_go_before_a_chain_is_broken)
{
	struct world w = world_open(2);

	(void)fill_with_a_pinned_chain(&w, 0xff);
	store_all(&w, 8, 17);
	assert_int_equal(w.mover.counts.demoted_blocks, 0);
	assert_false(present(&w, 8));
	world_close(&w);
}

TEST(a_block_being_written_to_nvme_keeps_its_slot)
{
	struct world w = world_open(1);
	const uint32_t first = world_store(&w, 0, SMALL, BLOCK_NONE);

	store_all(&w, 1, 8);
	blocks_pin(w.blocks, first);
	(void)world_store(&w, 8, SMALL, BLOCK_NONE);
	assert_true(present(&w, 0));
	assert_false(present(&w, 1));
	give_nvme_copy(&w, first);
	blocks_unpin(w.blocks, first);
	(void)world_store(&w, 9, SMALL, BLOCK_NONE);
	assert_int_equal(w.mover.counts.demoted_blocks, 1);
	assert_int_equal(blocks_host_slot(w.blocks, first), BLOCK_NONE);
	world_close(&w);
}

/* More slots a slab than a batch; all taken. The next image of another size gets a slab of them. */
enum { SLOTS = MOVER_BATCH + MOVER_BATCH / 2 };

static struct world open_full_of_small(void)
{
	struct world w = world_open_of(2, SLOTS * SMALL);

	store_all(&w, 0, 2 * SLOTS);
	w.tick += 10000;
	return w;
}

static int find_room_again(struct world *w, uint32_t bytes, struct extent *ret)
{
	return mover_make_room(w->host, w->blocks, w->tick, bytes, MOVER_STEPS, &w->mover, ret);
}

static int find_room(struct world *w, uint32_t bytes, struct extent *ret)
{
	mover_turn(&w->mover);
	return find_room_again(w, bytes, ret);
}

TEST(a_slab_is_cleared_a_batch_a_turn)
{
	struct world w = open_full_of_small();
	struct extent where;

	assert_int_equal(find_room(&w, BIG, &where), -EAGAIN);
	assert_int_equal(w.mover.counts.evicted_blocks, MOVER_BATCH);
	assert_int_equal(w.mover.clearing_bytes, BIG);
	assert_int_equal(find_room_again(&w, BIG, &where), -EAGAIN);
	assert_int_equal(find_room_again(&w, BIG + SMALL, &where), -EAGAIN);
	assert_int_equal(w.mover.counts.evicted_blocks, MOVER_BATCH);
	assert_int_equal(find_room(&w, BIG, &where), 0);
	assert_int_equal(w.mover.counts.evicted_blocks, SLOTS);
	assert_int_equal(w.mover.clearing_bytes, 0);
	world_close(&w);
}

TEST(a_class_with_victims_does_not_wait_for_a_slab)
{
	struct world w = world_open_of(2, SLOTS * SMALL);
	const uint32_t first_big = SLOTS;
	struct extent where;

	store_all(&w, 0, SLOTS);
	w.tick += 10000;
	for (uint32_t i = 0; i < SLOTS * SMALL / BIG; i++)
		(void)world_store(&w, first_big + i, BIG, BLOCK_NONE);
	assert_int_equal(find_room(&w, BIG, &where), 0);
	assert_int_equal(w.mover.counts.evicted_blocks, MOVER_BATCH + 1);
	assert_false(present(&w, first_big));
	assert_int_equal(w.mover.clearing_bytes, BIG);
	assert_int_equal(find_room(&w, BIG, &where), 0);
	assert_int_equal(w.mover.counts.evicted_blocks, SLOTS + 1);
	assert_true(present(&w, first_big + 1));
	world_close(&w);
}

TEST(a_call_goes_on_though_others_took_of_what_was_freed)
{
	struct world w = open_full_of_small();
	struct extent where;

	assert_int_equal(find_room(&w, BIG, &where), -EAGAIN);
	store_all(&w, 2 * SLOTS, 2 * SLOTS + 10);
	assert_int_equal(w.mover.clearing_bytes, BIG);
	assert_int_equal(find_room(&w, BIG, &where), -EAGAIN);
	assert_int_equal(w.mover.counts.evicted_blocks, SLOTS + 10);
	assert_true(emptier_busy(w.mover.emptier));
	world_close(&w);
}

/* A waiter is not told to come again for ever, when no call clears any more. */
TEST(room_found_elsewhere_ends_the_clearing)
{
	struct world w = open_full_of_small();
	struct extent where;

	assert_int_equal(find_room(&w, BIG, &where), -EAGAIN);
	for (uint32_t i = 0; i < 2 * SLOTS; i++)
		if (present(&w, i))
			blocks_condemn(w.blocks, world_find(&w, i));
	assert_int_equal(find_room(&w, BIG, &where), 0);
	assert_int_equal(w.mover.clearing_bytes, 0);
	world_close(&w);
}
