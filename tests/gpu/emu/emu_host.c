/* SPDX-License-Identifier: Apache-2.0 */
/*
 * emu_host.c - host memory that GPUs reach: allocated pinned, or registered where it lies.
 *
 * Its device address is its host address. Registering takes whole pages: two registrations may not
 * share one, and no copy may cross from one into another. Memory that the program unmaps while it
 * is registered is a violation, seen when it is unregistered or when an operation touches it. A
 * registration belongs to the context in which it was made, and goes with it: a copy that is under
 * way there has lost the memory. Other contexts see it as pinned if it was made PORTABLE, else as
 * pageable. Memory that was registered with DEVICEMAP may be left: streams write words there, and
 * to unregister it waits for all streams.
 */

#include "emu.h"

enum { PAGE = 4096 };

static uint64_t page_down(uint64_t address)
{
	return address / PAGE * PAGE;
}

bool host_is_mapped(const void *ptr, size_t bytes)
{
	const uint64_t first = page_down((uint64_t)ptr);
	const uint64_t end = (uint64_t)ptr + bytes;
	unsigned char resident[64];
	uint64_t at, step;

	for (at = first; at < end; at += step) {
		step = end - at < sizeof(resident) * PAGE ? end - at : sizeof(resident) * PAGE;
		if (mincore((void *)at, step, resident))
			return false;
	}
	return true;
}

/* As much as the kernel can pin: a cgroup, an IOMMU. */
static bool may_pin(size_t bytes)
{
	const struct range *r;
	uint64_t pinned = 0;
	uint32_t at = 0;

	if (!emu.settings.pinned_bytes)
		return true;
	while ((r = range_next(&at)) != NULL)
		pinned += range_is_host(r) ? r->bytes : 0;
	return pinned + bytes <= emu.settings.pinned_bytes;
}

CUresult cuMemHostAlloc(void **ptr, size_t bytes, unsigned flags)
{
	struct range r = { .kind = RANGE_PINNED,
			   .bytes = bytes,
			   .access = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };

	CALL(cuMemHostAlloc, NEEDS_CONTEXT);
	if (!ptr || !bytes || flags & ~7u)
		return CUDA_ERROR_INVALID_VALUE;
	if (!may_pin(bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	r.ctx = call.ctx;
	if (!range_add_own(&r))
		return CUDA_ERROR_OUT_OF_MEMORY;
	*ptr = r.alias;
	return CUDA_SUCCESS;
}

static struct range *find_host(const struct call *call, void *ptr, enum range_kind kind)
{
	struct range *r = range_at((CUdeviceptr)ptr);

	if (r && r->kind == kind && r->base == (CUdeviceptr)ptr)
		return r;
	violation("%s(%p): it is not the beginning of %s host memory", call_name(call->id), ptr,
		  kind == RANGE_PINNED ? "pinned" : "registered");
	return NULL;
}

CUresult cuMemFreeHost(void *ptr)
{
	struct range *r;

	CALL(cuMemFreeHost, NEEDS_CONTEXT);
	r = find_host(&call, ptr, RANGE_PINNED);
	if (!r)
		return CUDA_ERROR_INVALID_VALUE;
	range_settle(r, call_name(call.id));
	range_drop(r);
	return call_done(&call);
}

CUresult cuMemHostRegister(void *ptr, size_t bytes, unsigned flags)
{
	struct range r = { .kind = RANGE_REGISTERED,
			   .base = (CUdeviceptr)ptr,
			   .bytes = bytes,
			   .alias = ptr,
			   .access = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	uint64_t first, end;

	CALL(cuMemHostRegister, NEEDS_CONTEXT);
	if (!ptr || !bytes || flags & ~15u || (uint64_t)ptr + bytes < (uint64_t)ptr)
		return CUDA_ERROR_INVALID_VALUE;
	first = page_down(r.base);
	end = page_down(r.base + bytes + PAGE - 1);
	if (range_overlapping(first, end - first))
		return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
	if (address_of_device(r.base) || !host_is_mapped(ptr, bytes))
		return CUDA_ERROR_INVALID_VALUE;
	if (!may_pin(bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	r.ctx = call.ctx;
	r.own = !(flags & CU_MEMHOSTREGISTER_PORTABLE);
	r.stays = flags & CU_MEMHOSTREGISTER_DEVICEMAP;
	if (flags & CU_MEMHOSTREGISTER_READ_ONLY)
		r.access = CU_MEM_ACCESS_FLAGS_PROT_READ;
	return range_add(&r) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemHostUnregister(void *ptr)
{
	struct range *r;

	CALL(cuMemHostUnregister, NEEDS_CONTEXT);
	r = find_host(&call, ptr, RANGE_REGISTERED);
	if (!r)
		return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
	range_settle(r, call_name(call.id));
	if (!host_is_mapped(ptr, r->bytes))
		violation("%s(%p): the memory was unmapped while it was registered",
			  call_name(call.id), ptr);
	range_drop(r);
	return call_done(&call);
}

CUresult cuMemHostGetDevicePointer(CUdeviceptr *device, void *host, unsigned flags)
{
	const struct range *r;

	CALL(cuMemHostGetDevicePointer, NEEDS_CONTEXT);
	r = range_at((CUdeviceptr)host);
	if (!device || flags || !r || !range_is_host(r))
		return CUDA_ERROR_INVALID_VALUE;
	*device = (CUdeviceptr)host;
	return CUDA_SUCCESS;
}
