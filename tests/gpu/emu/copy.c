/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copy.c - calls that copy and fill. See S3 and S4 of stream.c.
 *
 *	side		may be
 *	device		device memory, managed memory, pinned host memory
 *	host		any memory that no GPU owns; registered in another context and not PORTABLE:
 *			pageable
 *	any		the kind of its memory: cuMemcpyAsync()
 */

#include "emu.h"

enum side { SIDE_DEVICE, SIDE_HOST, SIDE_ANY };

static CUresult wrong(const struct call *call, CUdeviceptr at, size_t bytes, const char *why)
{
	violation("%s: %zu bytes at %#llx: %s", call_name(call->id), bytes, at, why);
	return CUDA_ERROR_INVALID_VALUE;
}

static CUresult check_side(const struct call *call, CUdeviceptr at, size_t bytes, enum side side,
			   bool *ret_pageable)
{
	const struct range *r = range_at(at);

	if (!at)
		return CUDA_ERROR_INVALID_VALUE;
	if (!r && address_of_device(at))
		return wrong(call, at, bytes, "there is no device memory (freed, closed?)");
	if (r && bytes > range_reach(r, at))
		return wrong(call, at, bytes, "out of bounds");
	if (!r && range_overlapping(at, bytes))
		return wrong(call, at, bytes, "pinned memory lies in a part of it");
	if (side == SIDE_DEVICE && !r)
		return wrong(call, at, bytes, "it is pageable host memory");
	if (side == SIDE_HOST && r && r->memory)
		return wrong(call, at, bytes, "it is device memory");
	*ret_pageable = !r || (r->own && r->ctx != call->ctx);
	return CUDA_SUCCESS;
}

/* How many bytes it is from the first to the last byte of the rows. */
static size_t extent(size_t width, size_t height, size_t pitch)
{
	return (height - 1) * pitch + width;
}

static CUresult stage(struct operation *op, struct stream *s)
{
	const size_t bytes = extent(op->width, op->height, op->from_pitch);
	const CUresult r = stream_wait(s, emu.tickets);

	if (r)
		return r;
	op->staged = malloc(bytes);
	if (!op->staged)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memcpy(op->staged, (const void *)op->from, bytes);
	return CUDA_SUCCESS;
}

static CUresult queue(const struct call *call, struct operation *op, enum side to, enum side from,
		      CUstream stream)
{
	bool to_pageable, from_pageable;
	struct stream *s;
	uint64_t ticket;
	CUresult r = stream_find(call, stream, &s);

	if (!r)
		r = check_side(call, op->to, extent(op->width, op->height, op->to_pitch), to,
			       &to_pageable);
	if (!r)
		r = check_side(call, op->from, extent(op->width, op->height, op->from_pitch), from,
			       &from_pageable);
	if (!r && (to_pageable || from_pageable))
		note("%s: %zu bytes of pageable host memory", call_name(call->id),
		     op->width * op->height);
	if (!r && (to_pageable || from_pageable))
		r = capture_asks_stream(call, s);
	if (!r && from_pageable)
		r = stage(op, s);
	if (r)
		return r;
	op->pageable = to_pageable ? (void *)op->to : NULL;
	r = stream_queue(s, op, &ticket);
	return r || !to_pageable ? r : stream_wait(s, ticket);
}

static CUresult copy(const struct call *call, CUdeviceptr to, enum side to_side, CUdeviceptr from,
		     enum side from_side, size_t bytes, CUstream stream)
{
	struct operation op = { .kind = OPERATION_COPY,
				.call = call->id,
				.to = to,
				.from = from,
				.width = bytes,
				.height = 1,
				.to_pitch = bytes,
				.from_pitch = bytes };

	return bytes ? queue(call, &op, to_side, from_side, stream) : CUDA_SUCCESS;
}

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
	CALL(cuMemcpyAsync, NEEDS_CONTEXT);
	return copy(&call, to, SIDE_ANY, from, SIDE_ANY, bytes, stream);
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
	CALL(cuMemcpyHtoDAsync, NEEDS_CONTEXT);
	return copy(&call, to, SIDE_DEVICE, (CUdeviceptr)from, SIDE_HOST, bytes, stream);
}

CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
	CALL(cuMemcpyDtoHAsync, NEEDS_CONTEXT);
	return copy(&call, (CUdeviceptr)to, SIDE_HOST, from, SIDE_DEVICE, bytes, stream);
}

CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
	CALL(cuMemcpyDtoDAsync, NEEDS_CONTEXT);
	return copy(&call, to, SIDE_DEVICE, from, SIDE_DEVICE, bytes, stream);
}

static bool side_of(CUmemorytype type, enum side *ret)
{
	*ret = type == CU_MEMORYTYPE_HOST   ? SIDE_HOST :
	       type == CU_MEMORYTYPE_DEVICE ? SIDE_DEVICE :
					      SIDE_ANY;
	return *ret != SIDE_ANY || type == CU_MEMORYTYPE_UNIFIED;
}

CUresult cuMemcpy2DAsync(const CUDA_MEMCPY2D *c, CUstream stream)
{
	struct operation op = { .kind = OPERATION_COPY,
				.width = c->WidthInBytes,
				.height = c->Height,
				.to_pitch = c->dstPitch ? c->dstPitch : c->WidthInBytes,
				.from_pitch = c->srcPitch ? c->srcPitch : c->WidthInBytes };
	enum side to, from;

	CALL(cuMemcpy2DAsync, NEEDS_CONTEXT);
	if (!side_of(c->srcMemoryType, &from) || !side_of(c->dstMemoryType, &to) ||
	    (c->srcPitch && c->srcPitch < c->srcXInBytes + c->WidthInBytes) ||
	    (c->dstPitch && c->dstPitch < c->dstXInBytes + c->WidthInBytes))
		return CUDA_ERROR_INVALID_VALUE;
	if (!c->WidthInBytes || !c->Height)
		return CUDA_SUCCESS;
	op.call = call.id;
	op.to = (to == SIDE_HOST ? (CUdeviceptr)c->dstHost : c->dstDevice) + c->dstY * op.to_pitch +
		c->dstXInBytes;
	op.from = (from == SIDE_HOST ? (CUdeviceptr)c->srcHost : c->srcDevice) +
		  c->srcY * op.from_pitch + c->srcXInBytes;
	return queue(&call, &op, to, from, stream);
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream)
{
	const struct operation op = { .kind = OPERATION_FILL,
				      .call = CALL_cuMemsetD8Async,
				      .to = to,
				      .width = bytes,
				      .to_pitch = bytes,
				      .value = value };
	bool pageable;
	CUresult r;

	CALL_ON_STREAM(cuMemsetD8Async, stream);
	r = check_side(&call, to, bytes, SIDE_DEVICE, &pageable);
	return r || !bytes ? r : stream_queue(s, &op, NULL);
}
