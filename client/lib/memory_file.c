/* SPDX-License-Identifier: Apache-2.0 */
/* memory_file.c - see memory_file.h. */
#include "memory_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "error.h"

/* Beyond the limit of files the kernel does not only refuse: it ends the process, by SIGXFSZ. */
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
