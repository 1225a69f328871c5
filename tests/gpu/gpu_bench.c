/* SPDX-License-Identifier: Apache-2.0 */
/* make: seconds=14 */
/*
 * gpu_bench - goal: the benchmarks of a GPU run as they say, without a mistake against the driver's
 * rules, so that they need no repair where a GPU can be had for an hour. A client whose pages are
 * staged is not measured. Method: each case once, on little memory; a driver that opens no handle.
 * On the emulated driver figures mean nothing, and nothing is asserted of them.
 */
#include "tests/lib/lib.h"
#include "tests/lib/lib_gpu.h"

static const char *const cases[] = {
	"cuda.step.daemon.hit", "cuda.encode",        "cuda.decode",      "cuda.encode.rows656",
	"cuda.decode.rows656",  "cuda.d2h",           "cuda.h2d",         "cuda.both",
	"cuda.register",        "cuda.traffic",       "cuda.step",        "cuda.pin.gpu",
	"cuda.pin.cpu",         "cuda.layers.first",  "cuda.store.fp8",   "cuda.store.raw",
	"cuda.load.fp8",        "cuda.load.raw",      "cuda.hit",         "cuda.beside.submit",
	"cuda.beside.prefetch", "cuda.beside.lookup", "cuda.encode.wire", "cuda.decode.wire",
	"cuda.encode.device",   "cuda.decode.device", "cuda.step.daemon", "cuda.encode.int8",
	"cuda.decode.int8",     "cuda.encode.q4",     "cuda.decode.q4",
};

/* The output of these cases; the test is skipped where there are no kernels to run. */
static int bench(const char *names, char *ret, size_t n)
{
	char command[512];
	int status;

	setenv("KVTIER_BENCH_CUDA_MIB", "4", 1);
	snprintf(command, sizeof(command), "%s/kvtier-bench --json %s", build_dir(), names);
	status = shell(command, ret, n);
	if (strstr(ret, "no CUDA kernels inside"))
		skip();
	return status;
}

TEST(each_case_runs)
{
	static char text[16384];
	char line[64];
	int status;

	status = bench("cuda", text, sizeof(text));
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		snprintf(line, sizeof(line), "{\"case\":\"%s\",\"value\":", cases[i]);
		if (!strstr(text, line))
			fail_msg("%s is not in the output: %s", cases[i], text);
	}
	assert_int_equal(status, 0);
	gpu_report_clean("kvtier-bench");
}

TEST(staged_pages_are_not_measured)
{
	char text[4096];
	int status;

	if (gpu_is_real())
		skip();
	gpu_settings("fail=cuIpcOpenMemHandle:0:1");
	status = bench("cuda.step.", text, sizeof(text));
	gpu_settings("%s", "");
	if (!strstr(text, "{\"case\":\"cuda.step.daemon\",\"error\":\"not measured: ") ||
	    !strstr(text, "CUDA staged: regions[0]: cuIpcOpenMemHandle"))
		fail_msg("the cases with staged pages: %s", text);
	assert_int_equal(status, 1);
	gpu_report_clean("kvtier-bench");
}

TEST_FIRST(gpu_begin(argv, "null_stream=0 late=0"));
