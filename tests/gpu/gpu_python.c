/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=address,thread (it loads libkvtier into Python, which has no sanitizer) */
/*
 * gpu_python - goal: a tensor in expandable segments is a region like any other in Python:
 * kvtier.torch_region(tensor), and its pages are reached by descriptors. Method: expandable.py,
 * without torch, in a process of its own.
 */
#include "tests/lib/lib_gpu_engine.h"

TEST(a_tensor_in_expandable_segments_is_reached)
{
	char library[600];
	struct daemon d;
	pid_t child;
	int status;

	daemon_start(&d, HOST("32M", "2M") GPU_LINES);
	(void)snprintf(library, sizeof(library), "%s/libkvtier.so.0", build_dir());
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		(void)setenv("KVTIER_LIBRARY", library, 1);
		(void)execlp("python3", "python3", "-B", "tests/gpu/expandable.py", d.socket,
			     (char *)NULL);
		_exit(127);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	if (!WIFEXITED(status) || WEXITSTATUS(status))
		fail_msg("expandable.py ended with 0x%x", (unsigned)status);
	daemon_stat_becomes(&d, "gpu.regions", 0, PATIENT_MS);
	daemon_remove(&d);
	gpu_report_clean("");
}

TEST_BEGIN
{
	if (system("python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null")) {
		puts("skipped: no Python 3.10 or newer");
		exit(77);
	}
	gpu_begin(argv, "null_stream=0");
}
