/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait seconds=14 needs=kvtierd_clock */
/* make: wrap=clock_gettime,epoll_wait (it holds the clock) */
/*
 * gpu_ready - goal: a driver that is not ready when kvtierd starts is asked again, by a schedule,
 * and `status` says so meanwhile. Ready within seconds, its GPUs are served; ready later, kvtierd
 * ends for the service manager to start it anew, and without a service manager it says what to do.
 * A machine that has no GPU is not warned, and does not wait. Method: the emulated driver refuses
 * the first calls of cuInit().
 */
#include "tests/lib/lib_clock.h"
#include "tests/lib/lib_gpu_engine.h"
#include "tests/lib/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

enum {
	N = 4,
	AGAIN = 75 /* kvtierd(8), EXIT STATUS */,
	STEP_MS = 2000,
	STEPS = 1000,
	ASKED_AT_START = 3
};

static const char config[] = "[host]\nbytes = 8M\nslab_bytes = 1M\nhuge_pages = no\n"
			     "[gpu]\nstaging_bytes = 8M\n";

static struct daemon d;

/* A kvtierd whose first n calls of cuInit() have this result. */
static void start(int n, int result)
{
	char settings[512] = "";
	size_t at = 0;

	for (int i = 0; i < n; i++) /* the first call that the faults before it let through */
		at += (size_t)snprintf(settings + at, sizeof(settings) - at, "fail=cuInit:1:%d ",
				       result);
	gpu_settings("%s", settings);
	daemon_place(&d, false);
	clock_hold(&d);
	daemon_configure(&d, config);
	daemon_restart(&d); /* some seconds pass here */
	gpu_settings("%s", "");
}

static bool ctl_says(const char *command, const char *words)
{
	char text[8192];

	(void)daemon_ctl(&d, command, text, sizeof(text));
	return strstr(text, words) != NULL;
}

TEST(a_driver_that_is_soon_ready_is_waited_for)
{
	static const int results[] = { 802, 999, 304 };

	for (size_t i = 0; i < sizeof(results) / sizeof(*results); i++) {
		start(ASKED_AT_START - 2, results[i]);
		assert_int_equal(daemon_stat(&d, "gpu.devices"), 1);
		assert_false(ctl_says("status --json", "gpu_unused"));
		daemon_remove(&d);
	}
}

TEST(a_driver_that_is_ready_later_is_told_of)
{
	start(ASKED_AT_START + 4, 802);
	assert_int_equal(daemon_stat(&d, "gpu.devices"), 0);
	clock_pass_ms(500);
	assert_true(ctl_says("status --json", "gpu_unused"));
	assert_true(ctl_says("status", "CUDA_ERROR_SYSTEM_NOT_READY"));
	assert_true(ctl_says("devices --json", "asked again"));
	for (int i = 0; !ctl_says("devices --json", "a new kvtierd can serve its GPUs"); i++) {
		assert_true(i < STEPS);
		clock_pass_ms(STEP_MS);
	}
	assert_true(ctl_says("status", "a new kvtierd can serve its GPUs"));
	daemon_remove(&d);
}

/* An engine that came before, whose pages were staged, is served by it as well. */
TEST(with_a_service_manager_a_new_process_serves_it)
{
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_FP8);
	const uint64_t patience_ns = PATIENT_MS * 1000000ull;
	struct kvtier_key keys[N];
	struct gpu_engine ge;
	struct gpu gpu;
	uint64_t until;
	int status = 0;

	(void)setenv("NOTIFY_SOCKET", "@nobody", 1);
	gpu_settings("%s", "");
	gpu_open(&gpu, 0);
	start(ASKED_AT_START + 4, 802);
	assert_int_equal(daemon_stat(&d, "gpu.devices"), 0);
	gpu_engine_open(&ge, &gpu, d.socket, &g, 2 * N, GPU_ALLOC);
	gpu_engine_reached(&ge, "CUDA staged");
	chain_keys(&ge.e, 1, N, keys);
	assert_int_equal(gpu_chain_store(&ge, keys, 0, N), 0);
	clock_hurry(true);
	status = daemon_wait(&d, 100 * PATIENT_MS);
	clock_hurry(false);
	if (!WIFEXITED(status) || WEXITSTATUS(status) != AGAIN)
		fail_msg("kvtierd ended with wait status %#x", (unsigned)status);
	daemon_restart(&d);
	assert_int_equal(daemon_stat(&d, "gpu.devices"), 1);
	for (until = now_ns() + patience_ns; gpu_chain_store(&ge, keys, 0, N); nap_ms(5))
		assert_true(now_ns() < until); /* it has to connect first */
	gpu_engine_reached(&ge, "CUDA IPC");
	assert_int_equal(gpu_chain_load(&ge, keys, N, N), N);
	gpu_engine_close(&ge);
	daemon_stat_becomes(&d, "gpu.regions", 0, PATIENT_MS);
	daemon_remove(&d);
	gpu_close(&gpu);
	(void)unsetenv("NOTIFY_SOCKET");
}

/* A machine without a GPU, whose driver's library is there all the same; or with one to come. */
TEST(no_gpu_is_no_warning)
{
	start(ASKED_AT_START, 100);
	assert_int_equal(daemon_stat(&d, "gpu.devices"), 0);
	clock_pass_ms(500);
	assert_false(ctl_says("status --json", "gpu_unused"));
	assert_true(ctl_says("devices --json", "CUDA_ERROR_NO_DEVICE"));
	for (int i = 0; !ctl_says("devices --json", "a new kvtierd can serve its GPUs"); i++) {
		assert_true(i < STEPS);
		clock_pass_ms(STEP_MS);
	}
	daemon_remove(&d);
}

/* It would be asked in vain. */
TEST(a_driver_that_never_fits_is_asked_once)
{
	start(1, 803);
	clock_pass_ms(500);
	assert_true(ctl_says("devices --json", "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"));
	assert_false(ctl_says("devices --json", "asked again"));
	daemon_remove(&d);
}

TEST_BEGIN
{
	gpu_begin(argv, "null_stream=0");
	gpu_needs_emulation("its faults are settings of the emulated driver");
}
