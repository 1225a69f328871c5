/* SPDX-License-Identifier: Apache-2.0 */
/*
 * io_uring.c - the io_uring engine: one ring, submitted to once per iteration of the loop.
 *
 * The ring is asked for in three ways, the best first, until the kernel accepts one: completions
 * run when we ask for them (DEFER_TASKRUN, Linux 6.1), so the core thread is not interrupted;
 * completions come without an interrupt (COOP_TASKRUN, 5.19); neither. With the first two a flag in
 * shared memory says that there is something to run, so looking costs no system call. SQPOLL is not
 * used, since it takes a core for each ring.
 *
 * The loop is woken through an eventfd that is never read: edge-triggered, each signal is an edge.
 * The ring's own descriptor would do without it, but deferred completions do not wake an epoll of
 * it (Linux 6.18: it sleeps for good).
 *
 * The file is registered, which saves a reference count per op. Buffers are registered in pieces,
 * in a table of fixed size. An op whose memory does not lie in one piece runs as well: the kernel
 * pins its pages for the time of the op.
 */
#include <errno.h>
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/text.h"
#include "io_engine.h"

enum {
	MAX_PIECES = 1024,     /* of registered memory */
	PIECE_BYTES = 1 << 30, /* the kernel's bound for one */
	BATCH = 64,
};

struct uring {
	struct io base; /* first */
	struct io_uring ring;
	bool ring_open, file_registered, buffers_possible;
	uint32_t n_pieces;
	struct iovec pieces[MAX_PIECES];     /* registered, by number */
	struct iovec (*vectors)[IO_RUN_OPS]; /* of the entry at each place in the ring */
};

/* --- open --- */

static const char *reason(int error)
{
	switch (-error) {
	case ENOSYS:
		return "this kernel, or a sandbox around us, has none";
	case EPERM:
	case EACCES:
		return "not permitted: seccomp, or the sysctl kernel.io_uring_disabled";
	case ENOMEM:
		return "no memory for it: RLIMIT_MEMLOCK, or the machine's";
	default:
		return strerror(-error);
	}
}

static int setup_ring(struct uring *u, uint32_t entries)
{
	static const unsigned int flags[] = {
		IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_TASKRUN_FLAG,
		IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG,
		0,
	};
	int r = -EINVAL;

	for (size_t i = 0; i < sizeof(flags) / sizeof(*flags) && r == -EINVAL; i++) {
		struct io_uring_params params = { .flags = flags[i] };

		r = io_uring_queue_init_params(entries, &u->ring, &params);
	}
	u->ring_open = r == 0;
	if (r == 0)
		u->vectors = calloc(u->ring.sq.ring_entries, sizeof(*u->vectors));
	return r == 0 && !u->vectors ? -ENOMEM : r;
}

static int check_operations(struct uring *u)
{
	static const int needed[] = { IORING_OP_NOP,        IORING_OP_READ,        IORING_OP_WRITE,
				      IORING_OP_READ_FIXED, IORING_OP_WRITE_FIXED, IORING_OP_READV,
				      IORING_OP_WRITEV,     IORING_OP_FSYNC };
	struct io_uring_probe *probe = io_uring_get_probe_ring(&u->ring);
	int r = probe ? 0 : -ENOSYS;

	for (size_t i = 0; probe && i < sizeof(needed) / sizeof(*needed); i++)
		if (!io_uring_opcode_supported(probe, needed[i]))
			r = -ENOSYS;
	if (probe)
		io_uring_free_probe(probe);
	return r;
}

/* There and back once: a sandbox may allow the set-up and refuse the use. */
static int check_round_trip(struct uring *u)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);
	struct io_uring_cqe *cqe;
	int r;

	io_uring_prep_nop(sqe);
	io_uring_sqe_set_data(sqe, NULL);
	r = io_uring_submit(&u->ring);
	if (r == 1)
		r = io_uring_wait_cqe(&u->ring, &cqe);
	else if (r >= 0)
		r = -EIO;
	if (r == 0)
		io_uring_cqe_seen(&u->ring, cqe);
	return r;
}

/* Registrations make it faster, and may be missing. */
static void register_tables(struct uring *u)
{
	const int none = -1, r = io_uring_register_files(&u->ring, &none, 1);

	u->file_registered = r == 0;
	if (r)
		io_note_add(&u->base, "io_uring: no registered files: %s", strerror(-r));
	/* Linux 5.19 */
	u->buffers_possible = io_uring_register_buffers_sparse(&u->ring, MAX_PIECES) == 0;
}

static void uring_close(struct io *io)
{
	struct uring *u = (struct uring *)io;

	if (u->ring_open)
		io_uring_queue_exit(&u->ring);
	if (u->base.event_fd >= 0)
		(void)close(u->base.event_fd);
	free(u->vectors);
	free(u);
}

static int uring_open(const struct io_conf *conf, struct io **ret, char *text, size_t n)
{
	struct uring *u = calloc(1, sizeof(*u));
	int r = -ENOMEM;

	if (!u)
		goto fail;
	u->base.engine = &io_engine_uring;
	u->base.depth[IO_READS] = conf->read_depth;
	u->base.depth[IO_WRITES] = conf->write_depth;
	u->base.event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (u->base.event_fd < 0) {
		r = -errno;
		goto fail;
	}
	r = setup_ring(u, conf->read_depth + conf->write_depth);
	if (r == 0)
		r = check_operations(u);
	if (r == 0)
		r = check_round_trip(u);
	if (r == 0)
		r = io_uring_register_eventfd(&u->ring, u->base.event_fd);
	if (r)
		goto fail;
	register_tables(u);
	*ret = &u->base;
	return 0;
fail:
	if (u)
		uring_close(&u->base);
	return text_fail(text, n, r, "no io_uring: %s", reason(r));
}

static int uring_file_set(struct io *io, int fd)
{
	struct uring *u = (struct uring *)io;
	int r;

	if (!u->file_registered)
		return 0;
	r = io_uring_register_files_update(&u->ring, 0, &fd, 1);
	return r < 0 ? r : 0;
}

/* --- registered memory --- */

static void uring_buffers_add(struct io *io, uint8_t *base, uint64_t bytes)
{
	struct uring *u = (struct uring *)io;
	uint64_t at = 0;
	int r = 0;

	if (!u->buffers_possible) {
		io_note_add(io, "io_uring: no registered buffers: they need Linux 5.19");
		return;
	}
	while (at < bytes) {
		const uint64_t left = bytes - at;
		struct iovec *piece = &u->pieces[u->n_pieces];

		r = -ENOSPC;
		if (u->n_pieces == MAX_PIECES)
			break;
		*piece = (struct iovec){ base + at, left < PIECE_BYTES ? left : PIECE_BYTES };
		r = io_uring_register_buffers_update_tag(&u->ring, u->n_pieces, piece, NULL, 1);
		if (r < 0)
			break;
		at += piece->iov_len;
		u->n_pieces++;
	}
	if (r < 0)
		io_note_add(io, "io_uring: registered %llu of %llu MiB of buffers: %s",
			    (unsigned long long)at >> 20, (unsigned long long)bytes >> 20,
			    r == -ENOMEM ? "RLIMIT_MEMLOCK, or no memory" : strerror(-r));
}

/* The piece that all of it lies in; -1: no piece does. */
static bool is_in(const struct iovec *piece, const uint8_t *buffer, uint32_t bytes)
{
	/* huge when the buffer is before the piece */
	const uint64_t at = (uintptr_t)buffer - (uintptr_t)piece->iov_base;

	return at < piece->iov_len && bytes <= piece->iov_len - at;
}

static int find_piece(const struct uring *u, const uint8_t *buffer, uint32_t bytes)
{
	const uint8_t *first = u->n_pieces > 0 ? u->pieces[0].iov_base : buffer;
	/* Host memory is one area, and all its pieces but the last are of one size. */
	const uint64_t guess = (uint64_t)(buffer - first) / PIECE_BYTES;

	if (guess < u->n_pieces && is_in(&u->pieces[guess], buffer, bytes))
		return (int)guess;
	for (uint32_t i = 0; i < u->n_pieces; i++)
		if (is_in(&u->pieces[i], buffer, bytes))
			return (int)i;
	return -1;
}

/* --- transfers --- */

/* The memory of an op, or of a run, in as few pieces as it has. The place of the entry in the ring
 * is free again when the kernel has read both. */
static struct iovec *gather(struct uring *u, const struct io_uring_sqe *sqe, const struct io_op *op,
			    uint32_t *ret_n)
{
	struct iovec *v = u->vectors[sqe - u->ring.sq.sqes];
	uint32_t n = 0;

	for (; op; op = op->run) {
		if (n > 0 && (uint8_t *)v[n - 1].iov_base + v[n - 1].iov_len == io_op_buffer(op))
			v[n - 1].iov_len += io_op_left(op);
		else
			v[n++] = (struct iovec){ io_op_buffer(op), io_op_left(op) };
	}
	*ret_n = n;
	return v;
}

static void prepare(struct uring *u, struct io_uring_sqe *sqe, int fd, const struct io_op *op)
{
	const bool reads = op->kind == IO_READ;
	const uint64_t offset = io_op_offset(op);
	uint32_t n;
	const struct iovec *v = gather(u, sqe, op, &n);
	const uint32_t bytes = (uint32_t)v->iov_len;
	const int piece = n == 1 ? find_piece(u, v->iov_base, bytes) : -1;

	if (n > 1)
		(reads ? io_uring_prep_readv : io_uring_prep_writev)(sqe, fd, v, n, offset);
	else if (reads && piece >= 0)
		io_uring_prep_read_fixed(sqe, fd, v->iov_base, bytes, offset, piece);
	else if (reads)
		io_uring_prep_read(sqe, fd, v->iov_base, bytes, offset);
	else if (piece >= 0)
		io_uring_prep_write_fixed(sqe, fd, v->iov_base, bytes, offset, piece);
	else
		io_uring_prep_write(sqe, fd, v->iov_base, bytes, offset);
}

static void uring_start(struct io *io, struct io_op *op)
{
	struct uring *u = (struct uring *)io;
	/* there is one: the ring holds both depths */
	struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);
	const int fd = u->file_registered ? 0 : io->fd;

	if (op->kind == IO_FDATASYNC)
		io_uring_prep_fsync(sqe, fd, IORING_FSYNC_DATASYNC);
	else
		prepare(u, sqe, fd, op);
	if (u->file_registered)
		io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
	io_uring_sqe_set_data(sqe, op);
}

static int uring_flush(struct io *io)
{
	struct uring *u = (struct uring *)io;
	int r;

	if (io_uring_sq_ready(&u->ring) == 0)
		return 0;
	r = io_uring_submit(&u->ring);
	if (r >= 0 && io_uring_sq_ready(&u->ring) > 0)
		return -EAGAIN; /* it took some */
	return r < 0 ? r : 0;
}

static uint32_t uring_reap(struct io *io, uint32_t budget)
{
	struct uring *u = (struct uring *)io;
	struct io_uring_cqe *cqes[BATCH];
	const uint32_t n = io_uring_peek_batch_cqe(&u->ring, cqes, budget < BATCH ? budget : BATCH);

	for (uint32_t i = 0; i < n; i++) {
		struct io_op *op = io_uring_cqe_get_data(cqes[i]);
		const int32_t result = cqes[i]->res;

		io_transferred(io, op, result);
	}
	io_uring_cq_advance(&u->ring, n);
	return n;
}

const struct io_engine io_engine_uring = {
	.name = "io_uring",
	.runs = true,
	.open = uring_open,
	.close = uring_close,
	.file_set = uring_file_set,
	.buffers_add = uring_buffers_add,
	.start = uring_start,
	.flush = uring_flush,
	.reap = uring_reap,
};
