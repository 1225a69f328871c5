/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * Goal: the heir of an evicted block's slot keeps it, bytes and all, until he frees it. The mover
 * goes on until there is room, and never counts a slot as free that an heir has. Method: as
 * unit_mover, with heirs that take so many.
 */
#include "tests/lib/lib_mover.h"
#include "tests/lib/test.h"

#include <errno.h>

struct heir {
	struct world *w;
	uint32_t room, n, swaps;
	struct extent slots[8];
	uint32_t names[8];
};

static enum mover_heir inherit(void *arg, uint32_t block, const struct extent *slot)
{
	struct heir *heir = arg;

	assert_true(blocks_live(heir->w->blocks, block));
	assert_int_equal(blocks_host_slot(heir->w->blocks, block), slot->slot);
	if (heir->n < heir->room) {
		heir->names[heir->n] = *tier_address(heir->w->host, slot);
		heir->slots[heir->n++] = *slot;
		return MOVER_TAKEN;
	}
	if (!heir->swaps || !heir->n)
		return MOVER_NO_HEIR;
	heir->swaps--;
	tier_free(heir->w->host, &heir->slots[0]);
	heir->names[0] = *tier_address(heir->w->host, slot);
	heir->slots[0] = *slot;
	return MOVER_SWAPPED;
}

static void with(struct world *w, struct heir *heir, uint32_t room, uint32_t swaps)
{
	*heir = (struct heir){ .w = w, .room = room, .swaps = swaps };
	w->mover.inherit = inherit;
	w->mover.heir = heir;
}

static void bury(struct world *w, struct heir *heir)
{
	for (uint32_t i = 0; i < heir->n; i++)
		tier_free(w->host, &heir->slots[i]);
	world_close(w);
}

TEST(what_is_taken_is_not_given_to_anybody_else)
{
	struct world w = world_open(1);
	struct extent where;
	struct heir heir;

	for (uint32_t i = 0; i < 4; i++)
		(void)world_store(&w, i, BIG, BLOCK_NONE);
	with(&w, &heir, 2, 0);
	assert_int_equal(world_make_room(&w, BIG, MOVER_STEPS, &where), 0);
	assert_int_equal(heir.n, 2);
	memset(tier_address(w.host, &where), 0xee, BIG);
	for (uint32_t i = 0; i < 2; i++) {
		assert_int_not_equal(heir.slots[i].slot, where.slot);
		assert_int_equal(heir.names[i], i); /* the least recent first */
		assert_int_equal(*tier_address(w.host, &heir.slots[i]), i);
		assert_int_equal(slabs_owner(tier_slabs(w.host), &heir.slots[i]), SLABS_NO_OWNER);
	}
	assert_int_equal(blocks_copies(w.blocks, TIER_HOST), 1);
	tier_free(w.host, &where);
	bury(&w, &heir);
}

TEST(a_swap_gives_a_slot)
{
	struct world w = world_open(1);
	struct extent where;
	struct heir heir;

	for (uint32_t i = 0; i < 4; i++)
		(void)world_store(&w, i, BIG, BLOCK_NONE);
	with(&w, &heir, 1, 1);
	assert_int_equal(world_make_room(&w, BIG, MOVER_STEPS, &where), 0);
	assert_int_equal(heir.swaps, 0);
	assert_int_equal(heir.names[0], 1);
	assert_int_equal(blocks_copies(w.blocks, TIER_HOST), 2);
	tier_free(w.host, &where);
	bury(&w, &heir);
}

TEST(where_all_is_taken_there_is_no_room)
{
	struct world w = world_open(1);
	struct extent where;
	struct heir heir;

	for (uint32_t i = 0; i < 4; i++)
		(void)world_store(&w, i, BIG, BLOCK_NONE);
	with(&w, &heir, 8, 0);
	assert_int_equal(world_make_room(&w, BIG, MOVER_STEPS, &where), -ENOSPC);
	assert_int_equal(heir.n, 4);
	assert_int_equal(blocks_copies(w.blocks, TIER_HOST), 0);
	bury(&w, &heir);
}

TEST(a_demoted_block_stays_and_its_slot_is_inherited)
{
	struct world w = world_open(1);
	struct extent where;
	struct heir heir;
	uint32_t block[4];

	for (uint32_t i = 0; i < 4; i++)
		block[i] = world_store(&w, i, BIG, BLOCK_NONE);
	blocks_set_nvme(w.blocks, block[0],
			&(struct extent){ .tier = TIER_NVME, .slot = 7, .generation = 1 });
	with(&w, &heir, 1, 0);
	assert_int_equal(world_make_room(&w, BIG, MOVER_STEPS, &where), 0);
	assert_true(blocks_live(w.blocks, block[0]));
	assert_int_equal(blocks_host_slot(w.blocks, block[0]), BLOCK_NONE);
	assert_int_equal(heir.n, 1);
	tier_free(w.host, &where);
	bury(&w, &heir);
}
