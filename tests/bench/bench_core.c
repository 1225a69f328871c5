/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_core.c - core.{load,store}.{host,nvme}: the CPU that the daemon's core thread takes for a
 * block, in ops of BENCH_OP blocks of a chain.
 *
 * The time is the scheduler's, so other programs count by the caches alone that they share, and by
 * what a hypervisor takes. A core thread that spins before it sleeps would count that, so this one
 * sleeps at once. The limit is a promise. Blocks of the host cases have images of 8 KiB, which
 * cost workers as little as can be; blocks of the nvme cases have images of 128 KiB, those of a
 * rank of eight of a model of 8 billion parameters. A store to NVMe ends when the index says so.
 */
#include "bench_daemon.h"
#include "bench_disk.h"

enum { RUNS = 9, HOST_BLOCKS = BENCH_BLOCKS, NVME_BLOCKS = 960, LAPS = 8, BENCH_DIR = 256 };

struct core_case {
	bool nvme, load;
};

static double core_ns(const struct bench_daemon *d)
{
	unsigned long long ns = 0;
	char path[64];
	FILE *f;

	usleep(2000); /* it sleeps: then the figure is exact */
	(void)snprintf(path, sizeof(path), "/proc/%d/task/%d/schedstat", d->pid, d->pid);
	f = fopen(path, "re");
	if (!f || fscanf(f, "%llu", &ns) != 1)
		bench_fail(-ENOTSUP, "the kernel does not say how long a thread ran");
	(void)fclose(f);
	return (double)ns;
}

static void store(struct bench_daemon *d, bool nvme)
{
	bench_daemon_move(d, false);
	if (nvme)
		bench_daemon_await_on_nvme(d);
}

static double one_run(struct bench_daemon *d, const struct core_case *c, uint32_t run)
{
	/* the disk's part of a lap is long enough */
	const uint32_t laps = c->nvme ? 1 : LAPS;
	double ns = 0, before;

	for (uint32_t lap = 0; lap < laps; lap++) {
		bench_daemon_keys(d, run * laps + lap);
		before = core_ns(d);
		store(d, c->nvme);
		if (c->load) {
			if (c->nvme)
				bench_daemon_ctl(d, "evict --all");
			bench_daemon_spoil(d);
			before = core_ns(d);
			bench_daemon_move(d, true);
		}
		ns += core_ns(d) - before;
		if (c->load && lap == 0)
			bench_daemon_compare(d);
	}
	return ns / laps / d->blocks;
}

static void run_core(const struct bench_case *self, struct bench_result *ret)
{
	static const struct bench_shape small = { 2, 1, BENCH_DIM, KVTIER_CODEC_FP8 },
					rank = { BENCH_LAYERS, 1, BENCH_DIM, KVTIER_CODEC_FP8 };
	const struct core_case *c = self->arg;
	struct bench_daemon *d = bench_alloc(sizeof(*d));
	char *dir = bench_alloc(BENCH_DIR);

	bench_dir(bench_disk_directory(), dir, BENCH_DIR);
	d->state_dir = dir;
	d->daemon_spin_us = 1;
	bench_daemon_open(d,
			  c->nvme ?
				  "[host]\nbytes = 512M\n[nvme]\nbytes = 1G\nsegment_bytes = 64M\n"
				  "[daemon]\nstop_us = 0\n" :
				  "[host]\nbytes = 512M\n[nvme]\nbytes = 0\n",
			  c->nvme ? &rank : &small, c->nvme ? NVME_BLOCKS : HOST_BLOCKS);
	if (c->nvme)
		bench_daemon_await_up(&d->stats->v.tiers_nvme_state);
	for (uint32_t run = 0; run < RUNS + 1; run++) {
		const double ns = one_run(d, c, run);

		if (run > 0) /* the first warms up */
			bench_add(ret, ns, c->nvme ? 2000 : 1000);
	}
	bench_note(ret, "ops of %d blocks", BENCH_OP);
}

/* clang-format off */
#define CASE(name, prose, ...) \
	{ name, run_core, "CPU of the core thread for a block that is " prose, 1, BENCH_LESS, \
	  "ns", &(const struct core_case){ __VA_ARGS__ } }

const struct bench_case bench_core_cases[] = {
	CASE("core.store.host", "stored to memory", false, false),
	CASE("core.load.host", "loaded from memory", false, true),
	CASE("core.store.nvme", "stored to memory and NVMe", true, false),
	CASE("core.load.nvme", "loaded from NVMe", true, true),
	{ 0 },
};
/* clang-format on */
