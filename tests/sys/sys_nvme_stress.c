/* SPDX-License-Identifier: Apache-2.0 */
/* make: needs=kvtierd_tuned */
/* make: wrap=clock_gettime,epoll_wait needs=kvtierd_clock (the test holds the clock) */
/*
 * sys_nvme_stress.c - goal: when operations of all kinds overlap, no engine gets a wrong byte, and
 * nothing is left behind: no op, lease or slot, and no daemon that does not stop. Method: engines
 * in processes of their own, in three spaces, share chains that are far more than memory and store
 * hold. Their ops have deadlines of 1-50 ms and cancels, and engines die in the midst of ops.
 * Meanwhile kvtierctl evicts, verifies, flushes and purges. Segments are small, so that reclaim
 * never rests.
 */
#include "tests/lib/lib_disk.h"

#include "tests/lib/lib_storm.h"

enum { RUN_MS = 4000 };

static const char config[] =
	HOST("4M", "512K") "[nvme]\nbytes = 12M\nsegment_bytes = 512K\nqueue_depth = 4\n";

static void operate(struct storm *s)
{
	static const char *const commands[] = {
		"evict --all", "evict --bytes 1M", "evict --bytes 200K",
		"verify",      "verify --drop",    "flush",
		"disks",       "spaces",           "clients",
		"stats",
	};
	const uint32_t what = random_below(&s->random, 40);

	if (what == 0) /* seldom: it takes everything away */
		storm_command(s, "purge --tenant default");
	else if (what < 26)
		storm_command(s, commands[what % (sizeof(commands) / sizeof(commands[0]))]);
	else
		storm_engine_dies(s);
}

ON_BOTH_ENGINES(everything_at_once)
{
	const uint64_t until = now_ns() + RUN_MS * 1000000ull;
	struct storm s;

	disk_need(*state);
	storm_begin(&s, "sys_nvme_stress");
	disk_start(&s.d, *state, config);
	storm_engines_start(&s);
	while (now_ns() < until)
		operate(&s);
	storm_engines_stop(&s);
	storm_nothing_is_left(&s);
	printf("%llu ops, %u deaths, %llu blocks loaded (%llu from NVMe), %llu demoted, %llu "
	       "reclaimed\n",
	       (unsigned long long)s.score->ops, s.deaths, (unsigned long long)s.score->hits,
	       (unsigned long long)daemon_stat(&s.d, "tiers.nvme.hit_blocks_total"),
	       (unsigned long long)daemon_stat(&s.d, "tiers.host.demoted_blocks_total"),
	       (unsigned long long)daemon_stat(&s.d, "tiers.nvme.evicted_blocks_total"));
	daemon_remove(&s.d); /* a clean stop, exit status 0 */
	storm_end(&s);
}
