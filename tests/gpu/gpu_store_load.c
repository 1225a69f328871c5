/* SPDX-License-Identifier: Apache-2.0 */
/* make: seconds=6 */
/*
 * gpu_store_load - goal: an engine loads blocks that it stored from the memory of a GPU, bit for
 * bit, through the real daemon; also when images are larger than a lane, when FP8 cannot hold a
 * block, and when an engine on the CPU stored it or loads it. The GPU's thread sleeps when nothing
 * is under way. Nothing of the daemon is left on the GPU after a stop. Method: the wire by hand
 * (lib_gpu_raw.h), pages poisoned before each load.
 */
#include "tests/lib/lib_gpu_raw.h"
#include "tests/lib/test.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONFIG(verify)                                                     \
	"[host]\nbytes = 256M\nslab_bytes = 64M\nhuge_pages = no\n" verify \
	"[device]\nworkers = 2\ndepth = 16\n"                              \
	"[gpu]\ndevices = required\nstaging_bytes = 8M\n"

static struct daemon d;
static struct gpu gpu;

FIXTURE(begin)
{
	return gpu_daemon_begin(&d, &gpu, CONFIG(""));
}

/* Workers have their part in each load. */
FIXTURE(begin_verifying)
{
	gpu_open(&gpu, 0);
	daemon_start(&d, CONFIG("verify = always\n"));
	return 0;
}

FIXTURE(end)
{
	return gpu_daemon_end(&d, &gpu);
}

TEST_EACH(begin, end);

static void chains_come_back(const struct kvtier_geometry *g, uint32_t chains, uint32_t n)
{
	struct gpu_raw e;

	gpu_raw_open(&e, d.socket, &gpu, g, 2 * n);
	for (uint32_t chain = 0; chain < chains; chain++) {
		struct wire_cqe cqe;

		gpu_raw_fill(&e, chain, 0, n);
		cqe = gpu_raw_run(&e, WIRE_OP_STORE, chain, 0, n);
		assert_int_equal(cqe.status, 0);
		assert_int_equal(cqe.ok, n);
		gpu_raw_poison(&e, 0, 2 * n);
		cqe = gpu_raw_run(&e, WIRE_OP_LOAD, chain, n, n);
		assert_int_equal(cqe.status, 0);
		assert_int_equal(cqe.ok, n);
		for (uint32_t i = 0; i < n; i++) {
			assert_true(gpu_raw_holds(&e, chain, i, n + i));
			assert_true(gpu_raw_is_poison(&e, i));
		}
	}
	gpu_raw_close_space(&e);
	gpu_raw_close(&e);
}

TEST(small_blocks_come_back)
{
	const struct kvtier_geometry raw = tiny_geometry(KVTIER_CODEC_RAW);
	const struct kvtier_geometry fp8 = tiny_geometry(KVTIER_CODEC_FP8);

	chains_come_back(&raw, 3, 16);
	chains_come_back(&fp8, 3, 16);
}

/* Each takes several lanes of 1 MiB. */
TEST(blocks_larger_than_a_lane_come_back)
{
	struct kvtier_geometry g = large_geometry(KVTIER_CODEC_FP8);

	g.layers = 16;
	g.kv_heads = 8;
	g.head_dim_k = g.head_dim_v = 256;
	chains_come_back(&g, 1, 3);
}

/* A block that FP8 cannot hold is kept raw, its neighbours and all later blocks in FP8. */
TEST(a_block_that_fp8_cannot_hold_is_kept_raw)
{
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_FP8);
	struct gpu_raw e;

	gpu_raw_open(&e, d.socket, &gpu, &g, 16);
	gpu_raw_fill(&e, 1, 0, 8);
	gpu_raw_spoil(&e, 3);
	assert_int_equal(gpu_raw_run(&e, WIRE_OP_STORE, 1, 0, 8).status, 0);
	assert_int_equal(daemon_stat(&d, "store.raw_blocks_total"), 1);
	gpu_raw_poison(&e, 8, 8);
	assert_int_equal(gpu_raw_run(&e, WIRE_OP_LOAD, 1, 8, 8).status, 0);
	for (uint32_t i = 0; i < 8; i++)
		assert_true(i == 3 ? gpu_raw_is_spoilt(&e, 1, i, 8 + i) :
				     gpu_raw_holds(&e, 1, i, 8 + i));
	/* each lane again, the lane with the flag, too */
	for (uint32_t chain = 2; chain < 10; chain++) {
		gpu_raw_fill(&e, chain, 0, 8);
		assert_int_equal(gpu_raw_run(&e, WIRE_OP_STORE, chain, 0, 8).ok, 8);
	}
	assert_int_equal(daemon_stat(&d, "store.raw_blocks_total"), 1);
	gpu_raw_close_space(&e);
	gpu_raw_close(&e);
}

/* Images are the same, made by either. */
TEST(engines_on_cpu_and_gpu_share_blocks)
{
	const uint32_t codecs[] = { KVTIER_CODEC_RAW, KVTIER_CODEC_FP8 };

	for (size_t c = 0; c < 2; c++) {
		const struct kvtier_geometry g = large_geometry(codecs[c]);
		struct gpu_raw on_gpu, on_cpu;

		gpu_raw_open(&on_gpu, d.socket, &gpu, &g, 8);
		gpu_raw_open_host(&on_cpu, d.socket, &g, 8);
		for (uint32_t chain = 10; chain < 14; chain++) {
			struct gpu_raw *from = chain % 2 ? &on_cpu : &on_gpu,
				       *to = chain % 2 ? &on_gpu : &on_cpu;

			gpu_raw_fill(from, chain, 0, 8);
			assert_int_equal(gpu_raw_run(from, WIRE_OP_STORE, chain, 0, 8).status, 0);
			gpu_raw_poison(to, 0, 8);
			assert_int_equal(gpu_raw_run(to, WIRE_OP_LOAD, chain, 0, 8).status, 0);
			for (uint32_t i = 0; i < 8; i++)
				assert_true(gpu_raw_holds(to, chain, i, i));
		}
		gpu_raw_close(&on_cpu);
		gpu_raw_close_space(&on_gpu);
		gpu_raw_close(&on_gpu);
	}
}

/* Of the thread of the GPU, in ticks of the clock. */
static unsigned long long cpu_used(void)
{
	char path[64], text[512] = "";
	unsigned long long user = 0, system = 0, sum = 0;
	const struct dirent *task;
	DIR *tasks;

	(void)snprintf(path, sizeof(path), "/proc/%d/task", (int)d.pid);
	tasks = opendir(path);
	assert_non_null(tasks);
	while ((task = readdir(tasks)) != NULL) {
		FILE *stat;

		(void)snprintf(path, sizeof(path), "/proc/%d/task/%d/stat", (int)d.pid,
			       atoi(task->d_name));
		stat = fopen(path, "r");
		if (stat && fgets(text, sizeof(text), stat) && strstr(text, "(kvtier-gpu)") &&
		    sscanf(strchr(text, ')'),
			   ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu", &user,
			   &system) == 2)
			sum += user + system + 1;
		if (stat)
			(void)fclose(stat);
	}
	(void)closedir(tasks);
	assert_true(sum > 0);
	return sum;
}

TEST_WITH(the_thread_sleeps_when_nothing_is_under_way, begin_verifying, end)
{
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_FP8);
	const uint64_t until = now_ns() + PATIENT_MS * 1000000ull;
	unsigned long long before, used;
	struct gpu_raw e;

	gpu_raw_open(&e, d.socket, &gpu, &g, 16);
	gpu_raw_round_trip(&e, 1, 8);
	for (used = cpu_used(), before = used + 1; before != used; used = cpu_used()) {
		if (now_ns() > until)
			fail_msg("the GPU's thread does not come to rest");
		before = used;
		nap_ms(500);
	}
	gpu_raw_close_space(&e);
	gpu_raw_close(&e);
}

TEST_BEGIN
{
	gpu_begin(argv, "null_stream=0 one_thread=1");
}
