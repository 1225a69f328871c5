/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_job.c - see cuda_job.h. */
#include "cuda_job.h"

#include "cuda_path_inner.h"

void cuda_job_end(struct cuda_job *j)
{
	struct cuda_path *path = j->path;

	j->job->status = j->status;
	j->job->kept = j->status == 0 && j->kept && j->way != CUDA_HIT;
	path->n_jobs--;
	mails_append(&path->ended, &j->mail.mail);
}

void cuda_job_look(struct cuda_job *j)
{
	const bool all = j->next_unit == j->end_unit;

	if (j->out > 0 || j->queued || !(j->status || all))
		return;
	list_remove(&j->waiting); /* failed, while it waited for more layers */
	cuda_job_end(j);
}

/* Of typed and opaque bytes nobody said which layer they belong to: they come last. */
uint32_t cuda_job_layer_unit(const struct cuda_job *j, uint32_t layer)
{
	const struct cuda_plan *plan = j->units.plan;
	const uint32_t layers = j->job->layout->pages.geometry.layers;

	return layer == layers ? plan->n_units : plan->plane_units / layers * layer;
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
