/* SPDX-License-Identifier: Apache-2.0 */
/* host_codec.c - kernels/cuda/codec.cu, compiled for the host, and the list of its kernels. */
#include <string.h>

#include "host_cuda.h"

#include "kernels/cuda/codec.h"
#include "host_kernel.h"

#define KERNELS(X) X(encode) X(decode) X(pack_lengths) X(pack_encode) X(pack_decode)

#define DECLARE(kernel) void kvtier_##kernel(struct cuda_plan plan, struct cuda_tasks tasks);
KERNELS(DECLARE)

#include "kernels/cuda/codec.cu"

#define RUN(kernel)                                                     \
	static void run_##kernel(void *const *params)                   \
	{                                                               \
		kvtier_##kernel(*(const struct cuda_plan *)params[0],   \
				*(const struct cuda_tasks *)params[1]); \
	}
KERNELS(RUN)

#define ENTRY(kernel)                                                             \
	{ .name = "kvtier_" #kernel,                                              \
	  .thread = run_##kernel,                                                 \
	  .n_params = 2,                                                          \
	  .param_bytes = { sizeof(struct cuda_plan), sizeof(struct cuda_tasks) }, \
	  .max_threads = CUDA_THREADS },

const struct host_kernel *host_kernel_find(const char *name)
{
	static const struct host_kernel all[] = { KERNELS(ENTRY) };

	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
		if (!strcmp(name, all[i].name))
			return &all[i];
	return NULL;
}
