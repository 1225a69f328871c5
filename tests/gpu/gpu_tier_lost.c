/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait seconds=8 */
/*
 * gpu_tier_lost - goal: no block is lost with a GPU. When its context breaks, all that was in its
 * memory is served from below, and is kept in the new memory as it passes; a GPU that does not give
 * the memory is served without, and `status` says so. Method: the emulated driver breaks the
 * daemon's context while the tier is full, or refuses the memory.
 */
#include "tests/lib/lib_gpu_raw.h"
#include "tests/lib/test.h"

#include <errno.h>
#include <string.h>

enum { N = 8, CHAIN = 5 };

static const char config[] = GPU_CONFIG("32M", "1M") "bytes = 4M\n";

static struct daemon d;
static struct gpu gpu;

static void start(const char *settings)
{
	gpu_open(&gpu, 0);
	gpu_settings("%s", settings);
	daemon_start(&d, config);
}

static void stop(void)
{
	daemon_stat_becomes(&d, "ops.outstanding", 0, PATIENT_MS);
	daemon_remove(&d);
	gpu_close(&gpu);
	gpu_settings("%s", "");
}

static uint64_t hits(const char *tier)
{
	return daemon_stat(&d, strcmp(tier, "gpu") ? "tiers.host.hit_blocks_total" :
						     "tiers.gpu.hit_blocks_total");
}

static void load(struct gpu_raw *e)
{
	struct wire_cqe cqe;

	gpu_raw_poison(e, N, N);
	cqe = gpu_raw_run(e, WIRE_OP_LOAD, CHAIN, N, N);
	assert_int_equal(cqe.status, 0);
	assert_int_equal(cqe.ok, N);
	for (uint32_t i = 0; i < N; i++)
		assert_true(gpu_raw_holds(e, CHAIN, i, N + i));
}

/* The third copy from host memory breaks it. */
TEST(what_a_lost_gpu_had_comes_from_below)
{
	const struct kvtier_geometry g = large_geometry(KVTIER_CODEC_FP8);
	struct gpu_raw e;

	start("sticky=cuMemcpyHtoDAsync:3");
	gpu_raw_open(&e, d.socket, &gpu, &g, 2 * N);
	gpu_raw_fill(&e, CHAIN, 0, N);
	assert_int_equal(gpu_raw_run(&e, WIRE_OP_STORE, CHAIN, 0, N).status, 0);
	load(&e);
	assert_int_equal(hits("gpu"), N);
	{
		/* blocks that host memory alone has cross the wire, where the context breaks */
		struct gpu_raw on_cpu;
		struct wire_sqe sqe;

		gpu_raw_open_host(&on_cpu, d.socket, &g, N);
		for (uint32_t chain = CHAIN + 1; chain < CHAIN + 4; chain++) {
			gpu_raw_fill(&on_cpu, chain, 0, N);
			assert_int_equal(gpu_raw_run(&on_cpu, WIRE_OP_STORE, chain, 0, N).status,
					 0);
			sqe = gpu_raw_sqe(&e, WIRE_OP_LOAD, chain, N, N);
			gpu_raw_send(&e, &sqe);
			daemon_stat_becomes(&d, "ops.outstanding", 0, PATIENT_MS);
			if (daemon_stat(&d, "gpu.lost_total"))
				break;
		}
		gpu_raw_close(&on_cpu);
	}
	daemon_stat_becomes(&d, "gpu.lost_total", 1, PATIENT_MS);
	gpu_raw_close(&e);
	daemon_stat_becomes(&d, "tiers.gpu.blocks", 0, PATIENT_MS);
	daemon_stat_becomes(&d, "tiers.gpu.used_bytes", 0, PATIENT_MS);
	gpu_raw_open(&e, d.socket, &gpu, &g, 2 * N);
	load(&e);
	assert_int_equal(hits("gpu"), N);
	load(&e);
	assert_int_equal(hits("gpu"), 2 * N);
	gpu_raw_close_space(&e);
	gpu_raw_close(&e);
	stop();
}

/* The first allocation is that of the lanes. */
TEST(memory_that_cannot_be_had_is_told_and_done_without)
{
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_FP8);
	struct gpu_raw e;
	char text[4096];

	start("fail=cuMemAlloc:2:2");
	gpu_raw_open(&e, d.socket, &gpu, &g, 2 * N);
	gpu_raw_fill(&e, CHAIN, 0, N);
	assert_int_equal(gpu_raw_run(&e, WIRE_OP_STORE, CHAIN, 0, N).status, 0);
	load(&e);
	assert_int_equal(hits("gpu"), 0);
	assert_int_equal(hits("host"), N);
	daemon_stat_becomes(&d, "tiers.gpu.capacity_bytes", 0, PATIENT_MS);
	(void)daemon_ctl(&d, "devices --json", text, sizeof(text));
	assert_non_null(strstr(text, "[gpu] bytes"));
	daemon_stat_becomes(&d, "gpu.regions", 1, PATIENT_MS);
	(void)daemon_ctl(&d, "status --json", text, sizeof(text));
	assert_non_null(strstr(text, "no_gpu_tier"));
	gpu_raw_close_space(&e);
	gpu_raw_close(&e);
	stop();
}

TEST_BEGIN
{
	gpu_begin(argv, "null_stream=0 one_thread=1");
	gpu_needs_emulation("it breaks the driver");
}
