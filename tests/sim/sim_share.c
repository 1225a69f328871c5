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
#include "tests/lib/test.h"

#include <errno.h>

#include "daemon/store/tally.h"
#include "tests/lib/random.h"
#include "daemon/store/herd.h"

enum {
	SPACES = 5,
	SLABS = 8,
	STEPS = 60000,
	MORE_SLABS = 32,
	GUARANTEED = MORE_SLABS * SLAB / 2 / SPACES,
	MANY_SPACES = 200
};

static uint64_t guaranteed[TIER_MAX_SPACES];

static int find(struct world *w, uint32_t space, uint32_t bytes, bool desperate, struct extent *ret)
{
	const struct mover_for whom = { .space = space,
					.desperate = desperate,
					.guaranteed = guaranteed };

	int r;

	mover_turn(&w->mover);
	while ((r = mover_find_room_for(w->host, w->blocks, w->tick, bytes, &whom, &w->mover,
					ret)) == -EAGAIN &&
	       world_copier.n) {
		copier_run(&world_copier);
		mover_turn(&w->mover);
	}
	return r;
}

static uint32_t commit(struct world *w, uint32_t space, uint32_t name, const struct extent *where)
{
	uint8_t key[32];
	uint32_t block;

	w->tick++;
	world_key(name, key);
	assert_int_equal(blocks_commit(w->blocks, key, space, BLOCK_NONE, 0, where, &block), 0);
	tier_set_owner(w->host, where, block);
	blocks_touch(w->blocks, block, w->tick);
	return block;
}

static uint32_t store_for(struct world *w, uint32_t space, uint32_t name, uint32_t bytes)
{
	struct extent where;

	assert_int_equal(find(w, space, bytes, false, &where), 0);
	return commit(w, space, name, &where);
}

static bool is_here(const struct world *w, uint32_t space, uint32_t name)
{
	uint8_t key[32];

	world_key(name, key);
	return blocks_find(w->blocks, key, space) != BLOCK_NONE;
}

static uint64_t bytes_of(const struct world *w, uint32_t space)
{
	const uint32_t account = tally_account_of(blocks_tally(w->blocks), space);
	struct tier_class_view view;
	uint64_t ret = 0;

	for (uint32_t class = 0; account && class < slabs_classes(tier_slabs(w->host)); class ++) {
		slabs_class_view(tier_slabs(w->host), class, &view);
		ret += (uint64_t)tally_account_slots(blocks_tally(w->blocks), account, class) *
		       view.slot_bytes;
	}
	return ret;
}

/* Of which the space may be charged with as many bytes, whatever others have. */
static uint64_t room_of(const struct world *w, uint32_t space)
{
	const uint32_t account = tally_account_of(blocks_tally(w->blocks), space);
	struct tier_class_view view;
	uint64_t ret = 0;

	for (uint32_t class = 0; account && class < slabs_classes(tier_slabs(w->host)); class ++) {
		const uint32_t n = tally_account_slots(blocks_tally(w->blocks), account, class);

		slabs_class_view(tier_slabs(w->host), class, &view);
		ret += (uint64_t)(n < view.slots_per_slab && n > 0 ? view.slots_per_slab : n) *
		       view.slot_bytes;
	}
	return ret;
}

static struct world fair_world(uint64_t each)
{
	for (uint32_t i = 0; i < TIER_MAX_SPACES; i++)
		guaranteed[i] = each;
	return world_open(SLABS);
}

TEST(a_flood_pays_with_its_own)
{
	struct world w = fair_world(2 * SLAB);
	uint32_t name = 100;

	for (uint32_t i = 0; i < 8; i++)
		(void)store_for(&w, 1, i, SMALL);
	for (uint32_t i = 0; i < 500; i++)
		(void)store_for(&w, 2, name++, i % 2 ? SLAB : SMALL);
	for (uint32_t i = 0; i < 8; i++)
		assert_true(is_here(&w, 1, i));
	world_close(&w);
}

TEST(what_exceeds_a_guarantee_goes_by_age)
{
	struct world w = fair_world(SLAB);

	for (uint32_t i = 0; i < 4 * SLABS; i++)
		(void)store_for(&w, 1, i, BIG);
	for (uint32_t i = 0; i < 100; i++)
		(void)store_for(&w, 2, 100 + i, BIG);
	for (uint32_t i = 0; i < 4 * SLABS; i++) /* the newest 4, a slab of them */
		assert_int_equal(is_here(&w, 1, i), i >= 4 * SLABS - 4);
	world_close(&w);
}

TEST(nobody_else_has_to_give_room_that_is_guaranteed)
{
	struct world w = fair_world(SLABS / 2 * SLAB);
	struct extent where;
	uint32_t pinned[SLABS / 2];

	for (uint32_t i = 0; i < SLABS / 2; i++) {
		(void)store_for(&w, 1, i, SLAB);
		pinned[i] = store_for(&w, 2, 100 + i, SLAB);
		blocks_pin(w.blocks, pinned[i]);
	}
	assert_int_equal(find(&w, 2, SLAB, false, &where), -EAGAIN);
	assert_int_equal(find(&w, 2, SLAB, true, &where), -EAGAIN); /* it has its share */
	assert_int_equal(blocks_copies(w.blocks, TIER_HOST), SLABS);
	/* One that has nothing yet, and nothing is under way: better than to be refused. */
	assert_int_equal(find(&w, 3, SLAB, false, &where), -EAGAIN);
	assert_int_equal(find(&w, 3, SLAB, true, &where), 0);
	(void)commit(&w, 3, 200, &where);
	assert_int_equal(bytes_of(&w, 1), (SLABS / 2 - 1) * SLAB);
	world_close(&w);
}

TEST(without_guarantees_the_oldest_goes)
{
	struct world w = fair_world(0);

	for (uint32_t i = 0; i < 4 * SLABS; i++)
		(void)store_for(&w, i % 3, i, BIG);
	for (uint32_t i = 0; i < 4 * SLABS; i++) {
		(void)store_for(&w, 7, 100 + i, BIG);
		assert_false(is_here(&w, i % 3, i));
		assert_true(i + 1 == 4 * SLABS || is_here(&w, (i + 1) % 3, i + 1));
	}
	world_close(&w);
}

/* More spaces than accounts: spaces that share an account go by age. */
TEST(many_spaces_share_an_account)
{
	struct world w = world_open(MANY_SPACES / 8);
	uint32_t block[MANY_SPACES];
	uint64_t tick;

	memset(guaranteed, 0, sizeof(guaranteed));
	for (uint32_t i = 0; i < MANY_SPACES; i++)
		block[i] = store_for(&w, i, i, SMALL);
	assert_int_equal(tally_accounts(blocks_tally(w.blocks)), TALLY_ACCOUNTS);
	for (uint32_t i = 0; i < MANY_SPACES; i++) {
		assert_int_equal(herd_victim(w.blocks, 0, &tick), block[i]);
		assert_int_equal(tally_account_of(blocks_tally(w.blocks), i) == 0,
				 i >= TALLY_ACCOUNTS - 1);
		(void)store_for(&w, 0, 1000 + i, SMALL);
		assert_false(is_here(&w, i, i));
	}
	assert_int_equal(tally_accounts(blocks_tally(w.blocks)), 2);
	world_close(&w);
}

/* Half of the stores are one space's. Returns how many others were within their guarantee. */
static uint32_t random_step(struct world *w, struct random *r, uint32_t name)
{
	static const uint32_t sizes[] = { SMALL, BIG, SLAB / 2, SLAB };
	const uint32_t space = random_below(r, 2) ? 0 : random_below(r, SPACES),
		       bytes = sizes[random_below(r, 4)];
	uint64_t before[SPACES];
	bool within[SPACES];
	struct extent where;
	uint32_t ret = 0;

	for (uint32_t i = 0; i < SPACES; i++) {
		before[i] = bytes_of(w, i);
		within[i] = room_of(w, i) <= guaranteed[i];
	}
	assert_int_equal(find(w, space, bytes, false, &where), 0);
	for (uint32_t i = 0; i < SPACES; i++)
		if (i != space && before[i] > 0 && within[i]) {
			assert_int_equal(bytes_of(w, i), before[i]);
			ret++;
		}
	(void)commit(w, space, name, &where);
	return ret;
}

TEST(random_stores_take_no_guarantee)
{
	struct world w;
	struct random r = random_seeded("sim_share");
	uint32_t within = 0;

	for (uint32_t i = 0; i < TIER_MAX_SPACES; i++)
		guaranteed[i] = GUARANTEED;
	w = world_open(MORE_SLABS);
	for (uint32_t i = 0; i < STEPS; i++)
		within += random_step(&w, &r, i);
	print_message("%u times a space was within its guarantee\n", within);
	assert_true(within > 0);
	world_close(&w);
}
