/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_io.c - store and load through client and daemon, and how soon the daemon starts on an op.
 *
 * store.*, load.*: 1 GiB of logical bytes in blocks of 1 MiB images, from kvtier_store() of the
 * first op to the result of the last, against a non-temporal copy of the same pages by as many
 * threads as the daemon has workers. Each run measures copy, store, load, copy; the limit is the
 * mean of the two copies. Every run stores under new keys, so later ones evict. Loaded pages are
 * compared with stored ones. The .cpu cases report processor time of the same: seconds of client
 * and daemon for 10 GB, so that the figure is cores in use at 10 GB/s; the limit is the copies'
 * time. memory.fixed: the memory of an idle daemon beside its tiers. submit.start: round trip of an
 * op on an absent block through a spinning daemon: an upper bound of submit to start.
 */
#include <pthread.h>
#include <sched.h>

#include "bench_daemon.h"
#include "kernels/kernels.h"

enum { RUNS = 5, ROUND_TRIPS = 20000, REGION_BYTES = 1 << 30 };

struct io_case {
	uint32_t codec;
	uint32_t layers; /* 64 KiB each */
	bool load;       /* report the load, not the store */
	bool cpu;        /* report processor time, not speed */
};

struct rig {
	struct bench_daemon d;
	uint8_t *copy; /* of the pages */
	uint32_t threads;
};

/* --- pace --- */

/* Of one pass over all pages. */
struct pace {
	double gbs, cores; /* cores: in use at 10 GB/s */
};

struct stamp {
	uint64_t wall_ns;
	double cpu; /* seconds of client and daemon, of all their threads */
};

static struct stamp stamp_now(const struct rig *rig)
{
	return (struct stamp){
		.cpu = bench_cpu_seconds(CLOCK_PROCESS_CPUTIME_ID) +
		       bench_daemon_cpu_seconds(&rig->d),
		.wall_ns = bench_now_ns(),
	};
}

static struct pace pace_since(const struct rig *rig, struct stamp start)
{
	const struct stamp now = stamp_now(rig);

	return (struct pace){
		.gbs = (double)REGION_BYTES / (double)(now.wall_ns - start.wall_ns),
		.cores = 1e10 * (now.cpu - start.cpu) / REGION_BYTES,
	};
}

/* --- limit --- */

struct slice {
	uint8_t *to;
	const uint8_t *from;
	size_t bytes;
};

static void *copy_slice(void *arg)
{
	const struct slice *s = arg;

	codec_kernels(NULL)->copy(s->to, s->from, s->bytes);
	return NULL;
}

static struct pace copy_pages(struct rig *rig)
{
	pthread_t threads[64];
	struct slice slices[64];
	const size_t each = REGION_BYTES / rig->threads;
	const struct stamp start = stamp_now(rig);

	for (uint32_t i = 0; i < rig->threads; i++) {
		slices[i] = (struct slice){ rig->copy + i * each, rig->d.pages + i * each, each };
		pthread_create(&threads[i], NULL, copy_slice, &slices[i]);
	}
	for (uint32_t i = 0; i < rig->threads; i++)
		pthread_join(threads[i], NULL);
	return pace_since(rig, start);
}

/* --- store and load --- */

static struct pace move_pages(struct rig *rig, bool load)
{
	const struct stamp start = stamp_now(rig);

	bench_daemon_move(&rig->d, load);
	return pace_since(rig, start);
}

static void one_run(struct rig *rig, const struct io_case *c, uint32_t run,
		    struct bench_result *ret)
{
	struct pace before, after, store, load, moved;

	bench_daemon_keys(&rig->d, run);
	before = copy_pages(rig); /* also keeps the pages for the comparison below */
	store = move_pages(rig, false);
	if (run == 0)
		bench_daemon_spoil(&rig->d);
	load = move_pages(rig, true);
	if (run == 0 && memcmp(rig->d.pages, rig->copy, REGION_BYTES))
		bench_must(-EBADMSG);
	after = copy_pages(rig);
	moved = c->load ? load : store;
	if (run > 0 && c->cpu) /* the first warms up */
		bench_add(ret, moved.cores, (before.cores + after.cores) / 2);
	else if (run > 0)
		bench_add(ret, moved.gbs, (before.gbs + after.gbs) / 2);
}

/* From now on the pages hold values that come back from q4 as they are. */
static void settle(struct rig *rig)
{
	bench_daemon_keys(&rig->d, RUNS + 1);
	bench_daemon_move(&rig->d, false);
	bench_daemon_move(&rig->d, true);
}

static void run_io(const struct bench_case *self, struct bench_result *ret)
{
	const struct io_case *c = self->arg;
	const struct bench_shape shape = { c->layers, BENCH_HEADS, BENCH_DIM, c->codec };
	const uint64_t page = bench_page_bytes(&shape);
	struct rig *rig = bench_alloc(sizeof(*rig));
	cpu_set_t cpus;
	int fd;

	rig->threads = sched_getaffinity(0, sizeof(cpus), &cpus) ? 1 : (uint32_t)CPU_COUNT(&cpus);
	if (rig->threads > 64)
		rig->threads = 64;
	rig->copy = bench_memfd(REGION_BYTES, true, &fd);
	bench_daemon_start(&rig->d, "[host]\nbytes = 2560M\n[nvme]\nbytes = 0\n");
	bench_daemon_engine(&rig->d, &shape, (uint32_t)(REGION_BYTES / page), true);
	bench_daemon_await_up(&rig->d.stats->v.tiers_host_state);
	(void)copy_pages(rig);
	if (c->codec == KVTIER_CODEC_Q4)
		settle(rig);
	for (uint32_t run = 0; run < RUNS + 1; run++)
		one_run(rig, c, run, ret);
	bench_note(ret, "%u threads, %u blocks of %u KiB in the engine", rig->threads,
		   rig->d.blocks, (unsigned)(page >> 10));
}

/* --- a daemon without an engine --- */

static const char idle[] = "[host]\nbytes = 64M\n[nvme]\nbytes = 0\n";

static void run_submit(const struct bench_case *self, struct bench_result *ret)
{
	const struct bench_shape tiny = { 1, BENCH_HEADS, BENCH_DIM, KVTIER_CODEC_RAW };
	struct bench_daemon *d = bench_alloc(sizeof(*d));
	struct kvtier_key key = { { 1 } };
	struct kvtier_space *space;

	(void)self;
	d->spin_us = d->daemon_spin_us = 1000000;
	bench_daemon_start(d, idle);
	space = bench_space(d->client, &tiny, NULL);
	for (int run = 0; run < RUNS + 1; run++) {
		const uint64_t start = bench_now_ns();

		for (int i = 0; i < ROUND_TRIPS; i++) {
			struct kvtier_result result = { .size = sizeof(result) };
			uint64_t op;

			bench_must(kvtier_prefetch(space, &key, 1, NULL, &op));
			bench_must(kvtier_wait(d->client, op, -1, &result));
		}
		if (run > 0)
			bench_add(ret, (double)(bench_now_ns() - start) / ROUND_TRIPS, 1000);
	}
	bench_note(ret, "whole round trip, both spin");
}

static long rss_kib(pid_t pid)
{
	char path[64], line[128];
	long kib = -1;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/status", pid);
	f = fopen(path, "r");
	while (f && kib < 0 && fgets(line, sizeof(line), f))
		(void)sscanf(line, "VmRSS: %ld", &kib);
	if (f)
		fclose(f);
	return kib;
}

static void run_fixed(const struct bench_case *self, struct bench_result *ret)
{
	struct bench_daemon *d = bench_alloc(sizeof(*d));

	(void)self;
	bench_daemon_start(d, idle);
	bench_daemon_await_up(&d->stats->v.tiers_host_state);
	bench_add(ret, (double)rss_kib(d->pid) / 1024 - 64, 16);
	bench_note(ret, "resident with one client, less the host tier's 64 MiB");
}

/* clang-format off */
#define CASE(name, prose, goal, better, unit, ...) \
	{ name, run_io, prose, goal, better, unit, &(const struct io_case){ __VA_ARGS__ } }
#define FP8 KVTIER_CODEC_FP8, 32
#define INT8 KVTIER_CODEC_INT8, 32
#define LOSSLESS KVTIER_CODEC_LOSSLESS, 32
#define Q4 KVTIER_CODEC_Q4, 32
#define RAW KVTIER_CODEC_RAW, 16

const struct bench_case bench_io_cases[] = {
	{ "submit.start", run_submit, "op round trip through a spinning daemon, against 1 us", 1.0,
	  BENCH_LESS, "ns", NULL },
	{ "memory.fixed", run_fixed, "an idle daemon's memory beyond its tiers, against 16 MiB",
	  1.0, BENCH_LESS, "MiB", NULL },
	CASE("store.fp8", "1 GiB logical, pages to images, against a non-temporal copy", 0.75,
	     BENCH_MORE, "GB/s", FP8, false, false),
	CASE("load.fp8", "1 GiB logical, images to pages, against a non-temporal copy", 0.85,
	     BENCH_MORE, "GB/s", FP8, true, false),
	CASE("store.int8", "the same as int8, stores", 0.70, BENCH_MORE, "GB/s", INT8, false,
	     false),
	CASE("load.int8", "and loads", 0.80, BENCH_MORE, "GB/s", INT8, true, false),
	CASE("store.lossless", "the same lossless, stores", 0.50, BENCH_MORE, "GB/s", LOSSLESS,
	     false, false),
	CASE("load.lossless", "and loads", 0.70, BENCH_MORE, "GB/s", LOSSLESS, true, false),
	CASE("store.q4", "the same as q4, stores", 0.40, BENCH_MORE, "GB/s", Q4, false, false),
	CASE("load.q4", "and loads", 0.70, BENCH_MORE, "GB/s", Q4, true, false),
	CASE("store.raw", "1 GiB, pages to images, against a non-temporal copy", 0.90,
	     BENCH_MORE, "GB/s", RAW, false, false),
	CASE("load.raw", "1 GiB, images to pages, against a non-temporal copy", 0.85,
	     BENCH_MORE, "GB/s", RAW, true, false),
	CASE("store.fp8.cpu", "cores of client and daemon at 10 GB/s, against those of a copy", 0,
	     BENCH_LESS, "cores", FP8, false, true),
	CASE("load.fp8.cpu", "the same of loads", 0, BENCH_LESS, "cores", FP8, true, true),
	CASE("store.raw.cpu", "the same of raw stores", 0, BENCH_LESS, "cores", RAW, false, true),
	CASE("load.raw.cpu", "the same of raw loads", 0, BENCH_LESS, "cores", RAW, true, true),
	{ 0 },
};
/* clang-format on */
