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

GPU_DAEMON_EACH(GPU_CONFIG("32M", "1M"));

/* The daemon still has the old memory open, under another handle. */
TEST(reused_addresses_are_other_memory)
{
	CUdeviceptr old;
	struct gpu_raw e;

	gpu_raw_open(&e, d.socket, &gpu, &tiny_fp8, 2 * N);
	gpu_raw_round_trip(&e, CHAIN, N);
	old = e.memory;
	GPU(gpu_api()->cuMemFree(e.own));
	GPU(gpu_api()->cuMemAlloc(&e.own, e.offset + e.pages * e.page_bytes));
	assert_true(e.own == old || gpu_is_real()); /* reuse=1 */
	e.memory = e.own;
	gpu_raw_open_again(&e);
	gpu_raw_round_trip(&e, CHAIN + 1, N);
	gpu_raw_close_space(&e);
	e.space--;
	gpu_raw_close_all(&e);
}

TEST(one_client_registers_memory_twice)
{
	struct wire_region two[2];
	struct gpu_raw e;

	gpu_raw_open(&e, d.socket, &gpu, &tiny_fp8, 2 * N);
	gpu_raw_open_again(&e);
	daemon_stat_becomes(&d, "gpu.regions", 2, PATIENT_MS);
	gpu_raw_round_trip(&e, CHAIN, N);
	gpu_raw_close_space(&e);
	daemon_stat_becomes(&d, "gpu.regions", 1, PATIENT_MS);
	e.space--;
	gpu_raw_round_trip(&e, CHAIN + 1, N);
	gpu_raw_close_space(&e);
	two[0] = two[1] = gpu_raw_region(&e);
	assert_int_equal(gpu_raw_space(&e, two, 2, NULL, 0, NULL), 0);
	gpu_raw_round_trip(&e, CHAIN + 2, N);
	gpu_raw_close_all(&e);
}

TEST(two_clients_register_the_same_memory)
{
	struct gpu_raw a, b;

	gpu_raw_open(&a, d.socket, &gpu, &tiny_fp8, 2 * N);
	gpu_raw_dial(&b, d.socket, &gpu, &tiny_fp8, 2 * N);
	b.memory = a.memory;
	gpu_raw_open_again(&b);
	daemon_stat_becomes(&d, "gpu.regions", 2, PATIENT_MS);
	gpu_raw_round_trip(&a, CHAIN, N);
	raw_close(&a.raw); /* it ends, and its count goes */
	daemon_stat_becomes(&d, "gpu.regions", 1, PATIENT_MS);
	gpu_raw_round_trip(&b, CHAIN + 1, N);
	gpu_raw_close_space(&b);
	gpu_raw_close(&b);
	GPU(gpu_api()->cuMemFree(a.own));
}

/* Two descriptors of one allocation: nothing tells the daemon that it is one. */
static void open_by_descriptor(struct gpu_raw *e, const struct gpu_range *range)
{
	int fd;
	const struct wire_region region =
		gpu_range_alloc(range, 0, e->offset, e->pages * e->page_bytes, &fd);

	gpu_raw_space_open(e, &region, 1, &fd, 1);
	(void)close(fd);
}

TEST(a_descriptors_memory_is_registered_twice)
{
	struct gpu_range range;
	struct gpu_raw e;
	uint64_t used;

	gpu_raw_dial(&e, d.socket, &gpu, &tiny_fp8, 2 * N);
	gpu_range_make(&gpu, WIRE_DEVICE_FD, 1, &range);
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
	gpu_raw_close_all(&e);
	gpu_range_free(&range);
}

/* Against the rules of kvtier.h: its own ops end somehow, and nobody else notices. */
TEST(memory_is_freed_after_registering)
{
	struct gpu_raw e, other;
	struct wire_cqe cqe;

	gpu_raw_open(&e, d.socket, &gpu, &tiny_fp8, 2 * N);
	gpu_raw_open(&other, d.socket, &gpu, &tiny_fp8, 2 * N);
	gpu_raw_fill(&e, CHAIN, 0, N);
	GPU(gpu_api()->cuMemFree(e.own));
	cqe = gpu_raw_run(&e, WIRE_OP_STORE, CHAIN, 0, N);
	assert_true(cqe.status == 0 || cqe.status == -EIO);
	cqe = gpu_raw_run(&e, WIRE_OP_LOAD, CHAIN, N, N);
	assert_true(cqe.status == 0 || cqe.status == -EIO || cqe.status == -ENOENT);
	gpu_raw_round_trip(&other, CHAIN + 1, N);
	gpu_raw_close_space(&e);
	GPU(gpu_api()->cuMemAlloc(&e.own, 4096)); /* for gpu_raw_close() */
	gpu_raw_close(&e);
	gpu_raw_close_all(&other);
}

/* --- another GPU --- */

/* Alone, and in ALLOCS. */
static void is_refused(struct gpu_raw *e, uint32_t memory)
{
	struct gpu_allocs allocs;
	struct wire_region region;
	struct gpu_range range;
	char text[232] = "";
	int fd;

	gpu_range_make(e->gpu, memory, 2, &range);
	region = gpu_range_alloc(&range, 0, 0, e->pages * e->page_bytes, &fd);
	gpu_uuid(&gpu, region.device);
	gpu_raw_space_refused(e, &region, fd, -EINVAL, "GPU");
	(void)close(fd);
	gpu_allocs_fill(&range, 0, 0, 2, &allocs);
	gpu_uuid(&gpu, allocs.m.device);
	assert_int_equal(gpu_allocs_send(&e->raw, &allocs, text), -EINVAL);
	assert_non_null(strstr(text, "allocs[0]: the memory is not of the GPU"));
	gpu_range_free(&range);
}

TEST(memory_of_another_gpu_is_refused)
{
	struct gpu_raw e;
	struct gpu other;

	if (gpu_count() < 2)
		skip();
	gpu_open(&other, 1);
	gpu_raw_dial(&e, d.socket, &other, &tiny_fp8, 2 * N);
	is_refused(&e, WIRE_DEVICE_FD);
	if (gpu_range_possible(&other, WIRE_DEVICE_FABRIC))
		is_refused(&e, WIRE_DEVICE_FABRIC);
	gpu_raw_close(&e);
	gpu_close(&other);
	GPU(gpu_api()->cuCtxSetCurrent(gpu.context));
}

/* --- again and again --- */

/* 64 regions of an allocation each, by descriptor, all in one packet. */
static void many_regions(struct gpu_raw *e, const struct gpu_range *range)
{
	struct wire_region regions[WIRE_MAX_REGIONS];
	int fds[WIRE_MAX_REGIONS];

	for (uint32_t i = 0; i < WIRE_MAX_REGIONS; i++) {
		regions[i] = gpu_range_alloc(range, i, i ? 0 : e->offset, e->pages * e->page_bytes,
					     &fds[i]);
		regions[i].fd_index = i;
	}
	gpu_raw_space_open(e, regions, WIRE_MAX_REGIONS, fds, WIRE_MAX_REGIONS);
	for (uint32_t i = 0; i < WIRE_MAX_REGIONS; i++)
		(void)close(fds[i]);
}

TEST(sixty_four_regions_come_and_go_ten_times)
{
	enum { ROUNDS = 10 };
	int fds = 0, maps = 0;
	struct gpu_range range;
	uint64_t used = 0;
	struct gpu_raw e;

	gpu_raw_dial(&e, d.socket, &gpu, &tiny_fp8, 2 * N);
	gpu_range_make(&gpu, WIRE_DEVICE_FD, WIRE_MAX_REGIONS, &range);
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
	gpu_raw_close(&e);
	gpu_range_free(&range);
}

TEST_FIRST(gpu_begin(argv, "gpus=2 null_stream=0 one_thread=1 fabric=1 reuse=1"));
