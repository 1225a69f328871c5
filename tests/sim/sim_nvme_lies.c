/* SPDX-License-Identifier: Apache-2.0 */
/* make: seconds=8 */
/*
 * sim_nvme_lies - goal: a disk that says "written" and lost it, wrote it elsewhere, or answers a
 * read with earlier bytes, costs blocks and never gives a wrong byte; the log goes on, and starts
 * again. Method: a workload of every deed of the log, with the n-th I/O a lie, n = 1, 2, ... until
 * a run has no n-th I/O, of each kind; then 10,000 lies by chance, one I/O in eight. Seed printed.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/lib/lib_nvme_lies.h"

enum { LIES = 10000 };

static uint64_t seed;

static void a_write_is_lost(void **state)
{
	(void)state;
	lies_at_every_io(SIM_LOST, seed);
}

static void a_write_goes_elsewhere(void **state)
{
	(void)state;
	lies_at_every_io(SIM_MISDIRECTED, seed);
}

static void a_read_is_stale(void **state)
{
	(void)state;
	lies_at_every_io(SIM_STALE, seed);
}

static void many_lies(void **state)
{
	(void)state;
	lies_by_chance(seed, LIES, 0);
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
