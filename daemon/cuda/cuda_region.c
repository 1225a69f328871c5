/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_region.c - see cuda_region.h. */
#include "cuda_region.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda_context.h"
#include "base/list.h"
#include "base/text.h"

static const uint64_t IMPORT_NS = 10000000000u, RELEASE_NS = 5000000000u;

/* More than any GPU has; sums of two such numbers do not overflow. */
#define BYTES_MAX (1ull << 44)

/* A question to the GPU's thread, and its answer. */
struct import {
	struct cuda_request request;
	int status;
	char text[200];
};

/* One legacy handle that is open. */
struct handle {
	struct list link;
	uint8_t bytes[WIRE_HANDLE_BYTES];
	CUdeviceptr at;
	uint64_t size; /* from `at` on */
	uint32_t users;
};

struct region {
	struct import import; /* first */
	struct region_desc desc;
	uint32_t generation; /* of the context that it is open in; 0: none */
	CUdeviceptr base;
	struct handle *handle;                /* NULL: a mapping */
	CUdeviceptr mapping;                  /* of fds or fabric handles: reserved bytes... */
	uint64_t mapping_bytes, mapped_bytes; /* ...and mapped up to there */
};

/* The next allocations of a region, on their way to the thread. */
struct more_allocs {
	struct import import; /* first */
	struct region *region;
	struct region_allocs more; /* its descriptors are duplicates */
	bool first;
};

/* A request is first in what it asks about. */
static_assert(offsetof(struct import, request) == 0 && offsetof(struct region, import) == 0 &&
		      offsetof(struct more_allocs, import) == 0,
	      "casts of a request, and release_left()");

/* A call of the driver for an import, which gets the driver's words: 0 or -errno. */
#define TRY(gpu, import, name, ...) \
	CUDA_CALL(gpu, name, (import)->text, sizeof((import)->text), __VA_ARGS__)
/* The same for handles of allocations, which are of no context: what a driver says of a client's is
 * no news of the GPU. An H100's driver 580 says UNKNOWN of a descriptor that is no memory, which
 * elsewhere is the word of a broken context. */
#define TRY_HANDLE(gpu, import, name, ...)                                           \
	cuda_error((gpu)->api, (gpu)->api->name(__VA_ARGS__), #name, (import)->text, \
		   sizeof((import)->text))
#define REFUSE(import, ...) text_fail((import)->text, sizeof((import)->text), __VA_ARGS__)

/* --- on the GPU's thread, from here on --- */

/* The driver refuses the client's handle or pointer: another way may work. An error of the GPU
 * itself is passed on. */
static int other_way(const struct cuda_gpu *gpu, int error)
{
	return error == 0 || error == -ENOMEM || gpu->state == CUDA_FAILING ? error : -EOPNOTSUPP;
}

/* A GPU that has just failed comes back, so the client is to ask again. */
static int ask_again(const struct cuda_gpu *gpu, int error)
{
	return error && gpu->state == CUDA_FAILING ? -EBUSY : error;
}

/* --- mappings --- */

/* A mapping whose region has left, and which the GPU may still use. */
struct orphan {
	struct list link;
	CUdeviceptr at;
	uint64_t bytes, mapped_bytes;
};

/* A mapping is unmapped without a context, so the driver's answers say nothing of one. */
static void unmap_now(struct cuda_gpu *gpu, CUdeviceptr at, uint64_t bytes, uint64_t mapped_bytes)
{
	if (mapped_bytes)
		(void)gpu->api->cuMemUnmap(at, mapped_bytes);
	if (at)
		(void)gpu->api->cuMemAddressFree(at, bytes);
}

/* The mapping stays until the context is gone; without memory for a note of it, or if the context
 * cannot be reset, until the daemon ends. */
static void unmap_later(struct cuda_gpu *gpu, const struct region *r)
{
	struct orphan *orphan = calloc(1, sizeof(*orphan));

	if (!orphan)
		return;
	orphan->at = r->mapping;
	orphan->bytes = r->mapping_bytes;
	orphan->mapped_bytes = r->mapped_bytes;
	list_add(&gpu->orphans, &orphan->link);
}

static void unmap(struct cuda_gpu *gpu, struct region *r)
{
	if (r->mapping && (gpu->state == CUDA_FAILING || gpu->stuck))
		unmap_later(gpu, r);
	else
		unmap_now(gpu, r->mapping, r->mapping_bytes, r->mapped_bytes);
	r->mapping = 0;
	r->mapping_bytes = r->mapped_bytes = 0;
}

static int reserve_range(struct cuda_gpu *gpu, struct region *r, struct import *import,
			 uint64_t bytes)
{
	const int error = TRY(gpu, import, cuMemAddressReserve, &r->mapping, bytes, 0, 0, 0);

	if (error == 0)
		r->mapping_bytes = bytes;
	return error;
}

/* All that was mapped since r had `from` bytes mapped. */
static int allow_access(struct cuda_gpu *gpu, struct region *r, struct import *import,
			uint64_t from)
{
	const CUmemAccessDesc access = {
		.location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = gpu->found->device },
		.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
	};

	return TRY(gpu, import, cuMemSetAccess, r->mapping + from, r->mapped_bytes - from, &access,
		   1);
}

/* Maps all of r, which is one allocation. After -errno it is mapped as far as it came. */
static int map(struct cuda_gpu *gpu, struct region *r, CUmemGenericAllocationHandle handle,
	       uint64_t bytes)
{
	int error = reserve_range(gpu, r, &r->import, bytes);

	if (error == 0)
		error = TRY_HANDLE(gpu, &r->import, cuMemMap, r->mapping, bytes, 0, handle, 0);
	if (error)
		return error;
	r->mapped_bytes = bytes;
	return allow_access(gpu, r, &r->import, 0);
}

/* --- counts, and the end of a region --- */

static void count(struct cuda_gpu *gpu, struct region *r)
{
	r->generation = gpu->generation;
	gpu->regions++;
	gpu->users++;
}

static void drop_handle(struct cuda_gpu *gpu, struct handle *h)
{
	if (--h->users > 0)
		return;
	if (h->at && gpu->state == CUDA_UP)
		(void)CUDA_DO(gpu, cuIpcCloseMemHandle, h->at);
	list_remove(&h->link);
	free(h);
}

static void undo(struct cuda_gpu *gpu, struct region *r)
{
	const bool there = r->generation == gpu->generation && gpu->users > 0;

	if (r->import.status || !there) {
		unmap(gpu, r); /* no context takes a mapping along */
		return;
	}
	r->generation = 0;
	gpu->regions--;
	gpu->users--;
	if (r->handle)
		drop_handle(gpu, r->handle);
	else
		unmap(gpu, r);
}

void cuda_regions_lost(struct cuda_gpu *gpu)
{
	gpu->regions = gpu->users = 0;
	while (!list_empty(&gpu->handles)) {
		struct handle *h = container_of(gpu->handles.next, struct handle, link);

		list_remove(&h->link);
		free(h);
	}
	while (!list_empty(&gpu->orphans)) {
		struct orphan *o = container_of(gpu->orphans.next, struct orphan, link);

		list_remove(&o->link);
		if (!gpu->stuck)
			unmap_now(gpu, o->at, o->bytes, o->mapped_bytes);
		free(o);
	}
}

/* --- checks --- */

/* Bytes from `at` to the end of its allocation. */
static int range(struct cuda_gpu *gpu, struct region *r, CUdeviceptr at, uint64_t *ret)
{
	CUdeviceptr base = 0;
	size_t size = 0;
	const int error = TRY(gpu, &r->import, cuMemGetAddressRange, &base, &size, at);

	if (error)
		return error;
	if (at < base || at - base > size)
		return REFUSE(&r->import, -EIO,
			      "the driver says that an address is not in its own range");
	*ret = size - (at - base);
	return 0;
}

static int check_fits(struct region *r, uint64_t size)
{
	const uint64_t offset = r->desc.offset, length = r->desc.length;

	if (length > 0 && offset <= size && length <= size - offset)
		return 0;
	return REFUSE(&r->import, -EINVAL,
		      "offset %llu + length %llu must lie in the allocation's %llu bytes",
		      (unsigned long long)offset, (unsigned long long)length,
		      (unsigned long long)size);
}

/* --- legacy handles --- */

static struct handle *find_handle(struct cuda_gpu *gpu, const uint8_t *bytes)
{
	for (struct list *at = gpu->handles.next; at != &gpu->handles; at = at->next) {
		struct handle *h = container_of(at, struct handle, link);

		if (memcmp(h->bytes, bytes, sizeof(h->bytes)) == 0)
			return h;
	}
	return NULL;
}

static int check_device(struct cuda_gpu *gpu, struct region *r, CUdeviceptr at)
{
	int ordinal = -1;
	const int error = TRY(gpu, &r->import, cuPointerGetAttribute, &ordinal,
			      CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at);

	if (error == 0 && ordinal != gpu->found->device)
		return REFUSE(&r->import, -EINVAL,
			      "the memory is another GPU's than the one that `device` names");
	return error;
}

static int open_handle(struct cuda_gpu *gpu, struct region *r, struct handle **ret)
{
	struct handle *h = find_handle(gpu, r->desc.handle);
	CUipcMemHandle handle;
	int error;

	if (h) {
		h->users++;
		*ret = h;
		return 0;
	}
	h = calloc(1, sizeof(*h));
	if (!h)
		return REFUSE(&r->import, -ENOMEM, "out of memory for a handle");
	h->users = 1;
	memcpy(h->bytes, r->desc.handle, sizeof(h->bytes));
	list_add(&gpu->handles, &h->link);
	memcpy(&handle, h->bytes, sizeof(handle));
	error = other_way(gpu, TRY(gpu, &r->import, cuIpcOpenMemHandle, &h->at, handle,
				   CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
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

static int import_handle(struct cuda_gpu *gpu, struct region *r)
{
	struct handle *h = NULL;
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

/* --- allocations of cuMemCreate() --- */

static int open_allocation(struct cuda_gpu *gpu, struct import *import, enum wire_memory memory,
			   const uint8_t *handle, int fd, CUmemGenericAllocationHandle *ret)
{
	const bool fabric = memory == WIRE_DEVICE_FABRIC;
	void *what = fabric ? (void *)(uintptr_t)handle : (void *)(uintptr_t)fd;

	return other_way(gpu, TRY_HANDLE(gpu, import, cuMemImportFromShareableHandle, ret, what,
					 fabric ? CU_MEM_HANDLE_TYPE_FABRIC :
						  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
}

static bool is_here(const struct cuda_gpu *gpu, const CUmemAllocationProp *prop)
{
	return prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
	       prop->location.id == gpu->found->device;
}

/* The bytes of the allocation that hold the region, in the driver's granules. */
static int bytes_to_map(struct cuda_gpu *gpu, struct region *r, CUmemGenericAllocationHandle handle,
			uint64_t *ret)
{
	CUmemAllocationProp prop = { 0 };
	size_t granule = 0;
	int error =
		TRY_HANDLE(gpu, &r->import, cuMemGetAllocationPropertiesFromHandle, &prop, handle);

	if (error == 0 && !is_here(gpu, &prop))
		error = REFUSE(&r->import, -EINVAL,
			       "the memory is not of the GPU that `device` names");
	if (error == 0)
		error = TRY(gpu, &r->import, cuMemGetAllocationGranularity, &granule, &prop,
			    CU_MEM_ALLOC_GRANULARITY_MINIMUM);
	if (error == 0 && (granule == 0 || r->desc.length == 0 || r->desc.offset > BYTES_MAX ||
			   r->desc.length > BYTES_MAX))
		error = REFUSE(&r->import, -EINVAL,
			       "offset %llu + length %llu is no range of a GPU",
			       (unsigned long long)r->desc.offset,
			       (unsigned long long)r->desc.length);
	if (error == 0)
		*ret = (r->desc.offset + r->desc.length + granule - 1) / granule * granule;
	return error;
}

static int map_allocation(struct cuda_gpu *gpu, struct region *r,
			  CUmemGenericAllocationHandle handle)
{
	uint64_t bytes = 0, size = 0;
	int error = bytes_to_map(gpu, r, handle, &bytes);

	if (error)
		return error;
	error = map(gpu, r, handle, bytes);
	/* -EOPNOTSUPP: a driver says NOT_SUPPORTED of more than the allocation has */
	if ((error == -EINVAL || error == -EOPNOTSUPP) && r->mapping && r->mapped_bytes == 0 &&
	    gpu->state != CUDA_FAILING)
		error = REFUSE(&r->import, -EINVAL,
			       "offset %llu + length %llu must lie in one allocation (%s)",
			       (unsigned long long)r->desc.offset,
			       (unsigned long long)r->desc.length, "cuMemMap refuses more");
	if (error == 0)
		error = range(gpu, r, r->mapping, &size);
	if (error == 0)
		error = check_fits(r, size);
	if (error)
		unmap(gpu, r);
	return error;
}

static int import_allocation(struct cuda_gpu *gpu, struct region *r)
{
	CUmemGenericAllocationHandle handle = 0;
	int error = open_allocation(gpu, &r->import, r->desc.memory, r->desc.handle, r->desc.fd,
				    &handle);

	if (error)
		return error;
	error = map_allocation(gpu, r, handle);
	(void)CUDA_DO(gpu, cuMemRelease, handle); /* the mapping keeps it */
	if (error == 0)
		r->base = r->mapping + r->desc.offset;
	return error;
}

/* --- several allocations --- */

/* The allocation must be of this GPU. Its size is checked by cuMemMap(), which maps no more than
 * there is. */
static int map_next(struct cuda_gpu *gpu, struct more_allocs *p, uint32_t i)
{
	const struct region_alloc *alloc = &p->more.allocs[i];
	struct region *r = p->region;
	CUmemGenericAllocationHandle handle = 0;
	CUmemAllocationProp prop = { 0 };
	int error =
		open_allocation(gpu, &p->import, p->more.memory, alloc->handle, alloc->fd, &handle);

	if (error)
		return error;
	error = TRY_HANDLE(gpu, &p->import, cuMemGetAllocationPropertiesFromHandle, &prop, handle);
	if (error == 0 && !is_here(gpu, &prop))
		error = REFUSE(&p->import, -EINVAL,
			       "allocs[%u]: the memory is not of the GPU that `device` names", i);
	if (error == 0)
		error = other_way(gpu, TRY_HANDLE(gpu, &p->import, cuMemMap,
						  r->mapping + r->mapped_bytes, alloc->bytes, 0,
						  handle, 0));
	(void)CUDA_DO(gpu, cuMemRelease, handle); /* the mapping keeps it */
	if (error == 0)
		r->mapped_bytes += alloc->bytes;
	return error;
}

static int map_more(struct cuda_gpu *gpu, struct more_allocs *p)
{
	const uint64_t from = p->region->mapped_bytes;
	int error = 0;

	for (uint32_t i = 0; i < p->more.n && error == 0; i++)
		error = map_next(gpu, p, i);
	return error ? error : allow_access(gpu, p->region, &p->import, from);
}

static int begin_range(struct cuda_gpu *gpu, struct more_allocs *p)
{
	struct region *r = p->region;
	int error = cuda_context_need(gpu, p->import.text, sizeof(p->import.text));

	if (error == 0)
		error = other_way(gpu, reserve_range(gpu, r, &p->import, p->more.region_bytes));
	if (error)
		return error;
	r->base = r->mapping;
	count(gpu, r);
	return 0;
}

static void import_allocs_now(struct cuda_gpu *gpu, struct cuda_request *request)
{
	struct more_allocs *p = (void *)request;
	struct region *r = p->region;
	int error = 0;

	if (p->first)
		error = r->import.status = begin_range(gpu, p);
	else if (r->generation != gpu->generation || gpu->state != CUDA_UP)
		error = REFUSE(&p->import, -EBUSY,
			       "%s failed after the first allocations, and comes back",
			       gpu->found->name);
	if (error == 0)
		error = map_more(gpu, p);
	p->import.status = ask_again(gpu, error);
	if (error)
		undo(gpu, r);
}

/* --- regions: requests --- */

static void import_now(struct cuda_gpu *gpu, struct cuda_request *request)
{
	struct region *r = (void *)request;
	int error = cuda_context_need(gpu, r->import.text, sizeof(r->import.text));

	if (error == 0)
		error = r->desc.memory == WIRE_DEVICE_HANDLE ? import_handle(gpu, r) :
							       import_allocation(gpu, r);
	r->import.status = ask_again(gpu, error);
	if (error == 0)
		count(gpu, r);
}

static void release_now(struct cuda_gpu *gpu, struct cuda_request *request)
{
	undo(gpu, (void *)request);
}

/* --- requests whose asker has left --- */

static void *close_fd(void *arg)
{
	(void)close((int)(intptr_t)arg);
	return NULL;
}

/* A descriptor came from outside, and to close it may block for as long as its maker likes: a
 * thread does. If no thread can be made it stays open. */
static void close_elsewhere(int fd)
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, close_fd, (void *)(intptr_t)fd) == 0)
		(void)pthread_detach(thread);
}

static void close_fds(struct more_allocs *p, void (*close_one)(int fd))
{
	for (uint32_t i = 0; i < p->more.n; i++)
		if (p->more.allocs[i].fd >= 0)
			close_one(p->more.allocs[i].fd);
}

static void import_left(struct cuda_gpu *gpu, struct cuda_request *request)
{
	struct region *r = (void *)request;

	undo(gpu, r);
	if (r->desc.fd >= 0)
		close_elsewhere(r->desc.fd);
	free(r);
}

static void import_allocs_left(struct cuda_gpu *gpu, struct cuda_request *request)
{
	struct more_allocs *p = (void *)request;

	if (p->import.status == 0)
		undo(gpu, p->region);
	close_fds(p, close_elsewhere);
	free(p->region);
	free(p);
}

static void release_left(struct cuda_gpu *gpu, struct cuda_request *request)
{
	(void)gpu;
	free(request);
}

/* --- on helper threads --- */

/* 0: the thread has answered, and the import has its word. -ETIMEDOUT: the import is the thread's.
 * Another -errno: it was not sent. */
static int ask(struct cuda_gpu *gpu, struct import *import, char *text, size_t n)
{
	const int error = cuda_gpu_ask(gpu, &import->request, IMPORT_NS, text, n);

	if (error == 0 && import->status)
		snprintf(text, n, "%s", import->text);
	return error;
}

/* -EAGAIN has another meaning to the intake (intake.h). */
static int result(int error, const struct import *import)
{
	error = error ? error : import->status;
	return error == -EAGAIN ? -EBUSY : error;
}

/* Sends the release. If the thread cannot answer now, the request is the thread's. */
static void release(struct cuda_gpu *gpu, struct cuda_request *request,
		    void (*work)(struct cuda_gpu *gpu, struct cuda_request *request))
{
	int error;

	request->work = work;
	request->left = release_left;
	error = cuda_gpu_ask(gpu, request, RELEASE_NS, NULL, 0);
	if (error == -EBUSY || error == -EAGAIN)
		error = cuda_gpu_ask(gpu, request, 0, NULL, 0);
	if (error == 0)
		free(request);
}

static void describe(struct device *device, struct region *r, uint64_t length,
		     struct device_region *ret)
{
	*ret = (struct device_region){
		.device = device,
		.base = (uint8_t *)(uintptr_t)r->base,
		.length = length,
		.generation = r->generation,
		.own = r,
	};
}

int cuda_region_import(struct device *device, const struct region_desc *desc,
		       struct device_region *ret, char *text, size_t n)
{
	struct region *r;
	int error;

	if (desc->memory < WIRE_DEVICE_HANDLE)
		return text_fail(text, n, -EINVAL, "memory is %u: no memory of a GPU",
				 (unsigned)desc->memory);
	r = calloc(1, sizeof(*r));
	if (!r)
		return text_fail(text, n, -ENOMEM, "out of memory for a region");
	r->import.request = (struct cuda_request){ .work = import_now, .left = import_left };
	r->desc = *desc;
	r->desc.fd = desc->fd < 0 ? -1 : fcntl(desc->fd, F_DUPFD_CLOEXEC, 0);
	error = ask(cuda_gpu_of(device), &r->import, text, n);
	if (error == -ETIMEDOUT)
		return error;
	if (r->desc.fd >= 0)
		(void)close(r->desc.fd);
	error = result(error, &r->import);
	if (error)
		free(r);
	else
		describe(device, r, desc->length, ret);
	return error;
}

static void close_here(int fd)
{
	(void)close(fd);
}

static int duplicate(struct more_allocs *p, char *text, size_t n)
{
	int error = 0;

	for (uint32_t i = 0; i < p->more.n; i++) {
		struct region_alloc *alloc = &p->more.allocs[i];

		if (alloc->fd >= 0 && error == 0) {
			alloc->fd = fcntl(alloc->fd, F_DUPFD_CLOEXEC, 0);
			error = alloc->fd < 0 ? -errno : 0;
		} else {
			alloc->fd = -1;
		}
	}
	return error ? text_fail(text, n, error, "the daemon cannot keep the descriptors: %s",
				 strerror(-error)) :
		       0;
}

int cuda_region_import_allocs(struct device *device, const struct region_allocs *more,
			      struct device_region *region, char *text, size_t n)
{
	struct region *r = region->own ? region->own : calloc(1, sizeof(*r));
	struct more_allocs *p = calloc(1, sizeof(*p));
	int error;

	if (!p || !r) {
		if (!region->own)
			free(r);
		free(p);
		return text_fail(text, n, -ENOMEM, "out of memory for a region");
	}
	*p = (struct more_allocs){
		.import.request = { .work = import_allocs_now, .left = import_allocs_left },
		.region = r,
		.more = *more,
		.first = !region->own,
	};
	r->desc.fd = -1;
	error = duplicate(p, text, n);
	if (error == 0)
		error = ask(cuda_gpu_of(device), &p->import, text, n);
	if (error == -ETIMEDOUT) {
		*region = (struct device_region){ 0 };
		return error;
	}
	if (error == 0 && p->import.status == 0) {
		describe(device, r, more->region_bytes, region);
	} else if (error == 0 || p->first) {
		free(r);
		*region = (struct device_region){ 0 };
	}
	error = result(error, &p->import);
	close_fds(p, close_here);
	free(p);
	return error;
}

void cuda_region_release(struct device *device, struct device_region *region)
{
	struct region *r = region->own;

	release(cuda_gpu_of(device), &r->import.request, release_now);
	region->own = NULL;
}
