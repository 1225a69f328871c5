/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * Goal: however many parts a client could use, a client that comes later finds enough to begin
 * with, and so does the next; however many processes a tenant has, another tenant has its
 * guarantee; and the two rules of quota.h, where they are used for tenants. Method:
 * schedule_parts_used() alone, over clients that begin parts for as long as they may, one after the
 * other; a quota by itself.
 */
#include "base/loop.h"
#include "daemon/op/part.h"
#include "daemon/quota/quota.h"
#include "daemon/op/schedule.h"
#include "daemon/session/peer.h"
#include "tests/lib/test.h"

enum { CLIENTS = 16 };

static struct {
	struct ops all;
	struct quota quota;
	struct client clients[CLIENTS];
	struct peer peers[CLIENTS];
	struct mount mounts[CLIENTS];
	struct op ops[CLIENTS];
} b;

static void set_up(uint32_t parts)
{
	memset(&b, 0, sizeof(b));
	b.all.n_parts = b.all.n_free_parts = parts;
	assert_int_equal(loop_open(0, &b.all.loop), 0);
	b.all.quota = &b.quota;
	quota_add(&b.quota, "one", 0, 50);
	quota_add(&b.quota, "two", 0, 50);
	quota_set(&b.quota, QUOTA_parts, parts, quota_lines[QUOTA_parts].percent);
	schedule_open(&b.all);
}

FIXTURE_DO(with_64_parts, set_up(64));
FIXTURE_DO(tear_down, loop_close(b.all.loop));
#define WITH_64_PARTS(name) TEST_WITH(name, with_64_parts, tear_down)

static void comes(uint32_t i)
{
	b.clients[i].peer = &b.peers[i];
	b.clients[i].n_ops = 1;
	b.ops[i].client = &b.clients[i];
	b.ops[i].mount = &b.mounts[i];
	schedule_op_started(&b.all, &b.ops[i]);
}

/* All that it may. Returns how many it has then. */
static uint32_t takes(uint32_t i)
{
	while (b.all.n_free_parts > 0 && !schedule_parts_used(&b.all, &b.peers[i])) {
		b.peers[i].n_parts++;
		b.all.n_free_parts--;
	}
	return b.peers[i].n_parts;
}

static void ends(uint32_t i, uint32_t n)
{
	b.peers[i].n_parts -= n;
	b.all.n_free_parts += n;
}

WITH_64_PARTS(alone_it_has_five_sixths)
{
	comes(0);
	assert_int_equal(takes(0), 54);
}

WITH_64_PARTS(who_comes_has_enough_to_begin_with)
{
	comes(0);
	(void)takes(0);
	comes(1);
	assert_int_equal(takes(1), 9);
	comes(2);
	assert_int_equal(takes(2), 1);
}

WITH_64_PARTS(what_ends_goes_to_who_has_less)
{
	comes(0);
	(void)takes(0);
	comes(1);
	(void)takes(1);
	ends(0, 8);
	assert_int_equal(takes(0), 46); /* none */
	assert_true(takes(1) > 9);
}

TEST(no_pool_is_too_small)
{
	for (uint32_t parts = 1; parts <= 8; parts++) {
		set_up(parts);
		comes(0);
		assert_true(takes(0) >= (parts + 1) / 2);
		(void)tear_down(state);
	}
}

/* --- tenants --- */

WITH_64_PARTS(a_tenant_with_many_processes_leaves_half_to_another)
{
	for (uint32_t i = 0; i < 4; i++) { /* and a fifth, of the second tenant */
		comes(i);
		(void)takes(i);
	}
	b.clients[4].tenant = b.peers[4].tenant = 1;
	comes(4);
	for (uint32_t i = 0; i < 4; i++)
		ends(i, b.peers[i].n_parts);
	assert_int_equal(takes(4), 32);
	for (uint32_t i = 0; i < 4; i++)
		assert_in_range(takes(i), 6, 8);
}

static struct quota three(uint32_t share)
{
	struct quota q = { 0 };

	quota_add(&q, "a", share, 50);
	quota_add(&q, "b", 0, 50);
	quota_add(&q, "c", 0, 50);
	quota_set(&q, QUOTA_host_bytes, 1000, 25);
	quota_set(&q, QUOTA_connections, 60, 50);
	return q;
}

TEST(a_share_is_kept_and_the_others_divide_a_quarter_while_active)
{
	struct quota q = three(30);

	assert_int_equal(quota_of_tenant(&q, QUOTA_host_bytes, 0), 300);
	assert_int_equal(quota_of_tenant(&q, QUOTA_host_bytes, 1), 0);
	q.tenant[1].active = 1;
	assert_int_equal(quota_of_tenant(&q, QUOTA_host_bytes, 1), 250);
	q.tenant[2].active = 3;
	assert_int_equal(quota_of_tenant(&q, QUOTA_host_bytes, 1), 125);
	assert_int_equal(quota_of_tenant(&q, QUOTA_host_bytes, 2), 125);
	assert_int_equal(quota_of_tenant(&q, QUOTA_host_bytes, QUOTA_OTHERS), 0);
	assert_int_equal(quota_limit(&q, QUOTA_host_bytes, 1), 1000);
}

TEST(a_share_that_changes_is_kept_at_once)
{
	struct quota q = three(30);

	quota_take(&q, QUOTA_host_bytes, 1, 500);
	assert_true(quota_allows(&q, QUOTA_host_bytes, 1));
	quota_change(&q, 0, 60, 70);
	assert_int_equal(quota_of_tenant(&q, QUOTA_host_bytes, 0), 600);
	assert_false(quota_allows(&q, QUOTA_host_bytes, 1));
	assert_int_equal(q.tenant[0].priority, 70);
}

TEST(what_is_guaranteed_to_others_is_left_to_them)
{
	struct quota q = three(0);

	while (quota_allows(&q, QUOTA_connections, 0))
		quota_take(&q, QUOTA_connections, 0, 1);
	assert_int_equal(q.used[QUOTA_connections], 40);
	while (quota_allows(&q, QUOTA_connections, 1))
		quota_take(&q, QUOTA_connections, 1, 1);
	assert_int_equal(q.tenant[1].used[QUOTA_connections], 10);
	while (quota_allows(&q, QUOTA_connections, 2))
		quota_take(&q, QUOTA_connections, 2, 1);
	assert_int_equal(q.used[QUOTA_connections], 60);
}

TEST(a_tenant_alone_may_have_all)
{
	struct quota q = { 0 };

	quota_add(&q, "a", 0, 50);
	quota_set(&q, QUOTA_connections, 7, 50);
	while (quota_allows(&q, QUOTA_connections, 0))
		quota_take(&q, QUOTA_connections, 0, 1);
	assert_int_equal(q.used[QUOTA_connections], 7);
}

TEST(the_rules)
{
	assert_int_equal(quota_guaranteed(1000, 25, 5), 50);
	assert_int_equal(quota_guaranteed(99, 50, 1), 49);
	assert_int_equal(quota_guaranteed(UINT64_MAX, 100, 1), UINT64_MAX);
	assert_int_equal(quota_guaranteed(10, 100, 0), 10);
	assert_true(quota_of_free(6, 7, 1));
	assert_false(quota_of_free(7, 7, 1));
	assert_false(quota_of_free(0, 7, 0));
}

TEST(a_number_comes_from_whoever_holds_more_than_its_guarantee)
{
	const struct quota_account rich = { 11, 10 }, even = { 10, 10 };

	assert_true(quota_may_take(&rich, &even, 1, QUOTA_RICH));
	assert_false(quota_may_take(&even, &rich, 1, QUOTA_RICH));
	assert_false(quota_may_take(&even, &even, 1, QUOTA_RICH)); /* nor its own */
	assert_true(quota_may_take(&rich, &rich, 1, QUOTA_RICH));
}

TEST(then_from_its_own)
{
	const struct quota_account own = { 10, 10 }, other = { 10, 10 };

	assert_true(quota_may_take(&own, &own, 1, QUOTA_OWN));
	assert_false(quota_may_take(&other, &own, 1, QUOTA_OWN));
}

TEST(then_from_anybody_for_one_within_its_guarantee)
{
	const struct quota_account poor = { 9, 10 }, even = { 10, 10 };

	assert_true(quota_may_take(&even, &poor, 1, QUOTA_ANY));
	assert_false(quota_may_take(&poor, &even, 1, QUOTA_ANY));
}

TEST(a_slot_comes_from_the_rich_or_its_own_and_in_despair_from_any)
{
	const struct quota_account poor = { 6, 10 }, even = { 10, 10 }, rich = { 11, 10 };
	const unsigned usual = QUOTA_RICH | QUOTA_OWN;

	assert_true(quota_may_take(&rich, &even, 4, usual));
	assert_true(quota_may_take(&even, &even, 4, usual));
	assert_false(quota_may_take(&even, &poor, 4, usual));
	assert_true(quota_may_take(&even, &poor, 4, usual | QUOTA_ANY));
	assert_false(quota_may_take(&even, &poor, 5, usual | QUOTA_ANY));
	assert_false(quota_may_take(&even, &rich, 1, usual | QUOTA_ANY));
}
