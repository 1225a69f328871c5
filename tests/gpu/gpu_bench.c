/* SPDX-License-Identifier: Apache-2.0 */
/* make: seconds=10 */
/*
 * gpu_bench - goal: the benchmarks of a GPU run as they say, without a mistake against the driver's
 * rules, so that they need no repair where a GPU can be had for an hour. Method: each case once, on
 * little memory. On the emulated driver its figures mean nothing, and nothing is asserted of them.
 */
#include "tests/lib/lib.h"
#include "tests/lib/lib_gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const cases[] = {
	"cuda.encode",        "cuda.decode",      "cuda.encode.rows656", "cuda.decode.rows656",
	"cuda.d2h",           "cuda.h2d",         "cuda.both",           "cuda.register",
	"cuda.traffic",       "cuda.step",        "cuda.pin.gpu",        "cuda.pin.cpu",
	"cuda.layers.first",  "cuda.store.fp8",   "cuda.store.raw",      "cuda.load.fp8",
	"cuda.load.raw",      "cuda.hit",         "cuda.beside.submit",  "cuda.beside.prefetch",
	"cuda.beside.lookup", "cuda.encode.wire", "cuda.decode.wire",    "cuda.encode.device",
	"cuda.decode.device",
};

static void each_case_runs(void **state)
{
	static char text[16384];
	char command[512], line[64];

	(void)state;
	setenv("KVTIER_BENCH_CUDA_MIB", "4", 1);
	snprintf(command, sizeof(command), "%s/kvtier-bench --json cuda", build_dir());
	(void)shell(command, text, sizeof(text)); /* its status says whether goals were reached */
	if (strstr(text, "built without nvcc"))
		skip();
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		snprintf(line, sizeof(line), "{\"case\":\"%s\",\"value\":", cases[i]);
		if (!strstr(text, line))
			fail_msg("%s is not in the output: %s", cases[i], text);
	}
	gpu_report_clean("kvtier-bench");
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_case_runs),
	};

	(void)argc;
	gpu_begin(argv, "null_stream=0 one_thread=1 late=0");
	return cmocka_run_group_tests(tests, NULL, NULL);
}
