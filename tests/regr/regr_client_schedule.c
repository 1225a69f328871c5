/* SPDX-License-Identifier: Apache-2.0 */
/* make: wrap=connect (two clients are two processes) */
/*
 * regr_client_schedule.c - goal: what a client has of the daemon grows neither with the number of
 * its ops nor with the number of its connections. Method: with the daemon stopped, one client
 * submits many ops, another one op as long as each of them; the single op must be complete before
 * the first of the many is. The ops load absent blocks: blocks begin and end at once. Then likewise
 * with one op on each of many connections of one process.
 */
#include "tests/lib/lib_apart.h"
#include "tests/lib/lib_raw.h"

enum { OPS = 15, BLOCKS = 64 };

DAEMON_EACH(d, SMALL_HOST);

static void put_loads(struct raw *r, uint32_t n)
{
	uint32_t space;

	(void)raw_space_open(r, &space);
	for (uint32_t i = 0; i < n; i++) {
		struct wire_sqe sqe = raw_sqe(WIRE_OP_LOAD, space);

		sqe.first = i * BLOCKS;
		sqe.n = BLOCKS;
		raw_put(r, i, &sqe);
	}
}

TEST(one_op_is_not_delayed_by_many_of_another)
{
	struct raw many, one;

	raw_open(&one, d.socket);
	raw_open(&many, d.socket); /* the latest is asked first */
	put_loads(&many, OPS);
	put_loads(&one, 1);
	daemon_signal(&d, SIGSTOP);
	raw_publish(&many, OPS);
	raw_publish(&one, 1);
	daemon_signal(&d, SIGCONT);
	raw_await(&many, OPS);
	raw_await(&one, 1);
	assert_true(raw_cqe(&one, 0)->done_ns < raw_cqe(&many, 0)->done_ns);
	raw_close(&many);
	raw_close(&one);
}

TEST(one_op_is_not_delayed_by_many_connections_of_a_process)
{
	static struct raw many[OPS];
	struct raw one;

	raw_open(&one, d.socket);
	clients_apart(false);
	for (uint32_t i = 0; i < OPS; i++) {
		raw_open(&many[i], d.socket);
		put_loads(&many[i], 1);
	}
	clients_apart(true);
	put_loads(&one, 1);
	daemon_signal(&d, SIGSTOP);
	for (uint32_t i = 0; i < OPS; i++)
		raw_publish(&many[i], 1);
	raw_publish(&one, 1);
	daemon_signal(&d, SIGCONT);
	raw_await(&one, 1);
	for (uint32_t i = 0; i < OPS; i++) {
		raw_await(&many[i], 1);
		assert_true(raw_cqe(&one, 0)->done_ns < raw_cqe(&many[i], 0)->done_ns);
		raw_close(&many[i]);
	}
	raw_close(&one);
}
