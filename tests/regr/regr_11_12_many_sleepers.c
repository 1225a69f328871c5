/* SPDX-License-Identifier: Apache-2.0 */
/*
 * regr_11_12_many_sleepers.c - goal: a client that has thousands of threads asleep on its ring does
 * not take the core thread's time: a completion woke all of them, 0.9 s for 12,000. It wakes at
 * most as many as there can be ops. Method: SLEEPERS threads wait for the futex; one op completes;
 * those that woke are counted. They are told apart from those whose wait timed out. The next
 * completion wakes the next ones: nobody is forgotten.
 */
#include "tests/lib/lib_raw.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SLEEPERS = 700, MOST = 256, PATIENCE_MS = 20000 };

static _Atomic uint32_t asleep, woken;

static void *sleep_on_ring(void *arg)
{
	const struct raw *r = arg;
	const struct timespec patience = { .tv_sec = PATIENCE_MS / 1000 };

	asleep++;
	if (syscall(SYS_futex, &r->complete->news, FUTEX_WAIT, 0, &patience, NULL, 0) == 0)
		woken++;
	return NULL;
}

static void all_sleep(void)
{
	for (int ms = 0; asleep < SLEEPERS; ms++) {
		assert_true(ms < PATIENCE_MS);
		nap_ms(1);
	}
	/* from the counter into the kernel: one that comes late does not sleep, and is not
	 * counted */
	nap_ms(300);
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

static void a_completion_wakes_as_many_as_ops(void **state)
{
	pthread_t threads[SLEEPERS];
	pthread_attr_t small;
	struct wire_sqe nop = { .op = WIRE_OP_NOP, .op_id = 1 };
	struct daemon d;
	struct raw r;
	uint32_t first;

	(void)state;
	daemon_start(&d, "[host]\nbytes = 4M\nslab_bytes = 256K\nhuge_pages = no\n");
	raw_open(&r, d.socket);
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 64 << 10);
	for (uint32_t i = 0; i < SLEEPERS; i++)
		assert_int_equal(pthread_create(&threads[i], &small, sleep_on_ring, &r), 0);
	all_sleep();
	__atomic_store_n(&r.submit->sleepers, SLEEPERS, __ATOMIC_SEQ_CST);
	raw_put(&r, 0, &nop);
	raw_publish(&r, 1);
	raw_await(&r, 1);
	first = woken_settles();
	print_message("one completion woke %u of %d\n", first, SLEEPERS);
	assert_in_range(first, 1, MOST);
	for (uint32_t i = 1; i < 4; i++) {
		nop.op_id = i + 1;
		raw_put(&r, i, &nop);
		raw_publish(&r, i + 1);
		raw_await(&r, i + 1);
	}
	for (uint32_t i = 0; i < SLEEPERS; i++)
		pthread_join(threads[i], NULL);
	assert_true(woken > first);
	pthread_attr_destroy(&small);
	raw_close(&r);
	daemon_remove(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_completion_wakes_as_many_as_ops),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
