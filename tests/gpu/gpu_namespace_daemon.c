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

static struct daemon d;
static struct gpu gpu;

static void goes(enum gpu_memory_kind kind, const char *words)
{
	struct kvtier_key keys[BLOCKS];
	struct gpu_engine ge;

	gpu_engine_open(&ge, &gpu, d.socket, &large_fp8, 2 * BLOCKS, kind);
	gpu_engine_reached(&ge, words);
	chain_keys(&ge.e, kind, BLOCKS, keys);
	assert_int_equal(gpu_chain_store(&ge, keys, 0, BLOCKS), 0);
	assert_int_equal(gpu_chain_load(&ge, keys, BLOCKS, BLOCKS), BLOCKS);
	gpu_engine_close(&ge);
}

/* The daemon alone is in it: a namespace ends with its first process. */
TEST(memory_goes_by_descriptor_or_is_staged)
{
	const int own = open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC);

	assert_true(own >= 0);
	if (unshare(CLONE_NEWPID)) {
		print_message("no PID namespace: %s\n", strerror(errno));
		skip();
	}
	daemon_start(&d, "[host]\nbytes = 16M\nslab_bytes = 2M\nhuge_pages = no\n"
			 "[gpu]\ndevices = required\nstaging_bytes = 8M\n");
	assert_int_equal(setns(own, CLONE_NEWPID), 0);
	(void)close(own);
	gpu_open(&gpu, 0); /* a driver makes threads: only here again */
	goes(GPU_VMM_FD, "CUDA descriptor");
	goes(GPU_VMM_TWO, "CUDA descriptor of 2 allocations");
	goes(GPU_ALLOC, "CUDA staged: the daemon is in another PID namespace");
	daemon_remove(&d);
	gpu_close(&gpu);
	gpu_report_clean("");
}

TEST_FIRST(gpu_begin(argv, "null_stream=0"));
