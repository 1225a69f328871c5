/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait no=address (LeakSanitizer finds no thread of a PID namespace not its own) */
/*
 * gpu_namespace_daemon - goal: a daemon in a PID namespace of its own, as in a container, is not
 * reached by CUDA IPC; memory goes by descriptor, and memory that cannot is staged, with a sentence
 * that says why. Method: a kvtierd as the first process of a new namespace; skipped where none can
 * be made. (gpu_namespace.c: an engine in one.)
 */
#include "tests/lib/lib_gpu_engine.h"

enum { BLOCKS = 12 }; /* twice as many pages lie in two allocations */

/* The daemon alone is in it: a namespace ends with its first process. */
TEST(memory_goes_by_descriptor_or_is_staged)
{
	const int own = open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC);
	struct daemon d;
	struct gpu gpu;

	assert_true(own >= 0);
	if (unshare(CLONE_NEWPID)) {
		print_message("no PID namespace: %s\n", strerror(errno));
		skip();
	}
	daemon_start(&d, HOST("16M", "2M") GPU_LINES);
	assert_int_equal(setns(own, CLONE_NEWPID), 0);
	(void)close(own);
	gpu_open(&gpu, 0); /* a driver makes threads: only here again */
	gpu_engine_goes(&gpu, d.socket, GPU_VMM_FD, BLOCKS, "CUDA descriptor");
	gpu_engine_goes(&gpu, d.socket, GPU_VMM_TWO, BLOCKS, "CUDA descriptor of 2 allocations");
	gpu_engine_goes(&gpu, d.socket, GPU_ALLOC, BLOCKS,
			"CUDA staged: the daemon is in another PID namespace");
	daemon_remove(&d);
	gpu_close(&gpu);
	gpu_report_clean("");
}

TEST_FIRST(gpu_begin(argv, "null_stream=0"));
