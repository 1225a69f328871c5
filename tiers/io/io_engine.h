/* SPDX-License-Identifier: Apache-2.0 */
/*
 * io_engine.h - between io.c and the engines, and included by no other file. io.c decides which
 * transfer starts and judges its result. An engine does one transfer each time it is told to.
 *
 * An engine is a const table; its instance begins with struct io. Everything runs on the loop's
 * thread.
 */
#ifndef KVTIER_IO_ENGINE_H
#define KVTIER_IO_ENGINE_H

#include <stdbool.h>

#include "daemon/base/loop.h"
#include "io.h"

enum io_direction { IO_READS, IO_WRITES, IO_DIRECTIONS };

struct io_engine {
	const char *name;
	/* Makes an instance, with depth[] (may be below the configuration's), event_fd and note
	 * set. */
	int (*open)(const struct io_conf *conf, struct io **ret, char *text, size_t n);
	void (*close)(struct io *io); /* nothing in the disk; half-open is fine */
	int (*file_set)(struct io *io, uint32_t file, int fd); /* -1: no more */
	/* NULL: nothing to be won */
	void (*buffers_add)(struct io *io, uint8_t *base, uint64_t bytes);
	/* Room for it there always is: never more than both depths. Takes effect with the next
	 * flush. */
	void (*start)(struct io *io, struct io_op *op);
	int (*flush)(struct io *io); /* hands all started over; -errno: call again, soon */
	/* Calls io_transferred() for transfers that have ended, at most `budget`; returns how many.
	 * No syscall when none. */
	uint32_t (*reap)(struct io *io, uint32_t budget);
};

struct io_queue {
	struct io_op *first, *last;
	uint32_t n;
};

struct io_file {
	int fd;        /* -1: free */
	uint32_t lent; /* ops on it */
};

struct io {
	const struct io_engine *engine;
	struct loop *loop;
	/* of event_fd, edge-triggered: it only ends the loop's sleep */
	struct loop_watch watch;
	struct loop_poller poller; /* does the work, once a turn */
	struct loop_timer retry;   /* set: nothing is started until it fires */
	int event_fd;              /* the engine's */
	bool reaping;
	uint32_t depth[IO_DIRECTIONS], bound[IO_DIRECTIONS];
	uint32_t lent[IO_DIRECTIONS], in_disk[IO_DIRECTIONS];
	struct io_queue waiting[IO_DIRECTIONS];
	struct io_queue started; /* oldest first */
	struct io_counters counters;
	struct io_file files[IO_MAX_FILES];
	char note[IO_TEXT_BYTES];
};

extern const struct io_engine io_engine_uring;
extern const struct io_engine io_engine_threads;

/* The transfer started last for op moved `result` bytes, or ended with -errno. May run
 * op->done(). */
void io_transferred(struct io *io, struct io_op *op, int32_t result);

/* One more thing for io_note(). */
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

#endif
