/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=address (LeakSanitizer finds no thread of a PID namespace not its own) */
/*
 * gpu_namespace - goal: an engine in a PID namespace of its own, as in a container without hostPID,
 * is served. Memory with a descriptor is shared, and legacy IPC is not tried. The library says
 * which setting of the engine gives its memory a descriptor. Method: an engine as the first process
 * of a new namespace, with memory of both kinds; the daemon outside.
 */
#include "tests/lib/lib_gpu_engine.h"

enum { BLOCKS = 8, NOT_ALLOWED = 77 };

static void inside(TEST_UNUSED void **state)
{
	const char *socket = getenv("KVTIER_TEST_SOCKET");
	struct gpu gpu;

	/* some sandboxes give a new namespace no device */
	if (gpu_api()->cuInit(0) == CUDA_ERROR_OPERATING_SYSTEM)
		exit(NOT_ALLOWED);
	/* plain memory is copied, and the setting is named; memory with a descriptor is shared */
	gpu_open(&gpu, 0);
	gpu_engine_goes(&gpu, socket, GPU_ALLOC, BLOCKS, "expandable_segments:True in torch");
	gpu_engine_goes(&gpu, socket, GPU_VMM_FD, BLOCKS, "CUDA descriptor");
	gpu_close(&gpu);
}

/* The children that this process starts from now on are in the new namespace. */
static int outside(void)
{
	if (unshare(CLONE_NEWPID)) {
		printf("unshare(CLONE_NEWPID): %s\n", strerror(errno));
		return NOT_ALLOWED;
	}
	return gpu_wait(gpu_spawn("inside", "", NULL));
}

TEST(an_engine_of_another_pid_namespace_is_served)
{
	struct daemon d;
	struct gpu gpu;
	int status;

	gpu_open(&gpu, 0);
	daemon_start(&d, HOST("32M", "2M") GPU_LINES);
	setenv("KVTIER_TEST_SOCKET", d.socket, 1);
	status = gpu_wait(gpu_spawn("outside", "", NULL));
	daemon_stat_becomes(&d, "gpu.regions", 0, PATIENT_MS);
	daemon_remove(&d);
	gpu_close(&gpu);
	if (status == NOT_ALLOWED)
		skip();
	assert_int_equal(status, 0);
	gpu_report_clean("");
}

TEST_BEGIN
{
	gpu_begin(argv, "null_stream=0");
	if (argc > 1 && strcmp(argv[1], "inside") == 0)
		test_only(inside);
	if (argc > 1)
		exit(outside());
}
