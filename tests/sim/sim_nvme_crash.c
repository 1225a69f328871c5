/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_nvme_crash - goal: after a crash at any point every key is its whole right bytes or a miss,
 * the log starts again, purged blocks stay away, and a killed daemon (whose writes the kernel
 * keeps) loses nothing. Method: a short workload that fills, reuses, keeps, purges, seals,
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
	uint32_t had_later;
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
	had_later = 0;
	for (uint32_t i = 0; i < 9; i++)
		had_later |= (uint32_t)(kit.block[LATER + i].location != NVME_NOWHERE) << i;
	kit_crash(&kit, how);
	memset(had, 0, sizeof(had));
	check_recovered(purged, had, how == SIM_KEEP_ALL);
	if (how == SIM_KEEP_ALL)
		for (uint32_t i = 0; i < 9; i++)
			assert_true(kit.block[LATER + i].found || !(had_later >> i & 1));
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

/* --- lives that end at any moment, in a full store where blocks are used at random --- */

enum { BUSY = 400, LIVES = 8, STEPS = 250 };

static bool dead[BUSY]; /* purged, and not stored since */

static uint32_t two_to_six(uint32_t block)
{
	return 2 + block * 2654435761u / 7 % 5;
}

/* A low number is a popular block. */
static void use_at_random(struct random *random)
{
	const uint32_t block = random_below(random, 1 + random_below(random, BUSY)),
		       what = random_below(random, 1000);
	struct kit_block *b = &kit.block[block];

	if (what < 2) {
		const uint32_t tenant = random_below(random, KIT_TENANTS);

		kit_run(&kit); /* an append on its way is of the epoch before */
		assert_int_equal(kit_purge(&kit, tenant), 0);
		for (uint32_t i = tenant; i < BUSY; i += KIT_TENANTS)
			dead[i] = true;
	} else if (what < 20) {
		kit_forget(&kit, block);
	} else if (what < 30) {
		assert_int_equal(kit_flush(&kit, false), 0);
	} else if (what < 100) {
		(void)kit_load(&kit, block);
	} else if (b->location != NVME_NOWHERE) {
		kit_touch(&kit, block);
	} else if (!b->busy && !kit_append(&kit, block)) {
		dead[block] = false;
	}
	for (uint32_t n = random_below(random, 6); n > 0; n--)
		(void)kit_step(&kit);
}

static void lives(enum sim_crash how)
{
	static bool had[BUSY];
	struct random random = { .state = seed };
	uint64_t refilled = 0;

	for (uint32_t round = 0; round < 10; round++) {
		kit_open(&kit, 8, seed + round);
		kit_pages = round % 2 ? two_to_six : NULL;
		assert_int_equal(kit_format(&kit), 0);
		memset(dead, 0, sizeof(dead));
		for (uint32_t life = 0; life < LIVES; life++) {
			for (uint32_t i = random_below(&random, 2 * STEPS); i > 0; i--)
				use_at_random(&random);
			refilled += nvme_log_facts(kit.log)->counters.segments_refilled;
			for (uint32_t i = 0; i < BUSY; i++)
				had[i] = kit.block[i].location != NVME_NOWHERE &&
					 !nvme_log_stale(kit.log, kit.block[i].location);
			kit_crash(&kit, how);
			assert_int_equal(kit_recover(&kit), 0);
			for (uint32_t i = 0; i < BUSY; i++) {
				assert_false(kit.block[i].found && dead[i]);
				if (how != SIM_KEEP_ALL || !had[i])
					continue;
				assert_true(kit.block[i].found);
				if (kit.block[i].location != NVME_NOWHERE)
					assert_int_equal(kit_load(&kit, i), 0);
			}
			(void)kit_load_all(&kit);
			kit_check(&kit);
		}
		kit_close(&kit);
	}
	printf("%llu segments refilled\n", (unsigned long long)refilled);
	assert_true(refilled > 100);
}

TEST_DO(many_lives_of_a_killed_daemon, lives(SIM_KEEP_ALL));
TEST_DO(many_lives_with_power_cuts, lives(SIM_DROP_WRITES));
TEST_DO(many_lives_with_torn_sectors, lives(SIM_TEAR_SECTORS));

TEST_FIRST(seed = random_seeded("sim_nvme_crash").state);
