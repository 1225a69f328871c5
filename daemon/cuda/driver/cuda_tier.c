/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_tier.c - see cuda_tier.h. */
#include "cuda_tier.h"

#include <stdio.h>

#include "base/log.h"

enum { AUTO_DIVISOR = 4 }; /* of the free memory, one part in so many */

/* Whole slabs; 0: none. */
static uint64_t bytes_wanted(struct cuda_gpu *gpu)
{
	uint64_t bytes = gpu->conf.tier_bytes;
	size_t some = 0, all = 0;

	if (bytes == CUDA_TIER_AUTO)
		bytes = gpu->api->cuMemGetInfo(&some, &all) == CUDA_SUCCESS ? some / AUTO_DIVISOR :
									      0;
	return bytes / gpu->conf.slab_bytes * gpu->conf.slab_bytes;
}

static void free_memory(struct cuda_gpu *gpu)
{
	struct cuda_context *c = &gpu->in_context;

	if (c->tier)
		(void)CUDA_DO(gpu, cuMemFree, c->tier);
	c->tier = 0;
}

static int refused(struct cuda_gpu *gpu, uint64_t bytes, int error)
{
	if (gpu->state == CUDA_FAILING)
		return error;
	snprintf(gpu->tier_why, sizeof(gpu->tier_why),
		 "[gpu] bytes: %llu MiB cannot be had, no image is kept on this GPU: %.60s",
		 (unsigned long long)(bytes >> 20), gpu->words);
	free_memory(gpu);
	log_warning("gpu_memory", "%s: %s", gpu->found->name, gpu->tier_why);
	return gpu->state == CUDA_FAILING ? error : 0;
}

int cuda_tier_open(struct cuda_gpu *gpu, uint32_t generation)
{
	CUdeviceptr *at = &gpu->in_context.tier;
	const uint64_t bytes = bytes_wanted(gpu);
	int r;

	gpu->tier = (struct device_memory){ 0 };
	gpu->tier_why[0] = '\0';
	if (gpu->conf.tier_bytes == 0)
		return 0;
	if (bytes == 0) {
		snprintf(
			gpu->tier_why, sizeof(gpu->tier_why),
			"[gpu] bytes: its share is less than [host] slab_bytes = %llu, no image is "
			"kept on this GPU",
			(unsigned long long)gpu->conf.slab_bytes);
		return 0;
	}
	r = CUDA_DO(gpu, cuMemAlloc, at, bytes + IMAGE_ALIGN);
	if (r == 0)
		r = cuda_zero(gpu, *at, bytes + IMAGE_ALIGN, NULL, 0);
	if (r)
		return refused(gpu, bytes, r);
	gpu->tier = (struct device_memory){
		.base = (*at + IMAGE_ALIGN - 1) / IMAGE_ALIGN * IMAGE_ALIGN,
		.bytes = bytes,
		.generation = generation,
	};
	return 0;
}

void cuda_tier_close(struct cuda_gpu *gpu, bool lost)
{
	const struct device_memory tier = gpu->tier;

	gpu->tier = (struct device_memory){ 0 };
	if (lost)
		return;
	if (tier.generation)
		(void)cuda_zero(gpu, tier.base, tier.bytes, NULL, 0); /* no job uses it any more */
	if (gpu->state != CUDA_FAILING) /* else it is lost with its context */
		free_memory(gpu);
}

void cuda_tier_tell(struct cuda_gpu *gpu)
{
	bool changed;

	(void)pthread_mutex_lock(&gpu->lock);
	changed = gpu->view.tier.generation != gpu->tier.generation;
	gpu->view.tier = gpu->tier;
	(void)pthread_mutex_unlock(&gpu->lock);
	if (changed)
		cuda_gpu_tell(gpu);
}

bool cuda_tier_has(const struct cuda_gpu *gpu, uint32_t generation, uint64_t address,
		   uint64_t bytes)
{
	const struct device_memory *m = &gpu->tier;

	return m->generation && generation == m->generation && address >= m->base &&
	       bytes <= m->bytes && address - m->base <= m->bytes - bytes;
}
