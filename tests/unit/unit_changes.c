/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Goal: changes are kept in their order, from the first follower on, and a change that is not kept
 * any more is never taken for another one.
 * Method: changes.c alone, with more changes than it keeps.
 */
#include "tests/lib/test.h"
#include "daemon/changes/changes.h"

static const uint8_t key[32] = { 1, 2, 3 };

TEST(nothing_is_kept_before_the_first_follower)
{
	struct changes changes = { 0 };

	changes_add(NULL, key, 0, 1);
	changes_add(&changes, key, 0, 1);
	assert_int_equal(changes.next, 0);
	assert_null(changes_at(&changes, 0));
	assert_int_equal(changes_begin(&changes), 0);
	changes_add(&changes, key, 7, 3);
	assert_int_equal(changes_begin(&changes), 0);
	assert_int_equal(changes.next, 1);
	assert_memory_equal(changes_at(&changes, 0)->key, key, sizeof(key));
	assert_int_equal(changes_at(&changes, 0)->space, 7);
	assert_int_equal(changes_at(&changes, 0)->tiers, 3);
	assert_null(changes_at(&changes, 1));
	changes_end(&changes);
}

TEST(the_last_ones_are_kept)
{
	struct changes changes = { 0 };

	assert_int_equal(changes_begin(&changes), 0);
	for (uint32_t i = 0; i < CHANGES_KEPT + 5; i++)
		changes_add(&changes, key, i, 1);
	assert_null(changes_at(&changes, 4));
	for (uint32_t i = 5; i < CHANGES_KEPT + 5; i++)
		assert_int_equal(changes_at(&changes, i)->space, i);
	assert_null(changes_at(&changes, CHANGES_KEPT + 5));
	assert_null(changes_at(&changes, UINT64_MAX));
	changes_end(&changes);
}
