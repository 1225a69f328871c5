/* SPDX-License-Identifier: Apache-2.0 */
/* make: seconds=10 needs=kvtierd_clock wrap=clock_gettime,epoll_wait (it holds the clock) */
/*
 * gpu_client_cancel - goal: once kvtier_cancel() has returned, or an op has ended at its deadline,
 * or by its daemon's death with no page lent still, no page of it in a GPU's memory is touched.
 * Method: large loads, ended after a random time while the emulated driver runs what is queued as
 * late as it may; pages are poisoned before, compared, poisoned again, and looked at later. A
 * daemon that was killed may still be on its way out of the kernel: the library's word alone says
 * when its pages are free.
 */
#include "tests/lib/lib_clock.h"
#include "tests/lib/lib_gpu_served.h"

/* PATIENCE_MS: on a busy machine an op ends later than a second after its deadline. TRIES_MOST: it
 * may be done each time before it is stopped. STABLE_MS: after a connection that lasted so long
 * libkvtier soon looks for the next daemon; else it waits longer each time. */
enum { BLOCKS = 32, TRIES = 12, TRIES_MOST = 200, PATIENCE_MS = 60000, STABLE_MS = 6000 };

static struct kvtier_key keys[BLOCKS];
static uint32_t ended;

FIXTURE(begin)
{
	clock_daemon_start(&d, HOST("16M", "2M") GPU_LINES);
	gpu_served_begin(NULL, &large_fp8, BLOCKS, GPU_ALLOC, "CUDA IPC");
	chain_keys(&ge.e, 1, BLOCKS, keys);
	assert_int_equal(gpu_chain_store(&ge, keys, 0, BLOCKS), 0);
	clock_pass_ms(STABLE_MS);
	ended = 0;
	return 0;
}

static void poison_all(void)
{
	gpu_pages_poison(&ge, 0, BLOCKS);
}

static uint64_t start_load(uint32_t timeout_ms)
{
	const struct kvtier_op o = { .size = sizeof(o), .timeout_ms = timeout_ms };

	poison_all();
	return gpu_load_op(keys, 0, BLOCKS, &o);
}

/* A block with status 0 is right; another one's page has a part of it, or nothing. */
static void take(uint64_t op, int32_t rest)
{
	int32_t blocks[BLOCKS];
	struct kvtier_result r = { .size = sizeof(r), .blocks = blocks, .blocks_max = BLOCKS };

	assert_int_equal(kvtier_wait(ge.e.client, op, PATIENCE_MS, &r), 0);
	gpu_pages_pull(&ge, 0, BLOCKS);
	for (uint32_t i = 0; i < BLOCKS; i++) {
		if (blocks[i] != 0)
			assert_int_equal(blocks[i], rest);
		assert_true(blocks[i] == 0 ? page_is(&ge.e, i, &keys[i], 0) :
					     page_is_part(&ge.e, i, &keys[i], 0));
		ended += blocks[i] != 0;
	}
}

static void assert_untouched_from_now_on(void)
{
	poison_all();
	nap_ms(30);
	gpu_pages_pull(&ge, 0, BLOCKS);
	for (uint32_t i = 0; i < BLOCKS; i++)
		assert_true(page_is_poison(&ge.e, i));
}

/* A GPU may be done before it is asked to stop. */
static bool more(uint32_t tries)
{
	return tries < TRIES || (tries < TRIES_MOST && ended == 0 && !gpu_is_real());
}

static void assert_some_ended(void)
{
	assert_true(ended > 0 || gpu_is_real());
}

TEST_EACH(begin, gpu_served_end);

TEST(a_cancelled_load_leaves_its_pages)
{
	struct random random = { .state = gpu_seed() };

	for (uint32_t i = 0; more(i); i++) {
		const uint64_t op = start_load(0);

		usleep(random_below(&random, 8000));
		assert_int_equal(kvtier_cancel(ge.e.client, op, PATIENCE_MS), 0);
		take(op, -ECANCELED);
		assert_untouched_from_now_on();
	}
	assert_some_ended();
}

TEST(a_late_load_leaves_its_pages)
{
	for (uint32_t i = 0; more(i); i++) {
		take(start_load(1 + i % TRIES), -ETIMEDOUT);
		assert_untouched_from_now_on();
	}
	assert_some_ended();
}

/* The next daemon has the blocks, too. Until it is there, one block is enough to ask with. */
static void begin_again(void)
{
	int s;

	daemon_restart(&d);
	AWAIT((s = gpu_chain_store(&ge, keys, 0, 1)) != -ENOTCONN && s != -ECONNRESET);
	assert_int_equal(s, 0);
	assert_int_equal(gpu_chain_store(&ge, keys, 0, BLOCKS), 0);
	clock_pass_ms(STABLE_MS);
}

/* A GPU goes on with the work of a daemon that dies, until the kernel has closed the driver's
 * descriptors. */
TEST(a_load_whose_daemon_dies_leaves_its_pages)
{
	struct random random = { .state = gpu_seed() };

	for (uint32_t i = 0; more(i); i++) {
		const uint64_t op = start_load(0);

		for (uint32_t n = random_below(&random, 8); n > 0; n--) {
			usleep(1000);
			(void)kvtier_lent(ge.e.client, NULL, 0); /* the library looks */
		}
		assert_int_equal(kill(d.pid, SIGKILL), 0);
		take(op, -ECONNRESET);
		AWAIT(kvtier_lent(ge.e.client, NULL, 0) <= 0);
		assert_untouched_from_now_on();
		(void)daemon_wait(&d, PATIENCE_MS);
		begin_again();
	}
	assert_some_ended();
}

TEST_FIRST(gpu_begin(argv, "null_stream=0 late=4"));
