/* SPDX-License-Identifier: Apache-2.0 */
/* make: wrap=setsockopt */
/*
 * kvtierd_old_kernel.c - what makes of kvtierd one on a kernel older than 6.16, which keeps no
 * descriptors out of a Unix socket: SO_PASSRIGHTS is refused. Never installed.
 */
#include <errno.h>
#include <sys/socket.h>

#include "wrap.h"

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83
#endif

REAL(int, setsockopt, (int fd, int level, int name, const void *value, socklen_t n))
{
	if (level == SOL_SOCKET && name == SO_PASSRIGHTS) {
		errno = ENOPROTOOPT;
		return -1;
	}
	return __real_setsockopt(fd, level, name, value, n);
}
