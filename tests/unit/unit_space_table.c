/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * unit_space_table - goal: a new space always finds a number, and the right space goes for it:
 * never an open one, and its number is not used again before its blocks are gone.
 * Method: spaces in this process, and a table of blocks that is an array of counts. Then random
 * steps, with invariants that must hold at every moment; the seed is printed.
 */
#include "tests/lib/lib_space.h"
#include "tests/lib/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/kvtier.h"
#include "tests/lib/random.h"

enum { MANY = 17, STEPS = 100000, MODELS = 400 };

FIXTURE(set_up)
{
	(void)home_set_up(state);
	return spaces_tenant(((struct home *)*state)->spaces, "other", home_text,
			     sizeof(home_text));
}

TEST_EACH(set_up, home_tear_down);

static int try_open(struct home *w, const char *tenant, uint32_t model, struct space **ret)
{
	struct wire_geometry g = { .dtype = KVTIER_BF16,
				   .layers = 1,
				   .kv_heads = 1,
				   .head_dim_k = 8,
				   .head_dim_v = 8,
				   .block_tokens = 16,
				   .world = 1 };

	snprintf(g.model, sizeof(g.model), "model-%u", model);
	return space_acquire(w->spaces, tenant, &g, ret, home_text, sizeof(home_text));
}

static struct space *open_of(struct home *w, const char *tenant, uint32_t model)
{
	struct space *space = NULL;

	if (try_open(w, tenant, model, &space))
		fail_msg("%s", home_text);
	return space;
}

/* Opened, given blocks, closed; its number. */
static uint32_t used(struct home *w, const char *tenant, uint32_t model, uint32_t blocks)
{
	struct space *space = open_of(w, tenant, model);
	const uint32_t number = space->number;

	w->blocks[number] += blocks;
	space_release(w->spaces, space);
	return number;
}

static int find(struct home *w, uint32_t which, uint64_t tick, uint32_t *ret)
{
	uint8_t owner[32] = { 0 };
	uint32_t variant;

	spaces_tenant_owner(w->spaces, "default", owner);
	memcpy(owner + 16, &which, sizeof(which));
	return space_found(w->spaces, owner, 4096, tick, ret, &variant);
}

static struct spaces_count count(const struct home *w)
{
	struct spaces_count ret;

	spaces_count(w->spaces, &ret);
	return ret;
}

static void drained(struct home *w, uint32_t number)
{
	assert_true(w->doomed[number]);
	w->blocks[number] = 0;
	spaces_sweep(w->spaces);
	assert_null(space_at(w->spaces, number));
}

TEST(closed_without_blocks_is_gone_at_once)
{
	struct home *w = *state;

	for (uint32_t i = 0; i < 1000; i++)
		assert_int_equal(used(w, "default", i, 0), 0);
	assert_int_equal(count(w).in_use, 0);
	assert_int_equal(count(w).recycled, 0);
	assert_false(count(w).recycling);
}

TEST(all_open_is_refused_with_a_sentence)
{
	struct home *w = *state;
	struct space *spaces[MAX], *space = NULL;

	for (uint32_t i = 0; i < MAX; i++)
		spaces[i] = open_of(w, "default", i);
	assert_int_equal(try_open(w, "default", MAX, &space), -ENOSPC);
	assert_null(space);
	assert_string_equal(home_text,
			    "64 spaces are open, the most there can be: see [index] max_spaces");
	space_release(w->spaces, spaces[7]);
	assert_int_equal(open_of(w, "default", MAX)->number, 7);
}

TEST(the_least_recent_goes_and_its_number_waits_for_its_blocks)
{
	struct home *w = *state;
	uint32_t numbers[MAX];

	for (uint32_t i = 0; i < MAX; i++)
		numbers[i] = used(w, "default", i, MANY);
	assert_int_equal(used(w, "default", 0, 0), numbers[0]); /* now the most recent */
	assert_int_equal(used(w, "default", MAX, MANY), MAX);
	assert_true(w->doomed[numbers[1]]);
	assert_true(space_at(w->spaces, numbers[1])->going);
	assert_int_equal(count(w).in_use, MAX);
	assert_int_equal(count(w).going, 1);
	assert_true(count(w).recycling);
	spaces_sweep(w->spaces); /* too early */
	assert_non_null(space_at(w->spaces, numbers[1]));
	drained(w, numbers[1]);
	assert_int_equal(count(w).going, 0);
	assert_int_equal(used(w, "default", MAX + 1, MANY), numbers[1]);
	assert_int_equal(count(w).recycled, 2);
}

TEST(those_with_few_blocks_go_before_those_with_many)
{
	struct home *w = *state;
	uint32_t many, few, none;

	many = used(w, "default", 1000, MANY);
	few = used(w, "default", 1001, 1);
	none = used(w, "default", 1002, 1);
	w->blocks[none] = 0; /* evicted since */
	for (uint32_t i = 3; i < MAX; i++)
		(void)used(w, "default", i, MANY);
	assert_int_equal(used(w, "default", MAX, MANY), none);
	(void)used(w, "default", MAX + 1, 1);
	assert_true(w->doomed[few]);
	assert_false(w->doomed[many]);
	/* However many a client opens with a block each. */
	for (uint32_t i = 0; i < 1000; i++) {
		(void)used(w, "default", 2000 + i, 1);
		for (uint32_t n = 0; n < NUMBERS; n++)
			if (w->doomed[n] && n != many)
				w->blocks[n] = 0;
	}
	assert_false(w->doomed[many]);
}

TEST(a_tenant_beyond_its_share_goes_first)
{
	struct home *w = *state;
	uint32_t other[8], doomed = 0;

	for (uint32_t i = 0; i < 8; i++)
		other[i] = used(w, "other", i, 1); /* few, and least recent */
	for (uint32_t i = 8; i < MAX + 8; i++)
		(void)used(w, "default", i, MANY);
	for (uint32_t i = 0; i < 8; i++)
		assert_false(w->doomed[other[i]]);
	for (uint32_t n = 0; n < NUMBERS; n++)
		doomed += w->doomed[n];
	assert_int_equal(doomed, 8);
}

TEST(a_going_space_that_is_opened_again_stays)
{
	struct home *w = *state;
	uint32_t numbers[MAX];
	struct space *space;

	for (uint32_t i = 0; i < MAX; i++)
		numbers[i] = used(w, "default", i, MANY);
	(void)used(w, "default", MAX, MANY);
	assert_true(w->doomed[numbers[0]]);
	space = open_of(w, "default", 0);
	assert_int_equal(space->number, numbers[0]);
	assert_false(space->going);
	assert_false(w->doomed[numbers[0]]);
	assert_true(w->doomed[numbers[1]]); /* in its place */
	assert_int_equal(count(w).in_use, MAX);
	spaces_sweep(w->spaces);
	assert_ptr_equal(space_at(w->spaces, numbers[0]), space);
}

TEST(all_numbers_going_is_said_and_passes)
{
	struct home *w = *state;
	struct space *space = NULL;
	uint32_t i = 0;

	for (; i < NUMBERS; i++)
		(void)used(w, "default", i, MANY);
	assert_int_equal(try_open(w, "default", i, &space), -EAGAIN);
	assert_non_null(strstr(home_text, "try again"));
	assert_int_equal(count(w).going, NUMBERS - MAX);
	for (uint32_t n = 0; n < NUMBERS; n++)
		if (w->doomed[n]) {
			w->blocks[n] = 0;
			break;
		}
	assert_int_equal(try_open(w, "default", i, &space), 0); /* sweeps by itself */
}

TEST(found_ones_go_before_opened_ones_the_least_recent_first)
{
	struct home *w = *state;
	uint32_t opened, found[MAX], number = 77;

	opened = used(w, "default", 1, MANY);
	for (uint32_t i = 1; i < MAX; i++) {
		assert_int_equal(find(w, i, 1000 + i, &found[i]), 0);
		w->blocks[found[i]] = MANY;
	}
	assert_int_equal(find(w, 1, 5000, &number), 0); /* a later record of the first */
	assert_int_equal(number, found[1]);
	/* Older than all that were found: it displaces none, and not the opened one. */
	assert_int_equal(find(w, MAX, 900, &number), -ENOSPC);
	assert_true(count(w).recycling);
	assert_int_equal(find(w, MAX, 1500, &number), 0);
	w->blocks[number] = MANY;
	assert_true(w->doomed[found[2]]);
	assert_int_equal(find(w, 2, 6000, &number), -ESTALE);
	for (uint32_t i = 3; i < MAX; i++) {
		(void)used(w, "default", 100 + i, MANY);
		assert_true(w->doomed[found[i]]);
	}
	assert_false(w->doomed[opened]);
	assert_false(w->doomed[found[1]]);
}

/* --- at random --- */

struct model {
	struct home *w;
	struct space *open[MODELS];
	uint32_t n_open;
};

static void turn(struct model *m, uint32_t model, const char *tenant)
{
	struct home *w = m->w;

	if (m->open[model]) {
		space_release(w->spaces, m->open[model]);
		m->open[model] = NULL;
		m->n_open--;
	} else if (m->n_open < MAX) {
		const int r = try_open(w, tenant, model, &m->open[model]);

		assert_true(r == 0 || r == -EAGAIN); /* never "full" */
		m->n_open += r == 0;
	} else {
		assert_true(try_open(w, tenant, model, &m->open[model]) < 0);
	}
}

static void change_blocks(struct home *w, struct random *random)
{
	const uint32_t n = random_below(random, NUMBERS);

	if (!space_at(w->spaces, n))
		return;
	if (!w->doomed[n])
		w->blocks[n] = random_below(random, 3) * MANY / 2;
	else
		w->blocks[n] = 0;
	if (random_below(random, 4) == 0)
		spaces_sweep(w->spaces);
}

static void holds(const struct model *m)
{
	const struct spaces_count c = count(m->w);
	uint32_t in_use = 0, going = 0;

	for (uint32_t n = 0; n < NUMBERS; n++) {
		const struct space *space = space_at(m->w->spaces, n);

		if (!space)
			continue;
		assert_int_equal(space->number, n);
		assert_int_equal(space->going, m->w->doomed[n]);
		assert_false(space->going && space->opened);
		in_use += !space->going;
		going += space->going;
	}
	assert_int_equal(in_use, c.in_use);
	assert_int_equal(going, c.going);
	assert_true(in_use <= MAX);
	for (uint32_t i = 0; i < MODELS; i++)
		if (m->open[i])
			assert_ptr_equal(space_at(m->w->spaces, m->open[i]->number), m->open[i]);
}

TEST(random_steps)
{
	struct random random = random_seeded("unit_space_table");
	static struct model m;
	uint32_t number;

	m = (struct model){ .w = *state };
	for (uint32_t step = 0; step < STEPS; step++) {
		const uint32_t what = random_below(&random, 10),
			       model = random_below(&random, MODELS);

		if (what < 6)
			turn(&m, model, model % 3 ? "default" : "other");
		else if (what < 9)
			change_blocks(m.w, &random);
		else
			(void)find(m.w, random_below(&random, MODELS),
				   random_below(&random, 1 << 20), &number);
		if (step % 50 == 0)
			holds(&m);
	}
}
