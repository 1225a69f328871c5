/* SPDX-License-Identifier: Apache-2.0 */
/* thread.c - see thread.h. */
#include "thread.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <time.h>

#include "clock.h"

enum { NAP_NS = 200000 }; /* between two looks at a thread that shall end */

int thread_start(pthread_t *ret, size_t stack_bytes, void *(*run)(void *arg), void *arg)
{
	sigset_t all, before;
	pthread_attr_t attr;
	pthread_t thread;
	int error = pthread_attr_init(&attr);

	if (error)
		return -error;
	if (stack_bytes > 0)
		(void)pthread_attr_setstacksize(&attr, stack_bytes);
	if (!ret)
		(void)pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	(void)sigfillset(&all);
	(void)sigdelset(&all, SIGBUS);
	(void)pthread_sigmask(SIG_SETMASK, &all, &before);
	error = pthread_create(ret ? ret : &thread, &attr, run, arg);
	(void)pthread_sigmask(SIG_SETMASK, &before, NULL);
	(void)pthread_attr_destroy(&attr);
	return -error;
}

/* It looks again and again: glibc's timed join goes by the wall clock, and the ThreadSanitizer of
 * gcc 12 does not know pthread_clockjoin_np(). */
int thread_join_within(pthread_t thread, uint64_t ns)
{
	const struct timespec nap = { .tv_nsec = NAP_NS };
	const uint64_t began = clock_ns();
	bool late = false;

	while (pthread_tryjoin_np(thread, NULL) == EBUSY) {
		if (late)
			return -ETIMEDOUT;
		(void)nanosleep(&nap, NULL);
		late = clock_ns() - began >= ns;
	}
	return 0;
}

uint32_t thread_cpus(void)
{
	cpu_set_t set;

	return sched_getaffinity(0, sizeof(set), &set) ? 1 : (uint32_t)CPU_COUNT(&set);
}

void thread_cond_open(pthread_cond_t *ret)
{
	pthread_condattr_t monotonic;

	(void)pthread_condattr_init(&monotonic);
	(void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	(void)pthread_cond_init(ret, &monotonic);
	(void)pthread_condattr_destroy(&monotonic);
}
