/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * Goal: form_trial.h: a space is coded after a trial that saved enough, left as it is after
 * another, and has a new trial each hour. Method: time that the test makes.
 */
#include "tests/lib/test.h"
#include "tiers/form_trial.h"

enum { PLAIN = 1000 };
#define SECOND 1000000000ull

static struct form_trials t;
static uint8_t space[32];
static uint64_t now;

FIXTURE_DO(begin, memset(&t, 0, sizeof(t)); memset(space, 7, sizeof(space)); now = SECOND);
TEST_EACH(begin, NULL);

/* So many blocks are asked about; those that are to be coded become `coded` bytes. Returns how
 * many were. */
static uint32_t blocks(uint32_t n, uint64_t coded)
{
	uint32_t ret = 0;

	for (uint32_t i = 0; i < n; i++) {
		if (!form_trial_asks(&t, space, now))
			continue;
		form_trial_learns(&t, space, PLAIN, coded, now);
		ret++;
	}
	return ret;
}

TEST_DO(a_space_that_saves_enough_is_coded, assert_int_equal(blocks(1000, 940), 1000));
TEST_DO(a_space_that_saves_less_has_its_trial,
	assert_int_equal(blocks(1000, 941), FORM_TRIAL_BLOCKS));

TEST(the_trial_goes_by_all_of_its_blocks)
{
	(void)blocks(FORM_TRIAL_BLOCKS / 2, PLAIN);
	(void)blocks(FORM_TRIAL_BLOCKS / 2, 800);
	assert_int_equal(blocks(10, 800), 10);
}

TEST(a_trial_comes_each_hour)
{
	(void)blocks(FORM_TRIAL_BLOCKS, PLAIN);
	now += FORM_TRIAL_AGAIN_NS - 1;
	assert_int_equal(blocks(10, 800), 0);
	now++;
	assert_int_equal(blocks(1000, 800), 1000);
	now += FORM_TRIAL_AGAIN_NS;
	assert_int_equal(blocks(1000, PLAIN), FORM_TRIAL_BLOCKS);
}

TEST(each_space_has_its_own)
{
	(void)blocks(FORM_TRIAL_BLOCKS, PLAIN);
	space[31] ^= 1;
	assert_int_equal(blocks(1000, 800), 1000);
	space[31] ^= 1;
	assert_int_equal(blocks(1, 800), 0);
}

TEST(the_space_asked_about_longest_ago_is_forgotten)
{
	for (uint32_t i = 0; i <= FORM_TRIAL_SPACES; i++, now++) {
		space[0] = (uint8_t)i;
		(void)blocks(FORM_TRIAL_BLOCKS, PLAIN);
	}
	space[0] = 1;
	assert_int_equal(blocks(1, PLAIN), 0);
	space[0] = 0;
	assert_int_equal(blocks(1, PLAIN), 1);
}

/* Blocks that were asked about before the trial was over are no part of the next. */
TEST(late_results_are_let_go)
{
	(void)blocks(FORM_TRIAL_BLOCKS, 800);
	for (uint32_t i = 0; i < 1000; i++)
		form_trial_learns(&t, space, PLAIN, PLAIN, now);
	assert_int_equal(blocks(1, 800), 1);
}
