/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait seconds=10 */
/*
 * gpu_again - goal: memory that is registered twice, by any clients, is one mapping where it has a
 * legacy handle, and takes no more memory where it has none. Memory that lies where freed memory
 * lay is other memory. Memory that was freed under the daemon harms no client. Memory of another
 * GPU than the named one is refused, by whatever kind of handle it comes. Memory that comes and
 * goes again and again leaves nothing behind. Method: the wire by hand, legacy handles and
 * descriptors, two GPUs; the emulated driver reports a handle that is opened twice.
 */
#include "tests/lib/lib_gpu_range.h"

enum { N = 4, CHAIN = 7 };

static const char config[] = GPU_CONFIG("32M", "1M");

GPU_DAEMON_EACH(config);
static struct kvtier_geometry geometry;

static void open_again(struct gpu_raw *e)
{
	struct wire_region region;
	char text[232] = "";

	gpu_raw_region(&gpu, e->memory, e->offset, e->pages * e->page_bytes, &region);
	if (gpu_raw_space(e, &region, 1, NULL, 0, text))
		fail_msg("SPACE_OPEN was refused: %s", text);
}

/* The daemon still has the old memory open, under another handle. */
TEST(reused_addresses_are_other_memory)
{
	CUdeviceptr old;
	struct gpu_raw e;

	gpu_raw_open(&e, d.socket, &gpu, &geometry, 2 * N);
	gpu_raw_round_trip(&e, CHAIN, N);
	old = e.memory;
	GPU(gpu_api()->cuMemFree(e.memory));
	GPU(gpu_api()->cuMemAlloc(&e.memory, e.offset + e.pages * e.page_bytes));
	assert_true(e.memory == old || gpu_is_real()); /* reuse=1 */
	open_again(&e);
	gpu_raw_round_trip(&e, CHAIN + 1, N);
	gpu_raw_close_space(&e);
	e.space--;
	gpu_raw_close_all(&e);
}

TEST(one_client_registers_memory_twice)
{
	struct wire_region two[2];
	struct gpu_raw e;

	gpu_raw_open(&e, d.socket, &gpu, &geometry, 2 * N);
	open_again(&e);
	daemon_stat_becomes(&d, "gpu.regions", 2, PATIENT_MS);
	gpu_raw_round_trip(&e, CHAIN, N);
	gpu_raw_close_space(&e);
	daemon_stat_becomes(&d, "gpu.regions", 1, PATIENT_MS);
	e.space--;
	gpu_raw_round_trip(&e, CHAIN + 1, N);
	gpu_raw_close_space(&e);
	gpu_raw_region(&gpu, e.memory, e.offset, e.pages * e.page_bytes, &two[0]);
	two[1] = two[0];
	assert_int_equal(gpu_raw_space(&e, two, 2, NULL, 0, NULL), 0);
	gpu_raw_round_trip(&e, CHAIN + 2, N);
	gpu_raw_close_all(&e);
}

TEST(two_clients_register_the_same_memory)
{
	struct gpu_raw a, b;
	CUdeviceptr plain;

	gpu_raw_open(&a, d.socket, &gpu, &geometry, 2 * N);
	gpu_raw_dial(&b, d.socket, &gpu, &geometry, 2 * N);
	plain = b.memory;
	b.memory = a.memory;
	open_again(&b);
	daemon_stat_becomes(&d, "gpu.regions", 2, PATIENT_MS);
	gpu_raw_round_trip(&a, CHAIN, N);
	raw_close(&a.raw); /* it ends, and its count goes */
	daemon_stat_becomes(&d, "gpu.regions", 1, PATIENT_MS);
	gpu_raw_round_trip(&b, CHAIN + 1, N);
	gpu_raw_close_space(&b);
	b.memory = plain;
	gpu_raw_close(&b);
	GPU(gpu_api()->cuMemFree(a.memory));
}

/* Two descriptors of one allocation: nothing tells the daemon that it is one. */
static void open_by_descriptor(struct gpu_raw *e, const struct gpu_range *range)
{
	struct wire_region region = { .memory = WIRE_DEVICE_FD,
				      .offset = e->offset,
				      .length = e->pages * e->page_bytes };
	struct gpu_allocs allocs;
	char text[232] = "";

	gpu_uuid(&gpu, region.device);
	gpu_allocs_fill(range, 0, 0, 1, &allocs);
	if (gpu_raw_space(e, &region, 1, allocs.fds, allocs.n_fds, text))
		fail_msg("SPACE_OPEN was refused: %s", text);
	(void)close(allocs.fds[0]);
}

TEST(a_descriptors_memory_is_registered_twice)
{
	struct gpu_range range;
	CUdeviceptr plain;
	struct gpu_raw e;
	uint64_t used;

	gpu_raw_dial(&e, d.socket, &gpu, &geometry, 2 * N);
	gpu_range_make(&gpu, WIRE_DEVICE_FD, 1, &range);
	plain = e.memory;
	e.memory = range.base;
	open_by_descriptor(&e, &range);
	gpu_raw_round_trip(&e, CHAIN, N);
	used = gpu_used();
	open_by_descriptor(&e, &range);
	daemon_stat_becomes(&d, "gpu.regions", 2, PATIENT_MS);
	gpu_raw_round_trip(&e, CHAIN + 1, N);
	assert_true(gpu_used() < used + range.alloc_bytes || gpu_is_real()); /* a table of pieces */
	gpu_raw_close_space(&e);
	daemon_stat_becomes(&d, "gpu.regions", 1, PATIENT_MS);
	e.space--;
	gpu_raw_round_trip(&e, CHAIN + 2, N);
	gpu_raw_close_space(&e);
	e.memory = plain;
	gpu_raw_close(&e);
	gpu_range_free(&range);
}

/* Against the rules of kvtier.h: its own ops end somehow, and nobody else notices. */
TEST(memory_is_freed_after_registering)
{
	struct gpu_raw e, other;
	struct wire_cqe cqe;

	gpu_raw_open(&e, d.socket, &gpu, &geometry, 2 * N);
	gpu_raw_open(&other, d.socket, &gpu, &geometry, 2 * N);
	gpu_raw_fill(&e, CHAIN, 0, N);
	GPU(gpu_api()->cuMemFree(e.memory));
	cqe = gpu_raw_run(&e, WIRE_OP_STORE, CHAIN, 0, N);
	assert_true(cqe.status == 0 || cqe.status == -EIO);
	cqe = gpu_raw_run(&e, WIRE_OP_LOAD, CHAIN, N, N);
	assert_true(cqe.status == 0 || cqe.status == -EIO || cqe.status == -ENOENT);
	gpu_raw_round_trip(&other, CHAIN + 1, N);
	gpu_raw_close_space(&e);
	GPU(gpu_api()->cuMemAlloc(&e.memory, 4096)); /* for gpu_raw_close() */
	gpu_raw_close(&e);
	gpu_raw_close_all(&other);
}

/* --- another GPU --- */

static void refused(struct gpu_raw *e, const struct wire_region *region, int fd)
{
	char text[232] = "";
	const int r = gpu_raw_space(e, region, 1, fd >= 0 ? &fd : NULL, fd >= 0, text);

	if (r != -EINVAL || !strstr(text, "GPU"))
		fail_msg("%d \"%s\"", r, text);
}

static void one_alloc(struct gpu_raw *e, const struct gpu_range *range, struct wire_region *region)
{
	struct gpu_allocs allocs;

	gpu_allocs_fill(range, 0, 0, 1, &allocs);
	memcpy(region->handle, allocs.allocs[0].handle, sizeof(region->handle));
	refused(e, region, allocs.n_fds ? allocs.fds[0] : -1);
	while (allocs.n_fds > 0)
		(void)close(allocs.fds[--allocs.n_fds]);
}

static void in_allocs(struct gpu_raw *e, const struct gpu_range *range, const uint8_t *uuid)
{
	struct gpu_allocs allocs;
	char text[232] = "";

	gpu_allocs_fill(range, 0, 0, 2, &allocs);
	memcpy(allocs.m.device, uuid, sizeof(allocs.m.device));
	assert_int_equal(gpu_allocs_send(&e->raw, &allocs, text), -EINVAL);
	assert_non_null(strstr(text, "allocs[0]: the memory is not of the GPU"));
}

TEST(memory_of_another_gpu_is_refused)
{
	struct wire_region region = { .memory = WIRE_DEVICE_FD };
	struct gpu_range range;
	struct gpu_raw e;
	struct gpu other;

	if (gpu_count() < 2)
		skip();
	gpu_uuid(&gpu, region.device);
	gpu_open(&other, 1);
	gpu_raw_dial(&e, d.socket, &other, &geometry, 2 * N);
	region.length = e.pages * e.page_bytes;
	gpu_range_make(&other, WIRE_DEVICE_FD, 2, &range);
	one_alloc(&e, &range, &region);
	in_allocs(&e, &range, region.device);
	gpu_range_free(&range);
	if (gpu_range_possible(&other, WIRE_DEVICE_FABRIC)) {
		gpu_range_make(&other, WIRE_DEVICE_FABRIC, 2, &range);
		region.memory = WIRE_DEVICE_FABRIC;
		one_alloc(&e, &range, &region);
		in_allocs(&e, &range, region.device);
		gpu_range_free(&range);
	}
	gpu_raw_close(&e);
	gpu_close(&other);
	GPU(gpu_api()->cuCtxSetCurrent(gpu.context));
}

/* --- again and again --- */

/* 64 regions of an allocation each, by descriptor, all in one packet. */
static void many_regions(struct gpu_raw *e, const struct gpu_range *range)
{
	struct wire_region regions[WIRE_MAX_REGIONS];
	struct gpu_allocs allocs;
	char text[232] = "";

	gpu_allocs_fill(range, 0, 0, WIRE_MAX_REGIONS, &allocs);
	for (uint32_t i = 0; i < WIRE_MAX_REGIONS; i++) {
		regions[i] = (struct wire_region){ .memory = WIRE_DEVICE_FD,
						   .fd_index = i,
						   .offset = i ? 0 : e->offset,
						   .length = e->pages * e->page_bytes };
		gpu_uuid(&gpu, regions[i].device);
	}
	if (gpu_raw_space(e, regions, WIRE_MAX_REGIONS, allocs.fds, allocs.n_fds, text))
		fail_msg("SPACE_OPEN was refused: %s", text);
	while (allocs.n_fds > 0)
		(void)close(allocs.fds[--allocs.n_fds]);
}

TEST(sixty_four_regions_come_and_go_ten_times)
{
	enum { ROUNDS = 10 };
	int fds = 0, maps = 0;
	struct gpu_range range;
	uint64_t used = 0;
	CUdeviceptr plain;
	struct gpu_raw e;

	gpu_raw_dial(&e, d.socket, &gpu, &geometry, 2 * N);
	gpu_range_make(&gpu, WIRE_DEVICE_FD, WIRE_MAX_REGIONS, &range);
	plain = e.memory;
	e.memory = range.base;
	for (int round = 0; round < ROUNDS; round++) {
		many_regions(&e, &range);
		gpu_raw_round_trip(&e, CHAIN + (uint32_t)round, N);
		gpu_raw_close_space(&e);
		if (round == 0) {
			fds = daemon_fds_settled(&d);
			maps = daemon_maps(&d, "kvtier-emu");
			used = gpu_used();
		}
		assert_true(gpu_used() <= used);
		assert_true(daemon_maps(&d, "kvtier-emu") <= maps);
	}
	daemon_fds_fall_to(&d, fds, PATIENT_MS);
	e.memory = plain;
	gpu_raw_close(&e);
	gpu_range_free(&range);
}

TEST_FIRST(gpu_begin(argv, "gpus=2 null_stream=0 one_thread=1 fabric=1 reuse=1");
	   geometry = tiny_geometry(KVTIER_CODEC_FP8));
