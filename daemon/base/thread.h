/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thread.h - how a thread of the daemon begins: with all signals blocked, since these are the core
 * thread's. Only SIGBUS comes to the thread whose access caused it, in case a handler is there.
 */
#ifndef KVTIER_THREAD_H
#define KVTIER_THREAD_H

#include <pthread.h>
#include <stddef.h>

/* ret NULL: the thread is detached, nobody joins it. stack_bytes 0: the default. 0 or -errno. */
int thread_start(pthread_t *ret, size_t stack_bytes, void *(*run)(void *arg), void *arg);

#endif
