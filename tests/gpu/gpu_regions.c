/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait seconds=8 */
/*
 * gpu_regions - goal: a client's words about its GPU memory are checked. Memory comes by each kind
 * of handle, and goes again: after SPACE_CLOSED nothing of it is open, and nothing grows. Method:
 * the wire by hand, with good regions and wrong ones; the emulated driver's report; the daemon's
 * descriptors; two GPUs.
 */
#include "tests/lib/lib_gpu_range.h"

enum { N = 4, CHAIN = 3 };

GPU_DAEMON_EACH(GPU_CONFIG("32M", "1M"));

/* The driver opens a handle of one GPU in a context of another one, so the daemon has to look. */
FIXTURE(begin_as_peers)
{
	gpu_settings("peer=1");
	(void)begin(state);
	gpu_settings("peer=0");
	*state = &d; /* the test knows */
	return 0;
}

TEST(wrong_regions_are_refused)
{
	struct wire_region good, bad;
	struct gpu_raw e;

	gpu_raw_dial(&e, d.socket, &gpu, &tiny_fp8, 2 * N);
	bad = good = gpu_raw_region(&e);
	bad.length += 4 << 20; /* the driver may round an allocation up */
	gpu_raw_space_refused(&e, &bad, -1, -EINVAL, "must lie in the allocation's");
	bad = good;
	bad.offset = UINT64_MAX - 100;
	gpu_raw_space_refused(&e, &bad, -1, -EINVAL, "must lie in the allocation's");
	bad = good;
	bad.device[3] ^= 1;
	gpu_raw_space_refused(&e, &bad, -1, -ENODEV, "serves no device");
	bad = good;
	memset(bad.handle, 0x5a, sizeof(bad.handle));
	gpu_raw_space_refused(&e, &bad, -1, -EOPNOTSUPP, "cuIpcOpenMemHandle");
	gpu_raw_space_open(&e, &good, 1, NULL, 0);
	gpu_raw_round_trip(&e, CHAIN, N);
	gpu_raw_close_all(&e);
}

TEST(a_descriptor_that_is_no_memory_is_refused)
{
	struct wire_region region = { .memory = WIRE_DEVICE_FD, .length = 1 << 20 };
	struct gpu_raw e;
	int ends[2];

	gpu_raw_dial(&e, d.socket, &gpu, &tiny_fp8, 2 * N);
	gpu_uuid(&gpu, region.device);
	assert_int_equal(pipe(ends), 0);
	gpu_raw_space_refused(&e, &region, ends[0], -EOPNOTSUPP, "cuMemImportFromShareableHandle");
	/* and the GPU is not taken for broken: nobody else pays for it */
	assert_int_equal(daemon_stat(&d, "gpu.lost_total"), 0);
	(void)close(ends[0]);
	(void)close(ends[1]);
	gpu_raw_close(&e);
}

/* After SPACE_CLOSED the engine may free: the emulated driver reports memory that is freed while it
 * is open elsewhere, and handles that are opened twice. */
TEST(spaces_come_and_go)
{
	enum { SPACES = 8, ROUNDS = 10 };
	struct gpu_raw e;
	int fds;

	gpu_raw_open(&e, d.socket, &gpu, &tiny_fp8, 2 * N);
	fds = daemon_fds_settled(&d);
	for (int round = 0; round < ROUNDS; round++) {
		const uint32_t first = e.space;

		for (int i = 0; i < SPACES; i++)
			gpu_raw_open_again(&e);
		gpu_raw_round_trip(&e, CHAIN + (uint32_t)round, N);
		for (uint32_t i = 0; i < SPACES; i++) {
			gpu_raw_close_space(&e);
			e.space--;
		}
		assert_int_equal(e.space, first);
	}
	daemon_fds_fall_to(&d, fds, PATIENT_MS);
	gpu_raw_close_space(&e);
	daemon_stat_becomes(&d, "gpu.regions", 0, PATIENT_MS);
	gpu_raw_close(&e);
}

/* 64 regions of allocations of their own in one space. */
TEST(many_regions_of_one_space)
{
	enum { REGIONS = WIRE_MAX_REGIONS, ROUNDS = 10 };
	struct wire_region regions[REGIONS];
	CUdeviceptr memory[REGIONS];
	struct gpu_raw e;
	uint64_t used = 0;

	gpu_raw_dial(&e, d.socket, &gpu, &tiny_fp8, 2 * N);
	regions[0] = gpu_raw_region(&e);
	for (int i = 1; i < REGIONS; i++) {
		GPU(gpu_api()->cuMemAlloc(&memory[i], 4096));
		regions[i] = gpu_region(&gpu, memory[i], 0, 4096);
	}
	for (int round = 0; round < ROUNDS; round++) {
		gpu_raw_space_open(&e, regions, REGIONS, NULL, 0);
		gpu_raw_round_trip(&e, CHAIN, N);
		gpu_raw_close_space(&e);
		if (round == 0)
			used = gpu_used();
		assert_true(gpu_used() <= used);
	}
	for (int i = 1; i < REGIONS; i++)
		GPU(gpu_api()->cuMemFree(memory[i]));
	gpu_raw_close(&e);
}

/* Memory of the virtual memory management calls, exported as a descriptor. */
TEST(memory_comes_by_descriptor)
{
	struct wire_region region;
	struct gpu_range range;
	struct gpu_raw e;
	int fd;

	gpu_raw_dial(&e, d.socket, &gpu, &tiny_fp8, 2 * N);
	gpu_range_make(&gpu, WIRE_DEVICE_FD, 1, &range);
	assert_true(range.alloc_bytes >= e.offset + e.pages * e.page_bytes);
	e.memory = range.base;
	region = gpu_range_alloc(&range, 0, e.offset, range.alloc_bytes, &fd);
	gpu_raw_space_refused(&e, &region, fd, -EINVAL, "must lie in one allocation");
	region.length = e.pages * e.page_bytes;
	gpu_raw_space_open(&e, &region, 1, &fd, 1);
	(void)close(fd);
	gpu_raw_round_trip(&e, CHAIN, N);
	gpu_raw_close_space(&e);
	gpu_range_free(&range); /* it may, after SPACE_CLOSED */
	gpu_raw_close(&e);
}

TEST_ROWS(memory_of_another_gpu_is_refused,
	  cmocka_unit_test_setup_teardown(memory_of_another_gpu_is_refused, begin, end),
	  cmocka_unit_test_setup_teardown(memory_of_another_gpu_is_refused, begin_as_peers, end))
{
	struct wire_region region;
	struct gpu other;
	struct gpu_raw e;

	if (gpu_count() < 2)
		skip();
	gpu_close(&gpu);
	gpu_open(&other, 1);
	gpu_raw_dial(&e, d.socket, &other, &tiny_fp8, 2 * N);
	region = gpu_raw_region(&e);
	gpu_raw_space_open(&e, &region, 1, NULL, 0);
	gpu_raw_round_trip(&e, CHAIN, N);
	gpu_raw_close_space(&e);
	gpu.device = 0;
	gpu_uuid(&gpu, region.device);
	if (*state)
		gpu_raw_space_refused(&e, &region, -1, -EINVAL,
				      "another GPU's than the one that `device` names");
	else
		assert_int_not_equal(gpu_raw_space(&e, &region, 1, NULL, 0, NULL), 0);
	gpu_raw_close(&e);
	gpu_close(&other);
	gpu_open(&gpu, 0);
}

TEST(devices_are_listed)
{
	const char *text = daemon_told(&d, "devices --json");

	assert_non_null(strstr(text, "\"kind\":\"cpu\""));
	assert_non_null(strstr(text, "\"kind\":\"cuda\""));
	assert_non_null(strstr(text, "\"uuid\":\"GPU-"));
	assert_non_null(strstr(text, "\"state\":\"idle\""));
}

TEST_FIRST(gpu_begin(argv, "gpus=2 null_stream=0 one_thread=1"));
