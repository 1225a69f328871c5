/* SPDX-License-Identifier: Apache-2.0 */
/* make: seconds=8 */
/*
 * gpu_cut - goal: the end of a connection, and SPACE_CLOSED, are the daemon's word that the GPU
 * touches no page any more. A client that ends in the middle of a store leaves right blocks or
 * none. Method: connections and spaces that end after a random time, while the emulated driver runs
 * queued operations as late as it may; at that word pages are poisoned, and looked at when the
 * daemon has forgotten them. How long an engine's memory stays mapped after its end is printed.
 */
#include "tests/lib/lib_gpu_raw.h"

enum { N = 8, TRIES = 12, CHAIN = 1, DEADLINE_MS = PATIENT_MS, NEW_CHAIN = 100 };

static struct daemon d;
static struct gpu gpu;
static struct gpu_raw keeper;
static struct random seed;

/* The loads are of the keeper's blocks. */
FIXTURE(begin)
{
	seed = (struct random){ .state = gpu_seed() };
	gpu_open(&gpu, 0);
	daemon_start(&d, GPU_CONFIG("128M", "16M"));
	gpu_raw_open(&keeper, d.socket, &gpu, &two_lanes_raw, 2 * N);
	gpu_raw_store(&keeper, CHAIN, 0, N);
	return 0;
}

FIXTURE(end)
{
	gpu_raw_close_all(&keeper);
	return gpu_daemon_end(&d, &gpu);
}

TEST_EACH(begin, end);

/* Gives its pages up, as libkvtier does, and waits until the daemon has let go of them. */
static void cut(struct gpu_raw *e)
{
	char text[512];

	__atomic_store_n(&e->raw.submit->given_up, 1, __ATOMIC_SEQ_CST);
	assert_int_equal(shutdown(e->raw.fd, SHUT_WR), 0);
	while (raw_receive(&e->raw, text, sizeof(text)) > 0)
		;
}

static void start(struct gpu_raw *e, enum wire_op op, uint32_t chain)
{
	gpu_raw_open(e, d.socket, &gpu, &two_lanes_raw, N);
	if (op == WIRE_OP_LOAD)
		gpu_raw_poison(e, 0, N);
	else
		gpu_raw_fill(e, chain, 0, N);
	gpu_raw_start(e, op, chain, 0, N);
	/* an entry of a space that was closed before the daemon read it is a violation */
	AWAIT(__atomic_load_n(&e->raw.complete->sq_head, __ATOMIC_ACQUIRE) == e->position);
	usleep(random_below(&seed, 12000));
}

/* From the daemon's word on. */
static void assert_untouched(struct gpu_raw *e)
{
	gpu_raw_poison(e, 0, N);
	gpu_devices_have(&d, "regions", 1); /* the keeper's pages alone are mapped */
	gpu_raw_all_poison(e, 0, N);
}

TEST(a_cut_load_touches_nothing_any_more)
{
	uint64_t most_us = 0;

	for (int i = 0; i < TRIES; i++) {
		struct gpu_raw e;
		uint64_t ended;

		start(&e, WIRE_OP_LOAD, CHAIN);
		cut(&e);
		ended = now_ns();
		assert_untouched(&e);
		if ((now_ns() - ended) / 1000 > most_us)
			most_us = (now_ns() - ended) / 1000;
		gpu_raw_close(&e);
	}
	print_message("pages were unmapped %llu ms after their connection, at the latest\n",
		      (unsigned long long)(most_us / 1000));
}

TEST(a_space_closed_in_a_load_touches_nothing_any_more)
{
	for (int i = 0; i < TRIES; i++) {
		struct gpu_raw e;

		start(&e, WIRE_OP_LOAD, CHAIN);
		gpu_raw_close_space(&e);
		assert_untouched(&e);
		gpu_raw_close(&e);
	}
}

/* The pages get other bytes at the daemon's word; a stored block, if any, has the first bytes. */
TEST(a_cut_store_leaves_nothing_or_what_is_right)
{
	for (uint32_t i = 0; i < TRIES; i++) {
		struct gpu_raw e;
		uint32_t ok;

		start(&e, WIRE_OP_STORE, NEW_CHAIN + i);
		cut(&e);
		gpu_raw_poison(&e, 0, N);
		gpu_devices_have(&d, "regions", 1);
		gpu_raw_poison(&keeper, N, N);
		ok = gpu_raw_run(&keeper, WIRE_OP_LOAD, NEW_CHAIN + i, N, N).prefix;
		gpu_raw_all_hold(&keeper, NEW_CHAIN + i, N, ok);
		gpu_raw_all_poison(&keeper, N + ok, N - ok);
		gpu_raw_close(&e);
	}
}

TEST_FIRST(gpu_begin(argv, "null_stream=0 one_thread=1 late=4"));
