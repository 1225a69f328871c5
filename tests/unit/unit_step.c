/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unit_step - goal: the table of steps refuses things that must not be held when a step begins, and
 * the run queue runs a task once for any number of pushes, in order, and never inside a push.
 * Method: every step with every set of held things, against rules that are said here in other
 * words.
 */

#include "base/list.h"
#include "daemon/op/task.h"
#include "tests/lib/test.h"

enum { HELD_ALL = HELD_SLOT | HELD_LEASE | HELD_FLIGHT | HELD_PLACE | HELD_LENT };

TEST(nothing_is_lent_when_a_step_begins)
{
	for (enum step step = 0; step < STEPS; step++)
		for (uint32_t held = 0; held <= HELD_ALL; held++)
			if (held & HELD_LENT)
				assert_false(step_allows(step, held));
}

TEST(a_flight_joins_no_flight)
{
	for (enum step step = FLIGHT_PROBE; step < STEPS; step++)
		for (uint32_t held = 0; held <= HELD_ALL; held++)
			if (held & HELD_FLIGHT)
				assert_false(step_allows(step, held));
}

/* A page is served from a block's slot or from a flight's: from one of them. A part that loads owns
 * no slot. */
TEST(a_load_owns_no_slot)
{
	for (enum step step = LOAD_LOOKUP; step <= LOAD_END; step++)
		for (uint32_t held = 0; held <= HELD_ALL; held++)
			if (held & (HELD_SLOT | HELD_PLACE))
				assert_false(step_allows(step, held));
	assert_true(step_allows(LOAD_LOOKUP, 0));
	assert_false(step_allows(LOAD_LOOKUP, HELD_LEASE));
	assert_false(step_allows(LOAD_LOOKUP, HELD_FLIGHT));
	assert_true(step_allows(LOAD_SERVE, HELD_LEASE));
	assert_true(step_allows(LOAD_SERVE, HELD_FLIGHT));
	assert_false(step_allows(LOAD_SERVE, 0));
	assert_false(step_allows(LOAD_SERVE, HELD_LEASE | HELD_FLIGHT));
	assert_false(step_allows(LOAD_KEEP, 0));
}

TEST(bytes_need_a_slot)
{
	const enum step need[] = { STORE_ENCODE, FLIGHT_READ, FLIGHT_VERIFY, FLIGHT_LAND };

	for (size_t i = 0; i < sizeof(need) / sizeof(*need); i++) {
		assert_true(step_allows(need[i], HELD_SLOT));
		assert_false(step_allows(need[i], 0));
	}
	assert_false(step_allows(STORE_PLACE, HELD_SLOT));
	assert_false(step_allows(FLIGHT_ROOM, HELD_SLOT));
	assert_false(step_allows(FLIGHT_MISS, HELD_SLOT));
	assert_false(step_allows(FLIGHT_PROBE, HELD_LEASE));
	assert_false(step_allows(STORE_ADMIT, HELD_PLACE));
}

/* A store that ends early still has its turn in the chain, a load has nothing more to do. */
TEST(an_early_end_leads_to_the_last_step)
{
	for (enum step step = 0; step < STEPS; step++) {
		const enum step early = step_rules[step].early;

		if (early == step)
			continue;
		assert_int_equal(early, step < LOAD_LOOKUP ? STORE_COMMIT : LOAD_END);
		for (uint32_t held = 0; held <= HELD_ALL; held++)
			if (step_allows(step, held))
				assert_true(step_allows(early, held));
	}
	assert_int_equal(step_rules[LOAD_CHECK].early, LOAD_CHECK);
	assert_int_equal(step_rules[STORE_COMMIT].early, STORE_COMMIT);
}

TEST(each_has_a_name_of_its_own)
{
	for (int a = 0; a < STEPS; a++)
		for (int b = 0; b < a; b++)
			assert_string_not_equal(step_rules[a].name, step_rules[b].name);
	for (int a = DONE + 1; a < WAITS; a++)
		for (int b = DONE + 1; b < a; b++)
			assert_string_not_equal(wait_names[a], wait_names[b]);
	for (int a = 0; a < SOURCES; a++)
		for (int b = 0; b < a; b++)
			assert_string_not_equal(source_names[a], source_names[b]);
}

/* --- the run queue --- */

struct job {
	struct task task;
	struct list *ready;
	struct job *wakes; /* when it runs */
	uint32_t ran, at;
};

static uint32_t running, order;

static void run(struct task *task)
{
	struct job *job = container_of(task, struct job, task);

	assert_int_equal(running++, 0);
	job->ran++;
	job->at = order++;
	if (job->wakes)
		task_push(job->ready, &job->wakes->task);
	running--;
}

TEST(a_push_is_no_call)
{
	struct list ready;
	struct job a = { .ready = &ready }, b = a, c = a;

	order = 0;
	list_open(&ready);
	a.wakes = &c;
	task_push(&ready, &a.task);
	task_push(&ready, &b.task);
	task_push(&ready, &a.task);
	assert_int_equal(a.ran + b.ran + c.ran, 0);
	assert_true(task_run(&ready, 10, run));
	assert_int_equal(a.ran, 1);
	assert_true(a.at < b.at && b.at < c.at);
	assert_true(list_empty(&ready));
	assert_false(task_run(&ready, 10, run));
}

TEST(a_budget_ends_an_iteration_and_a_removed_task_does_not_run)
{
	struct list ready;
	struct job a = { .ready = &ready }, b = a;

	list_open(&ready);
	a.wakes = &a; /* for ever */
	task_push(&ready, &a.task);
	task_push(&ready, &b.task);
	list_remove(&b.task.ready);
	list_remove(&b.task.ready);
	assert_true(task_run(&ready, 5, run));
	assert_int_equal(a.ran, 5);
	assert_int_equal(b.ran, 0);
	assert_false(list_empty(&ready));
}
