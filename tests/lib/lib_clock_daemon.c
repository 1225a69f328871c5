/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_clock_daemon.c - what makes of a test's kvtierd one that has the test's clock (lib_clock.h):
 * it is linked with wrap=clock_gettime,epoll_wait,stats_open,stats_heartbeat and with
 * wrap=pthread_cond_timedwait. The times in the stats page are the machine's: kvtierctl compares
 * them with that.
 */
#include "lib_clock.h"

#include <errno.h>
#include <pthread.h>
#include <time.h>

#include "daemon/stats/stats.h"
#include "wrap.h"

enum { SLICE_NS = 2000000 }; /* a thread that waits looks so often whether there was a jump */

__attribute__((constructor)) static void join_the_test(void)
{
	clock_join();
}

static uint64_t ns_of(const struct timespec *t)
{
	return (uint64_t)t->tv_sec * 1000000000u + (uint64_t)t->tv_nsec;
}

/* Wakes without a cause, as any wait for a condition may: its caller looks, and waits again. */
REAL(int, pthread_cond_timedwait,
     (pthread_cond_t * cond, pthread_mutex_t *mutex, const struct timespec *until))
{
	uint64_t now_ns, left_ns, slice_ns;
	struct timespec now, slice;
	int r;

	(void)clock_gettime(CLOCK_MONOTONIC, &now);
	now_ns = ns_of(&now);
	left_ns = ns_of(until) > now_ns ? ns_of(until) - now_ns : 0;
	slice_ns = now_ns - clock_ahead_ns() + (left_ns < SLICE_NS ? left_ns : SLICE_NS);
	slice.tv_sec = (time_t)(slice_ns / 1000000000u);
	slice.tv_nsec = (long)(slice_ns % 1000000000u);
	r = __real_pthread_cond_timedwait(cond, mutex, &slice);
	return r == ETIMEDOUT && left_ns > SLICE_NS ? 0 : r;
}

REAL(int, stats_open, (const char *path, uint64_t now_ns, struct stats **ret))
{
	return __real_stats_open(path, now_ns - clock_ahead_ns(), ret);
}

/* The last thing that a heartbeat writes. */
REAL(void, stats_heartbeat, (struct stats * stats, uint64_t now_ns))
{
	__real_stats_heartbeat(stats, now_ns - clock_ahead_ns());
	clock_looked_ns(now_ns);
}
