/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_memory.c - a GPU's memory on its way to the daemon: opened, exported, copied. cuda_probe.c
 * has asked the driver for its kind. Handles are made anew at each connection, and descriptors are
 * closed once they are sent, so that nothing here keeps the engine's memory alive.
 *
 * A region in several allocations is told of in several messages (PARTS in wire.h), each with
 * CUDA_PARTS_A_MESSAGE of them: so an engine needs few free descriptors, however large its pages
 * are. `told` is how far this has come.
 */
#include "cuda_memory.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda.h"
#include "cuda_probe.h"
#include "error.h"

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

int cuda_memory_open(const struct kvtier_region *regions, size_t n, bool shares_pids, bool engine,
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
	if (!rc && engine)
		m->rungs |= 1u << CUDA_RUNG_ENGINE;
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
	if (m->rung == CUDA_RUNG_ENGINE)
		(void)snprintf(m->not_engine, sizeof(m->not_engine), "%s", why);
	else
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
	m->not_engine[0] = '\0';
	return true;
}

/* The daemon is told of it in PARTS. */
static bool in_parts(const struct cuda_memory *m, size_t i)
{
	return m->ranges[i].parts > 1 && (m->rung == CUDA_RUNG_FD || m->rung == CUDA_RUNG_FABRIC);
}

/* An allocation by cuMemCreate(), as the descriptor or handle that was asked for. */
static int export_mapping(const struct cuda_memory *m, uint64_t address,
			  CUmemAllocationHandleType type, void *ret)
{
	const struct cuda_api *api = m->device.api;
	CUmemGenericAllocationHandle handle;
	CUresult r = api->cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)address);

	if (r)
		return driver_error(r, "cuMemRetainAllocationHandle");
	r = api->cuMemExportToShareableHandle(ret, handle, type, 0);
	(void)api->cuMemRelease(handle);
	return r ? driver_error(r, "cuMemExportToShareableHandle") : 0;
}

static int another_memory(uint64_t address)
{
	return error_set(-EINVAL, "regions: the memory at %#llx is not the one it was",
			 (unsigned long long)address);
}

/* PARTS have brought it. */
static int name_range(const struct cuda_memory *m, size_t i, struct wire_region *ret)
{
	ret->memory = WIRE_DEVICE_PARTS;
	ret->fd_index = (uint32_t)i;
	ret->offset = (uintptr_t)m->regions[i].base - m->ranges[i].start;
	return 0;
}

static int export_region(const struct cuda_memory *m, const struct kvtier_region *region,
			 struct wire_region *ret, int *ret_fd)
{
	const struct cuda_api *api = m->device.api;
	const uint64_t base = (uintptr_t)region->base;
	CUmemFabricHandle fabric;
	CUipcMemHandle handle;
	struct cuda_facts f;
	CUresult r;
	int rc = cuda_facts_ask(api, base, &f);

	if (rc)
		return rc;
	if (base - f.start + region->length > f.bytes)
		return another_memory(base);
	ret->offset = base - f.start;
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
		return export_mapping(m, base, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, ret_fd);
	default:
		rc = export_mapping(m, base, CU_MEM_HANDLE_TYPE_FABRIC, &fabric);
		memcpy(ret->handle, &fabric, sizeof(ret->handle));
		ret->memory = WIRE_DEVICE_FABRIC;
		return rc;
	}
}

/* --- regions in several allocations --- */

void cuda_memory_begin(struct cuda_memory *m)
{
	m->told_region = 0;
	m->told = m->telling = 0;
	m->told_any = false;
}

/* The allocation at that address of a range, if it still is as it was. */
static int export_part(const struct cuda_memory *m, const struct cuda_range *range, uint64_t at,
		       struct wire_part *ret, int *ret_fd)
{
	const uint64_t address = range->start + at;
	CUmemFabricHandle fabric;
	struct cuda_facts f;
	int rc = cuda_facts_ask(m->device.api, address, &f);

	if (rc)
		return rc;
	if (!f.mapped || f.start != address || !f.bytes || f.bytes > range->bytes - at)
		return another_memory(address);
	*ret = (struct wire_part){ .bytes = f.bytes };
	if (m->rung == CUDA_RUNG_FD)
		return export_mapping(m, address, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, ret_fd);
	rc = export_mapping(m, address, CU_MEM_HANDLE_TYPE_FABRIC, &fabric);
	memcpy(ret->handle, &fabric, sizeof(ret->handle));
	return rc;
}

/* As many as there are, and fit. */
static int export_parts(struct cuda_memory *m, struct cuda_parts *ret)
{
	const struct cuda_range *range = &m->ranges[m->told_region];
	uint32_t n = 0;
	int rc = cuda_enter(&m->device);

	if (rc)
		return rc;
	for (m->telling = m->told; n < CUDA_PARTS_A_MESSAGE && m->telling < range->bytes; n++) {
		rc = export_part(m, range, m->telling, &ret->parts[n], &ret->fds[n]);
		if (rc)
			break; /* the parts before it go; the next message says it again */
		m->telling += ret->parts[n].bytes;
	}
	cuda_leave(&m->device);
	ret->n_fds = m->rung == CUDA_RUNG_FD ? n : 0;
	ret->message.n_parts = n;
	return n > 0 ? 0 : rc;
}

int cuda_memory_parts(struct cuda_memory *m, struct cuda_parts *ret)
{
	const struct cuda_range *range;
	int rc;

	while (m->told_region < m->n_regions &&
	       (!in_parts(m, m->told_region) || m->told == m->ranges[m->told_region].bytes)) {
		m->told_region++;
		m->told = 0;
	}
	if (m->told_region == m->n_regions)
		return 0;
	range = &m->ranges[m->told_region];
	ret->message = (struct wire_parts){
		.memory = m->rung == CUDA_RUNG_FD ? WIRE_DEVICE_FD : WIRE_DEVICE_FABRIC,
		.range = (uint32_t)m->told_region,
		.range_bytes = range->bytes,
		.at = m->told,
	};
	memcpy(ret->message.device, m->device.uuid, sizeof(ret->message.device));
	rc = export_parts(m, ret);
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
		rc = in_parts(m, i) ? name_range(m, i, &ret[i]) :
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

void cuda_memory_text(const struct cuda_memory *m, char *ret, size_t n)
{
	static const char *const names[CUDA_RUNGS] = {
		[CUDA_RUNG_ENGINE] = "CUDA engine mode", [CUDA_RUNG_IPC] = "CUDA IPC",
		[CUDA_RUNG_FD] = "CUDA descriptor",      [CUDA_RUNG_FABRIC] = "CUDA fabric handle",
		[CUDA_RUNG_STAGED] = "CUDA staged",
	};

	char parts[32] = "";
	uint32_t most = 0;

	for (size_t i = 0; i < m->n_regions; i++)
		if (in_parts(m, i) && m->ranges[i].parts > most)
			most = m->ranges[i].parts;
	if (most)
		(void)snprintf(parts, sizeof(parts), " of %u allocations", most);
	if (m->rung == CUDA_RUNG_ENGINE) {
		(void)snprintf(ret, n, "%s", names[m->rung]);
		return;
	}
	(void)snprintf(ret, n, "%s%s%s%s%s%s", names[m->rung], parts, *m->why ? ": " : "", m->why,
		       *m->not_engine ? "; not in engine mode: " : "", m->not_engine);
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
