/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * Goal: blocks that are queued to be written to NVMe are not dropped while something else can go or
 * they may still be written, and are when nothing else helps. Method: as unit_mover.
 */
#include "tests/lib/lib_mover.h"
#include "tests/lib/test.h"

#include <errno.h>

TEST(queued_blocks_are_spared_while_others_can_go)
{
	struct world w = world_open(1);
	struct extent where;
	uint32_t block[4];

	for (uint32_t i = 0; i < 4; i++)
		block[i] = world_store(&w, i, BIG, BLOCK_NONE);
	blocks_set_queued(w.blocks, block[0], true);
	assert_int_equal(mover_find_room(w.host, w.blocks, w.tick, BIG, MOVER_STEPS, &w.mover,
					 &where),
			 -EAGAIN);
	assert_int_equal(blocks_copies(w.blocks, TIER_HOST), 4);
	/* Not the least recent, but it loses nothing. */
	blocks_set_nvme(w.blocks, block[2],
			&(struct extent){ .tier = TIER_NVME, .slot = 7, .generation = 1 });
	assert_int_equal(mover_find_room(w.host, w.blocks, w.tick, BIG, MOVER_STEPS, &w.mover,
					 &where),
			 0);
	assert_int_equal(blocks_host_slot(w.blocks, block[2]), BLOCK_NONE);
	assert_int_equal(w.mover.counts.demoted_blocks, 1);
	assert_true(blocks_live(w.blocks, block[0]));
	world_close(&w);
}

TEST(queued_blocks_go_when_told_so)
{
	struct world w = world_open(1);
	struct extent where;
	uint32_t block[4];

	for (uint32_t i = 0; i < 4; i++)
		block[i] = world_store(&w, i, BIG, BLOCK_NONE);
	blocks_set_queued(w.blocks, block[0], true);
	assert_int_equal(world_make_room(&w, BIG, MOVER_STEPS, &where), 0);
	assert_false(blocks_live(w.blocks, block[0]));
	world_close(&w);
}
