/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_kernels.h - chooses and loads the kernels that are built into kvtierd.
 */
#pragma once

#include <errno.h>
#include <stdio.h>

#include "client/abi/cuda_api.h"
#include "kernels/cuda/binaries.h"

struct cuda_kernels_for {
	int driver;     /* 1000 * major + 10 * minor */
	int capability; /* 10 * major + minor */
};

static inline CUresult cuda_kernels_ask(const struct cuda_api *api, CUdevice device,
					struct cuda_kernels_for *ret)
{
	int major = 0, minor = 0;
	CUresult result = api->cuDriverGetVersion(&ret->driver);

	if (result == CUDA_SUCCESS)
		result = api->cuDeviceGetAttribute(&major,
						   CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
						   device);
	if (result == CUDA_SUCCESS)
		result = api->cuDeviceGetAttribute(&minor,
						   CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
						   device);
	ret->capability = 10 * major + minor;
	return result;
}

/* Whether this GPU can run the kernels with this driver: 0, or -ENOEXEC with a sentence. */
static inline int cuda_kernels_check(struct cuda_kernels_for gpu, char *text, size_t n)
{
	const int least = cuda_binaries_driver(cuda_binaries, gpu.capability);

	if (least && gpu.driver >= least)
		return 0;
	if (!cuda_binaries[0].data)
		snprintf(text, n,
			 "there are no CUDA kernels inside: this was built without a "
			 "compiler for them");
	else if (!least)
		snprintf(text, n,
			 "the kernels inside have no code for its compute capability %d.%d",
			 gpu.capability / 10, gpu.capability % 10);
	else
		snprintf(text, n,
			 "the kernels inside need a CUDA driver of version %d.%d or later for it; "
			 "this one is %d.%d",
			 least / 1000, least % 1000 / 10, gpu.driver / 1000,
			 gpu.driver % 1000 / 10);
	return -ENOEXEC;
}

/* Loads the kernels into the current context. The best binary is tried first. If the driver refuses
 * a binary that it should know (because it came without the JIT compiler, say), the next one is. */
static inline CUresult cuda_kernels_load(const struct cuda_api *api, struct cuda_kernels_for gpu,
					 CUmodule *ret)
{
	CUresult result = CUDA_ERROR_NO_BINARY_FOR_GPU;
	const struct cuda_binary *i;

	for (i = cuda_binaries; i->data && result != CUDA_SUCCESS; i++)
		if (cuda_binary_is_for(i, gpu.capability) && cuda_binary_driver(i) <= gpu.driver)
			result = api->cuModuleLoadData(ret, i->data);
	return result;
}
