/* SPDX-License-Identifier: Apache-2.0 */
/* make: wrap=close,nvme_up */
/*
 * kvtierd_starting.c - what makes of kvtierd one that stops (SIGSTOP) three times while it starts:
 * when the files "shared" and "password" were read and are about to be closed, and before NVMe
 * comes up, when it has all secrets. For regr_core_dump.c; never installed.
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "daemon/up/up.h"
#include "wrap.h"

REAL(int, close, (int fd))
{
	char link[32], path[256];
	const char *name;
	ssize_t n;

	(void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = readlink(link, path, sizeof(path) - 1);
	path[n > 0 ? n : 0] = '\0';
	name = strrchr(path, '/');
	if (name && (strcmp(name, "/shared") == 0 || strcmp(name, "/password") == 0))
		(void)raise(SIGSTOP);
	return __real_close(fd);
}

REAL(int, nvme_up, (struct kvtierd * d, char *text, size_t n))
{
	(void)raise(SIGSTOP);
	return __real_nvme_up(d, text, n);
}
