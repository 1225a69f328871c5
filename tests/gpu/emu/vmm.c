/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vmm.c - virtual memory management: allocations, reserved addresses, mappings.
 *
 *	cuMemCreate, Import --> handle -- Map --> mapping -- SetAccess --> accessible
 *	  a handle goes with its last Release, a mapping with Unmap; memory with the last of them
 *
 * An exported descriptor says by its file's name that it is of this driver, of which GPU, and in
 * which form it may be exported. It opens nothing by itself (O_PATH): a program that maps or reads
 * it fails, as with a driver's. Its receiver closes it; a descriptor that is still open at exit is
 * a leak.
 */
#include <dirent.h>
#include <sys/stat.h>

#include "emu.h"

struct allocation {
	struct object object;
	struct physical *memory;
	unsigned refs; /* Create, Import, Retain; each wants a Release */
};

static struct reservation {
	struct reservation *next;
	CUdeviceptr base;
	size_t bytes;
	uint8_t *alias; /* of its first byte */
} * reservations;

static bool aligned(uint64_t n)
{
	return n % EMU_GRANULE == 0;
}

/* At the head of calls on an allocation, which is `a` behind it. */
#define CALL_ON_MEMORY(name, handle)                                                         \
	CALL(name, NEEDS_INIT);                                                              \
	struct allocation *const a =                                                         \
		(struct allocation *)object_find(OBJECT_MEMORY, handle, call_name(call.id)); \
                                                                                             \
	if (!a)                                                                              \
	return CUDA_ERROR_INVALID_VALUE

/* Takes the memory. */
static CUresult make(struct physical *memory, CUmemGenericAllocationHandle *ret)
{
	struct allocation *a = object_new(OBJECT_MEMORY, NULL, sizeof(*a));

	if (!a) {
		physical_release(memory);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	a->memory = memory;
	a->refs = 1;
	*ret = a->object.handle;
	return CUDA_SUCCESS;
}

/* --- allocations --- */

static CUresult check_prop(const CUmemAllocationProp *prop)
{
	const unsigned known = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC;

	if (!prop || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
	    prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE || prop->win32HandleMetaData)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_find(prop->location.id))
		return CUDA_ERROR_INVALID_DEVICE;
	if (prop->requestedHandleTypes & ~known)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (prop->requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC && !emu.settings.fabric)
		return CUDA_ERROR_NOT_SUPPORTED;
	return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *prop,
				       CUmemAllocationGranularity_flags option)
{
	CUresult r;

	CALL(cuMemGetAllocationGranularity, NEEDS_INIT);
	if (!bytes || option > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)
		return CUDA_ERROR_INVALID_VALUE;
	r = check_prop(prop);
	if (!r)
		*bytes = EMU_GRANULE;
	return r;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
		     const CUmemAllocationProp *prop, unsigned long long flags)
{
	struct physical *memory;
	CUresult r;

	CALL(cuMemCreate, NEEDS_INIT);
	r = check_prop(prop);
	if (r)
		return r;
	if (!handle || !bytes || !aligned(bytes) || flags)
		return CUDA_ERROR_INVALID_VALUE;
	memory = physical_make(device_find(prop->location.id), bytes, prop->requestedHandleTypes);
	return memory ? make(memory, handle) : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	CALL_ON_MEMORY(cuMemRelease, handle);
	if (--a->refs)
		return CUDA_SUCCESS;
	physical_release(a->memory);
	object_free(a);
	return call_done(&call);
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *ptr)
{
	struct range *range;
	struct object *object;
	uint32_t at = 0;

	CALL(cuMemRetainAllocationHandle, NEEDS_INIT);
	range = range_at((CUdeviceptr)ptr);
	if (!handle || !range || range->kind != RANGE_VMM)
		return CUDA_ERROR_INVALID_VALUE;
	while ((object = object_next(NULL, &at)) != NULL) {
		struct allocation *a = (struct allocation *)object;

		if (object->kind == OBJECT_MEMORY && a->memory == range->memory) {
			a->refs++;
			*handle = object->handle;
			return CUDA_SUCCESS;
		}
	}
	range->memory->refs++;
	return make(range->memory, handle);
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop,
						CUmemGenericAllocationHandle handle)
{
	CALL_ON_MEMORY(cuMemGetAllocationPropertiesFromHandle, handle);
	if (!prop)
		return CUDA_ERROR_INVALID_VALUE;
	*prop = (CUmemAllocationProp){
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = a->memory->handle_types,
		.location = { CU_MEM_LOCATION_TYPE_DEVICE, a->memory->gpu->ordinal },
	};
	return CUDA_SUCCESS;
}

/* --- between processes --- */

CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
				      CUmemAllocationHandleType type, unsigned long long flags)
{
	char path[64];
	int fd;

	CALL_ON_MEMORY(cuMemExportToShareableHandle, handle);
	if (!shareable || flags || !(a->memory->handle_types & type))
		return CUDA_ERROR_INVALID_VALUE;
	if (a->memory->fd < 0) /* of another process */
		return CUDA_ERROR_NOT_SUPPORTED;
	if (type == CU_MEM_HANDLE_TYPE_FABRIC) {
		ticket_make(TICKET_FABRIC, a->memory->gpu->physical, a->memory, shareable);
		return CUDA_SUCCESS;
	}
	snprintf(path, sizeof(path), "/proc/self/fd/%d", a->memory->fd);
	fd = open(path, O_PATH | O_CLOEXEC);
	if (fd < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	memcpy(shareable, &fd, sizeof(fd));
	return CUDA_SUCCESS;
}

/* Reads the name of the file behind a descriptor; false: it is not of this driver. */
static bool read_name(int fd, unsigned *ret_gpu, unsigned *ret_types)
{
	char path[64], name[128];
	ssize_t n;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	n = readlink(path, name, sizeof(name) - 1);
	if (n < 0)
		return false;
	name[n] = '\0';
	return sscanf(name, "/memfd:kvtier-emu:%u:%u", ret_gpu, ret_types) == 2;
}

/* A descriptor that can be mapped, of the memory of `shareable`; < 0: it may not be imported. */
static int open_shareable(void *shareable, CUmemAllocationHandleType type, unsigned *ret_gpu,
			  unsigned *ret_types, size_t *ret_bytes)
{
	const int given = (int)(intptr_t)shareable;
	struct ticket ticket;
	struct stat status;
	char path[64];
	int fd;

	if (type == CU_MEM_HANDLE_TYPE_FABRIC) {
		fd = ticket_open(TICKET_FABRIC, shareable, &ticket);
		*ret_gpu = ticket.gpu;
		*ret_types = ticket.handle_types;
	} else {
		if (!read_name(given, ret_gpu, ret_types))
			return -1;
		snprintf(path, sizeof(path), "/proc/self/fd/%d", given);
		fd = open(path, O_RDWR | O_CLOEXEC);
	}
	if (fd < 0)
		return -1;
	if (fstat(fd, &status) || !(*ret_types & type)) {
		close(fd);
		return -1;
	}
	*ret_bytes = (size_t)status.st_size;
	return fd;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable,
					CUmemAllocationHandleType type)
{
	struct physical *memory = NULL;
	unsigned gpu = 0, types = 0;
	size_t bytes = 0;
	int fd;

	CALL(cuMemImportFromShareableHandle, NEEDS_INIT);
	if (!handle ||
	    (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && type != CU_MEM_HANDLE_TYPE_FABRIC))
		return CUDA_ERROR_INVALID_VALUE;
	if (type == CU_MEM_HANDLE_TYPE_FABRIC && !emu.settings.fabric)
		return CUDA_ERROR_NOT_SUPPORTED;
	fd = open_shareable(shareable, type, &gpu, &types, &bytes);
	if (fd < 0) /* as driver 580 of an H100 says it */
		return type == CU_MEM_HANDLE_TYPE_FABRIC ? CUDA_ERROR_INVALID_VALUE :
							   CUDA_ERROR_UNKNOWN;
	if (device_of(gpu))
		memory = physical_open(device_of(gpu), fd, bytes, types);
	close(fd);
	if (!device_of(gpu))
		return CUDA_ERROR_INVALID_DEVICE;
	return memory ? make(memory, handle) : CUDA_ERROR_OUT_OF_MEMORY;
}

/* --- addresses --- */

static struct reservation *reservation_of(CUdeviceptr ptr, size_t bytes)
{
	struct reservation *r = reservations;

	while (r && !(ptr >= r->base && ptr - r->base < r->bytes && bytes <= r->bytes &&
		      ptr - r->base <= r->bytes - bytes))
		r = r->next;
	return r;
}

CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t bytes, size_t alignment, CUdeviceptr at,
			     unsigned long long flags)
{
	struct reservation *r;

	CALL(cuMemAddressReserve, NEEDS_INIT);
	(void)at; /* a wish */
	if (!ptr || !bytes || !aligned(bytes) || alignment & (alignment - 1) || flags)
		return CUDA_ERROR_INVALID_VALUE;
	r = calloc(1, sizeof(*r));
	if (!r)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*r = (struct reservation){ reservations, address_take(bytes, alignment), bytes,
				   alias_reserve(bytes) };
	if (!r->base || !r->alias) {
		free(r);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	reservations = r;
	*ptr = r->base;
	return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr ptr, size_t bytes)
{
	struct reservation **at = &reservations, *r;

	CALL(cuMemAddressFree, NEEDS_INIT);
	while (*at && (*at)->base != ptr)
		at = &(*at)->next;
	r = *at;
	if (!r || r->bytes != bytes || range_overlapping(ptr, bytes)) {
		violation("%s(%#llx, %zu): %s", call_name(call.id), ptr, bytes,
			  r && r->bytes == bytes ? "memory is still mapped there" :
						   "that is no reservation");
		return CUDA_ERROR_INVALID_VALUE;
	}
	*at = r->next;
	address_give(r->base, r->bytes);
	alias_free(r->alias, r->bytes);
	free(r);
	return call_done(&call);
}

CUresult cuMemMap(CUdeviceptr ptr, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
		  unsigned long long flags)
{
	const struct reservation *reservation;
	struct range r = { .kind = RANGE_VMM, .base = ptr, .bytes = bytes };

	CALL_ON_MEMORY(cuMemMap, handle);
	reservation = reservation_of(ptr, bytes);
	if (!reservation || !bytes || !aligned(ptr) || !aligned(bytes) || offset || flags ||
	    range_overlapping(ptr, bytes))
		return CUDA_ERROR_INVALID_VALUE;
	if (bytes > a->memory->bytes) /* as driver 580 of an H100 says it */
		return CUDA_ERROR_NOT_SUPPORTED;
	r.memory = a->memory;
	r.alias = reservation->alias + (ptr - reservation->base);
	r.gpu = a->memory->gpu;
	r.reserved = reservation->base;
	r.reserved_bytes = reservation->bytes;
	if (!physical_map_at(a->memory, r.alias, bytes) || !range_add(&r))
		return CUDA_ERROR_OUT_OF_MEMORY;
	a->memory->refs++;
	return CUDA_SUCCESS;
}

/* Whether mappings cover it, the first and the last one wholly. */
static bool mapped(CUdeviceptr ptr, size_t bytes)
{
	CUdeviceptr at = ptr;
	const struct range *r;

	while (at < ptr + bytes) {
		r = range_at(at);
		if (!r || r->kind != RANGE_VMM || r->base != at)
			return false;
		at += r->bytes;
	}
	return at == ptr + bytes;
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t bytes)
{
	CUdeviceptr at = ptr;

	CALL(cuMemUnmap, NEEDS_INIT);
	if (!bytes || !mapped(ptr, bytes)) {
		violation("%s(%#llx, %zu): that is not what was mapped", call_name(call.id), ptr,
			  bytes);
		return CUDA_ERROR_INVALID_VALUE;
	}
	while (at < ptr + bytes) {
		struct range *r = range_at(at);

		at += r->bytes;
		range_settle(r, call_name(call.id));
		range_drop(r);
	}
	return call_done(&call);
}

static CUresult check_access(const CUmemAccessDesc *access, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (access[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
		    !device_find(access[i].location.id) ||
		    (access[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE &&
		     access[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
		     access[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE))
			return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr ptr, size_t bytes, const CUmemAccessDesc *access, size_t n)
{
	CUdeviceptr at;

	CALL(cuMemSetAccess, NEEDS_INIT);
	if (!bytes || !access || !n || !mapped(ptr, bytes) || check_access(access, n))
		return CUDA_ERROR_INVALID_VALUE;
	pthread_rwlock_wrlock(&emu.map_lock);
	for (at = ptr; at < ptr + bytes;) {
		struct range *r = range_at(at);

		for (size_t i = 0; i < n; i++) {
			r->access = access[i].flags;
			if (device_find(access[i].location.id) != r->gpu)
				r->peer = device_find(access[i].location.id);
		}
		at += r->bytes;
	}
	pthread_rwlock_unlock(&emu.map_lock);
	return CUDA_SUCCESS;
}

/* --- leaks --- */

/* Descriptors that a cuMemExportToShareableHandle() of some process made: see open() there. */
static void say_open_exports(void)
{
	DIR *dir = opendir("/proc/self/fd");
	const struct dirent *entry;
	unsigned gpu, types;

	while (dir && (entry = readdir(dir)) != NULL) {
		const int fd = atoi(entry->d_name);

		if (*entry->d_name != '.' && fcntl(fd, F_GETFL) & O_PATH &&
		    read_name(fd, &gpu, &types))
			leak("the exported descriptor %d is still open", fd);
	}
	if (dir)
		closedir(dir);
}

void vmm_at_exit(void)
{
	const struct reservation *r;
	const struct range *range;
	const struct object *object;
	uint32_t at = 0;

	while ((range = range_next(&at)) != NULL)
		if (range->kind == RANGE_VMM)
			leak("%zu bytes are still mapped", range->bytes);
	for (r = reservations; r; r = r->next)
		leak("%zu bytes of addresses are still reserved", r->bytes);
	for (at = 0; (object = object_next(NULL, &at)) != NULL;)
		if (object->kind == OBJECT_MEMORY)
			leak("a handle of an allocation was not released");
	say_open_exports();
}
