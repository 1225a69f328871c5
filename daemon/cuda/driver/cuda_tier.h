/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_tier.h - a GPU's memory for images, which is made and freed with the context. The GPU's
 * thread.
 *
 * The memory is taken once for each context, when the first region comes, out of what the engine
 * has left free by then. It does not grow. If a GPU does not give the memory, it is served without
 * it.
 */
#pragma once

#include "cuda_gpu.h"

/* Takes the memory in the context that is being made, which will have this generation. gpu->tier
 * then describes it, all zeroes; or its generation is 0, and gpu->tier_why says why. 0, or -errno
 * if the context is lost. */
int cuda_tier_open(struct cuda_gpu *gpu, uint32_t generation);
/* Zeroes the memory and gives it back to the driver, when no job is in flight. lost: there is no
 * memory to give back. */
void cuda_tier_close(struct cuda_gpu *gpu, bool lost);
/* Tells the core of gpu->tier if it has changed. */
void cuda_tier_tell(struct cuda_gpu *gpu);
/* Whether these bytes lie in the memory that the GPU has now. */
bool cuda_tier_has(const struct cuda_gpu *gpu, uint32_t generation, uint64_t address,
		   uint64_t bytes);
