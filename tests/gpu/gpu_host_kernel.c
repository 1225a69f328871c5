/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=address,thread (its kernels stop in the middle, on stacks of their own) */
/*
 * Goal: kernels that run on the host are held to a GPU's rules.
 * Method: small kernels, each with one mistake, and their right twins, at many seeds. A mistake
 * ends the launch with the right code and a sentence that names kernel, block and thread.
 */

#include "tests/gpu/host/host_cuda.h"
#include "tests/gpu/host/host_kernel.h"
#include "tests/lib/test.h"

enum { SEEDS = 100, THREADS = 128, BASE = 0x1000, ROOM = 4096 };

static uint8_t memory[ROOM];
static char text[256];

#define KERNEL(name) static void name(TEST_UNUSED void *const *params)

static void *access_memory(TEST_UNUSED void *arg, uint64_t address, size_t bytes,
			   TEST_UNUSED int write)
{
	return address >= BASE && address + bytes <= BASE + ROOM ? memory + (address - BASE) : NULL;
}

static void store(uint32_t i, uint32_t value)
{
	*(uint32_t *)host_access(BASE + 4 * (uint64_t)i, 4, 1) = value;
}

static uint32_t stored(uint32_t i)
{
	uint32_t x;

	memcpy(&x, memory + 4 * i, 4);
	return x;
}

static int run_at(void (*thread)(void *const *), unsigned blocks, unsigned threads, uint64_t seed)
{
	const struct host_kernel kernel = { .name = "test", .max_threads = 512, .thread = thread };
	const struct host_launch l = {
		.grid = { blocks, 1, 1 },
		.block = { threads, 1, 1 },
		.seed = seed,
		.access = access_memory,
	};

	text[0] = 0;
	return host_kernel_run(&kernel, &l, text, sizeof(text));
}

/* At each seed. */
static void ends_with(void (*thread)(void *const *), int result, const char *says)
{
	for (uint64_t seed = 0; seed < SEEDS; seed++) {
		assert_int_equal(run_at(thread, 2, THREADS, seed), result);
		if (says && !strstr(text, says))
			fail_msg("\"%s\" does not say \"%s\"", text, says);
	}
}

KERNEL(each_stores)
{
	store(blockIdx.x * blockDim.x + threadIdx.x, blockIdx.x << 16 | threadIdx.x);
}

TEST(every_thread_of_every_block_runs_once)
{
	for (unsigned blocks = 1; blocks <= 4; blocks++)
		for (unsigned threads = 1; threads <= 512 && blocks * threads <= ROOM / 4;
		     threads *= 2) {
			memset(memory, 0xff, ROOM);
			assert_int_equal(run_at(each_stores, blocks, threads, blocks), 0);
			for (unsigned i = 0; i < ROOM / 4; i++)
				assert_int_equal(stored(i),
						 i >= blocks * threads ?
							 0xffffffff :
							 (i / threads) << 16 | i % threads);
		}
}

KERNEL(shuffles)
{
	uint32_t x = threadIdx.x;

	for (uint32_t d = 16; d; d /= 2)
		x += __shfl_xor_sync(0xffffffff, x, d);
	store(threadIdx.x, x);
}

TEST(a_shuffle_gives_the_value_of_its_own_round)
{
	for (uint64_t seed = 0; seed < SEEDS; seed++) {
		assert_int_equal(run_at(shuffles, 1, THREADS, seed), 0);
		for (uint32_t i = 0; i < THREADS; i++) /* the sum over the warp */
			assert_int_equal(stored(i), 32 * (i / 32 * 32) + 31 * 16);
	}
}

KERNEL(half_a_warp_shuffles)
{
	if (threadIdx.x % 32 < 16)
		(void)__shfl_xor_sync(0xffffffff, 1, 1);
}

KERNEL(two_shuffles)
{
	if (threadIdx.x & 1)
		(void)__shfl_xor_sync(0xffffffff, 1, 2);
	else
		(void)__shfl_xor_sync(0xffffffff, 1, 2);
}

KERNEL(mask_without_itself)
{
	(void)__shfl_xor_sync(0xffff, 1, 1);
}

KERNEL(reads_a_lane_beside_the_mask)
{
	if (threadIdx.x % 32 < 16)
		(void)__shfl_xor_sync(0xffff, 1, 16);
}

TEST(divergence_at_a_shuffle_is_a_mistake)
{
	ends_with(half_a_warp_shuffles, -EDEADLK, "shuffle");
	ends_with(two_shuffles, -EDEADLK, "while thread");
	ends_with(mask_without_itself, -EDEADLK, "lacks it");
	ends_with(reads_a_lane_beside_the_mask, -EDEADLK, "lacks");
}

KERNEL(one_warp_stays_away)
{
	if (threadIdx.x >= 32)
		host_barrier(1, THREADS);
}

KERNEL(half_a_warp_stays_away)
{
	if (threadIdx.x % 32 < 16)
		host_barrier(1, THREADS / 2);
}

KERNEL(two_counts)
{
	host_barrier(1, threadIdx.x < 64 ? 64 : THREADS);
}

KERNEL(no_such_barrier)
{
	host_barrier(16, THREADS);
}

TEST(a_barrier_that_not_all_reach_is_a_mistake)
{
	ends_with(one_warp_stays_away, -EDEADLK, "waits for ever at barrier 1");
	ends_with(half_a_warp_stays_away, -EDEADLK, "barrier 1");
	ends_with(two_counts, -EDEADLK, "barrier 1 of");
	ends_with(no_such_barrier, -EDEADLK, "barrier 16");
}

static _Thread_local uint32_t word, words[2][THREADS];

KERNEL(one_tells_all)
{
	for (uint32_t round = 0; round < 3; round++) {
		if (threadIdx.x == round * 40)
			host_shared_store(&word, round + 7);
		host_barrier(0, THREADS);
		store(threadIdx.x, host_shared_load(&word));
		host_barrier(0, THREADS);
	}
}

/* Two sets by turns need one barrier a round. */
KERNEL(turns)
{
	const uint32_t self = threadIdx.x;

	for (uint32_t round = 0; round < 4; round++) {
		if (self % 32 == 0)
			host_shared_store(&words[round & 1][self], round + self);
		host_barrier(3, THREADS);
		store(self, host_shared_load(&words[round & 1][(self + 32) % THREADS / 32 * 32]));
	}
}

TEST(barriers_order_shared_memory)
{
	ends_with(one_tells_all, 0, NULL);
	assert_int_equal(stored(5), 9);
	ends_with(turns, 0, NULL);
	assert_int_equal(stored(1), 3 + 32);
	assert_int_equal(stored(100), 3);
}

KERNEL(reads_too_soon)
{
	if (threadIdx.x == 0)
		host_shared_store(&word, 1);
	host_barrier(0, THREADS);
	store(threadIdx.x, host_shared_load(&word));
	if (threadIdx.x == 5) /* others may not have read yet */
		host_shared_store(&word, 2);
}

KERNEL(two_write)
{
	if (threadIdx.x % 64 == 0)
		host_shared_store(&word, threadIdx.x);
	host_barrier(0, THREADS);
}

/* The barrier of one half orders that half alone. */
KERNEL(barrier_of_others)
{
	if (threadIdx.x == 0)
		host_shared_store(&word, 1);
	host_barrier(1 + threadIdx.x / 64, 64);
	if (threadIdx.x == 64)
		store(0, host_shared_load(&word));
}

KERNEL(reads_what_nobody_wrote)
{
	store(threadIdx.x, host_shared_load(&word));
}

TEST(a_race_on_shared_memory_is_a_mistake_at_every_seed)
{
	ends_with(reads_too_soon, -EBUSY, "no barrier is between them");
	ends_with(two_write, -EBUSY, "no barrier is between them");
	ends_with(barrier_of_others, -EBUSY, NULL);
	ends_with(reads_what_nobody_wrote, -EBUSY, "no thread has written");
}

KERNEL(reads_odd)
{
	(void)host_access(BASE + 8, 16, 0);
}

KERNEL(reads_beside)
{
	if (threadIdx.x == 17)
		(void)host_access(BASE + ROOM, 4, 0);
}

TEST_DO(a_wrong_access_is_a_mistake, ends_with(reads_odd, -EFAULT, "16 bytes are read at 0x1008");
	ends_with(reads_beside, -EFAULT, "thread 17: 4 bytes must not be read at 0x2000"));

TEST(wrong_launches_are_refused)
{
	assert_int_equal(run_at(each_stores, 0, 32, 1), -EINVAL);
	assert_int_equal(run_at(each_stores, 1, 0, 1), -EINVAL);
	assert_int_equal(run_at(each_stores, 1, 513, 1), -EINVAL);
	assert_null(host_kernel_find("kvtier"));
	assert_non_null(host_kernel_find("kvtier_decode"));
}

/* Not all seeds run threads in one order. */
static _Thread_local uint32_t order;

KERNEL(stores_its_turn)
{
	store(threadIdx.x, order++);
}

TEST(seeds_decide_the_order)
{
	uint8_t first[4 * THREADS];

	for (uint64_t seed = 1; seed < 3; seed++) {
		order = 0;
		assert_int_equal(run_at(stores_its_turn, 1, THREADS, 1), 0);
		if (seed == 1)
			memcpy(first, memory, sizeof(first));
	}
	assert_memory_equal(first, memory, sizeof(first));
	order = 0;
	assert_int_equal(run_at(stores_its_turn, 1, THREADS, 2), 0);
	assert_memory_not_equal(first, memory, sizeof(first));
}
