/* SPDX-License-Identifier: Apache-2.0 */
/*
 * io.h - asynchronous reads and writes of files and block devices opened with O_DIRECT, for the
 * core thread.
 *
 * Two engines with one behaviour: io_uring, or a pool of threads in pread and pwrite where io_uring
 * is refused. Everything here is called on the loop's thread, which also opened the io (an io_uring
 * has one issuer), and nothing blocks but io_open(), io_close(), io_file_*() and io_buffers_add().
 *
 * Order: reads and writes wait in two queues, each with its own bound and its own depth in the
 * disk. Reads are started first; a read that waits because the read depth is used up does not keep
 * writes out of theirs, so neither starves. Within a direction ops start in the order submitted,
 * and may end in any order.
 *
 * Result: status 0 only after the full length moved. A short transfer is continued, EINTR and
 * EAGAIN are tried again up to a bound. -ENODATA: a read reached the end of the file; -EIO: a
 * transfer of nothing elsewhere.
 *
 * A stalled disk: nobody can take back memory it may still write to. Its ops stay lent, their age
 * shows in io_counters(), the other direction and other files go on within the depth that is left,
 * and io_close() refuses.
 */
#ifndef KVTIER_IO_H
#define KVTIER_IO_H

#include <stddef.h>
#include <stdint.h>

#include "daemon/base/workers.h"

struct io;
struct loop;

enum {
	IO_ALIGN = 4096, /* of offset, buffer and bytes: enough for every disk there is */
	IO_MAX_DEPTH = 1024,
	IO_MAX_QUEUE = 65536,
	IO_MAX_THREADS = 64,
	IO_MAX_FILES = 64,
	IO_TEXT_BYTES = 256,
};

enum io_kind { IO_READ = 1, IO_WRITE, IO_FDATASYNC };

enum io_op_state { IO_IDLE = 0, IO_WAITING, IO_STARTED };

/*
 * Embedded in its owner, all zero before the first use. Lent from a successful io_submit() until
 * `done` ran: exactly once, from the loop, never inside io_submit(). `done` may submit the same op
 * again, and may do anything but io_close(). The buffer is lent with it.
 */
struct io_op {
	uint32_t file; /* from io_file_add() */
	enum io_kind kind;
	uint64_t offset; /* IO_FDATASYNC: offset, buffer and bytes are 0 */
	uint8_t *buffer;
	uint32_t bytes;
	/* set before done: 0 or -errno, then a read's buffer is undefined */
	int status;
	uint64_t submit_ns; /* loop_now() of io_submit() */
	void (*done)(struct io_op *op);

	/* io's own */
	struct io_op *next, *previous; /* in the queue of its state */
	struct io *io;                 /* threads: of this op */
	struct work work;              /* threads: one transfer */
	uint64_t start_ns;             /* when the transfer now in the disk was started */
	uint32_t moved;                /* bytes behind us */
	uint32_t tries;                /* without any byte moved */
	int32_t result;                /* threads: of the last system call */
	enum io_op_state state;
};

enum io_engine_choice { IO_ENGINE_AUTO, IO_ENGINE_URING, IO_ENGINE_THREADS };

struct io_conf {
	/* AUTO: io_uring, or threads where it is refused (io_note() says why) */
	enum io_engine_choice engine;
	/* in the disk at once: 1 to IO_MAX_DEPTH. A fdatasync is a write */
	uint32_t read_depth, write_depth;
	/* lent at once, the disk's included; 0: 4 x depth */
	uint32_t read_queue, write_queue;
	/* 2 to IO_MAX_THREADS; 0: both depths together, as far as that goes. */
	uint32_t threads;
	/* Fewer than the depths: these are lowered in
					 * proportion. */
};

struct io_counters {
	uint64_t reads_total, writes_total, syncs_total; /* ended well */
	uint64_t read_bytes_total, written_bytes_total;  /* by these */
	uint64_t errors_total;                           /* ended otherwise */
	/* transfers continued, transfers tried again */
	uint64_t short_total, retries_total;
	uint32_t reads_lent, writes_lent; /* now, waiting or in the disk */
	uint32_t reads_in_disk, writes_in_disk;
	/* for how long the oldest transfer has been in the disk; 0: there is none */
	uint64_t oldest_ns;
};

/* text (n >= IO_TEXT_BYTES) says on failure which request was refused, and is undefined
 * otherwise. */
int io_open(const struct io_conf *conf, struct loop *loop, struct io **ret, char *text, size_t n);
/* -EBUSY: an op is lent, or this is inside done(); nothing happened. NULL is fine. */
int io_close(struct io *io);

/*
 * The caller keeps the fd, and keeps it open until io_file_remove(). A file that is closed without
 * io_file_remove() stays open in the kernel until io_close(). -ENOSPC: IO_MAX_FILES are there.
 */
int io_file_add(struct io *io, int fd, uint32_t *ret);
int io_file_remove(struct io *io, uint32_t file); /* -EBUSY: an op on it is lent; -EBADF */

/*
 * Memory that many ops will use: io_uring pins it once, in pieces of at most 1 GiB, instead of at
 * every op. It must stay mapped until io_close(). A refusal, RLIMIT_MEMLOCK's for one, costs speed
 * only: 0 is returned, io_note() tells, and everything works without it. Pinning 1 GiB takes about
 * 0.1 s: a caller that must not stand still adds more memory than that in parts. -EINVAL: base or
 * bytes is not a multiple of IO_ALIGN, or bytes is 0.
 */
int io_buffers_add(struct io *io, void *base, uint64_t bytes);

/*
 * 0: the op is lent. -EAGAIN: the queue of its direction is full. -EINVAL: misaligned or empty, or
 * no such kind. -EBADF: no such file. After an error the op is still the caller's.
 */
int io_submit(struct io *io, struct io_op *op);

const char *io_engine_name(const struct io *io); /* "io_uring" or "threads" */
/* For operators: why not io_uring, or which part of it was refused; or "". io_buffers_add() may add
 * to it. */
const char *io_note(const struct io *io);
void io_counters(const struct io *io, struct io_counters *ret);

#endif
