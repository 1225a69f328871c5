/* SPDX-License-Identifier: Apache-2.0 */
/* lib_refuse_maps.c - mmap() that can be refused, and a count of mappings: see lib_refuse.h. */
#include <sys/mman.h>

#include "lib_refuse.h"

int mappings_open;

REAL(void *, mmap, (void *at, size_t n, int protection, int flags, int fd, off_t offset))
{
	void *ret = refused(REFUSE_MMAP) ? MAP_FAILED :
					   __real_mmap(at, n, protection, flags, fd, offset);

	mappings_open += ret != MAP_FAILED;
	return ret;
}

REAL(int, munmap, (void *at, size_t n))
{
	mappings_open--;
	return __real_munmap(at, n);
}
