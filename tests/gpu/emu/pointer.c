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

/* How many bytes an attribute has, and whether the manual of cuPointerGetAttributes() lists it. */
static const struct attribute {
	CUpointer_attribute name;
	size_t bytes;
	bool listed;
} attributes_known[] = {
	{ CU_POINTER_ATTRIBUTE_CONTEXT, 8, true },
	{ CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 4, true },
	{ CU_POINTER_ATTRIBUTE_DEVICE_POINTER, 8, true },
	{ CU_POINTER_ATTRIBUTE_HOST_POINTER, 8, true },
	{ CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, 4, true },
	{ CU_POINTER_ATTRIBUTE_BUFFER_ID, 8, true },
	{ CU_POINTER_ATTRIBUTE_IS_MANAGED, 4, true },
	{ CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, 4, true },
	{ CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, 4, true },
	{ CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, 8, true },
	{ CU_POINTER_ATTRIBUTE_RANGE_SIZE, 8, true },
	{ CU_POINTER_ATTRIBUTE_MAPPED, 4, true },
	{ CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, 8, true },
	{ CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, 4, false },
	{ CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, 8, true },
	{ CU_POINTER_ATTRIBUTE_MAPPING_SIZE, 8, false },
	{ CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, 8, false },
	{ CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, 8, false },
};

/* NULL: there is no such attribute. */
static const struct attribute *find(CUpointer_attribute name)
{
	for (size_t i = 0; i < sizeof(attributes_known) / sizeof(*attributes_known); i++)
		if (attributes_known[i].name == name)
			return &attributes_known[i];
	return NULL;
}

/* Of memory that has it. */
static uint64_t value_of(const struct range *r, CUpointer_attribute name, CUdeviceptr ptr)
{
	const bool vmm = r->kind == RANGE_VMM;

	switch (name) {
	case CU_POINTER_ATTRIBUTE_CONTEXT:
		return vmm ? 0 : r->ctx->object.handle;
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		return range_is_host(r) ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
	case CU_POINTER_ATTRIBUTE_HOST_POINTER:
		return ptr;
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
		return r->id;
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
		return r->kind == RANGE_MANAGED;
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		return (uint64_t)(r->gpu ? r->gpu : r->ctx->gpu)->ordinal;
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
		return r->kind == RANGE_ALLOC && emu.settings.ipc;
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
		return vmm ? r->reserved : r->base;
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		return vmm ? r->reserved_bytes : r->bytes;
	case CU_POINTER_ATTRIBUTE_MAPPED:
		return 1;
	case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
		return vmm ? r->memory->handle_types : 0;
	case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
		return r->access;
	case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
		return r->kind == RANGE_POOL ? 0x9001 : 0;
	case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
		return r->bytes;
	case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
		return r->base;
	case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
		return r->memory ? r->memory->inode : r->id;
	default: /* CU_POINTER_ATTRIBUTE_SYNC_MEMOPS */
		return 0;
	}
}

/* False: the driver has no such attribute of such memory. */
static bool write_value(const struct attribute *a, const struct range *r, CUdeviceptr ptr,
			void *ret)
{
	uint64_t value;

	if (!a || !r ||
	    (a->name == CU_POINTER_ATTRIBUTE_HOST_POINTER && !range_is_host(r) &&
	     r->kind != RANGE_MANAGED))
		return false;
	value = value_of(r, a->name, ptr);
	memcpy(ret, &value, a->bytes);
	return true;
}

CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr ptr)
{
	CALL(cuPointerGetAttribute, NEEDS_INIT);
	return value && write_value(find(attribute), range_at(ptr), ptr, value) ?
		       CUDA_SUCCESS :
		       CUDA_ERROR_INVALID_VALUE;
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
		if (!find(attributes[i]) || !find(attributes[i])->listed)
			return CUDA_ERROR_INVALID_VALUE;
	r = range_at(ptr);
	for (i = 0; i < n; i++) {
		const struct attribute *a = find(attributes[i]);

		if (!write_value(a, r, ptr, values[i]))
			memset(values[i], 0, a->bytes);
		if (!r && attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
			memcpy(values[i], &no_device, sizeof(no_device));
	}
	return CUDA_SUCCESS;
}
