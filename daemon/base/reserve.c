/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reserve.c - see reserve.h.
 */
#include "reserve.h"

#include <stddef.h>
#include <sys/mman.h>

void *reserve(uint64_t bytes)
{
	const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
	void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);

	return base == MAP_FAILED ? NULL : base;
}

void unreserve(void *base, uint64_t bytes)
{
	if (base)
		(void)munmap(base, bytes);
}
