/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Goal: slots of the host tier: classes, generations, owners, accounts, and its answers to
 * placement. Method: a tier of a few 64 KiB slabs, every answer computed by hand.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/lib/test.h"
#include "tiers/slabs.h"

enum { KIB = 1024, SLAB = 64 * KIB };

static struct tier *open_tier(uint32_t slabs, uint32_t slab_bytes)
{
	const struct tier_conf conf = { .bytes = (uint64_t)slabs * slab_bytes,
					.slab_bytes = slab_bytes,
					.prefault_threads = 2 };
	char text[TIER_TEXT_BYTES];
	struct tier *t;

	assert_int_equal(tier_open(TIER_HOST, &conf, NULL, &t, text, sizeof(text)), 0);
	while (tier_state(t) == TIER_STARTING)
		(void)nanosleep(&(struct timespec){ .tv_nsec = 100000 }, NULL);
	return t;
}

static struct extent take(struct tier *t, uint32_t bytes)
{
	struct extent where;

	assert_int_equal(tier_alloc(t, bytes, &where), 0);
	return where;
}

TEST(all_slots_of_a_slab_are_apart)
{
	struct tier *t = open_tier(1, SLAB);
	struct extent e[8], more;
	uint8_t *at[8];

	for (int i = 0; i < 8; i++) {
		e[i] = take(t, 8 * KIB);
		at[i] = tier_address(t, &e[i]);
		memset(at[i], i, 8 * KIB);
	}
	assert_int_equal(tier_alloc(t, 8 * KIB, &more), -ENOSPC);
	for (int i = 0; i < 8; i++)
		for (int j = 0; j < 8 * KIB; j++)
			assert_int_equal(at[i][j], i);
	tier_close(t);
}

TEST(counts_are_exact)
{
	struct tier *t = open_tier(4, SLAB);
	const struct extent a = take(t, 5000), b = take(t, 30000);

	assert_int_equal(t->capacity_bytes, 4 * SLAB);
	assert_int_equal(t->used_bytes, 8 * KIB + 32 * KIB);
	assert_int_equal(t->extents, 2);
	tier_free(t, &a);
	assert_int_equal(t->used_bytes, 32 * KIB);
	tier_free(t, &b);
	assert_int_equal(t->used_bytes, 0);
	assert_int_equal(t->allocs_total, 2);
	assert_int_equal(t->frees_total, 2);
	assert_int_equal(slabs_free_slabs(tier_slabs(t)), 4);
	tier_close(t);
}

TEST(capacity_is_whole_slabs)
{
	const struct tier_conf conf = { .bytes = 3 * SLAB + 5000, .slab_bytes = SLAB };
	char text[TIER_TEXT_BYTES];
	struct tier *t;

	assert_int_equal(tier_open(TIER_HOST, &conf, NULL, &t, text, sizeof(text)), 0);
	assert_int_equal(t->capacity_bytes, 3 * SLAB);
	tier_close(t);
}

TEST(a_class_serves_what_is_a_sixteenth_smaller)
{
	struct tier *t = open_tier(8, 1024 * KIB);
	const struct extent big = take(t, 68 * KIB);

	assert_int_equal(take(t, 64 * KIB).class, big.class); /* 68 = 64 * 17/16 */
	assert_int_equal(slabs_slot_bytes(tier_slabs(t), 64 * KIB), 68 * KIB);
	assert_int_not_equal(take(t, 60 * KIB).class, big.class);
	(void)take(t, 132 * KIB);
	/* a tenth too large */
	assert_int_equal(slabs_class_of(tier_slabs(t), 120 * KIB), -1);
	/* larger than the slot */
	assert_int_equal(slabs_class_of(tier_slabs(t), 69 * KIB), -1);
	assert_int_equal(slabs_slot_bytes(tier_slabs(t), 69 * KIB), 72 * KIB);
	tier_close(t);
}

TEST(larger_than_a_slab_is_refused)
{
	struct tier *t = open_tier(1, SLAB);
	struct extent e;

	assert_int_equal(tier_alloc(t, SLAB + 1, &e), -E2BIG);
	assert_int_equal(tier_alloc(t, UINT32_MAX, &e), -E2BIG);
	assert_int_equal(slabs_slot_bytes(tier_slabs(t), SLAB + 1), 0);
	assert_int_equal(slabs_slot_bytes(tier_slabs(t), UINT32_MAX), 0);
	assert_int_equal(tier_alloc(t, SLAB, &e), 0);
	tier_close(t);
}

TEST(an_empty_slab_changes_class)
{
	struct tier *t = open_tier(1, SLAB);
	const struct extent a = take(t, 8 * KIB);
	struct extent b;

	assert_int_equal(tier_alloc(t, 32 * KIB, &b), -ENOSPC);
	tier_free(t, &a);
	assert_int_equal(tier_alloc(t, 32 * KIB, &b), 0);
	assert_null(tier_address(t, &a)); /* its slab is another class's now */
	tier_close(t);
}

TEST(a_freed_extent_is_stale_for_ever)
{
	struct tier *t = open_tier(1, SLAB);
	const struct extent a = take(t, 8 * KIB);
	struct extent b;

	tier_free(t, &a);
	assert_null(tier_address(t, &a));
	b = take(t, 8 * KIB);
	assert_int_equal(b.slot, a.slot);
	assert_null(tier_address(t, &a));
	assert_non_null(tier_address(t, &b));
	assert_int_equal(tier_extent_bytes(t, &a), 0);
	assert_int_equal(tier_extent_bytes(t, &b), 8 * KIB);
	tier_close(t);
}

TEST(a_forged_extent_has_no_address)
{
	struct tier *t = open_tier(1, SLAB);
	const struct extent a = take(t, 8 * KIB);
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
	tier_close(t);
}

TEST(freeing_twice_aborts)
{
	struct tier *t = open_tier(1, SLAB);
	const struct extent a = take(t, 8 * KIB);
	pid_t child;
	int status;

	child = fork();
	if (child == 0) {
		(void)signal(SIGABRT, SIG_DFL);
		(void)close(2);
		(void)take(t, 8 * KIB); /* so that it is not merely the last one */
		tier_free(t, &a);
		tier_free(t, &a);
		_exit(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
	tier_close(t);
}

TEST(the_fullest_slab_is_filled_first)
{
	struct tier *t = open_tier(2, SLAB);
	struct extent e[16];

	for (int i = 0; i < 16; i++)
		e[i] = take(t, 8 * KIB);
	for (int i = 0; i < 6; i++)
		tier_free(t, &e[i]); /* first slab: 2 left */
	tier_free(t, &e[9]);         /* second: 7 left */
	assert_int_equal(take(t, 8 * KIB).slot >> 16, e[9].slot >> 16);
	assert_int_equal(slabs_next(tier_slabs(t), e[0].class, SLABS_NONE), e[0].slot >> 16);
	tier_close(t);
}

TEST(slabs_are_named_sparsest_first_each_once)
{
	struct tier *t = open_tier(5, SLAB);
	struct extent e[40];
	uint32_t slab = SLABS_NONE, last_used = 0, n = 0;
	uint32_t used[5] = { 8, 8, 8, 8, 8 };

	for (int i = 0; i < 40; i++)
		e[i] = take(t, 8 * KIB);
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
	tier_close(t);
}

static bool free_each(void *arg, const struct extent *where)
{
	tier_free(arg, where);
	return true;
}

TEST(a_walk_may_free_all_it_sees)
{
	struct tier *t = open_tier(2, SLAB);
	const struct extent a = take(t, 8 * KIB);

	for (int i = 1; i < 8; i++)
		(void)take(t, 8 * KIB);
	assert_true(slabs_walk(tier_slabs(t), a.slot >> 16, free_each, t));
	assert_int_equal(t->extents, 0);
	assert_int_equal(slabs_free_slabs(tier_slabs(t)), 2);
	tier_close(t);
}

TEST(an_owner_stays_with_its_slot)
{
	struct tier *t = open_tier(1, SLAB);
	struct extent a = take(t, 8 * KIB), b = take(t, 8 * KIB);

	assert_int_equal(slabs_owner(tier_slabs(t), &a), SLABS_NO_OWNER);
	tier_set_owner(t, &a, 7);
	assert_int_equal(slabs_owner(tier_slabs(t), &a), 7);
	assert_int_equal(slabs_owner(tier_slabs(t), &b), SLABS_NO_OWNER);
	tier_free(t, &a);
	a = take(t, 8 * KIB);
	assert_int_equal(slabs_owner(tier_slabs(t), &a), SLABS_NO_OWNER);
	tier_close(t);
}

TEST(with_all_classes_taken_a_larger_one_serves)
{
	struct tier *t = open_tier(66, 512 * KIB);
	struct extent e[64], x;

	for (uint32_t i = 0; i < 64; i++)
		/* ascending: nothing that exists is large enough */
		e[i] = take(t, (i + 1) * 4 * KIB);
	assert_int_equal(slabs_classes(tier_slabs(t)), TIER_MAX_CLASSES);
	assert_int_equal(tier_alloc(t, 65 * 4 * KIB, &x), -ENOSPC);
	tier_free(t, &e[1]); /* the class of 8 KiB may become another */
	assert_int_equal(tier_alloc(t, 65 * 4 * KIB, &x), 0);
	assert_int_equal(take(t, 8 * KIB).class, e[2].class);
	tier_close(t);
}

TEST(more_slots_than_a_slot_number_holds)
{
	/* 69,632 slots of 4 KiB: 65,536 can be named */
	struct tier *t = open_tier(1, 272 << 20);
	struct extent first = take(t, 1), last = first, more;
	struct tier_class_view view;

	slabs_class_view(tier_slabs(t), first.class, &view);
	assert_int_equal(view.slots_per_slab, TIER_MAX_SLAB_SLOTS);
	for (uint32_t i = 1; i < TIER_MAX_SLAB_SLOTS; i++)
		last = take(t, 4096);
	assert_int_equal(last.slot, 0xffff);
	assert_int_equal(tier_alloc(t, 4096, &more), -ENOSPC);
	tier_free(t, &last);
	assert_int_equal(take(t, 4096).slot, 0xffff);
	tier_close(t);
}

TEST(a_slot_in_use_has_its_extent_again)
{
	struct tier *t = open_tier(2, SLAB);
	const struct extent a = take(t, 8 * KIB), other = take(t, 8 * KIB), b = take(t, 32 * KIB);
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
	tier_close(t);
}

struct ear {
	struct tier_ready listener;
	uint8_t *from, *to; /* the pieces that it was told, one after the other */
	uint32_t calls;
};

static void heard(struct tier_ready *listener, void *base, uint64_t bytes)
{
	struct ear *ear = (struct ear *)listener;

	if (!ear->from)
		ear->from = ear->to = base;
	assert_ptr_equal(ear->to, base);
	ear->to += bytes;
	ear->calls++;
}

TEST(all_that_is_mapped_is_told_at_once)
{
	struct tier *t = open_tier(3, SLAB);
	const struct extent a = take(t, SLAB);
	struct ear ear = { .listener = { .ready = heard, .mapped = true } };

	tier_listen(t, &ear.listener);
	assert_int_equal(ear.calls, 1);
	assert_int_equal(ear.to - ear.from, 3 * SLAB);
	assert_ptr_equal(ear.from + (a.slot >> 16) * SLAB, tier_address(t, &a));
	(void)take(t, SLAB);
	assert_int_equal(ear.calls, 1);
	tier_unlisten(t, &ear.listener);
	tier_close(t);
}

TEST(what_is_ready_is_told_slab_by_slab_each_once)
{
	struct tier *t = open_tier(5, SLAB);
	struct ear ear = { .listener = { .ready = heard } }, late = ear, gone = ear;
	uint32_t told;

	tier_listen(t, &ear.listener);
	/* at least one, after which open() returns; the others come as they are looked for */
	told = ear.calls;
	assert_in_range(told, 1, 5);
	tier_listen(t, &gone.listener);
	tier_unlisten(t, &gone.listener);
	gone.calls = 0;
	assert_int_equal(slabs_free_slabs(tier_slabs(t)), 5);
	tier_listen(t, &late.listener);
	assert_int_equal(ear.calls, 5);
	assert_int_equal(late.calls, 5);
	assert_int_equal(gone.calls, 0);
	assert_int_equal(ear.to - ear.from, 5 * SLAB);
	assert_ptr_equal(late.from, ear.from);
	tier_unlisten(t, &late.listener);
	tier_unlisten(t, &ear.listener);
	tier_close(t);
}
