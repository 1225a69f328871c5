/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait */
/*
 * gpu_rungs_again - goal: a space over hundreds of allocations can be opened again and again: the
 * library keeps no descriptor of them, and where one of them has changed it says so, and the daemon
 * gives back the allocations that it was told of. Method: as torch's expandable segments;
 * descriptors are counted, and an allocation is taken out of its place.
 */
#include "tests/lib/lib_gpu_served.h"

FIXTURE_DO(begin, gpu_served_begin(HOST("16M", "2M") GPU_LINES, &large_fp8, 600, GPU_VMM_MANY,
				   "CUDA descriptor of "));

TEST_EACH(begin, gpu_served_end);

static int own_fds(void)
{
	int n = 0;

	for (int fd = 0; fd < 65536; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

/* A descriptor exported for the daemon is closed once it is sent. */
TEST(an_engine_keeps_no_descriptor_of_its_memory)
{
	const int fds = own_fds();

	assert_int_equal(kvtier_space_close(ge.e.space), 0);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(gpu_engine_space(&ge), 0);
		gpu_engine_reached(&ge, "CUDA descriptor of ");
		if (i < 2)
			assert_int_equal(kvtier_space_close(ge.e.space), 0);
	}
	assert_int_equal(own_fds(), fds);
}

/* One of many allocations is gone when the space is opened again, for a new daemon: the library
 * says so, and the daemon gives back the allocations that it was told of before. */
TEST(memory_that_has_changed_is_given_back)
{
	enum { GONE = 20 };
	struct kvtier_key keys[1];
	const uint64_t each = ge.memory.bytes / ge.memory.allocs;

	chain_keys(&ge.e, 1, 1, keys);
	daemon_signal(&d, SIGKILL);
	GPU(gpu_api()->cuMemUnmap(ge.memory.base + GONE * each, each));
	daemon_restart(&d);
	AWAIT(engine_store(&ge.e, keys, (uint32_t[]){ 0 }, 1, NULL, NULL) != 0 &&
	      strstr(kvtier_last_error(), "cannot be sent"));
	/* the number is a heartbeat's, of which there has been one since */
	daemon_stat_reaches(&d, "uptime_s", daemon_stat(&d, "uptime_s") + 2);
	daemon_stat_becomes(&d, "gpu.regions", 0, PATIENT_MS);
	GPU(gpu_api()->cuMemMap(ge.memory.base + GONE * each, each, 0, ge.memory.handles[GONE], 0));
}

TEST_FIRST(gpu_begin(argv, "null_stream=0 fabric=1"));
