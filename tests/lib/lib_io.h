/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_io.h - shared by unit_io*.c and fault_io*.c: a file on a disk, a loop, an io on one of the
 * engines, and ops that count their completions.
 */
#pragma once

#include <sys/statfs.h>

#include "base/list.h"
#include "base/loop.h"
#include "test.h"
#include "tiers/io/io.h"
#include "wrap.h"

enum { PAGE = IO_ALIGN, IO_RIG_BUFFER_BYTES = 4 << 20, IO_RIG_TMPFS = 0x01021994 };

struct io_rig {
	struct loop *loop;
	struct io *io;
	int fd;
	uint32_t ended, stop_at; /* ops */
	struct loop_timer pause;
	uint8_t *buffers; /* IO_RIG_BUFFER_BYTES */
	char text[IO_TEXT_BYTES];
};

struct io_rig_op {
	struct io_op op;
	struct io_rig *rig;
	uint32_t dones, order; /* order: the how manyth of all to end */
};

/* A case runs once on each engine: its state is one of these. */
extern enum io_engine_choice on_uring, on_threads;

#define ROW_ON_URING(fn)                                     \
	{                                                    \
#fn " (io_uring)", fn, NULL, NULL, &on_uring \
	}
#define ROW_ON_THREADS(fn)                                    \
	{                                                     \
#fn " (threads)", fn, NULL, NULL, &on_threads \
	}
#define ON_THREADS(fn) TEST_ROWS(fn, ROW_ON_THREADS(fn))
#define ON_BOTH(fn)    TEST_ROWS(fn, ROW_ON_URING(fn), ROW_ON_THREADS(fn))
/* The same between two statements, which see `state`. */
#define ON_BOTH_BETWEEN(fn, begin, end) \
	static void fn##_between(void); \
	ON_BOTH(fn)                     \
	{                               \
		begin;                  \
		fn##_between();         \
		end;                    \
	}                               \
	static void fn##_between(void)

/* For TEST_FIRST: the tests prove nothing where nothing is direct, and are skipped there. */
void io_rig_needed(void);
void io_rig_fill(uint8_t *at, uint64_t what, uint32_t bytes);
bool io_rig_is(const uint8_t *at, uint64_t what, uint32_t bytes);
/* Pages `page`... of the rig's buffers have the contents `what`... */
bool io_rig_pages_are(const struct io_rig *rig, uint32_t page, uint64_t what, uint32_t n);
/* Everything but the io itself. The file has `pages` pages, page n of content n. */
void io_rig_prepare(struct io_rig *rig, uint32_t pages);
void io_rig_tear_down(struct io_rig *rig);
/* Skips the case where a forced io_uring is refused by this machine. */
void io_rig_open(struct io_rig *rig, const struct io_conf *conf, uint32_t pages);
void io_rig_open_plain(struct io_rig *rig, void **state, uint32_t pages);
/* An op on the rig's file, its buffer at `page` of the rig's. */
struct io_rig_op io_rig_op(struct io_rig *rig, enum io_kind kind, uint64_t offset, uint32_t bytes,
			   uint32_t page);
/* Until `n` more ops have ended, or some more that ended in the same iteration. */
void io_rig_run(struct io_rig *rig, uint32_t n);
/* Some iterations of the loop; any ops may end in them. */
void io_rig_run_a_little(struct io_rig *rig);
/* Submits one op and gives its status. */
int io_rig_do(struct io_rig *rig, enum io_kind kind, uint64_t offset, uint32_t bytes,
	      uint32_t page);
