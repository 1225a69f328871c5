/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_fetch.c - see cuda_fetch.h. */
#include "cuda_fetch.h"

#include <errno.h>
#include <string.h>

#include "cuda_path_inner.h"
#include "cuda_tier.h"
#include "daemon/base/container_of.h"

void cuda_fetch_take(struct cuda_gpu *gpu, struct cuda_mail *mail)
{
	struct cuda_job *j = container_of(mail, struct cuda_job, mail);

	(void)gpu;
	j->path->n_jobs++;
	list_add(&j->path->fetches, &j->waiting);
}

static void end(struct cuda_job *j, int status)
{
	list_remove(&j->waiting);
	j->status = status;
	cuda_job_end(j);
}

static int copy_piece(struct cuda_job *j)
{
	struct cuda_gpu *gpu = j->path->gpu;
	const struct device_copy *copy = j->job->copies;
	const uint32_t left = copy->bytes - j->copied;
	const uint32_t bytes = left < CUDA_FETCH_BYTES ? left : CUDA_FETCH_BYTES;
	const struct cuda_context *c = &gpu->in_context;
	int r;

	if (!cuda_tier_has(gpu, j->job->generation, (uintptr_t)j->job->image, j->job->image_bytes))
		return -ESTALE;
	r = CUDA_CALL(gpu, cuMemcpyDtoHAsync, NULL, 0, c->fetched,
		      (uintptr_t)j->job->image + j->copied, bytes, c->aside);
	if (r == 0)
		r = cuda_wait(gpu, c->aside, NULL, 0);
	if (r)
		return -EIO;
	memcpy(copy->to + j->copied, c->fetched, bytes);
	j->copied += bytes;
	return 0;
}

bool cuda_fetch_turn(struct cuda_path *path)
{
	struct cuda_job *j;
	int r;

	if (list_empty(&path->fetches))
		return false;
	j = container_of(path->fetches.next, struct cuda_job, waiting);
	r = copy_piece(j);
	if (r || j->copied == j->job->copies->bytes)
		end(j, r);
	return true;
}
