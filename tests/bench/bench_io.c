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
#include "bench.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/kvtier.h"
#include "daemon/stats/stats.h"
#include "kernels/kernels.h"

enum { RUNS = 5, OP_BLOCKS = 32, MAX_PAGES = 1024, ROUND_TRIPS = 20000 };
static const size_t region_bytes = 1ull << 30;

struct io_case {
	uint32_t codec;
	uint32_t layers; /* 16 tokens x 8 heads x 128 x BF16 x K and V: 64 KiB a layer */
	int load;        /* report the load, not the store */
	int cpu;         /* report processor time, not speed */
};

/* Of one pass over all pages. */
struct pace {
	double gbs, cores; /* cores: in use at 10 GB/s */
};

struct rig {
	pid_t daemon;
	char dir[64], socket[96];
	struct kvtier_client *client;
	struct kvtier_space *space;
	uint8_t *pages, *copy;
	int fd;
	uint32_t n_pages, threads;
	size_t page_bytes;
};

/* --- the daemon --- */

static int spawn(struct rig *rig, const char *config)
{
	char path[128], program[512];
	const ssize_t n = readlink("/proc/self/exe", program, sizeof(program) - 16);
	FILE *f;

	strcpy(rig->dir, "/tmp/kvtier-bench-XXXXXX");
	if (n <= 0 || !mkdtemp(rig->dir))
		return -errno;
	program[n] = 0;
	strcpy(strrchr(program, '/'), "/kvtierd");
	snprintf(rig->socket, sizeof(rig->socket), "%s/kvtier.sock", rig->dir);
	snprintf(path, sizeof(path), "%s/conf", rig->dir);
	f = fopen(path, "w");
	if (!f)
		return -errno;
	fprintf(f,
		"[daemon]\nruntime_dir = %s\nstate_dir = %s\nlog_level = warning\n[nvme]\nbytes = "
		"0\n%s",
		rig->dir, rig->dir, config);
	fclose(f);
	rig->daemon = fork();
	if (rig->daemon == 0) {
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		execl(program, "kvtierd", "--config", path, (char *)NULL);
		_exit(127);
	}
	return rig->daemon < 0 ? -errno : 0;
}

static int connect_soon(struct rig *rig, uint32_t spin_us)
{
	const struct kvtier_options o = {
		.size = sizeof(o),
		.socket_path = rig->socket,
		.name = "kvtier-bench",
		.timeout_ms = 60000,
		.spin_us = spin_us,
	};
	int r = -ENOENT;

	for (int i = 0; i < 3000 && (r == -ENOENT || r == -ECONNREFUSED); i++) {
		r = kvtier_connect(&o, &rig->client);
		if (r)
			usleep(10000);
	}
	return r;
}

/* Until the host tier's memory is all there: faulting it in would compete with the measured
 * calls. */
static int await_up(const struct rig *rig)
{
	char path[128];
	const struct stats *stats;
	int r;

	snprintf(path, sizeof(path), "%s/stats", rig->dir);
	r = stats_map(path, &stats);
	for (int i = 0;
	     r == 0 && i < 6000 && stats_get(&stats->health) >> STATS_HEALTH_STARTING & 1; i++)
		usleep(10000);
	if (r == 0)
		stats_unmap(stats);
	return r;
}

static void clean_up(struct rig *rig)
{
	char command[96];

	kvtier_close(rig->client);
	if (rig->daemon > 0) {
		(void)kill(rig->daemon, SIGTERM);
		(void)waitpid(rig->daemon, NULL, 0);
	}
	if (rig->pages)
		(void)munmap(rig->pages, region_bytes);
	if (rig->copy)
		(void)munmap(rig->copy, region_bytes);
	if (rig->fd > 0)
		(void)close(rig->fd);
	snprintf(command, sizeof(command), "rm -rf %s", rig->dir);
	if (rig->dir[0] && system(command))
		fprintf(stderr, "cannot remove %s\n", rig->dir);
}

static void *map_memfd(const char *name, int *ret_fd)
{
	void *map;
	const int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd < 0 || ftruncate(fd, (off_t)region_bytes) ||
	    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW))
		return NULL;
	map = mmap(NULL, region_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED)
		return NULL;
	(void)madvise(map, region_bytes, MADV_HUGEPAGE); /* as the host tier does */
	*ret_fd = fd;
	return map;
}

static struct kvtier_geometry geometry_of(const struct io_case *c)
{
	return (struct kvtier_geometry){
		.size = sizeof(struct kvtier_geometry),
		.dtype = KVTIER_BF16,
		.model = "bench@1",
		.convention = "bench",
		.layers = c->layers,
		.kv_heads = 8,
		.head_dim_k = 128,
		.head_dim_v = 128,
		.block_tokens = 16,
		.world = 1,
		.codec = c->codec,
	};
}

static int open_space(struct rig *rig, const struct io_case *c)
{
	const struct kvtier_geometry g = geometry_of(c);
	const struct kvtier_region region = {
		.size = sizeof(region),
		.memory = KVTIER_MEMFD,
		.fd = rig->fd,
		.length = region_bytes,
	};
	static struct kvtier_segment segments[2 * KVTIER_MAX_LAYERS];
	const size_t plane = 16 * 8 * 128 * 2;

	rig->page_bytes = plane * 2 * c->layers;
	rig->n_pages = (uint32_t)(region_bytes / rig->page_bytes);
	for (uint32_t i = 0; i < 2 * c->layers; i++)
		segments[i] = (struct kvtier_segment){
			.size = sizeof(*segments),
			.layer = i / 2,
			.kind = i % 2 ? KVTIER_V : KVTIER_K,
			.offset = i * plane,
			.page_stride = rig->page_bytes,
			.head_stride = 256,
			.token_stride = 8 * 256,
		};
	return kvtier_space_open(rig->client, &g, &region, 1, segments, 2 * (size_t)c->layers,
				 &rig->space);
}

/* BF16 values of ordinary size, the same at each page but for a few marks that tell pages apart. */
static void fill(struct rig *rig)
{
	uint16_t *v = (uint16_t *)(void *)rig->pages;
	uint64_t x = 88172645463325252u;

	for (size_t i = 0; i < region_bytes / 2; i++) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		/* exact in E4M3 */
		v[i] = (uint16_t)((x & 0x8000) | (122 + (x >> 20 & 7)) << 7 | (x >> 30 & 7) << 4);
	}
}

/* --- pace --- */

struct stamp {
	uint64_t wall_ns, cpu_ns;
};

static uint64_t cpu_ns(clockid_t clock)
{
	struct timespec t = { 0 };

	(void)clock_gettime(clock, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Processor time is that of client and daemon, of all their threads. */
static struct stamp stamp_now(const struct rig *rig)
{
	struct stamp now = { .cpu_ns = cpu_ns(CLOCK_PROCESS_CPUTIME_ID) };
	clockid_t daemon;

	if (!clock_getcpuclockid(rig->daemon, &daemon))
		now.cpu_ns += cpu_ns(daemon);
	now.wall_ns = bench_now_ns();
	return now;
}

static struct pace pace_since(const struct rig *rig, struct stamp start)
{
	const struct stamp now = stamp_now(rig);

	return (struct pace){
		.gbs = (double)region_bytes / (double)(now.wall_ns - start.wall_ns),
		.cores = 10 * (double)(now.cpu_ns - start.cpu_ns) / (double)region_bytes,
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
	const size_t each = region_bytes / rig->threads;
	const struct stamp start = stamp_now(rig);

	for (uint32_t i = 0; i < rig->threads; i++) {
		slices[i] = (struct slice){ rig->copy + i * each, rig->pages + i * each, each };
		pthread_create(&threads[i], NULL, copy_slice, &slices[i]);
	}
	for (uint32_t i = 0; i < rig->threads; i++)
		pthread_join(threads[i], NULL);
	return pace_since(rig, start);
}

/* --- store and load --- */

static struct pace move_pages(struct rig *rig, const struct kvtier_key *keys, int load,
			      int *ret_error)
{
	uint32_t pages[MAX_PAGES];
	uint64_t ops[MAX_PAGES / OP_BLOCKS + 1];
	struct stamp start;
	uint32_t n_ops = 0;
	int r = 0;

	for (uint32_t i = 0; i < rig->n_pages; i++)
		pages[i] = i;
	start = stamp_now(rig);
	for (uint32_t i = 0; i < rig->n_pages && r == 0; i += OP_BLOCKS) {
		const struct kvtier_op_options o = { .size = sizeof(o), .parent = NULL };

		r = load ? kvtier_load(rig->space, keys + i, pages + i, OP_BLOCKS, &o,
				       &ops[n_ops]) :
			   kvtier_store(rig->space, keys + i, pages + i, OP_BLOCKS, &o,
					&ops[n_ops]);
		n_ops += r == 0;
	}
	for (uint32_t i = 0; i < n_ops; i++) {
		struct kvtier_result result = { .size = sizeof(result) };
		const int w = kvtier_wait(rig->client, ops[i], -1, &result);

		if (r == 0)
			r = w ? w : result.status;
	}
	*ret_error = r;
	return pace_since(rig, start);
}

/* Chains of OP_BLOCKS blocks each, new ones every run. */
static int make_keys(struct rig *rig, uint32_t run, struct kvtier_key *ret)
{
	for (uint32_t i = 0; i < rig->n_pages; i += OP_BLOCKS) {
		uint32_t tokens[16 * OP_BLOCKS];
		size_t n = OP_BLOCKS;
		int r;

		for (uint32_t t = 0; t < 16 * OP_BLOCKS; t++)
			tokens[t] = run << 20 ^ i << 10 ^ t;
		r = kvtier_keys(rig->space, NULL, tokens, 16 * OP_BLOCKS, ret + i, &n);
		if (r)
			return r;
	}
	return 0;
}

static int measure(struct rig *rig, const struct io_case *c, struct bench_result *ret)
{
	static struct kvtier_key keys[MAX_PAGES];

	(void)copy_pages(rig);
	for (uint32_t run = 0; run < RUNS + 1; run++) {
		struct pace before, after, store, load, moved;
		int r = make_keys(rig, run, keys);

		if (r)
			return r;
		before = copy_pages(rig); /* also keeps the pages for the comparison below */
		store = move_pages(rig, keys, 0, &r);
		if (r)
			return r;
		if (run == 0)
			memset(rig->pages, 0xa5, region_bytes);
		load = move_pages(rig, keys, 1, &r);
		if (r)
			return r;
		if (run == 0 && memcmp(rig->pages, rig->copy, region_bytes))
			return -EBADMSG;
		after = copy_pages(rig);
		moved = c->load ? load : store;
		if (run > 0 && c->cpu) /* the first warms up */
			bench_add(ret, moved.cores, (before.cores + after.cores) / 2);
		else if (run > 0)
			bench_add(ret, moved.gbs, (before.gbs + after.gbs) / 2);
	}
	snprintf(ret->note, sizeof(ret->note), "%u threads, %u blocks of %u KiB images",
		 rig->threads, rig->n_pages,
		 (unsigned)(rig->page_bytes >> (c->codec == KVTIER_CODEC_RAW ? 10 : 11)));
	return 0;
}

static int run_io(const struct bench_case *self, struct bench_result *ret)
{
	const struct io_case *c = self->arg;
	struct rig rig = { 0 };
	cpu_set_t cpus;
	int copy_fd = -1, r;

	rig.threads = sched_getaffinity(0, sizeof(cpus), &cpus) ? 1 : (uint32_t)CPU_COUNT(&cpus);
	if (rig.threads > 64)
		rig.threads = 64;
	r = spawn(&rig, "[host]\nbytes = 2560M\n");
	rig.pages = map_memfd("pages", &rig.fd);
	rig.copy = map_memfd("copy", &copy_fd);
	if (r == 0 && (!rig.pages || !rig.copy))
		r = -ENOMEM;
	if (r == 0) {
		fill(&rig);
		r = connect_soon(&rig, 0);
	}
	if (r == 0)
		r = open_space(&rig, c);
	if (r == 0)
		r = await_up(&rig);
	if (r == 0)
		r = measure(&rig, c, ret);
	if (r)
		snprintf(ret->note, sizeof(ret->note), "%.100s", kvtier_last_error());
	clean_up(&rig);
	if (copy_fd >= 0)
		(void)close(copy_fd);
	return r;
}

/* --- submit --- */

static int run_submit(const struct bench_case *self, struct bench_result *ret)
{
	const struct io_case tiny = { .codec = KVTIER_CODEC_RAW, .layers = 1 };
	const struct kvtier_geometry g = geometry_of(&tiny);
	struct kvtier_key key = { { 1 } };
	struct rig rig = { 0 };
	int r = spawn(&rig, "[daemon]\nspin_us = 1000000\n[host]\nbytes = 64M\n");

	(void)self;
	if (r == 0)
		r = connect_soon(&rig, 1000000);
	if (r == 0)
		r = kvtier_space_open(rig.client, &g, NULL, 0, NULL, 0, &rig.space);
	for (int run = 0; run < RUNS + 1 && r == 0; run++) {
		const uint64_t start = bench_now_ns();

		for (int i = 0; i < ROUND_TRIPS && r == 0; i++) {
			struct kvtier_result result = { .size = sizeof(result) };
			uint64_t op;

			r = kvtier_prefetch(rig.space, &key, 1, &op);
			if (r == 0)
				r = kvtier_wait(rig.client, op, -1, &result);
		}
		if (run > 0)
			bench_add(ret, (double)(bench_now_ns() - start) / ROUND_TRIPS, 1000);
	}
	snprintf(ret->note, sizeof(ret->note), r ? "%.100s" : "whole round trip, %s",
		 r ? kvtier_last_error() : "both spin");
	clean_up(&rig);
	return r;
}

/* --- memory --- */

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

static int run_fixed(const struct bench_case *self, struct bench_result *ret)
{
	struct rig rig = { 0 };
	int r = spawn(&rig, "[host]\nbytes = 64M\n");

	(void)self;
	if (r == 0)
		r = connect_soon(&rig, 0);
	if (r == 0)
		r = await_up(&rig);
	if (r == 0)
		bench_add(ret, (double)rss_kib(rig.daemon) / 1024 - 64, 16);
	snprintf(ret->note, sizeof(ret->note),
		 "resident with one client, less the host tier's 64 MiB");
	clean_up(&rig);
	return r;
}

static const struct io_case fp8_store = { KVTIER_CODEC_FP8, 32, 0, 0 },
			    fp8_load = { KVTIER_CODEC_FP8, 32, 1, 0 },
			    fp8_store_cpu = { KVTIER_CODEC_FP8, 32, 0, 1 },
			    fp8_load_cpu = { KVTIER_CODEC_FP8, 32, 1, 1 };
static const struct io_case raw_store = { KVTIER_CODEC_RAW, 16, 0, 0 },
			    raw_load = { KVTIER_CODEC_RAW, 16, 1, 0 },
			    raw_store_cpu = { KVTIER_CODEC_RAW, 16, 0, 1 },
			    raw_load_cpu = { KVTIER_CODEC_RAW, 16, 1, 1 };

const struct bench_case bench_io_cases[] = {
	{ "submit.start", run_submit, "op round trip through a spinning daemon, against 1 us", 1.0,
	  BENCH_LESS, "ns", NULL },
	{ "memory.fixed", run_fixed, "an idle daemon's memory beyond its tiers, against 16 MiB",
	  1.0, BENCH_LESS, "MiB", NULL },
	{ "store.fp8", run_io, "1 GiB logical, pages to images, against a non-temporal copy", 0.75,
	  BENCH_MORE, "GB/s", &fp8_store },
	{ "load.fp8", run_io, "1 GiB logical, images to pages, against a non-temporal copy", 0.85,
	  BENCH_MORE, "GB/s", &fp8_load },
	{ "store.raw", run_io, "1 GiB, pages to images, against a non-temporal copy", 0.90,
	  BENCH_MORE, "GB/s", &raw_store },
	{ "load.raw", run_io, "1 GiB, images to pages, against a non-temporal copy", 0.85,
	  BENCH_MORE, "GB/s", &raw_load },
	{ "store.fp8.cpu", run_io, "cores of client and daemon at 10 GB/s, against those of a copy",
	  0, BENCH_LESS, "cores", &fp8_store_cpu },
	{ "load.fp8.cpu", run_io, "the same of loads", 0, BENCH_LESS, "cores", &fp8_load_cpu },
	{ "store.raw.cpu", run_io, "the same of raw stores", 0, BENCH_LESS, "cores",
	  &raw_store_cpu },
	{ "load.raw.cpu", run_io, "the same of raw loads", 0, BENCH_LESS, "cores", &raw_load_cpu },
	{ NULL, NULL, NULL, 0, BENCH_MORE, NULL, NULL },
};
