/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_cpu.c - the device for engines whose pages are in host memory: a pool of worker threads that
 * run kernels/ between a client's mapped memfd and a host slot.
 *
 *	core: submit --todo (bounded ring)--> worker: encode | verify, decode --done list, eventfd--> core: done
 *
 * Invariants
 *   C1 a worker touches only the job it took, its region and its slot; all are pinned until `done`.
 *   C2 a region is imported only with F_SEAL_SHRINK and not from hugetlbfs, so that nothing its owner does
 *      later (truncation, a hole) can make a worker fault.
 *   C3 engine memory may change under a worker: kernels read it once and never trust it for control.
 *   C4 a large region is unmapped by a thread of its own: that takes 20 ms a GiB, and 100 when its engine has
 *      died and its pages are freed by it, which the core's other clients must not wait for.
 * The one lock guards todo, done, unmap and stopping. Take no locks while holding it.
 */
#include "device.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "loop.h"

enum {
	MAX_WORKERS = 256,
	/* Completions gathered before the core is woken, while more jobs wait: a context switch costs 2-5 us
	 * and a 1 MiB block 50-150 us, so 4 keeps the core's share of a busy machine around one per cent. */
	WAKE_BATCH = 4,
	UNMAP_HERE_BYTES = 1 << 20,	/* up to this a region is unmapped by the core: 0.1 ms at most */
	UNMAP_PIECE_BYTES = 32 << 20,	/* emptied between two moments in which others may map something */
};

/* A region's mapping, on its way out. Made with the region, so that releasing cannot fail. */
struct mapping {
	struct mapping *next;
	uint8_t *base;
	uint64_t length;
};

struct cpu {
	struct device base;
	const struct codec_kernels *kernels;
	struct loop_watch watch;		/* eventfd */
	struct loop_poller poller;		/* finds completions without the kernel while the core spins */
	uint32_t depth, n_workers;
	pthread_t workers[MAX_WORKERS];
	uint8_t *scratch;			/* CODEC_SCRATCH_BYTES a worker */
	uint32_t next_worker;			/* numbers the workers as they start */

	pthread_mutex_t lock;
	pthread_cond_t more;
	bool stopping;
	struct device_job **todo;		/* ring of depth */
	uint32_t todo_head, todo_count;
	struct device_job *done, **done_end;
	uint32_t done_count;
	bool signalled;				/* eventfd written since the core last drained */

	pthread_t unmapper;
	bool has_unmapper;
	pthread_cond_t more_unmap;
	struct mapping *unmap;
};

static struct cpu *cpu_of(struct device *device)
{
	return (struct cpu *)(void *)device;
}

/* --- worker side --- */

static int check_image(const struct cpu *c, struct device_job *job, const struct image_geometry *geometry,
		       const struct image_identity *identity, bool checksum)
{
	struct image_header header;
	struct image_shape shape;
	int r;

	memcpy(&header, job->image, sizeof header);
	r = image_header_check(&header, geometry, identity, &shape);
	if (r)
		return r;
	if (shape.image_bytes > job->image_bytes)
		return -EBADMSG;
	if (checksum && c->kernels->checksum(job->image, &shape) != header.checksum)
		return -EBADMSG;
	job->out_codec_k = header.codec_k;
	job->out_codec_v = header.codec_v;
	return 0;
}

static int run_decode(const struct cpu *c, struct device_job *job, uint8_t *scratch)
{
	const int r = check_image(c, job, &job->layout->geometry, &job->identity, job->verify);

	return r ? r : c->kernels->decode(job->layout, job->page, job->image, scratch);
}

static int run_verify(const struct cpu *c, struct device_job *job)
{
	struct image_identity identity = job->identity;
	struct image_geometry geometry;
	struct image_header header;

	if (job->geometry)
		return check_image(c, job, job->geometry, &identity, true);
	memcpy(&header, job->image, sizeof header);
	image_header_geometry(&header, &geometry);
	memcpy(identity.space_id, header.space_id, sizeof identity.space_id);
	return check_image(c, job, &geometry, &identity, true);
}

static int run_job(const struct cpu *c, struct device_job *job, uint8_t *scratch)
{
	if (job->given_up && __atomic_load_n(job->given_up, __ATOMIC_SEQ_CST))
		return -ECANCELED;
	if (job->kind == DEVICE_VERIFY)
		return run_verify(c, job);
	if (job->kind == DEVICE_DECODE)
		return run_decode(c, job, scratch);
	job->out_codec_k = job->codec_k;
	job->out_codec_v = job->codec_v;
	return c->kernels->encode(job->layout, job->page, (enum image_codec)job->codec_k,
				  (enum image_codec)job->codec_v, &job->identity, job->image, scratch);
}

static void wake_core(const struct cpu *c)
{
	const uint64_t one = 1;

	/* The daemon's own eventfd: it cannot be full, since only `signalled` edges write it. */
	(void)!write(c->watch.fd, &one, sizeof one);
}

/* With the lock held. True: the caller should wake the core after unlocking. */
static bool finish(struct cpu *c, struct device_job *job)
{
	job->next = NULL;
	*c->done_end = job;
	c->done_end = &job->next;
	c->done_count++;
	if (c->signalled || (c->done_count < WAKE_BATCH && c->todo_count > 0))
		return false;
	c->signalled = true;
	return true;
}

static void *work(void *arg)
{
	struct cpu *c = arg;
	uint8_t *scratch;

	pthread_mutex_lock(&c->lock);
	scratch = c->scratch + (size_t)c->next_worker++ * CODEC_SCRATCH_BYTES;
	for (;;) {
		struct device_job *job;
		bool wake;

		while (c->todo_count == 0 && !c->stopping)
			pthread_cond_wait(&c->more, &c->lock);
		if (c->todo_count == 0)
			break;
		job = c->todo[c->todo_head];
		c->todo_head = (c->todo_head + 1) % c->depth;
		c->todo_count--;
		pthread_mutex_unlock(&c->lock);
		job->status = run_job(c, job, scratch);
		pthread_mutex_lock(&c->lock);
		wake = finish(c, job);
		if (wake) {
			pthread_mutex_unlock(&c->lock);
			wake_core(c);
			pthread_mutex_lock(&c->lock);
		}
	}
	pthread_mutex_unlock(&c->lock);
	return NULL;
}

/* --- the thread that unmaps --- */

/* Pages first, piece by piece: munmap() of them all at once would lock the address space for as long. */
static void unmap_region(uint8_t *base, uint64_t length)
{
	for (uint64_t at = 0; at < length; at += UNMAP_PIECE_BYTES)
		(void)madvise(base + at, length - at < UNMAP_PIECE_BYTES ? length - at : UNMAP_PIECE_BYTES,
			      MADV_DONTNEED);
	(void)munmap(base, length);
}

/* Ends, when told to stop, after the last one. */
static void *unmap_all(void *arg)
{
	struct cpu *c = arg;

	pthread_mutex_lock(&c->lock);
	for (;;) {
		struct mapping *m = c->unmap;

		if (m) {
			c->unmap = m->next;
			pthread_mutex_unlock(&c->lock);
			unmap_region(m->base, m->length);
			free(m);
			pthread_mutex_lock(&c->lock);
		} else if (c->stopping) {
			break;
		} else {
			pthread_cond_wait(&c->more_unmap, &c->lock);
		}
	}
	pthread_mutex_unlock(&c->lock);
	return NULL;
}

/* --- core side --- */

static bool drain(struct cpu *c)
{
	struct device_job *list;

	pthread_mutex_lock(&c->lock);
	list = c->done;
	c->done = NULL;
	c->done_end = &c->done;
	c->done_count = 0;
	c->signalled = false;
	pthread_mutex_unlock(&c->lock);
	for (struct device_job *job = list, *next; job; job = next) {
		next = job->next;
		device_complete(job);
	}
	return list != NULL;
}

static void on_event(struct loop_watch *watch, uint32_t events)
{
	struct cpu *c = (struct cpu *)(void *)((char *)watch - offsetof(struct cpu, watch));
	uint64_t count;

	(void)events;
	(void)!read(watch->fd, &count, sizeof count);
	(void)drain(c);
}

static bool on_poll(struct loop_poller *poller)
{
	struct cpu *c = (struct cpu *)(void *)((char *)poller - offsetof(struct cpu, poller));

	return c->base.in_flight > 0 && drain(c);
}

static void cpu_close(struct device *device)
{
	struct cpu *c = device ? cpu_of(device) : NULL;

	if (!c)
		return;
	pthread_mutex_lock(&c->lock);
	c->stopping = true;
	pthread_cond_broadcast(&c->more);
	pthread_cond_broadcast(&c->more_unmap);
	pthread_mutex_unlock(&c->lock);
	if (c->has_unmapper)
		pthread_join(c->unmapper, NULL);
	for (uint32_t i = 0; i < c->n_workers; i++)
		pthread_join(c->workers[i], NULL);
	if (c->watch.fd >= 0) {
		loop_poller_remove(c->base.loop, &c->poller);
		loop_remove(c->base.loop, &c->watch);
		(void)close(c->watch.fd);
	}
	pthread_cond_destroy(&c->more);
	pthread_cond_destroy(&c->more_unmap);
	pthread_mutex_destroy(&c->lock);
	free(c->scratch);
	free(c->todo);
	free(c);
}

static int start_threads(struct cpu *c, uint32_t n)
{
	sigset_t all, before;
	int r = 0;

	sigfillset(&all);	/* signals are the core's (signalfd) */
	pthread_sigmask(SIG_SETMASK, &all, &before);
	while (c->n_workers < n && r == 0) {
		r = pthread_create(&c->workers[c->n_workers], NULL, work, c);
		if (r == 0)
			c->n_workers++;
	}
	if (r == 0) {
		r = pthread_create(&c->unmapper, NULL, unmap_all, c);
		c->has_unmapper = r == 0;
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return -r;
}

static uint32_t usable_cpus(void)
{
	cpu_set_t set;

	return sched_getaffinity(0, sizeof set, &set) ? 1 : (uint32_t)CPU_COUNT(&set);
}

static int cpu_open(const struct device_conf *conf, struct loop *loop, struct device **ret)
{
	struct cpu *c = calloc(1, sizeof *c);
	uint32_t workers = conf->workers ? conf->workers : usable_cpus();
	int r;

	if (!c)
		return -ENOMEM;
	if (workers > MAX_WORKERS)
		workers = MAX_WORKERS;
	c->base.ops = &device_cpu_ops;
	c->base.loop = loop;
	c->depth = conf->depth;
	c->done_end = &c->done;
	c->watch.fd = -1;
	c->watch.ready = on_event;
	c->poller.poll = on_poll;
	pthread_mutex_init(&c->lock, NULL);
	pthread_cond_init(&c->more, NULL);
	pthread_cond_init(&c->more_unmap, NULL);
	r = -EINVAL;
	c->kernels = codec_kernels(conf->kernels);
	if (!c->kernels || conf->depth == 0)
		goto fail;
	r = -ENOMEM;
	c->todo = calloc(conf->depth, sizeof(struct device_job *));
	c->scratch = aligned_alloc(4096, (size_t)workers * CODEC_SCRATCH_BYTES);
	if (!c->todo || !c->scratch)
		goto fail;
	c->watch.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (c->watch.fd < 0) {
		r = -errno;
		goto fail;
	}
	loop_poller_add(loop, &c->poller);
	r = loop_add(loop, &c->watch, EPOLLIN);
	if (r == 0)
		r = start_threads(c, workers);
	if (r)
		goto fail;
	*ret = &c->base;
	return 0;
fail:
	cpu_close(&c->base);
	return r;
}

static int check_seals(int fd, char *text, size_t n)
{
	const int seals = fcntl(fd, F_GET_SEALS);
	struct statfs fs;

	if (seals < 0) {
		snprintf(text, n, "region: the fd is not a memfd that takes seals (memfd_create with "
			 "MFD_ALLOW_SEALING)");
		return -EPERM;
	}
	if (!(seals & F_SEAL_SHRINK)) {
		snprintf(text, n, "region: the memfd lacks F_SEAL_SHRINK (seals are 0x%x): add it with fcntl(fd, "
			 "F_ADD_SEALS, F_SEAL_SHRINK)", (unsigned)seals);
		return -EPERM;
	}
	/* Its owner can punch a hole that no page is left to fill: touching it would be our SIGBUS. */
	if (fstatfs(fd, &fs) == 0 && fs.f_type == HUGETLBFS_MAGIC) {
		snprintf(text, n, "region: the memfd was made with MFD_HUGETLB, which cannot be sealed against "
			 "holes: make it without, and madvise(MADV_HUGEPAGE)");
		return -EPERM;
	}
	return 0;
}

static int cpu_import(struct device *device, int fd, uint64_t offset, uint64_t length,
		      struct device_region *ret, char *text, size_t n)
{
	struct stat st = { 0 };
	struct mapping *m;
	void *base;
	const int r = check_seals(fd, text, n);

	if (r)
		return r;
	(void)fstat(fd, &st);	/* of a memfd, as its seals have shown */
	if (length == 0 || offset % 4096 || st.st_size < 0 || offset > (uint64_t)st.st_size ||
	    length > (uint64_t)st.st_size - offset) {
		snprintf(text, n, "region: offset %llu (a multiple of 4096) + length %llu must lie in the memfd's "
			 "%lld bytes", (unsigned long long)offset, (unsigned long long)length,
			 (long long)st.st_size);
		return -EINVAL;
	}
	m = malloc(sizeof *m);
	base = m ? mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)offset) : MAP_FAILED;
	if (base == MAP_FAILED) {
		const int error = -errno;

		snprintf(text, n, "region: cannot map %llu bytes read-write: %s (a memfd sealed against writing "
			 "cannot receive loads)", (unsigned long long)length, strerror(-error));
		free(m);
		return error;
	}
	*ret = (struct device_region){ .device = device, .base = base, .length = length, .own = m };
	return 0;
}

static void cpu_release(struct device *device, struct device_region *region)
{
	struct cpu *c = cpu_of(device);
	struct mapping *m = region->own;

	*m = (struct mapping){ .base = region->base, .length = region->length };
	region->base = NULL;
	region->own = NULL;
	if (m->length <= UNMAP_HERE_BYTES) {
		(void)munmap(m->base, m->length);
		free(m);
		return;
	}
	pthread_mutex_lock(&c->lock);
	m->next = c->unmap;
	c->unmap = m;
	pthread_cond_signal(&c->more_unmap);
	pthread_mutex_unlock(&c->lock);
}

static int cpu_submit(struct device *device, struct device_job *job)
{
	struct cpu *c = cpu_of(device);

	if (device->in_flight >= c->depth)
		return -EAGAIN;
	pthread_mutex_lock(&c->lock);
	assert(c->todo_count < c->depth);
	c->todo[(c->todo_head + c->todo_count) % c->depth] = job;
	c->todo_count++;
	pthread_cond_signal(&c->more);
	pthread_mutex_unlock(&c->lock);
	return 0;
}

const struct device_ops device_cpu_ops = {
	.name = "cpu",
	.open = cpu_open,
	.close = cpu_close,
	.import = cpu_import,
	.release = cpu_release,
	.submit = cpu_submit,
};
