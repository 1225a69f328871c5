/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sys_event_fd.c - goal: the descriptor of kvtier_event_fd() polls readable whenever kvtier_poll()
 * has something, again after each time, and stays the same when the daemon is another one. Method:
 * poll(2) and nothing but kvtier_poll().
 */
#include "tests/lib/lib.h"

enum { BLOCKS = 8, PAGES = 2 * BLOCKS, PATIENCE_MS = 20000 };

static struct {
	struct daemon d;
	struct engine e;
	struct kvtier_key keys[BLOCKS];
	int fd;
} w;

static uint64_t start_store(void)
{
	uint32_t pages[BLOCKS];
	uint64_t op = 0;

	pages_from(0, pages, BLOCKS);
	if (kvtier_store(w.e.space, w.keys, pages, BLOCKS, NULL, &op))
		return 0;
	return op;
}

/* Sleeps on the descriptor until a result came. */
static struct kvtier_result next_result(void)
{
	const uint64_t until = now_ns() + PATIENCE_MS * 1000000ull;
	struct kvtier_result result;

	for (;;) {
		struct pollfd p = { .fd = w.fd, .events = POLLIN };

		result = (struct kvtier_result){ .size = sizeof(result) };
		if (kvtier_poll(w.e.client, &result, 1) == 1)
			return result;
		if (now_ns() > until || poll(&p, 1, PATIENCE_MS) != 1)
			fail_msg("the descriptor never became readable");
	}
}

TEST(readable_at_each_completion)
{
	for (int i = 0; i < 500; i++) {
		const uint64_t op = start_store();

		assert_true(op != 0);
		assert_int_equal(next_result().op, op);
	}
}

TEST(quiet_when_there_is_nothing)
{
	struct kvtier_result result = { .size = sizeof(result) };
	struct pollfd p = { .fd = w.fd, .events = POLLIN };

	(void)start_store();
	(void)next_result();
	/* the op's WAKE may come later than its result */
	for (int wakes = 0; poll(&p, 1, 20) == 1; wakes++) {
		assert_true(wakes < 100);
		assert_int_equal(kvtier_poll(w.e.client, &result, 1), 0);
	}
	assert_int_equal(kvtier_poll(w.e.client, &result, 1), 0);
}

TEST(several_results_in_one_poll)
{
	struct kvtier_result results[8];
	uint32_t taken = 0;

	for (int i = 0; i < 8; i++)
		assert_true(start_store() != 0);
	while (taken < 8) {
		struct pollfd p = { .fd = w.fd, .events = POLLIN };
		int n;

		for (int i = 0; i < 8; i++)
			results[i] = (struct kvtier_result){ .size = sizeof(results[i]) };
		n = kvtier_poll(w.e.client, results, 8);
		assert_true(n >= 0);
		taken += (uint32_t)n;
		if (n == 0)
			assert_int_equal(poll(&p, 1, PATIENCE_MS), 1);
	}
	assert_int_equal(taken, 8);
}

TEST(says_that_the_daemon_died)
{
	uint64_t op;

	daemon_signal(&w.d, SIGSTOP);
	op = start_store();
	assert_true(op != 0);
	daemon_signal(&w.d, SIGKILL);
	assert_int_equal(next_result().status, -ECONNRESET);
}

TEST(same_descriptor_with_the_next_daemon)
{
	const uint64_t until = now_ns() + PATIENCE_MS * 1000000ull;
	uint64_t op = 0;

	daemon_signal(&w.d, SIGKILL);
	daemon_restart(&w.d);
	while (op == 0) {
		struct kvtier_result result = { .size = sizeof(result) };

		assert_true(now_ns() < until);
		(void)kvtier_poll(w.e.client, &result, 1); /* this call connects again */
		op = start_store();
		if (op != 0 && next_result().status == -ECONNRESET)
			op = 0;
		nap_ms(5);
	}
	assert_int_equal(kvtier_event_fd(w.e.client), w.fd);
	for (int i = 0; i < 50; i++) {
		op = start_store();
		assert_int_equal(next_result().op, op);
	}
}

FIXTURE(begin)
{
	daemon_start(&w.d, SMALL_HOST);
	engine_open(&w.e, w.d.socket, "engine", &tiny_fp8, PAGES);
	chain_keys(&w.e, 1, BLOCKS, w.keys);
	for (uint32_t i = 0; i < BLOCKS; i++)
		page_fill(&w.e, i, &w.keys[i], 0);
	w.fd = kvtier_event_fd(w.e.client);
	assert_true(w.fd >= 0);
	return 0;
}

FIXTURE_DO(end, engine_close(&w.e); daemon_remove(&w.d));

TEST_EACH(begin, end);
