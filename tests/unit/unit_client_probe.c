/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) link=client.a (the library's inner names) */
/*
 * unit_client_probe - goal: a region of a GPU's memory in as many allocations as a region may have
 * can be exported, one in more cannot, and the library names the engine's setting that helps; an
 * attribute that the driver refuses costs a rung at most. Method: a driver of three calls, whose
 * memory is small allocations side by side, without end, and which answers for many attributes at
 * once only those that its manual lists.
 */
#include "tests/lib/lib.h"

#include "client/lib/memory/cuda_memory.h"
#include "client/abi/wire.h"

static const uint64_t base = 1ull << 40, part = 2 << 20;

static CUpointer_attribute refused; /* by both calls; 0: none */
static bool one_by_one;             /* the call for many is refused, whatever it asks for */

static bool is_listed(CUpointer_attribute name)
{
	return name != CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR &&
	       name != CU_POINTER_ATTRIBUTE_MAPPING_SIZE;
}

static void answer(CUpointer_attribute name, void *value, CUdeviceptr at)
{
	switch (name) {
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		*(unsigned *)value = CU_MEMORYTYPE_DEVICE;
		break;
	case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
		*(uint64_t *)value = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
		break;
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: /* of the reservation */
		*(uint64_t *)value = base;
		break;
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		*(uint64_t *)value = 1ull << 40;
		break;
	case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
		*(uint64_t *)value = at / part * part;
		break;
	case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
		*(uint64_t *)value = part;
		break;
	default:
		break;
	}
}

static CUresult attribute(void *value, CUpointer_attribute name, CUdeviceptr at)
{
	if (name == refused)
		return CUDA_ERROR_INVALID_VALUE;
	answer(name, value, at);
	return CUDA_SUCCESS;
}

static CUresult attributes(unsigned n, CUpointer_attribute *names, void **values, CUdeviceptr at)
{
	for (unsigned i = 0; i < n; i++)
		if (one_by_one || names[i] == refused || !is_listed(names[i]))
			return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < n; i++)
		answer(names[i], values[i], at);
	return CUDA_SUCCESS;
}

static CUresult address_range(CUdeviceptr *start, size_t *bytes, CUdeviceptr at)
{
	*start = at / part * part;
	*bytes = part;
	return CUDA_SUCCESS;
}

static int probe(uint64_t parts, uint32_t *rungs, struct cuda_range *range, char why[200])
{
	const struct cuda_api api = {
		.cuPointerGetAttribute = attribute,
		.cuPointerGetAttributes = attributes,
		.cuMemGetAddressRange = address_range,
	};
	const struct kvtier_region region = {
		.memory = KVTIER_CUDA,
		.base = (void *)(uintptr_t)base,
		.length = parts * part,
	};
	struct cuda_facts facts;

	why[0] = '\0';
	return cuda_probe(&api, &region, 0, &facts, range, rungs, why);
}

static uint32_t rungs(uint64_t parts, char why[200])
{
	struct cuda_range range;
	uint32_t ret = 0;

	assert_int_equal(probe(parts, &ret, &range, why), 0);
	assert_int_equal(range.allocs, parts);
	return ret;
}

TEST(as_many_allocations_as_may_be_are_exported)
{
	char why[200];

	assert_true(rungs(WIRE_MAX_RANGE_ALLOCS, why) & 1u << CUDA_RUNG_FD);
	assert_string_equal(why, "");
}

TEST(too_many_are_staged_and_the_setting_is_named)
{
	char why[200];

	assert_int_equal(rungs(WIRE_MAX_RANGE_ALLOCS + 1, why), 1u << CUDA_RUNG_STAGED);
	assert_string_equal(why, "it lies in 65537 allocations; a region has at most 65536: in "
				 "torch, expandable_segments:False takes one allocation");
}

/* The attributes that a driver may refuse, and the rungs that are left. Without the kind of memory
 * or the GPU's number a region cannot be told from one of the host, or of another GPU. */
TEST(a_refused_attribute_refuses_no_region)
{
	const uint32_t staged = 1u << CUDA_RUNG_STAGED, fd = 1u << CUDA_RUNG_FD | staged;
	const struct {
		CUpointer_attribute name;
		uint32_t rungs; /* 0: the region is refused */
	} rows[] = {
		{ 0, fd },
		{ CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, fd },
		{ CU_POINTER_ATTRIBUTE_MAPPING_SIZE, fd },
		{ CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, fd },
		{ CU_POINTER_ATTRIBUTE_RANGE_SIZE, fd },
		{ CU_POINTER_ATTRIBUTE_IS_MANAGED, fd },
		{ CU_POINTER_ATTRIBUTE_CONTEXT, fd },
		{ CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, fd },
		{ CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, fd },
		{ CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, staged },
		{ CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 0 },
		{ CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, 0 },
	};
	char why[200];

	for (size_t i = 0; i < 2 * sizeof(rows) / sizeof(*rows); i++) {
		struct cuda_range range;
		uint32_t found = 0;
		int rc;

		refused = rows[i / 2].name;
		one_by_one = i % 2;
		rc = probe(3, &found, &range, why);
		if (found != rows[i / 2].rungs || rc != (found ? 0 : -EINVAL))
			fail_msg("attribute %u: %d, rungs %#x", refused, rc, found);
		if (found)
			assert_int_equal(range.allocs, 3);
	}
	refused = 0;
	one_by_one = false;
}
