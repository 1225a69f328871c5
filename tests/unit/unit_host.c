/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Goal: slots of the host tier: classes, generations, owners, accounts, and its answers to
 * placement. Method: a tier of a few 64 KiB slabs, every answer computed by hand.
 */

#include "tests/lib/test.h"
#include "tiers/slabs.h"

enum { KIB = 1024, SLAB = 64 * KIB };

static struct tier *t;

static void open_tier(uint32_t slabs, uint32_t slab_bytes)
{
	const struct tier_conf conf = { .bytes = (uint64_t)slabs * slab_bytes,
					.slab_bytes = slab_bytes };
	char text[TIER_TEXT_BYTES];

	assert_int_equal(tier_open(TIER_HOST, &conf, NULL, &t, text, sizeof(text)), 0);
	AWAIT(tier_state(t) != TIER_STARTING);
}

FIXTURE_DO(begin, open_tier((uint32_t)(uintptr_t)*state, SLAB));
FIXTURE_DO(end, tier_close(t));
/* A case on a tier of so many slabs; or one that opens a tier of its own. */
#define ON_SLABS(n, name) TEST_GIVEN(name, begin, end, n)
#define ON_ITS_OWN(name)  TEST_WITH(name, NULL, end)

static struct extent take(uint32_t bytes)
{
	struct extent where;

	assert_int_equal(tier_alloc(t, bytes, &where), 0);
	return where;
}

ON_SLABS(1, all_slots_of_a_slab_are_apart)
{
	struct extent e[8], more;
	uint8_t *at[8];

	for (int i = 0; i < 8; i++) {
		e[i] = take(8 * KIB);
		at[i] = tier_address(t, &e[i]);
		memset(at[i], i, 8 * KIB);
	}
	assert_int_equal(tier_alloc(t, 8 * KIB, &more), -ENOSPC);
	for (int i = 0; i < 8; i++)
		for (int j = 0; j < 8 * KIB; j++)
			assert_int_equal(at[i][j], i);
}

ON_SLABS(4, counts_are_exact)
{
	const struct extent a = take(5000), b = take(30000);

	assert_int_equal(t->capacity_bytes, 4 * SLAB);
	assert_int_equal(t->used_bytes, 8 * KIB + 32 * KIB);
	assert_int_equal(t->extents, 2);
	tier_free(t, &a);
	assert_int_equal(t->used_bytes, 32 * KIB);
	tier_free(t, &b);
	assert_int_equal(t->used_bytes, 0);
	assert_int_equal(slabs_free_slabs(tier_slabs(t)), 4);
}

ON_ITS_OWN(capacity_is_whole_slabs)
{
	const struct tier_conf conf = { .bytes = 3 * SLAB + 5000, .slab_bytes = SLAB };
	char text[TIER_TEXT_BYTES];

	assert_int_equal(tier_open(TIER_HOST, &conf, NULL, &t, text, sizeof(text)), 0);
	assert_int_equal(t->capacity_bytes, 3 * SLAB);
}

ON_ITS_OWN(a_class_serves_what_is_a_sixteenth_smaller)
{
	struct extent big;

	open_tier(8, 1024 * KIB);
	big = take(68 * KIB);
	assert_int_equal(take(64 * KIB).class, big.class); /* 68 = 64 * 17/16 */
	assert_int_equal(slabs_slot_bytes(tier_slabs(t), 64 * KIB), 68 * KIB);
	assert_int_not_equal(take(60 * KIB).class, big.class);
	(void)take(132 * KIB);
	/* a tenth too large */
	assert_int_equal(slabs_class_of(tier_slabs(t), 120 * KIB), -1);
	/* larger than the slot */
	assert_int_equal(slabs_class_of(tier_slabs(t), 69 * KIB), -1);
	assert_int_equal(slabs_slot_bytes(tier_slabs(t), 69 * KIB), 72 * KIB);
}

ON_SLABS(1, larger_than_a_slab_is_refused)
{
	struct extent e;

	assert_int_equal(tier_alloc(t, SLAB + 1, &e), -E2BIG);
	assert_int_equal(tier_alloc(t, UINT32_MAX, &e), -E2BIG);
	assert_int_equal(slabs_slot_bytes(tier_slabs(t), SLAB + 1), 0);
	assert_int_equal(slabs_slot_bytes(tier_slabs(t), UINT32_MAX), 0);
	assert_int_equal(tier_alloc(t, SLAB, &e), 0);
}

ON_SLABS(1, an_empty_slab_changes_class)
{
	const struct extent a = take(8 * KIB);
	struct extent b;

	assert_int_equal(tier_alloc(t, 32 * KIB, &b), -ENOSPC);
	tier_free(t, &a);
	assert_int_equal(tier_alloc(t, 32 * KIB, &b), 0);
	assert_null(tier_address(t, &a)); /* its slab is another class's now */
}

ON_SLABS(1, a_freed_extent_is_stale_for_ever)
{
	const struct extent a = take(8 * KIB);
	struct extent b;

	tier_free(t, &a);
	assert_null(tier_address(t, &a));
	b = take(8 * KIB);
	assert_int_equal(b.slot, a.slot);
	assert_null(tier_address(t, &a));
	assert_non_null(tier_address(t, &b));
	assert_int_equal(tier_extent_bytes(t, &a), 0);
	assert_int_equal(tier_extent_bytes(t, &b), 8 * KIB);
}

ON_SLABS(1, a_forged_extent_has_no_address)
{
	const struct extent a = take(8 * KIB);
	struct extent e = a;

	e.slot = 0xffffffff;
	assert_null(tier_address(t, &e));
	e = a, e.slot = 7; /* never handed out */
	assert_null(tier_address(t, &e));
	e = a, e.class = 255;
	assert_null(tier_address(t, &e));
	e = a, e.tier = TIER_NVME;
	assert_null(tier_address(t, &e));
	e = a, e.generation++;
	assert_null(tier_address(t, &e));
}

static void free_twice(void *arg)
{
	const struct extent *a = arg;

	(void)take(8 * KIB); /* so that it is not merely the last one */
	tier_free(t, a);
	tier_free(t, a);
}

ON_SLABS(1, freeing_twice_aborts)
{
	struct extent a = take(8 * KIB);

	assert_true(test_aborts(free_twice, &a));
}

ON_SLABS(2, the_fullest_slab_is_filled_first)
{
	struct extent e[16];

	for (int i = 0; i < 16; i++)
		e[i] = take(8 * KIB);
	for (int i = 0; i < 6; i++)
		tier_free(t, &e[i]); /* first slab: 2 left */
	tier_free(t, &e[9]);         /* second: 7 left */
	assert_int_equal(take(8 * KIB).slot >> 16, e[9].slot >> 16);
	assert_int_equal(slabs_next(tier_slabs(t), e[0].class, SLABS_NONE), e[0].slot >> 16);
}

ON_SLABS(5, slabs_are_named_sparsest_first_each_once)
{
	struct extent e[40];
	uint32_t slab = SLABS_NONE, last_used = 0, n = 0;
	uint32_t used[5] = { 8, 8, 8, 8, 8 };

	for (int i = 0; i < 40; i++)
		e[i] = take(8 * KIB);
	for (uint32_t i = 0; i < 5; i++)
		for (uint32_t k = 0; k < (i * 3) % 5; k++) {
			tier_free(t, &e[i * 8 + k]);
			used[e[i * 8].slot >> 16]--;
		}
	while ((slab = slabs_next(tier_slabs(t), e[0].class, slab)) != SLABS_NONE) {
		assert_true(used[slab] >= last_used && used[slab] > 0);
		last_used = used[slab];
		used[slab] = 0;
		n++;
	}
	assert_int_equal(n, 5);
}

static bool free_each(void *arg, const struct extent *where)
{
	tier_free(arg, where);
	return true;
}

ON_SLABS(2, a_walk_may_free_all_it_sees)
{
	const struct extent a = take(8 * KIB);

	for (int i = 1; i < 8; i++)
		(void)take(8 * KIB);
	assert_true(slabs_walk(tier_slabs(t), a.slot >> 16, free_each, t));
	assert_int_equal(t->extents, 0);
	assert_int_equal(slabs_free_slabs(tier_slabs(t)), 2);
}

ON_SLABS(1, an_owner_stays_with_its_slot)
{
	struct extent a = take(8 * KIB), b = take(8 * KIB);

	assert_int_equal(slabs_owner(tier_slabs(t), &a), SLABS_NO_OWNER);
	tier_set_owner(t, &a, 7);
	assert_int_equal(slabs_owner(tier_slabs(t), &a), 7);
	assert_int_equal(slabs_owner(tier_slabs(t), &b), SLABS_NO_OWNER);
	tier_free(t, &a);
	a = take(8 * KIB);
	assert_int_equal(slabs_owner(tier_slabs(t), &a), SLABS_NO_OWNER);
}

ON_ITS_OWN(with_all_classes_taken_a_larger_one_serves)
{
	struct extent e[64], x;

	open_tier(66, 512 * KIB);
	for (uint32_t i = 0; i < 64; i++)
		/* ascending: nothing that exists is large enough */
		e[i] = take((i + 1) * 4 * KIB);
	assert_int_equal(slabs_classes(tier_slabs(t)), TIER_MAX_CLASSES);
	assert_int_equal(tier_alloc(t, 65 * 4 * KIB, &x), -ENOSPC);
	tier_free(t, &e[1]); /* the class of 8 KiB may become another */
	assert_int_equal(tier_alloc(t, 65 * 4 * KIB, &x), 0);
	assert_int_equal(take(8 * KIB).class, e[2].class);
}

ON_ITS_OWN(more_slots_than_a_slot_number_holds)
{
	struct extent first, last, more;
	struct tier_class_view view;

	open_tier(1, 272 << 20); /* 69,632 slots of 4 KiB: 65,536 can be named */
	first = last = take(1);
	slabs_class_view(tier_slabs(t), first.class, &view);
	assert_int_equal(view.slots_per_slab, TIER_MAX_SLAB_SLOTS);
	for (uint32_t i = 1; i < TIER_MAX_SLAB_SLOTS; i++)
		last = take(4096);
	assert_int_equal(last.slot, 0xffff);
	assert_int_equal(tier_alloc(t, 4096, &more), -ENOSPC);
	tier_free(t, &last);
	assert_int_equal(take(4096).slot, 0xffff);
}

ON_SLABS(2, a_slot_in_use_has_its_extent_again)
{
	const struct extent a = take(8 * KIB), other = take(8 * KIB), b = take(32 * KIB);
	struct extent e = { 0 };

	assert_int_equal(other.slot >> 16, a.slot >> 16);
	assert_int_equal(tier_extent(t, a.slot, &e), 0);
	assert_memory_equal(&e, &a, sizeof(e));
	assert_int_equal(tier_extent(t, b.slot, &e), 0);
	assert_memory_equal(&e, &b, sizeof(e));
	tier_free(t, &a);
	assert_int_equal(tier_extent(t, a.slot, &e), -ESTALE);
	assert_memory_equal(&e, &b, sizeof(e));                         /* untouched */
	assert_int_equal(tier_extent(t, b.slot + 1, &e), -ESTALE);      /* never handed out */
	assert_int_equal(tier_extent(t, b.slot | 0xffff, &e), -ESTALE); /* nor ever will be */
	assert_int_equal(tier_extent(t, 2 << 16, &e), -ESTALE);
	assert_int_equal(tier_extent(t, 0xffffffff, &e), -ESTALE);
}

ON_SLABS(3, its_memory_is_one_mapping)
{
	const struct extent a = take(SLAB);
	uint64_t bytes;
	const uint8_t *memory = tier_memory(t, &bytes);

	assert_int_equal(bytes, 3 * SLAB);
	assert_ptr_equal(memory + (a.slot >> 16) * SLAB, tier_address(t, &a));
	assert_null(tier_memory(NULL, &bytes));
	assert_int_equal(bytes, 0);
}
