/* SPDX-License-Identifier: Apache-2.0 */
/*
 * alloc.c - device memory and managed memory: calls that take it and give it back.
 *
 * cuMemFree() takes the address that cuMemAlloc() gave, once, in the context that it was made in,
 * when no queued operation names it. A real driver forgives some of it; each is a violation here.
 */

#include "emu.h"

static CUresult take(struct context *ctx, enum range_kind kind, size_t bytes, CUdeviceptr *ret)
{
	struct range r = { .kind = kind,
			   .bytes = bytes,
			   .ctx = ctx,
			   .gpu = ctx->gpu,
			   .access = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };

	if (!ret || !bytes)
		return CUDA_ERROR_INVALID_VALUE;
	r.memory = physical_make(ctx->gpu, bytes, 0);
	return range_add_device(&r, ret);
}

CUresult cuMemAlloc(CUdeviceptr *ptr, size_t bytes)
{
	CALL(cuMemAlloc, NEEDS_CONTEXT);
	return take(call.ctx, RANGE_ALLOC, bytes, ptr);
}

CUresult cuMemAllocManaged(CUdeviceptr *ptr, size_t bytes, unsigned flags)
{
	struct range r = { .kind = RANGE_MANAGED,
			   .bytes = bytes,
			   .access = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };

	CALL(cuMemAllocManaged, NEEDS_CONTEXT);
	if (!ptr || !bytes || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
		return CUDA_ERROR_INVALID_VALUE;
	r.ctx = call.ctx;
	r.gpu = call.ctx->gpu;
	if (!range_add_own(&r))
		return CUDA_ERROR_OUT_OF_MEMORY;
	*ptr = r.base;
	return CUDA_SUCCESS;
}

/* The memory that cuMemFree() of this address is about to free; NULL: none that it may. */
static struct range *find_to_free(const struct call *call, CUdeviceptr ptr)
{
	struct range *r = range_at(ptr);
	const char *why = NULL;

	if (!r)
		why = "there is no memory: freed before, or never allocated";
	else if (r->base != ptr)
		why = "it is not where the allocation begins";
	else if (r->kind == RANGE_IMPORT)
		why = "it is imported memory, for cuIpcCloseMemHandle()";
	else if (r->kind == RANGE_VMM)
		why = "it is mapped memory, for cuMemUnmap()";
	else if (range_is_host(r))
		why = "it is host memory";
	else if (r->ctx != call->ctx)
		why = "it is memory of another context";
	else if (r->freed_late)
		why = "cuMemFreeAsync() frees it";
	if (!why)
		return r;
	violation("%s(%#llx): %s", call_name(call->id), ptr, why);
	return NULL;
}

/* The next process to have this memory may read what is left in it. */
static void check_zeroed(const struct range *r, const char *call)
{
	const uint8_t *bytes = r->alias;

	if (!emu.settings.zeroed_bytes || r->bytes < emu.settings.zeroed_bytes)
		return;
	if (bytes[0] || memcmp(bytes, bytes + 1, r->bytes - 1))
		violation("%s(%#llx): bytes are left in the memory that is freed", call, r->base);
}

CUresult cuMemFree(CUdeviceptr ptr)
{
	struct range *r;

	CALL(cuMemFree, NEEDS_CONTEXT);
	if (!ptr)
		return CUDA_SUCCESS;
	r = find_to_free(&call, ptr);
	if (!r)
		return CUDA_ERROR_INVALID_VALUE;
	range_settle(r, call_name(call.id));
	check_zeroed(r, call_name(call.id));
	range_drop(r);
	return call_done(&call);
}

/* The memory is there at once, which is early but legal. */
CUresult cuMemAllocAsync(CUdeviceptr *ptr, size_t bytes, CUstream stream)
{
	CALL_ON_STREAM(cuMemAllocAsync, stream);
	return take(call.ctx, RANGE_POOL, bytes, ptr);
}

CUresult cuMemFreeAsync(CUdeviceptr ptr, CUstream stream)
{
	struct range *range;

	CALL_ON_STREAM(cuMemFreeAsync, stream);
	range = find_to_free(&call, ptr);
	if (!range || range->kind == RANGE_MANAGED)
		return CUDA_ERROR_INVALID_VALUE;
	range->freed_late = true;
	return stream_queue(
		s, &(struct operation){ .kind = OPERATION_FREE, .call = call.id, .to = ptr }, NULL);
}

CUresult cuMemGetInfo(size_t *free_bytes, size_t *total)
{
	uint64_t used;

	CALL(cuMemGetInfo, NEEDS_CONTEXT);
	used = hbm_used(call.ctx->gpu->physical);
	*total = emu.settings.hbm_bytes;
	*free_bytes = used < *total ? *total - used : 0;
	return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange(CUdeviceptr *base, size_t *bytes, CUdeviceptr ptr)
{
	const struct range *r;

	CALL(cuMemGetAddressRange, NEEDS_CONTEXT);
	r = range_at(ptr);
	if (!r || r->kind == RANGE_REGISTERED)
		return CUDA_ERROR_NOT_FOUND;
	if (base)
		*base = r->base;
	if (bytes)
		*bytes = r->bytes;
	return CUDA_SUCCESS;
}
