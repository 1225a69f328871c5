/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait seconds=5 */
/*
 * gpu_users - goal: where a driver refuses legacy handles between two users, an engine of another
 * user than the daemon's is served in the next best way, and the operator is told when that is by
 * copies of the engine's CPU. Method: the emulated driver's processes have users of their own.
 */
#include "tests/lib/lib_gpu_engine.h"
#include "tests/lib/test.h"

#include <string.h>

enum { BLOCKS = 8 };

static struct daemon d;
static struct gpu gpu;

/* This process is user 2's. */
FIXTURE(begin)
{
	gpu_open(&gpu, 0);
	gpu_settings("user=1 %s", (const char *)*state);
	gpu_engine_mode(KVTIER_GPU_DEFAULT);
	daemon_start(&d, GPU_CONFIG("64M", "2M"));
	return 0;
}

FIXTURE(end)
{
	daemon_remove(&d);
	gpu_close(&gpu);
	gpu_report_clean("");
	return 0;
}

static bool ctl_says(const char *command, const char *words)
{
	static char text[32768];

	(void)daemon_ctl(&d, command, text, sizeof(text));
	return strstr(text, words) != NULL;
}

static void status_says(const char *words, bool said)
{
	for (struct look look = look_at(&d, PATIENT_MS); ctl_says("status --json", words) != said;)
		if (!look_again(&look))
			fail_msg("status: '%s' is %s", words, said ? "missing" : "there");
}

/* Also behind a stream, though no event of it can be opened. */
static void goes(enum gpu_memory_kind kind, const char *words, bool staged)
{
	const struct kvtier_geometry g = large_geometry(KVTIER_CODEC_FP8);
	const struct kvtier_op_options o = { .size = sizeof(o), .cuda_stream = gpu.stream };
	struct kvtier_key keys[BLOCKS];
	uint32_t pages[BLOCKS];
	struct gpu_engine ge;
	uint64_t op;

	gpu_engine_open(&ge, &gpu, d.socket, &g, 2 * BLOCKS, kind);
	gpu_engine_reached(&ge, words);
	chain_keys(&ge.e, (uint64_t)kind, BLOCKS, keys);
	pages_from(0, pages, BLOCKS);
	for (uint32_t i = 0; i < BLOCKS; i++)
		page_fill(&ge.e, i, &keys[i], 0);
	gpu_pages_push(&ge, 0, BLOCKS);
	assert_int_equal(kvtier_store(ge.e.space, keys, pages, BLOCKS, &o, &op), 0);
	assert_int_equal(kvtier_wait(ge.e.client, op, -1, NULL), 0);
	assert_int_equal(gpu_chain_load(&ge, keys, BLOCKS, BLOCKS), BLOCKS);
	if (staged) {
		status_says("\"code\":\"gpu_staged\",\"severity\":\"warn\"", true);
		status_says("is staged: regions[0]: cuIpcOpenMemHandle", true);
		daemon_stat_becomes(&d, "gpu.staged_spaces", 1, PATIENT_MS);
		assert_true(ctl_says("clients --json",
				     "\"gpu_staged\":\"regions[0]: cuIpcOpenMemHandle"));
	} else {
		daemon_stat_reaches(&d, "uptime_s", daemon_stat(&d, "uptime_s") + 2);
		assert_false(ctl_says("status --json", "gpu_staged"));
	}
	gpu_engine_close(&ge);
	status_says("gpu_staged", false);
}

#define CASE(name, settings) \
	cmocka_unit_test_prestate_setup_teardown(name, begin, end, (void *)(uintptr_t)(settings))

/* The two results that a driver may have for it */
TEST_ROWS(memory_by_handle_is_staged_and_told, CASE(memory_by_handle_is_staged_and_told, ""),
	  CASE(memory_by_handle_is_staged_and_told, "fail=cuIpcOpenMemHandle:0:1"),
	  CASE(memory_by_handle_is_staged_and_told, "fail=cuIpcOpenMemHandle:0:800"))
{
	goes(GPU_ALLOC, "CUDA staged: regions[0]: cuIpcOpenMemHandle", true);
}

TEST_GIVEN(memory_by_descriptor_is_shared, begin, end, "")
{
	goes(GPU_VMM_FD, "CUDA descriptor", false);
}

TEST_GIVEN(engine_mode_needs_no_handle, begin, end, "")
{
	gpu_engine_mode(KVTIER_GPU_ENGINE);
	goes(GPU_ALLOC, "CUDA engine mode", false);
}

TEST_BEGIN
{
	gpu_begin(argv, "user=2");
	gpu_needs_emulation("a process cannot take another user");
}
