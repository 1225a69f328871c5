/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reserve.h - memory for tables that may grow large: reserved as a whole when they are opened, and
 * taken from the machine page by page as it is touched.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>

/* Zeroed memory; NULL: there is none. */
static inline void *reserve(uint64_t bytes)
{
	const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
	void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);

	return base == MAP_FAILED ? NULL : base;
}

static inline void unreserve(void *base, uint64_t bytes)
{
	if (base)
		(void)munmap(base, bytes);
}
