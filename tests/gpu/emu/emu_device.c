/* SPDX-License-Identifier: Apache-2.0 */
/*
 * emu_device.c - GPUs of the machine, and which of them this process sees under which ordinal.
 *
 * GPU i of the machine has the same UUID in every process. CUDA_VISIBLE_DEVICES chooses and orders:
 * numbers, or UUIDs ("GPU-..."; a beginning of one is enough), until the first that is none.
 */

#include "emu.h"

void device_uuid(uint32_t physical, CUuuid *ret)
{
	uint64_t random = 0x6b767469 + physical, half;

	for (size_t i = 0; i < 2; i++) {
		half = draw(&random);
		memcpy(ret->bytes + 8 * i, &half, 8);
	}
}

void device_uuid_text(uint32_t physical, char *ret, size_t n)
{
	CUuuid uuid;
	size_t i, at = (size_t)snprintf(ret, n, "GPU-");

	device_uuid(physical, &uuid);
	for (i = 0; i < 16; i++)
		at += (size_t)snprintf(ret + at, n - at, "%s%02x",
				       i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
				       (unsigned char)uuid.bytes[i]);
}

static bool physical_named(const char *word, uint32_t *ret)
{
	char text[64], *end;

	for (uint32_t i = 0; i < emu.settings.gpus && !strncmp(word, "GPU-", 4); i++) {
		device_uuid_text(i, text, sizeof(text));
		if (!strncmp(text, word, strlen(word))) {
			*ret = i;
			return true;
		}
	}
	*ret = (uint32_t)strtoul(word, &end, 10);
	return end != word && !*end && *ret < emu.settings.gpus;
}

static void add_gpu(uint32_t physical)
{
	struct device *gpu = &emu.gpus[emu.n_gpus];

	*gpu = (struct device){ .physical = physical, .ordinal = (int)emu.n_gpus++ };
	device_uuid(physical, &gpu->uuid);
	gpu->random = emu.settings.seed * 31 + physical;
}

static void find_gpus(void)
{
	const char *visible = getenv("CUDA_VISIBLE_DEVICES");
	char *copy = visible ? strdup(visible) : NULL, *rest = copy, *word;
	uint32_t i, physical;

	for (i = 0; !visible && i < emu.settings.gpus; i++)
		add_gpu(i);
	while (copy && (word = strsep(&rest, ",")) != NULL && physical_named(word, &physical)) {
		if (device_of(physical)) { /* named twice: none is visible, says the manual */
			emu.n_gpus = 0;
			break;
		}
		add_gpu(physical);
	}
	free(copy);
}

struct device *device_find(CUdevice device)
{
	return device >= 0 && (uint32_t)device < emu.n_gpus ? &emu.gpus[device] : NULL;
}

struct device *device_of(uint32_t physical)
{
	for (uint32_t i = 0; i < emu.n_gpus; i++)
		if (emu.gpus[i].physical == physical)
			return &emu.gpus[i];
	return NULL;
}

/* Each call asks whether it is in a fork: a page that a fork finds empty needs no system call. */
static const uint8_t *mark_process(void)
{
	uint8_t *page =
		mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (page == MAP_FAILED || madvise(page, 4096, MADV_WIPEONFORK))
		abort();
	*page = 1;
	return page;
}

CUresult cuInit(unsigned flags)
{
	CALL(cuInit, NEEDS_NOTHING);
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (emu.pid)
		return CUDA_SUCCESS;
	find_gpus();
	if (!emu.n_gpus)
		return CUDA_ERROR_NO_DEVICE;
	hbm_open();
	report_host_accesses();
	emu.here = mark_process();
	emu.started = process_started(getpid());
	emu.pid = getpid();
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count)
{
	CALL(cuDeviceGetCount, NEEDS_INIT);
	*count = (int)emu.n_gpus;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
	CALL(cuDeviceGet, NEEDS_INIT);
	if (!device_find(ordinal))
		return CUDA_ERROR_INVALID_DEVICE;
	*device = ordinal;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
	CALL_ON_DEVICE(cuDeviceGetUuid, device);
	*uuid = gpu->uuid;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int bytes, CUdevice device)
{
	CALL_ON_DEVICE(cuDeviceGetName, device);
	if (bytes <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	snprintf(name, (size_t)bytes, "Emulated GPU %u", gpu->physical);
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char *id, int bytes, CUdevice device)
{
	CALL_ON_DEVICE(cuDeviceGetPCIBusId, device);
	if (bytes < 13)
		return CUDA_ERROR_INVALID_VALUE;
	snprintf(id, (size_t)bytes, "0000:%02x:00.0", 0xe0 + gpu->physical);
	return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(size_t *bytes, CUdevice device)
{
	CALL_ON_DEVICE(cuDeviceTotalMem, device);
	*bytes = emu.settings.hbm_bytes;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
	const struct {
		CUdevice_attribute attribute;
		int value;
	} values[] = {
		{ CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024 },
		{ CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 0x7fffffff },
		{ CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 48 << 10 },
		{ CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 99 << 10 },
		{ CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 100 << 10 },
		{ CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32 },
		{ CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1000000 },
		{ CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 16 },
		{ CU_DEVICE_ATTRIBUTE_INTEGRATED, 0 },
		{ CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1 },
		{ CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, emu.settings.exclusive ?
							    CU_COMPUTEMODE_EXCLUSIVE_PROCESS :
							    CU_COMPUTEMODE_DEFAULT },
		{ CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, 0xe0 },
		{ CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, 0 },
		{ CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, 0 },
		{ CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 2 },
		{ CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1 },
		{ CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 1000000 },
		{ CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 64 },
		{ CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, emu.settings.capability / 10 },
		{ CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, emu.settings.capability % 10 },
		{ CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1 },
		{ CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1 },
		{ CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1 },
		{ CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR, 1 },
		{ CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 1 },
		{ CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1 },
		{ CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1 },
		{ CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, emu.settings.fabric },
		{ CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1 },
		{ CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1 },
		{ CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, 1 },
		{ CU_DEVICE_ATTRIBUTE_MPS_ENABLED, emu.settings.mps },
		{ CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, 0 },
	};

	CALL_ON_DEVICE(cuDeviceGetAttribute, device);
	for (size_t i = 0; i < sizeof(values) / sizeof(*values); i++)
		if (values[i].attribute == attribute) {
			*value = values[i].value;
			if (attribute == CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID)
				*value = (int)gpu->physical % emu.settings.nodes;
			if (attribute == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)
				*value += (int)gpu->physical;
			return CUDA_SUCCESS;
		}
	return CUDA_ERROR_INVALID_VALUE;
}
