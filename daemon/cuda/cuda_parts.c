/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_parts.c - see cuda_parts.h. */
#include "cuda_parts.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda_context.h"
#include "daemon/base/container_of.h"

static const uint64_t IMPORT_NS = 10000000000u;

/* The next allocations of a region, on their way to the thread. */
struct cuda_parts {
	struct cuda_request request;
	struct cuda_region *region;
	struct region_parts more; /* its descriptors are duplicates */
	bool first;
	int status;
	char text[200];
};

static struct cuda_parts *parts_of(struct cuda_request *request)
{
	return container_of(request, struct cuda_parts, request);
}

/* --- on the GPU's thread --- */

/* The allocation must be of this GPU. Its size is checked by cuMemMap(), which maps no more than
 * there is. */
static int check(struct cuda_gpu *gpu, struct cuda_parts *p, uint32_t i,
		 CUmemGenericAllocationHandle handle)
{
	CUmemAllocationProp prop = { 0 };
	int error = CUDA_CALL(gpu, cuMemGetAllocationPropertiesFromHandle, p->text, sizeof(p->text),
			      &prop, handle);

	if (error == 0 && (prop.location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
			   prop.location.id != gpu->found->device)) {
		snprintf(p->text, sizeof(p->text),
			 "parts[%u]: the memory is not of the GPU that `device` names", i);
		error = -EINVAL;
	}
	return error;
}

static int map_one(struct cuda_gpu *gpu, struct cuda_parts *p, uint32_t i)
{
	const bool fabric = p->more.memory == WIRE_DEVICE_FABRIC;
	struct region_part *part = &p->more.parts[i];
	struct cuda_region *r = p->region;
	CUmemGenericAllocationHandle handle = 0;
	void *what = fabric ? (void *)part->handle : (void *)(uintptr_t)part->fd;
	int error =
		cuda_other_way(gpu, CUDA_CALL(gpu, cuMemImportFromShareableHandle, p->text,
					      sizeof(p->text), &handle, what,
					      fabric ? CU_MEM_HANDLE_TYPE_FABRIC :
						       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));

	if (error)
		return error;
	error = check(gpu, p, i, handle);
	if (error == 0)
		error = cuda_other_way(gpu, CUDA_CALL(gpu, cuMemMap, p->text, sizeof(p->text),
						      r->mapping + r->mapped_bytes, part->bytes, 0,
						      handle, 0));
	(void)CUDA_CALL(gpu, cuMemRelease, NULL, 0, handle); /* the mapping keeps it */
	if (error == 0)
		r->mapped_bytes += part->bytes;
	return error;
}

static int map_all(struct cuda_gpu *gpu, struct cuda_parts *p)
{
	const CUmemAccessDesc access = {
		.location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = gpu->found->device },
		.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
	};
	struct cuda_region *r = p->region;
	const uint64_t at = r->mapped_bytes;
	int error = 0;

	for (uint32_t i = 0; i < p->more.n && error == 0; i++)
		error = map_one(gpu, p, i);
	if (error == 0)
		error = CUDA_CALL(gpu, cuMemSetAccess, p->text, sizeof(p->text), r->mapping + at,
				  r->mapped_bytes - at, &access, 1);
	return error;
}

static int begin(struct cuda_gpu *gpu, struct cuda_parts *p)
{
	struct cuda_region *r = p->region;
	int error = cuda_context_need(gpu, p->text, sizeof(p->text));

	if (error == 0)
		error = cuda_other_way(gpu,
				       CUDA_CALL(gpu, cuMemAddressReserve, p->text, sizeof(p->text),
						 &r->mapping, p->more.region_bytes, 0, 0, 0));
	if (error)
		return error;
	r->mapping_bytes = p->more.region_bytes;
	r->base = r->mapping;
	cuda_region_count(gpu, r);
	return 0;
}

static void import_now(struct cuda_gpu *gpu, struct cuda_request *request)
{
	struct cuda_parts *p = parts_of(request);
	struct cuda_region *r = p->region;

	if (p->first) {
		p->status = r->status = begin(gpu, p);
	} else if (r->generation != gpu->generation || gpu->state != CUDA_UP) {
		p->status = -EBUSY;
		snprintf(p->text, sizeof(p->text),
			 "%s failed after the first parts, and comes back", gpu->found->name);
	}
	if (p->status == 0)
		p->status = map_all(gpu, p);
	if (p->status && gpu->state == CUDA_FAILING)
		p->status = -EBUSY;
	if (p->status)
		cuda_region_undo(gpu, r);
}

static void close_fds(struct cuda_parts *p, void (*close_fd)(int fd))
{
	for (uint32_t i = 0; i < p->more.n; i++)
		if (p->more.parts[i].fd >= 0)
			close_fd(p->more.parts[i].fd);
}

static void import_left(struct cuda_gpu *gpu, struct cuda_request *request)
{
	struct cuda_parts *p = parts_of(request);

	if (p->status == 0)
		cuda_region_undo(gpu, p->region);
	close_fds(p, cuda_close_elsewhere);
	free(p->region);
	free(p);
}

/* --- on helper threads --- */

static void close_here(int fd)
{
	(void)close(fd);
}

static int duplicate(struct cuda_parts *p)
{
	int error = 0;

	for (uint32_t i = 0; i < p->more.n; i++) {
		struct region_part *part = &p->more.parts[i];

		if (part->fd >= 0 && error == 0) {
			part->fd = fcntl(part->fd, F_DUPFD_CLOEXEC, 0);
			error = part->fd < 0 ? -errno : 0;
		} else {
			part->fd = -1;
		}
	}
	return error;
}

/* 0: the thread has answered, and p has its word. -ETIMEDOUT: p and its region are the thread's. */
static int ask(struct cuda_gpu *gpu, struct cuda_parts *p, char *text, size_t n)
{
	int error = duplicate(p);

	if (error)
		snprintf(text, n, "the daemon cannot keep the descriptors: %s", strerror(-error));
	else
		error = cuda_gpu_ask(gpu, &p->request, IMPORT_NS, text, n);
	return error == -EAGAIN ? -EBUSY : error;
}

int cuda_region_import_parts(struct cuda_gpu *gpu, const struct region_parts *more,
			     struct cuda_region **region, char *text, size_t n)
{
	struct cuda_parts *p = calloc(1, sizeof(*p));
	int error;

	if (p)
		p->region = *region ? *region : calloc(1, sizeof(*p->region));
	if (!p || !p->region) {
		free(p);
		snprintf(text, n, "out of memory for a region");
		return -ENOMEM;
	}
	p->first = !*region;
	p->more = *more;
	p->request.work = import_now;
	p->request.left = import_left;
	if (p->first)
		p->region->desc = (struct region_desc){ .memory = more->memory, .fd = -1 };
	error = ask(gpu, p, text, n);
	if (error == -ETIMEDOUT) {
		*region = NULL;
		return error;
	}
	if (error == 0 && p->status) {
		snprintf(text, n, "%s", p->text);
		free(p->region);
		*region = NULL;
	} else if (error && p->first) {
		free(p->region);
	} else if (error == 0) {
		*region = p->region;
	}
	error = error ? error : p->status;
	close_fds(p, close_here);
	free(p);
	return error;
}
