/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_nvme_crash - goal: after a crash at any point every key is its whole right bytes or a miss,
 * the log starts again, purged blocks stay away, and a killed daemon (whose writes the kernel
 * keeps) loses nothing. Method: a short workload that fills, reuses, carries over, purges, seals,
 * and writes where a probe of the disk does; cut after each of its writes in turn; each time the
 * disk keeps all, nothing, some or torn pieces of the unsynced writes. Then recovery, more work, a
 * second crash. Seed printed.
 */

#include "tests/lib/test.h"
#include "tiers/nvme/log/nvme_log_inner.h"
#include "tests/lib/lib_nvme.h"

enum { SEGMENTS = 6, BEFORE = 24, AFTER = 44, PURGED = 1, LATER = 1000 };

static struct kit kit;
static uint64_t seed;

/* 1: the purge was acknowledged. Stops where the disk does. */
static int workload(void)
{
	int purged;

	for (uint32_t i = 0; i < BEFORE; i++) {
		if (kit_store(&kit, i))
			return 0;
		if (i > 8)
			kit_touch(&kit, 6);
		if (i % 3 == 2)
			kit_write_spare(&kit);
	}
	purged = kit_purge(&kit, PURGED) == 0;
	for (uint32_t i = BEFORE; i < AFTER; i++) {
		if (i % 7 == 3)
			kit_write_spare(&kit);
		/* eight at once */
		const int r = kit_append(&kit, i);

		if (r == -EAGAIN) {
			if (!kit_step(&kit))
				return purged;
			i--;
		}
	}
	kit_run(&kit);
	(void)kit_flush(&kit, false);
	return purged;
}

static void check_recovered(int purged, const uint8_t *had, bool kept)
{
	assert_int_equal(kit_recover(&kit), 0);
	kit_check(&kit);
	for (uint32_t i = 0; i < BEFORE; i++)
		if (purged && i % KIT_TENANTS == PURGED)
			assert_int_equal(kit.block[i].location, NVME_NOWHERE);
	for (uint32_t i = 0; i < AFTER; i++)
		if (kept && had[i])
			assert_true(kit.block[i].found);
	for (uint32_t i = 0; i < AFTER; i++) /* found, and then not reclaimed by this life */
		if (kept && had[i] && kit.block[i].location != NVME_NOWHERE)
			assert_int_equal(kit_load(&kit, i), 0);
	(void)kit_load_all(&kit);
	kit_check(&kit);
}

/* Whether the workload got to its end. */
static bool crash_at(uint64_t write, enum sim_crash how)
{
	uint8_t had[AFTER];
	bool over;
	int purged;

	kit.sim.power_off_after = write;
	purged = workload();
	over = kit.sim.write_ends < write;
	for (uint32_t i = 0; i < AFTER; i++)
		had[i] = kit.block[i].location != NVME_NOWHERE;
	kit_crash(&kit, how);
	check_recovered(purged, had, how == SIM_KEEP_ALL);

	kit_store_range(&kit, LATER, LATER + 9);
	(void)kit_load_all(&kit);
	kit_run(&kit);
	kit_crash(&kit, how);
	memset(had, 0, sizeof(had));
	check_recovered(purged, had, how == SIM_KEEP_ALL);
	if (how == SIM_KEEP_ALL)
		for (uint32_t i = 0; i < 9; i++)
			assert_true(kit.block[LATER + i].found);
	return over;
}

/* Until the workload is over before the cut. */
static void at_every_write(enum sim_crash how)
{
	uint64_t write, base;
	bool over = false;

	for (write = 1; !over; write++) {
		kit_open(&kit, SEGMENTS, seed + write);
		assert_int_equal(kit_format(&kit), 0);
		base = kit.sim.write_ends;
		over = crash_at(base + write, how);
		kit_close(&kit);
	}
	printf("%d: %llu cuts\n", (int)how, (unsigned long long)write);
}

TEST_DO(keeps_all, at_every_write(SIM_KEEP_ALL));
TEST_DO(drops_all, at_every_write(SIM_DROP_ALL));
TEST_DO(drops_some_writes, at_every_write(SIM_DROP_WRITES));
TEST_DO(tears_sectors, at_every_write(SIM_TEAR_SECTORS));

TEST_FIRST(seed = random_seeded("sim_nvme_crash").state);
