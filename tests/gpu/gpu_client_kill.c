/* SPDX-License-Identifier: Apache-2.0 */
/* make: seconds=20 */
/*
 * gpu_client_kill - goal: an engine or a daemon that is killed in the middle of its ops harms no
 * other. The GPU's memory falls to its level before, and other engines go on. No page outside an op
 * is ever touched. An engine finds the blocks that the next daemon has.
 * Method: an engine of its own process, killed at moments chosen by the seed while it stores and
 * loads; the daemon likewise.
 */
#include "tests/lib/lib_gpu_served.h"

enum { BLOCKS = 32, KILLS = 6, DEADLINE_MS = PATIENT_MS };

FIXTURE(begin)
{
	gpu_served_begin(HOST("96M", "2M") GPU_LINES, &large_fp8, 2 * BLOCKS, GPU_ALLOC,
			 "CUDA IPC");
	return 0;
}

FIXTURE(end)
{
	gpu_served_close();
	assert_int_equal(gpu_reported("", "violation", ""), 0); /* memory of the dead is no leak */
	return 0;
}

/* The victim: stores and loads for ever. */
static int engine(const char *socket)
{
	struct kvtier_key keys[BLOCKS];
	char ready = 1;

	gpu_open(&gpu, 0);
	gpu_engine_open(&ge, &gpu, socket, &large_fp8, 2 * BLOCKS, GPU_ALLOC);
	for (uint64_t chain = 100;; chain++) {
		chain_keys(&ge.e, chain, BLOCKS, keys);
		(void)gpu_chain_store(&ge, keys, 0, BLOCKS);
		if (chain == 100 && write(STDIN_FILENO, &ready, 1) != 1)
			return 1;
		(void)gpu_chain_load(&ge, keys, BLOCKS, BLOCKS);
	}
}

TEST_EACH(begin, end);

TEST(an_engine_is_killed)
{
	struct random random = { .state = gpu_seed() };
	struct kvtier_key keys[BLOCKS];
	uint64_t used, longest = 0;

	chain_keys(&ge.e, 1, BLOCKS, keys);
	assert_int_equal(gpu_chain_store(&ge, keys, 0, BLOCKS), 0);
	used = gpu_used();
	for (int i = 0; i < KILLS; i++) {
		uint64_t ms, killed;
		int socket;
		pid_t victim;
		char ready;

		setenv("KVTIER_TEST_SOCKET", d.socket, 1);
		victim = gpu_spawn("engine", "", &socket);
		assert_int_equal(read(socket, &ready, 1), 1);
		usleep(random_below(&random, 20000));
		killed = now_ns();
		(void)kill(victim, SIGKILL);
		assert_int_equal(gpu_wait(victim), -SIGKILL);
		(void)close(socket);
		assert_int_equal(gpu_chain_load(&ge, keys, BLOCKS, BLOCKS), BLOCKS);
		gpu_used_falls_to(used);
		ms = (now_ns() - killed) / 1000000;
		longest = ms > longest ? ms : longest;
		daemon_stat_becomes(&d, "clients", 1, DEADLINE_MS);
	}
	print_message("of %d killed engines the last handle was closed after %llu ms at most, a "
		      "load of another engine included\n",
		      KILLS, (unsigned long long)longest);
}

/* Something of the first block is in its page; the last may be far from it. */
static bool first_page_is_poison(void)
{
	gpu_pages_pull(&ge, 0, 1);
	return page_is_poison(&ge.e, 0);
}

/* The library may learn of the daemon's death by this store. */
static bool is_away(const struct kvtier_key *key)
{
	const int s = gpu_chain_store(&ge, key, 0, 1);

	return s == -ENOTCONN || s == -ECONNRESET;
}

/* Pages that are not the op's are poison before and after; the op's pages have their bytes, or a
 * part of them. */
TEST(a_daemon_is_killed_in_the_middle_of_a_load)
{
	struct random random = { .state = gpu_seed() };
	struct kvtier_key keys[BLOCKS];

	for (int i = 0; i < KILLS; i++) {
		int32_t blocks[BLOCKS];
		struct kvtier_result r = { .size = sizeof(r),
					   .blocks = blocks,
					   .blocks_max = BLOCKS };
		uint64_t op;

		chain_keys(&ge.e, 1, BLOCKS, keys);
		assert_int_equal(gpu_chain_store(&ge, keys, 0, BLOCKS), 0);
		gpu_pages_poison(&ge, 0, 2 * BLOCKS);
		op = gpu_load_op(keys, 0, BLOCKS, NULL);
		if (i % 2)
			AWAIT(!first_page_is_poison());
		else
			usleep(random_below(&random, 3000));
		daemon_signal(&d, SIGKILL);
		assert_int_equal(kvtier_wait(ge.e.client, op, -1, &r), 0);
		assert_true(r.status == 0 || r.status == -ECONNRESET);
		gpu_pages_pull(&ge, 0, 2 * BLOCKS);
		for (uint32_t k = 0; k < BLOCKS; k++)
			assert_true(blocks[k] == 0 ? page_is(&ge.e, k, &keys[k], 0) :
						     page_is_part(&ge.e, k, &keys[k], 0));
		for (uint32_t k = BLOCKS; k < 2 * BLOCKS; k++)
			assert_true(page_is_poison(&ge.e, k));
		daemon_restart(&d);
		AWAIT(!is_away(keys));
	}
}

TEST_BEGIN
{
	gpu_begin(argv, "null_stream=0");
	if (argc > 1)
		exit(engine(getenv("KVTIER_TEST_SOCKET")));
}
