/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_fetch.c - see cuda_fetch.h. */
#include "cuda_fetch.h"

#include <errno.h>

#include "cuda_path_inner.h"
#include "cuda_tier.h"
#include "daemon/base/container_of.h"

enum { PIECE_BYTES = 256 << 10 }; /* some 50 us */

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
	const uint32_t bytes = left < PIECE_BYTES ? left : PIECE_BYTES;
	int r;

	if (!cuda_tier_has(gpu, j->job->generation, (uintptr_t)j->job->image, j->job->image_bytes))
		return -ESTALE;
	r = CUDA_CALL(gpu, cuMemcpyDtoHAsync, NULL, 0, copy->to + j->copied,
		      (uintptr_t)j->job->image + j->copied, bytes, gpu->in_context.aside);
	if (r == 0)
		r = CUDA_CALL(gpu, cuStreamSynchronize, NULL, 0, gpu->in_context.aside);
	j->copied += bytes;
	return r ? -EIO : 0;
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
