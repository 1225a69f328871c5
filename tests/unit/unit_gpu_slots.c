/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unit_gpu_slots - the GPU tier's slots: addresses in the memory of their unit, memory that comes,
 * goes and comes again while slots are in use, and which slots have to be scrubbed. Method: the
 * tier alone, with addresses of no memory at all.
 */
#include "tests/lib/lib.h"

#include <errno.h>

#include "tiers/gpu/gpu.h"
#include "tiers/slabs.h"

enum { SLAB = 1 << 20, IMAGE = 300000, SPACE = 77, OTHER = 78 };

static const struct gpu_memory memory[2] = {
	{ .base = 0x7f0000000000, .bytes = 2 * SLAB, .generation = 1 },
	{ .base = 0x7f8000000000, .bytes = 4 * SLAB + 4096, .generation = 5 },
};

static struct tier *t;

FIXTURE(set_up)
{
	const struct tier_conf conf = { .units = 2, .slab_bytes = SLAB };
	char text[TIER_TEXT_BYTES];

	return tier_open(TIER_GPU, &conf, NULL, &t, text, sizeof(text));
}

FIXTURE(tear_down)
{
	tier_close(t);
	return 0;
}

TEST_EACH(set_up, tear_down);

static struct gpu_slot take(uint32_t unit, uint64_t space)
{
	struct gpu_slot slot;

	assert_int_equal(gpu_alloc(t, unit, IMAGE, space, &slot), 0);
	return slot;
}

TEST(a_unit_without_memory_has_no_slot)
{
	struct gpu_slot slot;

	assert_int_equal(gpu_alloc(t, 0, IMAGE, SPACE, &slot), -ENODEV);
	assert_int_equal(tier_state(t), TIER_STARTING);
	/* less than a slab is none */
	assert_int_equal(gpu_gain(t, 0,
				  &(struct gpu_memory){
					  .base = 4096, .bytes = SLAB - 1, .generation = 1 }),
			 0);
	assert_false(gpu_up(t, 0));
	assert_int_equal(t->capacity_bytes, 0);
}

TEST(slots_lie_in_the_memory_of_their_unit)
{
	for (uint32_t unit = 0; unit < 2; unit++) {
		const struct gpu_memory *m = &memory[unit];
		uint64_t last = 0;
		struct gpu_slot slot;
		uint32_t n = 0;

		assert_int_equal(gpu_gain(t, unit, m), 0);
		while (gpu_alloc(t, unit, IMAGE, SPACE, &slot) == 0) {
			assert_int_equal(slot.where.unit, unit);
			assert_int_equal(slot.generation, m->generation);
			assert_int_equal(slot.address % 4096, 0);
			assert_true(slot.address >= m->base && slot.bytes >= IMAGE &&
				    slot.address + slot.bytes <= m->base + m->bytes);
			assert_true(slot.address != last);
			last = slot.address;
			n++;
		}
		assert_int_equal(n, m->bytes / SLAB * (SLAB / slot.bytes));
	}
	assert_int_equal(t->capacity_bytes, 6 * SLAB);
	assert_int_equal(tier_state(t), TIER_UP);
}

TEST(memory_that_goes_takes_no_slot_away)
{
	struct gpu_slot slot, again;

	assert_int_equal(gpu_gain(t, 0, &memory[0]), 0);
	slot = take(0, SPACE);
	gpu_lose(t, 0);
	assert_true(gpu_leaving(t, 0));
	assert_false(gpu_slot_of(t, &slot.where, &again));
	assert_null(tier_address(t, &slot.where));
	assert_int_equal(gpu_alloc(t, 0, IMAGE, SPACE, &again), -ENODEV);
	gpu_settle(t, 0);
	assert_true(gpu_leaving(t, 0));
	tier_free(t, &slot.where);
	gpu_settle(t, 0);
	assert_false(gpu_leaving(t, 0));
	assert_int_equal(t->used_bytes, 0);
	assert_int_equal(t->capacity_bytes, 0);
	/* other memory: the old extent is no slot of it */
	assert_int_equal(gpu_gain(t, 0, &memory[1]), 0);
	assert_int_equal(gpu_generation(t, 0), memory[1].generation);
	assert_false(gpu_slot_of(t, &slot.where, &again));
}

/* A slab that one space has to itself needs no zeroes; a slab that two spaces have had does. */
TEST(what_another_space_wrote_is_scrubbed)
{
	struct gpu_slot slots[2 * SLAB / IMAGE], slot;
	uint32_t n = 0;

	assert_int_equal(gpu_gain(t, 0, &memory[0]), 0);
	while (gpu_alloc(t, 0, IMAGE, SPACE, &slots[n]) == 0)
		assert_false(slots[n++].scrub);
	tier_free(t, &slots[0].where);
	slot = take(0, SPACE);
	assert_false(slot.scrub);
	tier_free(t, &slot.where);
	slot = take(0, OTHER);
	assert_true(slot.scrub);
	tier_free(t, &slot.where);
	slot = take(0, SPACE); /* back again: the other one's bytes are there */
	assert_true(slot.scrub);
	/* also after the slab was free in between */
	tier_free(t, &slot.where);
	for (uint32_t i = 1; i < n; i++)
		tier_free(t, &slots[i].where);
	for (n = 0; gpu_alloc(t, 0, IMAGE, OTHER, &slots[n]) == 0; n++)
		assert_true(slots[n].scrub);
}
