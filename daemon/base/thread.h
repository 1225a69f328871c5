/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thread.h - how a thread of the daemon begins: with all signals blocked, since these are the core
 * thread's. Only SIGBUS comes to the thread whose access caused it, in case a handler is there. And
 * how a thread is waited for until a deadline: by CLOCK_MONOTONIC. The wall clock may be set
 * meanwhile, and a wait by it would then end at once, or hours later.
 */
#ifndef KVTIER_THREAD_H
#define KVTIER_THREAD_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

/* ret NULL: the thread is detached, nobody joins it. stack_bytes 0: the default. 0 or -errno. */
int thread_start(pthread_t *ret, size_t stack_bytes, void *(*run)(void *arg), void *arg);

/* 0: the thread has ended, and is joined. -ETIMEDOUT: it goes on. */
int thread_join_within(pthread_t thread, uint64_t ns);

/* The deadline of pthread_cond_timedwait() on it is one of CLOCK_MONOTONIC. */
void thread_cond_open(pthread_cond_t *ret);

#endif
