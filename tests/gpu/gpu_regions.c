/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait seconds=8 */
/*
 * gpu_regions - goal: a client's words about its GPU memory are checked. Memory comes by each kind
 * of handle, and goes again: after SPACE_CLOSED nothing of it is open, and nothing grows. Method:
 * the wire by hand, with good regions and wrong ones; the emulated driver's report; the daemon's
 * descriptors; two GPUs.
 */
#include "tests/lib/lib_gpu_raw.h"

enum { N = 4, CHAIN = 3 };

static const char config[] = GPU_CONFIG("32M", "1M");

GPU_DAEMON_EACH(config);
static struct kvtier_geometry geometry;

/* The driver opens a handle of one GPU in a context of another one, so the daemon has to look. */
FIXTURE(begin_as_peers)
{
	gpu_settings("peer=1");
	(void)begin(state);
	gpu_settings("peer=0");
	*state = &d; /* the test knows */
	return 0;
}

static void refused(struct gpu_raw *e, const struct wire_region *region, int fd, int error,
		    const char *words)
{
	char text[232] = "";
	const int r = gpu_raw_space(e, region, 1, fd >= 0 ? &fd : NULL, fd >= 0, text);

	if (r != error || !strstr(text, words))
		fail_msg("%d \"%s\"; expected %d with \"%s\"", r, text, error, words);
}

TEST(wrong_regions_are_refused)
{
	const uint64_t length = 2 * N * engine_page_bytes(&geometry);
	struct wire_region good, bad;
	struct gpu_raw e;

	gpu_raw_dial(&e, d.socket, &gpu, &geometry, 2 * N);
	gpu_raw_region(&gpu, e.memory, e.offset, length, &good);
	bad = good;
	bad.length = length + (4 << 20); /* the driver may round an allocation up */
	refused(&e, &bad, -1, -EINVAL, "must lie in the allocation's");
	bad = good;
	bad.offset = UINT64_MAX - 100;
	refused(&e, &bad, -1, -EINVAL, "must lie in the allocation's");
	bad = good;
	bad.device[3] ^= 1;
	refused(&e, &bad, -1, -ENODEV, "serves no device");
	bad = good;
	memset(bad.handle, 0x5a, sizeof(bad.handle));
	refused(&e, &bad, -1, -EOPNOTSUPP, "cuIpcOpenMemHandle");
	assert_int_equal(gpu_raw_space(&e, &good, 1, NULL, 0, NULL), 0);
	gpu_raw_round_trip(&e, CHAIN, N);
	gpu_raw_close_all(&e);
}

TEST(a_descriptor_that_is_no_memory_is_refused)
{
	struct wire_region region = { .memory = WIRE_DEVICE_FD, .length = 1 << 20 };
	struct gpu_raw e;
	int ends[2];

	gpu_raw_dial(&e, d.socket, &gpu, &geometry, 2 * N);
	gpu_uuid(&gpu, region.device);
	assert_int_equal(pipe(ends), 0);
	refused(&e, &region, ends[0], -EOPNOTSUPP, "cuMemImportFromShareableHandle");
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

	gpu_raw_open(&e, d.socket, &gpu, &geometry, 2 * N);
	fds = daemon_fds_settled(&d);
	for (int round = 0; round < ROUNDS; round++) {
		const uint32_t first = e.space;
		struct wire_region region;

		gpu_raw_region(&gpu, e.memory, e.offset, e.pages * e.page_bytes, &region);
		for (int i = 0; i < SPACES; i++)
			assert_int_equal(gpu_raw_space(&e, &region, 1, NULL, 0, NULL), 0);
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

	gpu_raw_dial(&e, d.socket, &gpu, &geometry, 2 * N);
	gpu_raw_region(&gpu, e.memory, e.offset, e.pages * e.page_bytes, &regions[0]);
	for (int i = 1; i < REGIONS; i++) {
		GPU(gpu_api()->cuMemAlloc(&memory[i], 4096));
		gpu_raw_region(&gpu, memory[i], 0, 4096, &regions[i]);
	}
	for (int round = 0; round < ROUNDS; round++) {
		assert_int_equal(gpu_raw_space(&e, regions, REGIONS, NULL, 0, NULL), 0);
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
	const struct cuda_api *cu = gpu_api();
	const CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = gpu.device },
	};
	const CUmemAccessDesc access = { .location = prop.location,
					 .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	struct wire_region region = { .memory = WIRE_DEVICE_FD };
	CUmemGenericAllocationHandle handle;
	struct gpu_raw e;
	CUdeviceptr plain;
	size_t unit;
	int fd = -1;

	gpu_raw_dial(&e, d.socket, &gpu, &geometry, 2 * N);
	plain = e.memory;
	GPU(cu->cuMemGetAllocationGranularity(&unit, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
	assert_true(unit >= e.offset + e.pages * e.page_bytes);
	GPU(cu->cuMemCreate(&handle, unit, &prop, 0));
	GPU(cu->cuMemAddressReserve(&e.memory, unit, 0, 0, 0));
	GPU(cu->cuMemMap(e.memory, unit, 0, handle, 0));
	GPU(cu->cuMemSetAccess(e.memory, unit, &access, 1));
	GPU(cu->cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
					     0));
	gpu_uuid(&gpu, region.device);
	region.offset = e.offset;
	region.length = unit;
	refused(&e, &region, fd, -EINVAL, "must lie in one allocation");
	region.length = e.pages * e.page_bytes;
	assert_int_equal(gpu_raw_space(&e, &region, 1, &fd, 1, NULL), 0);
	(void)close(fd);
	gpu_raw_round_trip(&e, CHAIN, N);
	gpu_raw_close_space(&e);
	GPU(cu->cuMemUnmap(e.memory, unit));
	GPU(cu->cuMemAddressFree(e.memory, unit));
	GPU(cu->cuMemRelease(handle));
	e.memory = plain;
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
	gpu_raw_dial(&e, d.socket, &other, &geometry, 2 * N);
	gpu_raw_region(&other, e.memory, e.offset, e.pages * e.page_bytes, &region);
	assert_int_equal(gpu_raw_space(&e, &region, 1, NULL, 0, NULL), 0);
	gpu_raw_round_trip(&e, CHAIN, N);
	gpu_raw_close_space(&e);
	gpu.device = 0;
	gpu_uuid(&gpu, region.device);
	if (*state)
		refused(&e, &region, -1, -EINVAL, "another GPU's than the one that `device` names");
	else
		assert_int_not_equal(gpu_raw_space(&e, &region, 1, NULL, 0, NULL), 0);
	gpu_raw_close(&e);
	gpu_close(&other);
	gpu_open(&gpu, 0);
}

TEST(devices_are_listed)
{
	char text[4096];

	assert_int_equal(daemon_ctl(&d, "devices --json", text, sizeof(text)), 0);
	assert_non_null(strstr(text, "\"kind\":\"cpu\""));
	assert_non_null(strstr(text, "\"kind\":\"cuda\""));
	assert_non_null(strstr(text, "\"uuid\":\"GPU-"));
	assert_non_null(strstr(text, "\"state\":\"idle\""));
}

TEST_FIRST(gpu_begin(argv, "gpus=2 null_stream=0 one_thread=1");
	   geometry = tiny_geometry(KVTIER_CODEC_FP8));
