/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_nvme_daemon.c - nvme.store and nvme.load: an engine's pages to disk and back, through client and daemon.
 *
 * 480 FP8 blocks with images of 1 MiB are stored: from kvtier_store() of the first op until the index says of every
 * block that it is on NVMe. Then host memory is emptied (kvtierctl evict --all) and they are loaded: until the result
 * of the last op. Bytes are those of the images; an engine's own are twice as many. The limit is the raw loop of
 * bench_disk.h in the same directory, with the same block size and depth, before and after each run. Every run stores
 * under new keys. What comes back is compared with what was stored.
 */
#include "bench.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../client/kvtier.h"
#include "bench_disk.h"

enum {
	RUNS = 5, BLOCKS = 480, OP_BLOCKS = 32, LAYERS = 32, TOKENS = 16, HEADS = 8, DIM = 128,
	PLANE = TOKENS * HEADS * DIM * 2, PAGE = PLANE * 2 * LAYERS, BLOCK = 4096 + PAGE / 2,
	READ_DEPTH = 32, WRITE_DEPTH = 16, PATIENCE_MS = 60000,
};
static const size_t region_bytes = (size_t)BLOCKS * PAGE;

struct rig {
	struct bench_disk disk;
	pid_t daemon;
	char program[512], run[64], socket[96];
	struct kvtier_client *client;
	struct kvtier_space *space;
	int fd;
	uint8_t *pages, *expected;
	struct kvtier_key keys[BLOCKS];
};

/* --- the daemon --- */

/* The store lies beside the raw loop's file; room for three runs, so that segments are reclaimed empty. */
static int spawn(struct rig *rig)
{
	const ssize_t n = readlink("/proc/self/exe", rig->program, sizeof rig->program - 16);
	char path[128];
	FILE *f;

	strcpy(rig->run, "/tmp/kvtier-bench-XXXXXX");
	if (n <= 0 || !mkdtemp(rig->run))
		return -errno;
	rig->program[n] = 0;
	strcpy(strrchr(rig->program, '/'), "/kvtierd");
	(void)snprintf(rig->socket, sizeof rig->socket, "%s/kvtier.sock", rig->run);
	(void)snprintf(path, sizeof path, "%s/conf", rig->run);
	f = fopen(path, "we");
	if (!f)
		return -errno;
	(void)fprintf(f, "[daemon]\nruntime_dir = %s\nstate_dir = %s\nlog_level = error\n[host]\nbytes = 768M\n"
		      "[nvme]\nbytes = 1600M\nsegment_bytes = 64M\nqueue_depth = %d\nwrite_depth = %d\ndrain_us = 0\n",
		      rig->run, rig->disk.dir, READ_DEPTH, WRITE_DEPTH);
	(void)fclose(f);
	rig->daemon = fork();
	if (rig->daemon == 0) {
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		execl(rig->program, "kvtierd", "--config", path, (char *)NULL);
		_exit(127);
	}
	return rig->daemon < 0 ? -errno : 0;
}

/* kvtierctl with these words; its output, cut to n. */
static int ctl(const struct rig *rig, const char *words, char *ret, size_t n)
{
	char command[800];
	FILE *f;
	size_t got;

	(void)snprintf(command, sizeof command, "%.*sctl --socket %s %s 2>&1", (int)(strlen(rig->program) - 1), rig->program,
		       rig->socket, words);
	f = popen(command, "re");
	if (!f)
		return -errno;
	got = fread(ret, 1, n - 1, f);
	ret[got] = 0;
	return pclose(f) ? -EIO : 0;
}

static int await_up(const struct rig *rig)
{
	char text[512];

	for (int i = 0; i < PATIENCE_MS / 20; i++) {
		if (ctl(rig, "stats -f tiers.nvme.state", text, sizeof text) == 0 && strstr(text, " up"))
			return 0;
		usleep(20000);
	}
	return -ETIMEDOUT;
}

static double daemon_cpu_seconds(const struct rig *rig)
{
	char path[64];
	unsigned long user = 0, system = 0;
	FILE *f;

	(void)snprintf(path, sizeof path, "/proc/%d/stat", rig->daemon);
	f = fopen(path, "re");
	if (f) {
		(void)!fscanf(f, "%*d (%*[^)]) %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system);
		(void)fclose(f);
	}
	return (double)(user + system) / (double)sysconf(_SC_CLK_TCK);
}

/* --- the engine --- */

static int connect_soon(struct rig *rig)
{
	const struct kvtier_options o = {
		.size = sizeof o, .socket_path = rig->socket, .name = "kvtier-bench", .timeout_ms = PATIENCE_MS,
	};
	int r = -ENOENT;

	for (int i = 0; i < 3000 && (r == -ENOENT || r == -ECONNREFUSED); i++) {
		r = kvtier_connect(&o, &rig->client);
		if (r)
			usleep(10000);
	}
	return r;
}

/* Values of ordinary size that E4M3 holds exactly; every page another. */
static void fill(uint8_t *pages)
{
	uint16_t *v = (uint16_t *)(void *)pages;
	uint64_t x = 88172645463325252u;

	for (size_t i = 0; i < region_bytes / 2; i++) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		v[i] = (uint16_t)((x & 0x8000) | (122 + (x >> 20 & 7)) << 7 | (x >> 30 & 7) << 4);
	}
}

static int open_pages(struct rig *rig)
{
	rig->fd = memfd_create("pages", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (rig->fd < 0 || ftruncate(rig->fd, (off_t)region_bytes) ||
	    fcntl(rig->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW))
		return -errno;
	rig->pages = mmap(NULL, region_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, rig->fd, 0);
	if (rig->pages == MAP_FAILED) {
		rig->pages = NULL;
		return -ENOMEM;
	}
	fill(rig->pages);
	rig->expected = malloc(PAGE);
	if (!rig->expected)
		return -ENOMEM;
	memcpy(rig->expected, rig->pages + region_bytes - PAGE, PAGE);	/* the last page stands for all */
	return 0;
}

static int open_space(struct rig *rig)
{
	const struct kvtier_geometry g = {
		.size = sizeof g, .dtype = KVTIER_BF16, .model = "bench@1", .convention = "bench", .layers = LAYERS,
		.kv_heads = HEADS, .head_dim_k = DIM, .head_dim_v = DIM, .block_tokens = TOKENS, .world = 1,
		.codec = KVTIER_CODEC_FP8,
	};
	const struct kvtier_region region = {
		.size = sizeof region, .memory = KVTIER_MEMFD, .fd = rig->fd, .length = region_bytes,
	};
	struct kvtier_segment segments[2 * LAYERS];

	for (uint32_t i = 0; i < 2 * LAYERS; i++)
		segments[i] = (struct kvtier_segment){
			.size = sizeof *segments, .layer = i / 2, .kind = i % 2 ? KVTIER_V : KVTIER_K,
			.offset = (uint64_t)i * PLANE, .page_stride = PAGE, .head_stride = DIM * 2,
			.token_stride = HEADS * DIM * 2,
		};
	return kvtier_space_open(rig->client, &g, &region, 1, segments, (size_t)2 * LAYERS, &rig->space);
}

/* Chains of OP_BLOCKS blocks each, new ones every run. */
static int make_keys(struct rig *rig, uint32_t run)
{
	for (uint32_t i = 0; i < BLOCKS; i += OP_BLOCKS) {
		uint32_t tokens[TOKENS * OP_BLOCKS];
		size_t n = OP_BLOCKS;
		int r;

		for (uint32_t t = 0; t < TOKENS * OP_BLOCKS; t++)
			tokens[t] = run << 20 ^ i << 10 ^ t;
		r = kvtier_keys(rig->space, NULL, tokens, (size_t)TOKENS * OP_BLOCKS, rig->keys + i, &n);
		if (r)
			return r;
	}
	return 0;
}

/* All blocks, all ops at once; 0 when every block made it. */
static int move_all(struct rig *rig, bool load)
{
	uint64_t ops[BLOCKS / OP_BLOCKS];
	uint32_t pages[BLOCKS], n = 0;
	int r = 0;

	for (uint32_t i = 0; i < BLOCKS; i++)
		pages[i] = i;
	for (uint32_t i = 0; i < BLOCKS && r == 0; i += OP_BLOCKS) {
		r = load ? kvtier_load(rig->space, rig->keys + i, pages + i, OP_BLOCKS, NULL, &ops[n])
			 : kvtier_store(rig->space, rig->keys + i, pages + i, OP_BLOCKS, NULL, &ops[n]);
		n += r == 0;
	}
	for (uint32_t i = 0; i < n; i++) {
		struct kvtier_result result = { .size = sizeof result };
		const int w = kvtier_wait(rig->client, ops[i], -1, &result);

		if (r == 0)
			r = w ? w : result.status;
	}
	return r;
}

/* The index tells without a system call; asking a thousand times a second costs the daemon nothing. */
static int await_on_nvme(struct rig *rig)
{
	const uint64_t until = bench_now_ns() + PATIENCE_MS * 1000000ull;

	for (uint32_t i = 0; i < BLOCKS;) {
		struct kvtier_hit hit = { .size = sizeof hit };
		const int r = kvtier_lookup(rig->space, &rig->keys[i], 1, &hit);

		if (r || !hit.blocks)
			return r ? r : -ENOENT;
		if (hit.tiers & KVTIER_TIER_NVME)
			i++;
		else if (bench_now_ns() > until)
			return -ETIMEDOUT;
		else
			usleep(1000);
	}
	return 0;
}

static int store_gbs(struct rig *rig, double *ret)
{
	const uint64_t start = bench_now_ns();
	int r = move_all(rig, false);

	if (r == 0)
		r = await_on_nvme(rig);
	*ret = (double)BLOCKS * BLOCK / (double)(bench_now_ns() - start);
	return r;
}

static int load_gbs(struct rig *rig, double *ret)
{
	char text[256];
	uint64_t start;
	int r = ctl(rig, "evict --all", text, sizeof text);

	if (r)
		return r;
	memset(rig->pages + region_bytes - PAGE, 0xa5, PAGE);
	start = bench_now_ns();
	r = move_all(rig, true);
	*ret = (double)BLOCKS * BLOCK / (double)(bench_now_ns() - start);
	if (r == 0 && memcmp(rig->pages + region_bytes - PAGE, rig->expected, PAGE) != 0)
		r = -EBADMSG;
	return r;
}

/* --- a case --- */

static int raw_gbs(struct rig *rig, bool write, double *ret)
{
	return bench_disk_raw(&rig->disk, write, write ? WRITE_DEPTH : READ_DEPTH, 0, BLOCKS, ret);
}

static int one_run(struct rig *rig, bool load, double *ret_value, double *ret_limit, double *ret_cores)
{
	double before = 0, after = 0, store = 0, cpu;
	int r = load ? store_gbs(rig, &store) : 0;

	if (r == 0)
		r = raw_gbs(rig, !load, &before);
	cpu = daemon_cpu_seconds(rig);
	if (r == 0)
		r = load ? load_gbs(rig, ret_value) : store_gbs(rig, ret_value);
	*ret_cores = (daemon_cpu_seconds(rig) - cpu) * 1e10 / ((double)BLOCKS * BLOCK);
	if (r == 0)
		r = raw_gbs(rig, !load, &after);
	*ret_limit = (before + after) / 2;
	return r;
}

static int measure(struct rig *rig, bool load, struct bench_result *ret)
{
	double value = 0, limit = 0, cores = 0, sum = 0;
	int r = 0;

	for (uint32_t run = 0; run < RUNS + 1 && r == 0; run++) {
		r = make_keys(rig, run);
		if (r == 0)
			r = one_run(rig, load, &value, &limit, &cores);
		if (r == 0 && run > 0) {	/* the first warms up */
			bench_add(ret, value, limit);
			sum += cores;
		}
	}
	if (r == 0)
		(void)snprintf(ret->note, sizeof ret->note, "twice that in the engine's bytes; daemon, codec included: %.1f cores "
			       "per 10 GB/s", sum / RUNS);
	return r;
}

static void clean_up(struct rig *rig)
{
	char command[128];

	kvtier_close(rig->client);
	if (rig->daemon > 0) {
		(void)kill(rig->daemon, SIGTERM);
		(void)waitpid(rig->daemon, NULL, 0);
	}
	if (rig->pages)
		(void)munmap(rig->pages, region_bytes);
	if (rig->fd > 0)
		(void)close(rig->fd);
	free(rig->expected);
	bench_disk_close(&rig->disk);
	(void)snprintf(command, sizeof command, "rm -rf %s", rig->run);
	if (rig->run[0] && system(command))
		(void)fprintf(stderr, "cannot remove %s\n", rig->run);
}

static int run_daemon(const struct bench_case *self, struct bench_result *ret)
{
	static const struct rig nothing = { .disk.fd = -1 };
	static struct rig rig;
	int r;

	rig = nothing;
	r = bench_disk_open(&rig.disk, (uint64_t)BLOCKS * BLOCK, BLOCK, ret->note, sizeof ret->note);
	if (r == 0)
		r = spawn(&rig);
	if (r == 0)
		r = open_pages(&rig);
	if (r == 0)
		r = connect_soon(&rig);
	if (r == 0)
		r = await_up(&rig);
	if (r == 0)
		r = open_space(&rig);
	if (r == 0)
		r = measure(&rig, self->arg != NULL, ret);
	if (r && !ret->note[0])
		(void)snprintf(ret->note, sizeof ret->note, "%.60s; %s", kvtier_last_error(), strerror(-r));
	clean_up(&rig);
	return r;
}

static const char load[] = "load";

const struct bench_case bench_nvme_daemon_cases[] = {
	{ "nvme.store", run_daemon, "pages to disk through client and daemon, image bytes, against io_uring by hand", 0.85,
	  BENCH_MORE, "GB/s", NULL },
	{ "nvme.load", run_daemon, "disk to pages through client and daemon, image bytes, against io_uring by hand", 0.85,
	  BENCH_MORE, "GB/s", load },
	{ NULL, NULL, NULL, 0, BENCH_MORE, NULL, NULL },
};
