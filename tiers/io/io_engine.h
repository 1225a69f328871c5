/* SPDX-License-Identifier: Apache-2.0 */
/*
 * io_engine.h - between io.c and the engines; no other file includes it. io.c decides which
 * transfer starts, and judges its result. An engine does one transfer each time that io.c tells it
 * to.
 *
 * An engine is a const table, and its instance begins with struct io. All functions run on the
 * loop's thread.
 */
#pragma once

#include <stdbool.h>

#include "base/loop.h"
#include "io.h"

enum io_direction { IO_READS, IO_WRITES, IO_DIRECTIONS };

struct io_engine {
	const char *name;
	bool runs; /* start() takes the first op of a run for all of it; else it gets no run */
	/* Makes an instance in which depth[], event_fd and note are set. A depth may be below the
	 * configuration's. */
	int (*open)(const struct io_conf *conf, struct io **ret, char *text, size_t n);
	void (*close)(struct io *io); /* the disk is idle; the io may be half-open */
	/* Both are NULL where the engine does not profit from them. fd -1: no file any more */
	int (*file_set)(struct io *io, int fd);
	void (*buffers_add)(struct io *io, uint8_t *base, uint64_t bytes);
	/* There always is room: at most both depths are in the disk. The next flush hands the op
	 * over. */
	void (*start)(struct io *io, struct io_op *op);
	/* Hands over all ops that were started; -errno: to be called again, soon. */
	int (*flush)(struct io *io);
	/* Calls io_transferred() for at most `budget` transfers that have ended, and returns how
	 * many. Where no transfer has ended it makes no system call. */
	uint32_t (*reap)(struct io *io, uint32_t budget);
};

struct io_queue {
	struct io_op *first, *last;
	uint32_t n;
};

struct io {
	const struct io_engine *engine;
	struct loop *loop;
	/* of event_fd, edge-triggered: it only ends the loop's sleep */
	struct loop_watch watch;
	struct loop_poller poller; /* does the work, once per iteration */
	struct loop_timer retry;   /* set: no op is started until it fires */
	int event_fd;              /* the engine's */
	int fd;                    /* the file; -1: there is none. Constant while an op is lent */
	bool reaping;
	uint32_t depth[IO_DIRECTIONS], bound[IO_DIRECTIONS];
	uint32_t lent[IO_DIRECTIONS], in_disk[IO_DIRECTIONS];
	struct io_queue waiting[IO_DIRECTIONS];
	struct io_queue started; /* oldest first */
	char note[IO_TEXT_BYTES];
};

extern const struct io_engine io_engine_uring;
extern const struct io_engine io_engine_threads;

/* The transfer started last for op, or for the run that begins with it, moved `result` bytes, or
 * ended with -errno. May run op->done(). */
void io_transferred(struct io *io, struct io_op *op, int32_t result);

/* Adds a sentence to io_note(). */
__attribute__((format(printf, 2, 3))) void io_note_add(struct io *io, const char *format, ...);

/* The rest of op to transfer. */
static inline uint8_t *io_op_buffer(const struct io_op *op)
{
	return op->buffer + op->moved;
}

static inline uint32_t io_op_left(const struct io_op *op)
{
	return op->bytes - op->moved;
}

static inline uint64_t io_op_offset(const struct io_op *op)
{
	return op->offset + op->moved;
}
