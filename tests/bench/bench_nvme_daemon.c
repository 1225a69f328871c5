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
 *
 * The .coded cases have [nvme] compress = auto. The bytes of whole images still count, so that a
 * disk which is slower than the coder's threads gives more than 1.
 */
#include "bench_daemon.h"
#include "bench_disk.h"

enum { RUNS = 9, BLOCKS = 480, READ_DEPTH = 32, WRITE_DEPTH = 16, STORE_MIB = 1600 };
static const double pass_bytes = (double)BLOCKS * BENCH_IMAGE;

struct rig {
	struct bench_disk disk;
	struct bench_daemon daemon;
};

static double store_gbs(struct rig *rig)
{
	const uint64_t start = bench_now_ns();

	bench_daemon_move(&rig->daemon, false);
	bench_daemon_await_on_nvme(&rig->daemon);
	return pass_bytes / (double)(bench_now_ns() - start);
}

static double load_gbs(struct rig *rig)
{
	uint64_t start;
	double ret;

	bench_daemon_ctl(&rig->daemon, "evict --all");
	bench_daemon_spoil(&rig->daemon);
	start = bench_now_ns();
	bench_daemon_move(&rig->daemon, true);
	ret = pass_bytes / (double)(bench_now_ns() - start);
	bench_daemon_compare(&rig->daemon);
	return ret;
}

/* --- a case --- */

static double raw_gbs(struct rig *rig, bool write)
{
	return bench_disk_raw(&rig->disk, write, write ? WRITE_DEPTH : READ_DEPTH, BLOCKS);
}

/* Cores of the daemon for 10 GB/s. */
static double one_run(struct rig *rig, bool load, bool warms_up, struct bench_result *ret)
{
	double before, after, value, cpu;

	if (load) { /* there must be something to load, and to read by hand */
		(void)raw_gbs(rig, true);
		(void)store_gbs(rig);
	}
	before = raw_gbs(rig, !load);
	cpu = bench_daemon_cpu_seconds(&rig->daemon);
	value = load ? load_gbs(rig) : store_gbs(rig);
	cpu = bench_daemon_cpu_seconds(&rig->daemon) - cpu;
	after = raw_gbs(rig, !load);
	if (warms_up)
		return 0;
	bench_add(ret, value, (before + after) / 2);
	return cpu * 1e10 / pass_bytes;
}

/* The store lies beside the raw loop's file; room for three runs, so that segments are reclaimed
 * empty. */
static void open_all(struct rig *rig, bool coded)
{
	char sections[256];

	bench_disk_open(&rig->disk, 0, (uint64_t)STORE_MIB << 20, BENCH_IMAGE);
	(void)snprintf(sections, sizeof(sections),
		       "[host]\nbytes = 768M\n[nvme]\nbytes = %dM\nsegment_bytes = 64M\n"
		       "queue_depth = %d\ncompress = %s\n[daemon]\nstop_us = 0\n",
		       STORE_MIB, READ_DEPTH, coded ? "auto" : "off");
	rig->daemon.state_dir = rig->disk.dir;
	bench_daemon_open(&rig->daemon, sections, &bench_shape_1mib, BLOCKS);
	bench_daemon_await_up(&rig->daemon.stats->v.tiers_nvme_state);
}

struct daemon_case {
	bool load, coded;
};

static void run_daemon(const struct bench_case *self, struct bench_result *ret)
{
	const struct daemon_case *c = self->arg;
	struct rig *rig = bench_alloc(sizeof(*rig));
	double cores = 0;

	open_all(rig, c->coded);
	for (uint32_t run = 0; run < RUNS + 1; run++) {
		bench_daemon_keys(&rig->daemon, run);
		cores += one_run(rig, c->load, run == 0, ret);
	}
	bench_note(ret,
		   "twice that in the engine's bytes; daemon, codec included: %.1f cores per "
		   "10 GB/s",
		   cores / RUNS);
}

/* clang-format off */
#define CASE(name, prose, goal, ...) \
	{ name, run_daemon, \
	  prose " through client and daemon, image bytes, against io_uring by hand", goal, \
	  BENCH_MORE, "GB/s", &(const struct daemon_case){ __VA_ARGS__ } }

const struct bench_case bench_nvme_daemon_cases[] = {
	CASE("nvme.store", "pages to disk", 0.85, false, false),
	CASE("nvme.load", "disk to pages", 0.85, true, false),
	CASE("nvme.store.coded", "the same with compress = auto, pages to disk", 0, false, true),
	CASE("nvme.load.coded", "and disk to pages", 0, true, true),
	{ 0 },
};
/* clang-format on */
