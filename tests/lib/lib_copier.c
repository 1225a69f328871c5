/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>

#include "lib_copier.h"

int copier_submit(void *arg, struct device_job *job)
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

void copier_end(struct copier *c, uint32_t which, int status)
{
	struct device_job *job = c->jobs[which];

	for (uint32_t i = 0; !status && i < job->n_copies; i++)
		memcpy(job->copies[i].to, job->copies[i].from, job->copies[i].bytes);
	c->jobs[which] = c->jobs[--c->n];
	job->status = status;
	job->done(job);
}

void copier_run(struct copier *c)
{
	while (c->n)
		copier_end(c, 0, 0);
}
