/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait seconds=20 */
/*
 * gpu_lost - goal: a GPU that fails harms its own ops alone. They fail with -EIO, the connections
 * that had memory of it are cut with the driver's words, the GPU comes back in a new context, and
 * stays out when it fails again and again; an engine on the CPU goes on throughout. A call of the
 * driver that fails or hangs ends its own job, and no more. Method: the emulated driver breaks the
 * daemon's context, fails or delays a call; a witness on the CPU.
 */
#include "tests/lib/lib_gpu_raw.h"

enum { N = 4, CHAIN = 5 };

static struct daemon d;
static struct witness witness;
static struct gpu gpu;

static void start(const char *settings)
{
	gpu_open(&gpu, 0);
	gpu_settings("%s", settings);
	daemon_start(&d, GPU_CONFIG("32M", "1M"));
	witness = (struct witness){ .may_miss = true };
	witness_start(&witness, d.socket);
	witness_check(&witness);
}

static void stop(void)
{
	daemon_stat_becomes(&d, "ops.outstanding", 0, PATIENT_MS);
	witness_check(&witness);
	witness_stop(&witness);
	daemon_remove(&d);
	gpu_close(&gpu);
}

static void status_says(const char *word, bool said)
{
	char text[4096];

	(void)daemon_ctl(&d, "status --json", text, sizeof(text));
	if (!!strstr(text, word) != said)
		fail_msg("status is %s", text);
}

/* The connection ends, with this word in its last ERROR, and with BYE. */
static void is_cut(struct gpu_raw *e, const char *word)
{
	struct wire_error error = { 0 };
	struct wire_head bye;

	assert_int_equal(raw_receive(&e->raw, &error, sizeof(error)), sizeof(error));
	assert_int_equal(error.head.type, WIRE_ERROR);
	assert_int_equal(error.error, -EIO);
	assert_non_null(strstr(error.text, word));
	assert_int_equal(raw_receive(&e->raw, &bye, sizeof(bye)), sizeof(bye));
	assert_int_equal(bye.type, WIRE_BYE);
	assert_int_equal(raw_receive(&e->raw, &error, sizeof(error)), 0);
}

TEST(a_broken_context_is_replaced)
{
	struct gpu_raw e;

	start("sticky=cuLaunchKernel:3");
	gpu_raw_open(&e, d.socket, &gpu, &tiny_fp8, 2 * N);
	gpu_raw_round_trip(&e, CHAIN, N);
	gpu_raw_start(&e, WIRE_OP_LOAD, CHAIN, N, N);
	is_cut(&e, "CUDA_ERROR_LAUNCH_FAILED");
	gpu_raw_close(&e);
	daemon_stat_becomes(&d, "gpu.lost_total", 1, PATIENT_MS);
	gpu_raw_open(&e, d.socket, &gpu, &tiny_fp8, 2 * N);
	daemon_stat_becomes(&d, "gpu.failed_devices", 0, PATIENT_MS);
	gpu_raw_load(&e, CHAIN, N, N);
	gpu_raw_close_all(&e);
	stop();
}

TEST(a_gpu_that_fails_always_stays_out)
{
	char text[232] = "";
	struct gpu_raw e;

	start("sticky=cuMemcpyHtoDAsync:0");
	for (uint32_t i = 1; i <= 4; i++) {
		gpu_raw_dial(&e, d.socket, &gpu, &tiny_fp8, 2 * N);
		if (gpu_raw_ask(&e, text))
			break;
		gpu_raw_start(&e, WIRE_OP_STORE, CHAIN, 0, N);
		is_cut(&e, "the GPU failed");
		gpu_raw_close(&e);
		daemon_stat_becomes(&d, "gpu.lost_total", i, PATIENT_MS);
	}
	assert_non_null(strstr(text, "cannot be used"));
	gpu_raw_close(&e);
	daemon_stat_becomes(&d, "gpu.failed_devices", 1, PATIENT_MS);
	status_says("\"status\":\"err\"", true);
	status_says("CUDA_ERROR", true);
	stop();
}

TEST(a_call_that_fails_once_fails_its_ops_alone)
{
	struct gpu_raw e;

	start("fail=cuMemcpyDtoHAsync:2:1");
	gpu_raw_open(&e, d.socket, &gpu, &tiny_fp8, 2 * N);
	gpu_raw_store(&e, CHAIN, 0, 1);
	assert_int_equal(gpu_raw_run(&e, WIRE_OP_STORE, CHAIN + 1, 0, 1).status, -EIO);
	assert_int_equal(gpu_raw_run(&e, WIRE_OP_STORE, CHAIN + 2, 0, 1).status, 0);
	gpu_raw_close_all(&e);
	assert_int_equal(daemon_stat(&d, "gpu.lost_total"), 0);
	stop();
	gpu_report_clean("kvtierd");
}

/* Nobody but the engine that asked waits for it. */
TEST(an_import_that_hangs_has_a_deadline)
{
	char text[232] = "";
	struct gpu_raw e;

	gpu_hold();
	start("held=cuIpcOpenMemHandle:1");
	gpu_raw_dial(&e, d.socket, &gpu, &tiny_fp8, 2 * N);
	assert_int_equal(gpu_raw_ask(&e, text), -ETIMEDOUT);
	assert_non_null(strstr(text, "did not answer within"));
	status_says("has taken", true);
	gpu_let_go();
	daemon_stat_becomes(&d, "gpu.failed_devices", 0, PATIENT_MS); /* it came back */
	daemon_stat_becomes(&d, "gpu.regions", 0, PATIENT_MS);
	assert_int_equal(gpu_raw_ask(&e, text), 0);
	gpu_raw_close_all(&e);
	stop();
	gpu_report_clean("kvtierd");
}

TEST_FIRST(gpu_begin(argv, "null_stream=0 one_thread=1");
	   gpu_needs_emulation("its faults are settings of the emulated driver"));
