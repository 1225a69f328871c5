/* SPDX-License-Identifier: Apache-2.0 */
/*
 * soak_nvme_lies.c - as the last case of sim_nvme_lies.c, for SOAK_SECONDS (600): a disk whose
 * every eighth I/O is a lie. Not part of `make test`.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/lib/lib.h"
#include "tests/lib/lib_nvme_lies.h"

static uint64_t seed;

static void many_lies(void **state)
{
	(void)state;
	lies_by_chance(seed, 1, now_ns() + env_number("SOAK_SECONDS", 600) * 1000000000ull);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(many_lies) };

	seed = random_seeded("soak_nvme_lies").state;
	return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
