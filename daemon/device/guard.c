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

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY \
	1 /* Linux 5.11: needs no privilege. The kernel itself touches no region */
#endif

enum { PAGE = 4096, LOOK_BYTES = 2 << 20 };

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

static bool allocated(const uint8_t *from, uint64_t n)
{
	const uintptr_t first = (uintptr_t)from & ~(uintptr_t)(PAGE - 1);
	const uintptr_t end = ((uintptr_t)from + n + PAGE - 1) & ~(uintptr_t)(PAGE - 1);
	unsigned char there[LOOK_BYTES / PAGE];

	for (uintptr_t at = first; at < end; at += LOOK_BYTES) {
		const size_t bytes = end - at < LOOK_BYTES ? end - at : LOOK_BYTES;

		if (mincore((void *)at, bytes, there))
			return false;
		for (size_t i = 0; i < bytes / PAGE; i++)
			if (!(there[i] & 1))
				return false;
	}
	return true;
}

static bool piece_allocated(const struct page_piece *p, const struct image_geometry *g,
			    uint64_t page)
{
	const uint64_t element = image_element_bytes(g->dtype);
	const uint8_t *base = p->base + page * p->page_stride;
	uint64_t rows = g->block_tokens, heads = 1, run = p->length;

	if (p->kind == KIND_K || p->kind == KIND_V) {
		heads = g->kv_heads;
		run = element * (p->kind == KIND_K ? g->head_dim_k : g->head_dim_v);
	} else if (p->kind == KIND_TYPED) {
		rows = 1;
		run *= element;
	} else if (p->token_stride == 0) {
		rows = 1;
	}
	/* What lies end to end is one run: heads of a row, then rows; or the rows of a head. */
	if (heads > 1 && p->head_stride == run) {
		run *= heads;
		heads = 1;
	}
	if (rows > 1 && p->token_stride == run) {
		run *= rows;
		rows = 1;
	}
	for (uint64_t h = 0; h < heads; h++)
		for (uint64_t r = 0; r < rows; r++)
			if (!allocated(base + h * p->head_stride + r * p->token_stride, run))
				return false;
	return true;
}

int guard_check(const struct page_layout *layout, uint64_t page)
{
	for (uint32_t i = 0; i < layout->n_pieces; i++)
		if (!piece_allocated(&layout->pieces[i], &layout->geometry, page))
			return -EFAULT;
	return 0;
}
