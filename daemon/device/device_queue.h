/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_queue.h - keeps the jobs that wait for a worker, by client, and lets clients take turns.
 * It has no threads and no locks: the device guards it. No memory is allocated after it was opened.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "device.h"

/* A client with waiting jobs, which stands in the ring as long as it has some. */
struct device_jobs {
	struct device_jobs *next;
	uint32_t client;
	struct device_job *first, **end;
};

struct device_queue {
	struct device_jobs *all, *unused;
	struct device_jobs *first, **end; /* who is next, and after the last */
	uint32_t n_clients, n_jobs;
};

/* depth: jobs at most. 0 or -ENOMEM */
int device_queue_open(struct device_queue *queue, uint32_t depth);
void device_queue_close(struct device_queue *queue); /* the queue may be zeroed */

/* puts the job behind the others of its client */
void device_queue_add(struct device_queue *queue, struct device_job *job);
/* Puts a job whose quantum is over before the others of its client, so that the job that was begun
 * first ends first. The client stands last in the ring then. */
void device_queue_return(struct device_queue *queue, struct device_job *job);
/* Takes the first job of the client that is next, and that client stands last then. NULL: no job
 * waits. */
struct device_job *device_queue_take(struct device_queue *queue);
/* whether the client has jobs that wait */
bool device_queue_wait(const struct device_queue *queue, uint32_t client);
