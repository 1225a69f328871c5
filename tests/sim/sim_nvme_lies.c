/* SPDX-License-Identifier: Apache-2.0 */
/* make: seconds=8 */
/*
 * sim_nvme_lies - goal: a disk that says "written" and lost it, wrote it elsewhere, or answers a
 * read with what was there before, costs blocks and never gives a wrong byte; the log goes on, and
 * starts again. Method: a workload of every deed of the log, with the n-th I/O a lie, n = 1, 2, ...
 * until a run has no n-th I/O, of each kind; then 10,000 lies by chance, one I/O in eight. Seed
 * printed.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tiers/nvme/nvme_log_inner.h"
#include "tests/lib/lib_nvme.h"

enum { SEGMENTS = 6, BLOCKS = 36, LATER = 1000, LIES = 10000 };

static struct kit kit;
static uint64_t seed;

/* Every load compares: kit_load() asserts on a wrong byte. */
static void workload(uint32_t from)
{
	for (uint32_t i = from; i < from + BLOCKS; i++) {
		kit_forget(&kit, i); /* of an earlier life */
		(void)kit_store(&kit, i);
		if (i > from + 8 && kit.block[from + 6].location != NVME_NOWHERE)
			kit_touch(&kit, from + 6);
		if (i == from + 20)
			(void)kit_purge(&kit, 1);
		if (i % 3 == 2)
			(void)kit_load(&kit, i - 2);
	}
	kit_run(&kit);
	(void)kit_flush(&kit, false);
	(void)kit_load_all(&kit);
	kit_check(&kit);
}

static void honest_again(void)
{
	kit.sim.lie_nth = kit.sim.lie_one_in = 0;
	kit.sim.time_ns += 1000000000;
	kit_run(&kit);
}

static void start_again(enum sim_crash how)
{
	kit_forget_log(&kit);
	disk_sim_crash(&kit.sim, how);
	(void)kit_recover(&kit);
}

/* A lie costs one superblock at most, so the log starts; what it finds then is right or a miss. */
static void it_goes_on(void)
{
	honest_again();
	for (int i = 0; i < SIM_CRASHES; i++) {
		start_again((enum sim_crash)i);
		assert_int_equal(nvme_log_state(kit.log), NVME_UP);
		workload(LATER);
		(void)kit_load_all(&kit);
		kit_check(&kit);
	}
}

static void at_every_io(enum sim_lie lie)
{
	uint64_t told = 1, n;

	for (n = 1; told; n++) {
		kit_open(&kit, SEGMENTS, seed + n);
		assert_int_equal(kit_format(&kit), 0);
		for (uint32_t i = 2000; i < 2010; i++)
			assert_int_equal(kit_store(&kit, i), 0);
		kit_run(&kit);
		kit.sim.lie = lie;
		kit.sim.lie_nth = kit.sim.submits + n;
		start_again(SIM_KEEP_ALL);
		if (nvme_log_state(kit.log) == NVME_UP)
			workload(0);
		told = kit.sim.lies;
		it_goes_on();
		kit_close(&kit);
	}
	printf("%d: %llu I/Os\n", (int)lie, (unsigned long long)n - 1);
}

static void a_write_is_lost(void **state)
{
	(void)state;
	at_every_io(SIM_LOST);
}

static void a_write_goes_elsewhere(void **state)
{
	(void)state;
	at_every_io(SIM_MISDIRECTED);
}

static void a_read_is_stale(void **state)
{
	(void)state;
	at_every_io(SIM_STALE);
}

/* Superblocks may both be gone then: a store that is left alone is right, too. */
static void many_lies(void **state)
{
	uint64_t lies = 0, lives = 0, starts = 0;

	(void)state;
	while (lies < LIES) {
		kit_open(&kit, SEGMENTS, seed + ++lives);
		assert_int_equal(kit_format(&kit), 0);
		kit.sim.lie_one_in = 8;
		for (int i = 0; i < 6 && nvme_log_state(kit.log) == NVME_UP; i++, starts++) {
			workload(i % 2 ? 0 : LATER);
			start_again((enum sim_crash)(i % SIM_CRASHES));
		}
		lies += kit.sim.lies;
		kit_close(&kit);
	}
	printf("%llu lies in %llu stores, %llu starts\n", (unsigned long long)lies,
	       (unsigned long long)lives, (unsigned long long)starts);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_write_is_lost),
		cmocka_unit_test(a_write_goes_elsewhere),
		cmocka_unit_test(a_read_is_stale),
		cmocka_unit_test(many_lies),
	};

	seed = random_seeded("sim_nvme_lies").state;
	return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
