/* SPDX-License-Identifier: Apache-2.0 */
/*
 * io.h - asynchronous reads and writes of one file or block device that is opened with O_DIRECT,
 * for the core thread.
 *
 * There are two engines with one behaviour: io_uring, or a pool of threads in pread and pwrite
 * where io_uring is refused. Every function is called on the loop's thread, which has also opened
 * the io, since an io_uring has one issuer. Only io_open(), io_close(), io_file_set() and
 * io_buffers_add() block.
 *
 * Order: reads and writes wait in two queues, each with its own bound and its own depth in the
 * disk. Reads are started first. A read that waits because the read depth is used up does not keep
 * writes out of their depth, so neither direction starves. Within a direction ops start in the
 * order of submission, and may end in any order.
 *
 * Runs: ops of a direction that lie one behind the other in the file and wait near each other
 * become one transfer, which counts once in the depth: a disk, the kernel and the loop's sleep cost
 * as much for a small transfer as for a large one. Each op ends by itself. An op of a run that did
 * not move whole is done again alone, so an error is that of its own bytes.
 *
 * Result: status is 0 only after the full length has moved. A short transfer is continued. EINTR
 * and EAGAIN are tried again up to a bound. -ENODATA: a read reached the end of the file. -EIO: a
 * transfer elsewhere moved no byte.
 *
 * A stalled disk: memory that the disk may still write to cannot be taken back. Its ops stay lent,
 * and io_load() tells their age. The other direction goes on within the depth that is left, and
 * io_close() refuses.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/workers.h"

struct io;
struct loop;

enum {
	IO_ALIGN = 4096, /* of offset, buffer and bytes: enough for every disk there is */
	IO_MAX_DEPTH = 1024,
	IO_QUEUES = 4,   /* times its depth: ops of a direction that may be lent at once */
	IO_RUN_OPS = 32, /* of a run, at most, */
	IO_RUN_BYTES = 2 << 20,
	IO_MAX_THREADS = 64,
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
	struct io_op *run;             /* the next op of its run, which the first one stands for */
	struct io *io;                 /* threads: of this op */
	struct work work;              /* threads: one transfer */
	uint64_t start_ns;             /* when the transfer now in the disk was started */
	uint32_t moved;                /* bytes behind us */
	uint32_t tries;                /* without any byte moved */
	int32_t result;                /* threads: of the last system call */
	enum io_op_state state;
	bool alone; /* no op of a run any more */
};

enum io_engine_choice { IO_ENGINE_AUTO, IO_ENGINE_URING, IO_ENGINE_THREADS };

struct io_conf {
	/* AUTO: io_uring, or threads where it is refused (io_note() says why) */
	enum io_engine_choice engine;
	/* in the disk at once: 1 to IO_MAX_DEPTH. A fdatasync counts as a write. Threads: where
	 * the depths together exceed IO_MAX_THREADS, both are lowered in proportion. */
	uint32_t read_depth, write_depth;
};

struct io_load {
	uint64_t lent; /* ops, waiting or in the disk */
	uint64_t reads_in_disk, writes_in_disk;
	/* for how long the oldest transfer has been in the disk; 0: the disk is idle */
	uint64_t oldest_ns;
};

/* text (n >= IO_TEXT_BYTES) says on failure which request was refused, and is undefined
 * otherwise. */
int io_open(const struct io_conf *conf, struct loop *loop, struct io **ret, char *text, size_t n);
/* -EBUSY: an op is lent, or this is inside done(); io is as it was. May be NULL. */
int io_close(struct io *io);

/*
 * The file that ops are about from now on; -1: no file, and ops are refused. The caller keeps the
 * fd, and keeps it open until another one is set, or until io_close(): a file that is closed sooner
 * stays open in the kernel. 0, -EBUSY: an op is lent; -errno of the registration, and no file is
 * set.
 */
int io_file_set(struct io *io, int fd);

/*
 * Memory that many ops will use. io_uring pins it once, in pieces of at most 1 GiB, instead of at
 * every op. It must stay mapped until io_close(). A refusal (of RLIMIT_MEMLOCK, for example) costs
 * speed only: 0 is returned, io_note() tells of it, and ops run without it. Pinning 1 GiB takes
 * about 0.1 s. -EINVAL: base or bytes is not a multiple of IO_ALIGN, or bytes is 0.
 */
int io_buffers_add(struct io *io, void *base, uint64_t bytes);

/*
 * 0: the op is lent. -EAGAIN: the queue of its direction is full. -EINVAL: misaligned or empty, or
 * no such kind. -EBADF: no file is set. After an error the op is still the caller's.
 */
int io_submit(struct io *io, struct io_op *op);

const char *io_engine_name(const struct io *io); /* "io_uring" or "threads" */
/* For operators: why the engine is not io_uring, or which part of io_uring was refused; or "".
 * io_buffers_add() may add to it. */
const char *io_note(const struct io *io);
void io_load(const struct io *io, struct io_load *ret);
