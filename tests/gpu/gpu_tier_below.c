/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait seconds=6 */
/*
 * gpu_tier_below - goal: a GPU's blocks do not need host memory. A block whose host copy went to
 * NVMe is served from the GPU's memory, and nothing is read from the disk for it. Once the GPU has
 * dropped it, too, it comes from NVMe with its bytes, and is kept on the GPU as it passes. Method:
 * the host copies are evicted by the operator, or pushed out by more blocks than host memory holds;
 * gauges say where each load came from.
 */
#include "tests/lib/lib_gpu_raw.h"
#include "tests/lib/test.h"

enum { N = 8, CHAINS = 16 };

static const char config[] = "[host]\nbytes = 2M\nslab_bytes = 1M\nhuge_pages = no\n"
			     "[device]\nworkers = 2\ndepth = 16\n"
			     "[nvme]\nbytes = 64M\nsegment_bytes = 1M\n"
			     "[gpu]\ndevices = required\nstaging_bytes = 8M\nbytes = 32M\n";

static struct daemon d;
static struct gpu gpu;
static struct gpu_raw e;

FIXTURE(begin)
{
	const struct kvtier_geometry g = large_geometry(KVTIER_CODEC_FP8);

	gpu_open(&gpu, 0);
	daemon_start(&d, config);
	gpu_raw_open(&e, d.socket, &gpu, &g, 2 * N);
	return 0;
}

FIXTURE(end)
{
	gpu_raw_close_space(&e);
	gpu_raw_close(&e);
	gpu_daemon_end(&d, &gpu);
	return 0;
}

TEST_EACH(begin, end);

static void store(uint32_t chain)
{
	gpu_raw_fill(&e, chain, 0, N);
	assert_int_equal(gpu_raw_run(&e, WIRE_OP_STORE, chain, 0, N).status, 0);
}

static void load(uint32_t chain)
{
	struct wire_cqe cqe;

	gpu_raw_poison(&e, N, N);
	cqe = gpu_raw_run(&e, WIRE_OP_LOAD, chain, N, N);
	assert_int_equal(cqe.status, 0);
	assert_int_equal(cqe.ok, N);
	for (uint32_t i = 0; i < N; i++)
		assert_true(gpu_raw_holds(&e, chain, i, N + i));
}

/* Blocks loaded up to now, by where they came from. */
static void came_from(uint64_t on_gpu, uint64_t host, uint64_t nvme)
{
	assert_int_equal(daemon_stat(&d, "tiers.gpu.hit_blocks_total"), on_gpu);
	assert_int_equal(daemon_stat(&d, "tiers.host.hit_blocks_total"), host);
	assert_int_equal(daemon_stat(&d, "tiers.nvme.hit_blocks_total"), nvme);
}

static void operate(const char *command)
{
	char text[512];

	if (daemon_ctl(&d, command, text, sizeof(text)) != 0)
		fail_msg("kvtierctl %s: %s", command, text);
}

/* The GPU and NVMe have the chain, and host memory has nothing. */
static void leave_host_memory(void)
{
	operate("flush");
	operate("evict --all");
	daemon_stat_becomes(&d, "tiers.host.blocks", 0, PATIENT_MS);
	daemon_stat_becomes(&d, "tiers.gpu.blocks", N, PATIENT_MS);
	daemon_stat_becomes(&d, "tiers.nvme.blocks", N, PATIENT_MS);
}

TEST(what_went_to_nvme_is_served_by_the_gpu)
{
	store(1);
	leave_host_memory();
	load(1);
	load(1);
	came_from(2 * N, 0, 0);
	/* nor did it come back to host memory */
	daemon_stat_becomes(&d, "tiers.host.blocks", 0, PATIENT_MS);
}

TEST(what_the_gpu_dropped_then_comes_from_nvme)
{
	store(1);
	leave_host_memory();
	operate("evict --tier gpu --all");
	daemon_stat_becomes(&d, "tiers.gpu.blocks", 0, PATIENT_MS);
	load(1);
	came_from(0, 0, N);
	load(1);
	came_from(N, 0, N);
	/* from there the host copies may go once more */
	leave_host_memory();
	load(1);
	came_from(2 * N, 0, N);
}

/* Host memory has room for a few of the chains. */
TEST(what_was_pushed_out_is_served_by_the_gpu)
{
	for (uint32_t chain = 1; chain <= CHAINS; chain++) {
		store(chain);
		operate("flush");
	}
	daemon_stat_becomes(&d, "tiers.gpu.blocks", CHAINS * N, PATIENT_MS);
	daemon_stat_becomes(&d, "tiers.nvme.blocks", CHAINS * N, PATIENT_MS);
	assert_true(daemon_stat(&d, "tiers.host.blocks") < CHAINS * N / 2);
	for (uint32_t chain = 1; chain <= CHAINS; chain++)
		load(chain);
	came_from(CHAINS * N, 0, 0);
	operate("evict --tier gpu --all");
	operate("evict --all");
	for (uint32_t chain = 1; chain <= CHAINS; chain++)
		load(chain);
	came_from(CHAINS * N, 0, CHAINS * N);
}

TEST_BEGIN
{
	gpu_begin(argv, "null_stream=0 one_thread=1");
}
