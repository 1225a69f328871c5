/* SPDX-License-Identifier: Apache-2.0 */
/* host_codec.c - kernels/cuda/codec.cu, compiled for the host, and the list of its kernels. */
#include <string.h>

#include "host_cuda.h"

#include "kernels/cuda/codec.h"
#include "host_kernel.h"

void kvtier_encode(struct cuda_plan plan, struct cuda_tasks tasks);
void kvtier_decode(struct cuda_plan plan, struct cuda_tasks tasks);

#include "kernels/cuda/codec.cu"

static void encode(void *const *params)
{
	kvtier_encode(*(const struct cuda_plan *)params[0], *(const struct cuda_tasks *)params[1]);
}

static void decode(void *const *params)
{
	kvtier_decode(*(const struct cuda_plan *)params[0], *(const struct cuda_tasks *)params[1]);
}

#define CODEC_PARAMS                                                                           \
	.n_params = 2, .param_bytes = { sizeof(struct cuda_plan), sizeof(struct cuda_tasks) }, \
	.max_threads = CUDA_THREADS

const struct host_kernel *host_kernel_find(const char *name)
{
	static const struct host_kernel all[] = {
		{ .name = "kvtier_encode", .thread = encode, CODEC_PARAMS },
		{ .name = "kvtier_decode", .thread = decode, CODEC_PARAMS },
	};

	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
		if (!strcmp(name, all[i].name))
			return &all[i];
	return NULL;
}
