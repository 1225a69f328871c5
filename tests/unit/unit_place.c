/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * Goal: each rule of daemon/store/place.h, and the order they come in; whose block a full table
 * drops.
 * Method: states by hand, plans compared.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "daemon/store/place.h"

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

static struct fixture fixture(uint64_t own_oldest, uint64_t other_oldest)
{
	return (struct fixture){
		.classes = { class_with(0, own_oldest), class_with(0, other_oldest),
			     class_with(0, PLACE_NO_TICK) },
		.state = { .now_tick = 1000,
			   .steps_left = 100,
			   .n_classes = 2,
			   .wanted = 0,
			   .donor = PLACE_NO_CLASS },
	};
}

static const struct place_plan *plan(struct fixture *f)
{
	f->state.classes = f->classes;
	place_plan(&f->state, &f->plan);
	return &f->plan;
}

static void a_free_slot_is_taken(void **state)
{
	struct fixture f = fixture(500, 1);

	(void)state;
	f.classes[0].view.free_slots = 1;
	assert_int_equal(plan(&f)->action, PLACE_ALLOC);
}

static void a_free_slab_is_taken(void **state)
{
	struct fixture f = fixture(500, 1);

	(void)state;
	f.state.free_slabs = 1;
	assert_int_equal(plan(&f)->action, PLACE_ALLOC);
	f.state.wanted = PLACE_NO_CLASS;
	assert_int_equal(plan(&f)->action, PLACE_ALLOC);
}

static void a_class_evicts_its_own(void **state)
{
	struct fixture f = fixture(500, 400);

	(void)state;
	assert_int_equal(plan(&f)->action, PLACE_EVICT);
	assert_int_equal(f.plan.class, 0);
	assert_int_equal(f.plan.count, 1);
}

static void only_more_than_twice_as_old_gives(void **state)
{
	struct fixture f = fixture(900, 800); /* ages 100 and 200 */

	(void)state;
	assert_int_equal(plan(&f)->class, 0);
	f = fixture(900, 799);
	assert_int_equal(plan(&f)->action, PLACE_LOOK);
	assert_int_equal(f.plan.class, 1);
}

static void the_deficit_is_evicted_then_the_slab_moved(void **state)
{
	struct fixture f = fixture(900, 1);

	(void)state;
	f.classes[1].view.free_slots = 3;
	f.classes[1].look = PLACE_FOUND;
	f.classes[1].slab = 77;
	assert_int_equal(plan(&f)->action, PLACE_EVICT);
	assert_int_equal(f.plan.class, 1);
	assert_int_equal(f.plan.count, 5);
	assert_int_equal(f.plan.donor, 1);
	f.classes[1].view.free_slots = 8;
	assert_int_equal(plan(&f)->action, PLACE_MOVE);
	assert_int_equal(f.plan.slab, 77);
}

static void what_was_begun_is_finished(void **state)
{
	struct fixture f = fixture(500, 999); /* after the eviction the donor is young */

	(void)state;
	f.state.donor = 1;
	f.classes[1].view.free_slots = 7;
	f.classes[1].look = PLACE_FOUND;
	assert_int_equal(plan(&f)->action, PLACE_EVICT);
	assert_int_equal(f.plan.class, 1);
	f.classes[1].oldest_tick = PLACE_NO_TICK; /* unless it cannot be */
	assert_int_equal(plan(&f)->class, 0);
}

static void what_was_begun_is_looked_at_again_before_the_move(void **state)
{
	struct fixture f = fixture(500, 400);

	(void)state;
	f.state.donor = 1;
	assert_int_equal(plan(&f)->action, PLACE_EVICT);
	assert_int_equal(f.plan.class, 1);
	f.classes[1].view.free_slots = 8;
	assert_int_equal(plan(&f)->action, PLACE_LOOK);
	assert_int_equal(f.plan.class, 1);
}

static void a_slabs_worth_of_free_slots_is_packed_first(void **state)
{
	struct fixture f = fixture(500, 999);

	(void)state;
	f.classes[1].view.free_slots = 8;
	assert_int_equal(plan(&f)->action, PLACE_LOOK);
	assert_int_equal(f.plan.class, 1);
}

static void a_class_looked_at_in_vain_is_left_alone(void **state)
{
	struct fixture f = fixture(900, 1);

	(void)state;
	f.classes[1].look = PLACE_NONE;
	assert_int_equal(plan(&f)->action, PLACE_EVICT);
	assert_int_equal(f.plan.class, 0);
}

static void a_new_class_takes_from_the_oldest(void **state)
{
	struct fixture f = fixture(500, 400);

	(void)state;
	f.state.wanted = PLACE_NO_CLASS;
	assert_int_equal(plan(&f)->action, PLACE_LOOK);
	assert_int_equal(f.plan.class, 1);
	f.classes[1].look = PLACE_NONE;
	assert_int_equal(plan(&f)->class, 0);
}

static void no_emptying_is_begun_that_cannot_be_finished(void **state)
{
	struct fixture f = fixture(900, 1);

	(void)state;
	f.state.steps_left = 8; /* 8 evictions and a move are 9 */
	assert_int_equal(plan(&f)->class, 0);
	f.state.steps_left = 9;
	assert_int_equal(plan(&f)->class, 1);
}

static void without_a_victim_of_its_own_any_progress_counts(void **state)
{
	struct fixture f = fixture(PLACE_NO_TICK, 999);

	(void)state;
	f.state.steps_left = 2;
	f.classes[1].look = PLACE_FOUND;
	assert_int_equal(plan(&f)->action, PLACE_EVICT);
	assert_int_equal(f.plan.class, 1);
}

static void all_pinned_fails(void **state)
{
	struct fixture f = fixture(PLACE_NO_TICK, PLACE_NO_TICK);

	(void)state;
	assert_int_equal(plan(&f)->action, PLACE_FAIL);
}

static void classes_without_slabs_give_nothing(void **state)
{
	struct fixture f = fixture(PLACE_NO_TICK, PLACE_NO_TICK);

	(void)state;
	f.classes[1].view = (struct tier_class_view){ .slot_bytes = 4096, .slots_per_slab = 0 };
	assert_int_equal(plan(&f)->action, PLACE_FAIL);
}

static void ticks_ahead_of_now_are_age_zero(void **state)
{
	struct fixture f = fixture(2000, 1500);

	(void)state;
	assert_int_equal(plan(&f)->action, PLACE_EVICT);
	assert_int_equal(f.plan.class, 0);
}

static void the_oldest_of_all_classes(void **state)
{
	struct fixture f = fixture(500, 400);

	(void)state;
	assert_int_equal(place_oldest(f.classes, 3), 1);
	assert_int_equal(place_oldest(&f.classes[2], 1), PLACE_NO_CLASS);
	assert_int_equal(place_oldest(f.classes, 0), PLACE_NO_CLASS);
}

static void a_number_comes_from_whoever_holds_more_than_its_guarantee(void **state)
{
	const struct place_account rich = { 11, 10 }, even = { 10, 10 };

	(void)state;
	assert_true(place_may_drop(&rich, &even, PLACE_FROM_RICH));
	assert_false(place_may_drop(&even, &rich, PLACE_FROM_RICH));
	assert_false(place_may_drop(&even, &even, PLACE_FROM_RICH)); /* nor its own */
	assert_true(place_may_drop(&rich, &rich, PLACE_FROM_RICH));
}

static void then_from_its_own(void **state)
{
	const struct place_account own = { 10, 10 }, other = { 10, 10 };

	(void)state;
	assert_true(place_may_drop(&own, &own, PLACE_FROM_OWN));
	assert_false(place_may_drop(&other, &own, PLACE_FROM_OWN));
}

static void then_from_anybody_for_one_within_its_guarantee(void **state)
{
	const struct place_account poor = { 9, 10 }, even = { 10, 10 };

	(void)state;
	assert_true(place_may_drop(&even, &poor, PLACE_FROM_ANY));
	assert_false(place_may_drop(&poor, &even, PLACE_FROM_ANY));
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

static void a_new_class_takes_a_sparse_slab_where_there_are_enough(void **state)
{
	struct fixture f = fixture(500, 1);

	(void)state;
	f.state.wanted = PLACE_NO_CLASS;
	f.classes[0] = sparse_with(500);
	assert_int_equal(plan(&f)->class, 1);
	f.state.sparse_max = 2;
	assert_int_equal(plan(&f)->class, 1);
	f.state.sparse_max = 1;
	assert_int_equal(plan(&f)->action, PLACE_LOOK);
	assert_int_equal(f.plan.class, 0);
	f.classes[0].oldest_tick = PLACE_NO_TICK; /* none of it may be taken */
	assert_int_equal(plan(&f)->class, 1);
}

static void more_sparse_slabs_give_if_they_are_older(void **state)
{
	struct fixture f = fixture(900, 899);

	(void)state;
	f.classes[1] = sparse_with(899);
	f.state.sparse_max = 1;
	assert_int_equal(plan(&f)->class, 0);
	f.classes[2] = sparse_with(901);
	f.state.n_classes = 3;
	assert_int_equal(plan(&f)->action, PLACE_LOOK);
	assert_int_equal(f.plan.class, 1);
	f.classes[1].oldest_tick = 901;
	assert_int_equal(plan(&f)->class, 0);
	f.classes[1] = class_with(0, 700); /* no sparse one: as ever, twice as old */
	assert_int_equal(plan(&f)->class, 1);
}

static void few_blocks_are_charged_with_their_slab(void **state)
{
	const struct place_class full = class_with(0, 1), sparse = sparse_with(1);
	const uint64_t slot = full.view.slot_bytes;

	(void)state;
	assert_int_equal(place_charge(&full.view, 3), 3 * slot);
	assert_int_equal(place_charge(&sparse.view, 0), 0);
	assert_int_equal(place_charge(&sparse.view, 1), 4 * slot);
	assert_int_equal(place_charge(&sparse.view, 2), 8 * slot);
	assert_int_equal(place_charge(&sparse.view, 3),
			 8 * slot); /* one of them in a closed slab */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_free_slot_is_taken),
		cmocka_unit_test(a_free_slab_is_taken),
		cmocka_unit_test(a_class_evicts_its_own),
		cmocka_unit_test(only_more_than_twice_as_old_gives),
		cmocka_unit_test(the_deficit_is_evicted_then_the_slab_moved),
		cmocka_unit_test(what_was_begun_is_finished),
		cmocka_unit_test(what_was_begun_is_looked_at_again_before_the_move),
		cmocka_unit_test(a_slabs_worth_of_free_slots_is_packed_first),
		cmocka_unit_test(a_class_looked_at_in_vain_is_left_alone),
		cmocka_unit_test(a_new_class_takes_from_the_oldest),
		cmocka_unit_test(no_emptying_is_begun_that_cannot_be_finished),
		cmocka_unit_test(without_a_victim_of_its_own_any_progress_counts),
		cmocka_unit_test(all_pinned_fails),
		cmocka_unit_test(classes_without_slabs_give_nothing),
		cmocka_unit_test(ticks_ahead_of_now_are_age_zero),
		cmocka_unit_test(the_oldest_of_all_classes),
		cmocka_unit_test(a_number_comes_from_whoever_holds_more_than_its_guarantee),
		cmocka_unit_test(then_from_its_own),
		cmocka_unit_test(then_from_anybody_for_one_within_its_guarantee),
		cmocka_unit_test(a_new_class_takes_a_sparse_slab_where_there_are_enough),
		cmocka_unit_test(more_sparse_slabs_give_if_they_are_older),
		cmocka_unit_test(few_blocks_are_charged_with_their_slab),
	};

	return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
