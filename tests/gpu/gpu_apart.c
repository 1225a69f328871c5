/* SPDX-License-Identifier: Apache-2.0 */
/* make: seconds=6 */
/*
 * gpu_apart - goal: a GPU's troubles are no other GPU's business. While a call of the driver for
 * one of two GPUs does not return, engines of the other GPU and of the CPU come, store, load and
 * go, and `kvtierctl` answers; a context that breaks takes nothing of the other GPU with it.
 * Method: the emulated driver holds or breaks a call that is made in a context of the second GPU,
 * whose engine is a process of its own.
 */
#include "tests/lib/lib_gpu_raw.h"

enum { N = 4, ROUNDS = 8, HELD = 0, OTHER = 1, DEADLINE_MS = 60000 };

static struct daemon d;
static struct witness witness;
static struct gpu gpu;

/* The second GPU's engine: until it has stored and loaded. Its connection may be cut on the way,
 * and an import may be given up. */
static int engine(const char *socket)
{
	const uint64_t until = now_ns() + DEADLINE_MS * 1000000ull;
	struct gpu own;
	bool done = false;

	gpu_open(&own, 1);
	while (!done && now_ns() < until) {
		struct wire_error error;
		struct gpu_raw e;

		gpu_raw_dial(&e, socket, &own, &tiny_fp8, 2 * N);
		if (gpu_raw_ask(&e, NULL) == 0) {
			gpu_raw_fill(&e, HELD, 0, N);
			gpu_raw_start(&e, WIRE_OP_STORE, HELD, 0, N);
			while (!gpu_raw_completed(&e) && now_ns() < until &&
			       recv(e.raw.fd, &error, sizeof(error), MSG_DONTWAIT | MSG_PEEK) < 0)
				nap_ms(1);
			done = gpu_raw_completed(&e) && gpu_raw_await(&e).status == 0 &&
			       gpu_raw_run(&e, WIRE_OP_LOAD, HELD, N, N).status == 0;
			gpu_raw_all_hold(&e, HELD, N, done ? N : 0);
		}
		gpu_raw_close(&e);
	}
	gpu_close(&own);
	return done ? 0 : 1;
}

static pid_t start(const char *settings)
{
	gpu_hold();
	gpu_open(&gpu, 0);
	gpu_report_clear();
	gpu_settings("%s faulty=1", settings);
	daemon_start(&d, GPU_CONFIG("32M", "1M"));
	gpu_settings("%s", "");
	witness = (struct witness){ .may_miss = true };
	witness_start(&witness, d.socket);
	setenv("KVTIER_TEST_SOCKET", d.socket, 1);
	return gpu_spawn("engine", "", NULL);
}

static void stop(void)
{
	daemon_stat_becomes(&d, "ops.outstanding", 0, DEADLINE_MS);
	witness_check(&witness);
	witness_stop(&witness);
	daemon_remove(&d);
	gpu_close(&gpu);
}

static void comes_and_goes(void)
{
	struct gpu_raw e;

	gpu_raw_open(&e, d.socket, &gpu, &tiny_fp8, 2 * N);
	for (uint32_t i = 0; i < ROUNDS; i++)
		gpu_raw_round_trip(&e, OTHER + i, N);
	gpu_raw_close_all(&e);
}

/* The second GPU's thread is in this call from here on. */
static void held_in(const char *call)
{
	char settings[64];
	pid_t second;

	if (gpu_is_real())
		skip();
	snprintf(settings, sizeof(settings), "held=%s:1", call);
	second = start(settings);
	gpu_report_has("is held", 1);
	witness_check(&witness);
	comes_and_goes();
	(void)daemon_told(&d, "devices");
	comes_and_goes();
	witness_check(&witness);
	assert_int_equal(gpu_reported("kvtierd", "note", "goes on"), 0); /* it is held still */
	gpu_let_go();
	assert_int_equal(gpu_wait(second), 0);
	stop();
	gpu_report_clean("kvtierd");
}

TEST_DO(a_launch_that_hangs_holds_up_its_gpu_alone, held_in("cuLaunchKernel"));
TEST_DO(a_question_that_hangs_holds_up_its_gpu_alone, held_in("cuEventQuery"));
TEST_DO(an_import_that_hangs_holds_up_its_gpu_alone, held_in("cuIpcOpenMemHandle"));

/* The engine of the first GPU has the same connection all the while. */
TEST(a_broken_context_is_its_gpus_alone)
{
	struct gpu_raw e;
	pid_t second;

	if (gpu_is_real())
		skip();
	second = start("sticky=cuLaunchKernel:1");
	gpu_raw_open(&e, d.socket, &gpu, &tiny_fp8, 2 * N);
	gpu_raw_fill(&e, OTHER, 0, N);
	do {
		assert_int_equal(gpu_raw_run(&e, WIRE_OP_STORE, OTHER, 0, N).ok, N);
		assert_int_equal(gpu_raw_run(&e, WIRE_OP_LOAD, OTHER, N, N).status, 0);
	} while (daemon_stat(&d, "gpu.lost_total") == 0);
	assert_int_equal(gpu_wait(second), 0); /* it came back, in a new context */
	gpu_raw_load(&e, OTHER, N, N);
	assert_int_equal(daemon_stat(&d, "gpu.lost_total"), 1);
	gpu_raw_close_all(&e);
	stop();
}

TEST_BEGIN
{
	gpu_begin(argv, "gpus=2 null_stream=0 one_thread=1");
	if (argc > 1)
		exit(engine(getenv("KVTIER_TEST_SOCKET")));
}
