/* SPDX-License-Identifier: Apache-2.0 */
/* make: wrap=clock_gettime,epoll_wait needs=kvtierd_clock (the test holds the clock) */
/*
 * soak_nvme_kill.c - goal and method of sys_nvme_kill.c, 10,000 times (KVTIER_KILLS): rare orders
 * of events show in thousands of lives. Not part of `make test`: takes half an hour.
 */
#include "tests/lib/lib_nvme_kill.h"

enum { KILLS = 10000, ROUND = 100 };

ON_BOTH_ENGINES(thousands_of_kills)
{
	const uint32_t kills = (uint32_t)env_number("KVTIER_KILLS", KILLS);
	struct random random = random_seeded("soak_nvme_kill");

	for (uint32_t done = 0, round = 0; done < kills / 2; done += ROUND, round++) {
		const uint64_t seed = random_next(&random);
		struct kill_counts n;

		printf("%s, %u of %u, seed %llu\n", (const char *)*state, done, kills / 2,
		       (unsigned long long)seed);
		kill_loop(*state, (enum kill_kind)(round % 3), ROUND, seed, &n);
		(void)fflush(stdout);
	}
}
