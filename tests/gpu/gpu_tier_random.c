/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait seconds=15 */
/*
 * gpu_tier_random - goal: whatever is stored, loaded, evicted and purged over the memory of two
 * GPUs, host memory and NVMe, each too small for all, by two engines on each GPU, some of which die
 * with an op under way: a block that is said to be loaded has its bytes, and no other page is
 * touched. Method: random steps; what a page must hold follows from chain and block; the emulated
 * driver runs what is queued late and in an order of its own. At the end the GPUs' tier has been
 * hit, and evicted from.
 */
#include "tests/lib/lib_gpu_raw.h"

#include <errno.h>
#include <stdio.h>

enum { GPUS = 2, ENGINES = 4, N = 6, CHAINS = 12 };

static const char config[] = "[host]\nbytes = 6M\nslab_bytes = 1M\nhuge_pages = no\n"
			     "[device]\nworkers = 2\ndepth = 16\n"
			     "[nvme]\nbytes = 16M\nsegment_bytes = 1M\n"
			     "[gpu]\ndevices = required\nstaging_bytes = 8M\nbytes = 2M\n";

static struct daemon d;
static struct gpu gpus[GPUS];
static struct random seed;

struct side {
	struct gpu_raw e;
	struct kvtier_geometry geometry;
	const struct gpu *gpu;
	enum wire_op op;
	uint32_t chain, n;
};

static void use(const struct side *s)
{
	GPU(gpu_api()->cuCtxSetCurrent(s->gpu->context));
}

static void open_side(struct side *s)
{
	use(s);
	gpu_raw_open(&s->e, d.socket, s->gpu, &s->geometry, 2 * N);
}

static void begin_op(struct side *s)
{
	struct wire_sqe sqe;

	use(s);
	s->op = random_below(&seed, 3) ? WIRE_OP_LOAD : WIRE_OP_STORE;
	s->chain = random_below(&seed, CHAINS);
	s->n = 1 + random_below(&seed, N);
	if (s->op == WIRE_OP_STORE)
		gpu_raw_fill(&s->e, s->chain, 0, s->n);
	else
		gpu_raw_poison(&s->e, N, N);
	sqe = gpu_raw_sqe(&s->e, s->op, s->chain, s->op == WIRE_OP_STORE ? 0 : N, s->n);
	if (random_below(&seed, 24) == 0)
		sqe.deadline_ns = now_ns() + random_below(&seed, 2000000);
	gpu_raw_send(&s->e, &sqe);
}

static void check(struct side *s)
{
	const int32_t *statuses =
		(const int32_t *)(const void *)((const char *)s->e.raw.complete +
						wire_status_offset(s->e.raw.ok.cq_entries));

	use(s);
	(void)gpu_raw_await(&s->e);
	for (uint32_t i = 0; i < N && s->op == WIRE_OP_LOAD; i++) {
		if (i >= s->n)
			assert_true(gpu_raw_is_poison(&s->e, N + i));
		else if (statuses[i] == 0)
			assert_true(gpu_raw_holds(&s->e, s->chain, i, N + i));
		else if (statuses[i] != -ENOENT && statuses[i] != -ENOSPC &&
			 statuses[i] != -ETIMEDOUT)
			fail_msg("block %u: status %d", i, statuses[i]);
	}
}

static void operate(void)
{
	static const char *const commands[] = {
		"evict --tier gpu --bytes 300K",
		"evict --tier gpu --all",
		"evict --bytes 1M",
		"evict --all",
		"flush",
		"purge --tenant default",
	};
	const uint32_t which = random_below(&seed, 64);
	char text[1024];

	if (which < sizeof(commands) / sizeof(commands[0]))
		(void)daemon_ctl(&d, commands[which], text, sizeof(text));
}

static void all_at_once(void **state)
{
	static struct side sides[ENGINES];
	const uint64_t rounds = env_number("STEPS", 60);

	(void)state;
	seed = random_seeded("gpu_tier_random");
	for (int i = 0; i < GPUS; i++)
		gpu_open(&gpus[i], i);
	daemon_start(&d, config);
	for (uint32_t i = 0; i < ENGINES; i++) {
		/* those of a pair share their blocks, and both GPUs have both pairs */
		sides[i].geometry = large_geometry(i < 2 ? KVTIER_CODEC_FP8 : KVTIER_CODEC_RAW);
		sides[i].gpu = &gpus[i % GPUS];
		open_side(&sides[i]);
	}
	for (uint64_t round = 0; round < rounds; round++) {
		for (uint32_t i = 0; i < ENGINES; i++)
			begin_op(&sides[i]);
		operate();
		for (uint32_t i = 0; i < ENGINES; i++) {
			if (random_below(&seed, 24) != 0) {
				check(&sides[i]);
				continue;
			}
			use(&sides[i]); /* it dies with its op under way */
			gpu_raw_close(&sides[i].e);
			open_side(&sides[i]);
		}
	}
	assert_true(daemon_stat(&d, "tiers.gpu.hit_blocks_total") > 0);
	assert_true(daemon_stat(&d, "tiers.gpu.evicted_blocks_total") > 0);
	for (uint32_t i = 0; i < ENGINES; i++) {
		use(&sides[i]);
		gpu_raw_close(&sides[i].e);
	}
	daemon_stat_becomes(&d, "gpu.regions", 0, PATIENT_MS);
	gpu_close(&gpus[1]);
	GPU(gpu_api()->cuCtxSetCurrent(gpus[0].context));
	gpu_daemon_end(&d, &gpus[0]);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(all_at_once),
	};

	(void)argc;
	gpu_begin(argv, "gpus=2 null_stream=0 one_thread=1");
	return cmocka_run_group_tests(tests, NULL, NULL);
}
