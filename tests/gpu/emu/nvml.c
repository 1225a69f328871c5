/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvml.c - kvtierd's questions to NVML, so that the emulated driver can stand for
 * libnvidia-ml.so.1, too: memory of a GPU in use by all processes, without a context.
 */

#include "emu.h"

#define NVML __attribute__((visibility("default")))
enum { NVML_SUCCESS, NVML_ERROR_NOT_FOUND = 6 };

NVML int nvmlInit_v2(void);
NVML int nvmlDeviceGetHandleByUUID(const char *uuid, void **ret);
NVML int nvmlDeviceGetMemoryInfo(void *handle, unsigned long long ret[3]);

int nvmlInit_v2(void)
{
	return NVML_SUCCESS;
}

/* A handle is the number of a physical GPU, from 1. */
int nvmlDeviceGetHandleByUUID(const char *uuid, void **ret)
{
	char text[64];

	for (uint32_t i = 0; i < EMU_GPUS; i++) {
		device_uuid_text(i, text, sizeof(text));
		if (strcmp(text, uuid) != 0)
			continue;
		*ret = (void *)(uintptr_t)(i + 1);
		return NVML_SUCCESS;
	}
	return NVML_ERROR_NOT_FOUND;
}

int nvmlDeviceGetMemoryInfo(void *handle, unsigned long long ret[3])
{
	pthread_mutex_lock(&emu.lock);
	ret[0] = emu.settings.hbm_bytes;
	ret[2] = hbm_used((uint32_t)(uintptr_t)handle - 1);
	ret[1] = ret[0] - ret[2];
	pthread_mutex_unlock(&emu.lock);
	return NVML_SUCCESS;
}
