/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_nvme_daemon.c - nvme.store and nvme.load: an engine's pages to disk and back, through
 * client and daemon.
 *
 * 480 FP8 blocks with images of 1 MiB are stored: from kvtier_store() of the first op until the
 * index says of every block that it is on NVMe. Then host memory is emptied (kvtierctl evict --all)
 * and they are loaded: until the result of the last op. The images' bytes count; an engine's own
 * are twice as many. The limit is the raw loop of bench_disk.h in the same directory, with the same
 * block size and depth, before and after each run; its file is as large as the store. Every run
 * stores under new keys, so the log walks on through its store as the raw loop does through its
 * file; on both sides the bytes that are read were written in the same run. Loaded pages are
 * compared with stored ones.
 */
#include "bench.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "bench_daemon.h"
#include "bench_disk.h"

enum { RUNS = 9, BLOCKS = BENCH_BLOCKS, READ_DEPTH = 32, WRITE_DEPTH = 16, STORE_MIB = 1600 };
static const double pass_bytes = (double)BLOCKS * BENCH_IMAGE;

struct rig {
	struct bench_disk disk;
	struct bench_daemon daemon;
};

/* The index tells without a system call; asking a thousand times a second costs the daemon
 * nothing. */
static int await_on_nvme(struct rig *rig)
{
	const uint64_t until = bench_now_ns() + BENCH_PATIENCE_MS * 1000000ull;

	for (uint32_t i = 0; i < BLOCKS;) {
		struct kvtier_hit hit = { .size = sizeof(hit) };
		const int r = kvtier_lookup(rig->daemon.space, &rig->daemon.keys[i], 1, &hit);

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
	int r = bench_daemon_move(&rig->daemon, false);

	if (r == 0)
		r = await_on_nvme(rig);
	*ret = pass_bytes / (double)(bench_now_ns() - start);
	return r;
}

static int load_gbs(struct rig *rig, double *ret)
{
	char text[256];
	uint64_t start;
	int r = bench_daemon_ctl(&rig->daemon, "evict --all", text, sizeof(text));

	if (r)
		return r;
	bench_daemon_spoil(&rig->daemon);
	start = bench_now_ns();
	r = bench_daemon_move(&rig->daemon, true);
	*ret = pass_bytes / (double)(bench_now_ns() - start);
	if (r == 0 && !bench_daemon_intact(&rig->daemon))
		r = -EBADMSG;
	return r;
}

/* --- a case --- */

static int raw_gbs(struct rig *rig, bool write, double *ret)
{
	return bench_disk_raw(&rig->disk, write, write ? WRITE_DEPTH : READ_DEPTH, BLOCKS, ret);
}

/* There must be something to load, and to read by hand. */
static int prepare(struct rig *rig)
{
	double ignored;
	const int r = raw_gbs(rig, true, &ignored);

	return r ? r : store_gbs(rig, &ignored);
}

static int one_run(struct rig *rig, bool load, double *ret_value, double *ret_limit,
		   double *ret_cores)
{
	double before = 0, after = 0, cpu;
	int r = load ? prepare(rig) : 0;

	if (r == 0)
		r = raw_gbs(rig, !load, &before);
	cpu = bench_daemon_cpu_seconds(&rig->daemon);
	if (r == 0)
		r = load ? load_gbs(rig, ret_value) : store_gbs(rig, ret_value);
	*ret_cores = (bench_daemon_cpu_seconds(&rig->daemon) - cpu) * 1e10 / pass_bytes;
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
		r = bench_daemon_keys(&rig->daemon, run);
		if (r == 0)
			r = one_run(rig, load, &value, &limit, &cores);
		if (r == 0 && run > 0) { /* the first warms up */
			bench_add(ret, value, limit);
			sum += cores;
		}
	}
	if (r == 0)
		(void)snprintf(
			ret->note, sizeof(ret->note),
			"twice that in the engine's bytes; daemon, codec included: %.1f cores per "
			"10 GB/s",
			sum / RUNS);
	return r;
}

/* The store lies beside the raw loop's file; room for three runs, so that segments are reclaimed
 * empty. */
static int open_all(struct rig *rig, char *note, size_t n)
{
	char sections[256];
	int r = bench_disk_open(&rig->disk, 0, (uint64_t)STORE_MIB << 20, BENCH_IMAGE, note, n);

	if (r)
		return r;
	(void)snprintf(sections, sizeof(sections),
		       "[host]\nbytes = 768M\n[nvme]\nbytes = %dM\nsegment_bytes = 64M\n"
		       "queue_depth = %d\nwrite_depth = %d\ndrain_us = 0\n",
		       STORE_MIB, READ_DEPTH, WRITE_DEPTH);
	r = bench_daemon_open(&rig->daemon, BLOCKS, rig->disk.dir, sections);
	return r ? r : bench_daemon_await_up(&rig->daemon, "nvme");
}

static int run_daemon(const struct bench_case *self, struct bench_result *ret)
{
	static struct rig rig;
	int r;

	memset(&rig, 0, sizeof(rig));
	rig.disk.fd = -1;
	r = open_all(&rig, ret->note, sizeof(ret->note));
	if (r == 0)
		r = measure(&rig, self->arg, ret);
	if (r && !ret->note[0])
		bench_daemon_explain(r, ret->note, sizeof(ret->note));
	bench_daemon_close(&rig.daemon);
	bench_disk_close(&rig.disk);
	return r;
}

static const char load[] = "load";

const struct bench_case bench_nvme_daemon_cases[] = {
	{ "nvme.store", run_daemon,
	  "pages to disk through client and daemon, image bytes, against io_uring by hand", 0.85,
	  BENCH_MORE, "GB/s", NULL },
	{ "nvme.load", run_daemon,
	  "disk to pages through client and daemon, image bytes, against io_uring by hand", 0.85,
	  BENCH_MORE, "GB/s", load },
	{ NULL, NULL, NULL, 0, BENCH_MORE, NULL, NULL },
};
