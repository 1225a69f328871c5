/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_engine.c - see cuda_engine.h. */
#include "cuda_engine.h"

#include <errno.h>
#include <stdio.h>

#include "cuda_context.h"
#include "daemon/base/container_of.h"

/* Less than this of a GPU the driver may take out of a larger piece. */
static const uint64_t UNIT_BYTES = 2 << 20;

/* --- on the GPU's thread --- */

static int check_room(const struct cuda_gpu *gpu, struct cuda_region *r, uint64_t *ret)
{
	const uint64_t left = gpu->conf.engine_bytes > gpu->lent_bytes ?
				      gpu->conf.engine_bytes - gpu->lent_bytes :
				      0;

	if (r->desc.length == 0 || r->desc.length > gpu->conf.engine_bytes) {
		snprintf(r->text, sizeof(r->text),
			 "length %llu; must be 1 to [gpu] engine_bytes = %llu",
			 (unsigned long long)r->desc.length,
			 (unsigned long long)gpu->conf.engine_bytes);
		return -ENOSPC;
	}
	*ret = (r->desc.length + UNIT_BYTES - 1) / UNIT_BYTES * UNIT_BYTES;
	if (*ret <= left)
		return 0;
	snprintf(r->text, sizeof(r->text),
		 "length %llu; of [gpu] engine_bytes = %llu only %llu are not lent",
		 (unsigned long long)r->desc.length, (unsigned long long)gpu->conf.engine_bytes,
		 (unsigned long long)left);
	return -ENOSPC;
}

static int zero(struct cuda_gpu *gpu, struct cuda_region *r)
{
	const CUstream aside = gpu->in_context.aside;
	int error = CUDA_CALL(gpu, cuMemsetD8Async, r->text, sizeof(r->text), r->mapping, 0,
			      r->mapped_bytes, aside);

	return error ? error : cuda_wait(gpu, aside, r->text, sizeof(r->text));
}

static int map(struct cuda_gpu *gpu, struct cuda_region *r, CUmemGenericAllocationHandle handle,
	       const CUmemLocation *where, uint64_t bytes)
{
	const CUmemAccessDesc access = { *where, CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	int error = CUDA_CALL(gpu, cuMemAddressReserve, r->text, sizeof(r->text), &r->mapping,
			      bytes, 0, 0, 0);

	if (error)
		return error;
	r->mapping_bytes = bytes;
	error = CUDA_CALL(gpu, cuMemMap, r->text, sizeof(r->text), r->mapping, bytes, 0, handle, 0);
	if (error)
		return error;
	r->mapped_bytes = bytes;
	return CUDA_CALL(gpu, cuMemSetAccess, r->text, sizeof(r->text), r->mapping, bytes, &access,
			 1);
}

static int make(struct cuda_gpu *gpu, struct cuda_region *r, uint64_t bytes)
{
	const CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = gpu->found->device },
	};
	CUmemGenericAllocationHandle handle = 0;
	int error, fd = -1;

	error = CUDA_CALL(gpu, cuMemCreate, r->text, sizeof(r->text), &handle, bytes, &prop, 0);
	if (error)
		return cuda_other_way(gpu, error);
	error = map(gpu, r, handle, &prop.location, bytes);
	if (error == 0)
		error = zero(gpu, r);
	if (error == 0)
		error = CUDA_CALL(gpu, cuMemExportToShareableHandle, r->text, sizeof(r->text), &fd,
				  handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	(void)CUDA_CALL(gpu, cuMemRelease, NULL, 0, handle); /* the mapping keeps it */
	if (error) {
		cuda_region_unmap(gpu, r);
		return cuda_other_way(gpu, error);
	}
	r->base = r->mapping;
	r->made_bytes = bytes;
	r->made_fd = fd;
	return 0;
}

static void import_now(struct cuda_gpu *gpu, struct cuda_request *request)
{
	struct cuda_region *r = container_of(request, struct cuda_region, request);
	uint64_t bytes = 0;

	r->status = cuda_context_need(gpu, r->text, sizeof(r->text));
	if (r->status == 0)
		r->status = check_room(gpu, r, &bytes);
	if (r->status == 0)
		r->status = make(gpu, r, bytes);
	if (r->status == 0)
		cuda_region_count(gpu, r);
	else if (gpu->state == CUDA_FAILING)
		r->status = -EBUSY; /* it comes back: asking again is worth while */
}

/* --- on helper threads --- */

int cuda_engine_import(struct cuda_gpu *gpu, const struct region_desc *desc,
		       struct cuda_region **ret, char *text, size_t n)
{
	return cuda_region_ask(gpu, desc, import_now, ret, text, n);
}
