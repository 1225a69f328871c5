/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait seconds=6 needs=kvtierd_clock */
/* make: wrap=clock_gettime,epoll_wait (the test holds the clock) */
/*
 * gpu_tier_auto - goal: `[gpu] bytes = auto` takes a quarter of the GPU's free memory when its
 * context is made, in whole slabs. It never grows, also when memory is freed or blocks are stored
 * after that. Ten seconds after the last region all of it is given back. The next context takes a
 * quarter of the free memory at that time. Method: an emulated GPU of little memory, of which the
 * test itself takes and frees a large piece; memory in use, by the driver's books.
 */
#include "tests/lib/lib_clock.h"
#include "tests/lib/lib_gpu_raw.h"

enum { N = 8, CHAINS = 40, TEN_S = 10000, SLAB = 1 << 20 };

static const uint64_t large_piece = 256 << 20;

static struct daemon d;
static struct gpu gpu;

static uint64_t free_now(void)
{
	size_t some = 0, all = 0;

	GPU(gpu_api()->cuMemGetInfo(&some, &all));
	return some;
}

static uint64_t capacity(void)
{
	return daemon_stat(&d, "tiers.gpu.capacity_bytes");
}

/* The tier has its memory, and takes a quarter. The memory that was free before it came is the sum
 * of the memory that is free now, the tier's, and the little that the context took after it. */
static uint64_t takes_a_quarter(void)
{
	enum { LITTLE = 4 * SLAB };
	uint64_t bytes, was_free;

	daemon_stat_reaches(&d, "tiers.gpu.capacity_bytes", 1);
	bytes = capacity();
	was_free = free_now() + bytes;
	assert_int_equal(bytes % SLAB, 0);
	if (bytes + SLAB < was_free / 4 || bytes > (was_free + LITTLE) / 4)
		fail_msg("it has %llu MiB, of %llu that were free", (unsigned long long)bytes >> 20,
			 (unsigned long long)was_free >> 20);
	return bytes;
}

/* It has stored more than fits since. */
static void work(struct gpu_raw *e)
{
	for (uint32_t chain = 1; chain <= CHAINS; chain++)
		gpu_raw_store(e, chain, 0, N);
	daemon_stat_reaches(&d, "tiers.gpu.blocks", 1);
}

TEST(a_share_that_does_not_grow_and_goes)
{
	uint64_t first, used, before;
	CUdeviceptr piece;
	struct gpu_raw e;

	gpu_open(&gpu, 0);
	clock_daemon_start(&d, GPU_CONFIG("64M", "1M") "bytes = auto\n");
	GPU(gpu_api()->cuMemAlloc(&piece, large_piece));
	before = gpu_used();

	gpu_raw_open(&e, d.socket, &gpu, &large_raw, N);
	first = takes_a_quarter();
	gpu_raw_store(&e, 1, 0, N); /* a first job puts its layout there */
	used = gpu_used();
	GPU(gpu_api()->cuMemFree(piece)); /* there is room for more now */
	work(&e);
	assert_true(daemon_stat(&d, "tiers.gpu.evicted_blocks_total") > 0);
	clock_pass_ms(TEN_S);
	work(&e);
	assert_int_equal(capacity(), first);
	assert_true(gpu_used() <= used - large_piece);

	/* its last region goes */
	gpu_raw_close_all(&e);
	daemon_stat_becomes(&d, "gpu.regions", 0, PATIENT_MS);
	clock_pass_ms(TEN_S);
	AWAIT(gpu_used() == before - large_piece);
	daemon_stat_becomes(&d, "tiers.gpu.capacity_bytes", 0, PATIENT_MS);
	daemon_stat_becomes(&d, "tiers.gpu.blocks", 0, PATIENT_MS);

	gpu_raw_open(&e, d.socket, &gpu, &large_raw, N);
	assert_true(takes_a_quarter() >= first + large_piece / 4 - SLAB);
	gpu_raw_store(&e, 1, 0, N);
	gpu_raw_close_all(&e);
	gpu_daemon_end(&d, &gpu);
}

TEST_FIRST(gpu_begin(argv, "null_stream=0 one_thread=1 memory=512");
	   gpu_needs_emulation("a GPU of this size"));
