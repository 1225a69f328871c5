/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_emu_ipc - the emulated driver between processes: memory by handle; allocations by
 * descriptor, and virtual memory management in one process.
 *
 * This process takes the daemon's part: it opens what an engine, this program again, exports. The
 * engine obeys the packets on its socket.
 */
#include "tests/lib/lib_packet.h"
#include "tests/lib/lib_raw.h"

#include "tests/lib/lib_gpu_emu.h"

enum { WORDS = 4096, BYTES = 4 * WORDS };
enum { FD = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, GRANULE = 2 << 20, MAPPED = 2 * GRANULE };

enum order { EXPORT, FILL, FREE, FREE_AND_ALLOC, OPEN_OWN, QUIT };

struct reply {
	CUdeviceptr ptr;
	CUipcMemHandle memory;
	int32_t result;
};

/* --- the engine --- */

static void obey(enum order order, struct reply *r)
{
	CUdeviceptr own;

	switch (order) {
	case EXPORT:
		DO(cuIpcGetMemHandle(&r->memory, r->ptr));
		break;
	case FILL:
		emu_fill(emu_function("emu_fill"), r->ptr, 77, WORDS, gpu.stream);
		DO(cuStreamSynchronize(gpu.stream));
		break;
	case FREE:
		DO(cuMemFree(r->ptr));
		break;
	case FREE_AND_ALLOC:
		own = r->ptr;
		DO(cuMemFree(r->ptr));
		DO(cuMemAlloc(&r->ptr, BYTES));
		assert_int_equal(r->ptr, own); /* reuse=1 */
		break;
	case OPEN_OWN:
		r->result = (int32_t)cu->cuIpcOpenMemHandle(&own, r->memory,
							    CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
		break;
	case QUIT:
		break;
	}
}

static int engine(void)
{
	struct reply r = { 0 };
	enum order order = EXPORT;

	cu = gpu_api();
	gpu_open(&gpu, 0);
	r.ptr = emu_alloc(BYTES);
	while (order != QUIT && recv(STDIN_FILENO, &order, sizeof(order), 0) == sizeof(order)) {
		obey(order, &r);
		if (send(STDIN_FILENO, &r, sizeof(r), 0) != sizeof(r))
			break;
	}
	_exit(0);
}

/* --- this process --- */

struct peer {
	pid_t pid;
	int socket;
	struct reply reply;
};

/* The engine of the case, which is killed at its end, or by the case. */
static struct peer p;
static uint64_t used; /* memory, before it came */

static void tell(enum order order)
{
	assert_int_equal(send(p.socket, &order, sizeof(order), 0), sizeof(order));
	assert_int_equal(recv(p.socket, &p.reply, sizeof(p.reply), 0), sizeof(p.reply));
}

FIXTURE(start)
{
	used = gpu_used();
	p.pid = gpu_spawn("engine", "reuse=1", &p.socket);
	tell(EXPORT);
	return 0;
}

static void kill_peer(void)
{
	(void)kill(p.pid, SIGKILL);
	assert_int_equal(gpu_wait(p.pid), -SIGKILL);
	close(p.socket);
	p.pid = 0;
}

FIXTURE(stop)
{
	if (p.pid > 0)
		kill_peer();
	return 0;
}

static CUresult open_memory(CUdeviceptr *ret)
{
	return cu->cuIpcOpenMemHandle(ret, p.reply.memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
}

static bool holds(CUdeviceptr ptr, uint32_t value)
{
	static uint32_t words[WORDS];

	gpu_read(&gpu, words, ptr, BYTES);
	return emu_words_are(words, WORDS, value);
}

TEST_WITH(memory_reaches_another_process, start, stop)
{
	CUdeviceptr ptr;

	GPU(open_memory(&ptr));
	assert_int_not_equal(ptr, p.reply.ptr);
	tell(FILL);
	assert_true(holds(ptr, 77));
	DO(cuIpcCloseMemHandle(ptr));
	gpu_report_clean("");
}

TEST_WITH(open_memory_outlives_its_process_and_is_given_back_at_the_close, start, stop)
{
	CUdeviceptr ptr, again;

	GPU(open_memory(&ptr));
	tell(FILL);
	DO(cuMemcpyDtoDAsync(ptr, ptr, 4, gpu.stream));
	kill_peer();
	assert_int_equal(gpu_used(), used + BYTES);
	(void)holds(ptr, 0); /* it can be read */
	assert_int_equal(open_memory(&again), CUDA_ERROR_INVALID_VALUE);
	DO(cuIpcCloseMemHandle(ptr));
	assert_int_equal(gpu_used(), used);
}

TEST_WITH(memory_that_its_owner_frees_stays_while_it_is_open, start, stop)
{
	CUdeviceptr ptr;

	GPU(open_memory(&ptr));
	tell(FILL);
	tell(FREE);
	assert_true(holds(ptr, 77));
	DO(cuIpcCloseMemHandle(ptr));
}

TEST_WITH(a_handle_of_freed_memory_opens_nothing_not_even_what_came_after, start, stop)
{
	CUdeviceptr ptr;

	tell(FREE_AND_ALLOC);
	assert_int_equal(open_memory(&ptr), CUDA_ERROR_INVALID_VALUE);
	tell(EXPORT);
	GPU(open_memory(&ptr));
	DO(cuIpcCloseMemHandle(ptr));
}

TEST_WITH(handles_do_not_open_in_their_own_process, start, stop)
{
	tell(OPEN_OWN);
	assert_int_equal(p.reply.result, CUDA_ERROR_INVALID_CONTEXT);
}

TEST_WITH(opening_twice_and_closing_twice_are_violations, start, stop)
{
	CUdeviceptr ptr, again;

	gpu_report_clean("");
	GPU(open_memory(&ptr));
	GPU(open_memory(&again));
	assert_int_equal(again, ptr);
	REPORTED("violation", "is open already", 1);
	DO(cuIpcCloseMemHandle(ptr));
	(void)holds(ptr, 0); /* once is still open */
	DO(cuIpcCloseMemHandle(ptr));
	GIVES(cuIpcCloseMemHandle(ptr), INVALID_VALUE);
	REPORTED("violation", "no handle is open there", 1);
	gpu_report_clear();
}

TEST_WITH(memory_used_after_its_handle_was_closed_is_a_violation, start, stop)
{
	uint32_t word;
	CUdeviceptr ptr;

	GPU(open_memory(&ptr));
	DO(cuIpcCloseMemHandle(ptr));
	GIVES(cuMemcpyDtoHAsync(&word, ptr, 4, gpu.stream), INVALID_VALUE);
	REPORTED("violation", "there is no device memory", 1);
	gpu_report_clear();
}

TEST_WITH(a_handle_closed_under_queued_work_is_a_violation, start, stop)
{
	static uint32_t *words;
	CUdeviceptr ptr;
	int tries = 0;

	DO(cuMemHostAlloc((void **)&words, BYTES, 0));
	GPU(open_memory(&ptr));
	while (!gpu_reported("", "violation", "queued operations still use")) {
		assert_true(tries++ < 10000);
		DO(cuMemcpyDtoHAsync(words, ptr, BYTES, gpu.stream));
		DO(cuIpcCloseMemHandle(ptr));
		GPU(open_memory(&ptr));
	}
	DO(cuIpcCloseMemHandle(ptr));
	DO(cuMemFreeHost(words));
	gpu_report_clear();
}

TEST_WITH(a_handle_opens_on_its_own_gpu_only, start, stop)
{
	struct gpu other;
	CUdeviceptr ptr;

	gpu_open(&other, 1);
	assert_int_equal(open_memory(&ptr), CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
	gpu_close(&other);
	DO(cuCtxSetCurrent(gpu.context));
	gpu_report_clean("");
}

TEST_WITH(bytes_that_are_no_handle_open_nothing, start, stop)
{
	CUdeviceptr ptr;

	for (size_t i = 0; i < sizeof(p.reply.memory); i++) {
		p.reply.memory.reserved[i] ^= 1;
		assert_int_equal(open_memory(&ptr), CUDA_ERROR_INVALID_VALUE);
		p.reply.memory.reserved[i] ^= 1;
	}
	GIVES(cuIpcOpenMemHandle(&ptr, p.reply.memory, 0), INVALID_VALUE);
	gpu_report_clean("");
}

/* --- virtual memory management --- */

static const CUmemAccessDesc access_all = { { CU_MEM_LOCATION_TYPE_DEVICE, 0 },
					    CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
static const CUmemAccessDesc access_read = { { CU_MEM_LOCATION_TYPE_DEVICE, 0 },
					     CU_MEM_ACCESS_FLAGS_PROT_READ };

static CUmemAllocationProp prop_of(unsigned handle_types)
{
	return (CUmemAllocationProp){ .type = CU_MEM_ALLOCATION_TYPE_PINNED,
				      .location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 },
				      .requestedHandleTypes = handle_types };
}

static CUmemGenericAllocationHandle create(unsigned handle_types)
{
	const CUmemAllocationProp prop = prop_of(handle_types);
	CUmemGenericAllocationHandle handle;

	DO(cuMemCreate(&handle, MAPPED, &prop, 0));
	return handle;
}

static CUdeviceptr reserve(void)
{
	CUdeviceptr ptr;

	DO(cuMemAddressReserve(&ptr, 2 * MAPPED, 0, 0, 0));
	return ptr;
}

/* --- the engine --- */

static int engine_with_a_descriptor(void)
{
	CUmemGenericAllocationHandle handle;
	CUdeviceptr ptr;
	char byte;
	int fd;

	cu = gpu_api();
	gpu_open(&gpu, 0);
	handle = create(FD);
	ptr = reserve();
	DO(cuMemMap(ptr, MAPPED, 0, handle, 0));
	DO(cuMemSetAccess(ptr, MAPPED, &access_all, 1));
	emu_fill(emu_function("emu_fill"), ptr, 99, WORDS, gpu.stream);
	DO(cuStreamSynchronize(gpu.stream));
	DO(cuMemExportToShareableHandle(&fd, handle, FD, 0));
	assert_int_equal(packet_with_fds(STDIN_FILENO, "", 1, &fd, 1), 0);
	close(fd);
	(void)!recv(STDIN_FILENO, &byte, 1, 0);
	_exit(0);
}

TEST(memory_of_another_process_is_mapped_and_outlives_it)
{
	const uint64_t before = gpu_used();
	CUmemGenericAllocationHandle handle;
	static uint32_t words[WORDS];
	CUdeviceptr ptr = reserve();
	uint64_t kinds = 0;
	int socket, fd;
	pid_t child;
	char byte;

	child = gpu_spawn("descriptor", "", &socket);
	assert_int_equal(raw_receive_fd(&(struct raw){ .fd = socket }, &byte, 1, &fd), 1);
	DO(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd, FD));
	close(fd);
	DO(cuMemMap(ptr, MAPPED, 0, handle, 0));
	DO(cuMemRelease(handle));
	DO(cuMemSetAccess(ptr, MAPPED, &access_all, 1));
	kill(child, SIGKILL);
	assert_int_equal(gpu_wait(child), -SIGKILL);
	assert_int_equal(gpu_used(), before + MAPPED);
	gpu_read(&gpu, words, ptr, sizeof(words));
	assert_true(emu_words_are(words, WORDS, 99));
	DO(cuPointerGetAttribute(&kinds, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, ptr));
	assert_int_equal(kinds, FD);
	DO(cuMemUnmap(ptr, MAPPED));
	assert_int_equal(gpu_used(), before);
	DO(cuMemAddressFree(ptr, 2 * MAPPED));
	close(socket);
	gpu_report_clean("");
}

TEST(a_descriptor_opens_nothing_but_this_driver)
{
	CUmemGenericAllocationHandle handle = create(FD);
	char byte;
	int fd;

	DO(cuMemExportToShareableHandle(&fd, handle, FD, 0));
	assert_ptr_equal(mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0), MAP_FAILED);
	assert_int_equal(pread(fd, &byte, 1, 0), -1);
	close(fd);
	DO(cuMemRelease(handle));
	fd = memfd_make(MAPPED, 0);
	GIVES(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd, FD), UNKNOWN);
	close(fd);
	/* made without a handle type */
	handle = create(0);
	GIVES(cuMemExportToShareableHandle(&fd, handle, FD, 0), INVALID_VALUE);
	DO(cuMemRelease(handle));
	gpu_report_clean("");
}

TEST(mapped_memory_is_touched_only_as_its_access_says)
{
	CUmemGenericAllocationHandle handle = create(0);
	static uint32_t word;
	CUdeviceptr ptr = reserve();

	DO(cuMemMap(ptr, MAPPED, 0, handle, 0));
	DO(cuMemRelease(handle));
	DO(cuMemSetAccess(ptr, MAPPED, &access_read, 1));
	gpu_read(&gpu, &word, ptr, 4);
	DO(cuMemsetD8Async(ptr, 0, 4, gpu.stream));
	GIVES(cuStreamSynchronize(gpu.stream), ILLEGAL_ADDRESS);
	BREAKS(cuCtxSynchronize(), ILLEGAL_ADDRESS, "may not be accessed so");
	emu_reopen();
	/* Mappings are not of the context. */
	DO(cuMemUnmap(ptr, MAPPED));
	DO(cuMemAddressFree(ptr, 2 * MAPPED));
	gpu_report_clean("");
}

TEST(memory_lives_until_released_and_unmapped)
{
	const uint64_t before = gpu_used();
	CUmemGenericAllocationHandle handle = create(0), same;
	CUdeviceptr ptr = reserve(), second = reserve();

	DO(cuMemMap(ptr, MAPPED, 0, handle, 0));
	DO(cuMemMap(second, MAPPED, 0, handle, 0)); /* one memory, two addresses */
	assert_int_equal(gpu_used(), before + MAPPED);
	DO(cuMemRetainAllocationHandle(&same, (void *)(ptr + 5)));
	assert_int_equal(same, handle);
	DO(cuMemRelease(handle));
	DO(cuMemRelease(handle));
	BREAKS(cuMemRelease(handle), INVALID_VALUE, "after it was destroyed");
	DO(cuMemUnmap(ptr, MAPPED));
	assert_int_equal(gpu_used(), before + MAPPED);
	DO(cuMemUnmap(second, MAPPED));
	assert_int_equal(gpu_used(), before);
	DO(cuMemAddressFree(ptr, 2 * MAPPED));
	DO(cuMemAddressFree(second, 2 * MAPPED));
}

/* As torch's expandable segments lie. */
TEST(an_operation_goes_over_the_border_of_two_mappings)
{
	CUmemGenericAllocationHandle first = create(0), second = create(0);
	static uint8_t bytes[64], back[64];
	CUdeviceptr ptr = reserve();

	DO(cuMemMap(ptr, MAPPED, 0, first, 0));
	DO(cuMemMap(ptr + MAPPED, MAPPED, 0, second, 0));
	DO(cuMemSetAccess(ptr, 2 * MAPPED, &access_all, 1));
	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (uint8_t)i;
	gpu_write(&gpu, ptr + MAPPED - 32, bytes, sizeof(bytes));
	gpu_read(&gpu, back, ptr + MAPPED - 32, sizeof(back));
	assert_memory_equal(back, bytes, sizeof(bytes));
	gpu_report_clean("");
	BREAKS(cuMemsetD8Async(ptr + MAPPED, 0, MAPPED + 1, gpu.stream), INVALID_VALUE,
	       "out of bounds");
	/* Not when the second one may not be touched. */
	DO(cuMemSetAccess(ptr + MAPPED, MAPPED, &access_read, 1));
	DO(cuMemcpyDtoHAsync(back, ptr + MAPPED - 32, 64, gpu.stream));
	DO(cuMemsetD8Async(ptr + MAPPED - 32, 0, 64, gpu.stream));
	GIVES(cuStreamSynchronize(gpu.stream), ILLEGAL_ADDRESS);
	emu_reopen();
	DO(cuMemUnmap(ptr, 2 * MAPPED));
	DO(cuMemAddressFree(ptr, 2 * MAPPED));
	DO(cuMemRelease(first));
	DO(cuMemRelease(second));
}

TEST(what_is_not_a_whole_mapping_is_refused)
{
	CUmemGenericAllocationHandle handle = create(0), none;
	CUdeviceptr ptr = reserve();
	CUmemAllocationProp prop = prop_of(0);

	GIVES(cuMemCreate(&none, GRANULE / 2, &prop, 0), INVALID_VALUE);
	GIVES(cuMemMap(ptr, 2 * MAPPED, 0, handle, 0), NOT_SUPPORTED);
	GIVES(cuMemMap(ptr + 4096, GRANULE, 0, handle, 0), INVALID_VALUE);
	GIVES(cuMemMap(ptr, MAPPED, GRANULE, handle, 0), INVALID_VALUE);
	GIVES(cuMemMap(ptr + 2 * MAPPED, MAPPED, 0, handle, 0), INVALID_VALUE);
	GIVES(cuMemSetAccess(ptr, MAPPED, &access_all, 1), INVALID_VALUE);
	DO(cuMemMap(ptr, MAPPED, 0, handle, 0));
	GIVES(cuMemMap(ptr + GRANULE, MAPPED, 0, handle, 0), INVALID_VALUE);
	gpu_report_clean("");
	BREAKS(cuMemUnmap(ptr, GRANULE), INVALID_VALUE, "not what was mapped");
	BREAKS(cuMemAddressFree(ptr, 2 * MAPPED), INVALID_VALUE, "still mapped");
	BREAKS(cuMemFree(ptr), INVALID_VALUE, "for cuMemUnmap()");
	DO(cuMemUnmap(ptr, MAPPED));
	BREAKS(cuMemUnmap(ptr, MAPPED), INVALID_VALUE, "not what was mapped");
	BREAKS(cuMemAddressFree(ptr, MAPPED), INVALID_VALUE, "no reservation");
	DO(cuMemAddressFree(ptr, 2 * MAPPED));
	DO(cuMemRelease(handle));
}

TEST_GROUP(emu_begin, emu_end);

TEST_BEGIN
{
	gpu_begin(argv, "gpus=2");
	if (argc > 1)
		exit(strcmp(argv[1], "engine") == 0 ? engine() : engine_with_a_descriptor());
}
