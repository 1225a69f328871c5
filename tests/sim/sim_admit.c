/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_admit - blocks are written to NVMe by the rules of writeback.h, and refused keys are
 * remembered as long as it says. Method: small sequences of questions, and a long one of random
 * keys. Hit rates: sim_admit_trace.c.
 */

#include "daemon/write/writeback.h"
#include "tests/lib/test.h"

enum { PLENTY = ADMIT_PLENTY_PERCENT, SHORT = ADMIT_PLENTY_PERCENT - 1 };

FIXTURE(set_up)
{
	*state = calloc(1, sizeof(struct admit));
	return *state ? 0 : -1;
}

FIXTURE_DO(tear_down, free(*state));

TEST_EACH(set_up, tear_down);

static bool ask(void **state, uint64_t number, uint32_t percent, bool parent_there)
{
	return admit_ask(*state, random_key_of(number).bytes, percent, parent_there);
}

TEST(with_plenty_all_are_admitted)
{
	for (uint64_t i = 0; i < 1000; i++) {
		assert_true(ask(state, i, 100, true));
		assert_true(ask(state, i, PLENTY, true));
	}
}

TEST(when_short_the_second_time_counts)
{
	for (uint64_t i = 0; i < 1000; i++)
		assert_false(ask(state, i, SHORT, true));
	for (uint64_t i = 0; i < 1000; i++)
		assert_true(ask(state, i, 0, true));
	assert_false(ask(state, 1000, 0, true));
}

TEST(without_its_parent_none_is_admitted)
{
	for (int times = 0; times < 3; times++) {
		assert_false(ask(state, 1, 100, false));
		assert_false(ask(state, 2, SHORT, false));
	}
}

TEST(refused_for_its_parent_is_remembered)
{
	assert_false(ask(state, 1, 100, false));
	assert_true(ask(state, 1, SHORT, true));
}

TEST(admitted_with_plenty_is_not_remembered)
{
	assert_true(ask(state, 1, 100, true));
	assert_false(ask(state, 1, SHORT, true));
}

/* A hot key does not push others out: not even one that was remembered in the same place as it. */
TEST(repetition_takes_one_place)
{
	const uint8_t one[32] = { 1, 2, 3, 4, 1 }, hot[32] = { 1, 2, 3, 4, 2 };

	assert_false(admit_ask(*state, one, SHORT, true));
	for (int i = 0; i < 100; i++)
		assert_int_equal(admit_ask(*state, hot, SHORT, true), i > 0);
	assert_true(admit_ask(*state, one, SHORT, true));
}

/* It knows nearly all random keys of the last half table, and no key before the last two tables. */
TEST(the_latest_are_remembered_and_the_old_forgotten)
{
	enum { ALL = 4 * ADMIT_REMEMBERED, PROBES = 1000 };
	const struct random random = random_seeded("sim_admit");
	uint32_t recent = 0, old = 0;

	for (uint64_t i = 0; i < ALL; i++)
		(void)ask(state, random.state + i, SHORT, true);
	for (uint64_t i = 0; i < PROBES; i++) {
		recent += ask(state, random.state + ALL - 1 - i * ADMIT_REMEMBERED / 2 / PROBES,
			      SHORT, true);
		old += ask(state, random.state + i * ADMIT_REMEMBERED / PROBES, SHORT, true);
	}
	printf("of %d: %u recent and %u old ones remembered\n", PROBES, recent, old);
	assert_true(recent >= PROBES * 95 / 100);
	assert_true(old <= PROBES / 100);
}

/* Pure: the same questions have the same answers. */
TEST(replays_alike)
{
	struct random random = random_seeded("replays_alike");
	struct admit *again = calloc(1, sizeof(*again));

	assert_non_null(again);
	for (int i = 0; i < 100000; i++) {
		const uint64_t number = random_below(&random, 20000);
		const uint32_t percent = random_below(&random, 101);
		const bool parent = random_below(&random, 4);

		assert_int_equal(ask(state, number, percent, parent),
				 ask((void **)&again, number, percent, parent));
	}
	free(again);
}
