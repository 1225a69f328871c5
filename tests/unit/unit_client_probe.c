/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) link=client.a (the library's inner names) */
/*
 * unit_client_probe - goal: a region of a GPU's memory in as many allocations as a region may have
 * can be exported, one in more cannot, and the library names the engine's setting that helps.
 * Method: a driver of one call, whose memory is small allocations side by side, without end.
 */
#include "tests/lib/lib.h"

#include <string.h>

#include "client/lib/cuda_probe.h"
#include "client/wire.h"

static const uint64_t base = 1ull << 40, part = 2 << 20;

static CUresult attributes(unsigned n, CUpointer_attribute *names, void **values, CUdeviceptr at)
{
	for (unsigned i = 0; i < n; i++)
		switch (names[i]) {
		case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
			*(unsigned *)values[i] = CU_MEMORYTYPE_DEVICE;
			break;
		case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
			*(uint64_t *)values[i] = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
			break;
		case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
		case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
			*(uint64_t *)values[i] = at / part * part;
			break;
		case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
			*(uint64_t *)values[i] = part;
			break;
		default:
			break;
		}
	return CUDA_SUCCESS;
}

static uint32_t rungs(uint64_t parts, char why[200])
{
	const struct cuda_api api = { .cuPointerGetAttributes = attributes };
	const struct kvtier_region region = {
		.memory = KVTIER_CUDA,
		.base = (void *)(uintptr_t)base,
		.length = parts * part,
	};
	struct cuda_facts facts;
	struct cuda_range range;
	uint32_t ret = 0;

	why[0] = '\0';
	assert_int_equal(cuda_probe(&api, &region, 0, &facts, &range, &ret, why), 0);
	assert_int_equal(range.parts, parts);
	return ret;
}

static void as_many_allocations_as_may_be_are_exported(void **state)
{
	char why[200];

	(void)state;
	assert_true(rungs(WIRE_MAX_RANGE_PARTS, why) & 1u << CUDA_RUNG_FD);
	assert_string_equal(why, "");
}

static void too_many_are_staged_and_the_setting_is_named(void **state)
{
	char why[200];

	(void)state;
	assert_int_equal(rungs(WIRE_MAX_RANGE_PARTS + 1, why), 1u << CUDA_RUNG_STAGED);
	assert_string_equal(why, "it lies in 65537 allocations; a region has at most 65536: in "
				 "torch, expandable_segments:False takes one allocation");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(as_many_allocations_as_may_be_are_exported),
		cmocka_unit_test(too_many_are_staged_and_the_setting_is_named),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
