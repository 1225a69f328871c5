/* SPDX-License-Identifier: Apache-2.0 */
/* make: seconds=6 */
/*
 * gpu_told - goal: people are told how much of a GPU kvtierd takes, whether it shares the GPU with
 * engines by MPS or by turns, and what follows for its kernels and buffers; and why a driver cannot
 * be used. Method: settings of the emulated
 * driver; `kvtierctl` and the words of a start that fails.
 */
#include "tests/lib/lib_gpu_engine.h"
#include "tests/lib/lib_gpu_raw.h"
#include "tests/lib/test.h"

#include <stdio.h>
#include <string.h>

enum { N = 4, DEADLINE_MS = PATIENT_MS, MIB = 1 << 20 };

static const char common[] = "[host]\nbytes = 8M\nslab_bytes = 1M\nhuge_pages = no\n";
static const char config[] = "[host]\nbytes = 8M\nslab_bytes = 1M\nhuge_pages = no\n"
			     "[gpu]\ndevices = required\nstaging_bytes = 8M\n";

static void says(const struct daemon *d, const char *command, const char *words, bool said)
{
	const uint64_t until = now_ns() + DEADLINE_MS * 1000000ull;
	char text[8192];

	do {
		if (now_ns() > until)
			fail_msg("%s: '%s' is %s: %s", command, words, said ? "missing" : "there",
				 text);
		nap_ms(1);
		(void)daemon_ctl(d, command, text, sizeof(text));
	} while (!!strstr(text, words) != said);
}

/* An engine comes to the GPU and goes. */
static void mps(bool on)
{
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_FP8);
	struct gpu_raw e;
	struct daemon d;
	struct gpu gpu;

	if (gpu_is_real())
		skip();
	gpu_open(&gpu, 0);
	gpu_settings("mps=%d", on);
	daemon_start(&d, config);
	says(&d, "status --json", "gpu_time_sliced", false);
	gpu_raw_open(&e, d.socket, &gpu, &g, N);
	daemon_stat_becomes(&d, "gpu.regions", 1, DEADLINE_MS);
	says(&d, "status --json", "gpu_time_sliced", !on);
	says(&d, "status", "take turns on a GPU", !on);
	says(&d, "devices --json",
	     on ? "\"mps\":true" : "\"mps\":false,\"max_ctas\":16,\"regions\":1", true);
	gpu_raw_close_space(&e);
	gpu_raw_close(&e);
	says(&d, "status --json", "gpu_time_sliced", false);
	daemon_remove(&d);
	gpu_close(&gpu);
}

TEST(turns_are_told)
{
	mps(false);
}

/* Only the process that runs kernels takes turns: the daemon, or the engine. */
TEST(in_engine_mode_there_are_no_turns)
{
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_FP8);
	struct gpu_engine ge[2];
	struct daemon d;
	struct gpu gpu;

	if (gpu_is_real())
		skip();
	gpu_open(&gpu, 0);
	gpu_settings("mps=0");
	daemon_start(&d, config);
	gpu_engine_mode(KVTIER_GPU_ENGINE);
	gpu_engine_open(&ge[0], &gpu, d.socket, &g, N, GPU_ALLOC);
	gpu_engine_reached(&ge[0], "CUDA engine mode");
	daemon_stat_becomes(&d, "gpu.lent_bytes", 2 * MIB, DEADLINE_MS);
	says(&d, "status --json", "gpu_time_sliced", false);
	gpu_engine_mode(KVTIER_GPU_DAEMON);
	gpu_engine_open(&ge[1], &gpu, d.socket, &g, N, GPU_ALLOC);
	says(&d, "status", "[gpu] mode = engine avoids it", true);
	gpu_engine_close(&ge[1]);
	says(&d, "status --json", "gpu_time_sliced", false);
	gpu_engine_close(&ge[0]);
	daemon_stat_becomes(&d, "gpu.lent_bytes", 0, DEADLINE_MS);
	daemon_remove(&d);
	gpu_close(&gpu);
}

TEST(with_mps_there_are_no_turns)
{
	mps(true);
}

/* [gpu] max_ctas and staging_bytes are auto: the emulated GPU has 16 multiprocessors. */
static void kernels_and_buffers_fit(bool mps_on, const char *ctas, uint64_t least, uint64_t most)
{
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_FP8);
	struct gpu_raw e;
	struct daemon d;
	struct gpu gpu;

	if (gpu_is_real())
		skip();
	gpu_open(&gpu, 0);
	gpu_settings("mps=%d", mps_on);
	daemon_start(&d, common);
	says(&d, "devices --json", ctas, true);
	gpu_raw_open(&e, d.socket, &gpu, &g, N);
	daemon_stat_becomes(&d, "gpu.regions", 1, DEADLINE_MS);
	assert_in_range(daemon_stat(&d, "gpu.own_bytes"), least * MIB, most * MIB);
	gpu_raw_close_space(&e);
	gpu_raw_close(&e);
	daemon_remove(&d);
	gpu_close(&gpu);
}

TEST(without_mps_a_kernel_takes_the_whole_gpu)
{
	kernels_and_buffers_fit(false, "\"mps\":false,\"max_ctas\":16", 128, 144);
}

TEST(with_mps_a_kernel_leaves_most_of_the_gpu)
{
	kernels_and_buffers_fit(true, "\"mps\":true,\"max_ctas\":8", 32, 48);
}

TEST(what_a_context_takes_is_told)
{
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_FP8);
	struct gpu_raw e;
	struct daemon d;
	struct gpu gpu;

	if (gpu_is_real())
		skip();
	gpu_open(&gpu, 0);
	gpu_settings("context=96");
	daemon_start(&d, config);
	assert_int_equal(daemon_stat(&d, "gpu.context_bytes"), 0);
	gpu_raw_open(&e, d.socket, &gpu, &g, N);
	daemon_stat_becomes(&d, "gpu.context_bytes", 96 * MIB, DEADLINE_MS);
	says(&d, "devices --json", "\"context_bytes\":100663296", true);
	assert_true(daemon_stat(&d, "gpu.own_bytes") >= 8 * MIB);
	assert_true(daemon_stat(&d, "gpu.own_bytes") < 96 * MIB);
	gpu_raw_close_space(&e);
	gpu_raw_close(&e);
	daemon_remove(&d);
	gpu_close(&gpu);
}

/* kvtierd does not start, and says this. */
static void refuses_to_start(const char *words)
{
	char command[512], text[4096];
	struct daemon d;

	daemon_place(&d, false);
	daemon_configure(&d, config);
	snprintf(command, sizeof(command), "%s/kvtierd --config %s 2>&1", build_dir(), d.config);
	assert_int_equal(shell(command, text, sizeof(text)), 1);
	if (!strstr(text, "[gpu] devices = required: ") || !strstr(text, words))
		fail_msg("%s", text);
	daemon_configure(&d, common);
	daemon_restart(&d);
	says(&d, "devices", words, true);
	daemon_remove(&d);
}

static void why_a_driver_is_not_used(const char *settings, const char *words)
{
	if (gpu_is_real())
		skip();
	gpu_settings("%s", settings);
	refuses_to_start(words);
}

TEST(a_driver_that_lacks_calls_is_named)
{
	why_a_driver_is_not_used("version=11060", "libcuda.so has no cu");
	why_a_driver_is_not_used("version=11060", "the CUDA driver is too old");
}

TEST(a_driver_with_all_calls_may_be_too_old)
{
	why_a_driver_is_not_used("version=11080", "is of version 11.8; kvtierd needs 12.0");
}

/* The engine would be the one process, and each of its spaces would be staged without a word. */
TEST(a_gpu_for_one_process_is_not_taken)
{
	struct daemon d;

	why_a_driver_is_not_used("exclusive=1", "its compute mode is for one process");
	gpu_settings("exclusive=1 mps=1");
	daemon_start(&d, common);
	assert_int_equal(daemon_stat(&d, "gpu.devices"), 1);
	daemon_remove(&d);
}

TEST(a_driver_that_does_not_start_is_quoted)
{
	why_a_driver_is_not_used("fail=cuInit:1:803", "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH");
}

TEST_BEGIN
{
	gpu_begin(argv, "null_stream=0 one_thread=1");
}
