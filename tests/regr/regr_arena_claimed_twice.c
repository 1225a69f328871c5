/* SPDX-License-Identifier: Apache-2.0 */
/*
 * regr_arena_claimed_twice.c - goal: a client's arena bounds the core thread's work for its ops in
 * one iteration, as each op that ends early walks all of its slots. Method: ops, by hand, that
 * together claim one slot more than the arena has; then as many as it has.
 */
#include "tests/lib/lib_raw.h"

enum { ARENA = 1024 }; /* as raw_hello() asks for */

DAEMON_EACH(d, SMALL_HOST);

static void start(struct raw *r, uint32_t *ret_space)
{
	raw_open(r, d.socket);
	assert_int_equal(r->ok.arena_blocks, ARENA);
	(void)raw_space_open(r, ret_space);
}

/* A load of n blocks nobody stored, which takes a while: the daemon begins 64 per iteration. */
static void put_load(struct raw *r, uint32_t position, uint32_t space, uint32_t first, uint32_t n)
{
	struct wire_sqe sqe = raw_sqe(WIRE_OP_LOAD, space);

	sqe.first = first;
	sqe.n = n;
	raw_put(r, position, &sqe);
}

TEST(one_slot_too_many_ends_the_connection)
{
	struct raw r;
	uint32_t space;

	start(&r, &space);
	put_load(&r, 0, space, 0, ARENA);
	put_load(&r, 1, space, 7, 1);
	raw_publish(&r, 2);
	raw_expect_cut(&r, "sqe.n 1 is more than the arena slots that no outstanding op uses");
	raw_close(&r);
}

TEST(slots_of_completed_ops_are_free_again)
{
	struct raw r;
	uint32_t space;

	start(&r, &space);
	for (uint32_t round = 0; round < 3; round++) {
		put_load(&r, 2 * round, space, 0, ARENA - 1);
		put_load(&r, 2 * round + 1, space, ARENA - 1, 1);
		raw_publish(&r, 2 * round + 2);
		raw_await(&r, 2 * round + 2);
		raw_taken(&r, 2 * round + 2);
	}
	raw_close(&r);
}
