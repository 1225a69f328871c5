/* SPDX-License-Identifier: Apache-2.0 */
/* make: wrap=clock_gettime,epoll_wait (the test holds the clock) */
/*
 * soak_redis_lies.c - as the last case of fault_redis_lies.c, for SOAK_SECONDS (600): a Redis that
 * lies by chance. Memory may not grow. Not part of `make test`.
 */

#include "tests/lib/lib_redis_lies.h"
#include "tests/lib/test.h"

/* GROWTH_KIB: an allocator's whims explain so much. */
enum { SERVERS = 20, GROWTH_KIB = 16384 };

static struct random rnd;

static long resident_kib(void)
{
	FILE *f = fopen("/proc/self/statm", "re");
	long all, resident;

	assert_non_null(f);
	assert_int_equal(fscanf(f, "%ld %ld", &all, &resident), 2);
	(void)fclose(f);
	return resident * 4;
}

TEST(lies_by_chance)
{
	/* of the machine: the clock that the test holds runs ahead */
	const time_t until = time(NULL) + (time_t)env_number("SOAK_SECONDS", 600);
	uint64_t lies = redis_lies_by_chance(&rnd, SERVERS);
	const long before = resident_kib();

	while (time(NULL) < until)
		lies += redis_lies_by_chance(&rnd, SERVERS);
	printf("%llu lies; %ld KiB resident, %ld before\n", (unsigned long long)lies,
	       resident_kib(), before);
	assert_true(resident_kib() <= before + GROWTH_KIB);
}

TEST_FIRST(rnd = random_seeded("soak_redis_lies"));
