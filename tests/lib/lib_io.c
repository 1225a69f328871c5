/* SPDX-License-Identifier: Apache-2.0 */
#include "lib_io.h"

enum io_engine_choice on_uring = IO_ENGINE_URING, on_threads = IO_ENGINE_THREADS;

/* A new file without a name, O_DIRECT, on a disk; -1: there is no such place. */
static int new_file(void)
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
	if (fstatfs(fd, &fs) == 0 && fs.f_type != IO_RIG_TMPFS && fcntl(fd, F_SETFL, O_DIRECT) == 0)
		return fd;
	(void)close(fd);
	return -1;
}

void io_rig_needed(void)
{
	const int fd = new_file();

	if (fd < 0) {
		(void)printf("skipped: no O_DIRECT on a disk here; set TMPDIR\n");
		exit(77);
	}
	(void)close(fd);
}

/* Byte i of the block with content `what`. */
static uint8_t byte_of(uint64_t what, uint64_t i)
{
	return (uint8_t)((what * 0x9e3779b97f4a7c15u + i / 8 * 0xd1342543de82ef95u) >>
			 (8 + i % 8 * 6));
}

void io_rig_fill(uint8_t *at, uint64_t what, uint32_t bytes)
{
	for (uint32_t i = 0; i < bytes; i++)
		at[i] = byte_of(what, i);
}

bool io_rig_is(const uint8_t *at, uint64_t what, uint32_t bytes)
{
	for (uint32_t i = 0; i < bytes; i++)
		if (at[i] != byte_of(what, i))
			return false;
	return true;
}

bool io_rig_pages_are(const struct io_rig *rig, uint32_t page, uint64_t what, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		if (!io_rig_is(rig->buffers + (size_t)(page + i) * PAGE, what + i, PAGE))
			return false;
	return true;
}

void io_rig_prepare(struct io_rig *rig, uint32_t pages)
{
	*rig = (struct io_rig){ .fd = new_file() };
	assert_true(rig->fd >= 0);
	assert_int_equal(loop_open(0, &rig->loop), 0);
	rig->buffers = mmap(NULL, IO_RIG_BUFFER_BYTES, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_true(rig->buffers != MAP_FAILED);
	for (uint32_t i = 0; i < pages; i++) {
		io_rig_fill(rig->buffers, i, PAGE);
		assert_int_equal(pwrite(rig->fd, rig->buffers, PAGE, (off_t)i * PAGE), PAGE);
	}
	memset(rig->buffers, 0xee, IO_RIG_BUFFER_BYTES);
}

void io_rig_tear_down(struct io_rig *rig)
{
	assert_int_equal(io_close(rig->io), 0);
	loop_close(rig->loop);
	(void)munmap(rig->buffers, IO_RIG_BUFFER_BYTES);
	(void)close(rig->fd);
}

void io_rig_open(struct io_rig *rig, const struct io_conf *conf, uint32_t pages)
{
	int r;

	io_rig_prepare(rig, pages);
	r = io_open(conf, rig->loop, &rig->io, rig->text, sizeof(rig->text));
	if (r && conf->engine == IO_ENGINE_URING) {
		(void)printf("skipped: %s\n", rig->text);
		io_rig_tear_down(rig);
		skip();
	}
	assert_int_equal(r, 0);
	assert_int_equal(io_file_set(rig->io, rig->fd), 0);
}

void io_rig_open_plain(struct io_rig *rig, void **state, uint32_t pages)
{
	const struct io_conf conf = { .engine = *(enum io_engine_choice *)*state,
				      .read_depth = 4,
				      .write_depth = 2 };

	io_rig_open(rig, &conf, pages);
}

static void done(struct io_op *op)
{
	struct io_rig_op *r = (struct io_rig_op *)op;

	r->dones++;
	r->order = ++r->rig->ended;
	if (r->rig->ended >= r->rig->stop_at)
		loop_stop(r->rig->loop);
}

struct io_rig_op io_rig_op(struct io_rig *rig, enum io_kind kind, uint64_t offset, uint32_t bytes,
			   uint32_t page)
{
	struct io_rig_op r = { .rig = rig,
			       .op = { .kind = kind,
				       .offset = offset,
				       .bytes = bytes,
				       .buffer = rig->buffers + (size_t)page * PAGE,
				       .status = 1,
				       .done = done } };

	if (kind == IO_FDATASYNC)
		r.op.buffer = NULL;
	return r;
}

void io_rig_run(struct io_rig *rig, uint32_t n)
{
	if (n == 0)
		return;
	rig->stop_at = rig->ended + n;
	assert_int_equal(loop_run(rig->loop), 0);
	assert_true(rig->ended >= rig->stop_at);
}

static void pause_over(struct loop_timer *timer)
{
	struct io_rig *rig = container_of(timer, struct io_rig, pause);

	loop_stop(rig->loop);
}

void io_rig_run_a_little(struct io_rig *rig)
{
	rig->stop_at = UINT32_MAX;
	rig->pause.fire = pause_over;
	loop_timer_set(rig->loop, &rig->pause, loop_now(rig->loop) + 3000000);
	assert_int_equal(loop_run(rig->loop), 0);
}

int io_rig_do(struct io_rig *rig, enum io_kind kind, uint64_t offset, uint32_t bytes, uint32_t page)
{
	struct io_rig_op r = io_rig_op(rig, kind, offset, bytes, page);

	assert_int_equal(io_submit(rig->io, &r.op), 0);
	io_rig_run(rig, 1);
	assert_int_equal(r.dones, 1);
	return r.op.status;
}
