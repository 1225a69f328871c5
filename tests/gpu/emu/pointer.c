/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pointer.c - the driver's knowledge of an address.
 *
 *			   type    context   ordinal  legacy IPC  handle types  range
 *	cuMemAlloc         device  maker's   GPU      1           0             the allocation
 *	pool               device  maker's   GPU      0           0             the allocation
 *	import             device  opener's  GPU      0           0             the allocation
 *	VMM                device  NULL      GPU      0           as made       the reservation
 *	managed            device  maker's   GPU      0           0             the allocation
 *	pinned, registered host    maker's   GPU      0           0             the memory
 *
 * Of other memory, freed memory included, the driver knows nothing: cuPointerGetAttribute() fails,
 * cuPointerGetAttributes() gives zeros. The latter refuses all attributes if one is not in its
 * manual's list.
 */

#include "emu.h"

struct fact {
	uint64_t value;
	size_t bytes; /* that are written; 0: the driver has no such attribute of such memory */
};

static struct fact fact_of(const struct range *r, CUpointer_attribute attribute, CUdeviceptr ptr)
{
	const bool host = range_is_host(r), vmm = r->kind == RANGE_VMM;

	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_CONTEXT:
		return (struct fact){ vmm ? 0 : r->ctx->object.handle, 8 };
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		return (struct fact){ host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE, 4 };
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
		return (struct fact){ ptr, 8 };
	case CU_POINTER_ATTRIBUTE_HOST_POINTER:
		return (struct fact){ ptr, host || r->kind == RANGE_MANAGED ? 8 : 0 };
	case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
		return (struct fact){ 0, 4 };
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
		return (struct fact){ r->id, 8 };
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
		return (struct fact){ r->kind == RANGE_MANAGED, 4 };
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		return (struct fact){ (uint64_t)(r->gpu ? r->gpu : r->ctx->gpu)->ordinal, 4 };
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
		return (struct fact){ r->kind == RANGE_ALLOC && emu.settings.ipc, 4 };
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
		return (struct fact){ vmm ? r->reserved : r->base, 8 };
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		return (struct fact){ vmm ? r->reserved_bytes : r->bytes, 8 };
	case CU_POINTER_ATTRIBUTE_MAPPED:
		return (struct fact){ 1, 4 };
	case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
		return (struct fact){ vmm ? r->memory->handle_types : 0, 8 };
	case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
		return (struct fact){ r->access, 4 };
	case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
		return (struct fact){ r->kind == RANGE_POOL ? 0x9001 : 0, 8 };
	case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
		return (struct fact){ r->bytes, 8 };
	case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
		return (struct fact){ r->base, 8 };
	case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
		return (struct fact){ r->memory ? r->memory->inode : r->id, 8 };
	default:
		return (struct fact){ 0, 0 };
	}
}

/* How many bytes the attribute has when there is nothing to say. */
static size_t size_of(CUpointer_attribute attribute)
{
	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
	case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
	case CU_POINTER_ATTRIBUTE_MAPPED:
	case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
		return 4;
	default:
		return 8;
	}
}

CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr ptr)
{
	const struct range *r;
	struct fact fact;

	CALL(cuPointerGetAttribute, NEEDS_INIT);
	r = range_at(ptr);
	if (!value || !r)
		return CUDA_ERROR_INVALID_VALUE;
	fact = fact_of(r, attribute, ptr);
	if (!fact.bytes)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(value, &fact.value, fact.bytes);
	return CUDA_SUCCESS;
}

/* The list in the manual of cuPointerGetAttributes(). */
static bool is_listed(CUpointer_attribute attribute)
{
	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_CONTEXT:
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
	case CU_POINTER_ATTRIBUTE_HOST_POINTER:
	case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
	case CU_POINTER_ATTRIBUTE_MAPPED:
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
	case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
	case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
		return true;
	default:
		return false;
	}
}

CUresult cuPointerGetAttributes(unsigned n, CUpointer_attribute *attributes, void **values,
				CUdeviceptr ptr)
{
	const int no_device = -2; /* CU_DEVICE_INVALID */
	const struct range *r;
	unsigned i;

	CALL(cuPointerGetAttributes, NEEDS_INIT);
	if (!n || !attributes || !values)
		return CUDA_ERROR_INVALID_VALUE;
	for (i = 0; i < n; i++)
		if (!is_listed(attributes[i]))
			return CUDA_ERROR_INVALID_VALUE;
	r = range_at(ptr);
	for (i = 0; i < n; i++) {
		struct fact fact = { 0, 0 };

		if (r)
			fact = fact_of(r, attributes[i], ptr);
		if (!fact.bytes)
			fact = (struct fact){ 0, size_of(attributes[i]) };
		memcpy(values[i], &fact.value, fact.bytes);
		if (!r && attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
			memcpy(values[i], &no_device, sizeof(no_device));
	}
	return CUDA_SUCCESS;
}
