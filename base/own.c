/* SPDX-License-Identifier: Apache-2.0 */
/* own.c - see own.h. */
#include "own.h"

#include <errno.h>
#include <fcntl.h>
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

int socket_bind(const char *path, uint32_t mode, int *ret_fd, struct own *ret_own)
{
	struct sockaddr_un address;
	bool bound;
	int fd, r;

	if (!address_of(path, &address))
		return -ENAMETOOLONG;
	r = remove_stale(&address);
	if (r)
		return r;
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
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

bool socket_pass_fds(int fd, bool pass)
{
	const int value = pass;

	return setsockopt(fd, SOL_SOCKET, SO_PASSRIGHTS, &value, sizeof(value)) == 0;
}
