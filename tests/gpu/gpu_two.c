/* SPDX-License-Identifier: Apache-2.0 */
/* make: seconds=4 */
/*
 * gpu_two - goal: two GPUs with two engines each: every engine finds the blocks of all, stored on
 * either GPU. Each GPU has its own engines' regions, and no more memory in use after they have
 * gone. An engine that is killed harms neither the engine beside it nor the engines of the other
 * GPU. Method: four processes, each of which sees one GPU and calls it 0, store and load at the
 * same time.
 */
#include "tests/lib/lib_gpu_engine.h"

enum { GPUS = 2, ENGINES = 4, BLOCKS = 5, DEADLINE_MS = PATIENT_MS };

static struct daemon d;
static struct gpu gpus[GPUS];
static uint64_t used[GPUS];

/* --- an engine --- */

static void all_chains_load(struct gpu_engine *ge)
{
	struct kvtier_key keys[BLOCKS];

	for (uint64_t chain = 0; chain < ENGINES; chain++) {
		chain_keys(&ge->e, chain, BLOCKS, keys);
		assert_int_equal(gpu_chain_load(ge, keys, 0, BLOCKS), BLOCKS);
	}
}

static bool told(char *ret)
{
	return read(STDIN_FILENO, ret, 1) == 1;
}

static void engine(TEST_UNUSED void **state)
{
	const uint64_t chain = strtoull(getenv("KVTIER_TEST_CHAIN"), NULL, 10);
	struct kvtier_key keys[BLOCKS];
	struct gpu_engine ge;
	struct gpu own;
	char order = 0;

	assert_int_equal(gpu_count(), 1);
	gpu_open(&own, 0);
	gpu_engine_open(&ge, &own, getenv("KVTIER_TEST_SOCKET"), &large_fp8, BLOCKS, GPU_ALLOC);
	gpu_engine_reached(&ge, "CUDA IPC");
	chain_keys(&ge.e, chain, BLOCKS, keys);
	assert_int_equal(gpu_chain_store(&ge, keys, 0, BLOCKS), 0);
	do {
		assert_int_equal(write(STDIN_FILENO, "", 1), 1);
		assert_true(told(&order));
		if (order == 'L')
			all_chains_load(&ge);
	} while (order != 'Q');
	gpu_engine_close(&ge);
	gpu_close(&own);
}

/* --- the test --- */

static pid_t pids[ENGINES];
static int sockets[ENGINES];

static void answered(uint32_t i)
{
	char byte;

	if (read(sockets[i], &byte, 1) != 1)
		fail_msg("engine %u has ended: its output is above", i);
}

static void tell(uint32_t i, char order)
{
	assert_int_equal(write(sockets[i], &order, 1), 1);
}

/* Engines 0 and 2 on GPU 0, 1 and 3 on GPU 1. */
static void engines_start(void)
{
	char text[32];

	setenv("KVTIER_TEST_SOCKET", d.socket, 1);
	for (uint32_t i = 0; i < ENGINES; i++) {
		snprintf(text, sizeof(text), "%u", i % GPUS);
		setenv("CUDA_VISIBLE_DEVICES", text, 1);
		snprintf(text, sizeof(text), "%u", i);
		setenv("KVTIER_TEST_CHAIN", text, 1);
		pids[i] = gpu_spawn("engine", "", &sockets[i]);
	}
	unsetenv("CUDA_VISIBLE_DEVICES");
	for (uint32_t i = 0; i < ENGINES; i++)
		answered(i);
}

static void engine_ends(uint32_t i)
{
	tell(i, 'Q');
	assert_int_equal(gpu_wait(pids[i]), 0);
	(void)close(sockets[i]);
}

static uint64_t used_of(uint32_t i)
{
	GPU(gpu_api()->cuCtxSetCurrent(gpus[i].context));
	return gpu_used();
}

FIXTURE(begin)
{
	if (gpu_count() < GPUS)
		return 0;
	for (uint32_t i = 0; i < GPUS; i++)
		gpu_open(&gpus[i], (int)i);
	daemon_start(&d, HOST("16M", "2M") GPU_LINES);
	for (uint32_t i = 0; i < GPUS; i++)
		used[i] = used_of(i);
	return 0;
}

FIXTURE(end)
{
	if (gpu_count() < GPUS)
		return 0;
	daemon_remove(&d);
	for (uint32_t i = 0; i < GPUS; i++) {
		(void)used_of(i);
		gpu_used_falls_to(used[i]);
		gpu_close(&gpus[i]);
	}
	assert_int_equal(gpu_reported("", "violation", ""), 0);
	gpu_report_clear();
	return 0;
}

TEST(every_engine_loads_the_blocks_of_all)
{
	if (gpu_count() < GPUS)
		skip();
	engines_start();
	daemon_stat_becomes(&d, "gpu.regions", ENGINES, DEADLINE_MS);
	for (uint32_t i = 0; i < GPUS; i++)
		assert_true(used_of(i) > used[i]);
	for (int round = 0; round < 2; round++) {
		for (uint32_t i = 0; i < ENGINES; i++)
			tell(i, 'L');
		for (uint32_t i = 0; i < ENGINES; i++)
			answered(i);
	}
	for (uint32_t i = 0; i < ENGINES; i++)
		engine_ends(i);
	daemon_stat_becomes(&d, "gpu.regions", 0, DEADLINE_MS);
	assert_int_equal(gpu_reported("gpu_two", "leak", ""), 0);
}

TEST(a_killed_engine_harms_no_other)
{
	struct random random = { .state = gpu_seed() };

	if (gpu_count() < GPUS)
		skip();
	engines_start();
	for (uint32_t i = 0; i < ENGINES; i++)
		tell(i, 'L');
	usleep(random_below(&random, 10000));
	(void)kill(pids[0], SIGKILL);
	assert_int_equal(gpu_wait(pids[0]), -SIGKILL);
	(void)close(sockets[0]);
	for (uint32_t i = 1; i < ENGINES; i++) {
		answered(i);
		tell(i, 'L');
	}
	for (uint32_t i = 1; i < ENGINES; i++) {
		answered(i);
		engine_ends(i);
	}
	daemon_stat_becomes(&d, "clients", 0, DEADLINE_MS);
	daemon_stat_becomes(&d, "gpu.regions", 0, DEADLINE_MS);
}

TEST_EACH(begin, end);

TEST_BEGIN
{
	gpu_begin(argv, "gpus=2 null_stream=0");
	if (argc > 1)
		test_only(engine);
}
