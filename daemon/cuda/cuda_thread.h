/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_thread.h - a GPU with its thread, from start to end of kvtierd. Core thread.
 */
#ifndef KVTIER_CUDA_THREAD_H
#define KVTIER_CUDA_THREAD_H

#include "cuda_gpu.h"

/* There is no thread and no context before the first request. 0 or -errno. */
int cuda_thread_open(const struct cuda_driver *driver, const struct cuda_found *found,
		     const struct cuda_gpu_conf *conf, struct cuda_gpu **ret);
/* No job and no request under way. A thread that does not end is left behind, with its GPU. NULL is
 * fine. */
void cuda_thread_close(struct cuda_gpu *gpu);

#endif
