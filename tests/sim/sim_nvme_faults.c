/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_nvme_faults - goal: no failed, refused or stalled I/O makes the log serve wrong bytes, lose
 * count, hang or fall over, and a good disk afterwards is enough to go on. Method: the same
 * workload with the n-th I/O going wrong, n = 1, 2, ... until a run has no n-th I/O; in several
 * ways. Seed printed.
 */

#include "tests/lib/test.h"
#include "tiers/nvme/log/nvme_log_inner.h"
#include "tests/lib/lib_nvme.h"

enum { SEGMENTS = 6, BLOCKS = 36, LATER = 1000 };

static struct kit kit;
static uint64_t seed;

/* Everything the log does, with any end. */
static void workload(void)
{
	for (uint32_t i = 0; i < BLOCKS; i++) {
		(void)kit_store(&kit, i);
		if (i > 8 && kit.block[6].location != NVME_NOWHERE)
			kit_touch(&kit, 6);
		if (i == 20)
			(void)kit_purge(&kit, 1);
		if (i % 7 == 6)
			(void)kit_load(&kit, i - 3);
	}
	kit_run(&kit);
	(void)kit_flush(&kit, false);
	kit_run(&kit);
}

static void clear_faults(void)
{
	struct disk_sim *sim = &kit.sim;

	disk_sim_unstall(sim);
	sim->fail_nth = sim->fail_from = sim->refuse_nth = sim->stall_nth = 0;
}

static void with_a_good_disk_it_goes_on(void)
{
	uint32_t newest = 0;

	clear_faults();
	kit.sim.time_ns += 1000000000; /* failed I/O is tried again after a while */
	kit_run(&kit);
	assert_int_equal(kit.sim.n_lent, 0);
	if (nvme_log_facts(kit.log)->state == NVME_UP) {
		(void)kit_load_all(&kit);
		kit_run(&kit);
		kit_store_range(&kit, LATER, LATER + 12);
		kit_run(&kit);
		kit_check(&kit);
		for (uint32_t i = 0; i < 12; i++)
			newest += kit_load(&kit, LATER + i) == 0;
		assert_true(newest >= 8);
	}
	kit_crash(&kit, SIM_DROP_WRITES);
	assert_int_equal(kit_recover(&kit), 0);
	(void)kit_load_all(&kit);
	kit_check(&kit);
}

/* set() makes the n-th I/O from now go wrong. From the second start on: recovery is in it. */
static void at_every_io(void (*set)(struct disk_sim *sim, uint64_t nth))
{
	uint64_t n, last = UINT64_MAX;

	for (n = 1; n <= last; n++) {
		kit_open(&kit, SEGMENTS, seed + n);
		assert_int_equal(kit_format(&kit), 0);
		kit_store_range(&kit, 2000, 2010);
		kit_run(&kit);
		kit_crash(&kit, SIM_KEEP_ALL);
		const uint64_t before = kit.sim.submits;
		set(&kit.sim, before + n);
		(void)kit_recover(&kit);
		if (nvme_log_facts(kit.log)->state == NVME_UP)
			workload();
		if (kit.sim.submits < before + n)
			last = n;
		with_a_good_disk_it_goes_on();
		kit_close(&kit);
	}
	printf("%llu I/Os\n", (unsigned long long)n - 1);
}

#define CASE(name, ...)                                          \
	static void set_##name(struct disk_sim *sim, uint64_t n) \
	{                                                        \
		__VA_ARGS__;                                     \
	}                                                        \
	TEST_DO(name, at_every_io(set_##name))

CASE(an_io_fails, sim->fail_nth = n; sim->fail_status = -EIO);
CASE(an_io_fails_but_wrote, sim->fail_nth = n; sim->fail_status = -EIO; sim->fail_done = true);
CASE(the_disk_vanishes_and_comes_back, sim->fail_from = n; sim->fail_status = -ENODEV);
CASE(the_queue_is_full_once, sim->refuse_nth = n; sim->refuse_status = -EAGAIN);
CASE(an_io_is_refused, sim->refuse_nth = n; sim->refuse_status = -EBADF);
CASE(an_io_stalls, sim->stall_nth = n);

TEST_FIRST(seed = random_seeded("sim_nvme_faults").state);
