/* SPDX-License-Identifier: Apache-2.0 */
/* lib_io_faults.c - see lib_io_faults.h. It never forgets a file or a ring: a test has few. */
#include "lib_io_faults.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "wrap.h"

/* --- threads: a cut call is a call for less, a failed one none --- */

/* guards first_fd. Take no locks while holding it */
static pthread_mutex_t first_lock = PTHREAD_MUTEX_INITIALIZER;
static int first_fd = -1;

/* Stores are opened so, and nothing else is: the stats page has no faults. */
static bool is_store(int fd)
{
	return fcntl(fd, F_GETFL) & O_DIRECT;
}

/* 0: that of the first file of all; else 1. */
static uint32_t file_of(int fd)
{
	bool first;

	(void)pthread_mutex_lock(&first_lock);
	if (first_fd < 0)
		first_fd = fd;
	first = first_fd == fd;
	(void)pthread_mutex_unlock(&first_lock);
	return !first;
}

static void wait_while_held(enum io_kind kind, int fd)
{
	const uint32_t file = file_of(fd);

	if (!io_is_held(kind, file))
		return;
	io_held_add(1);
	while (io_is_held(kind, file))
		(void)nanosleep(&(struct timespec){ .tv_nsec = 100000 }, NULL);
	io_held_add(-1);
}

static void flip_bit(uint8_t *bytes, int64_t n)
{
	if (n > 0)
		bytes[n / 2] ^= 0x10;
}

REAL(ssize_t, pread, (int fd, void *buffer, size_t n, off_t offset))
{
	ssize_t got;
	int32_t r;
	bool flip;

	if (!is_store(fd))
		return __real_pread(fd, buffer, n, offset);
	wait_while_held(IO_READ, fd);
	r = io_planned(IO_READ, (int32_t)n, &flip);
	if (r < 0) {
		errno = -r;
		return -1;
	}
	if (r < (int32_t)n && r % 512)
		return r;
	got = __real_pread(fd, buffer, (size_t)r, offset);
	if (flip)
		flip_bit(buffer, got);
	return got;
}

REAL(ssize_t, pwrite, (int fd, const void *buffer, size_t n, off_t offset))
{
	int32_t r;
	bool flip;

	if (!is_store(fd))
		return __real_pwrite(fd, buffer, n, offset);
	wait_while_held(IO_WRITE, fd);
	r = io_planned(IO_WRITE, (int32_t)n, &flip);
	if (r >= 0)
		return r < (int32_t)n && r % 512 ? r : __real_pwrite(fd, buffer, (size_t)r, offset);
	errno = -r;
	return -1;
}

REAL(int, fdatasync, (int fd))
{
	int32_t r;
	bool flip;

	wait_while_held(IO_FDATASYNC, fd);
	r = io_planned(IO_FDATASYNC, 0, &flip);
	if (r == 0)
		return __real_fdatasync(fd);
	errno = -r;
	return -1;
}

/*
 * --- io_uring --- A stash has every completion that its ring still holds, so that the caller's
 * advancing the ring by what it was given keeps both in step.
 */
enum { STASH = 512, RINGS = 16 };

struct stashed {
	struct io_op *op;
	int32_t result;
	uint8_t *late; /* held: the bytes read, for the buffers */
	uint32_t late_bytes;
	int ops; /* of its run */
	bool counted;
};

struct stash {
	const struct io_uring *ring;
	uint32_t n;
	struct stashed cqes[STASH];
	struct io_uring_cqe given[STASH];
};

static struct stash stashes[RINGS];

/* The address of a ring that is gone may be another's; that of one with something stashed is
 * not. */
static struct stash *stash_of(const struct io_uring *ring)
{
	struct stash *s = stashes;

	while (s < stashes + RINGS - 1 && s->ring && s->ring != ring)
		s++;
	assert(s->ring == ring || s->n == 0);
	s->ring = ring;
	return s;
}

/* For each piece of the bytes [from, end) that a run has read: calls fn. */
static void in_run(const struct io_op *op, uint32_t from, uint32_t end,
		   void (*fn)(uint8_t *at, uint32_t n, uint8_t *late), uint8_t *late)
{
	for (uint32_t at = 0; op && at < end; op = op->run) {
		const uint32_t bytes = op->bytes - op->moved,
			       stop = at + bytes < end ? bytes : end - at;
		const uint32_t first = from > at ? from - at : 0;

		if (first < stop) {
			fn(op->buffer + op->moved + first, stop - first, late);
			late += late ? stop - first : 0;
		}
		at += bytes;
	}
}

static void spoil(uint8_t *at, uint32_t n, uint8_t *late)
{
	(void)late;
	memset(at, 0xcc, n);
}

/* The kernel has read already: bytes that the buffer should not have yet are taken away again. */
static void take_back(uint8_t *at, uint32_t n, uint8_t *late)
{
	memcpy(late, at, n);
	memset(at, 0xcc, n);
}

static void give(uint8_t *at, uint32_t n, uint8_t *late)
{
	memcpy(at, late, n);
}

static void stash_one(struct stash *all, const struct io_uring_cqe *cqe)
{
	struct io_op *op = io_uring_cqe_get_data(cqe);
	struct stashed *s = &all->cqes[all->n++];
	int32_t good;
	bool flip;

	*s = (struct stashed){ .op = op, .result = io_planned(op->kind, cqe->res, &flip) };
	for (const struct io_op *each = op; each; each = each->run)
		s->ops++;
	good = s->result > 0 ? s->result : 0;
	if (op->kind != IO_READ)
		return;
	if (good < cqe->res)
		in_run(op, (uint32_t)good, (uint32_t)cqe->res, spoil, NULL);
	for (const struct io_op *each = op; each && flip; each = each->run) {
		const int32_t bytes = (int32_t)(each->bytes - each->moved);

		flip_bit(each->buffer + each->moved, good < bytes ? good : bytes);
		good -= good < bytes ? good : bytes;
	}
	if (cqe->res > 0 && io_is_held(IO_READ, all != stashes)) {
		s->late_bytes = (uint32_t)cqe->res;
		s->late = malloc(s->late_bytes);
		if (!s->late)
			abort();
		in_run(op, 0, s->late_bytes, take_back, s->late);
	}
}

unsigned __real_io_uring_peek_batch_cqe(struct io_uring *ring, struct io_uring_cqe **ret,
					unsigned max);

static void stash_new(struct stash *all, struct io_uring *ring)
{
	struct io_uring_cqe *cqes[STASH];
	uint32_t n;

	/* completions held back would keep peek from asking the kernel for more */
	if (all->n > 0)
		(void)io_uring_get_events(ring);
	n = __real_io_uring_peek_batch_cqe(ring, cqes, STASH);
	for (uint32_t i = all->n; i < n; i++)
		stash_one(all, cqes[i]);
}

static void release(struct stashed *s)
{
	if (s->late)
		in_run(s->op, 0, s->late_bytes, give, s->late);
	free(s->late);
	if (s->counted)
		io_held_add(-s->ops);
}

REAL(unsigned, io_uring_peek_batch_cqe,
     (struct io_uring * ring, struct io_uring_cqe **ret, unsigned max))
{
	struct stash *all = stash_of(ring);
	uint32_t n = 0, kept = 0;

	stash_new(all, ring);
	for (uint32_t i = 0; i < all->n; i++) {
		struct stashed *s = &all->cqes[i];
		const bool held = io_is_held(s->op->kind, all != stashes);

		if (n < max && !held) {
			release(s);
			all->given[n].user_data = (uint64_t)(uintptr_t)s->op;
			all->given[n].res = s->result;
			ret[n] = &all->given[n];
			n++;
			continue;
		}
		io_held_add(held && !s->counted ? s->ops : 0);
		s->counted = s->counted || held;
		all->cqes[kept++] = *s;
	}
	all->n = kept;
	return n;
}
