/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * Goal: each rule of daemon/policy/place.h, and the order they come in; whose block a full table
 * drops.
 * Method: states by hand, plans compared.
 */
#include "daemon/policy/place.h"
#include "tests/lib/test.h"

/* A class of 3 slabs of 8 slots, of which so many are free; its least recent leaf. */
static struct place_class class_with(uint32_t free_slots, uint64_t oldest_tick)
{
	return (struct place_class){ .view = { .slot_bytes = 8192,
					       .slots_per_slab = 8,
					       .slabs = 3,
					       .used_slots = 24 - free_slots,
					       .free_slots = free_slots },
				     .oldest_tick = oldest_tick };
}

/* Two classes, the first is wanted, it is tick 1,000 and nothing is free. */
struct fixture {
	struct place_class classes[3];
	struct place_state state;
	struct place_plan plan;
};

static struct fixture f; /* the case's */

static void set(uint64_t own_oldest, uint64_t other_oldest)
{
	f = (struct fixture){
		.classes = { class_with(0, own_oldest), class_with(0, other_oldest),
			     class_with(0, PLACE_NO_TICK) },
		.state = { .now_tick = 1000,
			   .steps_left = 100,
			   .n_classes = 2,
			   .wanted = 0,
			   .donor = PLACE_NO_CLASS },
	};
}

/* A case with these oldest ticks. */
#define OLDEST(own, other, name) TEST_AFTER(name, set(own, other))

static const struct place_plan *plan(void)
{
	f.state.classes = f.classes;
	place_plan(&f.state, &f.plan);
	return &f.plan;
}

static void plans(enum place_action action, uint32_t class)
{
	assert_int_equal(plan()->action, action);
	assert_int_equal(f.plan.class, class);
}

OLDEST(500, 1, a_free_slot_is_taken)
{
	f.classes[0].view.free_slots = 1;
	assert_int_equal(plan()->action, PLACE_ALLOC);
}

OLDEST(500, 1, a_free_slab_is_taken)
{
	f.state.free_slabs = 1;
	assert_int_equal(plan()->action, PLACE_ALLOC);
	f.state.wanted = PLACE_NO_CLASS;
	assert_int_equal(plan()->action, PLACE_ALLOC);
}

OLDEST(500, 400, a_class_evicts_its_own)
{
	plans(PLACE_EVICT, 0);
	assert_int_equal(f.plan.count, 1);
}

OLDEST(900, 800, only_more_than_twice_as_old_gives) /* ages 100 and 200 */
{
	assert_int_equal(plan()->class, 0);
	set(900, 799);
	plans(PLACE_LOOK, 1);
}

OLDEST(900, 1, the_deficit_is_evicted_then_the_slab_moved)
{
	f.classes[1].view.free_slots = 3;
	f.classes[1].look = PLACE_FOUND;
	f.classes[1].slab = 77;
	plans(PLACE_EVICT, 1);
	assert_int_equal(f.plan.count, 5);
	assert_int_equal(f.plan.donor, 1);
	f.classes[1].view.free_slots = 8;
	assert_int_equal(plan()->action, PLACE_MOVE);
	assert_int_equal(f.plan.slab, 77);
}

OLDEST(500, 999, what_was_begun_is_finished) /* after the eviction the donor is young */
{
	f.state.donor = 1;
	f.classes[1].view.free_slots = 7;
	f.classes[1].look = PLACE_FOUND;
	plans(PLACE_EVICT, 1);
	f.classes[1].oldest_tick = PLACE_NO_TICK; /* unless it cannot be */
	assert_int_equal(plan()->class, 0);
}

OLDEST(500, 400, what_was_begun_is_looked_at_again_before_the_move)
{
	f.state.donor = 1;
	plans(PLACE_EVICT, 1);
	f.classes[1].view.free_slots = 8;
	plans(PLACE_LOOK, 1);
}

OLDEST(500, 999, a_slabs_worth_of_free_slots_is_packed_first)
{
	f.classes[1].view.free_slots = 8;
	plans(PLACE_LOOK, 1);
}

OLDEST(900, 1, a_class_looked_at_in_vain_is_left_alone)
{
	f.classes[1].look = PLACE_NONE;
	plans(PLACE_EVICT, 0);
}

OLDEST(500, 400, a_new_class_takes_from_the_oldest)
{
	f.state.wanted = PLACE_NO_CLASS;
	plans(PLACE_LOOK, 1);
	f.classes[1].look = PLACE_NONE;
	assert_int_equal(plan()->class, 0);
}

OLDEST(900, 1, no_emptying_is_begun_that_cannot_be_finished)
{
	f.state.steps_left = 8; /* 8 evictions and a move are 9 */
	assert_int_equal(plan()->class, 0);
	f.state.steps_left = 9;
	assert_int_equal(plan()->class, 1);
}

OLDEST(PLACE_NO_TICK, 999, without_a_victim_of_its_own_any_progress_counts)
{
	f.state.steps_left = 2;
	f.classes[1].look = PLACE_FOUND;
	plans(PLACE_EVICT, 1);
}

OLDEST(PLACE_NO_TICK, PLACE_NO_TICK, all_pinned_fails)
{
	assert_int_equal(plan()->action, PLACE_FAIL);
}

OLDEST(PLACE_NO_TICK, PLACE_NO_TICK, classes_without_slabs_give_nothing)
{
	f.classes[1].view = (struct tier_class_view){ .slot_bytes = 4096, .slots_per_slab = 0 };
	assert_int_equal(plan()->action, PLACE_FAIL);
}

OLDEST(2000, 1500, ticks_ahead_of_now_are_age_zero)
{
	plans(PLACE_EVICT, 0);
}

OLDEST(500, 400, the_oldest_of_all_classes)
{
	assert_int_equal(place_oldest(f.classes, 3), 1);
	assert_int_equal(place_oldest(&f.classes[2], 1), PLACE_NO_CLASS);
	assert_int_equal(place_oldest(f.classes, 0), PLACE_NO_CLASS);
}

/* Two of eight slots are in use. */
static struct place_class sparse_with(uint64_t oldest_tick)
{
	struct place_class c = class_with(0, oldest_tick);

	c.view.slabs = 1;
	c.view.used_slots = 2;
	c.view.free_slots = 6;
	return c;
}

OLDEST(500, 1, a_new_class_takes_a_sparse_slab_where_there_are_enough)
{
	f.state.wanted = PLACE_NO_CLASS;
	f.classes[0] = sparse_with(500);
	assert_int_equal(plan()->class, 1);
	f.state.sparse_max = 2;
	assert_int_equal(plan()->class, 1);
	f.state.sparse_max = 1;
	plans(PLACE_LOOK, 0);
	f.classes[0].oldest_tick = PLACE_NO_TICK; /* none of it may be taken */
	assert_int_equal(plan()->class, 1);
}

OLDEST(900, 899, more_sparse_slabs_give_if_they_are_older)
{
	f.classes[1] = sparse_with(899);
	f.state.sparse_max = 1;
	assert_int_equal(plan()->class, 0);
	f.classes[2] = sparse_with(901);
	f.state.n_classes = 3;
	plans(PLACE_LOOK, 1);
	f.classes[1].oldest_tick = 901;
	assert_int_equal(plan()->class, 0);
	f.classes[1] = class_with(0, 700); /* no sparse one: as ever, twice as old */
	assert_int_equal(plan()->class, 1);
}

TEST(few_blocks_are_charged_with_their_slab)
{
	const struct place_class full = class_with(0, 1), sparse = sparse_with(1);
	const uint64_t slot = full.view.slot_bytes;

	assert_int_equal(place_charge(&full.view, 3), 3 * slot);
	assert_int_equal(place_charge(&sparse.view, 0), 0);
	assert_int_equal(place_charge(&sparse.view, 1), 4 * slot);
	assert_int_equal(place_charge(&sparse.view, 2), 8 * slot);
	assert_int_equal(place_charge(&sparse.view, 3),
			 8 * slot); /* one of them in a closed slab */
}
