/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_cpu.c - the device for engines whose pages are in host memory: workers that run kernels/
 * between a client's mapped memfd and a host slot.
 *
 *	core: submit --kick, queue--> worker: encode | verify, decode, in pieces --> core: done
 *	                        ^------ others wait, quantum over --'
 *
 * Invariants
 *   C1 a worker touches only the job it took, its region and its slot; all are pinned until `done`.
 *   C2 a region is imported only with F_SEAL_SHRINK and not from hugetlbfs, so that no later act of
 *      its owner (truncation, a hole) can make a worker fault. A hole that is there is never filled
 *      by a worker: the job ends with -EFAULT (guard.h).
 *   C3 engine memory may change under a worker: kernels read it once and never trust it for
 *      control.
 *   C4 a region is unmapped piece by piece: that takes 20 ms a GiB, and 100 when its engine has
 *      died and its pages are freed by it; no thread that wants to map something waits for all of
 *      it.
 *   C5 clients take turns (device_queue.h): a worker goes on with a job as long as no other
 *      client's waits, and else for a quantum of time. It cannot stop inside a piece (kernels.h).
 * The queue is guarded by the workers' lock.
 */
#include "device_cpu.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "device_run.h"
#include "device_queue.h"
#include "guard.h"
#include "base/clock.h"
#include "base/list.h"
#include "base/vault.h"
#include "base/text.h"
#include "base/thread.h"

enum {
	MAX_WORKERS = 256,
	/* Completions gathered before the core is woken, while more jobs of the same client wait
	 * or run, and jobs before workers are: a context switch costs as much as many small blocks.
	 * The core learns of a client's last job at once: its op may be complete, however many jobs
	 * others have. */
	WAKE_BATCH = 32,
	/* the core is woken no later than this: large blocks take 50-150 us a MiB */
	WAKE_LATE_NS = 200000,
	/* how long a worker stays with a job while jobs of other clients wait; one piece at least
	 * */
	QUANTUM_NS = 50000,
	/* pieces between two looks at the clock while no client waits: 10 us or so */
	CLOCK_PIECES = 4,
	/* so much is emptied at once; in between others may map something */
	UNMAP_PIECE_BYTES = 32 << 20,
};

struct cpu {
	struct device base;
	const struct codec_kernels *kernels;
	struct workers *workers;
	struct mails fresh;                  /* submitted since the last kick */
	int guard;                           /* guard.h: of all regions */
	uint8_t *scratch;                    /* CODEC_SCRATCH_BYTES a worker */
	struct device_queue queue;           /* jobs that wait; the workers' lock guards it */
	uint32_t shown_clients, shown_first; /* of the queue; atomic: read without the lock */
	struct device_run *runs;             /* one a job */
	struct device_run **free_runs;       /* the core's */
	uint32_t n_free_runs;
	/* whose jobs run now; the workers' lock guards it */
	uint32_t n_running, running[MAX_WORKERS];
};

static struct cpu *cpu_of(struct device *device)
{
	return (struct cpu *)(void *)device;
}

static struct device_job *job_of(struct work *work)
{
	return container_of(work, struct device_job, work);
}

/* --- the queue: with the workers' lock held --- */

/* What a worker looks at between pieces, without the lock. */
static void show_queue(struct cpu *c)
{
	__atomic_store_n(&c->shown_clients, c->queue.n_clients, __ATOMIC_RELAXED);
	__atomic_store_n(&c->shown_first, c->queue.first ? c->queue.first->client : 0,
			 __ATOMIC_RELAXED);
}

static void put(void *arg, struct work *work)
{
	struct cpu *c = arg;

	device_queue_add(&c->queue, job_of(work));
	show_queue(c);
}

static uint32_t *running_of(struct cpu *c, uint32_t client)
{
	uint32_t at = 0;

	while (at < c->n_running && c->running[at] != client)
		at++;
	return at < c->n_running ? &c->running[at] : NULL;
}

static void runs_no_more(struct cpu *c, uint32_t client)
{
	uint32_t *one = running_of(c, client);

	*one = c->running[--c->n_running];
}

static void put_back(void *arg, struct work *work)
{
	struct cpu *c = arg;

	runs_no_more(c, job_of(work)->client);
	device_queue_return(&c->queue, job_of(work));
}

static struct work *take(void *arg)
{
	struct cpu *c = arg;
	struct device_job *job = device_queue_take(&c->queue);

	show_queue(c);
	if (!job)
		return NULL;
	c->running[c->n_running++] = job->client;
	return &job->work;
}

static bool more(void *arg, const struct work *ended)
{
	struct cpu *c = arg;
	const uint32_t client = container_of(ended, struct device_job, work)->client;

	runs_no_more(c, client);
	return running_of(c, client) || device_queue_wait(&c->queue, client);
}

static const struct workers_order queue_order = {
	.put = put, .put_back = put_back, .take = take, .more = more
};

/* --- worker side --- */

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

/* Pieces of a job until it ends: true; or for a quantum if other clients wait: false. */
static bool work_on(struct cpu *c, struct device_job *job, uint32_t thread)
{
	uint8_t *scratch = c->scratch + (size_t)thread * CODEC_SCRATCH_BYTES;
	/* since: when others were first seen to wait */
	uint64_t now = 0, since = 0;

	for (uint32_t pieces = 0;; pieces++) {
		const bool others = others_wait(c, job->client),
			   look = others || pieces % CLOCK_PIECES == 0;

		if (look)
			now = clock_ns();
		if (others && since == 0)
			since = now;
		if (others && now - since >= QUANTUM_NS)
			return false;
		if (look)
			workers_tell(c->workers, now);
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
	c->kernels->fence(); /* another thread goes on, told after this */
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
	struct cpu *c = cpu_of(device);

	workers_close(c->workers);
	guard_close(c->guard);
	free(c->scratch);
	device_queue_close(&c->queue);
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

static int open_all(struct cpu *c, uint32_t threads)
{
	const uint32_t depth = c->base.depth + c->base.own_depth;
	const struct workers_conf workers = {
		.loop = c->base.loop,
		.threads = threads < MAX_WORKERS ? threads : MAX_WORKERS,
		.keep = MAX_WORKERS,
		.wake_batch = WAKE_BATCH,
		.late_ns = WAKE_LATE_NS,
		.order = &queue_order,
		.order_arg = c,
	};
	int r = guard_open(&c->guard);

	if (r)
		return r;
	c->base.guarded = c->guard >= 0;
	c->kernels = codec_kernels(NULL);
	c->scratch = aligned_alloc(4096, (size_t)workers.threads * CODEC_SCRATCH_BYTES);
	if (c->scratch)
		vault_hide(c->scratch, (size_t)workers.threads * CODEC_SCRATCH_BYTES);
	if (!c->scratch || make_jobs(c, depth) || device_queue_open(&c->queue, depth))
		return -ENOMEM;
	return workers_open(&workers, &c->workers);
}

int device_cpu_open(uint32_t workers, uint32_t depth, uint32_t own_depth, struct loop *loop,
		    struct device **ret)
{
	struct cpu *c = calloc(1, sizeof(*c));
	int r;

	if (!c)
		return -ENOMEM;
	c->base = (struct device){ .ops = &device_cpu_ops,
				   .loop = loop,
				   .depth = depth,
				   .own_depth = own_depth,
				   .numa_node = -1 };
	c->guard = -1;
	mails_clear(&c->fresh);
	r = open_all(c, workers ? workers : thread_cpus());
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

	if (seals < 0)
		return text_fail(
			text, n, -EPERM,
			"region: the fd is not a memfd that takes seals (memfd_create with "
			"MFD_ALLOW_SEALING)");
	if (!(seals & F_SEAL_SHRINK))
		return text_fail(
			text, n, -EPERM,
			"region: the memfd lacks F_SEAL_SHRINK (seals are 0x%x): add it with "
			"fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK)",
			(unsigned)seals);
	/* Its owner can punch a hole that no page is left to fill: touching it would be our
	 * SIGBUS. */
	if (fstatfs(fd, &fs) == 0 && fs.f_type == HUGETLBFS_MAGIC)
		return text_fail(
			text, n, -EPERM,
			"region: the memfd was made with MFD_HUGETLB, which cannot be sealed "
			"against holes: make it without, and madvise(MADV_HUGEPAGE)");
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
	    length > (uint64_t)st.st_size - offset)
		return text_fail(
			text, n, -EINVAL,
			"region: offset %llu (a multiple of 4096) + length %llu must lie in the "
			"memfd's %lld bytes",
			(unsigned long long)offset, (unsigned long long)length,
			(long long)st.st_size);
	base = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, desc->fd, (off_t)offset);
	if (base == MAP_FAILED)
		return text_fail(
			text, n, -errno,
			"region: cannot map %llu bytes read-write: %s (a memfd sealed against "
			"writing cannot receive loads)",
			(unsigned long long)length, strerror(errno));
	vault_hide(base, length);
	r = guard_region(cpu_of(device)->guard, base, length);
	if (r) {
		(void)munmap(base, length);
		return text_fail(text, n, r, "region: cannot be watched for holes: %s",
				 strerror(-r));
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

	assert(job->image_memory == IMAGE_OF_HOST);
	job->run = c->free_runs[--c->n_free_runs];
	device_run_begin(job->run, c->kernels, job, c->base.guarded);
	job->work.run = run;
	job->work.done = done;
	mails_append(&c->fresh, &job->work.mail);
	if (c->fresh.n >= WAKE_BATCH)
		device_kick(device);
	return 0;
}

static void cpu_kick(struct device *device)
{
	workers_submit_all(cpu_of(device)->workers, &cpu_of(device)->fresh);
}

const struct device_ops device_cpu_ops = {
	.name = "cpu",
	.close = cpu_close,
	.import = cpu_import,
	.release = cpu_release,
	.submit = cpu_submit,
	.kick = cpu_kick,
};
