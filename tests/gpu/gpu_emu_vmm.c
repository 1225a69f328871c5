/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_emu_vmm - the emulated driver's virtual memory management, in one process and between two.
 *
 * An engine, this program again, makes an allocation and sends its descriptor; this process, in the
 * daemon's part, maps it.
 */
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/lib/lib.h"
#include "tests/lib/lib_gpu.h"

enum { GRANULE = 2 << 20, BYTES = 2 * GRANULE, WORDS = 4096 };

static struct gpu gpu;
static const struct cuda_api *cu;
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

	GPU(cu->cuMemCreate(&handle, BYTES, &prop, 0));
	return handle;
}

static CUdeviceptr reserve(void)
{
	CUdeviceptr ptr;

	GPU(cu->cuMemAddressReserve(&ptr, 2 * BYTES, 0, 0, 0));
	return ptr;
}

/* --- the engine --- */

static void send_fd(int socket, int fd)
{
	char space[CMSG_SPACE(sizeof(fd))] = { 0 }, byte = 0;
	struct iovec iov = { &byte, 1 };
	struct msghdr message = { .msg_iov = &iov,
				  .msg_iovlen = 1,
				  .msg_control = space,
				  .msg_controllen = sizeof(space) };
	struct cmsghdr *c = CMSG_FIRSTHDR(&message);

	*c = (struct cmsghdr){ CMSG_LEN(sizeof(fd)), SOL_SOCKET, SCM_RIGHTS };
	memcpy(CMSG_DATA(c), &fd, sizeof(fd));
	assert_int_equal(sendmsg(socket, &message, 0), 1);
}

static int receive_fd(int socket)
{
	char space[CMSG_SPACE(sizeof(int))], byte;
	struct iovec iov = { &byte, 1 };
	struct msghdr message = { .msg_iov = &iov,
				  .msg_iovlen = 1,
				  .msg_control = space,
				  .msg_controllen = sizeof(space) };
	int fd;

	assert_int_equal(recvmsg(socket, &message, MSG_CMSG_CLOEXEC), 1);
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(fd));
	return fd;
}

static int engine(void)
{
	CUmemGenericAllocationHandle handle;
	CUdeviceptr ptr;
	CUmodule module;
	CUfunction fill;
	uint32_t value = 99, n = WORDS;
	void *params[] = { &ptr, &value, &n };
	char byte;
	int fd;

	cu = gpu_api();
	gpu_open(&gpu, 0);
	handle = create(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	ptr = reserve();
	GPU(cu->cuMemMap(ptr, BYTES, 0, handle, 0));
	GPU(cu->cuMemSetAccess(ptr, BYTES, &access_all, 1));
	GPU(cu->cuModuleLoadData(&module, ""));
	GPU(cu->cuModuleGetFunction(&fill, module, "emu_fill"));
	GPU(cu->cuLaunchKernel(fill, 1, 1, 1, 32, 1, 1, 0, gpu.stream, params, NULL));
	GPU(cu->cuStreamSynchronize(gpu.stream));
	GPU(cu->cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
					     0));
	send_fd(STDIN_FILENO, fd);
	close(fd);
	(void)!recv(STDIN_FILENO, &byte, 1, 0);
	_exit(0);
}

/* --- cases --- */

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

static void memory_of_another_process_is_mapped_and_outlives_it(void **state)
{
	const uint64_t before = gpu_used();
	CUmemGenericAllocationHandle handle;
	static uint32_t words[WORDS];
	CUdeviceptr ptr = reserve();
	uint64_t kinds = 0;
	pid_t child;
	int socket, fd;

	(void)state;
	child = gpu_spawn("engine", "", &socket);
	fd = receive_fd(socket);
	GPU(cu->cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd,
					       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	close(fd);
	GPU(cu->cuMemMap(ptr, BYTES, 0, handle, 0));
	GPU(cu->cuMemRelease(handle));
	GPU(cu->cuMemSetAccess(ptr, BYTES, &access_all, 1));
	kill(child, SIGKILL);
	assert_int_equal(gpu_wait(child), -SIGKILL);
	assert_int_equal(gpu_used(), before + BYTES);
	gpu_read(&gpu, words, ptr, sizeof(words));
	assert_int_equal(words[0], 99);
	assert_int_equal(words[WORDS - 1], 99);
	GPU(cu->cuPointerGetAttribute(&kinds, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, ptr));
	assert_int_equal(kinds, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	GPU(cu->cuMemUnmap(ptr, BYTES));
	assert_int_equal(gpu_used(), before);
	GPU(cu->cuMemAddressFree(ptr, 2 * BYTES));
	close(socket);
	gpu_report_clean("");
}

static void a_descriptor_opens_nothing_but_this_driver(void **state)
{
	CUmemGenericAllocationHandle handle = create(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	char byte;
	int fd;

	(void)state;
	GPU(cu->cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
					     0));
	assert_ptr_equal(mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0), MAP_FAILED);
	assert_int_equal(pread(fd, &byte, 1, 0), -1);
	close(fd);
	GPU(cu->cuMemRelease(handle));
	fd = memfd_make(BYTES, 0);
	assert_int_equal(
		cu->cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd,
						   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
		CUDA_ERROR_INVALID_VALUE);
	close(fd);
	/* made without a handle type */
	handle = create(0);
	assert_int_equal(cu->cuMemExportToShareableHandle(&fd, handle,
							  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
							  0),
			 CUDA_ERROR_INVALID_VALUE);
	GPU(cu->cuMemRelease(handle));
	gpu_report_clean("");
}

static void mapped_memory_is_touched_only_as_its_access_says(void **state)
{
	CUmemGenericAllocationHandle handle = create(0);
	static uint32_t word;
	CUdeviceptr ptr = reserve();

	(void)state;
	GPU(cu->cuMemMap(ptr, BYTES, 0, handle, 0));
	GPU(cu->cuMemRelease(handle));
	GPU(cu->cuMemSetAccess(ptr, BYTES, &access_read, 1));
	gpu_read(&gpu, &word, ptr, 4);
	GPU(cu->cuMemsetD8Async(ptr, 0, 4, gpu.stream));
	assert_int_equal(cu->cuStreamSynchronize(gpu.stream), CUDA_ERROR_ILLEGAL_ADDRESS);
	gpu_expect(cu->cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS, "may not be accessed so");
	GPU(cu->cuDevicePrimaryCtxReset(gpu.device));
	GPU(cu->cuDevicePrimaryCtxRelease(gpu.device));
	gpu_open(&gpu, 0);
	/* Mappings are not of the context. */
	GPU(cu->cuMemUnmap(ptr, BYTES));
	GPU(cu->cuMemAddressFree(ptr, 2 * BYTES));
	gpu_report_clean("");
}

static void memory_lives_until_released_and_unmapped(void **state)
{
	const uint64_t before = gpu_used();
	CUmemGenericAllocationHandle handle = create(0), same;
	CUdeviceptr ptr = reserve(), second = reserve();

	(void)state;
	GPU(cu->cuMemMap(ptr, BYTES, 0, handle, 0));
	GPU(cu->cuMemMap(second, BYTES, 0, handle, 0)); /* one memory, two addresses */
	assert_int_equal(gpu_used(), before + BYTES);
	GPU(cu->cuMemRetainAllocationHandle(&same, (void *)(ptr + 5)));
	assert_int_equal(same, handle);
	GPU(cu->cuMemRelease(handle));
	GPU(cu->cuMemRelease(handle));
	gpu_expect(cu->cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE, "after it was destroyed");
	GPU(cu->cuMemUnmap(ptr, BYTES));
	assert_int_equal(gpu_used(), before + BYTES);
	GPU(cu->cuMemUnmap(second, BYTES));
	assert_int_equal(gpu_used(), before);
	GPU(cu->cuMemAddressFree(ptr, 2 * BYTES));
	GPU(cu->cuMemAddressFree(second, 2 * BYTES));
}

/* As torch's expandable segments lie. */
static void an_operation_goes_over_the_border_of_two_mappings(void **state)
{
	CUmemGenericAllocationHandle first = create(0), second = create(0);
	static uint8_t bytes[64], back[64];
	CUdeviceptr ptr = reserve();
	size_t i;

	(void)state;
	GPU(cu->cuMemMap(ptr, BYTES, 0, first, 0));
	GPU(cu->cuMemMap(ptr + BYTES, BYTES, 0, second, 0));
	GPU(cu->cuMemSetAccess(ptr, 2 * BYTES, &access_all, 1));
	for (i = 0; i < sizeof(bytes); i++)
		bytes[i] = (uint8_t)i;
	gpu_write(&gpu, ptr + BYTES - 32, bytes, sizeof(bytes));
	gpu_read(&gpu, back, ptr + BYTES - 32, sizeof(back));
	assert_memory_equal(back, bytes, sizeof(bytes));
	gpu_report_clean("");
	gpu_expect(cu->cuMemsetD8Async(ptr + BYTES, 0, BYTES + 1, gpu.stream),
		   CUDA_ERROR_INVALID_VALUE, "out of bounds");
	/* Not when the second one may not be touched. */
	GPU(cu->cuMemSetAccess(ptr + BYTES, BYTES, &access_read, 1));
	GPU(cu->cuMemcpyDtoHAsync(back, ptr + BYTES - 32, 64, gpu.stream));
	GPU(cu->cuMemsetD8Async(ptr + BYTES - 32, 0, 64, gpu.stream));
	assert_int_equal(cu->cuStreamSynchronize(gpu.stream), CUDA_ERROR_ILLEGAL_ADDRESS);
	GPU(cu->cuDevicePrimaryCtxReset(gpu.device));
	GPU(cu->cuDevicePrimaryCtxRelease(gpu.device));
	gpu_open(&gpu, 0);
	gpu_report_clear();
	GPU(cu->cuMemUnmap(ptr, 2 * BYTES));
	GPU(cu->cuMemAddressFree(ptr, 2 * BYTES));
	GPU(cu->cuMemRelease(first));
	GPU(cu->cuMemRelease(second));
}

static void what_is_not_a_whole_mapping_is_refused(void **state)
{
	CUmemGenericAllocationHandle handle = create(0), none;
	CUdeviceptr ptr = reserve();
	CUmemAllocationProp prop = prop_of(0);

	(void)state;
	assert_int_equal(cu->cuMemCreate(&none, GRANULE / 2, &prop, 0), CUDA_ERROR_INVALID_VALUE);
	assert_int_equal(cu->cuMemMap(ptr, 2 * BYTES, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
	assert_int_equal(cu->cuMemMap(ptr + 4096, GRANULE, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
	assert_int_equal(cu->cuMemMap(ptr, BYTES, GRANULE, handle, 0), CUDA_ERROR_INVALID_VALUE);
	assert_int_equal(cu->cuMemMap(ptr + 2 * BYTES, BYTES, 0, handle, 0),
			 CUDA_ERROR_INVALID_VALUE);
	assert_int_equal(cu->cuMemSetAccess(ptr, BYTES, &access_all, 1), CUDA_ERROR_INVALID_VALUE);
	GPU(cu->cuMemMap(ptr, BYTES, 0, handle, 0));
	assert_int_equal(cu->cuMemMap(ptr + GRANULE, BYTES, 0, handle, 0),
			 CUDA_ERROR_INVALID_VALUE);
	gpu_report_clean("");
	gpu_expect(cu->cuMemUnmap(ptr, GRANULE), CUDA_ERROR_INVALID_VALUE, "not what was mapped");
	gpu_expect(cu->cuMemAddressFree(ptr, 2 * BYTES), CUDA_ERROR_INVALID_VALUE, "still mapped");
	gpu_expect(cu->cuMemFree(ptr), CUDA_ERROR_INVALID_VALUE, "for cuMemUnmap()");
	GPU(cu->cuMemUnmap(ptr, BYTES));
	gpu_expect(cu->cuMemUnmap(ptr, BYTES), CUDA_ERROR_INVALID_VALUE, "not what was mapped");
	gpu_expect(cu->cuMemAddressFree(ptr, BYTES), CUDA_ERROR_INVALID_VALUE, "no reservation");
	GPU(cu->cuMemAddressFree(ptr, 2 * BYTES));
	GPU(cu->cuMemRelease(handle));
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(memory_of_another_process_is_mapped_and_outlives_it),
		cmocka_unit_test(a_descriptor_opens_nothing_but_this_driver),
		cmocka_unit_test(mapped_memory_is_touched_only_as_its_access_says),
		cmocka_unit_test(memory_lives_until_released_and_unmapped),
		cmocka_unit_test(an_operation_goes_over_the_border_of_two_mappings),
		cmocka_unit_test(what_is_not_a_whole_mapping_is_refused),
	};
	int failed;

	gpu_begin(argv, "");
	if (argc > 1)
		return engine();
	failed = cmocka_run_group_tests(tests, setup, teardown);
	gpu_report_clean("");
	return failed;
}
