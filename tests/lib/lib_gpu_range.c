/* SPDX-License-Identifier: Apache-2.0 */
#include "lib_gpu_range.h"

static CUmemAllocationHandleType type_of(const struct gpu_range *range)
{
	return range->memory == WIRE_DEVICE_FD ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR :
						 CU_MEM_HANDLE_TYPE_FABRIC;
}

bool gpu_range_possible(const struct gpu *g, uint32_t memory)
{
	const CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC,
		.location = { CU_MEM_LOCATION_TYPE_DEVICE, g->device },
	};
	CUmemGenericAllocationHandle handle;
	int possible = 0;

	GPU(gpu_api()->cuDeviceGetAttribute(
		&possible,
		memory == WIRE_DEVICE_FD ?
			CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED :
			CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED,
		g->device));
	if (!possible || memory == WIRE_DEVICE_FD)
		return possible != 0;
	/* a GPU that has fabric handles may still refuse them: without the IMEX service, for one */
	if (gpu_api()->cuMemCreate(&handle, 2 << 20, &prop, 0) != CUDA_SUCCESS)
		return false;
	GPU(gpu_api()->cuMemRelease(handle));
	return true;
}

void gpu_range_make(const struct gpu *g, uint32_t memory, uint32_t n, struct gpu_range *ret)
{
	assert_true(n <= GPU_ALLOCS_MAX);
	*ret = (struct gpu_range){ .gpu = g, .memory = memory, .n = n };
	ret->alloc_bytes = gpu_granule(g, type_of(ret));
	ret->base = gpu_map(g, type_of(ret), ret->alloc_bytes, n, ret->handles);
}

void gpu_range_free(struct gpu_range *range)
{
	gpu_unmap(range->base, range->alloc_bytes, range->n, range->handles);
}

static int export(const struct gpu_range *range, uint32_t i, uint8_t *ret_handle)
{
	CUmemFabricHandle fabric;
	int fd = -1;

	GPU(gpu_api()->cuMemExportToShareableHandle(range->memory == WIRE_DEVICE_FD ?
							    (void *)&fd :
							    (void *)&fabric,
						    range->handles[i], type_of(range), 0));
	if (range->memory == WIRE_DEVICE_FABRIC)
		memcpy(ret_handle, &fabric, sizeof(fabric));
	return fd;
}

struct wire_region gpu_range_alloc(const struct gpu_range *range, uint32_t i, uint64_t offset,
				   uint64_t length, int *ret_fd)
{
	struct wire_region ret = { .memory = range->memory, .offset = offset, .length = length };

	*ret_fd = export(range, i, ret.handle);
	gpu_uuid(range->gpu, ret.device);
	return ret;
}

void gpu_allocs_fill(const struct gpu_range *range, uint32_t number, uint32_t first, uint32_t n,
		     struct gpu_allocs *ret)
{
	assert_true(n <= WIRE_MAX_ALLOCS && first + n <= range->n);
	memset(ret, 0, sizeof(*ret));
	ret->m = (struct wire_allocs){ .memory = range->memory,
				       .range = number,
				       .n_allocs = n,
				       .range_bytes = range->n * range->alloc_bytes,
				       .at = first * range->alloc_bytes };
	gpu_uuid(range->gpu, ret->m.device);
	for (uint32_t i = 0; i < n; i++) {
		ret->allocs[i].bytes = range->alloc_bytes;
		ret->fds[i] = export(range, first + i, ret->allocs[i].handle);
	}
	ret->n_fds = range->memory == WIRE_DEVICE_FD ? n : 0;
}

void gpu_allocs_close(struct gpu_allocs *allocs)
{
	while (allocs->n_fds > 0)
		(void)close(allocs->fds[--allocs->n_fds]);
}

int gpu_allocs_send(struct raw *r, struct gpu_allocs *allocs, char *text)
{
	const size_t n = sizeof(allocs->m) + allocs->m.n_allocs * sizeof(allocs->allocs[0]);
	union {
		struct wire_head head;
		struct wire_error error;
	} answer = { 0 };

	allocs->m.head = raw_head(r, WIRE_ALLOCS, n);
	assert_int_equal(raw_send(r, allocs, n, allocs->fds, allocs->n_fds), 0);
	gpu_allocs_close(allocs);
	assert_true(raw_receive(r, &answer, sizeof(answer)) > 0);
	assert_int_equal(answer.head.seq, allocs->m.head.seq);
	if (answer.head.type == WIRE_ALLOCS_OK)
		return 0;
	assert_int_equal(answer.head.type, WIRE_ERROR);
	if (text)
		memcpy(text, answer.error.text, sizeof(answer.error.text));
	return answer.error.error;
}

void gpu_range_send(struct raw *r, const struct gpu_range *range, uint32_t number, uint32_t step)
{
	struct gpu_allocs allocs;
	char text[232] = "";

	for (uint32_t at = 0; at < range->n; at += step) {
		const uint32_t n = range->n - at < step ? range->n - at : step;

		gpu_allocs_fill(range, number, at, n, &allocs);
		if (gpu_allocs_send(r, &allocs, text))
			fail_msg("allocations %u to %u are refused: %s", at, at + n - 1, text);
	}
}

struct wire_region gpu_range_region(const struct gpu_range *range, uint32_t number, uint64_t offset,
				    uint64_t length)
{
	struct wire_region ret = {
		.memory = WIRE_DEVICE_RANGE, .fd_index = number, .offset = offset, .length = length
	};

	gpu_uuid(range->gpu, ret.device);
	return ret;
}
