/* SPDX-License-Identifier: Apache-2.0 */
/*
 * helper.h - threads for calls that may block for as long as a client likes: closing a descriptor
 * that came from outside (a TCP socket lingers, a FUSE or NFS file asks its server), receiving it,
 * unmapping gigabytes.
 *
 *	core: helper_start --queue--> helper thread: run --list, eventfd--> core: done
 *
 * A job that blocks holds one thread and its owner, nobody else: there may be as many threads as
 * there are jobs at once. They are made when needed and end when idle. The owner has a bounded
 * number of jobs; the queue is a list of them, so starting one cannot fail. If no thread can be
 * made, jobs wait for a thread that is there; the first is made at helpers_open().
 */
#ifndef KVTIER_HELPER_H
#define KVTIER_HELPER_H

#include "workers.h"

struct loop;
struct helpers;

/* Embedded in its owner; lent from helper_start() until `done` begins. */
struct helper_job {
	struct work work;                    /* helper.c's */
	void (*run)(struct helper_job *job); /* on a helper thread */
	/* on the core thread, from the loop; may start it again */
	void (*done)(struct helper_job *job);
};

int helpers_open(struct loop *loop, uint32_t max_threads, struct helpers **ret);
void helpers_close(struct helpers *helpers); /* no job under way; NULL is fine */
void helper_start(struct helpers *helpers, struct helper_job *job);
uint32_t helpers_busy(const struct helpers *helpers); /* jobs lent */

#endif
