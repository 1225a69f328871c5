/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Goal: plans are executed as told: the right blocks are evicted, dropped or demoted; the right
 * ones move with their bytes, and others never do; a plan ends. A block that waits to be written to
 * NVMe is dropped only when nothing else helps. The heir of an evicted block's slot keeps it, bytes
 * and all, until it frees it, and the mover never counts that slot as free. Method: a real host
 * tier of 64 KiB slabs under a real table of blocks; each image carries its number.
 */
#include "tests/lib/lib_mover.h"

static struct world w;
static struct extent where; /* the room that was asked for */

FIXTURE_DO(begin, w = world_open((uint32_t)(uintptr_t)*state));
FIXTURE_DO(end, world_close(&w));
#define WITH_SLABS(n, name) TEST_GIVEN(name, begin, end, n)

static void store_all(uint32_t from, uint32_t to)
{
	for (uint32_t i = from; i < to; i++)
		(void)world_store(&w, i, SMALL, BLOCK_NONE);
}

static bool present(uint32_t name)
{
	return world_find(&w, name) != BLOCK_NONE;
}

WITH_SLABS(1, the_least_recent_goes)
{
	store_all(0, 9);
	assert_false(present(0));
	for (uint32_t i = 1; i < 9; i++)
		assert_true(present(i));
	assert_int_equal(w.mover.counts.evicted_blocks, 1);
	assert_int_equal(w.mover.counts.evicted_bytes, SMALL);
	assert_int_equal(w.mover.counts.moved_blocks, 0);
}

WITH_SLABS(1, a_pinned_block_stays)
{
	struct extent before, after;
	uint32_t blocks[8];

	for (uint32_t i = 0; i < 8; i++)
		blocks[i] = world_store(&w, i, SMALL, BLOCK_NONE);
	for (uint32_t i = 0; i < 8; i++)
		blocks_pin(w.blocks, blocks[i]);
	assert_int_equal(world_make_room(&w, SMALL, &where), -ENOSPC);
	assert_int_equal(world_make_room(&w, BIG, &where), -ENOSPC);
	world_where(&w, blocks[5], &before);
	blocks_unpin(w.blocks, blocks[5]);
	assert_int_equal(world_make_room(&w, SMALL, &where), 0);
	assert_false(present(5));
	assert_int_equal(where.slot, before.slot);
	world_where(&w, blocks[4], &after);
	assert_non_null(tier_address(w.host, &after));
}

WITH_SLABS(3, another_class_gets_an_old_slab)
{
	store_all(0, 24);
	w.tick += 1000;
	(void)world_store(&w, 100, BIG, BLOCK_NONE);
	assert_int_equal(w.mover.counts.evicted_blocks, 8); /* a slab's worth, the oldest ones */
	for (uint32_t i = 0; i < 24; i++) {
		assert_int_equal(present(i), i >= 8);
		if (i >= 8)
			world_bytes_are(&w, i, SMALL);
	}
	world_bytes_are(&w, 100, BIG);
}

WITH_SLABS(3, what_moves_keeps_its_bytes_and_owner)
{
	store_all(0, 24);
	for (uint32_t i = 0; i < 24; i += 3) /* condemn 8, scattered over all slabs */
		blocks_condemn(w.blocks, world_find(&w, i));
	(void)world_store(&w, 100, BIG, BLOCK_NONE);
	assert_int_equal(w.mover.counts.evicted_blocks, 0);
	assert_in_range(w.mover.counts.moved_blocks, 1, 6);
	assert_int_equal(w.mover.counts.moved_bytes, w.mover.counts.moved_blocks * SMALL);
	for (uint32_t i = 0; i < 24; i++) {
		if (i % 3 == 0)
			continue;
		world_bytes_are(&w, i, SMALL);
		world_where(&w, world_find(&w, i), &where);
		assert_int_equal(slabs_owner(tier_slabs(w.host), &where), world_find(&w, i));
	}
}

WITH_SLABS(1, a_slot_being_written_keeps_its_slab)
{
	struct extent writing;

	assert_int_equal(world_make_room(&w, SMALL, &writing), 0);
	store_all(0, 7);
	assert_int_equal(world_make_room(&w, BIG, &where), -ENOSPC);
	assert_non_null(tier_address(w.host, &writing));
	assert_int_equal(w.mover.counts.evicted_blocks, 0); /* nothing evicted in vain */
}

WITH_SLABS(2, the_slab_without_a_pin_is_chosen)
{
	struct extent pinned, now;
	const uint32_t first = world_store(&w, 0, SMALL, BLOCK_NONE);

	store_all(1, 16);
	blocks_pin(w.blocks, first);
	world_where(&w, first, &pinned);
	w.tick += 1000;
	(void)world_store(&w, 100, BIG, BLOCK_NONE);
	world_where(&w, first, &now);
	assert_int_equal(now.slot, pinned.slot);
	world_bytes_are(&w, 0, SMALL);
}

WITH_SLABS(2, parents_of_pinned_blocks_move_but_stay)
{
	uint32_t parent, child;

	parent = world_store(&w, 0, SMALL, BLOCK_NONE);
	store_all(1, 8);
	child = world_store(&w, 8, SMALL, parent); /* in the second slab */
	blocks_pin(w.blocks, child);
	w.tick += 1000;
	assert_int_equal(world_make_room(&w, BIG, &where), 0);
	assert_true(present(0));
	world_bytes_are(&w, 0, SMALL);
	assert_int_equal(w.mover.counts.evicted_blocks, 1); /* makes 8 free slots in all */
	assert_int_equal(w.mover.counts.moved_blocks, 7);
}

WITH_SLABS(1, what_is_condemned_is_freed_before_anything_goes)
{
	store_all(0, 8);
	blocks_condemn(w.blocks, world_find(&w, 7));
	(void)world_store(&w, 9, SMALL, BLOCK_NONE);
	assert_int_equal(w.mover.counts.evicted_blocks, 0);
	assert_true(present(0));
}

WITH_SLABS(1, larger_than_a_slab)
{
	assert_int_equal(world_make_room(&w, SLAB + 1, &where), -E2BIG);
}

WITH_SLABS(3, evicting_bytes_takes_the_oldest_of_all_classes)
{
	for (uint32_t i = 0; i < 8; i++)
		(void)world_store(&w, i, i % 2 ? BIG : SMALL, BLOCK_NONE);
	assert_int_equal(mover_evict_bytes(w.host, w.blocks, SMALL + BIG + 1, 100, &w.mover),
			 2 * SMALL + BIG);
	for (uint32_t i = 0; i < 8; i++)
		assert_int_equal(present(i), i >= 3);
	assert_int_equal(mover_evict_bytes(w.host, w.blocks, UINT64_MAX, 2, &w.mover), SMALL + BIG);
	assert_int_equal(mover_evict_bytes(w.host, w.blocks, UINT64_MAX, 100, &w.mover),
			 2 * BIG + SMALL);
	assert_int_equal(w.host->used_bytes, 0);
}

WITH_SLABS(1, works_through_a_wrapped_tier)
{
	assert_int_equal(fault_wrap(w.host, &w.host), 0);
	store_all(0, 12);
	fault_set(w.host, &(struct fault_plan){ .alloc_nth = 1, .alloc_errno = -EIO });
	assert_int_equal(world_make_room(&w, SMALL, &where), -EIO);
	fault_set(w.host,
		  &(struct fault_plan){ .alloc_nth = 1, .alloc_errno = -ENOSPC, .sticky = true });
	assert_int_equal(world_make_room(&w, SMALL, &where), -ENOSPC);
}

static void give_nvme_copy(uint32_t block)
{
	blocks_set_nvme(w.blocks, block, &(struct extent){ .tier = TIER_NVME, .slot = block });
}

WITH_SLABS(1, what_is_on_nvme_is_demoted_and_stays)
{
	give_nvme_copy(world_store(&w, 0, SMALL, BLOCK_NONE));
	store_all(1, 10);
	assert_true(present(0));
	assert_false(present(1));
	assert_int_equal(w.mover.counts.evicted_blocks, 2);
	assert_int_equal(w.mover.counts.demoted_blocks, 1);
	assert_int_equal(blocks_copies(w.blocks, TIER_HOST), 8);
}

WITH_SLABS(1, demotion_is_leaf_first_too)
{
	uint32_t block = BLOCK_NONE;

	for (uint32_t i = 0; i < 8; i++) {
		block = world_store(&w, i, SMALL, block);
		give_nvme_copy(block);
	}
	for (uint32_t i = 8; i > 0; i--) {
		const uint64_t demoted = w.mover.counts.demoted_blocks;

		assert_int_equal(mover_evict_bytes(w.host, w.blocks, 1, 100, &w.mover), SMALL);
		assert_int_equal(w.mover.counts.demoted_blocks, demoted + 1);
		assert_int_equal(blocks_host_slot(w.blocks, world_find(&w, i - 1)), BLOCK_NONE);
	}
	assert_int_equal(mover_evict_bytes(w.host, w.blocks, 1, 100, &w.mover), 0);
	assert_int_equal(blocks_count(w.blocks), 8);
}

/* Longer than the tier, its end in use: no leaf can go. Returns the end. */
static uint32_t fill_with_a_pinned_chain(uint32_t on_nvme)
{
	uint32_t block = BLOCK_NONE;

	for (uint32_t i = 0; i < 8; i++) {
		block = world_store(&w, i, SMALL, block);
		if (on_nvme & 1u << i)
			give_nvme_copy(block);
	}
	blocks_pin(w.blocks, block);
	return block;
}

WITH_SLABS(1, a_chain_longer_than_the_tier_demotes_its_middle)
{
	const uint32_t end = fill_with_a_pinned_chain(1u << 3 | 1u << 7);
	uint32_t block;

	block = world_store(&w, 8, SMALL, end);
	assert_int_equal(w.mover.counts.demoted_blocks, 1);
	assert_int_equal(w.mover.counts.evicted_blocks, 1);
	for (uint32_t i = 0; i < 9; i++) {
		assert_true(present(i));
		assert_int_equal(blocks_host_slot(w.blocks, world_find(&w, i)) == BLOCK_NONE,
				 i == 3);
	}
	assert_int_equal(blocks_parent(w.blocks, block), end);
}

WITH_SLABS(1, a_chain_that_is_nowhere_else_is_not_broken)
{
	(void)fill_with_a_pinned_chain(1u << 7);
	assert_int_equal(world_make_room(&w, SMALL, &where), -ENOSPC);
	assert_int_equal(w.mover.counts.evicted_blocks, 0);
}

WITH_SLABS(2, leaves_go_before_a_chain_is_broken)
{
	(void)fill_with_a_pinned_chain(0xff);
	store_all(8, 17);
	assert_int_equal(w.mover.counts.demoted_blocks, 0);
	assert_false(present(8));
}

WITH_SLABS(1, a_block_being_written_to_nvme_keeps_its_slot)
{
	const uint32_t first = world_store(&w, 0, SMALL, BLOCK_NONE);

	store_all(1, 8);
	blocks_pin(w.blocks, first);
	(void)world_store(&w, 8, SMALL, BLOCK_NONE);
	assert_true(present(0));
	assert_false(present(1));
	give_nvme_copy(first);
	blocks_unpin(w.blocks, first);
	(void)world_store(&w, 9, SMALL, BLOCK_NONE);
	assert_int_equal(w.mover.counts.demoted_blocks, 1);
	assert_int_equal(blocks_host_slot(w.blocks, first), BLOCK_NONE);
}

/* More slots a slab than a batch; all taken. The next image of another size gets a slab of them. */
enum { SLOTS = MOVER_BATCH + MOVER_BATCH / 2 };

FIXTURE(open_full_of_small)
{
	w = world_open_of(2, SLOTS * SMALL);
	store_all(0, 2 * SLOTS);
	w.tick += 10000;
	return 0;
}

static int find_room(uint32_t bytes)
{
	mover_iteration(&w.mover);
	return world_try(&w, bytes, true, &where);
}

TEST_WITH(a_slab_is_cleared_a_batch_per_iteration, open_full_of_small, end)
{
	assert_int_equal(find_room(BIG), -EAGAIN);
	assert_int_equal(w.mover.counts.evicted_blocks, MOVER_BATCH);
	assert_int_equal(w.mover.clearing_bytes, BIG);
	assert_int_equal(world_try(&w, BIG, true, &where), -EAGAIN);
	assert_int_equal(world_try(&w, BIG + SMALL, true, &where), -EAGAIN);
	assert_int_equal(w.mover.counts.evicted_blocks, MOVER_BATCH);
	assert_int_equal(find_room(BIG), 0);
	assert_int_equal(w.mover.counts.evicted_blocks, SLOTS);
	assert_int_equal(w.mover.clearing_bytes, 0);
}

TEST_WITH(a_class_with_victims_does_not_wait_for_a_slab, NULL, end)
{
	const uint32_t first_big = SLOTS;

	w = world_open_of(2, SLOTS * SMALL);
	store_all(0, SLOTS);
	w.tick += 10000;
	for (uint32_t i = 0; i < SLOTS * SMALL / BIG; i++)
		(void)world_store(&w, first_big + i, BIG, BLOCK_NONE);
	assert_int_equal(find_room(BIG), 0);
	assert_int_equal(w.mover.counts.evicted_blocks, MOVER_BATCH + 1);
	assert_false(present(first_big));
	assert_int_equal(w.mover.clearing_bytes, BIG);
	assert_int_equal(find_room(BIG), 0);
	assert_int_equal(w.mover.counts.evicted_blocks, SLOTS + 1);
	assert_true(present(first_big + 1));
}

TEST_WITH(a_call_goes_on_though_others_took_of_what_was_freed, open_full_of_small, end)
{
	assert_int_equal(find_room(BIG), -EAGAIN);
	store_all(2 * SLOTS, 2 * SLOTS + 10);
	assert_int_equal(w.mover.clearing_bytes, BIG);
	assert_int_equal(find_room(BIG), -EAGAIN);
	assert_int_equal(w.mover.counts.evicted_blocks, SLOTS + 10);
	assert_true(emptier_busy(w.mover.emptier));
}

/* A waiter is not told to come again for ever, when no call clears any more. */
TEST_WITH(room_found_elsewhere_ends_the_clearing, open_full_of_small, end)
{
	assert_int_equal(find_room(BIG), -EAGAIN);
	for (uint32_t i = 0; i < 2 * SLOTS; i++)
		if (present(i))
			blocks_condemn(w.blocks, world_find(&w, i));
	assert_int_equal(find_room(BIG), 0);
	assert_int_equal(w.mover.clearing_bytes, 0);
}

/* --- blocks that are queued to be written to NVMe --- */

static uint32_t four[4]; /* that take a slab of their own */

FIXTURE(open_with_four)
{
	w = world_open(1);
	for (uint32_t i = 0; i < 4; i++)
		four[i] = world_store(&w, i, BIG, BLOCK_NONE);
	return 0;
}

#define WITH_FOUR(name) TEST_WITH(name, open_with_four, end)

WITH_FOUR(queued_blocks_are_spared_while_others_can_go)
{
	blocks_set_queued(w.blocks, four[0], true);
	assert_int_equal(world_try(&w, BIG, false, &where), -EAGAIN);
	assert_int_equal(blocks_copies(w.blocks, TIER_HOST), 4);
	/* Not the least recent, but it loses nothing. */
	give_nvme_copy(four[2]);
	assert_int_equal(world_try(&w, BIG, false, &where), 0);
	assert_int_equal(blocks_host_slot(w.blocks, four[2]), BLOCK_NONE);
	assert_int_equal(w.mover.counts.demoted_blocks, 1);
	assert_true(blocks_live(w.blocks, four[0]));
}

WITH_FOUR(queued_blocks_go_when_told_so)
{
	blocks_set_queued(w.blocks, four[0], true);
	assert_int_equal(world_make_room(&w, BIG, &where), 0);
	assert_false(blocks_live(w.blocks, four[0]));
}

/* --- the heir of a slot: it takes so many, and swaps so often --- */

static struct {
	uint32_t room, n, swaps;
	struct extent slots[8];
	uint32_t names[8];
} heir;

static enum mover_heir inherit(TEST_UNUSED void *arg, uint32_t block, const struct extent *slot)
{
	assert_true(blocks_live(w.blocks, block));
	assert_int_equal(blocks_host_slot(w.blocks, block), slot->slot);
	if (heir.n < heir.room) {
		heir.names[heir.n] = *tier_address(w.host, slot);
		heir.slots[heir.n++] = *slot;
		return MOVER_TAKEN;
	}
	if (!heir.swaps || !heir.n)
		return MOVER_NO_HEIR;
	heir.swaps--;
	tier_free(w.host, &heir.slots[0]);
	heir.names[0] = *tier_address(w.host, slot);
	heir.slots[0] = *slot;
	return MOVER_SWAPPED;
}

/* All four slots of the one slab are asked of the heir, until one is free. */
static int room_beside_an_heir(uint32_t room, uint32_t swaps)
{
	memset(&heir, 0, sizeof(heir));
	heir.room = room;
	heir.swaps = swaps;
	w.mover.inherit = inherit;
	return world_make_room(&w, BIG, &where);
}

static void end_of_heir(const struct extent *room)
{
	if (room)
		tier_free(w.host, room);
	for (uint32_t i = 0; i < heir.n; i++)
		tier_free(w.host, &heir.slots[i]);
}

WITH_FOUR(what_is_taken_is_not_given_to_anybody_else)
{
	assert_int_equal(room_beside_an_heir(2, 0), 0);
	assert_int_equal(heir.n, 2);
	memset(tier_address(w.host, &where), 0xee, BIG);
	for (uint32_t i = 0; i < 2; i++) {
		assert_int_not_equal(heir.slots[i].slot, where.slot);
		assert_int_equal(heir.names[i], i); /* the least recent first */
		assert_int_equal(*tier_address(w.host, &heir.slots[i]), i);
		assert_int_equal(slabs_owner(tier_slabs(w.host), &heir.slots[i]), SLABS_NO_OWNER);
	}
	assert_int_equal(blocks_copies(w.blocks, TIER_HOST), 1);
	end_of_heir(&where);
}

WITH_FOUR(a_swap_gives_a_slot)
{
	assert_int_equal(room_beside_an_heir(1, 1), 0);
	assert_int_equal(heir.swaps, 0);
	assert_int_equal(heir.names[0], 1);
	assert_int_equal(blocks_copies(w.blocks, TIER_HOST), 2);
	end_of_heir(&where);
}

WITH_FOUR(where_all_is_taken_there_is_no_room)
{
	assert_int_equal(room_beside_an_heir(8, 0), -ENOSPC);
	assert_int_equal(heir.n, 4);
	assert_int_equal(blocks_copies(w.blocks, TIER_HOST), 0);
	end_of_heir(NULL);
}

WITH_FOUR(a_demoted_block_stays_and_its_slot_is_inherited)
{
	give_nvme_copy(four[0]);
	assert_int_equal(room_beside_an_heir(1, 0), 0);
	assert_true(blocks_live(w.blocks, four[0]));
	assert_int_equal(blocks_host_slot(w.blocks, four[0]), BLOCK_NONE);
	assert_int_equal(heir.n, 1);
	end_of_heir(&where);
}
