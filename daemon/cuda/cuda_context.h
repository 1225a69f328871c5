/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_context.h - the context of a GPU, with the kernels, the streams and the lanes' memory in it.
 * The GPU's thread.
 */
#pragma once

#include "daemon/cuda/driver/cuda_gpu.h"

/* Makes the context unless it is there: 0, or -ENODEV with text. -EBUSY: it has just failed, and a
 * new one can be made soon. */
int cuda_context_need(struct cuda_gpu *gpu, char *text, size_t n);
/* Closes the context, when no job is in flight and the pin thread is off. `lost`: by force, since
 * no call works in it any more. */
void cuda_context_close(struct cuda_gpu *gpu, bool lost);
