/* SPDX-License-Identifier: Apache-2.0 */
/*
 * regr_2_ops_share.c - goal: clients that submit as fast as they can leave some of [socket] max_ops
 * for the others. The daemon asked connections in a fixed order and gave all free ops to the first:
 * the last could wait for ever. Method: with the daemon stopped, a greedy client that is asked
 * first fills its ring with long ops, and a modest one submits a short op; it must be taken before
 * the greedy one's first op completed.
 */
#include "tests/lib/lib_raw.h"

#include <signal.h>

enum { MAX_OPS = 16, BLOCKS = 1024 / MAX_OPS };

static void a_full_ring_leaves_ops_for_others(void **state)
{
	struct daemon d;
	struct raw modest, greedy;
	struct wire_sqe sqe;
	const struct wire_cqe *first, *other;
	uint32_t space;

	(void)state;
	daemon_start(
		&d,
		"[host]\nbytes = 4M\nslab_bytes = 256K\nhuge_pages = no\n[socket]\nmax_ops = 16\n");
	raw_open(&modest, d.socket);
	raw_open(&greedy, d.socket); /* the latest is asked first */
	(void)raw_space_open(&greedy, &space);
	for (uint32_t i = 0; i < MAX_OPS; i++) {
		sqe = raw_sqe(WIRE_OP_LOAD, space);
		sqe.first = i * BLOCKS;
		sqe.n = BLOCKS;
		raw_put(&greedy, i, &sqe);
	}
	(void)raw_space_open(&modest, &space);
	sqe = raw_sqe(WIRE_OP_LOAD, space);
	raw_put(&modest, 0, &sqe);
	daemon_signal(&d, SIGSTOP);
	raw_publish(&greedy, MAX_OPS);
	raw_publish(&modest, 1);
	daemon_signal(&d, SIGCONT);
	raw_await(&greedy, MAX_OPS);
	raw_await(&modest, 1);
	first = (const void *)((const char *)greedy.complete + WIRE_RING_OFFSET);
	other = (const void *)((const char *)modest.complete + WIRE_RING_OFFSET);
	assert_true(other->submit_ns < first->done_ns);
	raw_close(&greedy);
	raw_close(&modest);
	daemon_remove(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_full_ring_leaves_ops_for_others),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
