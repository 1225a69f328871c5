/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_emu_context - the emulated driver's contexts: the current one, leaks in them, the answers of
 * a broken one; and the GPUs that a process sees.
 *
 * A case that needs settings of its own, or ends a process, is done by this program started again.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/lib/lib.h"
#include "tests/lib/lib_gpu.h"

static struct gpu gpu;
static const struct cuda_api *cu;

/* --- roles --- */

static int leaves_all(void)
{
	CUmemAllocationProp prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
				     .location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 },
				     .requestedHandleTypes =
					     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR };
	CUmemGenericAllocationHandle handle;
	static char memory[4096];
	CUdeviceptr ptr;
	CUmodule module;
	CUevent event;
	void *pinned;
	int fd;

	gpu_open(&gpu, 0);
	GPU(cu->cuMemAlloc(&ptr, 1000));
	GPU(cu->cuMemHostAlloc(&pinned, 2000, 0));
	GPU(cu->cuMemHostRegister(memory, sizeof(memory), 0));
	GPU(cu->cuModuleLoadData(&module, ""));
	GPU(cu->cuEventCreate(&event, 0));
	GPU(cu->cuMemCreate(&handle, 2 << 20, &prop, 0));
	GPU(cu->cuMemAddressReserve(&ptr, 4 << 20, 0, 0, 0));
	GPU(cu->cuMemMap(ptr, 2 << 20, 0, handle, 0));
	GPU(cu->cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
					     0));
	return 0;
}

static int leaves_nothing(void)
{
	gpu_open(&gpu, 0);
	gpu_close(&gpu);
	return 0;
}

static int forks(void)
{
	pid_t child;

	GPU(cu->cuInit(0));
	child = fork();
	if (child == 0) {
		int n;

		_exit(cu->cuDeviceGetCount(&n) == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
	}
	return gpu_wait(child);
}

static int before_init(void)
{
	int n;

	return cu->cuDeviceGetCount(&n) == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1;
}

static int no_gpu(void)
{
	return cu->cuInit(0) == CUDA_ERROR_NO_DEVICE ? 0 : 1;
}

/* Sends the UUIDs that it sees, in its order. */
static int lists_gpus(void)
{
	CUuuid uuids[8];
	int n, i;

	if (cu->cuInit(0))
		return 1;
	GPU(cu->cuDeviceGetCount(&n));
	for (i = 0; i < n; i++)
		GPU(cu->cuDeviceGetUuid(&uuids[i], i));
	return send(STDIN_FILENO, uuids, (size_t)n * sizeof(*uuids), 0) < 0;
}

static void *calls(void *context)
{
	GPU(cu->cuCtxSetCurrent(context));
	(void)cu->cuCtxSynchronize();
	GPU(cu->cuCtxSetCurrent(NULL));
	return NULL;
}

static int two_threads(void)
{
	pthread_t thread;

	gpu_open(&gpu, 0);
	if (pthread_create(&thread, NULL, calls, gpu.context))
		return 1;
	pthread_join(thread, NULL);
	gpu_close(&gpu);
	return 0;
}

static int null_stream(void)
{
	CUdeviceptr ptr;

	gpu_open(&gpu, 0);
	GPU(cu->cuMemAlloc(&ptr, 8));
	GPU(cu->cuMemsetD8Async(ptr, 0, 8, NULL));
	GPU(cu->cuStreamSynchronize(CU_STREAM_LEGACY));
	GPU(cu->cuMemFree(ptr));
	gpu_close(&gpu);
	return 0;
}

static int role(const char *name)
{
	static const struct {
		const char *name;
		int (*run)(void);
	} roles[] = {
		{ "leaves all", leaves_all },
		{ "leaves nothing", leaves_nothing },
		{ "forks", forks },
		{ "before init", before_init },
		{ "no gpu", no_gpu },
		{ "lists gpus", lists_gpus },
		{ "two threads", two_threads },
		{ "null stream", null_stream },
	};
	size_t i;

	cu = gpu_api();
	for (i = 0; strcmp(roles[i].name, name); i++)
		;
	return roles[i].run();
}

static int run(const char *name, const char *settings)
{
	return gpu_wait(gpu_spawn(name, settings, NULL));
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

static void what_is_left_at_exit_is_reported(void **state)
{
	static const char *const said[] = { "1000 bytes of memory",
					    "2000 bytes of pinned host memory",
					    "4096 bytes of registered host memory",
					    "a module was left",
					    "a stream was left",
					    "an event was left",
					    "a context of GPU 0 was left",
					    "bytes are still mapped",
					    "bytes of addresses are still reserved",
					    "a handle of an allocation was not released",
					    "the exported descriptor" };
	size_t i;

	(void)state;
	assert_int_equal(run("leaves all", ""), 0);
	for (i = 0; i < sizeof(said) / sizeof(*said); i++)
		if (gpu_reported("", "leak", said[i]) != 1)
			fail_msg("the report does not say once '%s'", said[i]);
	gpu_report_clear();
	assert_int_equal(run("leaves nothing", ""), 0);
	assert_int_equal(gpu_reported("", "leak", ""), 0);
	assert_int_equal(gpu_reported("", "exit", "0 violations, 0 leaks"), 1);
}

static void calls_need_init_and_a_gpu(void **state)
{
	(void)state;
	assert_int_equal(run("before init", ""), 0);
	assert_int_equal(run("no gpu", "gpus=0"), 0);
	gpu_report_clean("");
}

static void a_fork_of_a_process_that_uses_the_driver_cannot(void **state)
{
	(void)state;
	assert_int_equal(run("forks", ""), 0);
	assert_int_equal(gpu_reported("", "violation", "called in a fork"), 1);
	gpu_report_clear();
}

static void a_second_thread_is_reported_where_there_may_be_one_only(void **state)
{
	(void)state;
	assert_int_equal(run("two threads", ""), 0);
	assert_int_equal(gpu_reported("", "violation", ""), 0);
	assert_int_equal(run("two threads", "one_thread=1"), 0);
	assert_int_equal(gpu_reported("", "violation", "the context belongs to thread"), 1);
	gpu_report_clear();
}

static void the_null_stream_is_reported_where_it_may_not_be_used(void **state)
{
	(void)state;
	assert_int_equal(run("null stream", ""), 0);
	assert_int_equal(gpu_reported("", "violation", ""), 0);
	assert_int_equal(run("null stream", "null_stream=0"), 0);
	assert_int_equal(gpu_reported("", "violation", "uses the NULL stream"), 2);
	gpu_report_clear();
}

/* --- which GPUs --- */

static int list(const char *visible, CUuuid ret[8])
{
	pid_t child;
	ssize_t n;
	int fd;

	if (visible)
		setenv("CUDA_VISIBLE_DEVICES", visible, 1);
	child = gpu_spawn("lists gpus", "gpus=3", &fd);
	unsetenv("CUDA_VISIBLE_DEVICES");
	n = recv(fd, ret, 8 * sizeof(*ret), 0);
	close(fd);
	return gpu_wait(child) ? -1 : (int)(n / (ssize_t)sizeof(*ret));
}

static void gpus_are_numbered_for_each_process_and_keep_their_uuid(void **state)
{
	char text[64] = "GPU-";
	CUuuid all[8], some[8];
	size_t i;

	(void)state;
	assert_int_equal(list(NULL, all), 3);
	assert_memory_not_equal(&all[0], &all[1], sizeof(*all));
	assert_int_equal(list("2,0", some), 2);
	assert_memory_equal(&some[0], &all[2], sizeof(*all));
	assert_memory_equal(&some[1], &all[0], sizeof(*all));
	assert_int_equal(list("1,7,0", some), 1); /* up to the first that is none */
	assert_memory_equal(&some[0], &all[1], sizeof(*all));
	for (i = 0; i < 4; i++)
		sprintf(text + 4 + 2 * i, "%02x", (unsigned char)all[1].bytes[i]);
	assert_int_equal(list(text, some), 1);
	assert_memory_equal(&some[0], &all[1], sizeof(*all));
	assert_int_equal(list("", some), -1); /* cuInit(): no device */
	assert_int_equal(list("1,1", some), -1);
}

/* --- the current context --- */

static void a_call_without_a_current_context_is_refused(void **state)
{
	CUcontext was;
	CUdeviceptr ptr;

	(void)state;
	GPU(cu->cuCtxPopCurrent(&was));
	assert_ptr_equal(was, gpu.context);
	assert_int_equal(cu->cuMemAlloc(&ptr, 8), CUDA_ERROR_INVALID_CONTEXT);
	gpu_expect(cu->cuCtxPopCurrent(&was), CUDA_ERROR_INVALID_CONTEXT, "no current context");
	GPU(cu->cuCtxPushCurrent(gpu.context));
}

static void *finds_none(void *unused)
{
	CUcontext current = gpu.context;

	(void)unused;
	GPU(cu->cuCtxGetCurrent(&current));
	return current;
}

static void each_thread_has_its_own_current_context(void **state)
{
	pthread_t thread;
	void *found;

	(void)state;
	assert_int_equal(pthread_create(&thread, NULL, finds_none, NULL), 0);
	pthread_join(thread, &found);
	assert_null(found);
}

static void what_belongs_to_another_context_is_refused(void **state)
{
	CUdeviceptr ptr;
	CUcontext other;
	CUevent event;
	CUstream stream;

	(void)state;
	GPU(cu->cuMemAlloc(&ptr, 64));
	GPU(cu->cuEventCreate(&event, 0));
	GPU(cu->cuCtxCreate(&other, 0, gpu.device));
	gpu_expect(cu->cuStreamQuery(gpu.stream), CUDA_ERROR_INVALID_HANDLE, "of another context");
	gpu_expect(cu->cuMemFree(ptr), CUDA_ERROR_INVALID_VALUE, "memory of another context");
	GPU(cu->cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0));
	gpu_expect(cu->cuEventRecord(event, stream), CUDA_ERROR_INVALID_HANDLE,
		   "of another context");
	GPU(cu->cuStreamWaitEvent(stream, event, 0)); /* it is for waiting across contexts */
	GPU(cu->cuStreamSynchronize(stream));
	GPU(cu->cuStreamDestroy(stream));
	GPU(cu->cuCtxDestroy(other));
	GPU(cu->cuEventDestroy(event));
	GPU(cu->cuMemFree(ptr));
}

static void the_primary_context_is_one_and_counted(void **state)
{
	unsigned flags;
	CUcontext same;
	int active;

	(void)state;
	GPU(cu->cuDevicePrimaryCtxRetain(&same, gpu.device));
	assert_ptr_equal(same, gpu.context);
	GPU(cu->cuDevicePrimaryCtxRelease(gpu.device));
	GPU(cu->cuDevicePrimaryCtxGetState(gpu.device, &flags, &active));
	assert_int_equal(active, 1);
	GPU(cu->cuDevicePrimaryCtxGetState(1, &flags, &active));
	assert_int_equal(active, 0);
	gpu_expect(cu->cuDevicePrimaryCtxRelease(1), CUDA_ERROR_INVALID_CONTEXT, "not retained");
}

static void a_destroyed_context_is_known_as_such(void **state)
{
	CUcontext other;
	CUdeviceptr ptr;

	(void)state;
	GPU(cu->cuCtxCreate(&other, 0, gpu.device));
	GPU(cu->cuCtxPushCurrent(other));
	GPU(cu->cuMemAlloc(&ptr, 64));
	GPU(cu->cuCtxDestroy(other));
	assert_int_equal(gpu_reported("", "leak", "64 bytes of memory"), 1);
	gpu_expect(cu->cuMemAlloc(&ptr, 8), CUDA_ERROR_CONTEXT_IS_DESTROYED, "was destroyed");
	GPU(cu->cuCtxPopCurrent(&other));
	gpu_expect(cu->cuCtxPushCurrent(other), CUDA_ERROR_INVALID_CONTEXT, "");
}

static void handles_are_void_once_destroyed(void **state)
{
	CUmodule module;
	CUfunction function;
	CUstream stream;
	CUevent event;

	(void)state;
	GPU(cu->cuEventCreate(&event, 0));
	GPU(cu->cuEventDestroy(event));
	gpu_expect(cu->cuEventQuery(event), CUDA_ERROR_INVALID_HANDLE, "after it was destroyed");
	gpu_expect(cu->cuEventDestroy(event), CUDA_ERROR_INVALID_HANDLE, "after it was destroyed");
	GPU(cu->cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0));
	GPU(cu->cuStreamDestroy(stream));
	gpu_expect(cu->cuStreamSynchronize(stream), CUDA_ERROR_INVALID_HANDLE,
		   "after it was destroyed");
	GPU(cu->cuModuleLoadData(&module, ""));
	GPU(cu->cuModuleGetFunction(&function, module, "emu_trap"));
	GPU(cu->cuModuleUnload(module));
	gpu_expect(cu->cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, gpu.stream, NULL, NULL),
		   CUDA_ERROR_INVALID_HANDLE, "after it was destroyed");
	gpu_expect(cu->cuStreamQuery((CUstream)0x1234), CUDA_ERROR_INVALID_HANDLE,
		   "is not a stream");
}

/* However many came after it: there are 65,536 slots. */
static void a_handle_never_becomes_another_ones(void **state)
{
	CUevent event, later;
	int i;

	(void)state;
	GPU(cu->cuEventCreate(&event, 0));
	GPU(cu->cuEventDestroy(event));
	for (i = 0; i < 70000; i++) {
		GPU(cu->cuEventCreate(&later, 0));
		assert_ptr_not_equal(later, event);
		GPU(cu->cuEventDestroy(later));
	}
	gpu_expect(cu->cuEventQuery(event), CUDA_ERROR_INVALID_HANDLE, "after it was destroyed");
}

static void a_kernel_that_traps_breaks_one_gpu_and_a_reset_heals_it(void **state)
{
	CUmodule module;
	CUfunction function;
	CUdeviceptr ptr;
	struct gpu other;
	CUevent event;

	(void)state;
	GPU(cu->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	GPU(cu->cuModuleLoadData(&module, ""));
	GPU(cu->cuModuleGetFunction(&function, module, "emu_trap"));
	GPU(cu->cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, gpu.stream, NULL, NULL));
	(void)cu->cuEventRecord(event, gpu.stream); /* the kernel may have run already */
	assert_int_equal(cu->cuEventSynchronize(event), CUDA_ERROR_ILLEGAL_ADDRESS);
	assert_int_equal(cu->cuEventQuery(event), CUDA_ERROR_ILLEGAL_ADDRESS);
	assert_int_equal(cu->cuMemAlloc(&ptr, 8), CUDA_ERROR_ILLEGAL_ADDRESS);
	gpu_open(&other, 1);
	GPU(cu->cuMemAlloc(&ptr, 8));
	GPU(cu->cuMemFree(ptr));
	gpu_close(&other);
	/* A reset releases nothing. */
	GPU(cu->cuDevicePrimaryCtxReset(gpu.device));
	GPU(cu->cuDevicePrimaryCtxRelease(gpu.device));
	gpu_report_clear();
	gpu_open(&gpu, 0);
	GPU(cu->cuMemAlloc(&ptr, 8));
	GPU(cu->cuMemFree(ptr));
	gpu_expect(cu->cuEventDestroy(event), CUDA_ERROR_INVALID_HANDLE, "after it was destroyed");
}

static void an_entry_point_of_another_version_is_refused(void **state)
{
	CUresult (*ask)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);
	CUdriverProcAddressQueryResult found;
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), *address;

	(void)state;
	*(void **)&ask = dlsym(library, "cuGetProcAddress_v2");
	assert_null(dlsym(library, "cuInit"));
	gpu_expect(ask("cuCtxSynchronize", &address, 13000, 0, &found), CUDA_SUCCESS,
		   "written for");
	assert_null(address);
	assert_int_equal(ask("cuNothing", &address, 2000, 0, &found), CUDA_ERROR_NOT_FOUND);
	dlclose(library);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_left_at_exit_is_reported),
		cmocka_unit_test(calls_need_init_and_a_gpu),
		cmocka_unit_test(a_fork_of_a_process_that_uses_the_driver_cannot),
		cmocka_unit_test(a_second_thread_is_reported_where_there_may_be_one_only),
		cmocka_unit_test(the_null_stream_is_reported_where_it_may_not_be_used),
		cmocka_unit_test(gpus_are_numbered_for_each_process_and_keep_their_uuid),
		cmocka_unit_test(a_call_without_a_current_context_is_refused),
		cmocka_unit_test(each_thread_has_its_own_current_context),
		cmocka_unit_test(what_belongs_to_another_context_is_refused),
		cmocka_unit_test(the_primary_context_is_one_and_counted),
		cmocka_unit_test(a_destroyed_context_is_known_as_such),
		cmocka_unit_test(handles_are_void_once_destroyed),
		cmocka_unit_test(a_handle_never_becomes_another_ones),
		cmocka_unit_test(a_kernel_that_traps_breaks_one_gpu_and_a_reset_heals_it),
		cmocka_unit_test(an_entry_point_of_another_version_is_refused),
	};
	int failed;

	gpu_begin(argv, "gpus=2");
	if (argc > 1)
		return role(argv[1]);
	failed = cmocka_run_group_tests(tests, setup, teardown);
	gpu_report_clean("");
	return failed;
}
