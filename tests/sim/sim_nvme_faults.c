/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_nvme_faults - goal: no failed, refused or stalled I/O makes the log serve wrong bytes, lose
 * count, hang or fall over, and a good disk afterwards is enough to go on. Method: the same
 * workload with the n-th I/O going wrong, n = 1, 2, ... until a run has no n-th I/O; in several
 * ways. Seed printed.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tests/lib/test.h"
#include "tiers/nvme/nvme_log_inner.h"
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
	clear_faults();
	kit.sim.time_ns += 1000000000; /* failed I/O is tried again after a while */
	kit_run(&kit);
	assert_false(nvme_log_busy(kit.log));
	if (nvme_log_state(kit.log) == NVME_UP) {
		(void)kit_load_all(&kit);
		kit_run(&kit);
		for (uint32_t i = 0; i < 12; i++)
			assert_int_equal(kit_store(&kit, LATER + i), 0);
		kit_run(&kit);
		kit_check(&kit);
		for (uint32_t i = 6; i < 12; i++)
			assert_int_equal(kit_load(&kit, LATER + i), 0);
	}
	kit_forget_log(&kit);
	disk_sim_crash(&kit.sim, SIM_DROP_WRITES);
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
		for (uint32_t i = 2000; i < 2010; i++)
			assert_int_equal(kit_store(&kit, i), 0);
		kit_run(&kit);
		kit_forget_log(&kit);
		disk_sim_crash(&kit.sim, SIM_KEEP_ALL);
		const uint64_t before = kit.sim.submits;
		set(&kit.sim, before + n);
		(void)kit_recover(&kit);
		if (nvme_log_state(kit.log) == NVME_UP)
			workload();
		if (kit.sim.submits < before + n)
			last = n;
		with_a_good_disk_it_goes_on();
		kit_close(&kit);
	}
	printf("%llu I/Os\n", (unsigned long long)n - 1);
}

static void set_fails(struct disk_sim *sim, uint64_t nth)
{
	sim->fail_nth = nth;
	sim->fail_status = -EIO;
}

static void set_lies(struct disk_sim *sim, uint64_t nth)
{
	sim->fail_nth = nth;
	sim->fail_status = -EIO;
	sim->fail_done = true;
}

static void set_vanishes(struct disk_sim *sim, uint64_t nth)
{
	sim->fail_from = nth;
	sim->fail_status = -ENODEV;
}

static void set_queue_full(struct disk_sim *sim, uint64_t nth)
{
	sim->refuse_nth = nth;
	sim->refuse_status = -EAGAIN;
}

static void set_refuses(struct disk_sim *sim, uint64_t nth)
{
	sim->refuse_nth = nth;
	sim->refuse_status = -EBADF;
}

static void set_stalls(struct disk_sim *sim, uint64_t nth)
{
	sim->stall_nth = nth;
}

TEST(an_io_fails)
{
	at_every_io(set_fails);
}

TEST(an_io_fails_but_wrote)
{
	at_every_io(set_lies);
}

TEST(the_disk_vanishes_and_comes_back)
{
	at_every_io(set_vanishes);
}

TEST(the_queue_is_full_once)
{
	at_every_io(set_queue_full);
}

TEST(an_io_is_refused)
{
	at_every_io(set_refuses);
}

TEST(an_io_stalls)
{
	at_every_io(set_stalls);
}

TEST_BEGIN
{
	seed = random_seeded("sim_nvme_faults").state;
}
