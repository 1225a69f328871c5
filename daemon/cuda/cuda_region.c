/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_region.c - see cuda_region.h. */
#include "cuda_region.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda_context.h"
#include "daemon/base/container_of.h"

static const uint64_t IMPORT_NS = 10000000000u, RELEASE_NS = 5000000000u;

/* More than any GPU has; sums of two such numbers do not overflow. */
#define BYTES_MAX (1ull << 44)

static struct cuda_region *region_of(struct cuda_request *request)
{
	return container_of(request, struct cuda_region, request);
}

__attribute__((format(printf, 3, 4))) static int refuse(struct cuda_region *r, int error,
							const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(r->text, sizeof(r->text), format, args);
	va_end(args);
	return error;
}

/* --- on the GPU's thread --- */

int cuda_other_way(const struct cuda_gpu *gpu, int error)
{
	return error == 0 || error == -ENOMEM || gpu->state == CUDA_FAILING ? error : -EOPNOTSUPP;
}

static int check_device(struct cuda_gpu *gpu, struct cuda_region *r, CUdeviceptr at)
{
	int ordinal = -1, error;

	error = CUDA_CALL(gpu, cuPointerGetAttribute, r->text, sizeof(r->text), &ordinal,
			  CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at);
	if (error == 0 && ordinal != gpu->found->device)
		error = refuse(r, -EINVAL,
			       "the memory is another GPU's than the one that `device` names");
	return error;
}

/* Bytes from `at` to the end of its allocation. */
static int range(struct cuda_gpu *gpu, struct cuda_region *r, CUdeviceptr at, uint64_t *ret)
{
	CUdeviceptr base = 0;
	size_t size = 0;
	const int error =
		CUDA_CALL(gpu, cuMemGetAddressRange, r->text, sizeof(r->text), &base, &size, at);

	if (error)
		return error;
	if (at < base || at - base > size)
		return refuse(r, -EIO, "the driver says that an address is not in its own range");
	*ret = size - (at - base);
	return 0;
}

static int check_fits(struct cuda_region *r, uint64_t size)
{
	const uint64_t offset = r->desc.offset, length = r->desc.length;

	if (length > 0 && offset <= size && length <= size - offset)
		return 0;
	return refuse(r, -EINVAL,
		      "offset %llu + length %llu must lie in the allocation's %llu bytes",
		      (unsigned long long)offset, (unsigned long long)length,
		      (unsigned long long)size);
}

static struct cuda_handle *find_handle(struct cuda_gpu *gpu, const uint8_t *bytes)
{
	for (struct list *at = gpu->handles.next; at != &gpu->handles; at = at->next) {
		struct cuda_handle *h = container_of(at, struct cuda_handle, link);

		if (memcmp(h->bytes, bytes, sizeof(h->bytes)) == 0)
			return h;
	}
	return NULL;
}

static void drop_handle(struct cuda_gpu *gpu, struct cuda_handle *h)
{
	if (--h->users > 0)
		return;
	if (h->at && gpu->state == CUDA_UP)
		(void)CUDA_CALL(gpu, cuIpcCloseMemHandle, NULL, 0, h->at);
	list_remove(&h->link);
	free(h);
}

static int open_handle(struct cuda_gpu *gpu, struct cuda_region *r, struct cuda_handle **ret)
{
	struct cuda_handle *h = find_handle(gpu, r->desc.handle);
	CUipcMemHandle handle;
	int error;

	if (h) {
		h->users++;
		*ret = h;
		return 0;
	}
	h = calloc(1, sizeof(*h));
	if (!h)
		return refuse(r, -ENOMEM, "out of memory for a handle");
	h->users = 1;
	memcpy(h->bytes, r->desc.handle, sizeof(h->bytes));
	list_add(&gpu->handles, &h->link);
	memcpy(&handle, h->bytes, sizeof(handle));
	error = cuda_other_way(gpu, CUDA_CALL(gpu, cuIpcOpenMemHandle, r->text, sizeof(r->text),
					      &h->at, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	if (error == 0)
		error = check_device(gpu, r, h->at);
	if (error == 0)
		error = range(gpu, r, h->at, &h->size);
	if (error)
		drop_handle(gpu, h);
	else
		*ret = h;
	return error;
}

static int import_handle(struct cuda_gpu *gpu, struct cuda_region *r)
{
	struct cuda_handle *h = NULL;
	int error = open_handle(gpu, r, &h);

	if (error)
		return error;
	error = check_fits(r, h->size);
	if (error) {
		drop_handle(gpu, h);
		return error;
	}
	r->handle = h;
	r->base = h->at + r->desc.offset;
	return 0;
}

/* A mapping whose region has left, and which the GPU may still use. */
struct orphan {
	struct list link;
	CUdeviceptr at;
	uint64_t bytes, mapped_bytes;
};

/* A mapping is unmapped without a context, so the driver's answers say nothing of one. */
static void unmap(struct cuda_gpu *gpu, CUdeviceptr at, uint64_t bytes, uint64_t mapped_bytes)
{
	if (mapped_bytes)
		(void)gpu->api->cuMemUnmap(at, mapped_bytes);
	if (at)
		(void)gpu->api->cuMemAddressFree(at, bytes);
}

/* The mapping stays until the context is gone; without memory for a note of it, or if the context
 * cannot be reset, until the daemon ends. */
static void unmap_later(struct cuda_gpu *gpu, const struct cuda_region *r)
{
	struct orphan *orphan = calloc(1, sizeof(*orphan));

	if (!orphan)
		return;
	orphan->at = r->mapping;
	orphan->bytes = r->mapping_bytes;
	orphan->mapped_bytes = r->mapped_bytes;
	list_add(&gpu->orphans, &orphan->link);
}

void cuda_region_unmap(struct cuda_gpu *gpu, struct cuda_region *r)
{
	if (r->mapping && (gpu->state == CUDA_FAILING || gpu->stuck))
		unmap_later(gpu, r);
	else
		unmap(gpu, r->mapping, r->mapping_bytes, r->mapped_bytes);
	r->mapping = 0;
	r->mapping_bytes = r->mapped_bytes = 0;
}

/* As many bytes of the allocation as hold the region, in the driver's units. */
static int map_bytes(struct cuda_gpu *gpu, struct cuda_region *r,
		     CUmemGenericAllocationHandle handle, uint64_t *ret)
{
	CUmemAllocationProp prop = { 0 };
	size_t unit = 0;
	int error = CUDA_CALL(gpu, cuMemGetAllocationPropertiesFromHandle, r->text, sizeof(r->text),
			      &prop, handle);

	if (error == 0 && (prop.location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
			   prop.location.id != gpu->found->device))
		error = refuse(r, -EINVAL, "the memory is not of the GPU that `device` names");
	if (error == 0)
		error = CUDA_CALL(gpu, cuMemGetAllocationGranularity, r->text, sizeof(r->text),
				  &unit, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
	if (error == 0 && (unit == 0 || r->desc.length == 0 || r->desc.offset > BYTES_MAX ||
			   r->desc.length > BYTES_MAX))
		error = refuse(r, -EINVAL, "offset %llu + length %llu is no range of a GPU",
			       (unsigned long long)r->desc.offset,
			       (unsigned long long)r->desc.length);
	if (error == 0)
		*ret = (r->desc.offset + r->desc.length + unit - 1) / unit * unit;
	return error;
}

static int map(struct cuda_gpu *gpu, struct cuda_region *r, CUmemGenericAllocationHandle handle)
{
	const CUmemAccessDesc access = {
		.location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = gpu->found->device },
		.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
	};
	uint64_t bytes = 0, size = 0;
	CUdeviceptr at = 0;
	int error = map_bytes(gpu, r, handle, &bytes);

	if (error == 0)
		error = CUDA_CALL(gpu, cuMemAddressReserve, r->text, sizeof(r->text), &at, bytes, 0,
				  0, 0);
	if (error)
		return error;
	error = CUDA_CALL(gpu, cuMemMap, r->text, sizeof(r->text), at, bytes, 0, handle, 0);
	if (error) {
		(void)CUDA_CALL(gpu, cuMemAddressFree, NULL, 0, at, bytes);
		if (gpu->state != CUDA_FAILING && error == -EINVAL)
			return refuse(r, -EINVAL,
				      "offset %llu + length %llu must lie in one allocation (%s)",
				      (unsigned long long)r->desc.offset,
				      (unsigned long long)r->desc.length, "cuMemMap refuses more");
		return error;
	}
	r->mapping = at;
	r->mapping_bytes = r->mapped_bytes = bytes;
	error = CUDA_CALL(gpu, cuMemSetAccess, r->text, sizeof(r->text), at, bytes, &access, 1);
	if (error == 0)
		error = range(gpu, r, at, &size);
	if (error == 0)
		error = check_fits(r, size);
	if (error)
		cuda_region_unmap(gpu, r);
	return error;
}

static int import_shareable(struct cuda_gpu *gpu, struct cuda_region *r)
{
	const bool fabric = r->desc.memory == WIRE_DEVICE_FABRIC;
	CUmemGenericAllocationHandle handle = 0;
	void *what = fabric ? (void *)r->desc.handle : (void *)(uintptr_t)r->desc.fd;
	int error;

	error = cuda_other_way(gpu, CUDA_CALL(gpu, cuMemImportFromShareableHandle, r->text,
					      sizeof(r->text), &handle, what,
					      fabric ? CU_MEM_HANDLE_TYPE_FABRIC :
						       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	if (error)
		return error;
	error = map(gpu, r, handle);
	(void)CUDA_CALL(gpu, cuMemRelease, NULL, 0, handle); /* the mapping keeps it */
	if (error == 0)
		r->base = r->mapping + r->desc.offset;
	return error;
}

static void import_now(struct cuda_gpu *gpu, struct cuda_request *request)
{
	struct cuda_region *r = region_of(request);

	r->status = cuda_context_need(gpu, r->text, sizeof(r->text));
	if (r->status == 0)
		r->status = r->desc.memory == WIRE_DEVICE_HANDLE ? import_handle(gpu, r) :
								   import_shareable(gpu, r);
	if (r->status == 0)
		cuda_region_count(gpu, r);
	else if (gpu->state == CUDA_FAILING)
		r->status = -EBUSY; /* it comes back: asking again is worth while */
}

void cuda_region_count(struct cuda_gpu *gpu, struct cuda_region *r)
{
	r->generation = gpu->generation;
	gpu->regions++;
	gpu->users++;
	gpu->lent_regions += r->made_bytes > 0;
	gpu->lent_bytes += r->made_bytes;
}

void cuda_region_undo(struct cuda_gpu *gpu, struct cuda_region *r)
{
	const bool there = r->generation == gpu->generation && gpu->users > 0;

	if (r->made_bytes)
		(void)close(r->made_fd); /* the daemon's own: it blocks nobody */
	if (r->status || !there) {
		r->made_bytes = 0;
		cuda_region_unmap(gpu, r); /* no context takes a mapping along */
		return;
	}
	r->generation = 0;
	gpu->lent_regions -= r->made_bytes > 0;
	gpu->lent_bytes -= r->made_bytes;
	r->made_bytes = 0;
	gpu->regions--;
	gpu->users--;
	if (r->handle)
		drop_handle(gpu, r->handle);
	else
		cuda_region_unmap(gpu, r);
}

static void release_now(struct cuda_gpu *gpu, struct cuda_request *request)
{
	cuda_region_undo(gpu, region_of(request));
}

void cuda_regions_lost(struct cuda_gpu *gpu)
{
	gpu->regions = gpu->users = 0;
	gpu->lent_regions = 0;
	gpu->lent_bytes = 0;
	while (!list_empty(&gpu->handles)) {
		struct cuda_handle *h = container_of(gpu->handles.next, struct cuda_handle, link);

		list_remove(&h->link);
		free(h);
	}
	while (!list_empty(&gpu->orphans)) {
		struct orphan *o = container_of(gpu->orphans.next, struct orphan, link);

		list_remove(&o->link);
		if (!gpu->stuck)
			unmap(gpu, o->at, o->bytes, o->mapped_bytes);
		free(o);
	}
}

/* --- nobody waits any more: on the GPU's thread --- */

static void *close_fd(void *arg)
{
	(void)close((int)(intptr_t)arg);
	return NULL;
}

void cuda_close_elsewhere(int fd)
{
	pthread_t thread;

	if (fd >= 0 && pthread_create(&thread, NULL, close_fd, (void *)(intptr_t)fd) == 0)
		(void)pthread_detach(thread);
}

static void import_left(struct cuda_gpu *gpu, struct cuda_request *request)
{
	struct cuda_region *r = region_of(request);

	release_now(gpu, request);
	cuda_close_elsewhere(r->desc.fd);
	free(r);
}

static void release_left(struct cuda_gpu *gpu, struct cuda_request *request)
{
	(void)gpu;
	free(region_of(request));
}

/* --- on helper threads --- */

int cuda_region_ask(struct cuda_gpu *gpu, const struct region_desc *desc,
		    void (*work)(struct cuda_gpu *gpu, struct cuda_request *request),
		    struct cuda_region **ret, char *text, size_t n)
{
	struct cuda_region *r = calloc(1, sizeof(*r));
	int error;

	if (!r) {
		snprintf(text, n, "out of memory for a region");
		return -ENOMEM;
	}
	r->request.work = work;
	r->request.left = import_left;
	r->desc = *desc;
	r->desc.fd = desc->fd < 0 ? -1 : fcntl(desc->fd, F_DUPFD_CLOEXEC, 0);
	error = cuda_gpu_ask(gpu, &r->request, IMPORT_NS, text, n);
	if (error == -ETIMEDOUT)
		return error;
	if (r->desc.fd >= 0)
		(void)close(r->desc.fd);
	if (error == 0 && r->status) {
		error = r->status;
		snprintf(text, n, "%s", r->text);
	}
	if (error)
		free(r);
	else
		*ret = r;
	return error == -EAGAIN ? -EBUSY : error; /* -EAGAIN would be the intake's: intake.h */
}

int cuda_region_import(struct cuda_gpu *gpu, const struct region_desc *desc,
		       struct cuda_region **ret, char *text, size_t n)
{
	return cuda_region_ask(gpu, desc, import_now, ret, text, n);
}

void cuda_region_release(struct cuda_gpu *gpu, struct cuda_region *r)
{
	int error;

	r->request.work = release_now;
	r->request.left = release_left;
	error = cuda_gpu_ask(gpu, &r->request, RELEASE_NS, NULL, 0);
	if (error == -EBUSY || error == -EAGAIN)
		error = cuda_gpu_ask(gpu, &r->request, 0, NULL, 0);
	if (error == 0)
		free(r);
}
