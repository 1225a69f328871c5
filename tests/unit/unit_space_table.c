/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * unit_space_table - goal: a new space always finds a number, and the right space goes for it:
 * never an open one, and its number is not used again before its blocks are gone.
 * Method: spaces in this process, and counts of their blocks. Then random
 * steps, with invariants that must hold at every moment; the seed is printed.
 */
#include "tests/lib/lib_space.h"

#include "client/kvtier.h"

enum { MANY = 17, STEPS = 100000, MODELS = 400 };

FIXTURE(set_up)
{
	(void)home_set_up(state);
	return spaces_tenant(home.spaces, "other", home_text, sizeof(home_text));
}

TEST_EACH(set_up, home_tear_down);

static int try_open(const char *tenant, uint32_t model, struct space **ret)
{
	struct wire_geometry g = { .dtype = KVTIER_BF16,
				   .layers = 1,
				   .kv_heads = 1,
				   .head_dim_k = 8,
				   .head_dim_v = 8,
				   .block_tokens = 16,
				   .world = 1 };

	snprintf(g.model, sizeof(g.model), "model-%u", model);
	return space_acquire(home.spaces, tenant, &g, ret, home_text, sizeof(home_text));
}

static struct space *open_of(const char *tenant, uint32_t model)
{
	struct space *space = NULL;

	if (try_open(tenant, model, &space))
		fail_msg("%s", home_text);
	return space;
}

/* Opened, given blocks, closed; its number. */
static uint32_t used(const char *tenant, uint32_t model, uint32_t blocks)
{
	struct space *space = open_of(tenant, model);
	const uint32_t number = space->number;

	home_set_blocks(number, home_blocks(number) + blocks);
	space_release(home.spaces, space);
	return number;
}

static int find(uint32_t which, uint64_t tick, uint32_t *ret)
{
	uint8_t owner[32] = { 0 };
	uint32_t variant;

	spaces_tenant_owner(home.spaces, "default", owner);
	memcpy(owner + 16, &which, sizeof(which));
	return space_found(home.spaces, owner, 4096, tick, ret, &variant);
}

static struct spaces_count count(void)
{
	struct spaces_count ret;

	spaces_count(home.spaces, &ret);
	return ret;
}

static void drained(uint32_t number)
{
	assert_true(home_doomed(number));
	home_set_blocks(number, 0);
	spaces_sweep(home.spaces);
	assert_null(space_at(home.spaces, number));
}

TEST(closed_without_blocks_is_gone_at_once)
{
	for (uint32_t i = 0; i < 1000; i++)
		assert_int_equal(used("default", i, 0), 0);
	assert_int_equal(count().in_use, 0);
	assert_int_equal(count().recycled, 0);
	assert_false(count().recycling);
}

TEST(all_open_is_refused_with_a_sentence)
{
	struct space *spaces[MAX], *space = NULL;

	for (uint32_t i = 0; i < MAX; i++)
		spaces[i] = open_of("default", i);
	assert_int_equal(try_open("default", MAX, &space), -ENOSPC);
	assert_null(space);
	assert_string_equal(home_text,
			    "64 spaces are open, the most there can be: see [index] max_spaces");
	space_release(home.spaces, spaces[7]);
	assert_int_equal(open_of("default", MAX)->number, 7);
}

TEST(the_least_recent_goes_and_its_number_waits_for_its_blocks)
{
	uint32_t numbers[MAX];

	for (uint32_t i = 0; i < MAX; i++)
		numbers[i] = used("default", i, MANY);
	assert_int_equal(used("default", 0, 0), numbers[0]); /* now the most recent */
	assert_int_equal(used("default", MAX, MANY), MAX);
	assert_true(home_doomed(numbers[1]));
	assert_true(space_at(home.spaces, numbers[1])->going);
	assert_int_equal(count().in_use, MAX);
	assert_int_equal(count().going, 1);
	assert_true(count().recycling);
	spaces_sweep(home.spaces); /* too early */
	assert_non_null(space_at(home.spaces, numbers[1]));
	drained(numbers[1]);
	assert_int_equal(count().going, 0);
	assert_int_equal(used("default", MAX + 1, MANY), numbers[1]);
	assert_int_equal(count().recycled, 2);
}

TEST(those_with_few_blocks_go_before_those_with_many)
{
	uint32_t many, few, none;

	many = used("default", 1000, MANY);
	few = used("default", 1001, 1);
	none = used("default", 1002, 1);
	home_set_blocks(none, 0); /* evicted since */
	for (uint32_t i = 3; i < MAX; i++)
		(void)used("default", i, MANY);
	assert_int_equal(used("default", MAX, MANY), none);
	(void)used("default", MAX + 1, 1);
	assert_true(home_doomed(few));
	assert_false(home_doomed(many));
	/* However many a client opens with a block each. */
	for (uint32_t i = 0; i < 1000; i++) {
		(void)used("default", 2000 + i, 1);
		for (uint32_t n = 0; n < NUMBERS; n++)
			if (home_doomed(n) && n != many)
				home_set_blocks(n, 0);
	}
	assert_false(home_doomed(many));
}

TEST(a_tenant_beyond_its_share_goes_first)
{
	uint32_t other[8], doomed = 0;

	for (uint32_t i = 0; i < 8; i++)
		other[i] = used("other", i, 1); /* few, and least recent */
	for (uint32_t i = 8; i < MAX + 8; i++)
		(void)used("default", i, MANY);
	for (uint32_t i = 0; i < 8; i++)
		assert_false(home_doomed(other[i]));
	for (uint32_t n = 0; n < NUMBERS; n++)
		doomed += home_doomed(n);
	assert_int_equal(doomed, 8);
}

TEST(a_going_space_that_is_opened_again_stays)
{
	uint32_t numbers[MAX];
	struct space *space;

	for (uint32_t i = 0; i < MAX; i++)
		numbers[i] = used("default", i, MANY);
	(void)used("default", MAX, MANY);
	assert_true(home_doomed(numbers[0]));
	space = open_of("default", 0);
	assert_int_equal(space->number, numbers[0]);
	assert_false(space->going);
	assert_false(home_doomed(numbers[0]));
	assert_true(home_doomed(numbers[1])); /* in its place */
	assert_int_equal(count().in_use, MAX);
	spaces_sweep(home.spaces);
	assert_ptr_equal(space_at(home.spaces, numbers[0]), space);
}

TEST(all_numbers_going_is_said_and_passes)
{
	struct space *space = NULL;
	uint32_t i = 0;

	for (; i < NUMBERS; i++)
		(void)used("default", i, MANY);
	assert_int_equal(try_open("default", i, &space), -EAGAIN);
	assert_non_null(strstr(home_text, "try again"));
	assert_int_equal(count().going, NUMBERS - MAX);
	for (uint32_t n = 0; n < NUMBERS; n++)
		if (home_doomed(n)) {
			home_set_blocks(n, 0);
			break;
		}
	assert_int_equal(try_open("default", i, &space), 0); /* sweeps by itself */
}

TEST(found_ones_go_before_opened_ones_the_least_recent_first)
{
	uint32_t opened, found[MAX], number = 77;

	opened = used("default", 1, MANY);
	for (uint32_t i = 1; i < MAX; i++) {
		assert_int_equal(find(i, 1000 + i, &found[i]), 0);
		home_set_blocks(found[i], MANY);
	}
	assert_int_equal(find(1, 5000, &number), 0); /* a later record of the first */
	assert_int_equal(number, found[1]);
	/* Older than all that were found: it displaces none, and not the opened one. */
	assert_int_equal(find(MAX, 900, &number), -ENOSPC);
	assert_true(count().recycling);
	assert_int_equal(find(MAX, 1500, &number), 0);
	home_set_blocks(number, MANY);
	assert_true(home_doomed(found[2]));
	assert_int_equal(find(2, 6000, &number), -ESTALE);
	for (uint32_t i = 3; i < MAX; i++) {
		(void)used("default", 100 + i, MANY);
		assert_true(home_doomed(found[i]));
	}
	assert_false(home_doomed(opened));
	assert_false(home_doomed(found[1]));
}

/* --- at random --- */

struct model {
	struct space *open[MODELS];
	uint32_t n_open;
};

static void turn(struct model *m, uint32_t model, const char *tenant)
{
	if (m->open[model]) {
		space_release(home.spaces, m->open[model]);
		m->open[model] = NULL;
		m->n_open--;
	} else if (m->n_open < MAX) {
		const int r = try_open(tenant, model, &m->open[model]);

		assert_true(r == 0 || r == -EAGAIN); /* never "full" */
		m->n_open += r == 0;
	} else {
		assert_true(try_open(tenant, model, &m->open[model]) < 0);
	}
}

static void change_blocks(struct random *random)
{
	const uint32_t n = random_below(random, NUMBERS);

	if (!space_at(home.spaces, n))
		return;
	if (!home_doomed(n))
		home_set_blocks(n, random_below(random, 3) * MANY / 2);
	else
		home_set_blocks(n, 0);
	if (random_below(random, 4) == 0)
		spaces_sweep(home.spaces);
}

static void holds(const struct model *m)
{
	const struct spaces_count c = count();
	uint32_t in_use = 0, going = 0;

	for (uint32_t n = 0; n < NUMBERS; n++) {
		const struct space *space = space_at(home.spaces, n);

		if (!space)
			continue;
		assert_int_equal(space->number, n);
		assert_int_equal(space->going, home_doomed(n));
		assert_false(space->going && space->opened);
		in_use += !space->going;
		going += space->going;
	}
	assert_int_equal(in_use, c.in_use);
	assert_int_equal(going, c.going);
	assert_true(in_use <= MAX);
	for (uint32_t i = 0; i < MODELS; i++)
		if (m->open[i])
			assert_ptr_equal(space_at(home.spaces, m->open[i]->number), m->open[i]);
}

TEST(random_steps)
{
	struct random random = random_seeded("unit_space_table");
	static struct model m;
	uint32_t number;

	m = (struct model){ 0 };
	for (uint32_t step = 0; step < STEPS; step++) {
		const uint32_t what = random_below(&random, 10),
			       model = random_below(&random, MODELS);

		if (what < 6)
			turn(&m, model, model % 3 ? "default" : "other");
		else if (what < 9)
			change_blocks(&random);
		else
			(void)find(random_below(&random, MODELS), random_below(&random, 1 << 20),
				   &number);
		if (step % 50 == 0)
			holds(&m);
	}
}
