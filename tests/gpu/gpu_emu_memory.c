/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_emu_memory - the emulated driver sees each misuse of memory: device, pinned, registered.
 *
 * Each case makes the mistake, and looks for the error of the call and the line in the report.
 */
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/lib/lib.h"
#include "tests/lib/lib_gpu.h"

enum { WORDS = 4096, BYTES = 4 * WORDS, PAGE = 4096 };

static struct gpu gpu;
static const struct cuda_api *cu;

static int setup(void **state)
{
	(void)state;
	cu = gpu_api();
	gpu_open(&gpu, 0);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	gpu_close(&gpu);
	return 0;
}

/* The context was broken on purpose. */
static void reopen(void)
{
	GPU(cu->cuDevicePrimaryCtxReset(gpu.device));
	GPU(cu->cuDevicePrimaryCtxRelease(gpu.device));
	gpu_open(&gpu, 0);
	gpu_report_clear();
}

static CUdeviceptr alloc(size_t bytes)
{
	CUdeviceptr ptr;

	GPU(cu->cuMemAlloc(&ptr, bytes));
	return ptr;
}

static void launch(const char *name, CUdeviceptr to, uint32_t n)
{
	uint32_t value = 5;
	CUmodule module;
	CUfunction function;
	void *params[] = { &to, &value, &n };

	GPU(cu->cuModuleLoadData(&module, ""));
	GPU(cu->cuModuleGetFunction(&function, module, name));
	GPU(cu->cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, gpu.stream, params, NULL));
	(void)cu->cuStreamSynchronize(gpu.stream);
	(void)cu->cuModuleUnload(module);
}

/* --- processes that die of it --- */

static int touch(void)
{
	cu = gpu_api();
	gpu_open(&gpu, 0);
	return *(const volatile uint8_t *)alloc(BYTES) & 0;
}

static void a_program_that_reads_device_memory_dies_and_the_report_says_so(void **state)
{
	(void)state;
	assert_int_not_equal(gpu_wait(gpu_spawn("touch", "leaks=0", NULL)), 0);
	assert_int_equal(gpu_reported("", "violation", "the program itself touched device memory"),
			 1);
	gpu_report_clear();
}

static void the_kernel_refuses_device_addresses_too(void **state)
{
	const CUdeviceptr ptr = alloc(BYTES);
	int ends[2];

	(void)state;
	assert_int_equal(pipe(ends), 0);
	assert_int_equal(write(ends[1], (const void *)ptr, 16), -1);
	close(ends[0]);
	close(ends[1]);
	GPU(cu->cuMemFree(ptr));
}

/* --- copies --- */

static void a_copy_out_of_bounds_is_refused(void **state)
{
	const CUdeviceptr ptr = alloc(BYTES);
	static uint8_t *pinned;

	(void)state;
	GPU(cu->cuMemHostAlloc((void **)&pinned, BYTES, 0));
	gpu_expect(cu->cuMemcpyHtoDAsync(ptr + 1, pinned, BYTES, gpu.stream),
		   CUDA_ERROR_INVALID_VALUE, "out of bounds");
	gpu_expect(cu->cuMemcpyDtoHAsync(pinned + 1, ptr, BYTES, gpu.stream),
		   CUDA_ERROR_INVALID_VALUE, "out of bounds");
	gpu_expect(cu->cuMemcpyDtoHAsync(pinned, ptr + BYTES, 1, gpu.stream),
		   CUDA_ERROR_INVALID_VALUE, "there is no device memory");
	gpu_expect(cu->cuMemsetD8Async(ptr, 0, BYTES + 1, gpu.stream), CUDA_ERROR_INVALID_VALUE,
		   "out of bounds");
	GPU(cu->cuMemcpyDtoHAsync(pinned, ptr + BYTES - 1, 1, gpu.stream));
	GPU(cu->cuStreamSynchronize(gpu.stream));
	GPU(cu->cuMemFreeHost(pinned));
	GPU(cu->cuMemFree(ptr));
}

static void a_copy_between_the_wrong_sides_is_refused(void **state)
{
	const CUdeviceptr ptr = alloc(BYTES);
	static uint8_t pageable[64];

	(void)state;
	gpu_expect(cu->cuMemcpyHtoDAsync(ptr, (void *)(ptr + 64), 64, gpu.stream),
		   CUDA_ERROR_INVALID_VALUE, "it is device memory");
	gpu_expect(cu->cuMemcpyDtoDAsync((CUdeviceptr)pageable, ptr, 64, gpu.stream),
		   CUDA_ERROR_INVALID_VALUE, "it is pageable host memory");
	GPU(cu->cuMemFree(ptr));
}

static void a_strided_copy_moves_its_rows_and_nothing_else(void **state)
{
	static uint8_t from[64 * 32], to[64 * 48];
	const CUdeviceptr ptr = alloc(sizeof(from));
	const CUDA_MEMCPY2D in = { .srcMemoryType = CU_MEMORYTYPE_HOST,
				   .srcHost = from,
				   .srcPitch = 64,
				   .dstMemoryType = CU_MEMORYTYPE_DEVICE,
				   .dstDevice = ptr,
				   .dstPitch = 64,
				   .WidthInBytes = 64,
				   .Height = 32 };
	CUDA_MEMCPY2D out = { .srcMemoryType = CU_MEMORYTYPE_DEVICE,
			      .srcDevice = ptr,
			      .srcPitch = 64,
			      .srcXInBytes = 16,
			      .srcY = 2,
			      .dstMemoryType = CU_MEMORYTYPE_HOST,
			      .dstHost = to,
			      .dstPitch = 48,
			      .dstXInBytes = 8,
			      .dstY = 1,
			      .WidthInBytes = 32,
			      .Height = 20 };
	size_t x, y;

	(void)state;
	for (x = 0; x < sizeof(from); x++)
		from[x] = (uint8_t)(x * 7 + 1);
	memset(to, 0xee, sizeof(to));
	GPU(cu->cuMemcpy2DAsync(&in, gpu.stream));
	GPU(cu->cuMemcpy2DAsync(&out, gpu.stream));
	GPU(cu->cuStreamSynchronize(gpu.stream));
	for (y = 0; y < 64; y++)
		for (x = 0; x < 48; x++)
			assert_int_equal(to[y * 48 + x], y >= 1 && y < 21 && x >= 8 && x < 40 ?
								 from[(y + 1) * 64 + x + 8] :
								 0xee);
	out.Height = 31;
	gpu_expect(cu->cuMemcpy2DAsync(&out, gpu.stream), CUDA_ERROR_INVALID_VALUE,
		   "out of bounds");
	GPU(cu->cuMemFree(ptr));
}

static void pageable_memory_is_read_in_the_call_and_written_before_it_returns(void **state)
{
	static uint8_t bytes[BYTES], back[BYTES];
	const CUdeviceptr ptr = alloc(BYTES);
	int round;

	(void)state;
	for (round = 0; round < 50; round++) {
		memset(bytes, round, BYTES);
		GPU(cu->cuMemcpyHtoDAsync(ptr, bytes, BYTES, gpu.stream));
		memset(bytes, 0xff, BYTES);
		GPU(cu->cuMemcpyDtoHAsync(back, ptr, BYTES, gpu.stream));
		memset(bytes, round, BYTES);
		assert_memory_equal(back, bytes, BYTES);
	}
	assert_true(gpu_reported("", "note", "pageable host memory") >= 100);
	GPU(cu->cuMemFree(ptr));
}

/* --- kernels --- */

static void a_kernel_out_of_bounds_breaks_its_context_for_good(void **state)
{
	const CUdeviceptr ptr = alloc(BYTES);
	CUdeviceptr other;
	CUevent event;

	(void)state;
	launch("emu_fill", ptr, WORDS);
	gpu_report_clean("");
	launch("emu_fill", ptr, WORDS + 1);
	assert_int_equal(gpu_reported("", "violation", "there is no memory"), 1);
	assert_int_equal(cu->cuStreamSynchronize(gpu.stream), CUDA_ERROR_ILLEGAL_ADDRESS);
	assert_int_equal(cu->cuMemAlloc(&other, 8), CUDA_ERROR_ILLEGAL_ADDRESS);
	assert_int_equal(cu->cuMemFree(ptr), CUDA_ERROR_ILLEGAL_ADDRESS);
	assert_int_equal(cu->cuEventCreate(&event, 0), CUDA_ERROR_ILLEGAL_ADDRESS);
	reopen();
	GPU(cu->cuMemFree(alloc(BYTES)));
}

static void an_access_that_lies_partly_in_bounds_is_out_of_bounds(void **state)
{
	(void)state;
	launch("emu_fill", alloc(BYTES + 2), WORDS + 1);
	gpu_expect(cu->cuStreamQuery(gpu.stream), CUDA_ERROR_ILLEGAL_ADDRESS, "runs over its end");
	reopen();
}

static void a_kernel_that_uses_freed_memory_breaks_its_context(void **state)
{
	const CUdeviceptr ptr = alloc(BYTES);

	(void)state;
	GPU(cu->cuMemFree(ptr));
	launch("emu_fill", ptr, 1);
	gpu_expect(cu->cuStreamQuery(gpu.stream), CUDA_ERROR_ILLEGAL_ADDRESS, "there is no memory");
	reopen();
}

/* --- freeing --- */

static void memory_is_freed_once_from_its_beginning_by_its_own_call(void **state)
{
	const CUdeviceptr ptr = alloc(BYTES);
	void *pinned;

	(void)state;
	GPU(cu->cuMemHostAlloc(&pinned, BYTES, 0));
	gpu_expect(cu->cuMemFree(ptr + 8), CUDA_ERROR_INVALID_VALUE,
		   "not where the allocation begins");
	gpu_expect(cu->cuMemFree((CUdeviceptr)pinned), CUDA_ERROR_INVALID_VALUE,
		   "it is host memory");
	gpu_expect(cu->cuIpcCloseMemHandle(ptr), CUDA_ERROR_INVALID_VALUE,
		   "no handle is open there");
	gpu_expect(cu->cuMemFreeHost((void *)ptr), CUDA_ERROR_INVALID_VALUE, "not the beginning");
	GPU(cu->cuMemFree(ptr));
	gpu_expect(cu->cuMemFree(ptr), CUDA_ERROR_INVALID_VALUE, "freed before");
	GPU(cu->cuMemFreeHost(pinned));
	gpu_expect(cu->cuMemFreeHost(pinned), CUDA_ERROR_INVALID_VALUE, "not the beginning");
}

static void memory_freed_under_queued_work_is_a_violation(void **state)
{
	CUdeviceptr ptr;
	int tries = 0;

	(void)state;
	while (!gpu_reported("", "violation", "queued operations still use")) {
		assert_true(tries++ < 10000);
		ptr = alloc(BYTES);
		GPU(cu->cuMemsetD8Async(ptr, 0, BYTES, gpu.stream));
		GPU(cu->cuMemFree(ptr));
	}
	gpu_report_clear();
}

static void memory_of_a_pool_is_freed_when_the_stream_gets_there(void **state)
{
	CUdeviceptr ptr;

	(void)state;
	GPU(cu->cuMemAllocAsync(&ptr, BYTES, gpu.stream));
	GPU(cu->cuMemsetD8Async(ptr, 1, BYTES, gpu.stream));
	GPU(cu->cuMemFreeAsync(ptr, gpu.stream));
	gpu_expect(cu->cuMemFreeAsync(ptr, gpu.stream), CUDA_ERROR_INVALID_VALUE, "");
	GPU(cu->cuStreamSynchronize(gpu.stream));
	gpu_expect(cu->cuMemFree(ptr), CUDA_ERROR_INVALID_VALUE, "there is no memory");
}

static void fresh_memory_holds_bytes_that_nobody_wrote(void **state)
{
	static uint8_t bytes[BYTES], zeros[BYTES];
	CUdeviceptr ptr = alloc(BYTES);

	(void)state;
	gpu_read(&gpu, bytes, ptr, BYTES);
	assert_memory_not_equal(bytes, zeros, BYTES);
	GPU(cu->cuMemFree(ptr));
}

static void memory_is_counted_and_ends(void **state)
{
	const uint64_t before = gpu_used();
	CUdeviceptr ptr = alloc(64 << 20), more;

	(void)state;
	assert_int_equal(gpu_used(), before + (64 << 20));
	assert_int_equal(cu->cuMemAlloc(&more, 64 << 20), CUDA_ERROR_OUT_OF_MEMORY);
	GPU(cu->cuMemFree(ptr));
	assert_int_equal(gpu_used(), before);
}

/* --- host memory --- */

static void host_memory_is_registered_once_and_unregistered_once(void **state)
{
	uint8_t *memory =
		mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CUdeviceptr device;

	(void)state;
	GPU(cu->cuMemHostRegister(memory, PAGE + 100, 0));
	assert_int_equal(cu->cuMemHostRegister(memory, PAGE, 0),
			 CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
	/* the rest of its last page */
	assert_int_equal(cu->cuMemHostRegister(memory + PAGE + 200, PAGE, 0),
			 CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
	GPU(cu->cuMemHostRegister(memory + 2 * PAGE, PAGE, 0));
	GPU(cu->cuMemHostGetDevicePointer(&device, memory + 8, 0));
	assert_int_equal(device, (CUdeviceptr)memory + 8);
	gpu_report_clean("");
	gpu_expect(cu->cuMemHostUnregister(memory + 8), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
		   "not the beginning");
	GPU(cu->cuMemHostUnregister(memory));
	gpu_expect(cu->cuMemHostUnregister(memory), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
		   "not the beginning");
	GPU(cu->cuMemHostUnregister(memory + 2 * PAGE));
	munmap(memory, 4 * PAGE);
	assert_int_equal(cu->cuMemHostRegister(memory, PAGE, 0), CUDA_ERROR_INVALID_VALUE);
	gpu_report_clean("");
}

static void registered_memory_that_was_unmapped_is_a_violation(void **state)
{
	uint8_t *memory =
		mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	(void)state;
	GPU(cu->cuMemHostRegister(memory, PAGE, 0));
	munmap(memory, PAGE);
	gpu_expect(cu->cuMemHostUnregister(memory), CUDA_SUCCESS,
		   "unmapped while it was registered");
}

/* --- queries of addresses --- */

static uint64_t attribute(CUdeviceptr ptr, CUpointer_attribute which)
{
	uint64_t value = 0;

	GPU(cu->cuPointerGetAttribute(&value, which, ptr));
	return value;
}

static void the_driver_knows_what_an_address_is(void **state)
{
	CUpointer_attribute both[] = { CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
				       CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL };
	const CUdeviceptr ptr = alloc(BYTES);
	CUdeviceptr pool, managed, base;
	void *pinned, *values[2];
	uint32_t type;
	int ordinal;
	size_t bytes;

	(void)state;
	GPU(cu->cuMemHostAlloc(&pinned, BYTES, 0));
	GPU(cu->cuMemAllocAsync(&pool, BYTES, gpu.stream));
	GPU(cu->cuMemAllocManaged(&managed, BYTES, CU_MEM_ATTACH_GLOBAL));
	*(volatile uint8_t *)managed = 1; /* the CPU may */
	assert_int_equal(attribute(ptr + 5, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR), ptr);
	assert_int_equal(attribute(ptr + 5, CU_POINTER_ATTRIBUTE_RANGE_SIZE), BYTES);
	assert_int_equal(attribute(ptr, CU_POINTER_ATTRIBUTE_MEMORY_TYPE), CU_MEMORYTYPE_DEVICE);
	assert_int_equal(attribute(ptr, CU_POINTER_ATTRIBUTE_CONTEXT), gpu.context);
	assert_int_equal(attribute(ptr, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE), 1);
	assert_int_equal(attribute(pool, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE), 0);
	assert_int_equal(attribute(managed, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE), 0);
	assert_int_not_equal(attribute(pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE), 0);
	assert_int_equal(attribute(managed, CU_POINTER_ATTRIBUTE_IS_MANAGED), 1);
	assert_int_equal(attribute((CUdeviceptr)pinned, CU_POINTER_ATTRIBUTE_MEMORY_TYPE),
			 CU_MEMORYTYPE_HOST);
	GPU(cu->cuMemGetAddressRange(&base, &bytes, ptr + BYTES - 1));
	assert_int_equal(base, ptr);
	assert_int_equal(bytes, BYTES);
	GPU(cu->cuMemFree(managed));
	GPU(cu->cuMemFree(pool));
	GPU(cu->cuMemFreeHost(pinned));
	GPU(cu->cuMemFree(ptr));
	/* freed, and never known */
	assert_int_equal(cu->cuPointerGetAttribute(&type, both[0], ptr), CUDA_ERROR_INVALID_VALUE);
	assert_int_equal(cu->cuPointerGetAttribute(&type, both[0], (CUdeviceptr)&type),
			 CUDA_ERROR_INVALID_VALUE);
	values[0] = &type;
	values[1] = &ordinal;
	GPU(cu->cuPointerGetAttributes(2, both, values, ptr));
	assert_int_equal(type, 0);
	assert_int_equal(ordinal, -2);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_program_that_reads_device_memory_dies_and_the_report_says_so),
		cmocka_unit_test(the_kernel_refuses_device_addresses_too),
		cmocka_unit_test(a_copy_out_of_bounds_is_refused),
		cmocka_unit_test(a_copy_between_the_wrong_sides_is_refused),
		cmocka_unit_test(a_strided_copy_moves_its_rows_and_nothing_else),
		cmocka_unit_test(pageable_memory_is_read_in_the_call_and_written_before_it_returns),
		cmocka_unit_test(a_kernel_out_of_bounds_breaks_its_context_for_good),
		cmocka_unit_test(an_access_that_lies_partly_in_bounds_is_out_of_bounds),
		cmocka_unit_test(a_kernel_that_uses_freed_memory_breaks_its_context),
		cmocka_unit_test(memory_is_freed_once_from_its_beginning_by_its_own_call),
		cmocka_unit_test(memory_freed_under_queued_work_is_a_violation),
		cmocka_unit_test(memory_of_a_pool_is_freed_when_the_stream_gets_there),
		cmocka_unit_test(fresh_memory_holds_bytes_that_nobody_wrote),
		cmocka_unit_test(memory_is_counted_and_ends),
		cmocka_unit_test(host_memory_is_registered_once_and_unregistered_once),
		cmocka_unit_test(registered_memory_that_was_unmapped_is_a_violation),
		cmocka_unit_test(the_driver_knows_what_an_address_is),
	};
	int failed;

	gpu_begin(argv, "memory=160 context=64");
	if (argc > 1)
		return touch();
	failed = cmocka_run_group_tests(tests, setup, teardown);
	gpu_report_clean("");
	return failed;
}
