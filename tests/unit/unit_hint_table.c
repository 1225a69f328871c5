/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unit_hint_table.c - goal: notes, sessions and kept bytes stay in step while blocks join, leave
 * and go, and tenants are apart. Method: single cases; then random calls beside a naive model.
 */

#include "daemon/quota/quota.h"
#include "daemon/table/hint_table.h"
#include "tests/lib/test.h"

static struct quota quota;
static struct hint_table *notes;

FIXTURE(open_notes)
{
	quota = (struct quota){ 0 };
	return hint_table_open(HINT_TABLE_MIN, &quota, &notes);
}

FIXTURE_DO(close_notes, hint_table_close(notes));

TEST_EACH(open_notes, close_notes);

static void join(uint32_t block, uint16_t tenant, uint64_t id)
{
	assert_true(hint_table_join(notes, hint_table_make(notes, block, tenant), id, 0));
}

/* Both may lie in one bucket, or not: a secret of each table says so. */
TEST(a_session_is_its_tenants_alone)
{
	for (int i = 0; i < 64; i++) {
		join(1, 0, 5);
		join(2, 1, 5);
		assert_int_equal(quota.used[QUOTA_sessions], 2);
		(void)close_notes(state);
		(void)open_notes(state);
	}
	join(1, 0, 5);
	join(2, 1, 5);
	assert_int_equal(quota.used[QUOTA_sessions], 2);
	assert_int_not_equal(hint_table_session(notes, 0, 5), hint_table_session(notes, 1, 5));
	assert_int_equal(hint_table_next(notes, hint_table_session(notes, 0, 5))->block, 1);
	assert_int_equal(hint_table_next(notes, hint_table_session(notes, 1, 5))->block, 2);
	assert_int_equal(hint_table_session(notes, 2, 5), HINT_TABLE_NONE);
	hint_table_keep(notes, hint_table_find(notes, 1), 100);
	assert_int_equal(quota.tenant[0].used[QUOTA_kept_bytes], 100);
	assert_int_equal(quota.tenant[1].used[QUOTA_kept_bytes], 0);
	assert_int_equal(quota.used[QUOTA_kept_bytes], 100);
}

TEST(a_round_meets_each_block_once)
{
	for (uint32_t i = 0; i < 10; i++)
		join(i, 0, 5);
	for (uint32_t round = 0; round < 2; round++)
		for (uint32_t i = 0; i < 10; i++)
			assert_int_equal(
				hint_table_next(notes, hint_table_session(notes, 0, 5))->block, i);
}

TEST(a_block_that_goes_takes_all_of_it_along)
{
	join(1, 0, 5);
	hint_table_keep(notes, hint_table_find(notes, 1), 100);
	hint_table_forget(notes, 1);
	hint_table_forget(notes, 1);
	hint_table_forget(NULL, 1);
	assert_int_equal(quota.used[QUOTA_hint_rows], 0);
	assert_int_equal(quota.used[QUOTA_sessions], 0);
	assert_int_equal(quota.used[QUOTA_kept_bytes], 0);
}

TEST(there_are_no_more_than_were_reserved)
{
	uint32_t n = 0;

	for (uint16_t tenant = 0; tenant < 3; tenant++)
		while (hint_table_make(notes, n, tenant))
			n++;
	assert_int_equal(n, HINT_TABLE_MIN);
	assert_false(hint_table_have_room(notes, 3));
	assert_null(hint_table_make(notes, HINT_TABLE_MIN, 3));
	assert_non_null(hint_table_make(notes, 3, 0));
	for (uint32_t i = 0; i < HINT_TABLE_MIN / 16; i++)
		assert_true(hint_table_join(notes, hint_table_find(notes, i), i + 1, 0));
	assert_false(hint_table_join(notes, hint_table_find(notes, 9), 99, 0));
	assert_int_equal(hint_table_find(notes, 9)->session, HINT_TABLE_NONE);
	hint_table_forget(notes, 0);
	assert_true(hint_table_join(notes, hint_table_find(notes, 9), 99, 0));
}

TEST(a_tenant_that_takes_all_it_can_leaves_notes_to_others)
{
	uint32_t n = 0;

	while (hint_table_make(notes, n, 0))
		n++;
	assert_int_equal(n, HINT_TABLE_MIN / 8 * 7);
	for (uint32_t i = 0; i < HINT_TABLE_MIN / 8 - 1; i++)
		assert_non_null(hint_table_make(notes, n++, 1));
	assert_null(hint_table_make(notes, n, 1));
	assert_non_null(hint_table_make(notes, n, 2));
	/* and takes again the notes that others gave back */
	hint_table_forget(notes, n);
	hint_table_forget(notes, n - 1);
	hint_table_forget(notes, 0);
	assert_null(hint_table_make(notes, 0, 0));
	assert_non_null(hint_table_make(notes, 0, 1));
}

TEST(a_tenant_with_many_sessions_leaves_sessions_to_others)
{
	enum { MANY = 1024, SESSIONS = MANY / 16 };
	uint32_t n = 0;

	(void)close_notes(state);
	assert_int_equal(hint_table_open(MANY, &quota, &notes), 0);
	while (hint_table_join(notes, hint_table_make(notes, n, 0), n + 1, 0))
		n++;
	assert_int_equal(n, SESSIONS / 8 * 7);
	join(MANY, 1, 1);
	assert_int_equal(quota.used[QUOTA_sessions], n + 1);
	hint_table_forget(notes, MANY);
	for (uint32_t i = 0; i < n; i++)
		hint_table_leave(notes, hint_table_find(notes, i));
	assert_int_equal(quota.used[QUOTA_sessions], 0);
	for (uint32_t i = 0; i < n; i++)
		join(i, 0, i + 1);
}

static void take_end(void *arg, struct note *note)
{
	++*(uint32_t *)arg;
	note->until_s = 0;
	hint_table_settle(notes, note);
}

TEST(ends_are_found_slice_by_slice)
{
	uint32_t cursor = 0, n = 0, calls = 1;

	for (uint32_t i = 0; i < 40; i++)
		hint_table_make(notes, i, 0)->until_s = i % 4 == 0 ? 0 : i;
	while (hint_table_sweep(notes, &cursor, 7, 20, take_end, &n))
		calls++;
	assert_int_equal(n, 15); /* of 1 to 20, the numbers that 4 does not divide */
	assert_int_equal(calls, 6);
	cursor = 0;
	(void)hint_table_sweep(notes, &cursor, 100, 20, take_end, &n);
	assert_int_equal(n, 15);
}

/* Blocks 0 to 59 of three tenants, each with a session 7. */
TEST(whatever_happens_the_sums_are_right)
{
	enum { BLOCKS = 60, STEPS = 100000 };
	struct {
		uint32_t there, session, bytes;
	} model[BLOCKS] = { 0 };
	struct random r = random_seeded("whatever_happens_the_sums_are_right");

	for (uint32_t step = 0; step < STEPS; step++) {
		const uint32_t b = random_below(&r, BLOCKS), what = random_below(&r, 5), id = 7;
		const uint16_t tenant = (uint16_t)(b % 3);
		uint64_t kept[3] = { 0 };
		uint32_t count = 0, members = 0;

		if (what == 0) {
			hint_table_forget(notes, b);
			model[b].there = model[b].session = model[b].bytes = 0;
		} else if (what == 1) {
			join(b, tenant, id);
			model[b].there = 1;
			model[b].session = id;
		} else if (what == 2) {
			model[b].bytes = random_below(&r, 100);
			model[b].there = 1;
			hint_table_keep(notes, hint_table_make(notes, b, tenant), model[b].bytes);
		} else if (what == 3 && model[b].there) {
			hint_table_leave(notes, hint_table_find(notes, b));
			model[b].session = 0;
		} else if (what == 4 && model[b].there) {
			hint_table_settle(notes, hint_table_find(notes, b));
			model[b].there = model[b].session || model[b].bytes;
		}
		for (uint32_t i = 0; i < BLOCKS; i++) {
			kept[i % 3] += model[i].bytes;
			count += model[i].there;
			members += i % 3 == tenant && model[i].session == id;
		}
		assert_int_equal(quota.used[QUOTA_hint_rows], count);
		for (uint16_t t = 0; t < 3; t++)
			assert_int_equal(quota.tenant[t].used[QUOTA_kept_bytes], kept[t]);
		assert_int_equal((hint_table_find(notes, b) != NULL), model[b].there);
		if (hint_table_session(notes, tenant, id) == HINT_TABLE_NONE)
			assert_int_equal(members, 0);
		else
			assert_int_equal(hint_table_session_blocks(notes,
								   hint_table_session(notes, tenant,
										      id)),
					 members);
	}
}
