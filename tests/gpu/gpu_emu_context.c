/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_emu_context - the emulated driver's contexts: the current one, leaks in them, the answers of
 * a broken one; and the GPUs that a process sees.
 *
 * A case that needs settings of its own, or ends a process, is done by this program started again.
 */
#include "tests/lib/lib_gpu_emu.h"

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

	DO(cuMemAlloc(&ptr, 1000));
	DO(cuMemHostAlloc(&pinned, 2000, 0));
	DO(cuMemHostRegister(memory, sizeof(memory), 0));
	DO(cuModuleLoadData(&module, ""));
	DO(cuEventCreate(&event, 0));
	DO(cuMemCreate(&handle, 2 << 20, &prop, 0));
	DO(cuMemAddressReserve(&ptr, 4 << 20, 0, 0, 0));
	DO(cuMemMap(ptr, 2 << 20, 0, handle, 0));
	DO(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	return 0;
}

static int leaves_nothing(void)
{
	gpu_close(&gpu);
	return 0;
}

static int forks(void)
{
	pid_t child;

	DO(cuInit(0));
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
	DO(cuDeviceGetCount(&n));
	for (i = 0; i < n; i++)
		DO(cuDeviceGetUuid(&uuids[i], i));
	return send(STDIN_FILENO, uuids, (size_t)n * sizeof(*uuids), 0) < 0;
}

static void *calls(void *context)
{
	DO(cuCtxSetCurrent(context));
	(void)cu->cuCtxSynchronize();
	DO(cuCtxSetCurrent(NULL));
	return NULL;
}

static int two_threads(void)
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, calls, gpu.context))
		return 1;
	pthread_join(thread, NULL);
	gpu_close(&gpu);
	return 0;
}

static int null_stream(void)
{
	CUdeviceptr ptr;

	DO(cuMemAlloc(&ptr, 8));
	DO(cuMemsetD8Async(ptr, 0, 8, NULL));
	DO(cuStreamSynchronize(CU_STREAM_LEGACY));
	DO(cuMemFree(ptr));
	gpu_close(&gpu);
	return 0;
}

static const struct role {
	const char *name;
	int (*run)(void);
	bool opens; /* GPU 0, before */
} roles[] = {
	{ "leaves all", leaves_all, true },
	{ "leaves nothing", leaves_nothing, true },
	{ "forks", forks, false },
	{ "before init", before_init, false },
	{ "no gpu", no_gpu, false },
	{ "lists gpus", lists_gpus, false },
	{ "two threads", two_threads, true },
	{ "null stream", null_stream, true },
};

static int run(const char *name, const char *settings)
{
	return gpu_wait(gpu_spawn(name, settings, NULL));
}

/* --- cases --- */

TEST(what_is_left_at_exit_is_reported)
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

	assert_int_equal(run("leaves all", ""), 0);
	for (size_t i = 0; i < sizeof(said) / sizeof(*said); i++)
		if (gpu_reported("", "leak", said[i]) != 1)
			fail_msg("the report does not say once '%s'", said[i]);
	gpu_report_clear();
	assert_int_equal(run("leaves nothing", ""), 0);
	REPORTED("leak", "", 0);
	REPORTED("exit", "0 violations, 0 leaks", 1);
}

TEST(calls_need_init_and_a_gpu)
{
	assert_int_equal(run("before init", ""), 0);
	assert_int_equal(run("no gpu", "gpus=0"), 0);
	gpu_report_clean("");
}

TEST(a_fork_of_a_process_that_uses_the_driver_cannot)
{
	assert_int_equal(run("forks", ""), 0);
	REPORTED("violation", "called in a fork", 1);
	gpu_report_clear();
}

TEST(a_second_thread_is_reported_where_there_may_be_one_only)
{
	assert_int_equal(run("two threads", ""), 0);
	REPORTED("violation", "", 0);
	assert_int_equal(run("two threads", "one_thread=1"), 0);
	REPORTED("violation", "the context belongs to thread", 1);
	gpu_report_clear();
}

TEST(the_null_stream_is_reported_where_it_may_not_be_used)
{
	assert_int_equal(run("null stream", ""), 0);
	REPORTED("violation", "", 0);
	assert_int_equal(run("null stream", "null_stream=0"), 0);
	REPORTED("violation", "uses the NULL stream", 2);
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

TEST(gpus_are_numbered_for_each_process_and_keep_their_uuid)
{
	char text[64] = "GPU-";
	CUuuid all[8], some[8];

	assert_int_equal(list(NULL, all), 3);
	assert_memory_not_equal(&all[0], &all[1], sizeof(*all));
	assert_int_equal(list("2,0", some), 2);
	assert_memory_equal(&some[0], &all[2], sizeof(*all));
	assert_memory_equal(&some[1], &all[0], sizeof(*all));
	assert_int_equal(list("1,7,0", some), 1); /* up to the first that is none */
	assert_memory_equal(&some[0], &all[1], sizeof(*all));
	for (size_t i = 0; i < 4; i++)
		sprintf(text + 4 + 2 * i, "%02x", (unsigned char)all[1].bytes[i]);
	assert_int_equal(list(text, some), 1);
	assert_memory_equal(&some[0], &all[1], sizeof(*all));
	assert_int_equal(list("", some), -1); /* cuInit(): no device */
	assert_int_equal(list("1,1", some), -1);
}

/* --- the current context --- */

TEST(a_call_without_a_current_context_is_refused)
{
	CUcontext was;
	CUdeviceptr ptr;

	DO(cuCtxPopCurrent(&was));
	assert_ptr_equal(was, gpu.context);
	GIVES(cuMemAlloc(&ptr, 8), INVALID_CONTEXT);
	BREAKS(cuCtxPopCurrent(&was), INVALID_CONTEXT, "no current context");
	DO(cuCtxPushCurrent(gpu.context));
}

static void *finds_none(void *unused)
{
	CUcontext current = gpu.context;

	(void)unused;
	DO(cuCtxGetCurrent(&current));
	return current;
}

TEST(each_thread_has_its_own_current_context)
{
	pthread_t thread;
	void *found;

	assert_int_equal(pthread_create(&thread, NULL, finds_none, NULL), 0);
	pthread_join(thread, &found);
	assert_null(found);
}

TEST(what_belongs_to_another_context_is_refused)
{
	CUdeviceptr ptr;
	CUcontext other;
	CUevent event;
	CUstream stream;

	DO(cuMemAlloc(&ptr, 64));
	DO(cuEventCreate(&event, 0));
	DO(cuCtxCreate(&other, 0, gpu.device));
	BREAKS(cuStreamQuery(gpu.stream), INVALID_HANDLE, "of another context");
	BREAKS(cuMemFree(ptr), INVALID_VALUE, "memory of another context");
	DO(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0));
	BREAKS(cuEventRecord(event, stream), INVALID_HANDLE, "of another context");
	DO(cuStreamWaitEvent(stream, event, 0)); /* it is for waiting across contexts */
	DO(cuStreamSynchronize(stream));
	DO(cuStreamDestroy(stream));
	DO(cuCtxDestroy(other));
	DO(cuEventDestroy(event));
	DO(cuMemFree(ptr));
}

TEST(the_primary_context_is_one_and_counted)
{
	unsigned flags;
	CUcontext same;
	int active;

	DO(cuDevicePrimaryCtxRetain(&same, gpu.device));
	assert_ptr_equal(same, gpu.context);
	DO(cuDevicePrimaryCtxRelease(gpu.device));
	DO(cuDevicePrimaryCtxGetState(gpu.device, &flags, &active));
	assert_int_equal(active, 1);
	DO(cuDevicePrimaryCtxGetState(1, &flags, &active));
	assert_int_equal(active, 0);
	BREAKS(cuDevicePrimaryCtxRelease(1), INVALID_CONTEXT, "not retained");
}

TEST(a_destroyed_context_is_known_as_such)
{
	CUcontext other;
	CUdeviceptr ptr;

	DO(cuCtxCreate(&other, 0, gpu.device));
	DO(cuCtxPushCurrent(other));
	DO(cuMemAlloc(&ptr, 64));
	DO(cuCtxDestroy(other));
	REPORTED("leak", "64 bytes of memory", 1);
	BREAKS(cuMemAlloc(&ptr, 8), CONTEXT_IS_DESTROYED, "was destroyed");
	DO(cuCtxPopCurrent(&other));
	BREAKS(cuCtxPushCurrent(other), INVALID_CONTEXT, "");
}

TEST(handles_are_void_once_destroyed)
{
	CUmodule module;
	CUfunction function;
	CUstream stream;
	CUevent event;

	DO(cuEventCreate(&event, 0));
	DO(cuEventDestroy(event));
	BREAKS(cuEventQuery(event), INVALID_HANDLE, "after it was destroyed");
	BREAKS(cuEventDestroy(event), INVALID_HANDLE, "after it was destroyed");
	DO(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0));
	DO(cuStreamDestroy(stream));
	BREAKS(cuStreamSynchronize(stream), INVALID_HANDLE, "after it was destroyed");
	DO(cuModuleLoadData(&module, ""));
	DO(cuModuleGetFunction(&function, module, "emu_trap"));
	DO(cuModuleUnload(module));
	BREAKS(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, gpu.stream, NULL, NULL),
	       INVALID_HANDLE, "after it was destroyed");
	BREAKS(cuStreamQuery((CUstream)0x1234), INVALID_HANDLE, "is not a stream");
}

/* However many came after it: there are 65,536 slots. */
TEST(a_handle_never_becomes_another_ones)
{
	CUevent event, later;

	DO(cuEventCreate(&event, 0));
	DO(cuEventDestroy(event));
	for (int i = 0; i < 70000; i++) {
		DO(cuEventCreate(&later, 0));
		assert_ptr_not_equal(later, event);
		DO(cuEventDestroy(later));
	}
	BREAKS(cuEventQuery(event), INVALID_HANDLE, "after it was destroyed");
}

TEST(a_kernel_that_traps_breaks_one_gpu_and_a_reset_heals_it)
{
	CUmodule module;
	CUfunction function;
	CUdeviceptr ptr;
	struct gpu other;
	CUevent event;

	DO(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	DO(cuModuleLoadData(&module, ""));
	DO(cuModuleGetFunction(&function, module, "emu_trap"));
	DO(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, gpu.stream, NULL, NULL));
	(void)cu->cuEventRecord(event, gpu.stream); /* the kernel may have run already */
	GIVES(cuEventSynchronize(event), ILLEGAL_ADDRESS);
	GIVES(cuEventQuery(event), ILLEGAL_ADDRESS);
	GIVES(cuMemAlloc(&ptr, 8), ILLEGAL_ADDRESS);
	gpu_open(&other, 1);
	DO(cuMemAlloc(&ptr, 8));
	DO(cuMemFree(ptr));
	gpu_close(&other);
	/* A reset releases nothing. */
	emu_reopen();
	DO(cuMemAlloc(&ptr, 8));
	DO(cuMemFree(ptr));
	BREAKS(cuEventDestroy(event), INVALID_HANDLE, "after it was destroyed");
}

TEST(an_entry_point_of_another_version_is_refused)
{
	CUresult (*ask)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);
	CUdriverProcAddressQueryResult found;
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), *address;

	*(void **)&ask = dlsym(library, "cuGetProcAddress_v2");
	assert_null(dlsym(library, "cuInit"));
	gpu_expect(ask("cuCtxSynchronize", &address, 13000, 0, &found), CUDA_SUCCESS,
		   "written for");
	assert_null(address);
	assert_int_equal(ask("cuNothing", &address, 2000, 0, &found), CUDA_ERROR_NOT_FOUND);
	dlclose(library);
}

TEST_GROUP(emu_begin, emu_end);

TEST_BEGIN
{
	size_t i = 0;

	gpu_begin(argv, "gpus=2");
	if (argc == 1)
		return;
	cu = gpu_api();
	while (strcmp(roles[i].name, argv[1]) != 0)
		i++;
	if (roles[i].opens)
		gpu_open(&gpu, 0);
	exit(roles[i].run());
}
