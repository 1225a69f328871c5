/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Goal: memory that is guaranteed to a space is not taken for another space's blocks, for stores of
 * any size by anyone. A space can always use its guarantee. With nothing guaranteed the least
 * recent leaf goes. Method: a real host tier of 64 KiB slabs; cases by hand, then random stores of
 * five spaces, whose seed is printed. Before each the bytes of all spaces are noted: afterwards
 * only spaces that had more than their guarantee, or the storing space, may have less. A space
 * holds at least a slab of each class that has some of its blocks.
 */
#include "tests/lib/lib_mover.h"

#include "daemon/table/space_counts.h"
#include "daemon/policy/victim.h"

enum {
	SPACES = 5,
	SLABS = 8,
	STEPS = 60000,
	MORE_SLABS = 32,
	GUARANTEED = MORE_SLABS * SLAB / 2 / SPACES,
	MANY_SPACES = 200,
	OWN_ACCOUNTS = COUNTS_ACCOUNTS - QUOTA_TENANTS,
};

static struct quota quota;
static struct world w;

FIXTURE_DO(end, world_close(&w));

TEST_EACH(NULL, end);

static int find(uint32_t space, uint32_t bytes, bool desperate, struct extent *ret)
{
	const struct mover_for whom = { .space = space, .desperate = desperate };

	int r;

	mover_iteration(&w.mover);
	while ((r = mover_find_room(w.host, w.blocks, w.tick, bytes, &whom, &w.mover, ret)) ==
		       -EAGAIN &&
	       world_copier.n) {
		copier_run(&world_copier);
		mover_iteration(&w.mover);
	}
	return r;
}

static uint32_t store_for(uint32_t space, uint32_t name, uint32_t bytes)
{
	struct extent where;

	assert_int_equal(find(space, bytes, false, &where), 0);
	return world_commit(&w, space, name, BLOCK_NONE, &where);
}

/* So many, named from `first` on. */
static void store_many(uint32_t space, uint32_t first, uint32_t n, uint32_t bytes)
{
	for (uint32_t i = 0; i < n; i++)
		(void)store_for(space, first + i, bytes);
}

static bool is_here(uint32_t space, uint32_t name)
{
	return blocks_find(w.blocks, random_key_of(name).bytes, space) != BLOCK_NONE;
}

/* whole: of which the space may be charged with as many bytes, whatever others have. */
static uint64_t charged(uint32_t space, bool whole)
{
	const uint32_t account = counts_account_of(blocks_counts(w.blocks), space);
	struct tier_class_view view;
	uint64_t ret = 0;

	for (uint32_t class = 0;
	     account != COUNTS_NO_ACCOUNT && class < slabs_classes(tier_slabs(w.host)); class ++) {
		uint32_t n = counts_account_slots(blocks_counts(w.blocks), account, class);

		slabs_class_view(tier_slabs(w.host), class, &view);
		if (whole && n > 0 && n < view.slots_per_slab)
			n = view.slots_per_slab;
		ret += (uint64_t)n * view.slot_bytes;
	}
	return ret;
}

static uint64_t bytes_of(uint32_t space)
{
	return charged(space, false);
}

static void fair_world(uint32_t slabs, uint64_t each)
{
	w = world_open(slabs);
	for (uint32_t i = 0; i < MANY_SPACES; i++)
		counts_guarantee(blocks_counts(w.blocks), i, each);
}

TEST(a_flood_pays_with_its_own)
{
	uint32_t name = 100;

	fair_world(SLABS, 2 * SLAB);
	store_many(1, 0, 8, SMALL);
	for (uint32_t i = 0; i < 500; i++)
		(void)store_for(2, name++, i % 2 ? SLAB : SMALL);
	for (uint32_t i = 0; i < 8; i++)
		assert_true(is_here(1, i));
}

TEST(what_exceeds_a_guarantee_goes_by_age)
{
	fair_world(SLABS, SLAB);
	store_many(1, 0, 4 * SLABS, BIG);
	store_many(2, 100, 100, BIG);
	for (uint32_t i = 0; i < 4 * SLABS; i++) /* the newest 4, a slab of them */
		assert_int_equal(is_here(1, i), i >= 4 * SLABS - 4);
}

TEST(nobody_else_has_to_give_room_that_is_guaranteed)
{
	struct extent where;
	uint32_t pinned[SLABS / 2];

	fair_world(SLABS, SLABS / 2 * SLAB);
	for (uint32_t i = 0; i < SLABS / 2; i++) {
		(void)store_for(1, i, SLAB);
		pinned[i] = store_for(2, 100 + i, SLAB);
		blocks_pin(w.blocks, pinned[i]);
	}
	assert_int_equal(find(2, SLAB, false, &where), -EAGAIN);
	assert_int_equal(find(2, SLAB, true, &where), -EAGAIN); /* it has its share */
	assert_int_equal(blocks_copies(w.blocks, TIER_HOST), SLABS);
	/* One that has nothing yet, and nothing is under way: better than to be refused. */
	assert_int_equal(find(3, SLAB, false, &where), -EAGAIN);
	assert_int_equal(find(3, SLAB, true, &where), 0);
	(void)world_commit(&w, 3, 200, BLOCK_NONE, &where);
	assert_int_equal(bytes_of(1), (SLABS / 2 - 1) * SLAB);
}

TEST(without_guarantees_the_oldest_goes)
{
	fair_world(SLABS, 0);
	for (uint32_t i = 0; i < 4 * SLABS; i++)
		(void)store_for(i % 3, i, BIG);
	for (uint32_t i = 0; i < 4 * SLABS; i++) {
		(void)store_for(7, 100 + i, BIG);
		assert_false(is_here(i % 3, i));
		assert_true(i + 1 == 4 * SLABS || is_here((i + 1) % 3, i + 1));
	}
}

/* More spaces than accounts: spaces that share an account go by age. */
TEST(many_spaces_share_an_account)
{
	uint32_t block[MANY_SPACES];
	uint64_t tick;

	w = world_open(MANY_SPACES / 8);
	for (uint32_t i = 0; i < MANY_SPACES; i++)
		block[i] = store_for(i, i, SMALL);
	assert_int_equal(counts_accounts(blocks_counts(w.blocks)), OWN_ACCOUNTS + 1);
	for (uint32_t i = 0; i < MANY_SPACES; i++) {
		assert_int_equal(victim_of(w.blocks, 0, NULL, &tick), block[i]);
		assert_int_equal(counts_account_of(blocks_counts(w.blocks), i) == OWN_ACCOUNTS,
				 i >= OWN_ACCOUNTS);
		(void)store_for(0, 1000 + i, SMALL);
		assert_false(is_here(i, i));
	}
	assert_int_equal(counts_accounts(blocks_counts(w.blocks)), 1);
}

/* --- tenants: space n is the n-th one's --- */

static void tenants_world(uint32_t share, const uint32_t *priorities, uint32_t n)
{
	static const uint8_t key[16];

	quota = (struct quota){ 0 };
	for (uint32_t i = 0; i < n; i++)
		quota_add(&quota, "a tenant", share, priorities[i]);
	world_quota = &quota;
	w = world_open(SLABS);
	world_quota = NULL;
	quota_set(&quota, QUOTA_host_bytes, w.host->capacity_bytes, 25);
	for (uint32_t i = 0; i < n; i++)
		counts_space_is(blocks_counts(w.blocks), i, key, i);
}

/* Its spaces have none: nobody has them open, and its share holds all the same. */
TEST(a_tenants_share_is_not_taken)
{
	tenants_world(25, (const uint32_t[]){ 50, 50 }, 2);
	store_many(0, 0, 4 * SLABS, BIG);
	store_many(1, 100, 500, BIG);
	assert_int_equal(bytes_of(0), SLABS / 4 * SLAB);
	store_many(0, 1000, 500, BIG); /* and back */
	assert_int_equal(bytes_of(1), SLABS / 4 * SLAB);
}

TEST(a_lower_priority_pays_first_however_recent)
{
	tenants_world(0, (const uint32_t[]){ 60, 40, 50 }, 3);
	store_many(0, 0, 2 * SLABS, BIG);
	store_many(1, 100, 2 * SLABS, BIG);
	store_many(2, 200, 2 * SLABS, BIG);
	assert_int_equal(bytes_of(0), 2 * SLABS * BIG);
	assert_int_equal(bytes_of(1), 0);
	assert_int_equal(bytes_of(2), 2 * SLABS * BIG);
	(void)store_for(1, 300, BIG); /* it has nothing else to give, and no guarantee */
	assert_int_equal(bytes_of(2), (2 * SLABS - 1) * BIG);
}

TEST(a_lower_priority_pays_first_whatever_the_size)
{
	tenants_world(0, (const uint32_t[]){ 60, 40, 50 }, 3);
	store_many(0, 0, 2 * SLABS, BIG);
	store_many(1, 100, SLABS / 2, SLAB);
	store_many(2, 200, 2 * SLABS, BIG);
	assert_int_equal(bytes_of(0), 2 * SLABS * BIG);
	assert_int_equal(bytes_of(1), 0);
}

TEST(down_to_its_share)
{
	tenants_world(25, (const uint32_t[]){ 60, 40, 50 }, 3);
	store_many(1, 0, 2 * SLABS, BIG);
	store_many(0, 100, 500, BIG);
	assert_int_equal(bytes_of(1), SLABS / 4 * SLAB);
}

/* Half of the stores are one space's. Returns how many others were within their guarantee. */
static uint32_t random_step(struct random *r, uint32_t name)
{
	static const uint32_t sizes[] = { SMALL, BIG, SLAB / 2, SLAB };
	const uint32_t space = random_below(r, 2) ? 0 : random_below(r, SPACES),
		       bytes = sizes[random_below(r, 4)];
	uint64_t before[SPACES];
	bool within[SPACES];
	struct extent where;
	uint32_t ret = 0;

	for (uint32_t i = 0; i < SPACES; i++) {
		before[i] = bytes_of(i);
		within[i] = charged(i, true) <= GUARANTEED;
	}
	assert_int_equal(find(space, bytes, false, &where), 0);
	for (uint32_t i = 0; i < SPACES; i++)
		if (i != space && before[i] > 0 && within[i]) {
			assert_int_equal(bytes_of(i), before[i]);
			ret++;
		}
	(void)world_commit(&w, space, name, BLOCK_NONE, &where);
	return ret;
}

TEST(random_stores_take_no_guarantee)
{
	struct random r = random_seeded("sim_guarantee");
	uint32_t within = 0;

	fair_world(MORE_SLABS, GUARANTEED);
	for (uint32_t i = 0; i < STEPS; i++)
		within += random_step(&r, i);
	print_message("%u times a space was within its guarantee\n", within);
	assert_true(within > 0);
}
