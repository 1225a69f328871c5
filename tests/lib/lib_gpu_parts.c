/* SPDX-License-Identifier: Apache-2.0 */
/* lib_gpu_parts.c - see lib_gpu_parts.h. */
#include "lib_gpu_parts.h"

#include <string.h>
#include <unistd.h>

static CUmemAllocationHandleType type_of(const struct gpu_range *range)
{
	return range->memory == WIRE_DEVICE_FD ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR :
						 CU_MEM_HANDLE_TYPE_FABRIC;
}

bool gpu_range_possible(const struct gpu *g, uint32_t memory)
{
	int possible = 0;

	GPU(gpu_api()->cuDeviceGetAttribute(
		&possible,
		memory == WIRE_DEVICE_FD ?
			CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED :
			CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED,
		g->device));
	return possible != 0;
}

void gpu_range_make(const struct gpu *g, uint32_t memory, uint32_t n, struct gpu_range *ret)
{
	const struct cuda_api *cu = gpu_api();
	struct gpu_range r = { .gpu = g, .memory = memory, .n = n };
	const CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = type_of(&r),
		.location = { CU_MEM_LOCATION_TYPE_DEVICE, g->device },
	};
	const CUmemAccessDesc access = { prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	size_t unit;

	assert_true(n <= GPU_PARTS_MAX);
	GPU(cu->cuMemGetAllocationGranularity(&unit, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
	r.part_bytes = unit;
	GPU(cu->cuMemAddressReserve(&r.base, n * unit, 0, 0, 0));
	for (uint32_t i = 0; i < n; i++) {
		GPU(cu->cuMemCreate(&r.handles[i], unit, &prop, 0));
		GPU(cu->cuMemMap(r.base + i * unit, unit, 0, r.handles[i], 0));
	}
	GPU(cu->cuMemSetAccess(r.base, n * unit, &access, 1));
	*ret = r;
}

void gpu_range_free(struct gpu_range *range)
{
	const struct cuda_api *cu = gpu_api();

	GPU(cu->cuMemUnmap(range->base, range->n * range->part_bytes));
	for (uint32_t i = 0; i < range->n; i++)
		GPU(cu->cuMemRelease(range->handles[i]));
	GPU(cu->cuMemAddressFree(range->base, range->n * range->part_bytes));
}

void gpu_parts_fill(const struct gpu_range *range, uint32_t number, uint32_t first, uint32_t n,
		    struct gpu_parts *ret)
{
	CUmemFabricHandle fabric;

	assert_true(n <= WIRE_MAX_PARTS && first + n <= range->n);
	memset(ret, 0, sizeof(*ret));
	ret->m = (struct wire_parts){ .memory = range->memory,
				      .range = number,
				      .n_parts = n,
				      .range_bytes = range->n * range->part_bytes,
				      .at = first * range->part_bytes };
	gpu_uuid(range->gpu, ret->m.device);
	for (uint32_t i = 0; i < n; i++) {
		ret->parts[i].bytes = range->part_bytes;
		GPU(gpu_api()->cuMemExportToShareableHandle(
			range->memory == WIRE_DEVICE_FD ? (void *)&ret->fds[i] : (void *)&fabric,
			range->handles[first + i], type_of(range), 0));
		if (range->memory == WIRE_DEVICE_FABRIC)
			memcpy(ret->parts[i].handle, &fabric, sizeof(fabric));
	}
	ret->n_fds = range->memory == WIRE_DEVICE_FD ? n : 0;
}

int gpu_parts_send(struct raw *r, struct gpu_parts *parts, char *text)
{
	const size_t n = sizeof(parts->m) + parts->m.n_parts * sizeof(parts->parts[0]);
	union {
		struct wire_head head;
		struct wire_error error;
	} answer = { 0 };

	parts->m.head = raw_head(r, WIRE_PARTS, n);
	assert_int_equal(raw_send(r, parts, n, parts->fds, parts->n_fds), 0);
	while (parts->n_fds > 0)
		(void)close(parts->fds[--parts->n_fds]);
	assert_true(raw_receive(r, &answer, sizeof(answer)) > 0);
	assert_int_equal(answer.head.seq, parts->m.head.seq);
	if (answer.head.type == WIRE_PARTS_OK)
		return 0;
	assert_int_equal(answer.head.type, WIRE_ERROR);
	if (text)
		memcpy(text, answer.error.text, sizeof(answer.error.text));
	return answer.error.error;
}

void gpu_range_send(struct raw *r, const struct gpu_range *range, uint32_t number, uint32_t step)
{
	struct gpu_parts parts;
	char text[232] = "";

	for (uint32_t at = 0; at < range->n; at += step) {
		const uint32_t n = range->n - at < step ? range->n - at : step;

		gpu_parts_fill(range, number, at, n, &parts);
		if (gpu_parts_send(r, &parts, text))
			fail_msg("parts %u to %u are refused: %s", at, at + n - 1, text);
	}
}

struct wire_region gpu_range_region(const struct gpu_range *range, uint32_t number, uint64_t offset,
				    uint64_t length)
{
	struct wire_region ret = {
		.memory = WIRE_DEVICE_PARTS, .fd_index = number, .offset = offset, .length = length
	};

	gpu_uuid(range->gpu, ret.device);
	return ret;
}
