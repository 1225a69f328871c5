/* SPDX-License-Identifier: Apache-2.0 */
#include "bench_disk.h"

#include <liburing.h>

enum { HUGE_PAGE = 2 << 20 };

struct raw {
	struct bench_disk *d;
	struct io_uring ring;
	bool write;
	uint64_t offset;
	uint32_t next, blocks;
};

/* --- memory --- */

static size_t whole_pages(size_t bytes)
{
	return (bytes + HUGE_PAGE - 1) & ~(size_t)(HUGE_PAGE - 1);
}

struct memory {
	uint8_t *p;
	size_t bytes;
};

static void memory_end(void *arg)
{
	const struct memory *m = arg;

	(void)munmap(m->p, m->bytes);
}

/* A huge page more is mapped, and the aligned part of it is used. */
uint8_t *bench_memory(size_t bytes, bool huge)
{
	const size_t room = whole_pages(bytes);
	struct memory *m = bench_alloc(sizeof(*m));
	uint8_t *p;

	m->bytes = room + HUGE_PAGE;
	m->p = mmap(NULL, m->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (m->p == MAP_FAILED)
		bench_must(-errno);
	bench_defer(memory_end, m);
	p = m->p + (whole_pages((uintptr_t)m->p) - (uintptr_t)m->p);
	/* a kernel without them has one kind */
	(void)madvise(p, room, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
	memset(p, 0x5a, room);
	return p;
}

/* --- the file --- */

const char *bench_disk_directory(void)
{
	const char *given = getenv("KVTIER_BENCH_DIR");

	if (!given)
		given = getenv("TMPDIR");
	return given ? given : "/var/tmp";
}

static int fill_file(const struct bench_disk *d)
{
	for (uint64_t at = 0; at < d->from + d->bytes;) {
		const uint64_t left = d->from + d->bytes - at;
		const ssize_t n =
			pwrite(d->fd, d->huge, left < d->block ? left : d->block, (off_t)at);

		if (n <= 0)
			return n ? -errno : -EIO;
		at += (uint64_t)n;
	}
	return fdatasync(d->fd) ? -errno : 0;
}

static void close_file(void *arg)
{
	(void)close(((struct bench_disk *)arg)->fd);
}

static void make_file(struct bench_disk *d)
{
	int r;

	bench_dir(bench_disk_directory(), d->dir, sizeof(d->dir));
	(void)snprintf(d->path, sizeof(d->path), "%s/store", d->dir);
	d->fd = open(d->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_DIRECT, 0600);
	if (d->fd < 0)
		bench_fail(-ENOTSUP, "no O_DIRECT in %.60s (tmpfs?): set KVTIER_BENCH_DIR",
			   bench_disk_directory());
	bench_defer(close_file, d);
	r = fallocate(d->fd, 0, 0, (off_t)(d->from + d->bytes)) ? -errno : fill_file(d);
	if (r)
		bench_fail(r == -ENOSPC ? -ENOTSUP : r, "%u MiB in %.60s: %s",
			   (unsigned)((d->from + d->bytes) >> 20), bench_disk_directory(),
			   strerror(-r));
}

static size_t room_of(const struct bench_disk *d)
{
	return BENCH_DISK_DEPTH * (size_t)d->block;
}

void bench_disk_open(struct bench_disk *d, uint64_t from, uint64_t bytes, uint32_t block)
{
	*d = (struct bench_disk){ .from = from, .bytes = bytes, .block = block };
	d->huge = bench_memory(room_of(d), true);
	d->small = bench_memory(room_of(d), false);
	make_file(d);
}

/* --- the raw loop --- */

static uint8_t *buffers_of(const struct bench_disk *d)
{
	return d->small_pages ? d->small : d->huge;
}

static int raw_open(struct raw *raw)
{
	const struct iovec all = { buffers_of(raw->d), room_of(raw->d) };
	int r = io_uring_queue_init(BENCH_DISK_DEPTH, &raw->ring,
				    IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN);

	if (r == -EINVAL)
		r = io_uring_queue_init(BENCH_DISK_DEPTH, &raw->ring, 0);
	if (r == -ENOSYS || r == -EPERM)
		bench_fail(-ENOTSUP, "io_uring is refused here");
	if (r)
		return r;
	r = io_uring_register_files(&raw->ring, &raw->d->fd, 1);
	if (r == 0)
		r = io_uring_register_buffers(&raw->ring, &all, 1);
	if (r)
		io_uring_queue_exit(&raw->ring);
	return r;
}

static void raw_next(struct raw *raw, uint32_t slot)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&raw->ring);
	const uint32_t block = raw->d->block;
	uint8_t *buffer = buffers_of(raw->d) + (size_t)slot * block;
	const uint64_t at = raw->offset + (uint64_t)raw->next++ * block;

	if (raw->write)
		io_uring_prep_write_fixed(sqe, 0, buffer, block, at, 0);
	else
		io_uring_prep_read_fixed(sqe, 0, buffer, block, at, 0);
	io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
	io_uring_sqe_set_data64(sqe, slot);
}

static int raw_run(struct raw *raw, uint32_t depth)
{
	uint32_t ended = 0;

	for (uint32_t i = 0; i < depth && raw->next < raw->blocks; i++)
		raw_next(raw, i);
	while (ended < raw->blocks) {
		struct io_uring_cqe *cqes[BENCH_DISK_DEPTH];
		const int r = io_uring_submit_and_wait(&raw->ring, 1);
		const uint32_t n = io_uring_peek_batch_cqe(&raw->ring, cqes, BENCH_DISK_DEPTH);

		if (r < 0 && r != -EINTR)
			return r;
		for (uint32_t i = 0; i < n; i++) {
			if (cqes[i]->res != (int)raw->d->block)
				return cqes[i]->res < 0 ? cqes[i]->res : -EIO;
			if (raw->next < raw->blocks)
				raw_next(raw, (uint32_t)cqes[i]->user_data);
		}
		io_uring_cq_advance(&raw->ring, n);
		ended += n;
	}
	return 0;
}

uint64_t bench_disk_walk(struct bench_disk *d, bool write, uint32_t blocks)
{
	const uint64_t bytes = (uint64_t)blocks * d->block;

	if (write)
		d->walked = (d->walked + bytes) % (d->bytes - bytes);
	return d->from + d->walked;
}

double bench_disk_raw(struct bench_disk *d, bool write, uint32_t depth, uint32_t blocks)
{
	struct raw raw = { .d = d,
			   .write = write,
			   .offset = bench_disk_walk(d, write, blocks),
			   .blocks = blocks };
	double seconds;
	uint64_t start;
	int r = raw_open(&raw);

	bench_must(r);
	start = bench_now_ns();
	r = raw_run(&raw, depth);
	seconds = (double)(bench_now_ns() - start) * 1e-9;
	io_uring_queue_exit(&raw.ring);
	bench_must(r);
	return (double)blocks * d->block / seconds * 1e-9;
}
