/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unit_thread.c - goal: a wait with a deadline ends at its deadline, also when the wall clock is
 * set meanwhile. Method: the wall clock that a program reads here is a day ahead of the clock that
 * the kernel waits by, as if it had been set back after the deadline was computed. A wait by it
 * would last a day: an alarm ends the test.
 */
/* make: wrap=clock_gettime */
#include <semaphore.h>

#include "base/clock.h"
#include "base/thread.h"
#include "tests/lib/test.h"
#include "tests/lib/wrap.h"

enum { LIMIT_S = 60, DAY_S = 86400, WAIT_MS = 30 };

REAL(int, clock_gettime, (clockid_t clock, struct timespec *t))
{
	const int r = __real_clock_gettime(clock, t);

	if (clock == CLOCK_REALTIME)
		t->tv_sec += DAY_S;
	return r;
}

static void *wait_for_word(void *arg)
{
	while (sem_wait(arg))
		;
	return NULL;
}

TEST(a_thread_that_goes_on_is_left_after_its_time)
{
	const uint64_t began = clock_ns();
	pthread_t thread;
	sem_t word;

	assert_int_equal(sem_init(&word, 0, 0), 0);
	assert_int_equal(thread_start(&thread, 0, wait_for_word, &word), 0);
	assert_int_equal(thread_join_within(thread, ms_to_ns(WAIT_MS)), -ETIMEDOUT);
	assert_true(clock_ns() - began >= ms_to_ns(WAIT_MS));
	assert_int_equal(sem_post(&word), 0);
	assert_int_equal(thread_join_within(thread, UINT64_MAX), 0);
	(void)sem_destroy(&word);
}

TEST(a_condition_nobody_signals_is_left_at_its_deadline)
{
	pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	const uint64_t began = clock_ns();
	const struct timespec until = clock_timespec(began + ms_to_ns(WAIT_MS));
	pthread_cond_t cond;
	int r = 0;

	thread_cond_open(&cond);
	(void)pthread_mutex_lock(&lock);
	while (r == 0)
		r = pthread_cond_timedwait(&cond, &lock, &until);
	(void)pthread_mutex_unlock(&lock);
	assert_int_equal(r, ETIMEDOUT);
	assert_true(clock_ns() - began >= ms_to_ns(WAIT_MS));
	(void)pthread_cond_destroy(&cond);
}

TEST_FIRST((void)alarm(LIMIT_S));
