/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait seconds=12 */
/*
 * gpu_parts_fault - goal: whichever call of the driver fails in the daemon while a region in
 * several allocations is put together, nothing is left of it, and the next engine is served.
 * Method: PARTS by hand, a store and a load, in which the n-th call fails, for each n until none is
 * left to fail.
 */
#include "tests/lib/lib_gpu_parts.h"
#include "tests/lib/test.h"

#include <string.h>

enum { N = 4, CHAIN = 2, PARTS = 4, CALLS_MAX = 2000 };

static const char config[] = "[host]\nbytes = 8M\nslab_bytes = 1M\nhuge_pages = no\n"
			     "[device]\nworkers = 1\ndepth = 16\n"
			     "[gpu]\nstaging_bytes = 8M\n";

static struct gpu gpu;
static struct gpu_range range;

/* True: all of it went well, or the daemon has said that the GPU is not to be had for now. */
static bool use(const struct daemon *d, const struct kvtier_geometry *g)
{
	struct wire_region region;
	struct gpu_parts parts;
	CUdeviceptr plain;
	char text[232] = "";
	struct gpu_raw e;
	bool good = true;

	gpu_raw_dial(&e, d->socket, &gpu, g, 2 * N);
	plain = e.memory;
	e.memory = range.base;
	e.offset = range.part_bytes - N * e.page_bytes;
	region = gpu_range_region(&range, 0, e.offset, e.pages * e.page_bytes);
	for (uint32_t at = 0; at < PARTS && good; at += 2) {
		gpu_parts_fill(&range, 0, at, 2, &parts);
		good = gpu_parts_send(&e.raw, &parts, text) == 0;
	}
	good = good && gpu_raw_space(&e, &region, 1, NULL, 0, text) == 0;
	if (good)
		gpu_raw_close_space(&e);
	e.memory = plain;
	gpu_raw_close(&e);
	return good || strstr(text, "cannot be used") || strstr(text, "no such device");
}

static bool has_failed(void)
{
	return gpu_reported("kvtierd", "note", "fails, by countdown") > 0;
}

/* A daemon whose n-th call fails. False: it made fewer calls. */
static bool daemon_with_fault(const struct kvtier_geometry *g, int n)
{
	struct daemon d;
	bool failed;

	gpu_settings("countdown=%d", n);
	daemon_start(&d, config);
	(void)use(&d, g);
	daemon_stat_becomes(&d, "gpu.regions", 0, PATIENT_MS);
	if (has_failed() && !use(&d, g))
		fail_msg("countdown=%d: the next engine is not served", n);
	daemon_stat_becomes(&d, "gpu.regions", 0, PATIENT_MS);
	daemon_remove(&d);
	failed = has_failed();
	gpu_report_clean("kvtierd");
	gpu_report_clear();
	return failed;
}

TEST(each_call_may_fail)
{
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_FP8);
	int n = 1;

	gpu_open(&gpu, 0);
	gpu_range_make(&gpu, WIRE_DEVICE_FD, PARTS, &range);
	while (daemon_with_fault(&g, n))
		n++;
	print_message("the daemon made %d calls\n", n - 1);
	assert_in_range(n, 40, CALLS_MAX);
	gpu_range_free(&range);
	gpu_close(&gpu);
}

TEST_BEGIN
{
	gpu_begin(argv, "null_stream=0");
	gpu_needs_emulation("its faults are settings of the emulated driver");
}
