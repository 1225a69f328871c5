/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_meter.c - see cuda_meter.h. */
#include "cuda_meter.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* nvmlMemory_t */
struct nvml_memory {
	unsigned long long total, free, used;
};

/* ISO C has no cast from void * to a function. */
#define FIND(library, name, function)                       \
	do {                                                \
		void *found = dlsym(library, name);         \
		memcpy(&(function), &found, sizeof(found)); \
	} while (0)

void cuda_meter_open(struct cuda_meter *ret)
{
	void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
	int (*init)(void) = NULL;

	*ret = (struct cuda_meter){ 0 };
	if (!library)
		return;
	FIND(library, "nvmlInit_v2", init);
	FIND(library, "nvmlDeviceGetHandleByUUID", ret->handle);
	FIND(library, "nvmlDeviceGetMemoryInfo", ret->memory);
	if (!init || !ret->memory || init() != 0)
		ret->handle = NULL;
}

uint64_t cuda_meter_used(const struct cuda_meter *meter, const uint8_t uuid[WIRE_UUID_BYTES])
{
	struct nvml_memory memory = { 0 };
	char text[48] = "GPU-";
	size_t at = strlen(text);
	void *handle;

	for (int i = 0; i < WIRE_UUID_BYTES; i++)
		at += (size_t)snprintf(text + at, sizeof(text) - at, "%s%02x",
				       i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
	if (!meter->handle || meter->handle(text, &handle) != 0 ||
	    meter->memory(handle, &memory) != 0)
		return 0;
	return memory.used;
}
