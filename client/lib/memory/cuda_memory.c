/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_memory.c - a GPU's memory on its way to the daemon: it is probed, opened, exported and
 * copied. Handles are made anew for each connection, and descriptors are closed once they are sent.
 * So this file does not keep the engine's memory alive.
 *
 * To probe a region, the driver is asked about its first address and about each further allocation
 * that it reaches into. Only ways that the driver names are tried. Allocations of cuMemCreate()
 * that are mapped side by side may be one region: torch's expandable segments are thousands of
 * allocations of 2 or 20 MiB. Allocations of cudaMalloc() are never one region, even if one happens
 * to lie behind the other, because each is freed by itself and no handle spans two.
 *
 * The daemon is told of a region in several allocations by several messages (ALLOCS in wire.h),
 * each with at most CUDA_ALLOCS_A_MESSAGE of them. So an engine needs few free descriptors, however
 * large its pages are. `told` is how far this has come.
 */
#include "cuda_memory.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/lib/base/last_error.h"

/* ---- probing ---- */

/* The name of a fact, and the driver's attribute, which has 1, 4 or 8 bytes. The manual of
 * cuPointerGetAttributes() lists all but the last two. */
#define FACTS(X)                                                       \
	X(type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE)                      \
	X(managed, CU_POINTER_ATTRIBUTE_IS_MANAGED)                    \
	X(ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)                \
	X(legacy_ipc, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE) \
	X(start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR)                \
	X(bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE)                      \
	X(handle_types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES)     \
	X(context, CU_POINTER_ATTRIBUTE_CONTEXT)                       \
	X(pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE)                   \
	X(mapping_start, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR)       \
	X(mapping_bytes, CU_POINTER_ATTRIBUTE_MAPPING_SIZE)

#define FACT_INDEX(name, attribute) FACT_##name,
enum { FACTS(FACT_INDEX) FACTS_N };
enum { FACTS_LISTED = FACT_mapping_start };

/* Whether the driver says that it does not know the attribute, or not for this memory. Then there
 * is no such fact. Any other result is an error. */
static bool is_refusal(CUresult r)
{
	return r == CUDA_ERROR_INVALID_VALUE || r == CUDA_ERROR_NOT_SUPPORTED;
}

static int ask(const struct cuda_api *api, uint64_t address, uint64_t facts[FACTS_N])
{
#define FACT_NAME(name, attribute) attribute,
	CUpointer_attribute names[] = { FACTS(FACT_NAME) };
	void *values[FACTS_N];
	CUresult r;

	for (size_t i = 0; i < FACTS_N; i++)
		values[i] = &facts[i];
	r = api->cuPointerGetAttributes(FACTS_LISTED, names, values, address);
	if (r && !is_refusal(r))
		return driver_error(r, "cuPointerGetAttributes");
	for (size_t i = r ? 0 : FACTS_LISTED; i < FACTS_N; i++) {
		r = api->cuPointerGetAttribute(values[i], names[i], address);
		if (is_refusal(r))
			facts[i] = i == FACT_ordinal ? UINT32_MAX : 0; /* never GPU 0 by chance */
		else if (r)
			return driver_error(r, "cuPointerGetAttribute");
	}
	return 0;
}

/* Another call gives the same answer, if a context is current. */
static void range_ask(const struct cuda_api *api, uint64_t address, struct cuda_facts *ret)
{
	CUdeviceptr start;
	size_t bytes;

	if (api->cuMemGetAddressRange(&start, &bytes, address))
		return;
	ret->start = start;
	ret->bytes = bytes;
}

static int facts_ask(const struct cuda_api *api, uint64_t address, struct cuda_facts *ret)
{
	uint64_t facts[FACTS_N] = { 0 };
	int rc;

	rc = ask(api, address, facts);
	if (rc)
		return rc;
	*ret = (struct cuda_facts){
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
	ret->mapped = !ret->context && !ret->pool && !ret->legacy_ipc;
	if (ret->mapped && facts[FACT_mapping_start] && facts[FACT_mapping_bytes]) {
		ret->start = facts[FACT_mapping_start];
		ret->bytes = facts[FACT_mapping_bytes];
	} else if (ret->mapped || !ret->start || !ret->bytes) {
		range_ask(api, address, ret);
	}
	return 0;
}

static int check(const struct cuda_facts *f, const struct kvtier_region *region, size_t i)
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

/* Joins the mappings that lie side by side, from the first one on, until they hold the region or
 * end. types: the types of handles that all of them have. */
static int walk(const struct cuda_api *api, const struct cuda_facts *first, uint64_t end,
		struct cuda_range *ret, uint64_t *types)
{
	*ret = (struct cuda_range){ first->start, first->bytes, 1 };
	while (first->mapped && ret->start + ret->bytes < end) {
		const uint64_t at = ret->start + ret->bytes;
		struct cuda_facts next;
		const int rc = facts_ask(api, at, &next);

		if (rc)
			return rc;
		if (next.type != CU_MEMORYTYPE_DEVICE || next.ordinal != first->ordinal ||
		    !next.mapped || next.start != at || !next.bytes)
			return 0;
		ret->bytes += next.bytes;
		ret->allocs++;
		*types &= next.handle_types;
	}
	return 0;
}

/* Says which rungs there are, and why there are no more. */
static uint32_t rungs_of(const struct cuda_facts *f, const struct cuda_range *range, uint64_t types,
			 char why[200])
{
	uint32_t rungs = 1u << CUDA_RUNG_STAGED;

	if (f->pool)
		(void)snprintf(why, 200,
			       "it is of a stream-ordered pool: in torch, "
			       "PYTORCH_CUDA_ALLOC_CONF=backend:native takes other memory");
	else if (f->legacy_ipc)
		rungs |= 1u << CUDA_RUNG_IPC;
	else if (!f->mapped)
		(void)snprintf(why, 200,
			       "its driver makes no IPC handle of it: memory of "
			       "another process, or of a machine without CUDA IPC");
	else if (range->allocs > WIRE_MAX_RANGE_ALLOCS)
		(void)snprintf(why, 200,
			       "it lies in %u allocations; a region has at most %d: in torch, "
			       "expandable_segments:False takes one allocation",
			       range->allocs, WIRE_MAX_RANGE_ALLOCS);
	else if (!(types & (CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC)))
		(void)snprintf(why, 200,
			       "it was made by cuMemCreate() without a type of handle "
			       "(requestedHandleTypes POSIX_FILE_DESCRIPTOR): in vLLM, "
			       "enable_sleep_mode=False takes other memory");
	else
		rungs |= (types & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ? 1u << CUDA_RUNG_FD :
									     0) |
			 (types & CU_MEM_HANDLE_TYPE_FABRIC ? 1u << CUDA_RUNG_FABRIC : 0);
	return rungs;
}

int cuda_probe(const struct cuda_api *api, const struct kvtier_region *region, size_t i,
	       struct cuda_facts *ret, struct cuda_range *ret_range, uint32_t *ret_rungs,
	       char why[200])
{
	const uint64_t base = (uintptr_t)region->base, end = base + region->length;
	uint64_t types, stop;
	int rc = facts_ask(api, base, ret);

	if (!rc)
		rc = check(ret, region, i);
	types = rc ? 0 : ret->handle_types;
	if (!rc)
		rc = walk(api, ret, end, ret_range, &types);
	if (rc)
		return rc;
	stop = ret_range->start + ret_range->bytes;
	if (end < base || stop < end)
		return error_set(-EINVAL,
				 "regions[%zu].length is %llu: the allocation at its base has %llu "
				 "bytes from there on, to %#llx; what follows is no part of it, "
				 "and a region of its own if it is memory",
				 i, (unsigned long long)region->length,
				 (unsigned long long)(stop - base), (unsigned long long)stop);
	*ret_rungs = rungs_of(ret, ret_range, types, why);
	return 0;
}

/* ---- opening, by the best rung ---- */

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
	cuda_relax(api);
	for (size_t i = 0; i < n && !rc; i++) {
		uint32_t rungs = 0;
		struct cuda_facts f;

		rc = cuda_probe(api, &regions[i], i, &f, &m->ranges[i], &rungs, m->why);
		if (!rc && i && f.ordinal != ordinal)
			rc = error_set(-EINVAL,
				       "regions[%zu] is of GPU %d, regions[0] of GPU %d: a space "
				       "has one",
				       i, f.ordinal, ordinal);
		m->rungs &= rungs;
		ordinal = f.ordinal;
		if (!context)
			context = f.context;
	}
	cuda_unrelax(api);
	if (!rc && (m->rungs & 1u << CUDA_RUNG_IPC) && !shares_pids) {
		m->rungs &= ~(1u << CUDA_RUNG_IPC);
		(void)snprintf(m->why, sizeof(m->why),
			       "the daemon is in another PID namespace, which CUDA IPC does not "
			       "reach: hostPID, or expandable_segments:True in torch");
	}
	if (!rc)
		rc = cuda_device_open(api, ordinal, context, &m->device);
	if (!rc) {
		m->possible = m->rungs;
		memcpy(m->why_possible, m->why, sizeof(m->why));
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
	(void)snprintf(m->why, sizeof(m->why), "%s", why);
	m->rungs &= ~(1u << m->rung);
	m->rung = best(m->rungs);
	return stage_open(m) == 0;
}

bool cuda_memory_again(struct cuda_memory *m)
{
	if (m->rungs == m->possible && !m->anew)
		return false;
	m->anew = true;
	m->rungs = m->possible;
	m->rung = best(m->rungs);
	memcpy(m->why, m->why_possible, sizeof(m->why));
	return true;
}

/* ---- exporting ---- */

/* Whether the daemon is told of the region in ALLOCS. */
static bool in_allocs(const struct cuda_memory *m, size_t i)
{
	return m->ranges[i].allocs > 1 && (m->rung == CUDA_RUNG_FD || m->rung == CUDA_RUNG_FABRIC);
}

/* Exports an allocation of cuMemCreate() as a descriptor or a fabric handle, as the rung says. */
static int export_mapping(const struct cuda_memory *m, uint64_t address, uint8_t *ret_handle,
			  int *ret_fd)
{
	const struct cuda_api *api = m->device.api;
	const bool fd = m->rung == CUDA_RUNG_FD;
	CUmemGenericAllocationHandle handle;
	CUmemFabricHandle fabric;
	CUresult r = api->cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)address);

	if (r)
		return driver_error(r, "cuMemRetainAllocationHandle");
	r = api->cuMemExportToShareableHandle(fd ? (void *)ret_fd : (void *)&fabric, handle,
					      fd ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR :
						   CU_MEM_HANDLE_TYPE_FABRIC,
					      0);
	(void)api->cuMemRelease(handle);
	if (r)
		return driver_error(r, "cuMemExportToShareableHandle");
	if (!fd)
		memcpy(ret_handle, &fabric, sizeof(fabric));
	return 0;
}

static int another_memory(uint64_t address)
{
	return error_set(-EINVAL, "regions: the memory at %#llx is not the one it was",
			 (unsigned long long)address);
}

/* Names a region that ALLOCS have brought. */
static int name_range(const struct cuda_memory *m, size_t i, struct wire_region *ret)
{
	ret->memory = WIRE_DEVICE_RANGE;
	ret->fd_index = (uint32_t)i;
	ret->offset = (uintptr_t)m->regions[i].base - m->ranges[i].start;
	return 0;
}

static int export_region(const struct cuda_memory *m, const struct kvtier_region *region,
			 struct wire_region *ret, int *ret_fd)
{
	const struct cuda_api *api = m->device.api;
	const uint64_t base = (uintptr_t)region->base;
	CUipcMemHandle handle;
	struct cuda_facts f;
	CUresult r;
	int rc = facts_ask(api, base, &f);

	if (rc)
		return rc;
	if (base - f.start + region->length > f.bytes)
		return another_memory(base);
	ret->offset = base - f.start;
	if (m->rung != CUDA_RUNG_IPC) {
		ret->memory = m->rung == CUDA_RUNG_FD ? WIRE_DEVICE_FD : WIRE_DEVICE_FABRIC;
		return export_mapping(m, base, ret->handle, ret_fd);
	}
	r = api->cuIpcGetMemHandle(&handle, f.start);
	if (r)
		return driver_error(r, "cuIpcGetMemHandle");
	memcpy(ret->handle, &handle, sizeof(ret->handle));
	ret->memory = WIRE_DEVICE_HANDLE;
	return 0;
}

/* ---- regions in several allocations ---- */

void cuda_memory_begin(struct cuda_memory *m)
{
	m->told_region = 0;
	m->told = m->telling = 0;
	m->told_any = false;
}

/* Exports the allocation at `at` bytes of a range, if it still is as it was. */
static int export_alloc(const struct cuda_memory *m, const struct cuda_range *range, uint64_t at,
			struct wire_alloc *ret, int *ret_fd)
{
	const uint64_t address = range->start + at;
	struct cuda_facts f;
	int rc = facts_ask(m->device.api, address, &f);

	if (rc)
		return rc;
	if (!f.mapped || f.start != address || !f.bytes || f.bytes > range->bytes - at)
		return another_memory(address);
	*ret = (struct wire_alloc){ .bytes = f.bytes };
	return export_mapping(m, address, ret->handle, ret_fd);
}

/* Exports as many allocations as are left and fit into a message. */
static int export_allocs(struct cuda_memory *m, struct cuda_allocs *ret)
{
	const struct cuda_range *range = &m->ranges[m->told_region];
	uint32_t n = 0;
	int rc = cuda_enter(&m->device);

	if (rc)
		return rc;
	for (m->telling = m->told; n < CUDA_ALLOCS_A_MESSAGE && m->telling < range->bytes; n++) {
		rc = export_alloc(m, range, m->telling, &ret->allocs[n], &ret->fds[n]);
		if (rc)
			break; /* the ones before it are sent; the next message says it again */
		m->telling += ret->allocs[n].bytes;
	}
	cuda_leave(&m->device);
	ret->n_fds = m->rung == CUDA_RUNG_FD ? n : 0;
	ret->message.n_allocs = n;
	return n > 0 ? 0 : rc;
}

int cuda_memory_allocs(struct cuda_memory *m, struct cuda_allocs *ret)
{
	const struct cuda_range *range;
	int rc;

	while (m->told_region < m->n_regions &&
	       (!in_allocs(m, m->told_region) || m->told == m->ranges[m->told_region].bytes)) {
		m->told_region++;
		m->told = 0;
	}
	if (m->told_region == m->n_regions)
		return 0;
	range = &m->ranges[m->told_region];
	ret->message = (struct wire_allocs){
		.memory = m->rung == CUDA_RUNG_FD ? WIRE_DEVICE_FD : WIRE_DEVICE_FABRIC,
		.range = (uint32_t)m->told_region,
		.range_bytes = range->bytes,
		.at = m->told,
	};
	memcpy(ret->message.device, m->device.uuid, sizeof(ret->message.device));
	rc = export_allocs(m, ret);
	return rc ? rc : 1;
}

void cuda_memory_told(struct cuda_memory *m)
{
	m->told = m->telling;
	m->told_any = true;
}

int cuda_memory_export(const struct cuda_memory *m, struct wire_region *ret, int *ret_fds,
		       size_t *ret_n_fds)
{
	size_t n_fds = 0;
	int rc = cuda_enter(&m->device);

	if (rc)
		return rc;
	for (size_t i = 0; i < m->n_regions && !rc; i++) {
		ret[i] = (struct wire_region){ .length = m->regions[i].length };
		memcpy(ret[i].device, m->device.uuid, sizeof(ret[i].device));
		rc = in_allocs(m, i) ? name_range(m, i, &ret[i]) :
				       export_region(m, &m->regions[i], &ret[i], &ret_fds[n_fds]);
		if (!rc && ret[i].memory == WIRE_DEVICE_FD)
			ret[i].fd_index = (uint32_t)n_fds++;
	}
	cuda_leave(&m->device);
	for (size_t i = 0; i < n_fds && rc; i++)
		(void)close(ret_fds[i]);
	*ret_n_fds = rc ? 0 : n_fds;
	return rc;
}

enum kvtier_reach cuda_memory_text(const struct cuda_memory *m, char *ret, size_t n)
{
	static const struct {
		const char *name;
		enum kvtier_reach reach;
	} rungs[CUDA_RUNGS] = {
		[CUDA_RUNG_IPC] = { "CUDA IPC", KVTIER_REACH_CUDA_IPC },
		[CUDA_RUNG_FD] = { "CUDA descriptor", KVTIER_REACH_CUDA_FD },
		[CUDA_RUNG_FABRIC] = { "CUDA fabric handle", KVTIER_REACH_CUDA_FABRIC },
		[CUDA_RUNG_STAGED] = { "CUDA staged", KVTIER_REACH_CUDA_STAGED },
	};
	char allocs[32] = "";
	uint32_t most = 0;

	for (size_t i = 0; i < m->n_regions; i++)
		if (in_allocs(m, i) && m->ranges[i].allocs > most)
			most = m->ranges[i].allocs;
	if (most)
		(void)snprintf(allocs, sizeof(allocs), " of %u allocations", most);
	(void)snprintf(ret, n, "%s%s%s%s", rungs[m->rung].name, allocs, *m->why ? ": " : "",
		       m->why);
	return rungs[m->rung].reach;
}

/* ---- copies ---- */

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
