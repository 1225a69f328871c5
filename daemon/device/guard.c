/* SPDX-License-Identifier: Apache-2.0 */
/*
 * guard.c - see guard.h. Two things here are not in a struct: the handler of SIGBUS, one per
 * process, and the place where it lands, one per thread.
 */
#include "guard.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <setjmp.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/bus.h"

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY \
	1 /* Linux 5.11: needs no privilege. The kernel itself touches no region */
#endif

enum {
	PAGE = 4096,
	LOOK_BYTES = 128 << 10, /* of a call of mincore(), so that no call is long */
};

static _Thread_local sigjmp_buf *landing;

static void on_sigbus(int signal_number, siginfo_t *info, void *context)
{
	sigset_t again;

	(void)context;
	if (landing && info->si_code == BUS_ADRERR) {
		/* The jump does not restore the mask: saving it would cost a system call a
		 * piece. */
		sigemptyset(&again);
		sigaddset(&again, SIGBUS);
		(void)pthread_sigmask(SIG_UNBLOCK, &again, NULL);
		siglongjmp(*landing, 1);
	}
	if (info->si_code == BUS_ADRERR && bus_mend(info->si_addr))
		return;
	/* failing memory, or a bug: it comes again, and ends the daemon */
	(void)signal(signal_number, SIG_DFL);
}

int guard_open(int *ret)
{
	const struct sigaction action = { .sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO };
	struct uffdio_api api = { .api = UFFD_API,
				  .features = UFFD_FEATURE_SIGBUS | UFFD_FEATURE_MISSING_SHMEM };
	const int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);

	*ret = -1;
	if (sigaction(SIGBUS, &action, NULL))
		return -errno;
	if (fd >= 0 && ioctl(fd, UFFDIO_API, &api) == 0)
		*ret = fd;
	else if (fd >= 0)
		(void)close(fd);
	return 0;
}

void guard_close(int guard)
{
	if (guard >= 0)
		(void)close(guard);
}

int guard_region(int guard, void *base, uint64_t length)
{
	struct uffdio_register r = {
		.range = { .start = (uintptr_t)base, .len = (length + PAGE - 1) / PAGE * PAGE },
		.mode = UFFDIO_REGISTER_MODE_MISSING,
	};

	return guard < 0 || ioctl(guard, UFFDIO_REGISTER, &r) == 0 ? 0 : -errno;
}

int guard_run(int (*fn)(void *arg), void *arg)
{
	sigjmp_buf here;
	int r;

	if (sigsetjmp(here, 0)) {
		landing = NULL;
		return -EFAULT;
	}
	landing = &here;
	r = fn(arg);
	landing = NULL;
	return r;
}

/* --- without userfaultfd --- */

/* The bytes of a page that one piece of its layout names. What lies end to end is one run: heads of
 * a row, then rows; or the rows of a head. */
struct runs {
	const uint8_t *base;
	uint64_t bytes; /* of a run */
	uint64_t head_stride, row_stride;
	uint32_t heads, rows;
};

static struct runs runs_of(const struct page_piece *p, const struct image_geometry *g,
			   uint64_t page)
{
	const uint64_t element = image_element_bytes(g->dtype);
	struct runs r = {
		.base = p->base + page * p->page_stride,
		.bytes = p->length,
		.head_stride = p->head_stride,
		.row_stride = p->token_stride,
		.heads = 1,
		.rows = g->block_tokens,
	};

	if (p->kind == KIND_K || p->kind == KIND_V) {
		r.heads = g->kv_heads;
		r.bytes = element * (p->kind == KIND_K ? g->head_dim_k : g->head_dim_v);
	} else if (p->kind == KIND_TYPED) {
		r.rows = 1;
		r.bytes *= element;
	} else if (p->token_stride == 0) {
		r.rows = 1;
	}
	if (r.heads > 1 && r.head_stride == r.bytes) {
		r.bytes *= r.heads;
		r.heads = 1;
	}
	if (r.rows > 1 && r.row_stride == r.bytes) {
		r.bytes *= r.rows;
		r.rows = 1;
	}
	return r;
}

/* All pages of memory in [from, end), of which it looks at LOOK_BYTES at most, are there. */
static bool allocated(uintptr_t from, uintptr_t end)
{
	const size_t bytes = end - from < LOOK_BYTES ? end - from : LOOK_BYTES;
	unsigned char there[LOOK_BYTES / PAGE];

	if (mincore((void *)from, bytes, there))
		return false;
	for (size_t i = 0; i < bytes / PAGE; i++)
		if (!(there[i] & 1))
			return false;
	return true;
}

/* The rest of the run that `look` has come to: 0, CODEC_MORE or -EFAULT. */
static int look_at_run(struct guard_look *look, const struct runs *r, uint32_t *calls)
{
	const uint8_t *from = r->base + look->run / r->rows * r->head_stride +
			      look->run % r->rows * r->row_stride;
	const uintptr_t first = (uintptr_t)from & ~(uintptr_t)(PAGE - 1);
	const uintptr_t end = ((uintptr_t)from + r->bytes + PAGE - 1) & ~(uintptr_t)(PAGE - 1);

	for (; first + look->at < end; look->at += LOOK_BYTES) {
		if (*calls == 0)
			return CODEC_MORE;
		--*calls;
		if (!allocated(first + look->at, end))
			return -EFAULT;
	}
	return 0;
}

int guard_look(struct guard_look *look, const struct page_layout *layout, uint64_t page,
	       uint32_t calls)
{
	for (; look->piece < layout->n_pieces; look->piece++, look->run = 0) {
		const struct runs runs =
			runs_of(&layout->pieces[look->piece], &layout->geometry, page);

		for (; look->run < runs.heads * runs.rows; look->run++, look->at = 0) {
			const int r = look_at_run(look, &runs, &calls);

			if (r)
				return r;
		}
	}
	return 0;
}
