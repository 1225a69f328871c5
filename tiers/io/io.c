/* SPDX-License-Identifier: Apache-2.0 */
/*
 * io.c - the part that both I/O engines share: bounds, order, and the meaning of a transfer's
 * result.
 *
 *  io_submit --> waiting --start_some--> started (in the disk) --io_transferred--> idle, done()
 *                   ^      alone, or in a run                             |
 *                   `---------- short, EINTR, EAGAIN: at the front -------'
 *
 * Invariants
 *	I1 lent[d] = waiting[d].n + the ops of the in_disk[d] transfers <= bound[d]; in_disk[d] <=
 *	   depth[d]; started has the first op of each transfer
 *	I2 done() runs from the poller alone, when the op is idle and is no longer counted
 *	I3 moved is a multiple of IO_ALIGN until the op has ended, so every transfer is as aligned
 *	   as the op
 */
#include "io_engine.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/list.h"
#include "base/text.h"

enum {
	REAP_BUDGET = 64,   /* completions an iteration: others want the core thread, too */
	MAX_TRIES = 16,     /* of a transfer that moves no byte */
	RETRY_NS = 1000000, /* the kernel is short of something: leave it alone for so long */
	/* so many that wait are looked at for the next op of a run: ops of several chains mix */
	RUN_LOOK = 16,
};

enum { AGAIN = 1 }; /* beside 0 and -errno: start the rest of the op */

/* --- queues: an op is in one at a time --- */

static void queue_append(struct io_queue *q, struct io_op *op)
{
	op->next = NULL;
	op->previous = q->last;
	*(q->last ? &q->last->next : &q->first) = op;
	q->last = op;
	q->n++;
}

/* Behind another op, or (NULL) first. */
static void queue_insert(struct io_queue *q, struct io_op *behind, struct io_op *op)
{
	struct io_op **link = behind ? &behind->next : &q->first;

	op->next = *link;
	op->previous = behind;
	*(*link ? &(*link)->previous : &q->last) = op;
	*link = op;
	q->n++;
}

static void queue_remove(struct io_queue *q, struct io_op *op)
{
	*(op->previous ? &op->previous->next : &q->first) = op->next;
	*(op->next ? &op->next->previous : &q->last) = op->previous;
	q->n--;
}

/* --- results --- */

static enum io_direction direction(const struct io_op *op)
{
	return op->kind == IO_READ ? IO_READS : IO_WRITES;
}

/* Whether a read that stopped after `result` bytes met the end. lseek knows the size of a disk as
 * well. */
static bool at_end(const struct io *io, const struct io_op *op, uint32_t result)
{
	const off_t size = lseek(io->fd, 0, SEEK_END);

	return size >= 0 && io_op_offset(op) + result >= (uint64_t)size;
}

static int try_again(struct io_op *op, int otherwise)
{
	return ++op->tries > MAX_TRIES ? otherwise : AGAIN;
}

/* 0: all of it moved, AGAIN, or -errno. */
static int judge(const struct io *io, struct io_op *op, int32_t result)
{
	uint32_t n, whole;

	if (result == -EINTR || result == -EAGAIN)
		return try_again(op, result);
	if (result < 0 || op->kind == IO_FDATASYNC)
		return result;
	n = (uint32_t)result;
	assert(n <= io_op_left(op));
	if (n == io_op_left(op))
		return 0;
	whole = n & ~(uint32_t)(IO_ALIGN - 1); /* the rest of a torn page moves once more */
	if (whole > 0) {
		op->moved += whole;
		op->tries = 0;
		return AGAIN;
	}
	if (op->kind == IO_READ && at_end(io, op, n))
		return -ENODATA;
	return n == 0 ? -EIO : try_again(op, -EIO);
}

static void end(struct io *io, struct io_op *op, int status)
{
	op->status = status;
	op->state = IO_IDLE;
	io->lent[direction(op)]--;
	op->done(op);
}

/* Starts again before all that wait. */
static void wait_again(struct io *io, struct io_op *behind, struct io_op *op)
{
	op->state = IO_WAITING;
	queue_insert(&io->waiting[direction(op)], behind, op);
}

static void run_transferred(struct io *io, struct io_op *op, int32_t result)
{
	uint32_t left = result > 0 ? (uint32_t)result : 0;
	struct io_op *behind = NULL, *next;

	for (; op; op = next) {
		next = op->run;
		op->run = NULL;
		if (io_op_left(op) <= left) {
			left -= io_op_left(op);
			end(io, op, 0);
			continue;
		}
		left = 0;
		op->alone = true;
		wait_again(io, behind, op);
		behind = op;
	}
}

void io_transferred(struct io *io, struct io_op *op, int32_t result)
{
	int verdict;

	assert(op->state == IO_STARTED);
	queue_remove(&io->started, op);
	io->in_disk[direction(op)]--;
	if (result == -EAGAIN) /* no room for a timer: then without a pause */
		loop_timer_set(io->loop, &io->retry, loop_now(io->loop) + RETRY_NS);
	if (op->run) {
		run_transferred(io, op, result);
		return;
	}
	verdict = judge(io, op, result);
	if (verdict == AGAIN)
		wait_again(io, NULL, op);
	else
		end(io, op, verdict);
}

/* --- the iteration --- */

/* The op that begins in the file where a run ends, if it is among the next RUN_LOOK; NULL. */
static struct io_op *next_of_run(const struct io_queue *waiting, const struct io_op *first,
				 uint32_t bytes)
{
	struct io_op *op = waiting->first;

	for (uint32_t i = 0; op && i < RUN_LOOK; i++, op = op->next)
		if (op->offset == io_op_offset(first) + bytes && op->kind == first->kind &&
		    !op->alone && op->moved == 0)
			return op->bytes <= IO_RUN_BYTES - bytes ? op : NULL;
	return NULL;
}

static void make_run(struct io_queue *waiting, struct io_op *first)
{
	uint32_t bytes = io_op_left(first);
	struct io_op *last = first, *op;

	if (first->kind == IO_FDATASYNC || first->alone)
		return;
	for (uint32_t n = 1; n < IO_RUN_OPS && bytes < IO_RUN_BYTES; n++) {
		op = next_of_run(waiting, first, bytes);
		if (!op)
			return;
		queue_remove(waiting, op);
		op->state = IO_STARTED;
		bytes += op->bytes;
		last->run = op;
		last = op;
	}
}

static void start_some(struct io *io, enum io_direction d)
{
	struct io_queue *waiting = &io->waiting[d];

	while (waiting->n > 0 && io->in_disk[d] < io->depth[d]) {
		struct io_op *op = waiting->first;

		queue_remove(waiting, op);
		queue_append(&io->started, op);
		op->state = IO_STARTED;
		op->start_ns = loop_now(io->loop);
		io->in_disk[d]++;
		if (io->engine->runs)
			make_run(waiting, op);
		io->engine->start(io, op);
	}
}

static bool poll_io(struct loop_poller *poller)
{
	struct io *io = container_of(poller, struct io, poller);
	const uint32_t before = io->started.n;
	uint32_t reaped, kept;

	if (before == 0 && io->waiting[IO_READS].n + io->waiting[IO_WRITES].n == 0)
		return false;
	io->reaping = true;
	reaped = io->engine->reap(io, REAP_BUDGET);
	io->reaping = false;
	if (io->retry.position != 0)
		return reaped > 0;
	kept = io->started.n;
	start_some(io, IO_READS);
	start_some(io, IO_WRITES);
	if (io->engine->flush(io) < 0)
		loop_timer_set(io->loop, &io->retry, loop_now(io->loop) + RETRY_NS);
	return reaped > 0 || io->started.n > kept;
}

/* A watch and a timer only end the loop's sleep: the poller, which does the work, runs before the
 * next sleep. */
static void woken(struct loop_watch *watch, uint32_t events)
{
	(void)watch;
	(void)events;
}

static void retry_due(struct loop_timer *timer)
{
	(void)timer;
}

/* --- open and close --- */

static int check_conf(const struct io_conf *c, char *text, size_t n)
{
	const char *what = NULL;

	if (c->read_depth < 1 || c->read_depth > IO_MAX_DEPTH || c->write_depth < 1 ||
	    c->write_depth > IO_MAX_DEPTH)
		what = "read_depth and write_depth must be 1 to 1024";
	else if (c->engine > IO_ENGINE_THREADS)
		what = "no such engine";
	return what ? text_fail(text, n, -EINVAL, "%s", what) : 0;
}

void io_note_add(struct io *io, const char *format, ...)
{
	const size_t used = strlen(io->note);
	va_list args;

	if (used + 2 >= sizeof(io->note))
		return;
	if (used > 0)
		memcpy(io->note + used, "; ", 3);
	va_start(args, format);
	(void)vsnprintf(io->note + strlen(io->note), sizeof(io->note) - strlen(io->note), format,
			args);
	va_end(args);
}

/* io_uring, or else threads with a note of why not. */
static int open_engine(const struct io_conf *conf, struct io **ret, char *text, size_t n)
{
	char why[IO_TEXT_BYTES];
	int r;

	if (conf->engine == IO_ENGINE_THREADS)
		return io_engine_threads.open(conf, ret, text, n);
	if (conf->engine == IO_ENGINE_URING)
		return io_engine_uring.open(conf, ret, text, n);
	if (io_engine_uring.open(conf, ret, why, sizeof(why)) == 0)
		return 0;
	r = io_engine_threads.open(conf, ret, text, n);
	if (r == 0)
		io_note_add(*ret, "%s", why);
	return r;
}

static int attach(struct io *io, const struct io_conf *conf, struct loop *loop)
{
	io->loop = loop;
	io->fd = -1;
	io->bound[IO_READS] = IO_QUEUES * conf->read_depth;
	io->bound[IO_WRITES] = IO_QUEUES * conf->write_depth;
	io->watch = (struct loop_watch){ .fd = io->event_fd, .ready = woken };
	io->poller.poll = poll_io;
	io->retry.fire = retry_due;
	return loop_add(loop, &io->watch, EPOLLIN | EPOLLET);
}

int io_open(const struct io_conf *conf, struct loop *loop, struct io **ret, char *text, size_t n)
{
	struct io *io;
	int r;

	assert(n >= IO_TEXT_BYTES);
	loop_assert_core(loop);
	r = check_conf(conf, text, n);
	if (r == 0)
		r = open_engine(conf, &io, text, n);
	if (r)
		return r;
	r = attach(io, conf, loop);
	if (r) {
		io->engine->close(io);
		return text_fail(text, n, r, "cannot watch the completions: %s", strerror(-r));
	}
	loop_poller_add(loop, &io->poller);
	*ret = io;
	return 0;
}

int io_close(struct io *io)
{
	if (!io)
		return 0;
	loop_assert_core(io->loop);
	if (io->reaping || io->lent[IO_READS] + io->lent[IO_WRITES] > 0)
		return -EBUSY;
	loop_timer_unset(io->loop, &io->retry);
	loop_poller_remove(io->loop, &io->poller);
	loop_remove(io->loop, &io->watch);
	io->engine->close(io);
	return 0;
}

/* --- the file, and buffers --- */

int io_file_set(struct io *io, int fd)
{
	int r = 0;

	loop_assert_core(io->loop);
	if (io->lent[IO_READS] + io->lent[IO_WRITES] > 0)
		return -EBUSY;
	if (io->engine->file_set)
		r = io->engine->file_set(io, fd);
	io->fd = r ? -1 : fd;
	return r;
}

int io_buffers_add(struct io *io, void *base, uint64_t bytes)
{
	loop_assert_core(io->loop);
	if (bytes == 0 || bytes % IO_ALIGN || (uintptr_t)base % IO_ALIGN ||
	    bytes > UINTPTR_MAX - (uintptr_t)base)
		return -EINVAL;
	if (io->engine->buffers_add)
		io->engine->buffers_add(io, base, bytes);
	return 0;
}

/* --- ops --- */

static int check_op(const struct io *io, const struct io_op *op)
{
	if (op->kind == IO_FDATASYNC) {
		if (op->offset || op->bytes || op->buffer)
			return -EINVAL;
	} else if (op->kind == IO_READ || op->kind == IO_WRITE) {
		if (!op->buffer || !op->bytes || op->offset > (uint64_t)INT64_MAX - op->bytes)
			return -EINVAL;
		if ((op->offset | op->bytes | (uintptr_t)op->buffer) % IO_ALIGN)
			return -EINVAL;
	} else {
		return -EINVAL;
	}
	return io->fd >= 0 ? 0 : -EBADF;
}

int io_submit(struct io *io, struct io_op *op)
{
	enum io_direction d;
	int r;

	loop_assert_core(io->loop);
	assert(op->state == IO_IDLE && op->done);
	r = check_op(io, op);
	if (r)
		return r;
	d = direction(op);
	if (io->lent[d] >= io->bound[d])
		return -EAGAIN;
	op->moved = op->tries = 0;
	op->alone = false;
	op->submit_ns = loop_now(io->loop);
	op->state = IO_WAITING;
	queue_append(&io->waiting[d], op);
	io->lent[d]++;
	return 0;
}

/* --- for people --- */

const char *io_engine_name(const struct io *io)
{
	return io->engine->name;
}

const char *io_note(const struct io *io)
{
	return io->note;
}

void io_load(const struct io *io, struct io_load *ret)
{
	const struct io_op *oldest = io->started.first;

	*ret = (struct io_load){
		.lent = io->lent[IO_READS] + io->lent[IO_WRITES],
		.reads_in_disk = io->in_disk[IO_READS],
		.writes_in_disk = io->in_disk[IO_WRITES],
		.oldest_ns = oldest ? loop_now(io->loop) - oldest->start_ns + 1 : 0,
	};
}
