/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_layout.c - see cuda_layout.h. */
#include "cuda_layout.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_region.h"
#include "daemon/base/container_of.h"
#include "kernels/cuda/plan.h"

static uint32_t generation_of(const struct device_layout *layout)
{
	uint32_t ret = 0;

	for (uint32_t i = 0; i < layout->n_regions; i++) {
		const struct cuda_region *region = layout->regions[i].own;

		if (i > 0 && region->generation != ret)
			return 0;
		ret = region->generation;
	}
	return ret;
}

int cuda_layout_make(const struct device_layout *layout, struct cuda_layout **ret)
{
	struct cuda_layout *l = calloc(1, sizeof(*l));
	int r = -ENOMEM;

	if (l)
		l->pieces = calloc(layout->pages.n_pieces + 1u, sizeof(*l->pieces));
	if (l && l->pieces)
		r = cuda_plan_make(&layout->pages, &l->plan, l->pieces);
	if (r) {
		if (l)
			free(l->pieces);
		free(l);
		return -ENOMEM;
	}
	l->generation = generation_of(layout);
	l->image_stride = layout->image_stride;
	if (l->image_stride > 0)
		l->images = (CUdeviceptr)(uintptr_t)layout->regions[0].base;
	*ret = l;
	return 0;
}

static void forget(struct cuda_gpu *gpu, struct cuda_mail *mail)
{
	struct cuda_layout *l = container_of(mail, struct cuda_layout, mail);

	if (l->on_gpu && l->generation == gpu->generation && gpu->state == CUDA_UP)
		(void)CUDA_CALL(gpu, cuMemFree, NULL, 0, l->on_gpu);
	free(l->pieces);
	free(l);
}

void cuda_layout_forget(struct cuda_gpu *gpu, struct cuda_layout *layout)
{
	layout->mail.run = forget;
	cuda_gpu_post(gpu, &layout->mail);
}

/* The thread waits for a stream in which nothing else is. */
static int bring(struct cuda_gpu *gpu, struct cuda_layout *l)
{
	const size_t bytes = l->plan.n_pieces * sizeof(*l->pieces);
	char why[sizeof(gpu->why)];
	CUdeviceptr at = 0;
	int r = CUDA_CALL(gpu, cuMemAlloc, why, sizeof(why), &at, bytes);

	if (r == 0) {
		r = CUDA_CALL(gpu, cuMemcpyHtoDAsync, why, sizeof(why), at, l->pieces, bytes,
			      gpu->in_context.aside);
		if (r && gpu->state == CUDA_UP)
			(void)CUDA_CALL(gpu, cuMemFree, NULL, 0, at);
	}
	if (r == 0)
		r = cuda_wait(gpu, gpu->in_context.aside, why, sizeof(why));
	if (r)
		memcpy(gpu->why, why, sizeof(gpu->why));
	else
		l->on_gpu = l->plan.pieces = at;
	return r;
}

int cuda_layout_need(struct cuda_gpu *gpu, struct cuda_layout *l)
{
	if (gpu->state != CUDA_UP || l->generation != gpu->generation)
		return -EIO;
	return l->on_gpu || l->images ? 0 : bring(gpu, l);
}
