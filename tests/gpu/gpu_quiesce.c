/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait seconds=4 */
/*
 * gpu_quiesce - goal: an engine that sleeps gets its GPU's memory back: after
 * kvtier_space_quiesce() nothing of it is open in the daemon, whichever way its pages are reached,
 * and the memory may go; resumed over other memory, or over the same, the space finds its blocks.
 * `kvtierctl clients` names the way. Method: memory of each kind, which is freed while the space is
 * quiet; the emulated driver reports memory that is freed while it is open elsewhere.
 */
#include "tests/lib/lib_gpu_engine.h"
#include "tests/lib/test.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { BLOCKS = 12 }; /* 3 MiB of pages: two allocations of the smallest size */

static const char config[] = "[host]\nbytes = 64M\nslab_bytes = 2M\nhuge_pages = no\n"
			     "[gpu]\ndevices = required\nstaging_bytes = 8M\n";

static struct daemon d;
static struct gpu gpu;

FIXTURE(begin)
{
	gpu_open(&gpu, 0);
	daemon_start(&d, config);
	return 0;
}

FIXTURE(end)
{
	daemon_remove(&d);
	gpu_close(&gpu);
	gpu_report_clean("");
	return 0;
}

TEST_EACH(begin, end);

static void clients_are_listed_with(const char *path)
{
	char wanted[64], text[4096];

	snprintf(wanted, sizeof(wanted), "\"path\":\"%s\"", path);
	assert_int_equal(daemon_ctl(&d, "clients --json", text, sizeof(text)), 0);
	if (!strstr(text, wanted))
		fail_msg("no client has %s: %s", wanted, text);
}

static void takes_nothing(struct gpu_engine *ge, const struct kvtier_key *keys)
{
	uint32_t page = 0;
	uint64_t op;

	assert_int_equal(engine_lookup(&ge->e, keys, BLOCKS), 0);
	assert_int_equal(kvtier_load(ge->e.space, keys, &page, 1, NULL, &op), -ENOTCONN);
	assert_int_equal(kvtier_store(ge->e.space, keys, &page, 1, NULL, &op), -ENOTCONN);
}

/* Its memory is freed, and as much is allocated. */
static struct kvtier_region other_memory(struct gpu_engine *ge)
{
	const size_t bytes = ge->e.pages * ge->e.page_bytes;
	const enum gpu_memory_kind kind = ge->memory.kind;

	gpu_memory_free(&gpu, &ge->memory);
	gpu_memory_make(&gpu, kind, bytes, &ge->memory);
	return (struct kvtier_region){ .size = sizeof(struct kvtier_region),
				       .memory = KVTIER_CUDA,
				       .fd = -1,
				       .length = bytes,
				       .base = (void *)(uintptr_t)ge->memory.base };
}

static void sleeps_and_wakes(enum gpu_memory_kind kind, const char *words, const char *path)
{
	const struct kvtier_geometry g = large_geometry(KVTIER_CODEC_FP8);
	struct kvtier_key keys[BLOCKS];
	struct kvtier_region region;
	struct gpu_engine ge;

	gpu_engine_open(&ge, &gpu, d.socket, &g, 2 * BLOCKS, kind);
	gpu_engine_reached(&ge, words);
	clients_are_listed_with(path);
	chain_keys(&ge.e, kind, BLOCKS, keys);
	assert_int_equal(gpu_chain_store(&ge, keys, 0, BLOCKS), 0);
	assert_int_equal(kvtier_space_quiesce(ge.e.space), 0);
	takes_nothing(&ge, keys);
	region = other_memory(&ge);
	assert_int_equal(kvtier_space_resume(ge.e.space, &region, 1), 0);
	gpu_engine_reached(&ge, words);
	assert_int_equal(engine_lookup(&ge.e, keys, BLOCKS), BLOCKS);
	assert_int_equal(gpu_chain_load(&ge, keys, BLOCKS, BLOCKS), BLOCKS);
	/* new weights: the pages stay where they are */
	assert_int_equal(kvtier_space_quiesce(ge.e.space), 0);
	assert_int_equal(kvtier_space_resume(ge.e.space, NULL, 0), 0);
	gpu_engine_reached(&ge, words);
	assert_int_equal(gpu_chain_load(&ge, keys, 0, BLOCKS), BLOCKS);
	gpu_engine_close(&ge);
	daemon_stat_becomes(&d, "gpu.regions", 0, PATIENT_MS);
}

TEST(an_allocation_goes_and_comes)
{
	sleeps_and_wakes(GPU_ALLOC, "CUDA IPC", "cuda-ipc");
}

TEST(a_mapping_goes_and_comes)
{
	sleeps_and_wakes(GPU_VMM_FD, "CUDA descriptor", "cuda-fd");
}

TEST(a_mapping_of_two_allocations_goes_and_comes)
{
	sleeps_and_wakes(GPU_VMM_TWO, "CUDA descriptor of 2 allocations", "cuda-fd");
}

TEST(memory_of_a_pool_goes_and_comes)
{
	sleeps_and_wakes(GPU_POOL, "CUDA staged", "staged");
}

/* A load that is under way has its bytes before the space is quiet. */
TEST(a_load_ends_before_it_is_quiet)
{
	const struct kvtier_geometry g = large_geometry(KVTIER_CODEC_FP8);
	struct kvtier_key keys[BLOCKS];
	uint32_t pages[BLOCKS];
	struct kvtier_result r = { .size = sizeof(r) };
	struct gpu_engine ge;
	uint64_t op;

	gpu_engine_open(&ge, &gpu, d.socket, &g, BLOCKS, GPU_ALLOC);
	chain_keys(&ge.e, 9, BLOCKS, keys);
	assert_int_equal(gpu_chain_store(&ge, keys, 0, BLOCKS), 0);
	for (uint32_t i = 0; i < BLOCKS; i++)
		page_poison(&ge.e, i);
	gpu_pages_push(&ge, 0, BLOCKS);
	pages_from(0, pages, BLOCKS);
	assert_int_equal(kvtier_load(ge.e.space, keys, pages, BLOCKS, NULL, &op), 0);
	assert_int_equal(kvtier_space_quiesce(ge.e.space), 0);
	assert_int_equal(kvtier_lent(ge.e.client, NULL, 0), 0);
	assert_int_equal(kvtier_wait(ge.e.client, op, 0, &r), 0);
	assert_int_equal(r.ok, BLOCKS);
	gpu_pages_pull(&ge, 0, BLOCKS);
	for (uint32_t i = 0; i < BLOCKS; i++)
		assert_true(page_is(&ge.e, i, &keys[i], 0));
	gpu_engine_close(&ge);
}

TEST_BEGIN
{
	gpu_begin(argv, "null_stream=0 late=2");
}
