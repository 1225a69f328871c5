/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_job.c - see cuda_job.h. */
#include "cuda_job.h"

#include "cuda_path_inner.h"

void cuda_job_end(struct cuda_job *j)
{
	struct cuda_path *path = j->path;

	j->job->status = j->status;
	j->job->kept = j->status == 0 && j->at && j->way != CUDA_HIT;
	path->n_jobs--;
	mails_append(&path->ended, &j->mail.mail);
}

void cuda_job_look(struct cuda_job *j)
{
	const bool all = j->next_unit == j->units.plan->n_units;

	if (j->out == 0 && !j->queued && (j->status || all))
		cuda_job_end(j);
}

/* Of typed and opaque bytes nobody said which layer they belong to: with them the block is whole or
 * it is nothing. The release comes after the GPU's own word, an event, that the bytes are there. */
void cuda_job_landed(struct cuda_job *j)
{
	const struct cuda_plan *plan = j->units.plan;
	const uint32_t all = j->job->layout->pages.geometry.layers;
	uint32_t n = 0;

	if (j->landed == plan->n_units)
		n = all;
	else if (plan->plane_units == plan->n_units)
		n = j->landed / (plan->plane_units / all);
	if (n > 0 && j->job->layers)
		__atomic_store_n(j->job->layers, n, __ATOMIC_RELEASE);
}

void cuda_job_queue(struct cuda_job *j, bool again)
{
	struct device_turns *turns = &j->path->turns[j->way];

	j->queued = true;
	if (again)
		device_turns_return(turns, j->job);
	else
		device_turns_add(turns, j->job);
}
