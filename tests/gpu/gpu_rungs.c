/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait seconds=6 */
/*
 * gpu_rungs - goal: pages in a GPU's memory reach the daemon by the first way that its driver and
 * the daemon allow; whichever it is, blocks are the same bytes; and the library says how, and why
 * not better. Method: memory of each kind, through libkvtier and a real daemon with and without
 * GPUs, pages poisoned before each load.
 */
#include "tests/lib/lib_gpu_engine.h"
#include "tests/lib/test.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>

enum { BLOCKS = 12 };

static const char with_gpus[] = "[host]\nbytes = 64M\nslab_bytes = 2M\nhuge_pages = no\n"
				"[gpu]\ndevices = required\nstaging_bytes = 8M\n";
static const char without[] = "[host]\nbytes = 64M\nslab_bytes = 2M\nhuge_pages = no\n"
			      "[gpu]\ndevices = off\n";

static struct daemon d;
static struct gpu gpu;

FIXTURE(begin)
{
	gpu_open(&gpu, 0);
	daemon_start(&d, *state);
	return 0;
}

FIXTURE(end)
{
	daemon_remove(&d);
	gpu_close(&gpu);
	gpu_report_clean("kvtierd");
	gpu_report_clean("gpu_rungs");
	return 0;
}

/* Stored and loaded by engines of one kind and of another. */
static void goes(enum gpu_memory_kind kind, const char *words)
{
	const struct kvtier_geometry g = large_geometry(KVTIER_CODEC_FP8);
	struct kvtier_key keys[BLOCKS];
	struct gpu_engine ge;

	gpu_engine_open(&ge, &gpu, d.socket, &g, 2 * BLOCKS, kind);
	gpu_engine_reached(&ge, words);
	chain_keys(&ge.e, kind, BLOCKS, keys);
	assert_int_equal(gpu_chain_store(&ge, keys, 0, BLOCKS), 0);
	assert_int_equal(engine_lookup(&ge.e, keys, BLOCKS), BLOCKS);
	assert_int_equal(gpu_chain_load(&ge, keys, BLOCKS, BLOCKS), BLOCKS);
	gpu_engine_close(&ge);
}

TEST_GIVEN(an_allocation_goes_by_ipc, begin, end, with_gpus)
{
	goes(GPU_ALLOC, "CUDA IPC");
}

TEST_GIVEN(a_mapping_goes_by_descriptor, begin, end, with_gpus)
{
	goes(GPU_VMM_FD, "CUDA descriptor");
}

TEST_GIVEN(a_mapping_goes_by_fabric_handle, begin, end, with_gpus)
{
	int capable = 0;

	GPU(gpu_api()->cuDeviceGetAttribute(&capable,
					    CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED,
					    gpu.device));
	if (!capable)
		skip();
	goes(GPU_VMM_FABRIC, "CUDA fabric handle");
	goes(GPU_VMM_FABRIC_TWO, "CUDA fabric handle of 2 allocations");
}

TEST_GIVEN(memory_of_a_pool_is_staged, begin, end, with_gpus)
{
	goes(GPU_POOL, "CUDA staged: it is of a stream-ordered pool");
}

TEST_GIVEN(a_mapping_without_a_handle_is_staged, begin, end, with_gpus)
{
	goes(GPU_VMM_NONE, "CUDA staged: it was made by cuMemCreate() without a type of handle "
			   "(requestedHandleTypes POSIX_FILE_DESCRIPTOR): in vLLM, "
			   "enable_sleep_mode=False takes other memory");
}

TEST_GIVEN(several_allocations_go_by_descriptors, begin, end, with_gpus)
{
	goes(GPU_VMM_TWO, "CUDA descriptor of 2 allocations");
}

/* Pages in the first, in middle and in the last of hundreds of allocations, as of torch's
 * expandable segments. */
TEST_GIVEN(hundreds_of_allocations_go_by_descriptors, begin, end, with_gpus)
{
	enum { PAGES = 5000 };
	const struct kvtier_geometry g = large_geometry(KVTIER_CODEC_FP8);
	struct kvtier_key keys[BLOCKS];
	struct gpu_engine ge;

	gpu_engine_open(&ge, &gpu, d.socket, &g, PAGES, GPU_VMM_MANY);
	assert_in_range(ge.memory.parts, 200, GPU_MEMORY_PARTS);
	gpu_engine_reached(&ge, "CUDA descriptor of ");
	chain_keys(&ge.e, 9, BLOCKS, keys);
	assert_int_equal(gpu_chain_store(&ge, keys, 0, BLOCKS), 0);
	assert_int_equal(gpu_chain_load(&ge, keys, PAGES / 2, BLOCKS), BLOCKS);
	assert_int_equal(gpu_chain_load(&ge, keys, PAGES - BLOCKS, BLOCKS), BLOCKS);
	gpu_engine_close(&ge);
}

static int own_fds(void)
{
	int n = 0;

	for (int fd = 0; fd < 65536; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

/* A descriptor exported for the daemon is closed once it is sent. */
TEST_GIVEN(an_engine_keeps_no_descriptor_of_its_memory, begin, end, with_gpus)
{
	const struct kvtier_geometry g = large_geometry(KVTIER_CODEC_FP8);
	struct gpu_engine ge;
	int fds;

	gpu_engine_open(&ge, &gpu, d.socket, &g, 600, GPU_VMM_MANY);
	fds = own_fds();
	assert_int_equal(kvtier_space_close(ge.e.space), 0);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(gpu_engine_space(&ge), 0);
		gpu_engine_reached(&ge, "CUDA descriptor of ");
		if (i < 2)
			assert_int_equal(kvtier_space_close(ge.e.space), 0);
	}
	assert_int_equal(own_fds(), fds);
	gpu_engine_close(&ge);
}

/* One of many allocations is gone when the space is opened again, for a new daemon: the library
 * says so, and the daemon gives back the parts that it was told of before. */
TEST_GIVEN(memory_that_has_changed_is_given_back, begin, end, with_gpus)
{
	enum { GONE = 20 };
	const struct kvtier_geometry g = large_geometry(KVTIER_CODEC_FP8);
	const uint64_t until = now_ns() + PATIENT_MS * 1000000ull;
	struct kvtier_key keys[1];
	struct gpu_engine ge;
	uint64_t part;

	gpu_engine_open(&ge, &gpu, d.socket, &g, 600, GPU_VMM_MANY);
	chain_keys(&ge.e, 1, 1, keys);
	part = ge.memory.bytes / ge.memory.parts;
	daemon_signal(&d, SIGKILL);
	GPU(gpu_api()->cuMemUnmap(ge.memory.base + GONE * part, part));
	daemon_restart(&d);
	while (engine_store(&ge.e, keys, (uint32_t[]){ 0 }, 1, NULL, NULL) == 0 ||
	       !strstr(kvtier_last_error(), "cannot be sent")) {
		assert_true(now_ns() < until);
		nap_ms(5);
	}
	/* the number is a heartbeat's, of which there has been one since */
	daemon_stat_reaches(&d, "uptime_s", daemon_stat(&d, "uptime_s") + 2);
	daemon_stat_becomes(&d, "gpu.regions", 0, PATIENT_MS);
	GPU(gpu_api()->cuMemMap(ge.memory.base + GONE * part, part, 0, ge.memory.handles[GONE], 0));
	gpu_engine_close(&ge);
}

TEST_GIVEN(a_daemon_without_gpus_is_given_copies, begin, end, without)
{
	goes(GPU_ALLOC, "CUDA staged: regions[0]");
	goes(GPU_VMM_FD, "CUDA staged: regions[0]");
	goes(GPU_VMM_TWO, "CUDA staged: parts.device");
}

/* CPU engine, shared and staged GPU pages: one space, the same blocks. */
TEST_GIVEN(blocks_are_the_same_by_every_way, begin, end, with_gpus)
{
	const struct kvtier_geometry g = large_geometry(KVTIER_CODEC_FP8);
	struct gpu_engine shared, staged;
	struct kvtier_key keys[3][BLOCKS];
	struct engine cpu;

	engine_open(&cpu, d.socket, "cpu", &g, BLOCKS);
	gpu_engine_open(&shared, &gpu, d.socket, &g, BLOCKS, GPU_ALLOC);
	gpu_engine_open(&staged, &gpu, d.socket, &g, BLOCKS, GPU_POOL);
	for (uint64_t i = 0; i < 3; i++)
		chain_keys(&cpu, i, BLOCKS, keys[i]);
	assert_int_equal(chain_store(&cpu, keys[0], 0, BLOCKS), 0);
	assert_int_equal(gpu_chain_store(&shared, keys[1], 0, BLOCKS), 0);
	assert_int_equal(gpu_chain_store(&staged, keys[2], 0, BLOCKS), 0);
	for (uint32_t i = 0; i < 3; i++) {
		assert_int_equal(chain_load(&cpu, keys[i], 0, BLOCKS), BLOCKS);
		assert_int_equal(gpu_chain_load(&shared, keys[i], 0, BLOCKS), BLOCKS);
		assert_int_equal(gpu_chain_load(&staged, keys[i], 0, BLOCKS), BLOCKS);
	}
	engine_close(&cpu);
	gpu_engine_close(&shared);
	gpu_engine_close(&staged);
}

TEST_BEGIN
{
	gpu_begin(argv, "null_stream=0 fabric=1");
}
