/* SPDX-License-Identifier: Apache-2.0 */
/*
 * io_threads.c - the engine where io_uring is refused: threads that each do one pread, pwrite or
 * fdatasync at a time.
 *
 * There is a thread for every op that can be in the disk, since depth[] is lowered to the number of
 * threads. So no op waits here behind a stalled transfer, and io.c alone decides the order.
 *
 *	start -> fresh --flush--> workers: one system call --reap--> io_transferred()
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/list.h"
#include "base/text.h"
#include "io_engine.h"

struct pool {
	struct io base;     /* first */
	struct mails fresh; /* started since the last flush */
	struct workers *workers;
};

/* --- workers --- */

static int32_t transfer(const struct io *io, const struct io_op *op)
{
	const int fd = io->fd; /* constant while an op is lent */
	const off_t offset = (off_t)io_op_offset(op);
	ssize_t r;

	if (op->kind == IO_READ)
		r = pread(fd, io_op_buffer(op), io_op_left(op), offset);
	else if (op->kind == IO_WRITE)
		r = pwrite(fd, io_op_buffer(op), io_op_left(op), offset);
	else
		r = fdatasync(fd);
	return r < 0 ? -errno : (int32_t)r; /* Linux moves less than 2 GiB in a call */
}

static enum work_end run(struct work *work, uint32_t thread)
{
	struct io_op *op = container_of(work, struct io_op, work);

	(void)thread;
	op->result = transfer(op->io, op);
	return WORK_ENDED;
}

/* --- the core thread's side --- */

static void done(struct work *work)
{
	struct io_op *op = container_of(work, struct io_op, work);

	io_transferred(op->io, op, op->result);
}

static void pool_start(struct io *io, struct io_op *op)
{
	op->io = io;
	op->work.run = run;
	op->work.done = done;
	mails_append(&((struct pool *)io)->fresh, &op->work.mail);
}

static int pool_flush(struct io *io)
{
	struct pool *p = (struct pool *)io;

	if (p->fresh.n > 0)
		workers_submit_all(p->workers, &p->fresh);
	return 0;
}

static uint32_t pool_reap(struct io *io, uint32_t budget)
{
	return workers_reap(((struct pool *)io)->workers, budget);
}

/* --- open and close --- */

static void pool_close(struct io *io)
{
	struct pool *p = (struct pool *)io;

	workers_close(p->workers); /* and the eventfd */
	free(p);
}

/* Starts a thread for each op of both depths, or lowers the depths to the threads that there may
 * be. */
static uint32_t fit_depths(struct pool *p, const struct io_conf *conf)
{
	const uint32_t wanted = conf->read_depth + conf->write_depth;
	uint32_t *depth = p->base.depth;

	depth[IO_READS] = conf->read_depth;
	depth[IO_WRITES] = conf->write_depth;
	if (wanted <= IO_MAX_THREADS)
		return wanted;
	depth[IO_WRITES] = IO_MAX_THREADS * conf->write_depth / wanted;
	depth[IO_WRITES] += depth[IO_WRITES] == 0;
	depth[IO_READS] = IO_MAX_THREADS - depth[IO_WRITES];
	io_note_add(&p->base, "%d I/O threads: at most %u reads and %u writes at once",
		    IO_MAX_THREADS, depth[IO_READS], depth[IO_WRITES]);
	return IO_MAX_THREADS;
}

static int pool_open(const struct io_conf *conf, struct io **ret, char *text, size_t n)
{
	struct pool *p = calloc(1, sizeof(*p));
	struct workers_conf workers = { .loop = NULL };
	int r;

	if (!p)
		return text_fail(text, n, -ENOMEM, "no memory for the I/O threads");
	p->base.engine = &io_engine_threads;
	mails_clear(&p->fresh);
	workers.threads = workers.keep = fit_depths(p, conf);
	r = workers_open(&workers, &p->workers);
	if (r) {
		free(p);
		return text_fail(text, n, r, "cannot start the I/O threads: %s", strerror(-r));
	}
	p->base.event_fd = workers_fd(p->workers);
	*ret = &p->base;
	return 0;
}

const struct io_engine io_engine_threads = {
	.name = "threads",
	.open = pool_open,
	.close = pool_close,
	.start = pool_start,
	.flush = pool_flush,
	.reap = pool_reap,
};
