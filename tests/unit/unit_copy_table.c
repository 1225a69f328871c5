/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * unit_copy_table - copies on devices, one rule a case; sim_copy_table has them all at once.
 * Method: a table of two units, every answer by hand.
 */
#include <errno.h>

#include "daemon/store/copy_table.h"
#include "tests/lib/test.h"

enum { COPIES = 50, CLASS = 2, MANY = 100000 };

/* The blocks of copies, as the owners of their slots. */
static uint32_t owners[2][MANY];

static uint32_t owner_of(void *arg, uint32_t unit, uint32_t copy)
{
	(void)arg;
	return owners[unit][copy];
}

FIXTURE(set_up)
{
	const struct copy_table_conf conf = {
		.units = 2, .copies = COPIES, .classes = CLASS + 1, .seed = 7, .block_of = owner_of
	};

	return copy_table_open(&conf, (struct copy_table **)state);
}

FIXTURE(tear_down)
{
	copy_table_close(*state);
	return 0;
}

TEST_EACH(set_up, tear_down);

static int add(struct copy_table *t, uint32_t block, uint32_t unit, uint32_t copy, uint32_t class)
{
	owners[unit][copy] = block;
	return copy_table_add(t, block, unit, copy, class);
}

static void put(struct copy_table *t, uint32_t block, uint32_t unit, uint32_t copy)
{
	assert_int_equal(add(t, block, unit, copy, CLASS), 0);
}

TEST(without_devices_nothing_is_there)
{
	uint32_t unit, copy;

	assert_false(copy_table_find(NULL, 1, 0, &copy));
	assert_int_equal(copy_table_units(NULL, 1), 0);
	assert_false(copy_table_loose(NULL, &unit, &copy));
	assert_int_equal(copy_table_memory(NULL), 0);
	copy_table_close(NULL);
}

TEST(what_cannot_be_is_refused)
{
	const struct copy_table_conf wrong[] = {
		{ .units = 0, .copies = 1, .classes = 1 },
		{ .units = COPY_UNITS_MAX + 1, .copies = 1, .classes = 1 },
		{ .units = 1, .copies = 0, .classes = 1 },
		{ .units = 1, .copies = COPY_NUMBERS + 1, .classes = 1 },
		{ .units = 1, .copies = 1, .classes = TIER_MAX_CLASSES + 1 },
	};
	struct copy_table *t;

	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
		assert_int_equal(copy_table_open(&wrong[i], &t), -EINVAL);
}

TEST(a_copy_is_found_on_its_own_unit)
{
	struct copy_table *t = *state;
	uint32_t copy;

	put(t, 5, 1, 9);
	assert_false(copy_table_find(t, 5, 0, NULL));
	assert_true(copy_table_find(t, 5, 1, &copy));
	assert_int_equal(copy, 9);
	put(t, 5, 0, 3);
	assert_int_equal(copy_table_units(t, 5), 3);
	assert_int_equal(copy_table_units(t, 4), 0);
}

TEST(a_block_has_one_copy_a_unit)
{
	struct copy_table *t = *state;
	uint32_t copy;

	put(t, 5, 0, 1);
	assert_int_equal(add(t, 5, 0, 2, CLASS), -EEXIST);
	assert_true(copy_table_find(t, 5, 0, &copy));
	assert_int_equal(copy, 1);
	put(t, 6, 0, 2); /* the number is as free as it was */
}

TEST(a_number_that_the_table_has_not_is_refused)
{
	struct copy_table *t = *state;

	assert_int_equal(add(t, 1, 0, COPIES, CLASS), -ENOSPC);
	assert_false(copy_table_find(t, 1, 0, NULL));
	for (uint32_t i = 0; i < COPIES; i++)
		put(t, 10 + i, 0, i);
	assert_int_equal(copy_table_remove(t, 12, 0), 2);
	put(t, 98, 0, 2);
	assert_int_equal(copy_table_count(t, 0), COPIES);
	assert_int_equal(copy_table_count(t, 1), 0);
}

TEST(the_least_recent_goes_first)
{
	struct copy_table *t = *state;

	assert_int_equal(copy_table_victim(t, 0, CLASS), COPY_NONE);
	put(t, 1, 0, 10);
	put(t, 2, 0, 20);
	put(t, 3, 1, 5); /* of the other unit */
	assert_int_equal(copy_table_victim(t, 0, CLASS), 1);
	copy_table_touch(t, 1, 0);
	assert_int_equal(copy_table_victim(t, 0, CLASS), 2);
	assert_int_equal(copy_table_victim(t, 0, CLASS - 1), COPY_NONE);
	assert_int_equal(add(t, 4, 0, 4, CLASS - 1), 0);
	assert_int_equal(copy_table_victim(t, 0, CLASS), 2);
	assert_int_equal(copy_table_victim(t, 0, CLASS - 1), 4);
	copy_table_touch(t, 2, 0);
	assert_int_equal(copy_table_victim(t, 0, CLASS), 1);
	copy_table_touch(t, 1, 0);
	assert_int_equal(copy_table_victim(t, 0, CLASS), 2);
}

TEST(what_is_pinned_does_not_go)
{
	struct copy_table *t = *state;

	put(t, 1, 0, 1);
	put(t, 2, 0, 2);
	const uint32_t pinned = copy_table_pin(t, 1, 0), again = copy_table_pin(t, 1, 0);

	assert_int_equal(copy_table_victim(t, 0, CLASS), 2);
	copy_table_unpin(t, 0, pinned);
	assert_int_equal(copy_table_victim(t, 0, CLASS), 2);
	copy_table_unpin(t, 0, again);
	assert_int_equal(copy_table_victim(t, 0, CLASS), 1);
}

TEST(copies_of_a_block_that_went_come_back)
{
	struct copy_table *t = *state;
	uint32_t unit, copy, copies = 0;

	put(t, 1, 0, 10);
	put(t, 1, 1, 20);
	put(t, 2, 0, 30);
	copy_table_forget(t, 1);
	assert_int_equal(copy_table_units(t, 1), 0);
	while (copy_table_loose(t, &unit, &copy)) {
		assert_int_equal(copy, unit ? 20 : 10);
		copies++;
	}
	assert_int_equal(copies, 2);
	assert_true(copy_table_find(t, 2, 0, NULL));
	copy_table_forget(t, 7); /* has none */
	assert_false(copy_table_loose(t, &unit, &copy));
}

TEST(a_bad_copy_goes_alone_and_when_its_last_pin_does)
{
	struct copy_table *t = *state;
	uint32_t unit, copy;

	put(t, 1, 0, 10);
	put(t, 1, 1, 20);
	const uint32_t pinned = copy_table_pin(t, 1, 0);

	copy_table_forget_on(t, 1, 0);
	assert_false(copy_table_find(t, 1, 0, NULL));
	assert_true(copy_table_find(t, 1, 1, NULL));
	assert_false(copy_table_loose(t, &unit, &copy));
	copy_table_unpin(t, 0, pinned);
	assert_true(copy_table_loose(t, &unit, &copy));
	assert_int_equal(copy, 10);
}

/* Its number is another block's meanwhile. */
TEST(a_pinned_copy_outlives_its_block)
{
	struct copy_table *t = *state;
	uint32_t unit, copy;

	put(t, 1, 0, 10);
	const uint32_t pinned = copy_table_pin(t, 1, 0);

	copy_table_forget(t, 1);
	assert_false(copy_table_loose(t, &unit, &copy));
	put(t, 1, 0, 11);
	assert_true(copy_table_find(t, 1, 0, &copy));
	assert_int_equal(copy, 11);
	assert_int_equal(copy_table_victim(t, 0, CLASS), 1);
	copy_table_unpin(t, 0, pinned);
	assert_true(copy_table_loose(t, &unit, &copy));
	assert_int_equal(copy, 10);
	assert_false(copy_table_loose(t, &unit, &copy));
}

/* copy_table.h promises it, however few of the numbers are in use. */
TEST(memory_is_15_bytes_a_copy)
{
	const struct copy_table_conf conf = {
		.units = 1, .copies = COPY_NUMBERS, .classes = CLASS + 1, .block_of = owner_of
	};
	struct copy_table *t;
	uint64_t empty;

	assert_int_equal(copy_table_open(&conf, &t), 0);
	empty = copy_table_memory(t);
	assert_true(empty <= 1024);
	for (uint32_t i = 0; i < MANY; i++)
		put(t, i, 0, i);
	assert_true(copy_table_memory(t) - empty <= 15ull * MANY);
	for (uint32_t i = 0; i < MANY; i++)
		assert_true(copy_table_find(t, i, 0, NULL));
	copy_table_close(t);
}
