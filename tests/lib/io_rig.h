/* SPDX-License-Identifier: Apache-2.0 */
/*
 * io_rig.h - what unit_io*.c and fault_io*.c share: a file on a disk, a loop, an io on one of the engines,
 * and ops that count their completions.
 */
#ifndef KVTIER_TESTS_IO_RIG_H
#define KVTIER_TESTS_IO_RIG_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "daemon/base/container_of.h"
#include "daemon/base/loop.h"
#include "tiers/io/io.h"

enum { PAGE = IO_ALIGN, RIG_BUFFER_BYTES = 4 << 20, RIG_TMPFS = 0x01021994 };

struct rig {
	struct loop *loop;
	struct io *io;
	int fd;
	uint32_t file;
	uint32_t ended, stop_at;	/* ops */
	struct loop_timer pause;
	uint8_t *buffers;		/* RIG_BUFFER_BYTES */
	char text[IO_TEXT_BYTES];
};

struct rig_op {
	struct io_op op;
	struct rig *rig;
	uint32_t dones, order;		/* order: the how manyth of all to end */
};

/* A case runs once on each engine: its state is one of these. */
__attribute__((unused)) static enum io_engine_choice on_uring = IO_ENGINE_URING, on_threads = IO_ENGINE_THREADS;

#define ON_URING(fn)   { #fn " (io_uring)", fn, NULL, NULL, &on_uring }
#define ON_THREADS(fn) { #fn " (threads)", fn, NULL, NULL, &on_threads }
#define ON_BOTH(fn)    ON_URING(fn), ON_THREADS(fn)

/* The head of a function that the linker puts in front of another (-Wl,--wrap=NAME). */
#define REAL(type, name, params)	\
	type __real_##name params;	\
	type __wrap_##name params;	\
	type __wrap_##name params

/* A new file without a name, O_DIRECT, on a disk; -1: there is no such place. */
static inline int rig_file(void)
{
	const char *given = getenv("TMPDIR");
	const char *dir = given ? given : access("build", W_OK) == 0 ? "build" : ".";
	char path[512];
	struct statfs fs;
	int fd;

	(void)snprintf(path, sizeof(path), "%s/io-XXXXXX", dir);
	fd = mkostemp(path, O_CLOEXEC);
	if (fd < 0)
		return -1;
	(void)unlink(path);
	if (fstatfs(fd, &fs) == 0 && fs.f_type != RIG_TMPFS && fcntl(fd, F_SETFL, O_DIRECT) == 0)
		return fd;
	(void)close(fd);
	return -1;
}

/* For main: the tests prove nothing where nothing is direct. */
static inline int rig_can_run(void)
{
	const int fd = rig_file();

	if (fd < 0)
		(void)printf("skipped: no O_DIRECT on a disk here; set TMPDIR\n");
	else
		(void)close(fd);
	return fd >= 0;
}

/* Byte i of a block whose content says what it is. */
static inline uint8_t rig_byte(uint64_t what, uint64_t i)
{
	return (uint8_t)((what * 0x9e3779b97f4a7c15u + i / 8 * 0xd1342543de82ef95u) >> (8 + i % 8 * 6));
}

static inline void rig_fill(uint8_t *at, uint64_t what, uint32_t bytes)
{
	for (uint32_t i = 0; i < bytes; i++)
		at[i] = rig_byte(what, i);
}

static inline bool rig_is(const uint8_t *at, uint64_t what, uint32_t bytes)
{
	for (uint32_t i = 0; i < bytes; i++)
		if (at[i] != rig_byte(what, i))
			return false;
	return true;
}

/* Pages `page`... of the rig's buffers have the contents `what`... */
static inline bool rig_pages_are(const struct rig *rig, uint32_t page, uint64_t what, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		if (!rig_is(rig->buffers + (size_t)(page + i) * PAGE, what + i, PAGE))
			return false;
	return true;
}

/* Everything but the io itself. The file has `pages` pages, page n of content n. */
static inline void rig_prepare(struct rig *rig, uint32_t pages)
{
	*rig = (struct rig){ .fd = rig_file() };
	assert_true(rig->fd >= 0);
	assert_int_equal(loop_open(0, &rig->loop), 0);
	rig->buffers = mmap(NULL, RIG_BUFFER_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_true(rig->buffers != MAP_FAILED);
	for (uint32_t i = 0; i < pages; i++) {
		rig_fill(rig->buffers, i, PAGE);
		assert_int_equal(pwrite(rig->fd, rig->buffers, PAGE, (off_t)i * PAGE), PAGE);
	}
	memset(rig->buffers, 0xee, RIG_BUFFER_BYTES);
}

static inline void rig_tear_down(struct rig *rig)
{
	assert_int_equal(io_close(rig->io), 0);
	loop_close(rig->loop);
	(void)munmap(rig->buffers, RIG_BUFFER_BYTES);
	(void)close(rig->fd);
}

/* Skips the case where a forced io_uring is refused by this machine. */
static inline void rig_open(struct rig *rig, const struct io_conf *conf, uint32_t pages)
{
	int r;

	rig_prepare(rig, pages);
	r = io_open(conf, rig->loop, &rig->io, rig->text, sizeof(rig->text));
	if (r && conf->engine == IO_ENGINE_URING) {
		(void)printf("skipped: %s\n", rig->text);
		rig_tear_down(rig);
		skip();
	}
	assert_int_equal(r, 0);
	assert_int_equal(io_file_add(rig->io, rig->fd, &rig->file), 0);
}

static inline void rig_open_plain(struct rig *rig, void **state, uint32_t pages)
{
	const struct io_conf conf = { .engine = *(enum io_engine_choice *)*state, .read_depth = 4, .write_depth = 2 };

	rig_open(rig, &conf, pages);
}

static inline void rig_done(struct io_op *op)
{
	struct rig_op *r = (struct rig_op *)op;

	r->dones++;
	r->order = ++r->rig->ended;
	if (r->rig->ended >= r->rig->stop_at)
		loop_stop(r->rig->loop);
}

/* An op on the rig's file, its buffer at `page` of the rig's. */
static inline struct rig_op rig_op(struct rig *rig, enum io_kind kind, uint64_t offset, uint32_t bytes, uint32_t page)
{
	struct rig_op r = { .rig = rig, .op = { .file = rig->file, .kind = kind, .offset = offset, .bytes = bytes,
						.buffer = rig->buffers + (size_t)page * PAGE, .status = 1, .done = rig_done } };

	if (kind == IO_FDATASYNC)
		r.op.buffer = NULL;
	return r;
}

/* Until `n` more ops have ended, or some more that ended in the same turn. */
static inline void rig_run(struct rig *rig, uint32_t n)
{
	if (n == 0)
		return;
	rig->stop_at = rig->ended + n;
	assert_int_equal(loop_run(rig->loop), 0);
	assert_true(rig->ended >= rig->stop_at);
}

static inline void rig_pause_over(struct loop_timer *timer)
{
	struct rig *rig = container_of(timer, struct rig, pause);

	loop_stop(rig->loop);
}

/* Some turns of the loop, whatever ends in them. */
static inline void rig_run_a_little(struct rig *rig)
{
	rig->stop_at = UINT32_MAX;
	rig->pause.fire = rig_pause_over;
	loop_timer_set(rig->loop, &rig->pause, loop_now(rig->loop) + 3000000);
	assert_int_equal(loop_run(rig->loop), 0);
}

/* Submits one op and gives its status. */
static inline int rig_do(struct rig *rig, enum io_kind kind, uint64_t offset, uint32_t bytes, uint32_t page)
{
	struct rig_op r = rig_op(rig, kind, offset, bytes, page);

	assert_int_equal(io_submit(rig->io, &r.op), 0);
	rig_run(rig, 1);
	assert_int_equal(r.dones, 1);
	return r.op.status;
}

#endif
