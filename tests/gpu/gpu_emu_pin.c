/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_emu_pin - the emulated driver sees each misuse of host memory that was registered: taken back
 * under a copy, lost with a context while another one copies, crossed from one registration into
 * the next, left behind; and it has a limit.
 */
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "tests/lib/lib.h"
#include "tests/lib/lib_gpu.h"

enum { PAGE = 4096, BYTES = 4 << 20, PINNED_MIB = 16 };

static struct gpu gpu, other;
static const struct cuda_api *cu;
static uint8_t *memory;
static CUdeviceptr on_gpu, on_other;

static int setup(void **state)
{
	(void)state;
	cu = gpu_api();
	memory = mmap(NULL, 8 * BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(memory, MAP_FAILED);
	gpu_open(&other, 1);
	GPU(cu->cuMemAlloc(&on_other, BYTES));
	gpu_open(&gpu, 0);
	GPU(cu->cuMemAlloc(&on_gpu, BYTES));
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	GPU(cu->cuMemFree(on_gpu));
	gpu_close(&gpu);
	GPU(cu->cuCtxSetCurrent(other.context));
	GPU(cu->cuMemFree(on_other));
	gpu_close(&other);
	(void)munmap(memory, 8 * BYTES);
	return 0;
}

/* Work that is queued now and done much later. */
static void copy_late(const struct gpu *g, CUdeviceptr to, const uint8_t *from)
{
	GPU(cu->cuCtxSetCurrent(g->context));
	for (int i = 0; i < 20; i++)
		GPU(cu->cuMemcpyHtoDAsync(to, from, BYTES, g->stream));
}

static void a_copy_waits_for_nothing_where_memory_is_registered(void **state)
{
	(void)state;
	GPU(cu->cuMemHostRegister(memory, BYTES, CU_MEMHOSTREGISTER_PORTABLE));
	gpu_report_clear();
	copy_late(&gpu, on_gpu, memory);
	assert_int_equal(cu->cuStreamQuery(gpu.stream), CUDA_ERROR_NOT_READY);
	GPU(cu->cuStreamSynchronize(gpu.stream));
	copy_late(&other, on_other, memory); /* PORTABLE: in all contexts */
	GPU(cu->cuStreamSynchronize(other.stream));
	assert_int_equal(gpu_reported("", "note", "pageable"), 0);
	GPU(cu->cuCtxSetCurrent(gpu.context));
	GPU(cu->cuMemHostUnregister(memory));
	gpu_report_clean("");
}

static void what_is_not_portable_is_pageable_elsewhere(void **state)
{
	(void)state;
	GPU(cu->cuMemHostRegister(memory, BYTES, 0));
	gpu_report_clear();
	GPU(cu->cuMemcpyHtoDAsync(on_gpu, memory, BYTES, gpu.stream));
	GPU(cu->cuStreamSynchronize(gpu.stream));
	assert_int_equal(gpu_reported("", "note", "pageable"), 0);
	GPU(cu->cuCtxSetCurrent(other.context));
	GPU(cu->cuMemcpyHtoDAsync(on_other, memory, BYTES, other.stream));
	assert_int_equal(gpu_reported("", "note", "pageable"), 1);
	GPU(cu->cuStreamSynchronize(other.stream));
	GPU(cu->cuCtxSetCurrent(gpu.context));
	GPU(cu->cuMemHostUnregister(memory));
	gpu_report_clean("");
}

static void memory_is_not_unregistered_under_a_copy(void **state)
{
	(void)state;
	GPU(cu->cuMemHostRegister(memory, BYTES, CU_MEMHOSTREGISTER_PORTABLE));
	copy_late(&other, on_other, memory);
	GPU(cu->cuCtxSetCurrent(gpu.context));
	gpu_expect(cu->cuMemHostUnregister(memory), CUDA_SUCCESS, "queued operations still use");
	GPU(cu->cuCtxSetCurrent(other.context));
	GPU(cu->cuStreamSynchronize(other.stream));
	GPU(cu->cuCtxSetCurrent(gpu.context));
}

static void a_copy_crosses_no_border_of_registrations(void **state)
{
	(void)state;
	GPU(cu->cuMemHostRegister(memory, BYTES, CU_MEMHOSTREGISTER_PORTABLE));
	gpu_expect(cu->cuMemcpyHtoDAsync(on_gpu, memory + BYTES - PAGE, 2 * PAGE, gpu.stream),
		   CUDA_ERROR_INVALID_VALUE, "out of bounds");
	GPU(cu->cuMemHostRegister(memory + BYTES, BYTES, CU_MEMHOSTREGISTER_PORTABLE));
	gpu_expect(cu->cuMemcpyHtoDAsync(on_gpu, memory + BYTES - PAGE, 2 * PAGE, gpu.stream),
		   CUDA_ERROR_INVALID_VALUE, "out of bounds");
	GPU(cu->cuMemHostUnregister(memory));
	gpu_expect(cu->cuMemcpyHtoDAsync(on_gpu, memory + BYTES - PAGE, 2 * PAGE, gpu.stream),
		   CUDA_ERROR_INVALID_VALUE, "pinned memory lies in a part of it");
	GPU(cu->cuMemHostUnregister(memory + BYTES));
}

static void registering_has_a_limit(void **state)
{
	void *pinned;
	int n = 0;

	(void)state;
	while (cu->cuMemHostRegister(memory + n * BYTES, BYTES, 0) == CUDA_SUCCESS)
		n++;
	assert_int_equal(n, (PINNED_MIB << 20) / BYTES);
	assert_int_equal(cu->cuMemHostAlloc(&pinned, PAGE, 0), CUDA_ERROR_OUT_OF_MEMORY);
	GPU(cu->cuMemHostUnregister(memory));
	GPU(cu->cuMemHostAlloc(&pinned, PAGE, 0));
	GPU(cu->cuMemFreeHost(pinned));
	while (--n > 0)
		GPU(cu->cuMemHostUnregister(memory + n * BYTES));
	gpu_report_clean("");
}

/* The other one's context breaks, as its memory is gone under its copies. */
static void a_context_that_goes_takes_its_registrations_along(void **state)
{
	(void)state;
	GPU(cu->cuMemHostRegister(memory, BYTES, CU_MEMHOSTREGISTER_PORTABLE));
	copy_late(&other, on_other, memory);
	GPU(cu->cuDevicePrimaryCtxReset(gpu.device));
	assert_int_equal(gpu_reported("", "violation", "operations of others use"), 1);
	assert_int_equal(gpu_reported("", "leak", "registered host memory"), 0);
	GPU(cu->cuCtxSetCurrent(other.context));
	assert_int_not_equal(cu->cuStreamSynchronize(other.stream), CUDA_SUCCESS);
	GPU(cu->cuDevicePrimaryCtxReset(other.device));
	GPU(cu->cuDevicePrimaryCtxRelease(other.device));
	GPU(cu->cuDevicePrimaryCtxRelease(gpu.device));
	gpu_open(&other, 1);
	GPU(cu->cuMemAlloc(&on_other, BYTES));
	gpu_open(&gpu, 0);
	GPU(cu->cuMemAlloc(&on_gpu, BYTES));
	gpu_report_clear();
	/* and leaves nothing: it can be registered again */
	GPU(cu->cuMemHostRegister(memory, BYTES, CU_MEMHOSTREGISTER_PORTABLE));
	GPU(cu->cuMemHostUnregister(memory));
	gpu_report_clean("");
}

static void what_is_left_registered_is_a_leak(void **state)
{
	CUcontext context;

	(void)state;
	GPU(cu->cuCtxCreate(&context, 0, gpu.device));
	GPU(cu->cuMemHostRegister(memory, BYTES, CU_MEMHOSTREGISTER_PORTABLE));
	GPU(cu->cuCtxDestroy(context));
	assert_int_equal(gpu_reported("", "leak", "registered host memory"), 1);
	gpu_report_clear();
	GPU(cu->cuCtxSetCurrent(gpu.context));
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_copy_waits_for_nothing_where_memory_is_registered),
		cmocka_unit_test(what_is_not_portable_is_pageable_elsewhere),
		cmocka_unit_test(memory_is_not_unregistered_under_a_copy),
		cmocka_unit_test(a_copy_crosses_no_border_of_registrations),
		cmocka_unit_test(registering_has_a_limit),
		cmocka_unit_test(a_context_that_goes_takes_its_registrations_along),
		cmocka_unit_test(what_is_left_registered_is_a_leak),
	};
	int failed;

	(void)argc;
	gpu_begin(argv, "gpus=2 late=2 pinned=16");
	gpu_needs_emulation("it is about the emulated driver");
	failed = cmocka_run_group_tests(tests, setup, teardown);
	gpu_report_clean("");
	return failed;
}
