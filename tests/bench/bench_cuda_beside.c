/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_cuda_beside.c - cuda.beside.*: the time that a GPU adds to calls that have nothing to do
 * with it.
 *
 *	cuda.beside.submit	round trip of a load of an absent block, both sides spinning
 *	cuda.beside.prefetch	the same of a prefetch, as submit.start measures it
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

#include "bench_cuda_client.h"

enum { RUNS = 15, WARM_CALLS = 500, TRIPS = 10000, LOOKUPS = 20000, BLOCKS = 64 };
enum { FEW_CALLS = 100 }; /* where no figure counts: RIG_SMALL */
enum { REST_US = 60000 };

enum what { LOAD, PREFETCH, LOOKUP };

/* A daemon and its client, which spins. */
struct side {
	struct bench_daemon d;
	struct kvtier_space *space;
	struct kvtier_key keys[BLOCKS];
	bool gpu;
};

struct bench {
	struct rig rig;
	struct side with, without;
};

static void side_open(struct bench *b, struct side *s, bool gpu)
{
	char sections[256];

	s->gpu = gpu;
	s->d.spin_us = 1000000;
	(void)snprintf(sections, sizeof(sections),
		       "[host]\nbytes = 64M\nslab_bytes = 2M\n[nvme]\nbytes = 0\n"
		       "[gpu]\ndevices = %s\nbytes = %s\n",
		       gpu ? "required" : "off", gpu ? "16M" : "0");
	bench_daemon_start(&s->d, sections);
	bench_daemon_await_up(&s->d.stats->v.tiers_host_state);
	s->space = cuda_small_space(&b->rig, s->d.client, gpu, BLOCKS);
	if (gpu) /* its context is the space's */
		bench_daemon_await_up(&s->d.stats->v.tiers_gpu_state);
	bench_must(bench_keys(s->space, 0, BLOCKS, s->keys));
	bench_must(bench_move(s->d.client, s->space, false, s->keys, 0, BLOCKS));
}

/* Of a block that is nowhere. */
static void trip(struct side *s, enum what what)
{
	static const struct kvtier_key absent = { { 1 } };
	struct kvtier_result result = { .size = sizeof(result) };
	const uint32_t page = 0;
	uint64_t op;

	bench_must(what == LOAD ? kvtier_load(s->space, &absent, &page, 1, NULL, &op) :
				  kvtier_prefetch(s->space, &absent, 1, NULL, &op));
	bench_must(kvtier_wait(s->d.client, op, -1, &result));
	if (result.status != -ENOENT)
		bench_must(-EBADMSG);
}

static void lookup(struct side *s)
{
	struct kvtier_hit hit = { .size = sizeof(hit) };

	bench_must(kvtier_lookup(s->space, s->keys, BLOCKS, &hit));
	if (hit.blocks != BLOCKS || !(hit.tiers & KVTIER_TIER_GPU) == s->gpu)
		bench_must(-EBADMSG);
}

/* Nanoseconds of a trip or a lookup: of n, after a few. */
static double side_ns(struct side *s, enum what what, int n)
{
	uint64_t start = 0;
	double ret;

	for (int i = n < WARM_CALLS ? -n : -WARM_CALLS; i < n; i++) {
		if (i == 0)
			start = bench_now_ns();
		if (what == LOOKUP)
			lookup(s);
		else
			trip(s, what);
	}
	ret = (double)(bench_now_ns() - start) / n;
	usleep(REST_US);
	return ret;
}

static void run_beside(const struct bench_case *self, struct bench_result *ret)
{
	const enum what what = *(const enum what *)self->arg;
	struct bench *b = bench_alloc(sizeof(*b));
	bool small;

	rig_open(&b->rig, RIG_NORMAL, 8, ret);
	small = b->rig.bytes < RIG_SMALL;
	side_open(b, &b->with, true);
	side_open(b, &b->without, false);
	for (int run = 0; run < (small ? 1 : RUNS); run++) {
		const int n = small ? FEW_CALLS : what == LOOKUP ? LOOKUPS : TRIPS;
		const double with = side_ns(&b->with, what, n);

		bench_add(ret, with, side_ns(&b->without, what, n));
	}
	bench_note(ret, "pages and a tier on a GPU; the limit has none");
}

/* clang-format off */
const struct bench_case bench_cuda_beside_cases[] = {
	{ "cuda.beside.submit", run_beside, "round trip of a load, with a GPU, against without",
	  0.91, BENCH_LESS, "ns", &(const enum what){ LOAD } },
	{ "cuda.beside.prefetch", run_beside, "the same of a prefetch", 0.91, BENCH_LESS, "ns",
	  &(const enum what){ PREFETCH } },
	{ "cuda.beside.lookup", run_beside, "a lookup of 64 present blocks, likewise",
	  0.91, BENCH_LESS, "ns", &(const enum what){ LOOKUP } },
	{ 0 },
};
/* clang-format on */
