/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_probe.c - the kind of a region of a GPU's memory. The driver is asked about the region's
 * first address, and about each further allocation that the region reaches into. Nothing is
 * guessed: only a kind that the driver names is tried.
 *
 * Allocations by cuMemCreate() that are mapped side by side are one region. torch's expandable
 * segments are such: thousands of allocations of 2 or 20 MiB each. Allocations of cudaMalloc() are
 * not one region, even where one happens to lie behind the other: they are freed one by one, and no
 * handle spans two.
 */
#include "cuda_probe.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "cuda.h"
#include "error.h"

/* name of a fact, attribute of the driver: which writes 1, 4 or 8 bytes. The manual of
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

/* The driver does not know the attribute, or not of this memory: then there is no such fact. Any
 * other result is an error. */
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

/* Another call has the same answer, if a context is current. */
static void range_ask(const struct cuda_api *api, uint64_t address, struct cuda_facts *ret)
{
	CUdeviceptr start;
	size_t bytes;

	if (api->cuMemGetAddressRange(&start, &bytes, address))
		return;
	ret->start = start;
	ret->bytes = bytes;
}

int cuda_facts_ask(const struct cuda_api *api, uint64_t address, struct cuda_facts *ret)
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

/* Mappings that lie side by side, from the first one on, until they hold the region or end. types:
 * of handles that all of them have. */
static int walk(const struct cuda_api *api, const struct cuda_facts *first, uint64_t end,
		struct cuda_range *ret, uint64_t *types)
{
	*ret = (struct cuda_range){ first->start, first->bytes, 1 };
	while (first->mapped && ret->start + ret->bytes < end) {
		const uint64_t at = ret->start + ret->bytes;
		struct cuda_facts next;
		const int rc = cuda_facts_ask(api, at, &next);

		if (rc)
			return rc;
		if (next.type != CU_MEMORYTYPE_DEVICE || next.ordinal != first->ordinal ||
		    !next.mapped || next.start != at || !next.bytes)
			return 0;
		ret->bytes += next.bytes;
		ret->parts++;
		*types &= next.handle_types;
	}
	return 0;
}

/* Which rungs there are, and why not more. */
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
	else if (range->parts > WIRE_MAX_RANGE_PARTS)
		(void)snprintf(why, 200,
			       "it lies in %u allocations; a region has at most %d: in torch, "
			       "expandable_segments:False takes one allocation",
			       range->parts, WIRE_MAX_RANGE_PARTS);
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
	int rc = cuda_facts_ask(api, base, ret);

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
