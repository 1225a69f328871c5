/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thread.h - starts the daemon's threads, and waits for them. A thread starts with all signals
 * blocked, because the core thread handles them; only SIGBUS is left to the thread that causes it.
 * A wait until a deadline goes by CLOCK_MONOTONIC: somebody may set the wall clock meanwhile, and a
 * wait by that clock would end at once or hours later.
 */
#pragma once

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

/* ret NULL: the thread is detached, and is not joined. stack_bytes 0: the default. 0 or -errno. */
int thread_start(pthread_t *ret, size_t stack_bytes, void *(*run)(void *arg), void *arg);

/* 0: the thread has ended and is joined. -ETIMEDOUT: it still runs. */
int thread_join_within(pthread_t thread, uint64_t ns);

/* CPUs that the calling thread may run on, 1 at least. */
uint32_t thread_cpus(void);

/* Makes a condition whose pthread_cond_timedwait() takes a deadline by CLOCK_MONOTONIC. */
void thread_cond_open(pthread_cond_t *ret);
