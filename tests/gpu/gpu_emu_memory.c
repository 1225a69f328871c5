/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_emu_memory - the emulated driver sees each misuse of memory: device, pinned, registered. Each
 * case makes the mistake, and looks for the error of the call and the line in the report.
 */
#include "tests/lib/lib_gpu_emu.h"

enum { WORDS = 4096, BYTES = 4 * WORDS, PAGE = 4096, PIECE = 4 << 20, PINNED_MIB = 16 };

static struct gpu second;            /* a second GPU */
static uint8_t *host;                /* of the host, 8 pieces */
static CUdeviceptr on_gpu, on_other; /* a piece each */

static void open_both(void)
{
	gpu_open(&second, 1);
	on_other = emu_alloc(PIECE);
	gpu_open(&gpu, 0);
	on_gpu = emu_alloc(PIECE);
}

FIXTURE(setup)
{
	cu = gpu_api();
	host = mmap(NULL, 8 * PIECE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(host, MAP_FAILED);
	open_both();
	return 0;
}

FIXTURE(teardown)
{
	DO(cuCtxSetCurrent(second.context));
	DO(cuMemFree(on_other));
	gpu_close(&second);
	DO(cuCtxSetCurrent(gpu.context));
	DO(cuMemFree(on_gpu));
	(void)munmap(host, 8 * PIECE);
	return emu_end(state);
}

/* Its context was broken on purpose, and the first GPU's memory has gone with it. */
static void reopen(void)
{
	emu_reopen();
	on_gpu = emu_alloc(PIECE);
}

static void launch(CUdeviceptr to, uint32_t n)
{
	emu_fill(emu_function("emu_fill"), to, 5, n, gpu.stream);
	(void)cu->cuStreamSynchronize(gpu.stream);
}

/* --- processes that die of it --- */

static int touch(void)
{
	cu = gpu_api();
	gpu_open(&gpu, 0);
	return *(const volatile uint8_t *)emu_alloc(BYTES) & 0;
}

TEST(a_program_that_reads_device_memory_dies_and_the_report_says_so)
{
	assert_int_not_equal(gpu_wait(gpu_spawn("touch", "leaks=0", NULL)), 0);
	REPORTED("violation", "the program itself touched device memory", 1);
	gpu_report_clear();
}

TEST(the_kernel_refuses_device_addresses_too)
{
	const CUdeviceptr ptr = emu_alloc(BYTES);
	int ends[2];

	assert_int_equal(pipe(ends), 0);
	assert_int_equal(write(ends[1], (const void *)ptr, 16), -1);
	close(ends[0]);
	close(ends[1]);
	DO(cuMemFree(ptr));
}

/* --- copies --- */

TEST(a_copy_out_of_bounds_is_refused)
{
	const CUdeviceptr ptr = emu_alloc(BYTES);
	static uint8_t *pinned;

	DO(cuMemHostAlloc((void **)&pinned, BYTES, 0));
	BREAKS(cuMemcpyHtoDAsync(ptr + 1, pinned, BYTES, gpu.stream), INVALID_VALUE,
	       "out of bounds");
	BREAKS(cuMemcpyDtoHAsync(pinned + 1, ptr, BYTES, gpu.stream), INVALID_VALUE,
	       "out of bounds");
	BREAKS(cuMemcpyDtoHAsync(pinned, ptr + BYTES, 1, gpu.stream), INVALID_VALUE,
	       "there is no device memory");
	BREAKS(cuMemsetD8Async(ptr, 0, BYTES + 1, gpu.stream), INVALID_VALUE, "out of bounds");
	DO(cuMemcpyDtoHAsync(pinned, ptr + BYTES - 1, 1, gpu.stream));
	DO(cuStreamSynchronize(gpu.stream));
	DO(cuMemFreeHost(pinned));
	DO(cuMemFree(ptr));
}

TEST(a_copy_between_the_wrong_sides_is_refused)
{
	const CUdeviceptr ptr = emu_alloc(BYTES);
	static uint8_t pageable[64];

	BREAKS(cuMemcpyHtoDAsync(ptr, (void *)(ptr + 64), 64, gpu.stream), INVALID_VALUE,
	       "it is device memory");
	BREAKS(cuMemcpyDtoDAsync((CUdeviceptr)pageable, ptr, 64, gpu.stream), INVALID_VALUE,
	       "it is pageable host memory");
	DO(cuMemFree(ptr));
}

TEST(a_strided_copy_moves_its_rows_and_nothing_else)
{
	static uint8_t from[64 * 32], to[64 * 48];
	const CUdeviceptr ptr = emu_alloc(sizeof(from));
	/* clang-format off */
	const CUDA_MEMCPY2D in = {
		.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = from, .srcPitch = 64,
		.dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = ptr, .dstPitch = 64,
		.WidthInBytes = 64, .Height = 32 };
	CUDA_MEMCPY2D out = {
		.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = ptr, .srcPitch = 64,
		.srcXInBytes = 16, .srcY = 2,
		.dstMemoryType = CU_MEMORYTYPE_HOST, .dstHost = to, .dstPitch = 48,
		.dstXInBytes = 8, .dstY = 1, .WidthInBytes = 32, .Height = 20 };
	/* clang-format on */
	size_t x, y;

	for (x = 0; x < sizeof(from); x++)
		from[x] = (uint8_t)(x * 7 + 1);
	memset(to, 0xee, sizeof(to));
	DO(cuMemcpy2DAsync(&in, gpu.stream));
	DO(cuMemcpy2DAsync(&out, gpu.stream));
	DO(cuStreamSynchronize(gpu.stream));
	for (y = 0; y < 64; y++)
		for (x = 0; x < 48; x++)
			assert_int_equal(to[y * 48 + x], y >= 1 && y < 21 && x >= 8 && x < 40 ?
								 from[(y + 1) * 64 + x + 8] :
								 0xee);
	out.Height = 31;
	BREAKS(cuMemcpy2DAsync(&out, gpu.stream), INVALID_VALUE, "out of bounds");
	DO(cuMemFree(ptr));
}

TEST(pageable_memory_is_read_in_the_call_and_written_before_it_returns)
{
	static uint8_t bytes[BYTES], back[BYTES];
	const CUdeviceptr ptr = emu_alloc(BYTES);

	for (int round = 0; round < 50; round++) {
		memset(bytes, round, BYTES);
		DO(cuMemcpyHtoDAsync(ptr, bytes, BYTES, gpu.stream));
		memset(bytes, 0xff, BYTES);
		DO(cuMemcpyDtoHAsync(back, ptr, BYTES, gpu.stream));
		memset(bytes, round, BYTES);
		assert_memory_equal(back, bytes, BYTES);
	}
	assert_true(gpu_reported("", "note", "pageable host memory") >= 100);
	DO(cuMemFree(ptr));
}

/* --- kernels --- */

TEST(a_kernel_out_of_bounds_breaks_its_context_for_good)
{
	const CUdeviceptr ptr = emu_alloc(BYTES);
	CUdeviceptr other;
	CUevent event;

	launch(ptr, WORDS);
	gpu_report_clean("");
	launch(ptr, WORDS + 1);
	REPORTED("violation", "there is no memory", 1);
	GIVES(cuStreamSynchronize(gpu.stream), ILLEGAL_ADDRESS);
	GIVES(cuMemAlloc(&other, 8), ILLEGAL_ADDRESS);
	GIVES(cuMemFree(ptr), ILLEGAL_ADDRESS);
	GIVES(cuEventCreate(&event, 0), ILLEGAL_ADDRESS);
	reopen();
	DO(cuMemFree(emu_alloc(BYTES)));
}

TEST(an_access_that_lies_partly_in_bounds_is_out_of_bounds)
{
	launch(emu_alloc(BYTES + 2), WORDS + 1);
	BREAKS(cuStreamQuery(gpu.stream), ILLEGAL_ADDRESS, "runs over its end");
	reopen();
}

TEST(a_kernel_that_uses_freed_memory_breaks_its_context)
{
	const CUdeviceptr ptr = emu_alloc(BYTES);

	DO(cuMemFree(ptr));
	launch(ptr, 1);
	BREAKS(cuStreamQuery(gpu.stream), ILLEGAL_ADDRESS, "there is no memory");
	reopen();
}

/* --- freeing --- */

TEST(memory_is_freed_once_from_its_beginning_by_its_own_call)
{
	const CUdeviceptr ptr = emu_alloc(BYTES);
	void *pinned;

	DO(cuMemHostAlloc(&pinned, BYTES, 0));
	BREAKS(cuMemFree(ptr + 8), INVALID_VALUE, "not where the allocation begins");
	BREAKS(cuMemFree((CUdeviceptr)pinned), INVALID_VALUE, "it is host memory");
	BREAKS(cuIpcCloseMemHandle(ptr), INVALID_VALUE, "no handle is open there");
	BREAKS(cuMemFreeHost((void *)ptr), INVALID_VALUE, "not the beginning");
	DO(cuMemFree(ptr));
	BREAKS(cuMemFree(ptr), INVALID_VALUE, "freed before");
	DO(cuMemFreeHost(pinned));
	BREAKS(cuMemFreeHost(pinned), INVALID_VALUE, "not the beginning");
}

TEST(memory_freed_under_queued_work_is_a_violation)
{
	CUdeviceptr ptr;
	int tries = 0;

	while (!gpu_reported("", "violation", "queued operations still use")) {
		assert_true(tries++ < 10000);
		ptr = emu_alloc(BYTES);
		DO(cuMemsetD8Async(ptr, 0, BYTES, gpu.stream));
		DO(cuMemFree(ptr));
	}
	gpu_report_clear();
}

TEST(memory_of_a_pool_is_freed_when_the_stream_gets_there)
{
	CUdeviceptr ptr;

	DO(cuMemAllocAsync(&ptr, BYTES, gpu.stream));
	DO(cuMemsetD8Async(ptr, 1, BYTES, gpu.stream));
	DO(cuMemFreeAsync(ptr, gpu.stream));
	BREAKS(cuMemFreeAsync(ptr, gpu.stream), INVALID_VALUE, "");
	DO(cuStreamSynchronize(gpu.stream));
	BREAKS(cuMemFree(ptr), INVALID_VALUE, "there is no memory");
}

TEST(fresh_memory_holds_bytes_that_nobody_wrote)
{
	static uint8_t bytes[BYTES], zeros[BYTES];
	CUdeviceptr ptr = emu_alloc(BYTES);

	gpu_read(&gpu, bytes, ptr, BYTES);
	assert_memory_not_equal(bytes, zeros, BYTES);
	DO(cuMemFree(ptr));
}

TEST(memory_is_counted_and_ends)
{
	const uint64_t before = gpu_used();
	CUdeviceptr ptr = emu_alloc(64 << 20), more;

	assert_int_equal(gpu_used(), before + (64 << 20));
	GIVES(cuMemAlloc(&more, 64 << 20), OUT_OF_MEMORY);
	DO(cuMemFree(ptr));
	assert_int_equal(gpu_used(), before);
}

/* --- host memory --- */

TEST(host_memory_is_registered_once_and_unregistered_once)
{
	uint8_t *memory =
		mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CUdeviceptr device;

	DO(cuMemHostRegister(memory, PAGE + 100, 0));
	GIVES(cuMemHostRegister(memory, PAGE, 0), HOST_MEMORY_ALREADY_REGISTERED);
	/* the rest of its last page */
	GIVES(cuMemHostRegister(memory + PAGE + 200, PAGE, 0), HOST_MEMORY_ALREADY_REGISTERED);
	DO(cuMemHostRegister(memory + 2 * PAGE, PAGE, 0));
	DO(cuMemHostGetDevicePointer(&device, memory + 8, 0));
	assert_int_equal(device, (CUdeviceptr)memory + 8);
	gpu_report_clean("");
	BREAKS(cuMemHostUnregister(memory + 8), HOST_MEMORY_NOT_REGISTERED, "not the beginning");
	DO(cuMemHostUnregister(memory));
	BREAKS(cuMemHostUnregister(memory), HOST_MEMORY_NOT_REGISTERED, "not the beginning");
	DO(cuMemHostUnregister(memory + 2 * PAGE));
	munmap(memory, 4 * PAGE);
	GIVES(cuMemHostRegister(memory, PAGE, 0), INVALID_VALUE);
	gpu_report_clean("");
}

TEST(registered_memory_that_was_unmapped_is_a_violation)
{
	uint8_t *memory =
		mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	DO(cuMemHostRegister(memory, PAGE, 0));
	munmap(memory, PAGE);
	gpu_expect(cu->cuMemHostUnregister(memory), CUDA_SUCCESS,
		   "unmapped while it was registered");
}

/* --- queries of addresses --- */

static uint64_t attribute(CUdeviceptr ptr, CUpointer_attribute which)
{
	uint64_t value = 0;

	DO(cuPointerGetAttribute(&value, which, ptr));
	return value;
}

TEST(the_driver_knows_what_an_address_is)
{
	CUpointer_attribute both[] = { CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
				       CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL };
	const CUdeviceptr ptr = emu_alloc(BYTES);
	CUdeviceptr pool, managed, base;
	void *pinned, *values[2];
	uint32_t type;
	int ordinal;
	size_t bytes;

	DO(cuMemHostAlloc(&pinned, BYTES, 0));
	DO(cuMemAllocAsync(&pool, BYTES, gpu.stream));
	DO(cuMemAllocManaged(&managed, BYTES, CU_MEM_ATTACH_GLOBAL));
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
	DO(cuMemGetAddressRange(&base, &bytes, ptr + BYTES - 1));
	assert_int_equal(base, ptr);
	assert_int_equal(bytes, BYTES);
	DO(cuMemFree(managed));
	DO(cuMemFree(pool));
	DO(cuMemFreeHost(pinned));
	DO(cuMemFree(ptr));
	/* freed, and never known */
	GIVES(cuPointerGetAttribute(&type, both[0], ptr), INVALID_VALUE);
	GIVES(cuPointerGetAttribute(&type, both[0], (CUdeviceptr)&type), INVALID_VALUE);
	values[0] = &type;
	values[1] = &ordinal;
	DO(cuPointerGetAttributes(2, both, values, ptr));
	assert_int_equal(type, 0);
	assert_int_equal(ordinal, -2);
}

/* --- registered memory --- */

/* Work that is queued now and done much later. */
static void copy_late(const struct gpu *g, CUdeviceptr to, const uint8_t *from)
{
	DO(cuCtxSetCurrent(g->context));
	for (int i = 0; i < 20; i++)
		DO(cuMemcpyHtoDAsync(to, from, PIECE, g->stream));
}

TEST(a_copy_waits_for_nothing_where_memory_is_registered)
{
	DO(cuMemHostRegister(host, PIECE, CU_MEMHOSTREGISTER_PORTABLE));
	gpu_report_clear();
	copy_late(&gpu, on_gpu, host);
	GIVES(cuStreamQuery(gpu.stream), NOT_READY);
	DO(cuStreamSynchronize(gpu.stream));
	copy_late(&second, on_other, host); /* PORTABLE: in all contexts */
	DO(cuStreamSynchronize(second.stream));
	REPORTED("note", "pageable", 0);
	DO(cuCtxSetCurrent(gpu.context));
	DO(cuMemHostUnregister(host));
	gpu_report_clean("");
}

TEST(what_is_not_portable_is_pageable_elsewhere)
{
	DO(cuMemHostRegister(host, PIECE, 0));
	gpu_report_clear();
	DO(cuMemcpyHtoDAsync(on_gpu, host, PIECE, gpu.stream));
	DO(cuStreamSynchronize(gpu.stream));
	REPORTED("note", "pageable", 0);
	DO(cuCtxSetCurrent(second.context));
	DO(cuMemcpyHtoDAsync(on_other, host, PIECE, second.stream));
	REPORTED("note", "pageable", 1);
	DO(cuStreamSynchronize(second.stream));
	DO(cuCtxSetCurrent(gpu.context));
	DO(cuMemHostUnregister(host));
	gpu_report_clean("");
}

TEST(memory_is_not_unregistered_under_a_copy)
{
	DO(cuMemHostRegister(host, PIECE, CU_MEMHOSTREGISTER_PORTABLE));
	copy_late(&second, on_other, host);
	DO(cuCtxSetCurrent(gpu.context));
	gpu_expect(cu->cuMemHostUnregister(host), CUDA_SUCCESS, "queued operations still use");
	DO(cuCtxSetCurrent(second.context));
	DO(cuStreamSynchronize(second.stream));
	DO(cuCtxSetCurrent(gpu.context));
}

TEST(a_copy_crosses_no_border_of_registrations)
{
	DO(cuMemHostRegister(host, PIECE, CU_MEMHOSTREGISTER_PORTABLE));
	BREAKS(cuMemcpyHtoDAsync(on_gpu, host + PIECE - PAGE, 2 * PAGE, gpu.stream), INVALID_VALUE,
	       "out of bounds");
	DO(cuMemHostRegister(host + PIECE, PIECE, CU_MEMHOSTREGISTER_PORTABLE));
	BREAKS(cuMemcpyHtoDAsync(on_gpu, host + PIECE - PAGE, 2 * PAGE, gpu.stream), INVALID_VALUE,
	       "out of bounds");
	DO(cuMemHostUnregister(host));
	BREAKS(cuMemcpyHtoDAsync(on_gpu, host + PIECE - PAGE, 2 * PAGE, gpu.stream), INVALID_VALUE,
	       "pinned memory lies in a part of it");
	DO(cuMemHostUnregister(host + PIECE));
}

TEST(registering_has_a_limit)
{
	void *pinned;
	int n = 0;

	while (cu->cuMemHostRegister(host + n * PIECE, PIECE, 0) == CUDA_SUCCESS)
		n++;
	assert_int_equal(n, (PINNED_MIB << 20) / PIECE);
	GIVES(cuMemHostAlloc(&pinned, PAGE, 0), OUT_OF_MEMORY);
	DO(cuMemHostUnregister(host));
	DO(cuMemHostAlloc(&pinned, PAGE, 0));
	DO(cuMemFreeHost(pinned));
	while (--n > 0)
		DO(cuMemHostUnregister(host + n * PIECE));
	gpu_report_clean("");
}

/* The other one's context breaks, as its memory is gone under its copies. */
TEST(a_context_that_goes_takes_its_registrations_along)
{
	DO(cuMemHostRegister(host, PIECE, CU_MEMHOSTREGISTER_PORTABLE));
	copy_late(&second, on_other, host);
	DO(cuDevicePrimaryCtxReset(gpu.device));
	REPORTED("violation", "operations of others use", 1);
	REPORTED("leak", "registered host memory", 0);
	DO(cuCtxSetCurrent(second.context));
	assert_int_not_equal(cu->cuStreamSynchronize(second.stream), CUDA_SUCCESS);
	DO(cuDevicePrimaryCtxReset(second.device));
	DO(cuDevicePrimaryCtxRelease(second.device));
	DO(cuDevicePrimaryCtxRelease(gpu.device));
	open_both();
	gpu_report_clear();
	/* and leaves nothing: it can be registered again */
	DO(cuMemHostRegister(host, PIECE, CU_MEMHOSTREGISTER_PORTABLE));
	DO(cuMemHostUnregister(host));
	gpu_report_clean("");
}

TEST(what_is_left_registered_is_a_leak)
{
	CUcontext context;

	DO(cuCtxCreate(&context, 0, gpu.device));
	DO(cuMemHostRegister(host, PIECE, CU_MEMHOSTREGISTER_PORTABLE));
	DO(cuCtxDestroy(context));
	REPORTED("leak", "registered host memory", 1);
	gpu_report_clear();
	DO(cuCtxSetCurrent(gpu.context));
}

TEST_GROUP(setup, teardown);

TEST_BEGIN
{
	gpu_begin(argv, "gpus=2 late=2 pinned=16 memory=160 context=64");
	if (argc > 1)
		exit(touch());
	gpu_needs_emulation("it is about the emulated driver");
}
