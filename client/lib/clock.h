/* SPDX-License-Identifier: Apache-2.0 */
/* clock.h - the clock of deadlines. */
#ifndef KVTIER_LIB_CLOCK_H
#define KVTIER_LIB_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t client_now(void) /* CLOCK_MONOTONIC, ns */
{
	struct timespec t;

	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline uint64_t ms_to_ns(uint64_t ms)
{
	return ms * 1000000u;
}

#endif
