/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_layers.c - loads with layer groups, from engine to engine: how soon the first group of 64
 * blocks is there, and the cost of groups for the whole load.
 *
 * Figures of the emulated driver mean nothing, but for the share: it is a share of work, and the
 * driver does all work at about the same speed.
 */
#include <dlfcn.h>

#include "bench_daemon.h"
#include "client/abi/cuda_api.h"

enum { RUNS = 15, BLOCKS = 64, GROUPS = 16, PAGE_MIB = BENCH_PAGE >> 20 };
static const char host[] = "[host]\nbytes = 512M\n";

struct timed {
	double first_s, whole_s;
};

/* groups 0: a plain load. */
static struct timed load(const struct bench_daemon *d, struct kvtier_space *space, uint32_t groups)
{
	const struct kvtier_op o = { .size = sizeof(o), .layer_groups = groups };
	struct kvtier_result result;
	uint32_t pages[BLOCKS];
	struct timed ret;
	uint64_t start, op;

	for (uint32_t i = 0; i < d->blocks; i++)
		pages[i] = i;
	start = bench_now_ns();
	bench_must(kvtier_load(space, d->keys, pages, d->blocks, &o, &op));
	if (groups > 0)
		bench_must(kvtier_wait_layers(d->client, op, 0, -1));
	ret.first_s = (double)(bench_now_ns() - start) * 1e-9;
	bench_must(bench_wait(d->client, op, &result));
	ret.whole_s = (double)(bench_now_ns() - start) * 1e-9;
	return ret;
}

static void measure_first(const struct bench_daemon *d, struct kvtier_space *space, int runs,
			  struct bench_result *ret)
{
	(void)load(d, space, GROUPS); /* warms up */
	for (int run = 0; run < runs; run++) {
		const struct timed t = load(d, space, GROUPS);

		bench_add(ret, t.first_s / t.whole_s, 1.0 / 8);
	}
}

static void measure_whole(const struct bench_daemon *d, struct bench_result *ret)
{
	const double gb = (double)d->bytes * 1e-9;

	(void)load(d, d->space, 0);
	for (int run = 0; run < RUNS; run++) {
		const struct timed grouped = load(d, d->space, GROUPS),
				   plain = load(d, d->space, 0);

		bench_add(ret, gb / grouped.whole_s, gb / plain.whole_s);
	}
}

static struct bench_daemon *begin(uint32_t blocks, struct bench_result *ret)
{
	struct bench_daemon *d = bench_alloc(sizeof(*d));

	bench_daemon_open(d, host, &bench_shape_1mib, blocks);
	bench_daemon_await_up(&d->stats->v.tiers_host_state);
	bench_daemon_keys(d, 0);
	bench_daemon_move(d, false);
	bench_note(ret, "%u blocks, %d groups", d->blocks, GROUPS);
	return d;
}

static void run_cpu(const struct bench_case *self, struct bench_result *ret)
{
	struct bench_daemon *d = begin(BLOCKS, ret);

	bench_daemon_spoil(d);
	if (self->arg)
		measure_whole(d, ret);
	else
		measure_first(d, d->space, RUNS, ret);
	bench_daemon_compare(d);
}

/* --- a GPU --- */

struct pages {
	struct cuda_api api;
	CUdevice device;
	CUcontext context;
	CUdeviceptr memory;
};

static void pages_end(void *arg)
{
	struct pages *p = arg;

	(void)p->api.cuMemFree(p->memory);
	(void)p->api.cuDevicePrimaryCtxRelease(p->device);
}

static void open_driver(struct pages *p)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	const char *missing;
	int n = 0;

	if (!library || cuda_api_load(library, &p->api, &missing) || p->api.cuInit(0) ||
	    p->api.cuDeviceGetCount(&n) || n == 0)
		bench_fail(-ENOTSUP, "no GPU here, or no CUDA driver of 12.0 or later");
}

static void run_gpu(const struct bench_case *self, struct bench_result *ret)
{
	const char *given = getenv("KVTIER_BENCH_CUDA_MIB");
	const uint32_t small = given ? (uint32_t)strtoul(given, NULL, 0) / PAGE_MIB : BLOCKS;
	struct kvtier_region region = { .size = sizeof(region), .memory = KVTIER_CUDA };
	struct pages *p = bench_alloc(sizeof(*p));
	struct kvtier_space *space;
	struct bench_daemon *d;

	(void)self;
	open_driver(p);
	if (p->api.cuDeviceGet(&p->device, 0) ||
	    p->api.cuDevicePrimaryCtxRetain(&p->context, p->device))
		bench_must(-ENOMEM);
	bench_defer(pages_end, p);
	/* whole chains of the daemon's */
	d = begin(small < BLOCKS ? BLOCKS / 2 : BLOCKS, ret);
	if (p->api.cuCtxSetCurrent(p->context) || p->api.cuMemAlloc(&p->memory, d->bytes))
		bench_must(-ENOMEM);
	region.length = d->bytes;
	region.base = (void *)(uintptr_t)p->memory;
	space = bench_space(d->client, &bench_shape_1mib, &region);
	measure_first(d, space, small < BLOCKS ? 1 : RUNS, ret);
}

const struct bench_case bench_layers_cases[] = {
	{ "layers.first", run_cpu, "share of a load's time until its first group, of 1/8", 1,
	  BENCH_LESS, "", NULL },
	{ "layers.whole", run_cpu, "a load with groups, of the same load without", 0, BENCH_MORE,
	  "GB/s", "whole" },
	{ "cuda.layers.first", run_gpu, "the same share, of pages in a GPU's memory", 1, BENCH_LESS,
	  "", NULL },
	{ 0 },
};
