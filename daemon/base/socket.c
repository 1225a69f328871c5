/* SPDX-License-Identifier: Apache-2.0 */
/*
 * socket.c - see socket.h.
 */
#include "socket.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83 /* Linux 6.16 */
#endif

static int remove_stale(const struct sockaddr_un *address)
{
	struct stat st;
	int fd, r;

	if (lstat(address->sun_path, &st) < 0)
		return errno == ENOENT ? 0 : -errno;
	if (!S_ISSOCK(st.st_mode))
		return -EEXIST;
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	r = connect(fd, (const struct sockaddr *)address, sizeof(*address)) < 0 ? -errno : 0;
	(void)close(fd);
	if (r != -ECONNREFUSED && r != -ENOENT)
		return -EADDRINUSE;
	return unlink(address->sun_path) < 0 && errno != ENOENT ? -errno : 0;
}

int socket_bind(const char *path, uint32_t mode, int *ret_fd, struct own *ret_own)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	bool bound;
	int fd, r;

	if (strlen(path) >= sizeof(address.sun_path))
		return -ENAMETOOLONG;
	memcpy(address.sun_path, path, strlen(path) + 1);
	r = remove_stale(&address);
	if (r)
		return r;
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	/* Linux gives the file the descriptor's mode less umask: at no time is it wider than asked
	 * for */
	bound = fchmod(fd, mode) == 0 &&
		bind(fd, (const struct sockaddr *)&address, sizeof(address)) == 0;
	if (!bound || chmod(path, mode))
		r = -errno;
	else
		r = own_at(path, ret_own);
	if (r == 0) {
		*ret_fd = fd;
		return 0;
	}
	(void)close(fd);
	if (bound)
		(void)unlink(path);
	return r;
}

bool socket_pass_fds(int fd, bool pass)
{
	const int value = pass;

	return setsockopt(fd, SOL_SOCKET, SO_PASSRIGHTS, &value, sizeof(value)) == 0;
}
