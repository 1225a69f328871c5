/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait seconds=15 needs=kvtierd_clock */
/* make: wrap=clock_gettime,epoll_wait (it holds the clock) */
/*
 * gpu_relaunch - goal: after a sticky error the driver's manual wants a new process, and the
 * driver need not give this one another context. Then kvtierd ends by itself with exit status 75,
 * whether or not an engine comes, after it has written to NVMe what memory has; engines come back
 * to the next kvtierd and reach their pages as well as before. A GPU that breaks each new process
 * stays out, and kvtierd stays up. Method: the emulated driver with heals=0, and with a reset that
 * fails.
 */
#include "tests/lib/lib_clock.h"
#include "tests/lib/lib_gpu_engine.h"
#include "tests/lib/lib_gpu_raw.h"

#include <limits.h>

#include "base/clock.h"
#include "base/loop.h"

enum {
	N = 4,
	CHAIN = 5,
	AGAIN = 75 /* kvtierd(8), EXIT STATUS */,
	TRIES = 3,
	LOSSES = 3,
	RETRY_MS = 5000,
	UNUSED_MS = 11000
};

static const char config[] = GPU_CONFIG("32M", "1M");
static const char with_nvme[] = GPU_CONFIG("32M", "1M") "[nvme]\nbytes = 64M\nsegment_bytes = 1M\n";

static struct daemon d;
static struct gpu gpu;

static void start(const char *settings, const char *text)
{
	gpu_open(&gpu, 0);
	gpu_report_clear();
	gpu_settings("%s", settings);
	clock_daemon_start(&d, text);
	gpu_settings("%s", "");
}

static void stop(void)
{
	daemon_remove(&d);
	gpu_close(&gpu);
}

static void ends_to_be_started_again(void)
{
	const int status = daemon_wait(&d, PATIENT_MS);

	if (!WIFEXITED(status) || WEXITSTATUS(status) != AGAIN)
		fail_msg("kvtierd ended with wait status %#x", (unsigned)status);
}

/* One store, whose end is of no interest. */
static void give_work(struct gpu_raw *e)
{
	gpu_raw_dial(e, d.socket, &gpu, &tiny_fp8, 2 * N);
	if (gpu_raw_ask(e, NULL))
		return;
	gpu_raw_fill(e, CHAIN, 0, N);
	gpu_raw_start(e, WIRE_OP_STORE, CHAIN, 0, N);
}

TEST(an_engine_finds_its_blocks_in_the_next_process)
{
	struct kvtier_key keys[N], more[N];
	struct gpu_engine ge;

	start("heals=0 sticky=cuLaunchKernel:3", with_nvme);
	gpu_engine_open(&ge, &gpu, d.socket, &large_fp8, 2 * N, GPU_ALLOC);
	gpu_engine_reached(&ge, "CUDA IPC");
	chain_keys(&ge.e, 1, N, keys);
	chain_keys(&ge.e, 2, N, more);
	assert_int_equal(gpu_chain_store(&ge, keys, 0, N), 0);
	(void)gpu_chain_load(&ge, keys, N, N);
	for (int i = 0; i < TRIES && gpu_chain_store(&ge, more, 0, N) == 0; i++)
		(void)gpu_chain_load(&ge, keys, N, N);
	ends_to_be_started_again();
	daemon_restart(&d);
	AWAIT(gpu_chain_load(&ge, keys, N, N) == N); /* it has to connect first */
	gpu_engine_reached(&ge, "CUDA IPC");
	gpu_engine_close(&ge);
	daemon_stat_becomes(&d, "gpu.regions", 0, PATIENT_MS);
	stop();
}

/* The next process serves it. Its opening may have ended with the connection. */
static void comes_back(struct gpu_engine *ge, bool opened)
{
	daemon_restart(&d);
	AWAIT(opened || gpu_engine_space(ge) == 0);
	gpu_engine_reached(ge, "CUDA IPC"); /* and not staged for good */
	gpu_engine_close(ge);
}

/* Whichever call breaks the context, and without another engine that asks for one. */
TEST(whatever_broke_it_the_process_ends)
{
	static const char *const calls[] = { "cuIpcOpenMemHandle:1", "cuMemHostRegister:1:226",
					     "cuEventQuery:1:220", "cuLaunchKernel:1:911",
					     "cuStreamQuery:1:214" };
	struct kvtier_key keys[N];
	struct gpu_engine ge;
	char settings[128];
	bool opened;

	for (size_t i = 0; i < sizeof(calls) / sizeof(*calls); i++) {
		snprintf(settings, sizeof(settings), "heals=0 sticky=%s", calls[i]);
		print_message("%s\n", settings);
		start(settings, config);
		gpu_engine_connect(&ge, &gpu, d.socket, &tiny_fp8, 2 * N, GPU_ALLOC);
		opened = gpu_engine_space(&ge) == 0;
		if (opened) {
			chain_keys(&ge.e, 1, N, keys);
			(void)gpu_chain_store(&ge, keys, 0, N);
		}
		ends_to_be_started_again();
		comes_back(&ge, opened);
		stop();
	}
}

/* The context's own end is the last place where it may break. */
TEST(a_context_that_breaks_as_it_is_closed_ends_the_process)
{
	struct gpu_raw e;

	start("heals=0 sticky=cuStreamDestroy:1", config);
	gpu_raw_open(&e, d.socket, &gpu, &tiny_fp8, 2 * N);
	gpu_raw_close_all(&e);
	daemon_stat_becomes(&d, "gpu.regions", 0, PATIENT_MS);
	clock_pass_ms(UNUSED_MS);
	ends_to_be_started_again();
	stop();
}

static void stays_out(const char *words)
{
	struct wire_region region;
	struct gpu_raw e;

	gpu_raw_dial(&e, d.socket, &gpu, &tiny_fp8, 2 * N);
	region = gpu_raw_region(&e);
	gpu_raw_space_refused(&e, &region, -1, -ENODEV, words);
	daemon_stat_becomes(&d, "gpu.failed_devices", 1, PATIENT_MS);
	gpu_raw_close(&e);
}

/* Work of a context that is not reset may go on: its pages are the engine's when the process is
 * gone, and not before. */
TEST(a_reset_that_fails_ends_the_process)
{
	struct gpu_raw e;

	start("sticky=cuLaunchKernel:1 fail=cuDevicePrimaryCtxReset:0:708", config);
	give_work(&e);
	gpu_report_has("is broken from now on", 1);
	clock_hurry(true);
	ends_to_be_started_again();
	clock_hurry(false);
	assert_false(gpu_raw_completed(&e));
	gpu_raw_close(&e);
	stop();
}

/* Three at the same time: a number a line, in the file of this GPU. */
static void leave_losses(uint64_t at_ns)
{
	uint8_t uuid[WIRE_UUID_BYTES];
	char path[PATH_MAX];
	FILE *file;
	int n = snprintf(path, sizeof(path), "%s/gpu-", d.disk[0] ? d.disk : d.dir);

	gpu_uuid(&gpu, uuid);
	for (int i = 0; i < WIRE_UUID_BYTES; i++)
		n += snprintf(path + n, sizeof(path) - (size_t)n, "%02x", uuid[i]);
	(void)snprintf(path + n, sizeof(path) - (size_t)n, ".losses");
	file = fopen(path, "w");
	assert_non_null(file);
	for (int i = 0; i < LOSSES; i++)
		(void)fprintf(file, "%" PRIu64 "\n", at_ns);
	assert_int_equal(fclose(file), 0);
}

/* The last of the processes before has left the times. */
TEST(a_gpu_that_has_ended_too_many_is_not_tried)
{
	struct gpu_raw e;

	start("", config);
	leave_losses(clock_ns());
	stays_out("3 times within a minute");
	clock_pass_ms(61000);
	daemon_signal(&d, SIGTERM);
	daemon_restart(&d);
	gpu_raw_open(&e, d.socket, &gpu, &tiny_fp8, 2 * N); /* that was long ago */
	gpu_raw_close_all(&e);
	stop();
}

/* Each process has its own loss; the third one within a minute ends no process any more. */
TEST(a_gpu_that_breaks_each_process_stays_out)
{
	struct gpu_raw e;

	start("heals=0 sticky=cuLaunchKernel:1", config);
	gpu_settings("heals=0 sticky=cuLaunchKernel:1");
	for (int i = 1; i < LOSSES; i++) {
		give_work(&e);
		ends_to_be_started_again();
		gpu_raw_close(&e);
		daemon_restart(&d);
	}
	gpu_settings("%s", "");
	give_work(&e);
	daemon_stat_becomes(&d, "gpu.lost_total", 1, PATIENT_MS);
	gpu_raw_close(&e);
	stays_out("CUDA_ERROR_LAUNCH_FAILED");
	stop();
}

/* Memory that others have taken meanwhile says nothing about the process. */
TEST(a_gpu_without_memory_is_waited_for)
{
	struct wire_region region;
	struct gpu_raw e;

	start("sticky=cuLaunchKernel:1 fail=cuDevicePrimaryCtxRetain:2:2", config);
	give_work(&e);
	daemon_stat_becomes(&d, "gpu.lost_total", 1, PATIENT_MS);
	gpu_raw_close(&e);
	gpu_raw_dial(&e, d.socket, &gpu, &tiny_fp8, 2 * N);
	region = gpu_raw_region(&e);
	gpu_raw_space_refused(&e, &region, -1, -ENODEV, "OUT_OF_MEMORY");
	clock_pass_ms(RETRY_MS);
	gpu_raw_open_again(&e);
	gpu_raw_close_all(&e);
	stop();
}

/* The first import makes the context: libkvtier asks again, and is not staged for good. */
TEST(a_first_context_that_breaks_is_made_anew)
{
	struct gpu_engine ge;

	start("sticky=cuStreamCreateWithPriority:1", config);
	gpu_engine_open(&ge, &gpu, d.socket, &tiny_fp8, 2 * N, GPU_ALLOC);
	gpu_engine_reached(&ge, "CUDA IPC");
	gpu_engine_close(&ge);
	daemon_stat_becomes(&d, "gpu.regions", 0, PATIENT_MS);
	stop();
	gpu_report_clean("kvtierd");
}

TEST_FIRST(gpu_begin(argv, "null_stream=0 one_thread=1");
	   gpu_needs_emulation("its faults are settings of the emulated driver"));
