/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * Goal: a slab that is being emptied gives no slot to any request, the slots that its move needs
 * are kept for it, and it is free with its last slot. The allocator needs no memory to give away.
 * A wanted unit gives a slot while it has any. Method: slabs over no memory at all, which become
 * usable as the test says; every answer computed by hand.
 */

#include "tests/lib/test.h"
#include "tiers/slabs.h"

enum { KIB = 1024, SLAB = 64 * KIB, SMALL = 8 * KIB, A_SLAB = SLAB / SMALL };

static const struct tier_ops ops = { .id = TIER_GPU };

static struct rig {
	struct tier tier;
	struct slabs *slabs;
	uint32_t usable, given, lost;
} rig;

static uint32_t more(TEST_UNUSED void *arg, TEST_UNUSED bool hurry)
{
	return rig.given < rig.usable ? rig.given++ : SLABS_NONE;
}

static uint32_t lost(TEST_UNUSED void *arg)
{
	return rig.lost;
}

/* units: of each slab, three of them; NULL: all are of unit 3. */
static void units_open(const uint8_t *units, uint32_t slabs)
{
	rig = (struct rig){ .tier.ops = &ops, .usable = slabs };
	const struct slabs_conf conf = { .tier = &rig.tier,
					 .unit = 3,
					 .units = units,
					 .n_units = units ? 3 : 0,
					 .slab_bytes = SLAB,
					 .n_slabs = slabs,
					 .more = more,
					 .lost = lost };

	assert_int_equal(slabs_open(&conf, &rig.slabs), 0);
}

/* Of each case; where a slot was given last, and where to move it. */
static struct extent e[2 * A_SLAB], where, to;

FIXTURE_DO(two_slabs, units_open(NULL, 2));
FIXTURE_DO(close_slabs, slabs_close(rig.slabs));
TEST_EACH(two_slabs, close_slabs);
/* A case that opens them itself. */
#define NOT_OPEN(name) TEST_WITH(name, NULL, close_slabs)

static struct extent take(uint32_t bytes)
{
	assert_int_equal(slabs_alloc(rig.slabs, bytes, TIER_ANY_UNIT, &where), 0);
	assert_int_equal(where.tier, TIER_GPU);
	assert_int_equal(where.unit, 3);
	return where;
}

static uint32_t free_slots(uint32_t class)
{
	struct tier_class_view view;

	slabs_class_view(rig.slabs, class, &view);
	return view.free_slots;
}

TEST(offsets_are_apart_and_slabs_come_when_they_are_usable)
{
	bool seen[2 * A_SLAB] = { false };

	assert_int_equal(rig.tier.capacity_bytes, 2 * SLAB);
	for (uint32_t i = 0; i < 2 * A_SLAB; i++) {
		where = take(SMALL);
		assert_int_equal(slabs_offset(rig.slabs, &where) % SMALL, 0);
		assert_false(seen[slabs_offset(rig.slabs, &where) / SMALL]);
		seen[slabs_offset(rig.slabs, &where) / SMALL] = true;
	}
	assert_int_equal(slabs_alloc(rig.slabs, SMALL, TIER_ANY_UNIT, &where), -ENOSPC);
	assert_int_equal(rig.tier.used_bytes, 2 * SLAB);
	slabs_close(rig.slabs);

	rig = (struct rig){ .tier.ops = &ops, .lost = 1 };
	assert_int_equal(slabs_open(&(struct slabs_conf){ .tier = &rig.tier,
							  .slab_bytes = SLAB,
							  .n_slabs = 2,
							  .more = more,
							  .lost = lost },
				    &rig.slabs),
			 0);
	assert_int_equal(rig.tier.capacity_bytes, SLAB);
	assert_int_equal(slabs_alloc(rig.slabs, SMALL, TIER_ANY_UNIT, &where), -ENOSPC);
	rig.usable = 1;
	assert_int_equal(slabs_alloc(rig.slabs, SMALL, TIER_ANY_UNIT, &where), 0);
}

/* 8 slots in use in the first slab, `second` in the other. */
static void fill(uint32_t second)
{
	for (uint32_t i = 0; i < A_SLAB + second; i++)
		e[i] = take(SMALL);
}

TEST(a_closed_slab_gives_nothing_and_what_its_move_needs_is_kept)
{
	uint32_t cursor = 0;

	fill(2);
	slabs_free(rig.slabs, &e[0]);
	slabs_free(rig.slabs, &e[1]);
	/* first: 5 in use, 3 free. second: 2 in use, 6 free */
	slabs_free(rig.slabs, &e[2]);
	assert_int_equal(free_slots(e[0].class), 9);
	slabs_close_slab(rig.slabs, e[8].slot >> 16); /* 2 are to go into the 3 of the first */
	assert_int_equal(free_slots(e[0].class), 1);
	assert_int_equal(slabs_next(rig.slabs, e[0].class, SLABS_NONE), e[3].slot >> 16);
	assert_int_equal(slabs_next(rig.slabs, e[0].class, e[3].slot >> 16), SLABS_NONE);
	where = take(SMALL);
	assert_int_equal(where.slot >> 16, e[3].slot >> 16);
	/* though 2 + 6 slots are free */
	assert_int_equal(slabs_alloc(rig.slabs, SMALL, TIER_ANY_UNIT, &to), -ENOSPC);

	for (uint32_t i = 8; i < 10; i++) {
		assert_true(slabs_closed_next(rig.slabs, &cursor, &where));
		assert_memory_equal(&where, &e[i], sizeof(where));
		assert_int_equal(slabs_move_begin(rig.slabs, &to), 0);
		assert_int_equal(to.slot >> 16, e[3].slot >> 16);
		assert_int_equal(slabs_closed_used(rig.slabs), 10 - i);
		slabs_move_end(rig.slabs, &e[i]);
		assert_int_equal(slabs_offset(rig.slabs, &e[i]), UINT64_MAX);
	}
	assert_false(slabs_closed_next(rig.slabs, &cursor, &where));
	assert_int_equal(slabs_closed_used(rig.slabs), 0);
	assert_int_equal(slabs_free_slabs(rig.slabs), 1);
	(void)take(SLAB);
	assert_int_equal(rig.tier.used_bytes, 2 * SLAB);
}

TEST(a_slot_of_a_closed_slab_that_is_freed_needs_no_place)
{
	fill(3);
	for (uint32_t i = 0; i < 3; i++)
		slabs_free(rig.slabs, &e[i]);
	slabs_close_slab(rig.slabs, e[8].slot >> 16);
	assert_int_equal(free_slots(e[0].class), 0);
	slabs_free(rig.slabs, &e[9]);
	assert_int_equal(free_slots(e[0].class), 1);
	slabs_free(rig.slabs, &e[8]);
	slabs_free(rig.slabs, &e[10]); /* the last */
	assert_int_equal(slabs_free_slabs(rig.slabs), 1);
	assert_int_equal(free_slots(e[0].class), 3);
}

TEST(a_move_that_is_given_up_leaves_all_as_it_was)
{
	fill(2);
	slabs_free(rig.slabs, &e[0]);
	slabs_free(rig.slabs, &e[1]);
	slabs_close_slab(rig.slabs, e[8].slot >> 16);
	assert_int_equal(slabs_move_begin(rig.slabs, &to), 0);
	slabs_move_end(rig.slabs, &to);
	slabs_reopen(rig.slabs);
	assert_int_equal(slabs_closed_used(rig.slabs), 0);
	assert_int_equal(free_slots(e[0].class), 8);
	assert_int_equal(slabs_next(rig.slabs, e[0].class, SLABS_NONE), e[8].slot >> 16);
	for (uint32_t i = 0; i < 8; i++)
		(void)take(SMALL);
	assert_int_equal(slabs_alloc(rig.slabs, SMALL, TIER_ANY_UNIT, &to), -ENOSPC);
}

/* An outside slab runs empty meanwhile: it is free, and there may be no place for the move, nor
 * reason to go on. */
TEST(a_free_slab_makes_a_move_needless)
{
	fill(2);
	for (uint32_t i = 0; i < 6; i++)
		slabs_free(rig.slabs, &e[i]);
	slabs_close_slab(rig.slabs, e[8].slot >> 16);
	slabs_free(rig.slabs, &e[6]);
	slabs_free(rig.slabs, &e[7]);
	assert_int_equal(slabs_free_slabs(rig.slabs), 1);
	assert_int_equal(slabs_move_begin(rig.slabs, &to), -ENOSPC);
	slabs_reopen(rig.slabs);
	assert_int_equal(free_slots(e[8].class), 6);
}

static struct extent take_of(uint32_t bytes, uint32_t unit)
{
	struct extent again;

	assert_int_equal(slabs_alloc(rig.slabs, bytes, unit, &where), 0);
	assert_int_equal(slabs_extent(rig.slabs, where.slot, &again), 0);
	assert_true(extent_equal(&where, &again));
	return where;
}

NOT_OPEN(a_unit_that_is_wanted_is_given_while_it_has_any)
{
	static const uint8_t units[] = { 0, 1, 0, 1, 0, 0 };
	struct extent last = { 0 };

	units_open(units, 6);
	/* a free slab of its own before a slot of another unit's */
	assert_int_equal(take_of(SMALL, 0).unit, 0);
	for (uint32_t i = 0; i < 2 * A_SLAB; i++) {
		where = take_of(SMALL, 1);
		assert_int_equal(where.unit, 1);
		assert_int_equal(units[slabs_slab(&where)], 1);
		last = where;
	}
	/* then the slabs of others, which are used before free ones are */
	assert_int_equal(take_of(SMALL, 1).unit, 0);
	assert_int_equal(slabs_free_slabs(rig.slabs), 3);
	slabs_free(rig.slabs, &last);
	assert_int_equal(take_of(SMALL, 0).unit, 0);
	assert_int_equal(take_of(SMALL, 1).unit, 1);
	/* one that is none of these is no wish */
	assert_int_equal(take_of(SMALL, 2).unit, 0);
	assert_int_equal(take_of(SMALL, TIER_NO_UNIT).unit, 0);
}

NOT_OPEN(without_a_wish_the_fullest_slab_goes_then_the_unit_with_most)
{
	static const uint8_t units[] = { 0, 1, 1, 1, 0, 2 };

	units_open(units, 6);
	assert_int_equal(take_of(SMALL, TIER_ANY_UNIT).unit, 1);
	(void)take_of(SMALL, 2);
	for (uint32_t i = 0; i < A_SLAB / 2; i++)
		(void)take_of(SMALL, 2);
	for (uint32_t i = A_SLAB / 2 + 1; i < A_SLAB; i++)
		assert_int_equal(take_of(SMALL, TIER_ANY_UNIT).unit, 2);
	assert_int_equal(take_of(SMALL, TIER_ANY_UNIT).unit, 1);
}

NOT_OPEN(slabs_of_all_units_are_walked_and_a_move_stays_in_its_unit)
{
	static const uint8_t units[] = { 0, 1, 2, 1 };
	uint32_t seen = 0, slab = SLABS_NONE;

	units_open(units, 4);
	for (uint32_t i = 0; i < A_SLAB; i++)
		(void)take_of(SMALL, 1);
	for (uint32_t unit = 0; unit < 3; unit++)
		(void)take_of(SMALL, unit);
	while ((slab = slabs_next(rig.slabs, 0, slab)) != SLABS_NONE) {
		assert_false(seen >> slab & 1);
		seen |= 1u << slab;
	}
	assert_int_equal(seen, 15);
	for (uint32_t i = 0; i < A_SLAB / 2; i++) /* the fullest but one */
		(void)take_of(SMALL, 0);
	where = take_of(SMALL, 1);
	for (slab = slabs_next(rig.slabs, 0, SLABS_NONE);
	     slab == slabs_slab(&where) || units[slab] != 1; slab = slabs_next(rig.slabs, 0, slab))
		;
	/* the full one: all but three go, so that the others have room for them */
	for (uint32_t i = 0; i + 3 < A_SLAB; i++) {
		assert_int_equal(slabs_extent(rig.slabs, slab << 16 | i, &to), 0);
		slabs_free(rig.slabs, &to);
	}
	slabs_close_slab(rig.slabs, slab);
	assert_int_equal(slabs_move_begin(rig.slabs, &to), 0);
	assert_int_equal(to.unit, 1);
	slabs_move_end(rig.slabs, &to);
	slabs_reopen(rig.slabs);
}

NOT_OPEN(slots_have_numbers_without_gaps)
{
	enum { SLABS = 3 };
	struct extent slots[SLABS * A_SLAB] = { 0 };

	units_open(NULL, SLABS);
	for (uint32_t i = 0; i < SLABS * A_SLAB; i++) {
		where = take(SMALL);
		const uint32_t number = slabs_number(rig.slabs, &where);

		assert_true(number < SLABS * A_SLAB);
		assert_int_equal(slots[number].generation, 0); /* another one's */
		slots[number] = where;
		slabs_set_owner(rig.slabs, &where, 7 + i);
		assert_int_equal(slabs_owner_numbered(rig.slabs, number), 7 + i);
	}
	for (uint32_t i = 0; i < SLABS * A_SLAB; i++) {
		assert_int_equal(slabs_numbered(rig.slabs, i, &where), 0);
		assert_memory_equal(&where, &slots[i], sizeof(where));
		slabs_free(rig.slabs, &where);
		assert_int_equal(slabs_numbered(rig.slabs, i, &where), -ESTALE);
	}
	assert_int_equal(slabs_numbered(rig.slabs, UINT32_MAX, &where), -ESTALE);
}
