/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme_file.c - see nvme_file.h.
 *
 * The lock makes it safe to make an absent file. Of two daemons that start at once one gets the
 * lock, whichever of them made the file, and only the owner of the lock may remove the file again.
 */
#include "nvme_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/fs.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "nvme_format.h"

enum {
	/* at the start: other file systems' superblocks lie in the first MiB */
	LOOK_BYTES = 2 << 20,
	LOOK_TAIL_BYTES = 1 << 20, /* at the end: RAID, partition tables */
	LOOK_SAMPLES = 64,         /* in between, a page each */
	LOCK_TRIES = 500, /* 5 s: a busy machine takes that long to end the I/O of the dead */
	LOCK_PAUSE_NS = 10000000,
};

/* The reason, for the operator; returns r. */
__attribute__((format(printf, 4, 5))) static int refuse(int r, char *text, size_t n,
							const char *format, ...)
{
	va_list args;

	va_start(args, format);
	(void)vsnprintf(text, n, format, args);
	va_end(args);
	return r;
}

static int refuse_errno(int r, char *text, size_t n)
{
	switch (r) {
	case -EACCES:
	case -EPERM:
		return refuse(r, text, n,
			      "no permission: give it to the user that kvtierd runs as");
	case -ENOENT:
		return refuse(r, text, n,
			      "the directory does not exist: make it, or correct the path");
	case -EROFS:
		return refuse(
			r, text, n,
			"the file system is read-only: mount it writable, or correct the path");
	case -EBUSY:
		return refuse(
			r, text, n,
			"the disk is mounted, or in use by another kvtierd or program: stop that, "
			"or use another path");
	case -EINVAL:
		return refuse(
			-ENOTSUP, text, n,
			"the file system has no O_DIRECT (tmpfs?): use one on a disk, or correct "
			"the path");
	default:
		return refuse(r, text, n, "cannot be opened: %s", strerror(-r));
	}
}

static int refuse_type(const struct stat *st, char *text, size_t n)
{
	const char *is = S_ISDIR(st->st_mode)  ? "a directory" :
			 S_ISFIFO(st->st_mode) ? "a fifo" :
			 S_ISSOCK(st->st_mode) ? "a socket" :
			 S_ISCHR(st->st_mode)  ? "a character device" :
						 "no file";

	return refuse(-ENOTBLK, text, n,
		      "this is %s: name a file in it or elsewhere, or a block device", is);
}

/* A device in use may be held by a daemon that was killed. As with lock(), the kernel lets go of
 * the device when that daemon's I/O has ended, some milliseconds after its process. */
static int open_free(const char *path, int flags)
{
	int fd;

	for (uint32_t tries = 0;
	     (fd = open(path, flags)) < 0 && errno == EBUSY && tries < LOCK_TRIES; tries++)
		(void)nanosleep(&(struct timespec){ .tv_nsec = LOCK_PAUSE_NS }, NULL);
	return fd;
}

/* O_EXCL on a block device: it is neither mounted nor part of a RAID. Links, as in /dev/disk/by-id,
 * are followed. */
static int open_there(const char *path, struct nvme_file *file, char *text, size_t n)
{
	struct stat before, st;
	int flags = O_RDWR | O_DIRECT | O_CLOEXEC;

	if (stat(path, &before))
		return refuse_errno(-errno, text, n);
	/* to open a FIFO or a tape has effects */
	if (!S_ISREG(before.st_mode) && !S_ISBLK(before.st_mode))
		return refuse_type(&before, text, n);
	file->block_device = S_ISBLK(before.st_mode);
	file->fd = open_free(path, file->block_device ? flags | O_EXCL : flags);
	if (file->fd < 0)
		return refuse_errno(-errno, text, n);
	if (fstat(file->fd, &st) || st.st_dev != before.st_dev || st.st_ino != before.st_ino)
		return refuse(-EBUSY, text, n, "it was replaced while it was opened: start again");
	return 0;
}

static int open_or_make(const char *path, struct nvme_file *file, char *text, size_t n)
{
	struct stat st;

	if (stat(path, &st) == 0 || errno != ENOENT)
		return open_there(path, file, text, n);
	file->fd = open(path, O_RDWR | O_DIRECT | O_CLOEXEC | O_CREAT | O_EXCL, 0600);
	if (file->fd >= 0) {
		file->made = true;
		return 0;
	}
	if (errno == EEXIST) /* another process made it, or a symbolic link leads nowhere */
		return open_there(path, file, text, n);
	/* without O_DIRECT some file systems make the file, and then refuse it */
	if (errno == EINVAL)
		(void)unlink(path);
	return refuse_errno(-errno, text, n);
}

/* The lock of a daemon that was killed goes when the kernel has ended that daemon's I/O, some
 * milliseconds after its process. It must not go sooner: writes might still arrive. */
static int lock(struct nvme_file *file, char *text, size_t n)
{
	int r;

	for (uint32_t tries = 0; (r = flock(file->fd, LOCK_EX | LOCK_NB)) && errno == EWOULDBLOCK;
	     tries++) {
		if (tries == LOCK_TRIES)
			break;
		(void)nanosleep(&(struct timespec){ .tv_nsec = LOCK_PAUSE_NS }, NULL);
	}
	if (r == 0)
		return 0;
	file->made = false; /* it is the file of the lock's owner */
	if (errno == EWOULDBLOCK)
		return refuse(-EBUSY, text, n,
			      "in use by another kvtierd: stop that one, or use another path");
	return refuse(-errno, text, n, "cannot be locked: %s", strerror(errno));
}

static int measure(struct nvme_file *file, char *text, size_t n)
{
	struct stat st;

	if (file->block_device && ioctl(file->fd, BLKGETSIZE64, &file->bytes) == 0)
		return 0;
	if (file->block_device || fstat(file->fd, &st))
		return refuse(-errno, text, n, "its size cannot be had: %s", strerror(errno));
	file->bytes = (uint64_t)st.st_size;
	return 0;
}

/* All its space is reserved now: later the file system might be full. */
static int reserve(struct nvme_file *file, uint64_t bytes, char *text, size_t n)
{
	int r = bytes ? -EFBIG : -EINVAL;

	if (!bytes)
		return refuse(r, text, n, "how large it is to be is not said: set `bytes`");
	if (bytes <= INT64_MAX)
		r = fallocate(file->fd, 0, 0, (off_t)bytes) ? -errno : 0;
	/* this file system has no fallocate: ENOSPC will make the disk readonly */
	if (r == -EOPNOTSUPP)
		r = ftruncate(file->fd, (off_t)bytes) ? -errno : 0;
	if (r) {
		(void)!ftruncate(file->fd, (off_t)file->bytes); /* as it was */
		return refuse(r, text, n,
			      "no room for %" PRIu64 " bytes (%s): make room, or lower `bytes`",
			      bytes, strerror(-r));
	}
	file->bytes = bytes;
	file->blank = true;
	return 0;
}

/* Whether only zeros are there. False where a read fails. */
static bool zeros(const struct nvme_file *file, uint8_t *buffer, uint64_t offset, uint32_t bytes)
{
	if (pread(file->fd, buffer, bytes, (off_t)offset) != (ssize_t)bytes)
		return false;
	return buffer[0] == 0 && !memcmp(buffer, buffer + 1, bytes - 1);
}

static bool only_zeros(const struct nvme_file *file, uint8_t *buffer)
{
	const uint64_t end = file->bytes / NVME_PAGE * NVME_PAGE;
	uint64_t step;

	if (end < LOOK_BYTES + LOOK_TAIL_BYTES) {
		for (uint64_t at = 0; at < end; at += NVME_PAGE)
			if (!zeros(file, buffer, at, NVME_PAGE))
				return false;
		return end > 0;
	}
	if (!zeros(file, buffer, 0, LOOK_BYTES) ||
	    !zeros(file, buffer, end - LOOK_TAIL_BYTES, LOOK_TAIL_BYTES))
		return false;
	step = end / LOOK_SAMPLES / NVME_PAGE * NVME_PAGE;
	for (uint64_t at = 0; step && at + NVME_PAGE <= end; at += step)
		if (!zeros(file, buffer, at, NVME_PAGE))
			return false;
	return true;
}

static int look(struct nvme_file *file, char *text, size_t n)
{
	uint8_t *buffer = aligned_alloc(NVME_PAGE, LOOK_BYTES);

	if (!buffer)
		return refuse(-ENOMEM, text, n, "not enough memory");
	/* The first page tells a store at once. A block device is never blank here: the operator
	 * formats it. */
	file->blank = !file->block_device && file->bytes >= NVME_PAGE &&
		      zeros(file, buffer, 0, NVME_PAGE) && only_zeros(file, buffer);
	free(buffer);
	return 0;
}

static int get_ready(struct nvme_file *file, uint64_t bytes, enum nvme_file_use use, char *text,
		     size_t n)
{
	int r = lock(file, text, n);

	if (!r)
		r = measure(file, text, n);
	if (r || use == NVME_FILE_RETURNED)
		return r;
	if (!file->block_device &&
	    (!file->bytes || (use == NVME_FILE_REPLACE && file->bytes < bytes)))
		return reserve(file, bytes, text, n);
	if (use == NVME_FILE_STORE)
		r = look(file, text, n);
	if (!r && bytes > file->bytes && (file->blank || use == NVME_FILE_REPLACE))
		return refuse(-ENOSPC, text, n,
			      "it has %" PRIu64 " bytes, and is to have %" PRIu64
			      ": correct `bytes`, or format it",
			      file->bytes, bytes);
	return r;
}

int nvme_file_open(const char *path, uint64_t bytes, enum nvme_file_use use, struct nvme_file *ret,
		   char *text, size_t n)
{
	struct nvme_file file = { .fd = -1 };
	const bool returned = use == NVME_FILE_RETURNED;
	int r = returned ? open_there(path, &file, text, n) : open_or_make(path, &file, text, n);

	if (!r)
		(void)own_fd(file.fd, &file.own); /* it cannot fail for what is open */
	if (returned && r == -ENOENT)
		(void)refuse(r, text, n, "there is nothing at its path");
	if (!r)
		r = get_ready(&file, bytes, use, text, n);
	if (r) {
		nvme_file_discard(path, &file);
		return r;
	}
	*ret = file;
	return 0;
}

bool nvme_file_is_shell(const struct nvme_file *file)
{
	uint64_t bytes;

	return file->block_device && ioctl(file->fd, BLKGETSIZE64, &bytes) == 0 && bytes == 0;
}

int nvme_file_supers(const struct nvme_file *file, uint8_t *ret, char *text, size_t n)
{
	int failed = 0, status = 0;

	for (uint32_t copy = 0; copy < NVME_SUPER_COPIES; copy++) {
		uint8_t *page = ret + (size_t)copy * NVME_PAGE;
		const ssize_t got =
			pread(file->fd, page, NVME_PAGE, (off_t)nvme_super_offset(copy));

		if (got == NVME_PAGE)
			continue;
		status = got < 0 ? -errno : -ENODATA;
		memset(page, 0xff, NVME_PAGE);
		failed++;
	}
	if (failed < NVME_SUPER_COPIES)
		return 0;
	return refuse(status, text, n, "it cannot be read (%s)", strerror(-status));
}

void nvme_file_close(struct nvme_file *file)
{
	if (file->fd < 0)
		return;
	(void)flock(file->fd, LOCK_UN); /* an io_uring may hold on to the file a little longer */
	(void)close(file->fd);
	file->fd = -1;
}

void nvme_file_discard(const char *path, struct nvme_file *file)
{
	if (file->made)
		own_unlink(path, &file->own);
	file->made = false;
	nvme_file_close(file);
}

int nvme_file_settle(const char *path)
{
	const char *slash = strrchr(path, '/');
	const size_t length = !slash ? 1 : slash == path ? 1 : (size_t)(slash - path);
	char *directory = strndup(slash ? path : ".", length);
	int fd, r;

	if (!directory)
		return -ENOMEM;
	fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	free(directory);
	if (fd < 0)
		return -errno;
	r = fsync(fd) ? -errno : 0;
	(void)close(fd);
	return r;
}
