/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_load.c - see cuda_load.h. */
#include "cuda_load.h"
#include "base/text.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

enum { DRIVER_MIN = 12000 }; /* has all calls; what the kernels need is up to a GPU */

int cuda_error(const struct cuda_api *api, CUresult result, const char *call, char *text, size_t n)
{
	const char *name = NULL, *words = NULL;
	const int r = cuda_errno(result);

	if (r == 0 || !text)
		return r;
	if (api->cuGetErrorName(result, &name) != CUDA_SUCCESS || !name)
		name = "an error that the driver does not know";
	if (api->cuGetErrorString(result, &words) != CUDA_SUCCESS || !words)
		words = "";
	snprintf(text, n, "%s: %s (%d)%s%s", call, name, (int)result, words[0] ? ": " : "", words);
	return r;
}

/* unit_cuda_sticky holds these to the words of cuda.h. */
bool cuda_sticky(CUresult result)
{
	switch (result) {
	case CUDA_ERROR_DEINITIALIZED:
	case CUDA_ERROR_INVALID_CONTEXT:
	case CUDA_ERROR_ECC_UNCORRECTABLE:
	case CUDA_ERROR_NVLINK_UNCORRECTABLE:
	case CUDA_ERROR_CONTAINED:
	case CUDA_ERROR_ILLEGAL_ADDRESS:
	case CUDA_ERROR_LAUNCH_TIMEOUT:
	case CUDA_ERROR_CONTEXT_IS_DESTROYED:
	case CUDA_ERROR_ASSERT:
	case CUDA_ERROR_HARDWARE_STACK_ERROR:
	case CUDA_ERROR_ILLEGAL_INSTRUCTION:
	case CUDA_ERROR_MISALIGNED_ADDRESS:
	case CUDA_ERROR_INVALID_ADDRESS_SPACE:
	case CUDA_ERROR_INVALID_PC:
	case CUDA_ERROR_LAUNCH_FAILED:
	case CUDA_ERROR_TENSOR_MEMORY_LEAK:
	case CUDA_ERROR_MPS_RPC_FAILURE:
	case CUDA_ERROR_MPS_CLIENT_TERMINATED:
	case CUDA_ERROR_EXTERNAL_DEVICE:
	case CUDA_ERROR_KEY_ROTATION:
	case CUDA_ERROR_UNKNOWN:
		return true;
	default:
		return false;
	}
}

static void *open_library(char *text, size_t n)
{
	static const char *const names[] = { "libcuda.so.1", "libcuda.so" };
	void *library = NULL;

	for (size_t i = 0; i < sizeof(names) / sizeof(*names) && !library; i++)
		library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
	if (!library)
		snprintf(text, n, "no CUDA driver here (%s)", dlerror());
	return library;
}

static int attribute(const struct cuda_api *api, CUdevice device, CUdevice_attribute what)
{
	int value = 0;

	return api->cuDeviceGetAttribute(&value, what, device) == CUDA_SUCCESS ? value : 0;
}

/* --- the kernels inside --- */

CUresult cuda_kernels_ask(const struct cuda_api *api, CUdevice device, struct cuda_kernels_for *ret)
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

int cuda_kernels_check(struct cuda_kernels_for gpu, char *text, size_t n)
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

CUresult cuda_kernels_load(const struct cuda_api *api, struct cuda_kernels_for gpu, CUmodule *ret)
{
	CUresult result = CUDA_ERROR_NO_BINARY_FOR_GPU;
	const struct cuda_binary *i;

	for (i = cuda_binaries; i->data && result != CUDA_SUCCESS; i++)
		if (cuda_binary_is_for(i, gpu.capability) && cuda_binary_driver(i) <= gpu.driver)
			result = api->cuModuleLoadData(ret, i->data);
	return result;
}

/* --- GPUs --- */

/* A GPU for one process is the engine's, or it is the MPS server's. */
static void check_mode(int mode, struct cuda_found *ret)
{
	if (mode == CU_COMPUTEMODE_PROHIBITED)
		snprintf(ret->why, sizeof(ret->why),
			 "its compute mode is prohibited: nvidia-smi -c DEFAULT allows processes");
	else if (mode == CU_COMPUTEMODE_EXCLUSIVE_PROCESS && !ret->mps)
		snprintf(
			ret->why, sizeof(ret->why),
			"its compute mode is for one process: nvidia-smi -c DEFAULT, or MPS, whose "
			"pipes kvtierd sees (CUDA_MPS_PIPE_DIRECTORY)");
}

/* A GPU that cannot be asked, or used, is in the list with the reason. */
static void look_at(const struct cuda_api *api, int ordinal, struct cuda_found *ret)
{
	CUuuid uuid;
	CUresult result;
	const char *call = "cuDeviceGet";

	*ret = (struct cuda_found){ .device = -1, .numa_node = -1 };
	result = api->cuDeviceGet(&ret->device, ordinal);
	if (result == CUDA_SUCCESS) {
		call = "cuDeviceGetUuid";
		result = api->cuDeviceGetUuid(&uuid, ret->device);
	}
	if (result == CUDA_SUCCESS) {
		call = "cuDeviceGetAttribute";
		result = cuda_kernels_ask(api, ret->device, &ret->kernels);
	}
	if (result != CUDA_SUCCESS) {
		(void)cuda_error(api, result, call, ret->why, sizeof(ret->why));
		return;
	}
	memcpy(ret->uuid, uuid.bytes, sizeof(ret->uuid));
	if (api->cuDeviceGetName(ret->name, sizeof(ret->name), ret->device) != CUDA_SUCCESS)
		snprintf(ret->name, sizeof(ret->name), "GPU %d", ordinal);
	ret->name[sizeof(ret->name) - 1] = '\0';
	ret->mps = attribute(api, ret->device, CU_DEVICE_ATTRIBUTE_MPS_ENABLED);
	ret->processors = attribute(api, ret->device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
	if (api->cuDeviceGetAttribute(&ret->numa_node, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID,
				      ret->device) != CUDA_SUCCESS)
		ret->numa_node = -1; /* an older driver */
	if (cuda_kernels_check(ret->kernels, ret->why, sizeof(ret->why)) == 0)
		check_mode(attribute(api, ret->device, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE), ret);
}

/* --- the memory that is in use --- */

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

/* The library stays. */
static void open_nvml(struct cuda_driver *driver)
{
	void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
	int (*init)(void) = NULL;

	if (!library)
		return;
	FIND(library, "nvmlInit_v2", init);
	FIND(library, "nvmlDeviceGetHandleByUUID", driver->nvml.handle);
	FIND(library, "nvmlDeviceGetMemoryInfo", driver->nvml.memory);
	if (!init || !driver->nvml.memory || init() != 0)
		driver->nvml.handle = NULL;
}

uint64_t cuda_used_bytes(const struct cuda_driver *driver, const uint8_t uuid[WIRE_UUID_BYTES])
{
	struct nvml_memory memory = { 0 };
	char text[48] = "GPU-";
	size_t at = strlen(text);
	void *handle;

	for (int i = 0; i < WIRE_UUID_BYTES; i++)
		at += (size_t)snprintf(text + at, sizeof(text) - at, "%s%02x",
				       i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
	if (!driver->nvml.handle || driver->nvml.handle(text, &handle) != 0 ||
	    driver->nvml.memory(handle, &memory) != 0)
		return 0;
	return memory.used;
}

/* --- the driver --- */

/* What cuInit() says of a driver, or of the services around it, that are not up yet. */
static bool may_pass(CUresult result)
{
	switch (result) {
	case CUDA_ERROR_NO_DEVICE:
	case CUDA_ERROR_OPERATING_SYSTEM: /* no device node yet, among others */
	case CUDA_ERROR_SYSTEM_NOT_READY: /* the fabric manager */
	case CUDA_ERROR_MPS_CONNECTION_FAILED:
	case CUDA_ERROR_MPS_SERVER_NOT_READY:
	case CUDA_ERROR_UNKNOWN:
		return true;
	default:
		return false;
	}
}

static int list(struct cuda_driver *ret, char *text, size_t n)
{
	const struct cuda_api *api = &ret->api;
	const CUresult result = api->cuInit(0);
	int count = 0, r;

	ret->later = may_pass(result);
	ret->none = result == CUDA_ERROR_NO_DEVICE;
	r = cuda_error(api, result, "cuInit", text, n);
	if (r == 0)
		r = cuda_error(api, api->cuDriverGetVersion(&ret->version), "cuDriverGetVersion",
			       text, n);
	if (r == 0 && ret->version < DRIVER_MIN) {
		snprintf(text, n, "the CUDA driver is of version %d.%d; kvtierd needs %d.%d",
			 ret->version / 1000, ret->version % 1000 / 10, DRIVER_MIN / 1000,
			 DRIVER_MIN % 1000 / 10);
		r = -ENOSYS;
	}
	if (r == 0)
		r = cuda_error(api, api->cuDeviceGetCount(&count), "cuDeviceGetCount", text, n);
	if (r == 0 && count <= 0)
		r = text_fail(text, n, -ENODEV,
			      "the CUDA driver shows no GPU (CUDA_VISIBLE_DEVICES?)");
	for (int i = 0; r == 0 && i < count && i < CUDA_GPUS_MAX; i++)
		look_at(api, i, &ret->found[ret->n++]);
	return r;
}

int cuda_load(struct cuda_driver *ret, char *text, size_t n)
{
	const char *missing;
	void *library = open_library(text, n);
	int r;

	*ret = (struct cuda_driver){ 0 };
	if (!library)
		return -ENOENT;
	r = cuda_api_load(library, &ret->api, &missing);
	if (r) {
		snprintf(text, n, "libcuda.so has no %s: the CUDA driver is too old", missing);
		(void)dlclose(library); /* cuInit() was not called */
		return -ENOSYS;
	}
	r = list(ret, text, n);
	if (r == 0)
		open_nvml(ret);
	return r;
}
