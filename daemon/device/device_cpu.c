/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_cpu.c - the device for engines whose pages are in host memory: workers that run kernels/
 * between a client's mapped memfd and a host slot.
 *
 *	core: submit --turns--> worker: encode | verify, decode, in pieces --workers.h--> core: done
 *	                 ^------ others wait, quantum over --'
 *
 * Invariants
 *   C1 a worker touches only the job it took, its region and its slot; all are pinned until `done`.
 *   C2 a region is imported only with F_SEAL_SHRINK and not from hugetlbfs, so that nothing its
 *      owner does later (truncation, a hole) can make a worker fault. A hole that is there is never
 *      filled by a worker: the job ends with -EFAULT (guard.h).
 *   C3 engine memory may change under a worker: kernels read it once and never trust it for
 *      control.
 *   C4 a region is unmapped piece by piece: that takes 20 ms a GiB, and 100 when its engine has
 *      died and its pages are freed by it; no thread that wants to map something waits for all of
 *      it.
 *   C5 clients have turns (device_turns.h): a worker goes on with a job as long as no other
 *      client's waits, and else for a quantum of time. It cannot stop inside a piece (kernels.h).
 *      After a stretch it looks into the queue in any case, and offers its CPU (workers.c).
 * Turns are guarded by the workers' lock.
 */
#include "device_cpu.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "device_run.h"
#include "device_turns.h"
#include "guard.h"
#include "daemon/base/container_of.h"
#include "daemon/base/cpu.h"
#include "daemon/base/loop.h"
#include "daemon/base/vault.h"

enum {
	MAX_WORKERS = 256,
	/* Completions gathered before the core is woken, while more jobs of the same client wait: a
	 * context switch costs 2-5 us and a 1 MiB block 50-150 us, so 4 keeps the core's share of a
	 * busy machine around one per cent. Of a client's last job the core learns at once: its op
	 * may be complete, however many jobs others have. */
	WAKE_BATCH = 4,
	/* but not later than this, should the job after them take long */
	WAKE_LATE_NS = 200000,
	/* of one job, while another client's wait; one piece at least */
	QUANTUM_NS = 50000,
	/* of one job in any case: then the worker offers its CPU (cpu.h) */
	STRETCH_NS = 100000,
	/* CPUs on which each worker has one of its own: where there are so few, core, workers and
	 * engines share all of them, and the kernel leaves two workers on one for milliseconds. On
	 * more CPUs one is idle, and the kernel finds it. */
	APART_MAX = 4,
	/* between two looks at the clock, if nobody waits: 10 us or so */
	CLOCK_PIECES = 4,
	/* emptied between two moments in which others may map something */
	UNMAP_PIECE_BYTES = 32 << 20,
};

struct cpu {
	struct device base;
	const struct codec_kernels *kernels;
	struct workers *workers;
	int guard;                           /* guard.h: of all regions */
	uint8_t *scratch;                    /* CODEC_SCRATCH_BYTES a worker */
	struct device_turns turns;           /* jobs that wait; the workers' lock guards it */
	uint32_t shown_clients, shown_first; /* of turns; atomic: read without the lock */
	struct device_run *runs;             /* one a job */
	struct device_run **free_runs;       /* the core's */
	uint32_t n_free_runs;
};

static struct cpu *cpu_of(struct device *device)
{
	return (struct cpu *)(void *)device;
}

static struct device_job *job_of(struct work *work)
{
	return container_of(work, struct device_job, work);
}

/* --- turns: with the workers' lock held --- */

/* What a worker looks at between pieces, without the lock. */
static void show_turns(struct cpu *c)
{
	__atomic_store_n(&c->shown_clients, c->turns.n_clients, __ATOMIC_RELAXED);
	__atomic_store_n(&c->shown_first, c->turns.first ? c->turns.first->client : 0,
			 __ATOMIC_RELAXED);
}

static void put(void *arg, struct work *work)
{
	struct cpu *c = arg;

	device_turns_add(&c->turns, job_of(work));
	show_turns(c);
}

static void put_back(void *arg, struct work *work)
{
	device_turns_return(&((struct cpu *)arg)->turns, job_of(work));
}

static struct work *take(void *arg)
{
	struct cpu *c = arg;
	struct device_job *job = device_turns_take(&c->turns);

	show_turns(c);
	return job ? &job->work : NULL;
}

static bool more(void *arg, const struct work *ended)
{
	return device_turns_wait(&((struct cpu *)arg)->turns,
				 container_of(ended, struct device_job, work)->client);
}

static const struct workers_order turns_order = {
	.put = put, .put_back = put_back, .take = take, .more = more
};

/* --- worker side --- */

static uint64_t clock_ns(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static bool others_wait(const struct cpu *c, uint32_t client)
{
	const uint32_t n = __atomic_load_n(&c->shown_clients, __ATOMIC_RELAXED);

	return n > 1 || (n == 1 && __atomic_load_n(&c->shown_first, __ATOMIC_RELAXED) != client);
}

struct piece {
	struct device_run *run;
	uint64_t now;
	uint8_t *scratch;
};

static int run_piece(void *arg)
{
	const struct piece *p = arg;

	return device_run_piece(p->run, p->now, p->scratch);
}

/* Pieces of a job until it ends: true; or for a stretch, or a quantum if other clients wait:
 * false. */
static bool work_on(struct cpu *c, struct device_job *job, uint32_t thread)
{
	uint8_t *scratch = c->scratch + (size_t)thread * CODEC_SCRATCH_BYTES;
	/* turn: when others were first seen to wait */
	uint64_t now = 0, begun = 0, turn = 0;

	for (uint32_t pieces = 0;; pieces++) {
		const bool others = others_wait(c, job->client),
			   look = others || pieces % CLOCK_PIECES == 0;

		if (look)
			now = clock_ns();
		if (pieces == 0)
			begun = now;
		if (others && turn == 0)
			turn = now;
		if ((others && now - turn >= QUANTUM_NS) || now - begun >= STRETCH_NS)
			return false;
		if (look)
			workers_tell(c->workers, thread, now);
		job->status =
			guard_run(run_piece, &(struct piece){ job->run, look ? now : 0, scratch });
		if (job->status != CODEC_MORE)
			return true;
	}
}

static enum work_end run(struct work *work, uint32_t thread)
{
	struct device_job *job = job_of(work);
	struct cpu *c = cpu_of(job->device);

	if (work_on(c, job, thread))
		return WORK_ENDED;
	device_run_leave(job->run);
	return WORK_AGAIN;
}

/* --- core side --- */

static void done(struct work *work)
{
	struct device_job *job = job_of(work);
	struct cpu *c = cpu_of(job->device);

	c->free_runs[c->n_free_runs++] = job->run;
	job->run = NULL;
	device_complete(job);
}

static void cpu_close(struct device *device)
{
	struct cpu *c = device ? cpu_of(device) : NULL;

	if (!c)
		return;
	workers_close(c->workers);
	guard_close(c->guard);
	free(c->scratch);
	device_turns_close(&c->turns);
	free(c->runs);
	free(c->free_runs);
	free(c);
}

static int make_jobs(struct cpu *c, uint32_t depth)
{
	/* whole pages, as C11 wants them */
	const size_t bytes = (depth * sizeof(*c->runs) + 4095) & ~(size_t)4095;

	c->runs = aligned_alloc(4096, bytes);
	if (c->runs)
		vault_hide(c->runs, bytes); /* a checksum's state has the last bytes it saw */
	c->free_runs = calloc(depth, sizeof(struct device_run *));
	if (!c->runs || !c->free_runs)
		return -ENOMEM;
	while (c->n_free_runs < depth) {
		c->free_runs[c->n_free_runs] = &c->runs[c->n_free_runs];
		c->n_free_runs++;
	}
	return 0;
}

static int open_parts(struct cpu *c, const struct device_conf *conf)
{
	const uint32_t threads = conf->workers ? conf->workers : cpu_usable();
	const uint32_t depth = conf->depth + conf->own_depth;
	const struct workers_conf workers = {
		.loop = c->base.loop,
		.threads = threads < MAX_WORKERS ? threads : MAX_WORKERS,
		.keep = MAX_WORKERS,
		.depth = depth,
		.wake_batch = WAKE_BATCH,
		.late_ns = WAKE_LATE_NS,
		.slices = true,
		.apart = threads == cpu_usable() && threads <= APART_MAX,
		.order = &turns_order,
		.order_arg = c,
	};
	int r = guard_open(&c->guard);

	if (r)
		return r;
	c->base.guarded = c->guard >= 0;
	c->kernels = codec_kernels(conf->kernels);
	if (!c->kernels || conf->depth == 0)
		return -EINVAL;
	c->scratch = aligned_alloc(4096, (size_t)workers.threads * CODEC_SCRATCH_BYTES);
	if (c->scratch)
		vault_hide(c->scratch, (size_t)workers.threads * CODEC_SCRATCH_BYTES);
	if (!c->scratch || make_jobs(c, depth) || device_turns_open(&c->turns, depth))
		return -ENOMEM;
	return workers_open(&workers, &c->workers);
}

static int cpu_open(const struct device_conf *conf, struct loop *loop, struct device **ret)
{
	struct cpu *c = calloc(1, sizeof(*c));
	int r;

	if (!c)
		return -ENOMEM;
	c->base.ops = &device_cpu_ops;
	c->base.loop = loop;
	c->guard = -1;
	r = open_parts(c, conf);
	if (r)
		cpu_close(&c->base);
	else
		*ret = &c->base;
	return r;
}

static int check_seals(int fd, char *text, size_t n)
{
	const int seals = fcntl(fd, F_GET_SEALS);
	struct statfs fs;

	if (seals < 0) {
		snprintf(text, n,
			 "region: the fd is not a memfd that takes seals (memfd_create with "
			 "MFD_ALLOW_SEALING)");
		return -EPERM;
	}
	if (!(seals & F_SEAL_SHRINK)) {
		snprintf(text, n,
			 "region: the memfd lacks F_SEAL_SHRINK (seals are 0x%x): add it with "
			 "fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK)",
			 (unsigned)seals);
		return -EPERM;
	}
	/* Its owner can punch a hole that no page is left to fill: touching it would be our
	 * SIGBUS. */
	if (fstatfs(fd, &fs) == 0 && fs.f_type == HUGETLBFS_MAGIC) {
		snprintf(text, n,
			 "region: the memfd was made with MFD_HUGETLB, which cannot be sealed "
			 "against holes: make it without, and madvise(MADV_HUGEPAGE)");
		return -EPERM;
	}
	return 0;
}

static int cpu_import(struct device *device, const struct region_desc *desc,
		      struct device_region *ret, char *text, size_t n)
{
	const uint64_t offset = desc->offset, length = desc->length;
	struct stat st = { 0 };
	void *base;
	int r;

	/* proto.c: with a UUID of 0 */
	assert(desc->memory == WIRE_MEMFD || desc->memory == WIRE_STAGED);
	r = check_seals(desc->fd, text, n);
	if (r)
		return r;
	(void)fstat(desc->fd, &st); /* of a memfd, as its seals have shown */
	if (length == 0 || offset % 4096 || st.st_size < 0 || offset > (uint64_t)st.st_size ||
	    length > (uint64_t)st.st_size - offset) {
		snprintf(text, n,
			 "region: offset %llu (a multiple of 4096) + length %llu must lie in the "
			 "memfd's %lld bytes",
			 (unsigned long long)offset, (unsigned long long)length,
			 (long long)st.st_size);
		return -EINVAL;
	}
	base = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, desc->fd, (off_t)offset);
	if (base == MAP_FAILED) {
		const int error = -errno;

		snprintf(text, n,
			 "region: cannot map %llu bytes read-write: %s (a memfd sealed against "
			 "writing cannot receive loads)",
			 (unsigned long long)length, strerror(-error));
		return error;
	}
	vault_hide(base, length);
	r = guard_region(cpu_of(device)->guard, base, length);
	if (r) {
		snprintf(text, n, "region: cannot be watched for holes: %s", strerror(-r));
		(void)munmap(base, length);
		return r;
	}
	*ret = (struct device_region){ .device = device, .base = base, .length = length };
	return 0;
}

/* Pages first, piece by piece: munmap() of them all at once would lock the address space for as
 * long. */
static void cpu_release(struct device *device, struct device_region *region)
{
	(void)device;
	for (uint64_t at = 0; at < region->length; at += UNMAP_PIECE_BYTES) {
		const uint64_t rest = region->length - at;

		(void)madvise(region->base + at,
			      rest < UNMAP_PIECE_BYTES ? rest : UNMAP_PIECE_BYTES, MADV_DONTNEED);
	}
	(void)munmap(region->base, region->length);
	region->base = NULL;
}

static int cpu_submit(struct device *device, struct device_job *job)
{
	struct cpu *c = cpu_of(device);
	int r;

	job->run = c->free_runs[--c->n_free_runs];
	device_run_begin(job->run, c->kernels, job, c->base.guarded);
	job->work.run = run;
	job->work.done = done;
	r = workers_submit(c->workers, &job->work);
	assert(r == 0); /* device.c refuses more than both depths */
	return 0;
}

const struct device_ops device_cpu_ops = {
	.name = "cpu",
	.images = 1u << IMAGE_OF_HOST,
	.open = cpu_open,
	.close = cpu_close,
	.import = cpu_import,
	.release = cpu_release,
	.submit = cpu_submit,
};
