/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_context.h - the context of a GPU, with the kernels, the streams and the lanes' memory in it.
 * The GPU's thread.
 */
#ifndef KVTIER_CUDA_CONTEXT_H
#define KVTIER_CUDA_CONTEXT_H

#include "cuda_gpu.h"

/* The context is there: 0; else it is made, or -ENODEV with text. -EBUSY: it has just failed, and a
 * new one can be made soon. */
int cuda_context_need(struct cuda_gpu *gpu, char *text, size_t n);
/* Closes it: nothing is in flight, and the pin thread is off. `lost`: by force, since no call works
 * in it any more. */
void cuda_context_close(struct cuda_gpu *gpu, bool lost);

#endif
