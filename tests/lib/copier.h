/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copier.h - workers for an emptier (daemon/store/emptier.h) whose jobs end when the test says so;
 * and what they were given, in bytes.
 */
#ifndef KVTIER_TESTS_COPIER_H
#define KVTIER_TESTS_COPIER_H

#include <errno.h>
#include <string.h>

#include "daemon/device/device.h"
#include "daemon/store/emptier.h"

struct copier {
	struct device_job *jobs[EMPTIER_JOBS];
	uint32_t n;
	bool full; /* takes no job */
	uint64_t jobs_total, bytes_total;
	uint64_t most_bytes; /* of one job */
	uint32_t most_copies, most_jobs;
};

static inline int copier_submit(void *arg, struct device_job *job)
{
	struct copier *c = arg;
	uint64_t bytes = 0;

	if (c->full || c->n == EMPTIER_JOBS)
		return -EAGAIN;
	for (uint32_t i = 0; i < job->n_copies; i++)
		bytes += job->copies[i].bytes;
	c->jobs[c->n++] = job;
	c->jobs_total++;
	c->bytes_total += bytes;
	c->most_bytes = bytes > c->most_bytes ? bytes : c->most_bytes;
	c->most_copies = job->n_copies > c->most_copies ? job->n_copies : c->most_copies;
	c->most_jobs = c->n > c->most_jobs ? c->n : c->most_jobs;
	return 0;
}

/* One job ends, copied or with an error. */
static inline void copier_end(struct copier *c, uint32_t which, int status)
{
	struct device_job *job = c->jobs[which];

	for (uint32_t i = 0; !status && i < job->n_copies; i++)
		memcpy(job->copies[i].to, job->copies[i].from, job->copies[i].bytes);
	c->jobs[which] = c->jobs[--c->n];
	job->status = status;
	job->done(job);
}

/* All of them, and those that they bring about. */
static inline void copier_run(struct copier *c)
{
	while (c->n)
		copier_end(c, 0, 0);
}

#endif
