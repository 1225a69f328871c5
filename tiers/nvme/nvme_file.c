/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme_file.c - the file or block device of one NVMe path. Contract: nvme_file.h.
 *
 * The lock makes it safe to make an absent file. If two daemons start at once, one gets the lock,
 * whichever of them made the file, and only the owner of the lock may remove the file again.
 *
 * A store is made with its superblocks written last, so a path on which this was stopped half-way
 * has no store. Records that an old store left in the segments name its uuid, and are never
 * believed.
 *
 * An opening, whose `state` its lock guards:
 *
 *  ASKED ──thread ends──> ANSWERED ──> the asker takes the file, and frees the opening
 *     └──asker leaves──> LEFT ──thread ends, some day──> the thread closes and frees all
 */
#include "nvme_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/fs.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "tiers/nvme/log/nvme_format.h"
#include "base/clock.h"
#include "base/text.h"
#include "base/thread.h"

enum {
	/* at the start: other file systems' superblocks lie in the first MiB */
	LOOK_BYTES = 2 << 20,
	LOOK_TAIL_BYTES = 1 << 20, /* at the end: RAID, partition tables */
	LOOK_SAMPLES = 64,         /* in between, a page each */
	LOCK_TRIES = 1000, /* 10 s: a busy machine takes that long to end the I/O of the dead */
	LOCK_PAUSE_NS = 10000000,
};

static int refuse_errno(int r, char *text, size_t n)
{
	switch (r) {
	case -EACCES:
	case -EPERM:
		return text_fail(text, n, r,
				 "no permission: give it to the user that kvtierd runs as");
	case -ENOENT:
		return text_fail(text, n, r,
				 "the directory does not exist: make it, or correct the path");
	case -EROFS:
		return text_fail(
			text, n, r,
			"the file system is read-only: mount it writable, or correct the path");
	case -EBUSY:
		return text_fail(
			text, n, r,
			"the disk is mounted, or in use by another kvtierd or program: stop that, "
			"or use another path");
	case -EINVAL:
		return text_fail(
			text, n, -ENOTSUP,
			"the file system has no O_DIRECT (tmpfs?): use one on a disk, or correct "
			"the path");
	default:
		return text_fail(text, n, r, "cannot be opened: %s", strerror(-r));
	}
}

static int refuse_type(const struct stat *st, char *text, size_t n)
{
	const char *is = S_ISDIR(st->st_mode)  ? "a directory" :
			 S_ISFIFO(st->st_mode) ? "a fifo" :
			 S_ISSOCK(st->st_mode) ? "a socket" :
			 S_ISCHR(st->st_mode)  ? "a character device" :
						 "no file";

	return text_fail(text, n, -ENOTBLK,
			 "this is %s: name a file in it or elsewhere, or a block device", is);
}

/* A device in use may be held by a daemon that was killed. The kernel releases the device
 * when that daemon's I/O has ended, some milliseconds after its process, as it does a lock. */
static int open_free(const char *path, int flags)
{
	int fd;

	for (uint32_t tries = 0;
	     (fd = open(path, flags)) < 0 && errno == EBUSY && tries < LOCK_TRIES; tries++)
		(void)nanosleep(&(struct timespec){ .tv_nsec = LOCK_PAUSE_NS }, NULL);
	return fd;
}

/* O_EXCL on a block device: it is not mounted and not part of a RAID. Links, as in /dev/disk/by-id,
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
		return text_fail(text, n, -EBUSY,
				 "it was replaced while it was opened: start again");
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

/* The kernel frees the lock of a daemon that was killed when it has ended that daemon's I/O, some
 * milliseconds after its process. A lock that is freed sooner would be a fault: writes might still
 * arrive. */
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
		return text_fail(text, n, -EBUSY,
				 "in use by another kvtierd: stop that one, or use another path");
	return text_fail(text, n, -errno, "cannot be locked: %s", strerror(errno));
}

static int measure(struct nvme_file *file, char *text, size_t n)
{
	struct stat st;

	if (file->block_device && ioctl(file->fd, BLKGETSIZE64, &file->bytes) == 0)
		return 0;
	if (file->block_device || fstat(file->fd, &st))
		return text_fail(text, n, -errno, "its size cannot be read: %s", strerror(errno));
	file->bytes = (uint64_t)st.st_size;
	return 0;
}

/* All its space is reserved now: later the file system might be full. */
static int reserve(struct nvme_file *file, uint64_t bytes, char *text, size_t n)
{
	int r = bytes ? -EFBIG : -EINVAL;

	if (!bytes)
		return text_fail(text, n, r, "its size is not given: set `bytes`");
	if (bytes <= INT64_MAX)
		r = fallocate(file->fd, 0, 0, (off_t)bytes) ? -errno : 0;
	/* this file system has no fallocate: ENOSPC will make the disk readonly */
	if (r == -EOPNOTSUPP)
		r = ftruncate(file->fd, (off_t)bytes) ? -errno : 0;
	if (r) {
		(void)!ftruncate(file->fd, (off_t)file->bytes); /* as it was */
		return text_fail(text, n, r,
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
		return text_fail(text, n, -ENOMEM, "not enough memory");
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
		return text_fail(text, n, -ENOSPC,
				 "it has %" PRIu64 " bytes, fewer than the %" PRIu64
				 " that `bytes` asks for: correct `bytes`, or format it",
				 file->bytes, bytes);
	return r;
}

/* Closes it, and removes the file if file_open() made it. */
static void file_discard(const char *path, struct nvme_file *file)
{
	if (file->made)
		own_unlink(path, &file->own);
	file->made = false;
	nvme_file_close(file);
}

/* The results are those of nvme_opening_wait(). */
static int file_open(const char *path, uint64_t bytes, enum nvme_file_use use,
		     struct nvme_file *ret, char *text, size_t n)
{
	struct nvme_file file = { .fd = -1 };
	const bool returned = use == NVME_FILE_RETURNED;
	int r = returned ? open_there(path, &file, text, n) : open_or_make(path, &file, text, n);

	if (!r)
		(void)own_fd(file.fd, &file.own); /* it cannot fail for what is open */
	if (returned && r == -ENOENT)
		(void)text_fail(text, n, r, "there is nothing at its path");
	if (!r)
		r = get_ready(&file, bytes, use, text, n);
	if (r) {
		file_discard(path, &file);
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

/* Reads both superblocks, one after the other. A superblock that cannot be read becomes 0xff bytes;
 * bytes behind the end are zeros. 0, or -errno: neither could be read. */
static int read_supers(int fd, uint8_t *ret)
{
	int failed = 0, status = 0;

	for (uint32_t copy = 0; copy < NVME_SUPER_COPIES; copy++) {
		uint8_t *page = ret + (size_t)copy * NVME_PAGE;
		const ssize_t got = pread(fd, page, NVME_PAGE, (off_t)nvme_super_offset(copy));

		if (got < 0) {
			status = -errno;
			failed++;
			memset(page, 0xff, NVME_PAGE);
		} else {
			memset(page + got, 0, NVME_PAGE - (size_t)got);
		}
	}
	return failed < NVME_SUPER_COPIES ? 0 : status;
}

int nvme_newest_super(int fd, struct nvme_super *ret)
{
	uint8_t pages[NVME_SUPER_COPIES * NVME_PAGE];
	uint32_t copy;
	const int r = read_supers(fd, pages);

	return r ? r : nvme_super_newest(pages, ret, &copy);
}

void nvme_file_close(struct nvme_file *file)
{
	if (file->fd < 0)
		return;
	(void)flock(file->fd, LOCK_UN); /* an io_uring may hold on to the file a little longer */
	(void)close(file->fd);
	file->fd = -1;
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

/* --- a store is made --- */

enum { CHUNK_BYTES = 4 << 20 };

struct making {
	struct nvme_file file;
	uint64_t bytes;
	void (*progress)(void *arg, uint64_t done, uint64_t total);
	void *arg;
	uint8_t *buffer; /* CHUNK_BYTES of zeros */
};

static int write_all(int fd, const uint8_t *buffer, uint64_t bytes, uint64_t offset)
{
	while (bytes > 0) {
		const ssize_t n = pwrite(fd, buffer, bytes, (off_t)offset);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0 || n % NVME_PAGE) /* O_DIRECT: the rest must stay aligned */
			return n < 0 ? -errno : -EIO;
		buffer += n;
		offset += (uint64_t)n;
		bytes -= (uint64_t)n;
	}
	return 0;
}

/* Then no file system has to find room, and no flash a first mapping, when the daemon writes. */
static int prewrite_all(struct making *m)
{
	for (uint64_t at = 0; at < m->bytes;) {
		const uint64_t left = m->bytes - at;
		const uint64_t n = left < CHUNK_BYTES ? left : CHUNK_BYTES;
		const int r = write_all(m->file.fd, m->buffer, n, at);

		if (r)
			return r;
		at += n;
		if (m->progress)
			m->progress(m->arg, at, m->bytes);
	}
	return 0;
}

static int write_supers(struct making *m, uint32_t segment_bytes, uint64_t segments)
{
	struct nvme_super super = { .life = 1,
				    .generation = 1,
				    .segment_bytes = segment_bytes,
				    .segments = (uint32_t)segments };
	int r = getrandom(super.uuid, sizeof(super.uuid), 0) == sizeof(super.uuid) ? 0 : -EIO;

	nvme_super_seal(&super);
	memcpy(m->buffer, &super, sizeof(super));
	for (uint32_t copy = 0; copy < NVME_SUPER_COPIES && !r; copy++)
		r = write_all(m->file.fd, m->buffer, NVME_PAGE, nvme_super_offset(copy));
	if (!r && fdatasync(m->file.fd))
		r = -errno;
	return r;
}

static int make(struct making *m, uint32_t segment_bytes, bool prewrite, char *text, size_t n)
{
	uint64_t segments = 0;
	int r = -EINVAL;

	if (segment_bytes && m->bytes > NVME_DATA_OFFSET) {
		segments = (m->bytes - NVME_DATA_OFFSET) / segment_bytes;
		r = nvme_shape_check(segment_bytes, segments);
	}
	if (r)
		return text_fail(text, n, r,
				 "%" PRIu64 " bytes cannot be a store with segments of %" PRIu32
				 " bytes: a store has 64 KiB, and 4 to 65535 segments of 64 KiB to "
				 "256 MiB",
				 m->bytes, segment_bytes);
	if (prewrite)
		r = prewrite_all(m);
	if (!r)
		r = write_supers(m, segment_bytes, segments);
	return r ? text_fail(text, n, r, "cannot be written: %s", strerror(-r)) : 0;
}

int nvme_make_store(const char *path, uint64_t bytes, uint32_t segment_bytes, bool prewrite,
		    void (*progress)(void *arg, uint64_t done, uint64_t total), void *arg,
		    char *text, size_t n)
{
	struct making m = { .progress = progress, .arg = arg };
	bool made;
	int r = file_open(path, bytes, NVME_FILE_REPLACE, &m.file, text, n);

	if (r)
		return r;
	made = m.file.made;
	m.bytes = (bytes ? bytes : m.file.bytes) / NVME_PAGE * NVME_PAGE;
	m.buffer = aligned_alloc(NVME_PAGE, CHUNK_BYTES);
	if (m.buffer) {
		memset(m.buffer, 0, CHUNK_BYTES);
		r = make(&m, segment_bytes, prewrite, text, n);
	} else {
		r = text_fail(text, n, -ENOMEM, "not enough memory");
	}
	free(m.buffer);
	if (r) {
		file_discard(path, &m.file);
		return r;
	}
	nvme_file_close(&m.file);
	r = made ? nvme_file_settle(path) : 0;
	return r ? text_fail(text, n, r, "its directory cannot be synced: %s", strerror(-r)) : 0;
}

/* --- opened in a thread --- */

enum open_state { ASKED, ANSWERED, LEFT };

enum { TEXT_BYTES = 256, PATH_BYTES = 256, SUPERS_BYTES = NVME_SUPER_COPIES * NVME_PAGE };

struct nvme_opening {
	pthread_mutex_t lock;
	pthread_cond_t answered;
	enum open_state state;
	char path[PATH_BYTES];
	uint64_t bytes;
	enum nvme_file_use use;
	struct nvme_file file;
	uint8_t *supers; /* SUPERS_BYTES; of a disk that comes back */
	int status;
	char text[TEXT_BYTES];
};

static void job_free(struct nvme_opening *job)
{
	(void)pthread_cond_destroy(&job->answered);
	(void)pthread_mutex_destroy(&job->lock);
	free(job->supers);
	free(job);
}

static int do_open(struct nvme_opening *job)
{
	int r = file_open(job->path, job->bytes, job->use, &job->file, job->text,
			  sizeof(job->text));

	if (r || job->use != NVME_FILE_RETURNED)
		return r;
	r = read_supers(job->file.fd, job->supers);
	if (!r)
		return 0;
	nvme_file_close(&job->file);
	return text_fail(job->text, sizeof(job->text), r, "it cannot be read (%s)", strerror(-r));
}

static void *run(void *arg)
{
	struct nvme_opening *job = arg;
	const int r = do_open(job);
	bool left;

	pthread_mutex_lock(&job->lock);
	job->status = r;
	left = job->state == LEFT;
	job->state = ANSWERED;
	pthread_cond_signal(&job->answered);
	pthread_mutex_unlock(&job->lock);
	if (!left)
		return NULL;
	if (!r)
		file_discard(job->path, &job->file);
	job_free(job);
	return NULL;
}

static struct nvme_opening *job_new(const char *path, uint64_t bytes, enum nvme_file_use use)
{
	struct nvme_opening *job = calloc(1, sizeof(*job));

	if (!job)
		return NULL;
	(void)pthread_mutex_init(&job->lock, NULL);
	thread_cond_open(&job->answered);
	(void)snprintf(job->path, sizeof(job->path), "%s", path);
	job->bytes = bytes;
	job->use = use;
	job->file.fd = -1;
	if (use != NVME_FILE_RETURNED)
		return job;
	job->supers = aligned_alloc(NVME_PAGE, SUPERS_BYTES);
	if (job->supers)
		return job;
	job_free(job);
	return NULL;
}

static int begin(const char *path, uint64_t bytes, enum nvme_file_use use,
		 struct nvme_opening **ret)
{
	struct nvme_opening *job = job_new(path, bytes, use);
	int r = job ? thread_start(NULL, 0, run, job) : -ENOMEM;

	if (!r)
		*ret = job;
	else if (job)
		job_free(job);
	return r;
}

/* Takes the results of an opening that was answered, and frees it. */
static int take(struct nvme_opening *job, struct nvme_file *ret, char *text, size_t n)
{
	const int r = text_fail(text, n, job->status, "%s", job->text);

	*ret = job->file;
	job_free(job);
	return r;
}

int nvme_opening_wait(const char *path, uint64_t bytes, uint64_t timeout_ns, struct nvme_file *ret,
		      char *text, size_t n)
{
	const struct timespec until = clock_timespec(clock_ns() + timeout_ns);
	struct nvme_opening *job;
	int r = begin(path, bytes, NVME_FILE_STORE, &job);

	if (r)
		return text_fail(text, n, r, "no memory or thread to open it with");
	pthread_mutex_lock(&job->lock);
	while (job->state == ASKED &&
	       pthread_cond_timedwait(&job->answered, &job->lock, &until) != ETIMEDOUT)
		;
	if (job->state == ASKED) {
		job->state = LEFT;
		pthread_mutex_unlock(&job->lock);
		return text_fail(
			text, n, -ETIMEDOUT,
			"the disk did not answer within %d s: look at it, and restart kvtierd when "
			"it does",
			(int)(timeout_ns / 1000000000u));
	}
	pthread_mutex_unlock(&job->lock);
	return take(job, ret, text, n);
}

int nvme_opening_begin(const char *path, struct nvme_opening **ret)
{
	return begin(path, 0, NVME_FILE_RETURNED, ret);
}

int nvme_opening_ended(struct nvme_opening *o, struct nvme_file *ret, uint8_t *supers, char *text,
		       size_t n)
{
	bool ended;

	pthread_mutex_lock(&o->lock);
	ended = o->state == ANSWERED;
	pthread_mutex_unlock(&o->lock);
	if (!ended)
		return -EINPROGRESS;
	memcpy(supers, o->supers, SUPERS_BYTES);
	return take(o, ret, text, n);
}

void nvme_opening_leave(struct nvme_opening *o)
{
	bool ended;

	if (!o)
		return;
	pthread_mutex_lock(&o->lock);
	ended = o->state == ANSWERED;
	o->state = ended ? ANSWERED : LEFT;
	pthread_mutex_unlock(&o->lock);
	if (!ended)
		return;
	if (!o->status)
		nvme_file_close(&o->file);
	job_free(o);
}
