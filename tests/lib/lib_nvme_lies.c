/* SPDX-License-Identifier: Apache-2.0 */

#include "base/clock.h"
#include "test.h"
#include "tiers/nvme/log/nvme_log_inner.h"
#include "lib_nvme_lies.h"

enum { SEGMENTS = 6, BLOCKS = 36, LATER = 1000 };

static struct kit kit;

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
	kit_crash(&kit, how);
	(void)kit_recover(&kit);
}

/* A lie costs one superblock at most, so the log starts; each block is then right or a miss. */
static void it_goes_on(void)
{
	honest_again();
	for (int i = 0; i < SIM_CRASHES; i++) {
		start_again((enum sim_crash)i);
		assert_int_equal(nvme_log_facts(kit.log)->state, NVME_UP);
		workload(LATER);
		(void)kit_load_all(&kit);
		kit_check(&kit);
	}
}

void lies_at_every_io(enum sim_lie lie, uint64_t seed)
{
	uint64_t told = 1, n;

	for (n = 1; told; n++) {
		kit_open(&kit, SEGMENTS, seed + n);
		assert_int_equal(kit_format(&kit), 0);
		kit_store_range(&kit, 2000, 2010);
		kit_run(&kit);
		kit.sim.lie = lie;
		kit.sim.lie_nth = kit.sim.submits + n;
		start_again(SIM_KEEP_ALL);
		if (nvme_log_facts(kit.log)->state == NVME_UP)
			workload(0);
		told = kit.sim.lies;
		it_goes_on();
		kit_close(&kit);
	}
	printf("%d: %llu I/Os\n", (int)lie, (unsigned long long)n - 1);
}

/* One store: six lives. Superblocks may both be gone then: a store that is left alone is right,
 * too. */
static uint64_t lies_in_one_store(uint64_t seed, uint64_t *starts)
{
	uint64_t lies;

	kit_open(&kit, SEGMENTS, seed);
	assert_int_equal(kit_format(&kit), 0);
	kit.sim.lie_one_in = 8;
	for (int i = 0; i < 6 && nvme_log_facts(kit.log)->state == NVME_UP; i++, (*starts)++) {
		workload(i % 2 ? 0 : LATER);
		start_again((enum sim_crash)(i % SIM_CRASHES));
	}
	lies = kit.sim.lies;
	kit_close(&kit);
	return lies;
}

void lies_by_chance(uint64_t seed, uint64_t least, uint64_t until_ns)
{
	uint64_t lies = 0, lives = 0, starts = 0;

	while (lies < least || clock_ns() < until_ns)
		lies += lies_in_one_store(seed + ++lives, &starts);
	printf("%llu lies in %llu stores, %llu starts\n", (unsigned long long)lies,
	       (unsigned long long)lives, (unsigned long long)starts);
}
