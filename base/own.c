/* SPDX-License-Identifier: Apache-2.0 */
/* own.c - see own.h. */
#include "own.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83 /* Linux 6.16 */
#endif

static struct own own_of(const struct stat *st)
{
	const bool device = S_ISBLK(st->st_mode);

	return (struct own){ .device = device ? st->st_rdev : st->st_dev,
			     .inode = device ? 0 : st->st_ino };
}

int own_at(const char *path, struct own *ret)
{
	struct stat st;

	if (stat(path, &st))
		return -errno;
	*ret = own_of(&st);
	return 0;
}

int own_fd(int fd, struct own *ret)
{
	struct stat st;

	if (fstat(fd, &st))
		return -errno;
	*ret = own_of(&st);
	return 0;
}

enum own_state own_look(const char *path, const struct own *own)
{
	struct own now;
	const int r = own_at(path, &now);

	if (r)
		return r == -ENOENT || r == -ENOTDIR ? OWN_GONE : OWN_THERE;
	return now.device == own->device && now.inode == own->inode ? OWN_THERE : OWN_REPLACED;
}

void own_keep(const char *path)
{
	enum { A_DAY_S = 86400 };
	struct timespec now;
	struct stat st;

	if (clock_gettime(CLOCK_REALTIME, &now) || stat(path, &st) || S_ISBLK(st.st_mode) ||
	    now.tv_sec - st.st_mtim.tv_sec < A_DAY_S)
		return;
	(void)utimensat(AT_FDCWD, path, NULL, 0);
}

void own_unlink(const char *path, const struct own *own)
{
	struct own now;

	if (own_at(path, &now) == 0 && now.device == own->device && now.inode == own->inode)
		(void)unlink(path);
}

/* --- sockets --- */

static bool address_of(const char *path, struct sockaddr_un *ret)
{
	*ret = (struct sockaddr_un){ .sun_family = AF_UNIX };
	if (strlen(path) >= sizeof(ret->sun_path))
		return false;
	memcpy(ret->sun_path, path, strlen(path) + 1);
	return true;
}

/* 0: no process does, or there is no socket; 1: a process does; -errno. */
static int answers(const struct sockaddr_un *address)
{
	const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	int error = 0;

	if (fd < 0)
		return -errno;
	if (connect(fd, (const struct sockaddr *)address, sizeof(*address)) < 0)
		error = errno;
	(void)close(fd);
	return error != ECONNREFUSED && error != ENOENT;
}

bool socket_answers(const char *path)
{
	struct sockaddr_un address;
	struct stat st;

	return address_of(path, &address) && stat(path, &st) == 0 && S_ISSOCK(st.st_mode) &&
	       answers(&address) == 1;
}

static int remove_stale(const struct sockaddr_un *address)
{
	struct stat st;
	int r;

	if (lstat(address->sun_path, &st) < 0)
		return errno == ENOENT ? 0 : -errno;
	if (!S_ISSOCK(st.st_mode))
		return -EEXIST;
	r = answers(address);
	if (r)
		return r < 0 ? r : -EADDRINUSE;
	return unlink(address->sun_path) < 0 && errno != ENOENT ? -errno : 0;
}

int socket_bind(const char *path, int type, uint32_t mode, int *ret_fd, struct own *ret_own)
{
	struct sockaddr_un address;
	bool bound;
	int fd, r;

	if (!address_of(path, &address))
		return -ENAMETOOLONG;
	r = remove_stale(&address);
	if (r)
		return r;
	fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	/* Linux gives the file the descriptor's mode less umask, so the mode is never wider than
	 * asked for */
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

/* 0: there is none, or it is another process's. */
static uint32_t passed(void)
{
	const char *pid = getenv("LISTEN_PID"), *n = getenv("LISTEN_FDS");

	if (!pid || !n || strtol(pid, NULL, 10) != getpid())
		return 0;
	return (uint32_t)strtoul(n, NULL, 10);
}

static bool is_set(int fd, int option, int value)
{
	socklen_t n = sizeof(value);
	int now = 0;

	return getsockopt(fd, SOL_SOCKET, option, &now, &n) == 0 && now == value;
}

int socket_held(uint32_t i, char ret_path[SOCKET_PATH_BYTES])
{
	enum { FIRST = 3 };
	struct sockaddr_un address = { .sun_family = AF_UNSPEC };
	socklen_t n = sizeof(address);
	const int fd = FIRST + (int)i;

	if (i >= passed())
		return -ENOENT;
	if (!is_set(fd, SO_TYPE, SOCK_SEQPACKET) || !is_set(fd, SO_ACCEPTCONN, 1) ||
	    getsockname(fd, (struct sockaddr *)&address, &n) || address.sun_family != AF_UNIX ||
	    address.sun_path[0] != '/')
		return -EPROTOTYPE;
	if (fcntl(fd, F_SETFD, FD_CLOEXEC) || fcntl(fd, F_SETFL, O_NONBLOCK))
		return -errno;
	/* the kernel ends no path of 108 bytes */
	*stpncpy(ret_path, address.sun_path, sizeof(address.sun_path)) = '\0';
	return fd;
}

int socket_held_at(const char *path)
{
	char held[SOCKET_PATH_BYTES];
	int fd = 0;

	for (uint32_t i = 0; fd >= 0; i++) {
		fd = socket_held(i, held);
		if (fd >= 0 && strcmp(held, path) == 0)
			return fd;
	}
	return -ENOENT;
}

bool socket_pass_fds(int fd, bool pass)
{
	const int value = pass;

	return setsockopt(fd, SOL_SOCKET, SO_PASSRIGHTS, &value, sizeof(value)) == 0;
}

bool socket_passes_fds(int fd)
{
	return !is_set(fd, SO_PASSRIGHTS, 0);
}
