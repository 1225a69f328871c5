/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_memory.c - a GPU's memory on its way to the daemon: asked about, exported, copied.
 *
 * Nothing is guessed. The driver says of each pointer its GPU, how far the allocation goes, and the
 * kinds of handle that can be made of it; what it does not say is not tried. Handles are made anew
 * at each connection, and descriptors are closed once they are sent, so that nothing here keeps the
 * engine's memory alive.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client.h"
#include "cuda.h"

/* What the driver says of an address. */
struct facts {
	unsigned type;
	int ordinal;
	bool managed, legacy_ipc, pool;
	uint64_t start, bytes; /* of its allocation, or of its mapping (cuMemMap) */
	uint64_t handle_types;
	CUcontext context; /* NULL: by cuMemMap, which belongs to none */
};

/* name of a fact, attribute of the driver: which writes 1, 4 or 8 bytes */
#define FACTS(X)                                                       \
	X(type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE)                      \
	X(managed, CU_POINTER_ATTRIBUTE_IS_MANAGED)                    \
	X(ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)                \
	X(legacy_ipc, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE) \
	X(start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR)                \
	X(bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE)                      \
	X(mapping_start, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR)       \
	X(mapping_bytes, CU_POINTER_ATTRIBUTE_MAPPING_SIZE)            \
	X(handle_types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES)     \
	X(context, CU_POINTER_ATTRIBUTE_CONTEXT)                       \
	X(pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE)

static int facts_ask(const struct cuda_api *api, uint64_t address, struct facts *ret)
{
#define FACT_INDEX(name, attribute) FACT_##name,
	enum { FACTS(FACT_INDEX) FACTS_N };
#define FACT_NAME(name, attribute) attribute,
	CUpointer_attribute names[] = { FACTS(FACT_NAME) };
	uint64_t facts[FACTS_N] = { 0 };
	void *values[FACTS_N];
	CUresult r;

	for (size_t i = 0; i < FACTS_N; i++)
		values[i] = &facts[i];
	r = api->cuPointerGetAttributes(FACTS_N, names, values, address);
	if (r)
		return driver_error(r, "cuPointerGetAttributes");
	*ret = (struct facts){
		.type = (unsigned)facts[FACT_type],
		.managed = facts[FACT_managed] != 0,
		.ordinal = (int)(uint32_t)facts[FACT_ordinal],
		.legacy_ipc = facts[FACT_legacy_ipc] != 0,
		.start = facts[FACT_start],
		.bytes = facts[FACT_bytes],
		.handle_types = facts[FACT_handle_types],
		.context = (CUcontext)(uintptr_t)facts[FACT_context],
		.pool = facts[FACT_pool] != 0,
	};
	if (!ret->context && !ret->pool && facts[FACT_mapping_bytes]) {
		ret->start = facts[FACT_mapping_start];
		ret->bytes = facts[FACT_mapping_bytes];
	}
	return 0;
}

static int facts_check(const struct facts *f, const struct kvtier_region *region, size_t i)
{
	if (f->managed)
		return error_set(-EINVAL,
				 "regions[%zu].base is managed memory, which moves between GPU and "
				 "host: use memory of cudaMalloc()",
				 i);
	if (f->type != CU_MEMORYTYPE_DEVICE || f->ordinal < 0 || !f->bytes)
		return error_set(
			-EINVAL,
			"regions[%zu].base is %p, no address of a GPU's memory: KVTIER_CUDA "
			"takes device pointers, KVTIER_PRIVATE and KVTIER_MEMFD the host's",
			i, region->base);
	return 0;
}

/* The rungs of a region, or -errno and its sentence. */
static int region_rungs(const struct cuda_api *api, const struct kvtier_region *region, size_t i,
			const struct facts *first, uint32_t *ret, char why[200])
{
	const uint64_t base = (uintptr_t)region->base, end = base + region->length;
	const bool mapping = !first->context && !first->pool && !first->legacy_ipc;
	uint64_t at = first->start + first->bytes;
	uint32_t n = 1;

	while (mapping && at < end) {
		struct facts next;
		int rc = facts_ask(api, at, &next);

		if (rc)
			return rc;
		if (next.type != CU_MEMORYTYPE_DEVICE || next.ordinal != first->ordinal ||
		    next.start + next.bytes <= at)
			break;
		at = next.start + next.bytes;
		n++;
	}
	if (end < base || at < end)
		return error_set(-EINVAL,
				 "regions[%zu].length is %llu: the allocation at its base has %llu "
				 "bytes from there on",
				 i, (unsigned long long)region->length,
				 (unsigned long long)(at - base));
	*ret = 1u << CUDA_RUNG_STAGED;
	if (n > 1)
		(void)snprintf(why, 200,
			       "it lies in %u allocations: in torch, "
			       "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False makes it one",
			       n);
	else if (first->pool)
		(void)snprintf(why, 200,
			       "it is of a stream-ordered pool: in torch, "
			       "PYTORCH_CUDA_ALLOC_CONF=backend:native takes other memory");
	else if (first->legacy_ipc)
		*ret |= 1u << CUDA_RUNG_IPC;
	else if (!(first->handle_types &
		   (CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC)))
		(void)snprintf(why, 200, "it was made by cuMemCreate() without a type of handle");
	if (mapping && n == 1) {
		if (first->handle_types & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
			*ret |= 1u << CUDA_RUNG_FD;
		if (first->handle_types & CU_MEM_HANDLE_TYPE_FABRIC)
			*ret |= 1u << CUDA_RUNG_FABRIC;
	}
	return 0;
}

static enum cuda_rung best(uint32_t rungs)
{
	return (enum cuda_rung)__builtin_ctz(rungs);
}

static int stage_open(struct cuda_memory *m)
{
	CUresult r;
	int rc;

	if (m->rung != CUDA_RUNG_STAGED || m->stream)
		return 0;
	rc = cuda_enter(&m->device);
	if (rc)
		return rc;
	r = m->device.api->cuStreamCreateWithPriority(&m->stream, CU_STREAM_NON_BLOCKING, 0);
	cuda_leave(&m->device);
	return r ? driver_error(r, "cuStreamCreateWithPriority") : 0;
}

int cuda_memory_open(const struct kvtier_region *regions, size_t n, bool shares_pids,
		     struct cuda_memory **ret)
{
	const char *why;
	const struct cuda_api *api = cuda_driver(&why);
	struct cuda_memory *m;
	CUcontext context = NULL;
	int ordinal = -1, rc = 0;

	if (!api)
		return error_set(-ENODEV, "regions[0].memory is KVTIER_CUDA, but %s", why);
	m = calloc(1, sizeof(*m));
	if (!m)
		return error_set(-ENOMEM, "out of memory");
	m->n_regions = n;
	m->rungs = (1u << CUDA_RUNGS) - 1;
	memcpy(m->regions, regions, n * sizeof(*regions));
	for (size_t i = 0; i < n && !rc; i++) {
		uint32_t rungs = 0;
		struct facts f;

		rc = facts_ask(api, (uintptr_t)regions[i].base, &f);
		if (!rc)
			rc = facts_check(&f, &regions[i], i);
		if (!rc && i && f.ordinal != ordinal)
			rc = error_set(-EINVAL,
				       "regions[%zu] is of GPU %d, regions[0] of GPU %d: a space "
				       "has one",
				       i, f.ordinal, ordinal);
		if (!rc)
			rc = region_rungs(api, &regions[i], i, &f, &rungs, m->why);
		m->rungs &= rungs;
		ordinal = f.ordinal;
		if (!context)
			context = f.context;
	}
	if (!rc && (m->rungs & 1u << CUDA_RUNG_IPC) && !shares_pids) {
		m->rungs &= ~(1u << CUDA_RUNG_IPC);
		(void)snprintf(m->why, sizeof(m->why),
			       "the daemon is in another PID namespace, which CUDA IPC does not "
			       "reach: hostPID, or expandable_segments:True in torch");
	}
	if (!rc)
		rc = cuda_device_open(api, ordinal, context, &m->device);
	if (!rc) {
		m->rung = best(m->rungs);
		rc = stage_open(m);
	}
	if (rc)
		cuda_memory_close(m);
	else
		*ret = m;
	return rc;
}

void cuda_memory_close(struct cuda_memory *m)
{
	if (!m)
		return;
	if (m->stream && !cuda_enter(&m->device)) {
		(void)m->device.api->cuStreamDestroy(m->stream);
		cuda_leave(&m->device);
	}
	cuda_device_close(&m->device);
	free(m);
}

bool cuda_memory_next(struct cuda_memory *m, const char *why)
{
	if (m->rung == CUDA_RUNG_STAGED)
		return false;
	m->rungs &= ~(1u << m->rung);
	m->rung = best(m->rungs);
	(void)snprintf(m->why, sizeof(m->why), "%s", why);
	return stage_open(m) == 0;
}

/* An allocation by cuMemCreate(), as the descriptor or handle that was asked for. */
static int export_mapping(const struct cuda_memory *m, const struct kvtier_region *region,
			  CUmemAllocationHandleType type, void *ret)
{
	const struct cuda_api *api = m->device.api;
	CUmemGenericAllocationHandle handle;
	CUresult r = api->cuMemRetainAllocationHandle(&handle, region->base);

	if (r)
		return driver_error(r, "cuMemRetainAllocationHandle");
	r = api->cuMemExportToShareableHandle(ret, handle, type, 0);
	(void)api->cuMemRelease(handle);
	return r ? driver_error(r, "cuMemExportToShareableHandle") : 0;
}

static int export_region(const struct cuda_memory *m, const struct kvtier_region *region,
			 struct wire_region *ret, int *ret_fd)
{
	const struct cuda_api *api = m->device.api;
	CUmemFabricHandle fabric;
	CUipcMemHandle handle;
	struct facts f;
	CUresult r;
	int rc = facts_ask(api, (uintptr_t)region->base, &f);

	if (rc)
		return rc;
	if ((uintptr_t)region->base - f.start + region->length > f.bytes)
		return error_set(-EINVAL, "regions: the memory at %p is not the one it was",
				 region->base);
	ret->offset = (uintptr_t)region->base - f.start;
	switch (m->rung) {
	case CUDA_RUNG_IPC:
		r = api->cuIpcGetMemHandle(&handle, f.start);
		if (r)
			return driver_error(r, "cuIpcGetMemHandle");
		memcpy(ret->handle, &handle, sizeof(ret->handle));
		ret->memory = WIRE_DEVICE_HANDLE;
		return 0;
	case CUDA_RUNG_FD:
		ret->memory = WIRE_DEVICE_FD;
		return export_mapping(m, region, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, ret_fd);
	default:
		rc = export_mapping(m, region, CU_MEM_HANDLE_TYPE_FABRIC, &fabric);
		memcpy(ret->handle, &fabric, sizeof(ret->handle));
		ret->memory = WIRE_DEVICE_FABRIC;
		return rc;
	}
}

int cuda_memory_export(const struct cuda_memory *m, struct wire_region *ret, int *ret_fds,
		       size_t *ret_n_fds)
{
	size_t n_fds = 0;
	int rc = cuda_enter(&m->device);

	if (rc)
		return rc;
	for (size_t i = 0; i < m->n_regions && !rc; i++) {
		ret[i].length = m->regions[i].length;
		memcpy(ret[i].device, m->device.uuid, sizeof(ret[i].device));
		rc = export_region(m, &m->regions[i], &ret[i], &ret_fds[n_fds]);
		if (!rc && ret[i].memory == WIRE_DEVICE_FD)
			ret[i].fd_index = (uint32_t)n_fds++;
	}
	cuda_leave(&m->device);
	for (size_t i = 0; i < n_fds && rc; i++)
		(void)close(ret_fds[i]);
	*ret_n_fds = rc ? 0 : n_fds;
	return rc;
}

void cuda_memory_text(const struct cuda_memory *m, char *ret, size_t n)
{
	static const char *const names[CUDA_RUNGS] = {
		[CUDA_RUNG_IPC] = "CUDA IPC",
		[CUDA_RUNG_FD] = "CUDA descriptor",
		[CUDA_RUNG_FABRIC] = "CUDA fabric handle",
		[CUDA_RUNG_STAGED] = "CUDA staged",
	};

	(void)snprintf(ret, n, "%s%s%s", names[m->rung], *m->why ? ": " : "", m->why);
}

int cuda_memory_copy(const struct cuda_memory *m, const struct cuda_copy *copy)
{
	CUDA_MEMCPY2D c = {
		.WidthInBytes = copy->run,
		.Height = copy->rows,
	};
	CUresult r;
	int rc = cuda_enter(&m->device);

	if (rc)
		return rc;
	if (copy->to_device) {
		c.srcMemoryType = CU_MEMORYTYPE_HOST;
		c.srcHost = copy->host;
		c.srcPitch = copy->run;
		c.dstMemoryType = CU_MEMORYTYPE_DEVICE;
		c.dstDevice = copy->device;
		c.dstPitch = copy->stride;
	} else {
		c.srcMemoryType = CU_MEMORYTYPE_DEVICE;
		c.srcDevice = copy->device;
		c.srcPitch = copy->stride;
		c.dstMemoryType = CU_MEMORYTYPE_HOST;
		c.dstHost = copy->host;
		c.dstPitch = copy->run;
	}
	r = m->device.api->cuMemcpy2DAsync(&c, m->stream);
	cuda_leave(&m->device);
	return r ? driver_error(r, "cuMemcpy2DAsync") : 0;
}

static int synchronize(const struct cuda_memory *m)
{
	CUresult r;
	int rc = cuda_enter(&m->device);

	if (rc)
		return rc;
	r = m->device.api->cuStreamSynchronize(m->stream);
	cuda_leave(&m->device);
	return r ? driver_error(r, "cuStreamSynchronize") : 0;
}

int cuda_memory_copied(const struct cuda_memory *m)
{
	const int rc = synchronize(m);

	if (rc) /* maybe the error of an earlier call, said instead of the wait */
		(void)synchronize(m);
	return rc;
}

bool cuda_memory_pin(const struct cuda_memory *m, void *base, size_t bytes)
{
	CUresult r;

	if (cuda_enter(&m->device))
		return false;
	r = m->device.api->cuMemHostRegister(base, bytes, CU_MEMHOSTREGISTER_PORTABLE);
	cuda_leave(&m->device);
	return r == CUDA_SUCCESS;
}

void cuda_memory_unpin(const struct cuda_memory *m, void *base)
{
	if (cuda_enter(&m->device))
		return;
	(void)m->device.api->cuMemHostUnregister(base);
	cuda_leave(&m->device);
}
