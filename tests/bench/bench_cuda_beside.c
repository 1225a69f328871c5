/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_cuda_beside.c - cuda.beside.*: the time that a GPU adds to calls that have nothing to do
 * with it.
 *
 *	cuda.beside.submit	round trip of a load of an absent block, both sides spinning
 *	cuda.beside.prefetch	likewise of a prefetch, as submit.start measures it
 *	cuda.beside.lookup	a lookup of 64 blocks, which are present
 *
 * Two daemons, each with a client: the pages of one client are in the memory of a GPU, and its
 * daemon has a tier there, which has the blocks, too. The other daemon has no GPU, and the pages of
 * its client are a memfd. Both are measured in each run; the limit is the daemon without a GPU. In
 * between a daemon gets the time to fall asleep, so that they do not spin side by side.
 *
 * None of these calls makes the GPU do anything, so that the ratios hold on the emulated driver,
 * too.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench_cuda.h"
#include "bench_daemon.h"

enum { RUNS = 15, WARM_CALLS = 500, TRIPS = 10000, LOOKUPS = 20000, BLOCKS = 64 };
enum { FEW_CALLS = 100 }; /* where no figure counts: RIG_SMALL */
enum { SPIN_US = 20000, REST_US = 3 * SPIN_US };
enum { LAYERS = 2, TOKENS = 16, HEADS = 2, DIM = 64, PLANE = TOKENS * HEADS * DIM * 2 };
enum { PAGE = PLANE * 2 * LAYERS };

enum what { LOAD, PREFETCH, LOOKUP };

/* A daemon and its client. */
struct side {
	struct bench_daemon d;
	struct kvtier_client *client; /* which spins */
	struct kvtier_space *space;
	struct kvtier_key keys[BLOCKS];
	bool gpu;
};

struct bench {
	struct rig rig;
	CUdeviceptr memory; /* the GPU's */
	struct side with, without;
};

static int open_daemon(struct side *s)
{
	char sections[256];
	int r;

	(void)snprintf(sections, sizeof(sections),
		       "spin_us = %d\n[host]\nbytes = 64M\nslab_bytes = 2M\n[nvme]\nbytes = 0\n"
		       "[gpu]\ndevices = %s\nbytes = %s\n",
		       SPIN_US, s->gpu ? "required" : "off", s->gpu ? "16M" : "0");
	r = bench_daemon_open(&s->d, BLOCKS, NULL, sections);
	if (r == 0)
		r = bench_daemon_await_up(&s->d, "host");
	if (r == 0 && s->gpu)
		r = bench_daemon_await_up(&s->d, "gpu");
	return r;
}

static int open_client(struct side *s, CUdeviceptr memory)
{
	const struct kvtier_options o = {
		.size = sizeof(o),
		.socket_path = s->d.socket,
		.name = "kvtier-bench",
		.timeout_ms = BENCH_PATIENCE_MS,
		.spin_us = 1000000,
	};
	const struct bench_shape shape = {
		.model = "beside@1",
		.layers = LAYERS,
		.tokens = TOKENS,
		.heads = HEADS,
		.dim = DIM,
		.codec = KVTIER_CODEC_FP8,
	};
	const struct kvtier_region region = {
		.size = sizeof(region),
		.memory = s->gpu ? KVTIER_CUDA : KVTIER_MEMFD,
		.fd = s->gpu ? -1 : s->d.fd,
		.base = s->gpu ? (void *)(uintptr_t)memory : NULL,
		.length = (uint64_t)BLOCKS * PAGE,
	};
	const int r = kvtier_connect(&o, &s->client);

	return r ? r : bench_space(s->client, &shape, &region, &s->space);
}

static int store_all(struct side *s)
{
	uint32_t tokens[BLOCKS * TOKENS], pages[BLOCKS];
	struct kvtier_result result = { .size = sizeof(result) };
	size_t n = BLOCKS;
	uint64_t op;
	int r;

	for (uint32_t i = 0; i < BLOCKS * TOKENS; i++)
		tokens[i] = i;
	for (uint32_t i = 0; i < BLOCKS; i++)
		pages[i] = i;
	r = kvtier_keys(s->space, NULL, tokens, (size_t)BLOCKS * TOKENS, s->keys, &n);
	if (r == 0)
		r = kvtier_store(s->space, s->keys, pages, BLOCKS, NULL, &op);
	if (r == 0)
		r = kvtier_wait(s->client, op, -1, &result);
	return r ? r : result.status;
}

static int side_open(struct side *s, bool gpu, CUdeviceptr memory)
{
	int r;

	s->gpu = gpu;
	r = open_daemon(s);
	if (r == 0)
		r = open_client(s, memory);
	return r ? r : store_all(s);
}

static void side_close(struct side *s)
{
	(void)kvtier_space_close(s->space);
	kvtier_close(s->client);
	bench_daemon_close(&s->d);
}

/* Of a block that is nowhere. */
static int trip(struct side *s, enum what what)
{
	static const struct kvtier_key absent = { { 1 } };
	struct kvtier_result result = { .size = sizeof(result) };
	const uint32_t page = 0;
	uint64_t op;
	int r;

	if (what == LOAD)
		r = kvtier_load(s->space, &absent, &page, 1, NULL, &op);
	else
		r = kvtier_prefetch(s->space, &absent, 1, &op);
	if (r == 0)
		r = kvtier_wait(s->client, op, -1, &result);
	return r || result.status == -ENOENT ? r : -EBADMSG;
}

static int lookup(struct side *s)
{
	struct kvtier_hit hit = { .size = sizeof(hit) };
	const int r = kvtier_lookup(s->space, s->keys, BLOCKS, &hit);
	const bool there = hit.tiers & KVTIER_TIER_GPU;

	return r || (hit.blocks == BLOCKS && there == s->gpu) ? r : -EBADMSG;
}

/* Nanoseconds of a trip or a lookup: of n, after a few. */
static int side_ns(struct side *s, enum what what, int n, double *ret)
{
	uint64_t start = 0;
	int r = 0;

	for (int i = n < WARM_CALLS ? -n : -WARM_CALLS; i < n && r == 0; i++) {
		if (i == 0)
			start = bench_now_ns();
		r = what == LOOKUP ? lookup(s) : trip(s, what);
	}
	*ret = (double)(bench_now_ns() - start) / n;
	usleep(REST_US);
	return r;
}

static int measure(struct bench *b, enum what what, struct bench_result *ret)
{
	const bool small = b->rig.bytes < RIG_SMALL;
	const int runs = small ? 1 : RUNS, all = what == LOOKUP ? LOOKUPS : TRIPS,
		  n = small ? FEW_CALLS : all;
	double with = 0, without = 0;
	int r = side_open(&b->with, true, b->memory);

	if (r == 0)
		r = side_open(&b->without, false, 0);
	for (int run = 0; run < runs && r == 0; run++) {
		r = side_ns(&b->with, what, n, &with);
		if (r == 0)
			r = side_ns(&b->without, what, n, &without);
		if (r == 0)
			(void)bench_add(ret, with, without);
	}
	if (r)
		bench_daemon_explain(r, ret->note, sizeof(ret->note));
	else
		(void)snprintf(ret->note, sizeof(ret->note),
			       "pages and a tier on a GPU; the limit has none");
	return r;
}

static int run_beside(const struct bench_case *self, struct bench_result *ret)
{
	struct bench *b = calloc(1, sizeof(*b));
	int r;

	if (!b)
		return -ENOMEM;
	r = rig_open(&b->rig, RIG_NORMAL, 8, ret);
	if (r == 0 && b->rig.api.cuMemAlloc(&b->memory, (size_t)BLOCKS * PAGE) != CUDA_SUCCESS)
		r = -ENOMEM;
	if (r == 0) {
		r = measure(b, *(const enum what *)self->arg, ret);
		side_close(&b->with);
		side_close(&b->without);
	}
	if (b->memory)
		(void)b->rig.api.cuMemFree(b->memory);
	if (r != -ENOTSUP)
		(void)rig_close(&b->rig);
	free(b);
	return r;
}

static const enum what load = LOAD, prefetch = PREFETCH, look = LOOKUP;

/* clang-format off */
const struct bench_case bench_cuda_beside_cases[] = {
	{ "cuda.beside.submit", run_beside, "round trip of a load, with a GPU, against without",
	  0.91, BENCH_LESS, "ns", &load },
	{ "cuda.beside.prefetch", run_beside, "the same of a prefetch", 0.91, BENCH_LESS, "ns",
	  &prefetch },
	{ "cuda.beside.lookup", run_beside, "a lookup of 64 present blocks, likewise",
	  0.91, BENCH_LESS, "ns", &look },
	{ 0 },
};
/* clang-format on */
