/* SPDX-License-Identifier: Apache-2.0 */
/* own.c - see own.h. */
#include "own.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

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
