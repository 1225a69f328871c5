/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unit_victim_hints.c - goal: hints choose among the blocks of the tenant that pays, and recency
 * alone says which tenant that is. Method: a table of blocks with two tenants; single orders; then,
 * for random bands, the tenants that pay are those that pay without any hints.
 */

#include "daemon/table/evict.h"
#include "daemon/policy/victim.h"
#include "daemon/table/space_counts.h"
#include "tests/lib/test.h"

enum { MAX = 256, CLASS = 1, A = 0, B = 1 /* spaces, and their tenants */ };

static struct index *table;
static struct blocks *blocks;
static uint32_t stored;

FIXTURE(open_blocks)
{
	const struct blocks_conf conf = { .max_blocks = MAX };

	stored = 0;
	assert_int_equal(index_open(MAX, &table), 0);
	assert_int_equal(blocks_open(&conf, table, &blocks), 0);
	for (uint32_t space = A; space <= B; space++)
		counts_space_is(blocks_counts(blocks), space, (const uint8_t[16]){ 1 }, space);
	return 0;
}

FIXTURE_DO(close_blocks, blocks_close(blocks); index_close(table));

TEST_EACH(open_blocks, close_blocks);

/* More recent than all before. */
static uint32_t store(uint32_t space)
{
	const struct extent where = { .tier = TIER_HOST, .class = CLASS, .slot = stored % MAX };
	uint32_t block;

	assert_int_equal(blocks_commit(blocks, random_key_of(stored++).bytes, space, BLOCK_NONE, 0,
				       &where, &block),
			 0);
	blocks_touch(blocks, block, 100ull * stored);
	return block;
}

static void band(uint32_t block, enum evict_band to)
{
	evict_set_band(blocks_order(blocks), block, to);
}

/* It is dropped. */
static uint32_t next(void)
{
	const uint32_t block = victim_of(blocks, CLASS, NULL, NULL);

	if (block != BLOCK_NONE)
		(void)blocks_drop(blocks, block);
	return block;
}

TEST(the_tenant_pays_whose_block_is_oldest_with_one_it_keeps_less)
{
	const uint32_t kept = store(A), other = store(B), later = store(A), last = store(A);

	band(kept,
	     EVICT_KEPT); /* its age is 300, of which a quarter counts; that of later is 100 */
	assert_int_equal(next(), later);
	assert_int_equal(next(), kept);
	assert_int_equal(next(), other);
	assert_int_equal(next(), last);
	assert_int_equal(next(), BLOCK_NONE);
}

TEST(what_is_kept_goes_once_a_quarter_of_its_age_is_more)
{
	const uint32_t kept = store(A), other = store(A);

	band(kept, EVICT_KEPT);
	blocks_touch(blocks, other, 1000);
	(void)store(B);
	blocks_touch(blocks, kept + 2, 1250); /* of 1150 a quarter counts, more than 250 */
	assert_int_equal(victim_of(blocks, CLASS, NULL, NULL), kept);
	blocks_touch(blocks, kept + 2, 1400); /* of 1300, less than 400 */
	assert_int_equal(victim_of(blocks, CLASS, NULL, NULL), other);
}

TEST(what_is_expected_stands_by_its_return_among_the_blocks_of_its_tenant_alone)
{
	const uint32_t oldest = store(B), soon = store(A), never = store(A), late = store(A),
		       usual = store(A);
	struct evict *order = blocks_order(blocks);

	evict_expect(order, soon, 520);
	evict_expect(order, never, EVICT_NEVER);
	evict_expect(order, late, 490); /* since it was used at 400, 200 count at 500 */
	assert_int_equal(next(), oldest);
	assert_int_equal(next(), never);
	assert_int_equal(next(), late);
	assert_int_equal(next(), soon);
	assert_int_equal(next(), usual);
}

TEST(what_is_held_stays_and_its_tenant_pays_while_it_can)
{
	const uint32_t held = store(A), other = store(B), later = store(A);

	band(held, EVICT_HELD);
	assert_int_equal(next(), later);
	assert_int_equal(next(), other);
	assert_int_equal(next(), BLOCK_NONE);
	band(held, EVICT_USUAL);
	assert_int_equal(next(), held);
}

TEST(what_is_demoted_or_released_is_the_first_of_all)
{
	const uint32_t first = store(A), other = store(B), released = store(B), demoted = store(A);
	uint64_t tick = 5;

	evict_age(blocks_order(blocks), released);
	assert_int_equal(victim_of(blocks, CLASS, NULL, &tick), released);
	assert_int_equal(tick, 0);
	blocks_touch(blocks, released, 1000);
	band(demoted, EVICT_FIRST);
	assert_int_equal(next(), demoted);
	assert_int_equal(next(), first);
	assert_int_equal(next(), other);
	assert_int_equal(next(), released); /* used again, it is as any other */
}

TEST(a_use_ends_what_lowers_a_block_and_not_what_keeps_it)
{
	const uint32_t a = store(A), b = store(A);

	band(a, EVICT_FIRST);
	band(b, EVICT_KEPT);
	blocks_touch(blocks, a, 1000);
	blocks_touch(blocks, b, 1001);
	assert_int_equal(evict_band(blocks_order(blocks), a), EVICT_USUAL);
	assert_int_equal(evict_band(blocks_order(blocks), b), EVICT_KEPT);
	assert_int_equal(evict_banded(blocks_order(blocks)), 1);
	(void)blocks_drop(blocks, b);
	assert_int_equal(evict_banded(blocks_order(blocks)), 0);
}

TEST(a_space_that_lost_its_standing_goes_first_held_or_not)
{
	const uint32_t older = store(B), held = store(A), other = store(A);

	band(held, EVICT_HELD);
	counts_set_standing(blocks_counts(blocks), A, HINT_RETIRED);
	assert_int_equal(victim_worth(blocks, other), 0);
	assert_int_equal(next(), held);
	counts_set_standing(blocks_counts(blocks), A, HINT_USUAL);
	assert_int_equal(next(), older);
	assert_int_equal(next(), other);
}

static bool spared;

static bool not_tenant_a(TEST_UNUSED void *arg, uint32_t account)
{
	return account != counts_account_of(blocks_counts(blocks), A);
}

TEST(who_may_not_be_taken_from_is_spared)
{
	const struct victim_filter filter = { not_tenant_a, NULL, &spared };
	const uint32_t a = store(A), b = store(B), c = store(B);
	uint64_t tick;

	(void)store(B);
	band(a, EVICT_FIRST);
	band(b, EVICT_KEPT);
	spared = false;
	assert_int_equal(victim_of(blocks, CLASS, &filter, &tick), c);
	assert_true(spared);
}

/* Which tenants pay, one after the other, as bits. */
static void payers(struct random r, bool hinted, uint32_t n, uint8_t *ret)
{
	for (uint32_t i = 0; i < n; i++) {
		const uint32_t space = random_below(&r, 2), block = store(space);
		const bool keep = random_below(&r, 3) == 0 && space == A;

		if (hinted && keep)
			band(block, EVICT_KEPT);
	}
	for (uint32_t i = 0; i < n / 2; i++) {
		const uint32_t victim = victim_of(blocks, CLASS, NULL, NULL);

		ret[i] = (uint8_t)blocks_space(blocks, victim);
		(void)blocks_drop(blocks, victim);
	}
	while (next() != BLOCK_NONE)
		;
}

/* To keep blocks costs a tenant others of its own, one for one, and the other tenant nothing. Which
 * blocks are A's oldest changes with that, so compare how many B has lost. */
TEST(no_hint_costs_another_tenant_a_block)
{
	enum { N = 100, ROUNDS = 200 };
	struct random r = random_seeded("no_hint_costs_another_tenant_a_block");
	uint8_t without[N], with[N];

	for (uint32_t round = 0; round < ROUNDS; round++) {
		uint32_t lost = 0, lost_with = 0;

		payers(r, false, N, without);
		payers(r, true, N, with);
		(void)random_next(&r);
		for (uint32_t i = 0; i < N / 2; i++) {
			lost += without[i] == B;
			lost_with += with[i] == B;
			assert_true(lost_with <= lost);
		}
	}
}
