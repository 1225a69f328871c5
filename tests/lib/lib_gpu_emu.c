/* SPDX-License-Identifier: Apache-2.0 */
#include "lib_gpu_emu.h"

const struct cuda_api *cu;
static CUmodule module; /* of the current life of the context; NULL: not loaded */

int emu_begin(void **state)
{
	(void)state;
	cu = gpu_api();
	gpu_open(&gpu, 0);
	return 0;
}

int emu_end(void **state)
{
	(void)state;
	if (module)
		DO(cuModuleUnload(module));
	gpu_close(&gpu);
	gpu_report_clean("");
	return 0;
}

void emu_reopen(void)
{
	DO(cuDevicePrimaryCtxReset(gpu.device));
	DO(cuDevicePrimaryCtxRelease(gpu.device));
	module = NULL;
	gpu_open(&gpu, 0);
	gpu_report_clear();
}

CUdeviceptr emu_alloc(size_t bytes)
{
	CUdeviceptr ptr;

	DO(cuMemAlloc(&ptr, bytes));
	return ptr;
}

CUfunction emu_function(const char *name)
{
	CUfunction function;

	if (!module)
		DO(cuModuleLoadData(&module, ""));
	DO(cuModuleGetFunction(&function, module, name));
	return function;
}

void emu_fill(CUfunction fill, CUdeviceptr to, uint32_t value, uint32_t n, CUstream stream)
{
	void *params[] = { &to, &value, &n };

	DO(cuLaunchKernel(fill, 1, 1, 1, 32, 1, 1, 0, stream, params, NULL));
}

bool emu_words_are(const uint32_t *words, size_t n, uint32_t value)
{
	size_t i = 0;

	while (i < n && words[i] == value)
		i++;
	return i == n;
}
