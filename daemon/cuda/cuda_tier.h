/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_tier.h - memory of a GPU for images: it comes and goes with the context. The GPU's thread.
 *
 * It is taken once for each context, when the first region comes. The memory that the engine leaves
 * free by then bounds it, and it does not grow. A GPU that does not give it is served without.
 */
#ifndef KVTIER_CUDA_TIER_H
#define KVTIER_CUDA_TIER_H

#include "cuda_gpu.h"

/* In the context that is being made, whose generation will be this: gpu->tier, all zeroes, or none;
 * gpu->tier_why says why not. 0; -errno with text: the context is lost. */
int cuda_tier_open(struct cuda_gpu *gpu, uint32_t generation, char *text, size_t n);
/* Nothing is in flight. Zeroes before the memory goes back to the driver; lost: there is nothing to
 * give back. */
void cuda_tier_close(struct cuda_gpu *gpu, bool lost);
/* Tells the core of gpu->tier, if it has changed. */
void cuda_tier_tell(struct cuda_gpu *gpu);
/* These bytes lie in the memory that the GPU has now. */
bool cuda_tier_has(const struct cuda_gpu *gpu, uint32_t generation, uint64_t address,
		   uint64_t bytes);

#endif
