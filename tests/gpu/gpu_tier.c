/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait seconds=10 */
/*
 * gpu_tier - goal: with [gpu] bytes a block that an engine on a GPU stores or loads is kept in that
 * GPU's memory, and the next load comes from there: no byte crosses the wire. The bytes are right
 * for images that share a lane, for an image of many lanes, and for one that FP8 cannot hold. A
 * lookup says KVTIER_TIER_GPU to engines on that GPU alone. A block that was evicted there comes
 * from host memory, and is kept again. A hit has twice the thread blocks of
 * another kernel. Method: the trace of the emulated driver, gauges; the wire by hand.
 */
#include "tests/lib/lib_gpu_engine.h"
#include "tests/lib/lib_gpu_raw.h"
#include "tests/lib/test.h"

#include <stdio.h>
#include <string.h>

enum { N = 8, CHAIN = 3, MAX_CTAS = 2 /* of the configuration */ };

static const char config[] = GPU_CONFIG("256M", "16M") "bytes = 64M\nmax_ctas = 2\n";

static struct daemon d;
static struct gpu gpu;

FIXTURE(begin)
{
	return gpu_daemon_begin(&d, &gpu, config);
}

FIXTURE(end)
{
	return gpu_daemon_end(&d, &gpu);
}

TEST_EACH(begin, end);

/* --- the driver's trace --- */

struct crossed {
	unsigned long long in, out, kernels;
	unsigned long long wide; /* kernels of more than MAX_CTAS blocks */
};

/* The queued operations. A small copy in is a layout of pages. */
static void look(void *arg, const char *said)
{
	unsigned long long ticket, stream, bytes;
	struct crossed *seen = arg;
	char what[16], call[64];
	int priority;
	unsigned grid;

	if (sscanf(said, "%15s %63s ticket %llu stream %llu priority %d bytes %llu grid %u", what,
		   call, &ticket, &stream, &priority, &bytes, &grid) != 7 ||
	    strcmp(what, "queued") != 0)
		return;
	seen->in += strcmp(call, "cuMemcpyHtoDAsync") == 0 ? bytes : 0;
	seen->out += strcmp(call, "cuMemcpyDtoHAsync") == 0 ? bytes : 0;
	seen->kernels += strcmp(call, "cuLaunchKernel") == 0;
	seen->wide += strcmp(call, "cuLaunchKernel") == 0 && grid > MAX_CTAS;
	assert_true(grid <= 2 * MAX_CTAS);
}

static struct crossed crossed(void)
{
	struct crossed ret = { 0 };

	gpu_report_each("kvtierd", "note", look, &ret);
	return ret;
}

static uint64_t gpu_hits(void)
{
	return daemon_stat(&d, "tiers.gpu.hit_blocks_total");
}

static uint64_t host_hits(void)
{
	return daemon_stat(&d, "tiers.host.hit_blocks_total");
}

/* --- a chain --- */

static void store(struct gpu_raw *e, uint32_t chain, uint32_t n)
{
	gpu_raw_fill(e, chain, 0, n);
	assert_int_equal(gpu_raw_run(e, WIRE_OP_STORE, chain, 0, n).status, 0);
}

static void load(struct gpu_raw *e, uint32_t chain, uint32_t n)
{
	struct wire_cqe cqe;

	gpu_raw_poison(e, n, n);
	cqe = gpu_raw_run(e, WIRE_OP_LOAD, chain, n, n);
	assert_int_equal(cqe.status, 0);
	assert_int_equal(cqe.ok, n);
	for (uint32_t i = 0; i < n; i++)
		assert_true(gpu_raw_holds(e, chain, i, n + i));
}

static void hits_cross_no_wire(const struct kvtier_geometry *g, uint32_t n)
{
	const uint64_t before = gpu_hits(), host = host_hits();
	struct crossed stored, hit;
	struct gpu_raw e;

	gpu_raw_open(&e, d.socket, &gpu, g, 2 * n);
	store(&e, CHAIN, n);
	stored = crossed();
	assert_true(stored.out > 0 || gpu_is_real());
	for (int i = 0; i < 3; i++)
		load(&e, CHAIN, n);
	hit = crossed();
	if (!gpu_is_real()) {
		assert_int_equal(hit.in, stored.in);
		assert_int_equal(hit.out, stored.out);
		assert_true(hit.kernels > stored.kernels);
	}
	assert_int_equal(gpu_hits() - before, 3 * n);
	assert_int_equal(host_hits(), host);
	gpu_raw_close_space(&e);
	gpu_raw_close(&e);
}

TEST(what_was_stored_is_hit_there)
{
	const struct kvtier_geometry raw = tiny_geometry(KVTIER_CODEC_RAW);
	const struct kvtier_geometry fp8 = tiny_geometry(KVTIER_CODEC_FP8);

	hits_cross_no_wire(&raw, N);
	hits_cross_no_wire(&fp8, N);
	daemon_stat_becomes(&d, "tiers.gpu.blocks", 2 * N, PATIENT_MS);
}

/* Each takes several lanes of 1 MiB. */
TEST(a_block_of_many_lanes_is_hit_there)
{
	struct kvtier_geometry g = large_geometry(KVTIER_CODEC_FP8);

	g.layers = 16;
	g.kv_heads = 8;
	g.head_dim_k = g.head_dim_v = 256;
	hits_cross_no_wire(&g, 3);
}

TEST(a_hit_has_twice_the_thread_blocks)
{
	const struct kvtier_geometry g = large_geometry(KVTIER_CODEC_FP8);
	unsigned long long wide;
	struct gpu_raw e;

	gpu_needs_emulation("only its driver's report says how many blocks a kernel has");
	gpu_raw_open(&e, d.socket, &gpu, &g, 2 * N);
	wide = crossed().wide;
	store(&e, CHAIN, N);
	assert_int_equal(crossed().wide, wide);
	load(&e, CHAIN, N);
	assert_int_equal(gpu_hits(), N);
	assert_true(crossed().wide > wide);
	gpu_raw_close_space(&e);
	gpu_raw_close(&e);
}

TEST(a_block_that_fp8_cannot_hold_is_hit_there)
{
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_FP8);
	struct gpu_raw e;

	gpu_raw_open(&e, d.socket, &gpu, &g, 2 * N);
	gpu_raw_fill(&e, CHAIN, 0, N);
	gpu_raw_spoil(&e, 3);
	assert_int_equal(gpu_raw_run(&e, WIRE_OP_STORE, CHAIN, 0, N).status, 0);
	gpu_raw_poison(&e, N, N);
	assert_int_equal(gpu_raw_run(&e, WIRE_OP_LOAD, CHAIN, N, N).status, 0);
	for (uint32_t i = 0; i < N; i++)
		assert_true(i == 3 ? gpu_raw_is_spoilt(&e, CHAIN, i, N + i) :
				     gpu_raw_holds(&e, CHAIN, i, N + i));
	assert_int_equal(gpu_hits(), N);
	gpu_raw_close_space(&e);
	gpu_raw_close(&e);
}

/* An engine on the CPU stored it: the first load brings it, the second finds it. */
TEST(a_load_brings_it_as_it_passes)
{
	const struct kvtier_geometry g = large_geometry(KVTIER_CODEC_FP8);
	struct gpu_raw on_gpu, on_cpu;

	gpu_raw_open_host(&on_cpu, d.socket, &g, N);
	gpu_raw_open(&on_gpu, d.socket, &gpu, &g, 2 * N);
	gpu_raw_fill(&on_cpu, CHAIN, 0, N);
	assert_int_equal(gpu_raw_run(&on_cpu, WIRE_OP_STORE, CHAIN, 0, N).status, 0);
	load(&on_gpu, CHAIN, N);
	assert_int_equal(gpu_hits(), 0);
	assert_int_equal(host_hits(), N);
	load(&on_gpu, CHAIN, N);
	assert_int_equal(gpu_hits(), N);
	assert_int_equal(host_hits(), N);
	/* and the engine on the CPU has it from host memory */
	gpu_raw_poison(&on_cpu, 0, N);
	assert_int_equal(gpu_raw_run(&on_cpu, WIRE_OP_LOAD, CHAIN, 0, N).status, 0);
	for (uint32_t i = 0; i < N; i++)
		assert_true(gpu_raw_holds(&on_cpu, CHAIN, i, i));
	assert_int_equal(host_hits(), 2 * N);
	gpu_raw_close(&on_cpu);
	gpu_raw_close_space(&on_gpu);
	gpu_raw_close(&on_gpu);
}

TEST(what_was_evicted_there_comes_from_the_host)
{
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_FP8);
	struct gpu_raw e;
	char text[512];

	gpu_raw_open(&e, d.socket, &gpu, &g, 2 * N);
	store(&e, CHAIN, N);
	assert_int_equal(daemon_ctl(&d, "evict --tier gpu --all", text, sizeof(text)), 0);
	daemon_stat_becomes(&d, "tiers.gpu.blocks", 0, PATIENT_MS);
	daemon_stat_becomes(&d, "tiers.host.blocks", N, PATIENT_MS);
	assert_int_equal(daemon_stat(&d, "tiers.gpu.evicted_blocks_total"), N);
	load(&e, CHAIN, N);
	assert_int_equal(gpu_hits(), 0);
	load(&e, CHAIN, N);
	assert_int_equal(gpu_hits(), N);
	gpu_raw_close_space(&e);
	gpu_raw_close(&e);
}

/* --- lookups --- */

static uint32_t tiers_seen(struct engine *e, const struct kvtier_key *keys)
{
	struct kvtier_hit hit = { .size = sizeof(hit) };

	assert_int_equal(kvtier_lookup(e->space, keys, N, &hit), 0);
	assert_int_equal(hit.blocks, N);
	return hit.tiers;
}

TEST(a_lookup_tells_engines_on_that_gpu)
{
	const struct kvtier_geometry g = large_geometry(KVTIER_CODEC_FP8);
	struct gpu_engine here, there;
	struct kvtier_key keys[N];
	struct engine on_cpu;
	struct gpu other;

	if (gpu_count() < 2)
		skip();
	gpu_engine_open(&here, &gpu, d.socket, &g, N, GPU_ALLOC);
	engine_open(&on_cpu, d.socket, "on the CPU", &g, N);
	chain_keys(&here.e, CHAIN, N, keys);
	assert_int_equal(gpu_chain_store(&here, keys, 0, N), 0);
	gpu_open(&other, 1);
	gpu_engine_open(&there, &other, d.socket, &g, N, GPU_ALLOC);
	assert_int_equal(tiers_seen(&here.e, keys), KVTIER_TIER_GPU | KVTIER_TIER_HOST);
	assert_int_equal(tiers_seen(&there.e, keys), KVTIER_TIER_HOST);
	assert_int_equal(tiers_seen(&on_cpu, keys), KVTIER_TIER_HOST);
	/* a block that is used on two GPUs is cached on both */
	assert_int_equal(gpu_chain_load(&there, keys, 0, N), N);
	assert_int_equal(gpu_hits(), 0);
	assert_int_equal(tiers_seen(&there.e, keys), KVTIER_TIER_GPU | KVTIER_TIER_HOST);
	assert_int_equal(gpu_chain_load(&there, keys, 0, N), N);
	assert_int_equal(gpu_hits(), N);
	gpu_engine_close(&there);
	gpu_close(&other);
	GPU(gpu_api()->cuCtxSetCurrent(gpu.context));
	assert_int_equal(gpu_chain_load(&here, keys, 0, N), N);
	assert_int_equal(gpu_hits(), 2 * N);
	engine_close(&on_cpu);
	gpu_engine_close(&here);
}

TEST_BEGIN
{
	gpu_begin(argv, "gpus=2 null_stream=0 one_thread=1 trace=1 zeroed=64");
}
