/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shared_memory.c - memory for pages that the daemon maps without a copy, and that can be taken
 * back.
 *
 * It is taken back from a daemon that stands still and may yet write into it: a fresh memfd with
 * the same contents is put under the same addresses, and the late writer keeps the old memfd to
 * itself.
 */
#include "shared_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/kvtier.h"
#include "last_error.h"
#include "lent.h"
#include "process.h"

/* The kernel does not merely refuse a file beyond the limit. It ends the process by SIGXFSZ. */
static int limit_check(const char *name, uint64_t bytes)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_FSIZE, &limit) || limit.rlim_cur == RLIM_INFINITY ||
	    bytes <= limit.rlim_cur)
		return 0;
	return error_set(-EFBIG,
			 "%s: a memory file of %llu bytes is larger than the files that this "
			 "process may make, of %llu (RLIMIT_FSIZE): raise ulimit -f, LimitFSIZE=",
			 name, (unsigned long long)bytes, (unsigned long long)limit.rlim_cur);
}

int memory_file_make(const char *name, uint64_t bytes, int seals, int *ret)
{
	int rc = limit_check(name, bytes), fd;

	if (rc)
		return rc;
	fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd >= 0 && !ftruncate(fd, (off_t)bytes) && !fcntl(fd, F_ADD_SEALS, seals)) {
		*ret = fd;
		return 0;
	}
	rc = error_set(-errno, "%s: cannot make a memory file of %llu bytes: %s", name,
		       (unsigned long long)bytes, strerrordesc_np(errno));
	if (fd >= 0)
		(void)close(fd);
	return rc;
}

enum { NAME_BYTES = 64, COPY_BYTES = 1 << 30 };

struct kvtier_memory {
	uint8_t *base;
	size_t length;
	int fd;
	uint64_t process; /* that made it */
	char name[NAME_BYTES];
};

int kvtier_memory_alloc(size_t length, const char *name, struct kvtier_memory **ret)
{
	const size_t page = (size_t)sysconf(_SC_PAGESIZE),
		     whole = (length + page - 1) & ~(page - 1);
	struct kvtier_memory *memory;
	int rc;

	if (!ret || !length || whole < length)
		return error_set(-EINVAL,
				 "kvtier_memory_alloc: ret must not be NULL, and length not 0");
	memory = calloc(1, sizeof(*memory));
	if (!memory)
		return error_set(-ENOMEM, "out of memory");
	memory->process = process_begin();
	memory->length = whole;
	(void)strncpy(memory->name, name && *name ? name : "kvtier-pages",
		      sizeof(memory->name) - 1);
	rc = memory_file_make(memory->name, whole, F_SEAL_SHRINK | F_SEAL_GROW, &memory->fd);
	if (rc) {
		free(memory);
		return rc;
	}
	memory->base = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_SHARED, memory->fd, 0);
	if (memory->base == MAP_FAILED) {
		rc = error_set(-errno, "cannot map %zu bytes: %s", whole, strerrordesc_np(errno));
		(void)close(memory->fd);
		free(memory);
		return rc;
	}
	*ret = memory;
	return 0;
}

void *kvtier_memory_address(const struct kvtier_memory *memory)
{
	return memory ? memory->base : NULL;
}

int kvtier_memory_region(const struct kvtier_memory *memory, struct kvtier_region *ret)
{
	struct kvtier_region region = { .memory = KVTIER_MEMFD };

	if (!memory || !ret || ret->size < sizeof(ret->size))
		return error_set(
			-EINVAL,
			"kvtier_memory_region: memory and ret must not be NULL, ret.size must be "
			"%zu",
			sizeof(region));
	region.size = ret->size < sizeof(region) ? ret->size : (uint32_t)sizeof(region);
	region.fd = memory->fd;
	region.length = memory->length;
	memcpy(ret, &region, region.size);
	return 0;
}

/* Copies the bytes that the old file has of [at, end) into the new one. */
static int copy_run(const struct kvtier_memory *memory, int to, off_t at, off_t end)
{
	while (at < end) {
		const size_t n = end - at < COPY_BYTES ? (size_t)(end - at) : COPY_BYTES;
		const ssize_t done = pwrite(to, memory->base + at, n, at);

		if (done <= 0 && errno != EINTR)
			return error_set(done ? -errno : -EIO,
					 "kvtier_memory_take_back: no memory for a copy: %s",
					 strerrordesc_np(errno));
		at += done > 0 ? done : 0;
	}
	return 0;
}

/* Copies only pages that were ever written. */
static int copy_data(const struct kvtier_memory *memory, int to)
{
	off_t at = 0;
	int rc = 0;

	while (!rc && (at = lseek(memory->fd, at, SEEK_DATA)) >= 0) {
		off_t end = lseek(memory->fd, at, SEEK_HOLE);

		if (end < 0)
			end = (off_t)memory->length;
		rc = copy_run(memory, to, at, end);
		at = end;
	}
	if (!rc && at < 0 && errno != ENXIO)
		rc = error_set(-errno, "kvtier_memory_take_back: %s", strerrordesc_np(errno));
	return rc;
}

int kvtier_memory_take_back(struct kvtier_memory *memory)
{
	struct stat st;
	int fd, rc;

	if (!memory)
		return error_set(-EINVAL, "memory is NULL");
	if (!process_ours(memory->process))
		return error_set(
			-EPERM,
			"this memory was made by another process: after fork() only the parent may "
			"take it back");
	if (fstat(memory->fd, &st))
		return error_set(-errno, "kvtier_memory_take_back: %s", strerrordesc_np(errno));
	if (lent_memory_open(st.st_dev, st.st_ino))
		return error_set(
			-EBUSY,
			"a space that uses this memory is open: close it first, then open it again "
			"with the region that kvtier_memory_region() gives then");
	rc = memory_file_make(memory->name, memory->length, F_SEAL_SHRINK | F_SEAL_GROW, &fd);
	if (rc)
		return rc;
	rc = copy_data(memory, fd);
	if (!rc && mmap(memory->base, memory->length, PROT_READ | PROT_WRITE,
			MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
		rc = error_set(-errno, "kvtier_memory_take_back: cannot map the copy: %s",
			       strerrordesc_np(errno));
	if (rc) {
		(void)close(fd);
		return rc;
	}
	(void)close(memory->fd);
	memory->fd = fd;
	lent_forget(st.st_dev, st.st_ino);
	return 0;
}

void kvtier_memory_free(struct kvtier_memory *memory)
{
	if (!memory)
		return;
	(void)munmap(memory->base, memory->length);
	(void)close(memory->fd);
	free(memory);
}
