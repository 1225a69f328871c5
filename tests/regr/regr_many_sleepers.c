/* SPDX-License-Identifier: Apache-2.0 */
/*
 * regr_many_sleepers.c - goal: a client that has thousands of threads asleep on its ring does not
 * take the core thread's time: a completion wakes at most as many as there can be ops. Method:
 * SLEEPERS threads wait for the futex; one op completes; those that woke, and did not time out, are
 * counted. The next completion wakes the next ones: nobody is forgotten. So it is with BURST ops
 * that complete in one iteration of the loop: they wake the most of one iteration, and in the next
 * iteration as many, but not that many for each op.
 */
#include "tests/lib/lib_raw.h"

#include <linux/futex.h>

/* BURST: as many entries as the daemon takes in an iteration. */
enum { SLEEPERS = 700, MOST = 256, BURST = 64, PATIENCE_S = 20 };

static _Atomic uint32_t asleep, woken;

static void *sleep_on_ring(void *arg)
{
	const struct raw *r = arg;
	const struct timespec patience = { .tv_sec = PATIENCE_S };

	asleep++;
	if (syscall(SYS_futex, &r->complete->news, FUTEX_WAIT, 0, &patience, NULL, 0) == 0)
		woken++;
	return NULL;
}

static uint32_t woken_settles(void)
{
	uint32_t before;

	do {
		before = woken;
		nap_ms(300);
	} while (woken != before);
	return before;
}

static struct {
	pthread_t threads[SLEEPERS];
	struct daemon d;
	struct raw r;
	uint32_t tail;
} w;

FIXTURE(begin)
{
	pthread_attr_t small;

	asleep = woken = 0;
	w.tail = 0;
	daemon_start(&w.d, SMALL_HOST);
	raw_open(&w.r, w.d.socket);
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 64 << 10);
	for (uint32_t i = 0; i < SLEEPERS; i++)
		assert_int_equal(pthread_create(&w.threads[i], &small, sleep_on_ring, &w.r), 0);
	pthread_attr_destroy(&small);
	AWAIT(asleep >= SLEEPERS);
	/* from the counter into the kernel: one that comes late does not sleep, and is not
	 * counted */
	nap_ms(300);
	__atomic_store_n(&w.r.submit->sleepers, SLEEPERS, __ATOMIC_SEQ_CST);
	return 0;
}

/* That many ops, which the daemon takes in one iteration of its loop, and completes there. */
static void complete(uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		const struct wire_sqe nop = { .op = WIRE_OP_NOP, .op_id = w.tail + 1 };

		raw_put(&w.r, w.tail++, &nop);
	}
	raw_publish(&w.r, w.tail);
	raw_await(&w.r, w.tail);
	raw_taken(&w.r, w.tail);
}

/* Each further completion wakes some; then all must be awake. */
FIXTURE(end)
{
	const uint32_t first = woken;

	for (uint32_t i = 1; i < 4; i++)
		complete(1);
	for (uint32_t i = 0; i < SLEEPERS; i++)
		pthread_join(w.threads[i], NULL);
	assert_true(woken > first);
	raw_close(&w.r);
	daemon_remove(&w.d);
	return 0;
}

TEST_EACH(begin, end);

static void wakes_at_most(uint32_t completions, uint32_t most)
{
	uint32_t n;

	complete(completions);
	n = woken_settles();
	print_message("%u completions woke %u of %d\n", completions, n, SLEEPERS);
	assert_in_range(n, 1, most);
}

TEST_DO(a_completion_wakes_as_many_as_ops, wakes_at_most(1, MOST));
TEST_DO(many_completions_in_a_turn_wake_no_more, wakes_at_most(BURST, 2 * MOST));
