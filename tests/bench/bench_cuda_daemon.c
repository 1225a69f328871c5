/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_cuda_daemon.c - blocks in the memory of a GPU, through client and daemon:
 *
 *	cuda.store.*	from kvtier_store() of the first op to the result of the last; wire
 *			bytes, against one copy of as many bytes down, in pieces of 64 MiB
 *	cuda.load.*	loads of these blocks from host memory, against a copy up
 *	cuda.hit	loads that the GPU has in its own memory; logical bytes, against a copy
 *			of as many bytes inside the device
 *
 * Host memory is registered before the first run. Loaded bytes are compared at both ends of each
 * page. On the emulated driver figures mean nothing.
 */

#include "bench_cuda_client.h"

enum { RUNS = 7, DIVISOR = 4, PIECE = 64 << 20, POISON = 0xa5 };

struct setup {
	enum { STORE, LOAD, HIT } what;
	uint32_t codec;
};

struct bench {
	struct cuda_client c;
	const struct setup *setup;
	uint32_t runs;
	struct kvtier_key *keys; /* of one run */
};

/* Store, load, and the copy that is the limit. */
static void one_run(struct bench *b, uint32_t run, struct bench_result *ret)
{
	const bool fp8 = b->setup->codec == KVTIER_CODEC_FP8;
	const uint32_t n = b->c.blocks;
	const double logical = (double)n * CUDA_CLIENT_PAGE, wire = fp8 ? logical / 2 : logical;
	const enum rig_copy way[] = { [STORE] = DOWN, [LOAD] = UP, [HIT] = INSIDE };
	const double bytes = b->setup->what == HIT ? logical : wire;
	uint64_t ns[2];
	double copy_s;

	bench_must(cuda_client_keys(&b->c, run, n, b->keys));
	cuda_client_fill(&b->c, 0, n, CUDA_CLIENT_VALUE);
	ns[STORE] = bench_now_ns();
	bench_must(cuda_client_move(&b->c, false, b->keys, 0, n));
	ns[STORE] = bench_now_ns() - ns[STORE];
	cuda_client_fill(&b->c, 0, n, POISON);
	ns[LOAD] = bench_now_ns();
	bench_must(cuda_client_move(&b->c, true, b->keys, 0, n));
	ns[LOAD] = bench_now_ns() - ns[LOAD];
	cuda_client_compare(&b->c, 0, n);
	copy_s = rig_copy(&b->c.rig, way[b->setup->what], (uint64_t)bytes, PIECE);
	if (run > 0) /* the first one warms up */
		bench_add(ret, bytes / (double)ns[b->setup->what == STORE ? STORE : LOAD],
			  bytes / copy_s * 1e-9);
}

static void run_daemon(const struct bench_case *self, struct bench_result *ret)
{
	struct bench *b = bench_alloc(sizeof(*b));
	struct cuda_client_setup setup = { 0 };
	const struct stats_values *v;

	b->setup = self->arg;
	rig_open(&b->c.rig, RIG_NORMAL, DIVISOR, ret);
	b->runs = b->c.rig.bytes < RIG_SMALL ? 1 : RUNS;
	setup.codec = b->setup->codec;
	setup.host_times = b->runs + 2;
	setup.gpu_times = b->setup->what == HIT;
	cuda_client_open(&b->c, &setup);
	b->keys = bench_alloc(b->c.blocks * sizeof(*b->keys));
	for (uint32_t run = 0; run <= b->runs; run++)
		one_run(b, run, ret);
	v = &b->c.d.stats->v;
	if (b->setup->what == HIT &&
	    stats_get(&v->tiers_gpu_hit_blocks_total) < (uint64_t)b->c.blocks * b->runs)
		bench_must(-ENODATA); /* something else was measured */
	bench_note(ret, "%u blocks of %d KiB; pinned %" PRIu64 " MiB", b->c.blocks,
		   CUDA_CLIENT_PAGE >> 10, stats_get(&v->tiers_host_pinned_bytes) >> 20);
}

/* clang-format off */
#define CASE(name, prose, goal, ...) \
	{ name, run_daemon, prose, goal, BENCH_MORE, "GB/s", &(const struct setup){ __VA_ARGS__ } }

const struct bench_case bench_cuda_daemon_cases[] = {
	CASE("cuda.store.fp8", "stores through the daemon, wire bytes, of a copy down", 0.9,
	     STORE, KVTIER_CODEC_FP8),
	CASE("cuda.store.raw", "the same, kept as they are", 0.9, STORE, KVTIER_CODEC_RAW),
	CASE("cuda.load.fp8", "loads from host memory, wire bytes, of a copy up", 0.9,
	     LOAD, KVTIER_CODEC_FP8),
	CASE("cuda.load.raw", "the same, kept as they are", 0.9, LOAD, KVTIER_CODEC_RAW),
	CASE("cuda.hit", "loads from the GPU's own memory, of a copy inside the device", 0.7,
	     HIT, KVTIER_CODEC_FP8),
	{ 0 },
};
/* clang-format on */
