/* SPDX-License-Identifier: Apache-2.0 */
/*
 * io_threads.c - the engine for where io_uring is refused: threads that each do one pread, pwrite or
 * fdatasync at a time.
 *
 * There is a thread for every op that can be in the disk, since depth[] is lowered to the number of
 * threads; so nothing waits behind a stalled transfer here, and order stays io.c's business.
 *
 *	start -> fresh --flush--> jobs --worker: one system call--> ended --reap--> io_transferred()
 *
 * The core thread owns fresh, the lock the two others. Workers wake the loop when ended was empty; reap looks
 * at n_ended without the lock.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "io_engine.h"

/* Linked by engine_next. */
struct list {
	struct io_op *first, **last;
	uint32_t n;
};

struct pool {
	struct io base;			/* first */
	struct list fresh;
	struct list taken;		/* out of ended, for reap to go through */
	pthread_mutex_t lock;		/* guards jobs, ended, stop. Take no locks while holding this one */
	pthread_cond_t work;		/* jobs are not empty, or stop */
	struct list jobs, ended;
	bool stop;
	atomic_bool any_ended;
	uint32_t n_threads;
	pthread_t threads[IO_MAX_THREADS];
};

static void list_clear(struct list *l)
{
	*l = (struct list){ .last = &l->first };
}

static void list_append(struct list *l, struct io_op *op)
{
	op->engine_next = NULL;
	*l->last = op;
	l->last = &op->engine_next;
	l->n++;
}

static struct io_op *list_take(struct list *l)
{
	struct io_op *op = l->first;

	l->first = op->engine_next;
	if (!l->first)
		l->last = &l->first;
	l->n--;
	return op;
}

/* All of `from` to the end of `to`. */
static void list_move(struct list *to, struct list *from)
{
	if (from->n == 0)
		return;
	*to->last = from->first;
	to->last = from->last;
	to->n += from->n;
	list_clear(from);
}

/* --- workers --- */

/* files[] of an op that is lent does not change. */
static int32_t transfer(const struct io *io, const struct io_op *op)
{
	const int fd = io->files[op->file].fd;
	const off_t offset = (off_t)io_op_offset(op);
	ssize_t r;

	if (op->kind == IO_READ)
		r = pread(fd, io_op_buffer(op), io_op_left(op), offset);
	else if (op->kind == IO_WRITE)
		r = pwrite(fd, io_op_buffer(op), io_op_left(op), offset);
	else
		r = fdatasync(fd);
	return r < 0 ? -errno : (int32_t)r;	/* Linux moves less than 2 GiB in a call */
}

static void wake_loop(const struct pool *p)
{
	const uint64_t one = 1;

	(void)!write(p->base.event_fd, &one, sizeof one);	/* full: then the loop was woken long ago */
}

static struct io_op *next_job(struct pool *p)
{
	struct io_op *op = NULL;

	(void)pthread_mutex_lock(&p->lock);
	while (p->jobs.n == 0 && !p->stop)
		(void)pthread_cond_wait(&p->work, &p->lock);
	if (p->jobs.n > 0)
		op = list_take(&p->jobs);
	(void)pthread_mutex_unlock(&p->lock);
	return op;
}

static void *work(void *arg)
{
	struct pool *p = arg;
	struct io_op *op;

	while ((op = next_job(p)) != NULL) {
		bool first;

		op->result = transfer(&p->base, op);
		(void)pthread_mutex_lock(&p->lock);
		first = p->ended.n == 0;
		list_append(&p->ended, op);
		atomic_store(&p->any_ended, true);
		(void)pthread_mutex_unlock(&p->lock);
		if (first)
			wake_loop(p);
	}
	return NULL;
}

/* --- the core thread's side --- */

static void pool_start(struct io *io, struct io_op *op)
{
	list_append(&((struct pool *)io)->fresh, op);
}

static int pool_flush(struct io *io)
{
	struct pool *p = (struct pool *)io;
	const uint32_t n = p->fresh.n;

	if (n == 0)
		return 0;
	(void)pthread_mutex_lock(&p->lock);
	list_move(&p->jobs, &p->fresh);
	(void)pthread_mutex_unlock(&p->lock);
	for (uint32_t i = 0; i < n; i++)
		(void)pthread_cond_signal(&p->work);
	return 0;
}

static uint32_t pool_reap(struct io *io, uint32_t budget)
{
	struct pool *p = (struct pool *)io;
	uint32_t n = 0;

	if (atomic_load(&p->any_ended)) {
		(void)pthread_mutex_lock(&p->lock);
		list_move(&p->taken, &p->ended);
		atomic_store(&p->any_ended, false);
		(void)pthread_mutex_unlock(&p->lock);
	}
	for (; n < budget && p->taken.n > 0; n++) {
		struct io_op *op = list_take(&p->taken);

		io_transferred(io, op, op->result);
	}
	return n;
}

static int pool_file_set(struct io *io, uint32_t file, int fd)
{
	(void)io;
	(void)file;
	(void)fd;
	return 0;
}

/* --- open and close --- */

static void pool_close(struct io *io)
{
	struct pool *p = (struct pool *)io;

	(void)pthread_mutex_lock(&p->lock);
	p->stop = true;
	(void)pthread_cond_broadcast(&p->work);
	(void)pthread_mutex_unlock(&p->lock);
	for (uint32_t i = 0; i < p->n_threads; i++)
		(void)pthread_join(p->threads[i], NULL);
	(void)pthread_cond_destroy(&p->work);
	(void)pthread_mutex_destroy(&p->lock);
	if (p->base.event_fd >= 0)
		(void)close(p->base.event_fd);
	free(p);
}

/* As many threads as both depths together, or both depths as small as there are threads. */
static uint32_t fit_depths(struct pool *p, const struct io_conf *conf)
{
	const uint32_t wanted = conf->read_depth + conf->write_depth;
	const uint32_t most = conf->threads ? conf->threads : IO_MAX_THREADS;
	uint32_t writes = conf->write_depth;

	if (wanted > most) {
		writes = most * conf->write_depth / wanted;
		if (writes == 0)
			writes = 1;
	}
	p->base.depth[IO_WRITES] = writes;
	p->base.depth[IO_READS] = wanted > most ? most - writes : conf->read_depth;
	if (wanted > most)
		io_note_add(&p->base, "%u I/O threads: at most %u reads and %u writes at once", most,
			    p->base.depth[IO_READS], writes);
	return p->base.depth[IO_READS] + writes;
}

/* Signals are the core thread's business. */
static int start_threads(struct pool *p, uint32_t n)
{
	sigset_t all, before;
	int error = 0;

	(void)sigfillset(&all);
	(void)pthread_sigmask(SIG_SETMASK, &all, &before);
	while (p->n_threads < n && error == 0) {
		error = pthread_create(&p->threads[p->n_threads], NULL, work, p);
		p->n_threads += error == 0;
	}
	(void)pthread_sigmask(SIG_SETMASK, &before, NULL);
	return -error;
}

static int pool_open(const struct io_conf *conf, struct io **ret, char *text, size_t n)
{
	struct pool *p = calloc(1, sizeof *p);
	int r;

	if (!p) {
		(void)snprintf(text, n, "no memory for the I/O threads");
		return -ENOMEM;
	}
	p->base.engine = &io_engine_threads;
	(void)pthread_mutex_init(&p->lock, NULL);
	(void)pthread_cond_init(&p->work, NULL);
	list_clear(&p->fresh);
	list_clear(&p->taken);
	list_clear(&p->jobs);
	list_clear(&p->ended);
	p->base.event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	r = p->base.event_fd < 0 ? -errno : start_threads(p, fit_depths(p, conf));
	if (r) {
		(void)snprintf(text, n, "cannot start the I/O threads: %s", strerror(-r));
		pool_close(&p->base);
		return r;
	}
	*ret = &p->base;
	return 0;
}

const struct io_engine io_engine_threads = {
	.name = "threads",
	.open = pool_open,
	.close = pool_close,
	.file_set = pool_file_set,
	.start = pool_start,
	.flush = pool_flush,
	.reap = pool_reap,
};
