/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait seconds=8 */
/*
 * gpu_tier_four - goal: one load gives all blocks of a prompt, bit for bit: two each from the
 * memory of the GPU, host memory, NVMe and Redis. `kvtierctl stats` says which tier each was found
 * in. Near blocks are in their pages while far ones are waited for.
 * Method: a real daemon and a real redis-server; a purge leaves all blocks in Redis, and blocks
 * that are stored again are put into their tiers by flush, evict, load and prefetch.
 */
#include "tests/lib/lib_gpu_raw.h"
#include "tests/lib/lib_redis.h"
#include "tests/lib/test.h"

#include <signal.h>
#include <stdio.h>

enum { EACH = 2, N = 4 * EACH, LOCAL = 3 * EACH, CHAIN = 9 };

static const char *const tiers[] = { "gpu", "host", "nvme", "redis" };

static struct daemon d;
static struct gpu gpu;
static struct redis_server redis;
static struct gpu_raw e;

static void tell(const char *command)
{
	char text[1024];

	if (daemon_ctl(&d, command, text, sizeof(text)) != 0)
		fail_msg("kvtierctl %s: %s", command, text);
}

static uint64_t hits(const char *tier)
{
	char path[64];

	(void)snprintf(path, sizeof(path), "tiers.%s.hit_blocks_total", tier);
	return daemon_stat(&d, path);
}

static void run(enum wire_op op, uint32_t first, uint32_t n)
{
	struct wire_sqe sqe = gpu_raw_sqe(&e, op, CHAIN, first, n);
	struct wire_cqe cqe;

	gpu_raw_send(&e, &sqe);
	cqe = gpu_raw_await(&e);
	assert_int_equal(cqe.status, 0);
	assert_int_equal(cqe.ok, n);
}

/* The blocks [EACH, 2 * EACH): a chain of their own for an entry, which names n keys. */
static void prefetch_second_pair(void)
{
	struct wire_sqe sqe = gpu_raw_sqe(&e, WIRE_OP_PREFETCH, CHAIN, 0, 2 * EACH);

	sqe.first = EACH;
	sqe.n = EACH;
	gpu_raw_send(&e, &sqe);
	assert_int_equal(gpu_raw_await(&e).ok, EACH);
}

/* One op, while Redis stands still: the blocks of the other tiers do not wait for it. */
static void load_with_redis_late(void)
{
	const uint64_t until = now_ns() + PATIENT_MS * 1000000ull;
	struct wire_sqe sqe = gpu_raw_sqe(&e, WIRE_OP_LOAD, CHAIN, N, N);
	struct wire_cqe cqe;

	redis_signal(&redis, SIGSTOP);
	gpu_raw_send(&e, &sqe);
	for (uint32_t i = 0; i < LOCAL; i++)
		for (; !gpu_raw_holds(&e, CHAIN, i, N + i); nap_ms(1))
			if (now_ns() > until)
				fail_msg("block %u waits for Redis", i);
	assert_false(gpu_raw_completed(&e));
	assert_false(gpu_raw_holds(&e, CHAIN, LOCAL, N + LOCAL));
	redis_signal(&redis, SIGCONT);
	cqe = gpu_raw_await(&e);
	assert_int_equal(cqe.status, 0);
	assert_int_equal(cqe.ok, N);
}

TEST(each_tier_is_credited_with_its_blocks)
{
	const struct kvtier_geometry geometry = large_geometry(KVTIER_CODEC_FP8);
	char config[2048];
	uint64_t before[4];

	redis_start(&redis, NULL);
	gpu_open(&gpu, 0);
	(void)snprintf(config, sizeof(config),
		       "[host]\nbytes = 32M\nslab_bytes = 1M\nhuge_pages = no\n"
		       "[gpu]\ndevices = required\nstaging_bytes = 8M\nbytes = 8M\n"
		       "[nvme]\nbytes = 64M\nsegment_bytes = 1M\n"
		       "[redis]\nendpoints = %s\ntimeout_ms = 20000\n",
		       redis.address);
	daemon_start(&d, config);
	gpu_raw_open(&e, d.socket, &gpu, &geometry, 2 * N);
	gpu_raw_fill(&e, CHAIN, 0, N);
	run(WIRE_OP_STORE, 0, N);
	daemon_stat_becomes(&d, "tiers.redis.written_blocks_total", N, PATIENT_MS);
	tell("purge --tenant default");
	daemon_stat_becomes(&d, "tiers.gpu.blocks", 0, PATIENT_MS);
	run(WIRE_OP_STORE, 0, LOCAL);
	tell("flush");
	tell("evict --tier gpu --all");
	run(WIRE_OP_LOAD, 0, EACH); /* these come to the GPU */
	tell("evict --all");
	daemon_stat_becomes(&d, "tiers.host.blocks", 0, PATIENT_MS);
	daemon_stat_becomes(&d, "tiers.gpu.blocks", EACH, PATIENT_MS);
	prefetch_second_pair();
	daemon_stat_becomes(&d, "tiers.host.blocks", EACH, PATIENT_MS);
	for (int i = 0; i < 4; i++)
		before[i] = hits(tiers[i]);
	gpu_raw_poison(&e, N, N);
	load_with_redis_late();
	for (uint32_t i = 0; i < N; i++)
		assert_true(gpu_raw_holds(&e, CHAIN, i, N + i));
	for (int i = 0; i < 4; i++)
		assert_int_equal(hits(tiers[i]) - before[i], EACH);
	/* and blocks that came passed through the GPU's memory: all of them are there now */
	gpu_raw_poison(&e, N, N);
	run(WIRE_OP_LOAD, N, N);
	for (uint32_t i = 0; i < N; i++)
		assert_true(gpu_raw_holds(&e, CHAIN, i, N + i));
	assert_int_equal(hits("gpu") - before[0], EACH + N);
	gpu_raw_close_space(&e);
	gpu_raw_close(&e);
	gpu_daemon_end(&d, &gpu);
	redis_stop(&redis);
}

TEST_BEGIN
{
	gpu_begin(argv, "null_stream=0 one_thread=1");
	redis_needed();
}
