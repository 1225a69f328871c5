/* SPDX-License-Identifier: Apache-2.0 */
/*
 * process.c - tells a forked child from the process that made a client.
 *
 * The child shares socket and rings with its parent, and a message or an entry of the child would
 * break the parent's connection. So a client serves only the process that made it.
 *
 * The number of this process lies in a page that the kernel empties in a child. On a kernel that
 * cannot do that, a fork handler empties it. So each call of the library finds out with one load
 * and without a system call.
 */
#include "process.h"

#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>

#include "last_error.h"
#include "lent.h"

_Atomic uint64_t *process_mark;

static _Atomic uint64_t mark_fallback; /* used where no such page can be had */
/* the last number given, by this process and its ancestors */
static _Atomic uint64_t numbers;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void child(void)
{
	atomic_store(process_mark, 0);
	lent_child();
}

static void start(void)
{
	void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	process_mark = &mark_fallback;
	if (page != MAP_FAILED && madvise(page, 4096, MADV_WIPEONFORK) == 0)
		process_mark = page;
	else if (page != MAP_FAILED)
		(void)munmap(page, 4096);
	(void)pthread_atfork(lent_lock, lent_unlock, child);
}

uint64_t process_begin(void)
{
	uint64_t none = 0, next;

	(void)pthread_once(&once, start);
	next = atomic_fetch_add(&numbers, 1) + 1;
	if (!atomic_compare_exchange_strong(process_mark, &none, next))
		next = none; /* the process had a number already */
	return next;
}

int process_refuse(void)
{
	return error_set(
		-EPERM,
		"this client was made by another process: after fork() only the parent may use it; "
		"a child makes its own with kvtier_connect()");
}
