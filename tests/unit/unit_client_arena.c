/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * Goal: ranges of a client's arena never overlap, come back in any order, and are found whenever
 * they fit. Method: a byte a slot as the model, random takes and gives (seed printed).
 */

#include "client/lib/base/client_ring.h"
#include "tests/lib/test.h"

static struct arena arena;
static struct range r; /* the last that was taken */

TEST(fills_to_the_last_slot)
{
	arena_init(&arena, 64);
	for (uint32_t i = 0; i < 64; i += 16) {
		assert_int_equal(arena_take(&arena, 16, 16, &r), 0);
		assert_int_equal(r.first, i);
	}
	assert_int_equal(arena_take(&arena, 1, 1, &r), -EAGAIN);
}

TEST(gap_in_the_middle_is_found)
{
	arena_init(&arena, 48);
	for (int i = 0; i < 3; i++)
		assert_int_equal(arena_take(&arena, 16, 16, &r), 0);
	arena_give(&arena, 16);
	assert_int_equal(arena_take(&arena, 17, 17, &r), -EAGAIN);
	assert_int_equal(arena_take(&arena, 16, 16, &r), 0);
	assert_int_equal(r.first, 16);
}

TEST(largest_gap_when_less_will_do)
{
	arena_init(&arena, 20);
	assert_int_equal(arena_take(&arena, 4, 4, &r), 0);
	assert_int_equal(arena_take(&arena, 2, 2, &r), 0);
	arena_give(&arena, 0);
	assert_int_equal(arena_take(&arena, 1, 100, &r), 0);
	assert_int_equal(r.first, 6);
	assert_int_equal(r.n, 14);
}

TEST(as_many_ranges_as_ops)
{
	arena_init(&arena, 1000);
	for (int i = 0; i < KVTIER_MAX_OPS; i++)
		assert_int_equal(arena_take(&arena, 1, 1, &r), 0);
	assert_int_equal(arena_take(&arena, 1, 1, &r), -EAGAIN);
}

static uint32_t largest_gap(const uint8_t *model, uint32_t n)
{
	uint32_t best = 0, run = 0;

	for (uint32_t i = 0; i < n; i++) {
		run = model[i] ? 0 : run + 1;
		best = run > best ? run : best;
	}
	return best;
}

TEST(random_against_model)
{
	struct random random = random_seeded("unit_client_arena");
	static uint8_t model[500];
	struct range held[KVTIER_MAX_OPS];
	uint32_t n = 0;

	arena_init(&arena, sizeof(model));
	for (int step = 0; step < 20000; step++) {
		if (n && random_below(&random, 2)) {
			const uint32_t i = random_below(&random, n);

			arena_give(&arena, held[i].first);
			memset(&model[held[i].first], 0, held[i].n);
			held[i] = held[--n];
			continue;
		}
		const uint32_t least = 1 + random_below(&random, 40),
			       most = least + random_below(&random, 40);
		const int rc = n == KVTIER_MAX_OPS ? -EAGAIN : arena_take(&arena, least, most, &r);

		assert_int_equal(rc,
				 largest_gap(model, sizeof(model)) < least || n == KVTIER_MAX_OPS ?
					 -EAGAIN :
					 0);
		if (rc)
			continue;
		assert_in_range(r.n, least, most);
		assert_true(r.first + r.n <= sizeof(model));
		for (uint32_t i = 0; i < r.n; i++)
			assert_int_equal(model[r.first + i]++, 0);
		held[n++] = r;
	}
}
