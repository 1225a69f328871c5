/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_span.c - see cuda_span.h. */
#include "cuda_span.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static CUmemAllocationProp prop_of(const struct cuda_gpu *gpu)
{
	return (CUmemAllocationProp){
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = gpu->found->device },
	};
}

/* In the driver's units. */
static int round_up(struct cuda_gpu *gpu, uint64_t bytes, uint64_t *ret, char *text, size_t n)
{
	const CUmemAllocationProp prop = prop_of(gpu);
	size_t unit = 0;
	int r = CUDA_CALL(gpu, cuMemGetAllocationGranularity, text, n, &unit, &prop,
			  CU_MEM_ALLOC_GRANULARITY_MINIMUM);

	if (r == 0 && unit % IMAGE_ALIGN) {
		snprintf(text, n, "the driver's unit of memory is %zu bytes", unit);
		r = -EOPNOTSUPP;
	}
	if (r == 0)
		*ret = unit ? (bytes + unit - 1) / unit * unit : bytes;
	return r;
}

static int map(struct cuda_gpu *gpu, CUmemGenericAllocationHandle handle, uint64_t bytes,
	       struct cuda_span *ret, char *text, size_t n)
{
	const CUmemAccessDesc access = {
		.location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = gpu->found->device },
		.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
	};
	struct cuda_span span = { .bytes = bytes };
	int r = CUDA_CALL(gpu, cuMemAddressReserve, text, n, &span.at, bytes, 0, 0, 0);

	if (r)
		return r;
	r = CUDA_CALL(gpu, cuMemMap, text, n, span.at, bytes, 0, handle, 0);
	span.mapped = r == 0;
	if (r == 0)
		r = CUDA_CALL(gpu, cuMemSetAccess, text, n, span.at, bytes, &access, 1);
	if (r)
		cuda_span_free(gpu, &span);
	else
		*ret = span;
	return r;
}

int cuda_span_make(struct cuda_gpu *gpu, uint64_t bytes, struct cuda_span *ret, int *ret_fd,
		   char *text, size_t n)
{
	const CUmemAllocationProp prop = prop_of(gpu);
	CUmemGenericAllocationHandle handle = 0;
	int r = round_up(gpu, bytes, &bytes, text, n);
	int fd = -1;

	if (r == 0)
		r = CUDA_CALL(gpu, cuMemCreate, text, n, &handle, bytes, &prop, 0);
	if (r)
		return r;
	r = CUDA_CALL(gpu, cuMemExportToShareableHandle, text, n, &fd, handle,
		      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	if (r == 0)
		r = map(gpu, handle, bytes, ret, text, n);
	(void)CUDA_CALL(gpu, cuMemRelease, NULL, 0, handle); /* the mapping keeps it */
	if (r == 0)
		*ret_fd = fd;
	else if (fd >= 0)
		(void)close(fd);
	return r;
}

/* cuMemMap() maps no more than there is. */
int cuda_span_adopt(struct cuda_gpu *gpu, int fd, uint64_t bytes, struct cuda_span *ret, char *text,
		    size_t n)
{
	CUmemGenericAllocationHandle handle = 0;
	CUmemAllocationProp prop = { 0 };
	int r = round_up(gpu, bytes, &bytes, text, n);

	if (r == 0)
		r = CUDA_CALL(gpu, cuMemImportFromShareableHandle, text, n, &handle,
			      (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	if (r)
		return r;
	r = CUDA_CALL(gpu, cuMemGetAllocationPropertiesFromHandle, text, n, &prop, handle);
	if (r == 0 && (prop.location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
		       prop.location.id != gpu->found->device)) {
		snprintf(text, n, "the memory is another GPU's");
		r = -EINVAL;
	}
	if (r == 0)
		r = map(gpu, handle, bytes, ret, text, n);
	(void)CUDA_CALL(gpu, cuMemRelease, NULL, 0, handle);
	return r;
}

void cuda_span_free(struct cuda_gpu *gpu, struct cuda_span *span)
{
	if (span->mapped)
		(void)CUDA_CALL(gpu, cuMemUnmap, NULL, 0, span->at, span->bytes);
	if (span->at)
		(void)CUDA_CALL(gpu, cuMemAddressFree, NULL, 0, span->at, span->bytes);
	*span = (struct cuda_span){ 0 };
}
