/* SPDX-License-Identifier: Apache-2.0 */
/* clock.h - the clock that deadlines are measured by: CLOCK_MONOTONIC, in nanoseconds, which no
 * administrator can set; and the pause of a thread that spins. Any thread may read the clock; one
 * reading takes some 25 ns. */
#pragma once

#include <stdint.h>
#include <time.h>

static inline uint64_t clock_ns(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline uint64_t ms_to_ns(uint64_t ms)
{
	return ms * 1000000u;
}

/* Between two looks of a thread that spins until something has come or a deadline has. */
static inline void cpu_relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

/* For pthread_cond_timedwait() (thread_cond_open()). */
static inline struct timespec clock_timespec(uint64_t ns)
{
	return (struct timespec){ .tv_sec = (time_t)(ns / 1000000000u),
				  .tv_nsec = (long)(ns % 1000000000u) };
}
