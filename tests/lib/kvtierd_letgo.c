/* SPDX-License-Identifier: Apache-2.0 */
/* make: wrap=close,munmap */
/*
 * kvtierd_letgo.c - a kvtierd that says which of its threads closes or unmaps big memory of a
 * client, and whose helpers can be held there. The core is the first thread. For
 * regr_last_reference.c; never installed.
 */
#include "kvtierd_letgo.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

int __real_close(int fd);
int __wrap_close(int fd);
int __real_munmap(void *base, size_t n);
int __wrap_munmap(void *base, size_t n);

static struct letgo *shared;

__attribute__((constructor)) static void join_the_test(void)
{
	const char *path = getenv(LETGO_PATH);
	const int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
	void *at = fd < 0 ? MAP_FAILED :
			    mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (at == MAP_FAILED) {
		fprintf(stderr, LETGO_PATH ": %s\n", strerror(errno));
		_Exit(1);
	}
	shared = at;
	(void)__real_close(fd);
}

static void begin(void)
{
	if (gettid() == getpid()) {
		(void)atomic_fetch_add(&shared->by_core, 1);
		return;
	}
	(void)atomic_fetch_add(&shared->by_helpers, 1);
	while (atomic_load(&shared->hold))
		(void)usleep(1000);
}

static bool is_big_memfd(int fd)
{
	struct stat st;

	return fcntl(fd, F_GET_SEALS) >= 0 && fstat(fd, &st) == 0 && st.st_size >= LETGO_BYTES;
}

int __wrap_close(int fd)
{
	const bool big = is_big_memfd(fd);
	int r;

	if (big)
		begin();
	r = __real_close(fd);
	if (big)
		(void)atomic_fetch_add(&shared->ended, 1);
	return r;
}

int __wrap_munmap(void *base, size_t n)
{
	const bool big = n >= LETGO_BYTES;
	int r;

	if (big)
		begin();
	r = __real_munmap(base, n);
	if (big)
		(void)atomic_fetch_add(&shared->ended, 1);
	return r;
}
