/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_queue.c - see device_queue.h.
 *
 *	ring of clients:  first -> A -> B -> C
 *	their jobs, in order:      A: a1 a2 a3, B: b1, C: c1 c2
 *	take: a1, and the ring is  first -> B -> C -> A
 *
 * There are at most as many clients in it as jobs, so looking one up is a short walk.
 */
#include "device_queue.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

int device_queue_open(struct device_queue *queue, uint32_t depth)
{
	*queue = (struct device_queue){ .all = calloc(depth, sizeof(*queue->all)) };
	if (!queue->all)
		return -ENOMEM;
	queue->end = &queue->first;
	for (uint32_t i = depth; i-- > 0;) {
		queue->all[i].next = queue->unused;
		queue->unused = &queue->all[i];
	}
	return 0;
}

void device_queue_close(struct device_queue *queue)
{
	free(queue->all);
	*queue = (struct device_queue){ 0 };
}

static void stand_last(struct device_queue *queue, struct device_jobs *jobs)
{
	jobs->next = NULL;
	*queue->end = jobs;
	queue->end = &jobs->next;
}

static struct device_jobs *find(const struct device_queue *queue, uint32_t client)
{
	struct device_jobs *jobs = queue->first;

	while (jobs && jobs->client != client)
		jobs = jobs->next;
	return jobs;
}

/* The client's place in the ring; a new one at its end. */
static struct device_jobs *jobs_of(struct device_queue *queue, uint32_t client)
{
	struct device_jobs *jobs = find(queue, client);

	if (jobs)
		return jobs;
	jobs = queue->unused;
	assert(jobs); /* no more clients than jobs */
	queue->unused = jobs->next;
	jobs->client = client;
	jobs->first = NULL;
	jobs->end = &jobs->first;
	queue->n_clients++;
	stand_last(queue, jobs);
	return jobs;
}

void device_queue_add(struct device_queue *queue, struct device_job *job)
{
	struct device_jobs *jobs = jobs_of(queue, job->client);

	job->next = NULL;
	*jobs->end = job;
	jobs->end = &job->next;
	queue->n_jobs++;
}

void device_queue_return(struct device_queue *queue, struct device_job *job)
{
	struct device_jobs *jobs = jobs_of(queue, job->client), **link = &queue->first;

	while (*link != jobs)
		link = &(*link)->next;
	*link = jobs->next;
	if (!jobs->next)
		queue->end = link;
	stand_last(queue, jobs);
	job->next = jobs->first;
	if (!jobs->first)
		jobs->end = &job->next;
	jobs->first = job;
	queue->n_jobs++;
}

struct device_job *device_queue_take(struct device_queue *queue)
{
	struct device_jobs *jobs = queue->first;
	struct device_job *job;

	if (!jobs)
		return NULL;
	queue->first = jobs->next;
	if (!queue->first)
		queue->end = &queue->first;
	job = jobs->first;
	jobs->first = job->next;
	queue->n_jobs--;
	if (jobs->first) {
		stand_last(queue, jobs);
	} else {
		jobs->next = queue->unused;
		queue->unused = jobs;
		queue->n_clients--;
	}
	return job;
}

bool device_queue_wait(const struct device_queue *queue, uint32_t client)
{
	return find(queue, client) != NULL;
}
