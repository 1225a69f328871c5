/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_layers.c - loads with layer groups, from engine to engine: how soon the first group of 64
 * blocks is there, and the cost of groups for the whole load.
 *
 * Figures of the emulated driver mean nothing, but for the share: it is a share of work, and the
 * driver does all work at about the same speed.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "bench.h"
#include "bench_daemon.h"
#include "client/cuda_api.h"

enum { RUNS = 15, BLOCKS = 64, GROUPS = 16, PAGE_MIB = BENCH_PAGE >> 20 };
static const char host[] = "[host]\nbytes = 512M\n";

struct timed {
	double first_s, whole_s;
};

/* groups 0: a plain load. */
static int load(const struct bench_daemon *d, struct kvtier_space *space, uint32_t groups,
		struct timed *ret)
{
	const struct kvtier_op_options o = { .size = sizeof(o), .layer_groups = groups };
	struct kvtier_result result = { .size = sizeof(result) };
	uint32_t pages[BLOCKS];
	uint64_t start, op;
	int r;

	for (uint32_t i = 0; i < d->blocks; i++)
		pages[i] = i;
	start = bench_now_ns();
	r = kvtier_load(space, d->keys, pages, d->blocks, &o, &op);
	if (r == 0 && groups > 0)
		r = kvtier_wait_layers(d->client, op, 0, -1);
	ret->first_s = (double)(bench_now_ns() - start) * 1e-9;
	if (r == 0)
		r = kvtier_wait(d->client, op, -1, &result);
	ret->whole_s = (double)(bench_now_ns() - start) * 1e-9;
	return r ? r : result.status;
}

static int measure_first(const struct bench_daemon *d, struct kvtier_space *space, int runs,
			 struct bench_result *ret)
{
	struct timed t;
	int r = load(d, space, GROUPS, &t); /* warms up */

	for (int run = 0; run < runs && r == 0; run++) {
		r = load(d, space, GROUPS, &t);
		bench_add(ret, t.first_s / t.whole_s, 1.0 / 8);
	}
	return r;
}

static int measure_whole(const struct bench_daemon *d, struct bench_result *ret)
{
	const double bytes = (double)d->blocks * BENCH_PAGE;
	struct timed grouped, plain;
	int r = load(d, d->space, 0, &plain);

	for (int run = 0; run < RUNS && r == 0; run++) {
		r = load(d, d->space, GROUPS, &grouped);
		if (r == 0)
			r = load(d, d->space, 0, &plain);
		bench_add(ret, bytes / grouped.whole_s * 1e-9, bytes / plain.whole_s * 1e-9);
	}
	return r;
}

static int begin(struct bench_daemon *d, uint32_t blocks)
{
	int r = bench_daemon_open(d, blocks, NULL, host);

	if (r == 0)
		r = bench_daemon_await_up(d, "host");
	if (r == 0)
		r = bench_daemon_keys(d, 0);
	return r ? r : bench_daemon_move(d, false);
}

static int end(struct bench_daemon *d, struct bench_result *ret, int r)
{
	if (r)
		snprintf(ret->note, sizeof(ret->note), "%.100s", kvtier_last_error());
	else
		snprintf(ret->note, sizeof(ret->note), "%u blocks, %d groups", d->blocks, GROUPS);
	bench_daemon_close(d);
	return r;
}

static int run_cpu(const struct bench_case *self, struct bench_result *ret)
{
	struct bench_daemon d = { 0 };
	int r = begin(&d, BLOCKS);

	if (r == 0) {
		bench_daemon_spoil(&d);
		r = self->arg ? measure_whole(&d, ret) : measure_first(&d, d.space, RUNS, ret);
	}
	if (r == 0 && !bench_daemon_intact(&d))
		r = -EBADMSG;
	return end(&d, ret, r);
}

/* --- a GPU --- */

static int skipped(struct bench_result *ret, const char *why)
{
	snprintf(ret->note, sizeof(ret->note), "%s", why);
	return -ENOTSUP;
}

static int gpu_memory(struct cuda_api *api, uint64_t bytes, CUdeviceptr *ret)
{
	CUcontext context;
	CUdevice device;

	return api->cuDeviceGet(&device, 0) || api->cuDevicePrimaryCtxRetain(&context, device) ||
			       api->cuCtxSetCurrent(context) || api->cuMemAlloc(ret, bytes) ?
		       -ENOMEM :
		       0;
}

static int run_gpu(const struct bench_case *self, struct bench_result *ret)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	const char *given = getenv("KVTIER_BENCH_CUDA_MIB"), *missing;
	const uint32_t small = given ? (uint32_t)strtoul(given, NULL, 0) / PAGE_MIB : BLOCKS;
	struct kvtier_region region = { .size = sizeof(region), .memory = KVTIER_CUDA };
	struct bench_daemon d = { 0 };
	struct kvtier_space *space = NULL;
	struct cuda_api api;
	CUdeviceptr pages = 0;
	CUdevice device;
	int n = 0, r;

	(void)self;
	if (!library || cuda_api_load(library, &api, &missing) || api.cuInit(0) ||
	    api.cuDeviceGetCount(&n) || n == 0)
		return skipped(ret, "no GPU here, or no CUDA driver of 12.0 or later");
	/* whole chains of the daemon's */
	r = begin(&d, small < BLOCKS ? BLOCKS / 2 : BLOCKS);
	region.length = (uint64_t)d.blocks * BENCH_PAGE;
	if (r == 0)
		r = gpu_memory(&api, region.length, &pages);
	region.base = (void *)(uintptr_t)pages;
	if (r == 0)
		r = bench_daemon_space(&d, &region, &space);
	if (r == 0)
		r = measure_first(&d, space, small < BLOCKS ? 1 : RUNS, ret);
	(void)kvtier_space_close(space);
	r = end(&d, ret, r);
	if (pages)
		(void)api.cuMemFree(pages);
	if (api.cuDeviceGet(&device, 0) == CUDA_SUCCESS)
		(void)api.cuDevicePrimaryCtxRelease(device);
	return r;
}

const struct bench_case bench_layers_cases[] = {
	{ "layers.first", run_cpu, "share of a load's time until its first group, of 1/8", 1,
	  BENCH_LESS, "", NULL },
	{ "layers.whole", run_cpu, "a load with groups, of the same load without", 0, BENCH_MORE,
	  "GB/s", "whole" },
	{ "cuda.layers.first", run_gpu, "the same share, of pages in a GPU's memory", 1, BENCH_LESS,
	  "", NULL },
	{ NULL, NULL, NULL, 0, BENCH_MORE, NULL, NULL },
};
