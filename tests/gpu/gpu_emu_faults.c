/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_emu_faults - faults that the emulated driver's settings plant, each in a process of its own,
 * which has opened GPU 0.
 */
#include "tests/lib/lib_gpu_emu.h"

static int third_alloc_fails(void)
{
	CUdeviceptr ptr[4];
	CUresult r[4];

	for (int i = 0; i < 4; i++)
		r[i] = cu->cuMemAlloc(&ptr[i], 8);
	return !(!r[0] && !r[1] && r[2] == CUDA_ERROR_OUT_OF_MEMORY && !r[3]);
}

static int every_query_fails(void)
{
	return !(cu->cuStreamQuery(gpu.stream) == CUDA_ERROR_ECC_UNCORRECTABLE &&
		 cu->cuStreamQuery(gpu.stream) == CUDA_ERROR_ECC_UNCORRECTABLE &&
		 cu->cuStreamSynchronize(gpu.stream) == CUDA_SUCCESS);
}

static int second_alloc_breaks(void)
{
	CUdeviceptr ptr;

	return !(cu->cuMemAlloc(&ptr, 8) == CUDA_SUCCESS &&
		 cu->cuMemAlloc(&ptr, 8) == CUDA_ERROR_LAUNCH_FAILED &&
		 cu->cuStreamQuery(gpu.stream) == CUDA_ERROR_LAUNCH_FAILED);
}

static atomic_bool waited;

/* A call that takes long holds up nobody else: other calls begin and end while it lasts. */
static void *waits(void *unused)
{
	(void)unused;
	DO(cuCtxSetCurrent(gpu.context));
	DO(cuStreamSynchronize(gpu.stream));
	waited = true;
	return NULL;
}

static int one_call_is_slow(void)
{
	const uint64_t before = now_ns();
	pthread_t thread;
	int n = 0;

	if (pthread_create(&thread, NULL, waits, NULL))
		return 1;
	while (!waited && !cu->cuStreamQuery(gpu.stream))
		n++;
	pthread_join(thread, NULL);
	return now_ns() - before < 300000000 || n < 4; /* 2, if it were held up */
}

/* Work stands still for a while, then goes on. */
static int gpu_stands_still(void)
{
	const uint64_t before = now_ns();
	CUdeviceptr ptr;

	DO(cuMemAlloc(&ptr, 8));
	DO(cuMemsetD8Async(ptr, 0, 8, gpu.stream));
	DO(cuStreamSynchronize(gpu.stream));
	DO(cuMemsetD8Async(ptr, 0, 8, gpu.stream));
	DO(cuStreamSynchronize(gpu.stream));
	return now_ns() - before < 200000000;
}

static int ipc_is_refused(void)
{
	CUipcMemHandle memory;
	CUdeviceptr ptr;
	int capable = 1;

	DO(cuMemAlloc(&ptr, 8));
	DO(cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, ptr));
	return !(cu->cuIpcGetMemHandle(&memory, ptr) == CUDA_ERROR_NOT_SUPPORTED && !capable);
}

static int address_is_reused(void)
{
	CUdeviceptr first, second;

	DO(cuMemAlloc(&first, 8));
	DO(cuMemFree(first));
	DO(cuMemAlloc(&second, 8));
	return first == second;
}

/* Of all calls, but for calls that are repeated until something is done. */
static int second_call_fails(void)
{
	CUdeviceptr first, second;
	CUresult r;

	(void)gpu_countdown(2);
	DO(cuMemAlloc(&first, 8));
	DO(cuStreamQuery(gpu.stream));
	if (gpu_failed())
		return 1;
	r = cu->cuMemAlloc(&second, 8);
	return !(r == CUDA_ERROR_OUT_OF_MEMORY && !strcmp(gpu_failed(), "cuMemAlloc") &&
		 !cu->cuMemAlloc(&second, 8));
}

static int failing_free_frees(void)
{
	CUdeviceptr ptr;
	uint64_t live;

	live = gpu_live();
	DO(cuMemAlloc(&ptr, 8));
	if (gpu_live() != live + 1)
		return 1;
	(void)gpu_countdown(1);
	return !(cu->cuMemFree(ptr) != CUDA_SUCCESS && gpu_live() == live);
}

/* gpu_open() makes five. */
static int sixth_call_breaks(void)
{
	CUdeviceptr ptr;

	return !(cu->cuMemAlloc(&ptr, 8) == CUDA_ERROR_LAUNCH_FAILED &&
		 cu->cuStreamQuery(gpu.stream) == CUDA_ERROR_LAUNCH_FAILED);
}

static int mps_is_said(void)
{
	int mps = 0;

	DO(cuDeviceGetAttribute(&mps, CU_DEVICE_ATTRIBUTE_MPS_ENABLED, gpu.device));
	return !mps;
}

/* A stream waits for a word that stays as it is. Does another stream's work run meanwhile? */
static int queues_are_apart(void)
{
	struct gpu_gate gate;
	CUdeviceptr ptr;
	CUstream other;
	int done = 0;

	DO(cuMemAlloc(&ptr, 8));
	DO(cuStreamCreateWithPriority(&other, CU_STREAM_NON_BLOCKING, 0));
	gpu_gate_make(&gate);
	gpu_gate_close(&gate, gpu.stream);
	DO(cuMemsetD8Async(ptr, 0, 8, other));
	for (int i = 0; i < 100 && !done; i++) {
		done = cu->cuStreamQuery(other) == CUDA_SUCCESS;
		nap_ms(1);
	}
	gpu_gate_open(&gate);
	DO(cuStreamSynchronize(other));
	return !done;
}

static void *frees(void *ptr)
{
	DO(cuCtxSetCurrent(gpu.context));
	DO(cuMemFree(*(CUdeviceptr *)ptr));
	waited = true;
	return NULL;
}

/* Of memory that nothing uses. */
static int free_waits_for_all(void)
{
	struct gpu_gate gate;
	pthread_t thread;
	CUdeviceptr ptr;
	bool before;

	DO(cuMemAlloc(&ptr, 8));
	gpu_gate_make(&gate);
	gpu_gate_close(&gate, gpu.stream);
	if (pthread_create(&thread, NULL, frees, &ptr))
		return 2;
	for (int i = 0; i < 100 && !waited; i++)
		nap_ms(1);
	before = waited;
	gpu_gate_open(&gate);
	pthread_join(thread, NULL);
	return before;
}

static int frees_twice(void)
{
	CUdeviceptr ptr;

	DO(cuMemAlloc(&ptr, 8));
	DO(cuMemFree(ptr));
	(void)cu->cuMemFree(ptr);
	return 0;
}

static const struct role {
	const char *name, *settings;
	int (*run)(void);
	int exit; /* status; 255: any but 0 */
} roles[] = {
	{ "third alloc fails", "fail=cuMemAlloc:3", third_alloc_fails, 0 },
	{ "every query fails", "fail=cuStreamQuery:0:214", every_query_fails, 0 },
	{ "second alloc breaks", "sticky=cuMemAlloc:2", second_alloc_breaks, 0 },
	{ "one call is slow", "slow=cuStreamSynchronize:300", one_call_is_slow, 0 },
	{ "gpu stands still", "stall=2:200", gpu_stands_still, 0 },
	{ "ipc is refused", "ipc=0", ipc_is_refused, 0 },
	{ "address is reused", "reuse=1", address_is_reused, 1 },
	{ "address is not reused", "reuse=0", address_is_reused, 0 },
	{ "second call fails", "", second_call_fails, 0 },
	{ "failing free frees", "", failing_free_frees, 0 },
	{ "sixth call breaks", "breakdown=6", sixth_call_breaks, 0 },
	{ "sixth call does not break", "breakdown=7", sixth_call_breaks, 1 },
	{ "mps is said", "mps=1", mps_is_said, 0 },
	{ "mps is not said", "", mps_is_said, 1 },
	{ "queues are apart", "", queues_are_apart, 0 },
	{ "one queue", "queues=1", queues_are_apart, 1 },
	{ "a free waits for nothing", "", free_waits_for_all, 1 },
	{ "a free waits for all", "waits=1", free_waits_for_all, 0 },
	{ "unknown setting", "laet=1", address_is_reused, 255 },
	{ "unknown call", "fail=cuMemAllok:1", address_is_reused, 255 },
	{ "a violation is said", "", frees_twice, 0 },
	{ "a violation ends the process", "abort=1", frees_twice, -SIGABRT },
};

TEST(each_fault_is_where_the_settings_say)
{
	int code;

	for (size_t i = 0; i < sizeof(roles) / sizeof(*roles); i++) {
		code = gpu_wait(gpu_spawn(roles[i].name, roles[i].settings, NULL));
		if (roles[i].exit == 255 ? code == 0 : code != roles[i].exit)
			fail_msg("%s (%s): %d", roles[i].name, roles[i].settings, code);
	}
	REPORTED("violation", "", 2);
	REPORTED("violation", "cuMemFree", 2);
}

TEST_BEGIN
{
	size_t i = 0;

	gpu_begin(argv, "");
	if (argc == 1)
		return;
	(void)emu_begin(NULL);
	while (strcmp(roles[i].name, argv[1]) != 0)
		i++;
	exit(roles[i].run());
}
