/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_nvme.c - the disk under the NVMe tier.
 *
 * The limit of all cases is the raw loop: io_uring by hand, one block of 1 MiB after the other, with the
 * queue depth kept full, registered file and buffers, one submit-and-wait a turn. nvme.io.* is the same
 * file, blocks and depth through tiers/io.h and the daemon's event loop. nvme.raw.* is the raw loop against
 * itself: how much two equal runs differ on this disk, without which the other ratio means little. The file
 * is written once before, so that writes allocate nothing; $TMPDIR, build/ or . says where (no tmpfs).
 */
#include "bench.h"

#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "../daemon/loop.h"
#include "../tiers/io.h"

enum { RUNS = 5, BLOCK = 1 << 20, BLOCKS = 512, MAX_DEPTH = 32, TMPFS = 0x01021994 };

struct nvme_case {
	enum io_kind kind;
	uint32_t depth;
	int through_io;
};

struct slot {
	struct io_op op;
	struct rig *rig;
};

struct rig {
	const struct nvme_case *c;
	int fd;
	uint8_t *buffers;
	struct loop *loop;
	struct io *io;
	uint32_t next, ended;		/* blocks */
	int error;
	struct slot slots[MAX_DEPTH];
};

static double cpu_seconds(void)
{
	struct rusage u;

	(void)getrusage(RUSAGE_SELF, &u);
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
	       (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

/* --- the file --- */

static const char *directory(void)
{
	const char *given = getenv("TMPDIR");

	if (given)
		return given;
	return access("build", W_OK) == 0 ? "build" : ".";
}

static int fill_file(int fd, const uint8_t *block)
{
	for (off_t at = 0; at < (off_t)BLOCKS * BLOCK; at += BLOCK)
		if (pwrite(fd, block, BLOCK, at) != BLOCK)
			return errno ? -errno : -EIO;
	return fdatasync(fd) ? -errno : 0;
}

static int open_file(struct rig *rig, char *note, size_t n)
{
	char path[512];
	struct statfs fs;
	int r;

	(void)snprintf(path, sizeof path, "%s/bench-nvme-XXXXXX", directory());
	rig->fd = mkstemp(path);
	if (rig->fd < 0)
		return -errno;
	(void)unlink(path);
	if (fstatfs(rig->fd, &fs) == 0 && fs.f_type == TMPFS) {
		(void)snprintf(note, n, "%s is a tmpfs; set TMPDIR to a disk", directory());
		return -ENOTSUP;
	}
	if (fcntl(rig->fd, F_SETFL, O_DIRECT)) {
		(void)snprintf(note, n, "no O_DIRECT in %s", directory());
		return -ENOTSUP;
	}
	r = fill_file(rig->fd, rig->buffers);
	if (r)
		(void)snprintf(note, n, "%d MiB in %s: %s", BLOCKS, directory(), strerror(-r));
	return r;
}

/* --- by hand --- */

static int raw_setup(const struct rig *rig, struct io_uring *ring)
{
	const struct iovec all = { rig->buffers, MAX_DEPTH * (size_t)BLOCK };
	int r = io_uring_queue_init(MAX_DEPTH, ring, IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN);

	if (r == -EINVAL)
		r = io_uring_queue_init(MAX_DEPTH, ring, 0);
	if (r)
		return r;
	r = io_uring_register_files(ring, &rig->fd, 1);
	if (r == 0)
		r = io_uring_register_buffers(ring, &all, 1);
	if (r)
		io_uring_queue_exit(ring);
	return r;
}

static void raw_next(struct rig *rig, struct io_uring *ring, uint32_t slot)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
	uint8_t *buffer = rig->buffers + (size_t)slot * BLOCK;
	const uint64_t at = (uint64_t)rig->next++ * BLOCK;

	if (rig->c->kind == IO_READ)
		io_uring_prep_read_fixed(sqe, 0, buffer, BLOCK, at, 0);
	else
		io_uring_prep_write_fixed(sqe, 0, buffer, BLOCK, at, 0);
	io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
	io_uring_sqe_set_data64(sqe, slot);
}

static int raw_loop(struct rig *rig, struct io_uring *ring)
{
	rig->next = rig->ended = 0;
	for (uint32_t i = 0; i < rig->c->depth; i++)
		raw_next(rig, ring, i);
	while (rig->ended < BLOCKS) {
		struct io_uring_cqe *cqes[MAX_DEPTH];
		const int r = io_uring_submit_and_wait(ring, 1);
		const uint32_t n = io_uring_peek_batch_cqe(ring, cqes, MAX_DEPTH);

		if (r < 0 && r != -EINTR)
			return r;
		for (uint32_t i = 0; i < n; i++) {
			if (cqes[i]->res != BLOCK)
				return cqes[i]->res < 0 ? cqes[i]->res : -EIO;
			if (rig->next < BLOCKS)
				raw_next(rig, ring, (uint32_t)cqes[i]->user_data);
		}
		io_uring_cq_advance(ring, n);
		rig->ended += n;
	}
	return 0;
}

static int raw_gbs(struct rig *rig, double *ret)
{
	struct io_uring ring;
	uint64_t start;
	int r = raw_setup(rig, &ring);

	if (r)
		return r;
	start = bench_now_ns();
	r = raw_loop(rig, &ring);
	*ret = (double)BLOCKS * BLOCK / (double)(bench_now_ns() - start);
	io_uring_queue_exit(&ring);
	return r;
}

/* --- through io.h --- */

static void io_next(struct rig *rig, struct slot *slot)
{
	int r;

	slot->op.offset = (uint64_t)rig->next++ * BLOCK;
	r = io_submit(rig->io, &slot->op);
	if (r == 0)
		return;
	rig->error = r;
	loop_stop(rig->loop);
}

static void block_done(struct io_op *op)
{
	struct slot *slot = (struct slot *)op;
	struct rig *rig = slot->rig;

	if (op->status)
		rig->error = op->status;
	if (++rig->ended == BLOCKS)
		loop_stop(rig->loop);
	else if (rig->next < BLOCKS)
		io_next(rig, slot);
}

static int io_open_on(struct rig *rig, uint32_t *ret_file, char *text)
{
	const struct io_conf conf = { .engine = IO_ENGINE_AUTO, .read_depth = rig->c->depth,
				      .write_depth = rig->c->depth };
	int r = loop_open(0, &rig->loop);

	if (r == 0)
		r = io_open(&conf, rig->loop, &rig->io, text, IO_TEXT_BYTES);
	if (r == 0)
		r = io_buffers_add(rig->io, rig->buffers, MAX_DEPTH * (uint64_t)BLOCK);
	if (r == 0)
		r = io_file_add(rig->io, rig->fd, ret_file);
	return r;
}

static int io_gbs(struct rig *rig, double *ret, char *note, size_t n)
{
	char text[IO_TEXT_BYTES] = "";
	uint32_t file = 0;
	uint64_t start;
	double cpu;
	int r = io_open_on(rig, &file, text);

	rig->next = rig->ended = 0;
	rig->error = 0;
	cpu = cpu_seconds();
	start = bench_now_ns();
	for (uint32_t i = 0; i < rig->c->depth && r == 0; i++) {
		rig->slots[i] = (struct slot){ .rig = rig, .op = { .file = file, .kind = rig->c->kind, .bytes = BLOCK,
			.buffer = rig->buffers + (size_t)i * BLOCK, .done = block_done } };
		io_next(rig, &rig->slots[i]);
		r = rig->error;
	}
	if (r == 0)
		r = loop_run(rig->loop);
	*ret = (double)BLOCKS * BLOCK / (double)(bench_now_ns() - start);
	cpu = cpu_seconds() - cpu;
	if (r == 0)
		(void)snprintf(note, n, "%s, depth %u, %.2f core per 10 GB/s", io_engine_name(rig->io), rig->c->depth,
			       cpu * 1e10 / ((double)BLOCKS * BLOCK));
	else
		(void)snprintf(note, n, "%.100s", text);
	(void)io_close(rig->io);
	rig->io = NULL;
	loop_close(rig->loop);
	return r ? r : rig->error;
}

/* --- cases --- */

static int measure(struct rig *rig, struct bench_result *ret)
{
	double value = 0, limit = 0;
	int r = 0;

	for (uint32_t run = 0; run < RUNS + 1 && r == 0; run++) {
		r = raw_gbs(rig, &limit);
		if (r == -ENOSYS || r == -EPERM) {
			(void)snprintf(ret->note, sizeof ret->note, "io_uring is refused here");
			return -ENOTSUP;
		}
		if (r == 0)
			r = rig->c->through_io ? io_gbs(rig, &value, ret->note, sizeof ret->note) : raw_gbs(rig, &value);
		if (r == 0 && run > 0)		/* the first warms up */
			bench_add(ret, value, limit);
	}
	if (!rig->c->through_io)
		(void)snprintf(ret->note, sizeof ret->note, "depth %u, against itself", rig->c->depth);
	return r;
}

static int run_nvme(const struct bench_case *self, struct bench_result *ret)
{
	struct rig rig = { .c = self->arg, .fd = -1 };
	int r = 0;

	rig.buffers = mmap(NULL, MAX_DEPTH * (size_t)BLOCK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (rig.buffers == MAP_FAILED)
		return -ENOMEM;
	memset(rig.buffers, 0x5a, MAX_DEPTH * (size_t)BLOCK);
	r = open_file(&rig, ret->note, sizeof ret->note);
	if (r == 0)
		r = measure(&rig, ret);
	if (rig.fd >= 0)
		(void)close(rig.fd);
	(void)munmap(rig.buffers, MAX_DEPTH * (size_t)BLOCK);
	return r;
}

static const struct nvme_case raw_read = { IO_READ, 32, 0 }, raw_write = { IO_WRITE, 16, 0 };
static const struct nvme_case io_read = { IO_READ, 32, 1 }, io_write = { IO_WRITE, 16, 1 };

const struct bench_case bench_nvme_cases[] = {
	{ "nvme.raw.read", run_nvme, "io_uring by hand, 1 MiB blocks, against itself", 0.95, BENCH_MORE, "GB/s", &raw_read },
	{ "nvme.raw.write", run_nvme, "io_uring by hand, 1 MiB blocks, against itself", 0.95, BENCH_MORE, "GB/s", &raw_write },
	{ "nvme.io.read", run_nvme, "1 MiB blocks through the daemon's I/O, against io_uring by hand", 0.95, BENCH_MORE,
	  "GB/s", &io_read },
	{ "nvme.io.write", run_nvme, "1 MiB blocks through the daemon's I/O, against io_uring by hand", 0.95, BENCH_MORE,
	  "GB/s", &io_write },
	{ NULL, NULL, NULL, 0, BENCH_MORE, NULL, NULL },
};
