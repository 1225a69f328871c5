/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_clock_daemon.c - what makes of a test's kvtierd one that has the test's clock (lib_clock.h):
 * it is linked with wrap=clock_gettime,epoll_wait,stats_open,stats_heartbeat. The times in the
 * stats page are the machine's: kvtierctl compares them with that.
 */
#include "lib_clock.h"

#include "daemon/stats/stats.h"

int __real_stats_open(const char *path, uint64_t now_ns, struct stats **ret);
int __wrap_stats_open(const char *path, uint64_t now_ns, struct stats **ret);
void __real_stats_heartbeat(struct stats *stats, uint64_t now_ns);
void __wrap_stats_heartbeat(struct stats *stats, uint64_t now_ns);

__attribute__((constructor)) static void join_the_test(void)
{
	clock_join();
}

int __wrap_stats_open(const char *path, uint64_t now_ns, struct stats **ret)
{
	return __real_stats_open(path, now_ns - clock_ahead_ns(), ret);
}

/* The last thing that a heartbeat writes. */
void __wrap_stats_heartbeat(struct stats *stats, uint64_t now_ns)
{
	__real_stats_heartbeat(stats, now_ns - clock_ahead_ns());
	clock_looked_ns(now_ns);
}
