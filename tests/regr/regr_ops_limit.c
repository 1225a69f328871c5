/* SPDX-License-Identifier: Apache-2.0 */
/* make: wrap=clock_gettime,epoll_wait needs=kvtierd_clock (the test holds the clock) */
/*
 * regr_ops_limit.c - goal: no client's ops take another's, and ops that wait for their client end.
 * Method: raw clients of one process fill the rings of 66 connections with stores whose layers are
 * never given. A newcomer's NOP and load must complete meanwhile, and an engine must store and
 * load. Then the clock passes the bound of such a wait, long before their deadlines, and all have
 * ended.
 */
#include "tests/lib/lib_clock.h"
#include "tests/lib/lib_raw.h"

enum { HOGS = 66, ENTRIES = 64, WAIT_S = 60 };

static struct daemon d;

FIXTURE(begin)
{
	daemon_place(&d, false);
	clock_hold(&d);
	daemon_configure(&d, *state ? *state : SMALL_HOST);
	daemon_restart(&d);
	return 0;
}

FIXTURE_DO(end, daemon_remove(&d));

TEST_EACH(begin, end);

static struct wire_sqe hour_long(enum wire_op op, uint32_t space, uint32_t at)
{
	struct wire_sqe sqe = raw_sqe(op, space);

	sqe.first = at;
	sqe.deadline_ns = now_ns() + 3600 * 1000000000ull;
	return sqe;
}

/* Its ring is full of stores that wait for two groups of layers. */
static void fill(struct raw *r)
{
	uint32_t space;

	raw_open(r, d.socket);
	assert_int_equal(r->ok.sq_entries, ENTRIES);
	(void)raw_space_open(r, &space);
	for (uint32_t i = 0; i < ENTRIES; i++) {
		struct wire_sqe sqe = hour_long(WIRE_OP_STORE, space, i);

		sqe.groups = 2;
		raw_put(r, i, &sqe);
	}
	raw_publish(r, ENTRIES);
}

static void a_newcomer_is_served(void)
{
	struct wire_sqe sqe;
	struct raw r;
	uint32_t space;

	raw_open(&r, d.socket);
	sqe = raw_sqe(WIRE_OP_NOP, 0);
	raw_run(&r, 0, &sqe);
	(void)raw_space_open(&r, &space);
	sqe = hour_long(WIRE_OP_LOAD, space, 0);
	raw_run(&r, 1, &sqe);
	assert_int_equal(raw_cqe(&r, 1)->status, -ENOENT);
	raw_close(&r);
	engine_works(d.socket);
}

TEST(layers_that_never_come_take_nothing_of_others)
{
	static struct raw hogs[HOGS];

	for (uint32_t i = 0; i < HOGS; i++)
		fill(&hogs[i]);
	daemon_stat_reaches(&d, "ops.outstanding", 4000);
	a_newcomer_is_served();
	daemon_stat_becomes(&d, "ops.outstanding", HOGS * ENTRIES, PATIENT_MS);
	clock_pass_ms(WAIT_S * 1000 + 1000);
	daemon_stat_becomes(&d, "ops.outstanding", 0, PATIENT_MS);
	for (uint32_t i = 0; i < HOGS; i++) {
		raw_await(&hogs[i], ENTRIES);
		assert_int_equal(raw_cqe(&hogs[i], 0)->status, -ETIMEDOUT);
		raw_close(&hogs[i]);
	}
}

/* An entry that finds its client's ring of completions full of ops has its deadline, too. */
TEST(an_op_ends_at_its_deadline_beside_a_full_ring)
{
	struct wire_sqe sqe;
	struct raw r;
	uint32_t space;

	raw_open(&r, d.socket);
	(void)raw_space_open(&r, &space);
	for (uint32_t i = 0; i < ENTRIES; i++) {
		sqe = hour_long(WIRE_OP_STORE, space, i);
		sqe.groups = 2;
		if (i == ENTRIES - 1)
			sqe.deadline_ns = now_ns() + 1000000000;
		raw_put(&r, i, &sqe);
	}
	raw_publish(&r, ENTRIES);
	daemon_stat_becomes(&d, "ops.outstanding", ENTRIES, PATIENT_MS);
	clock_pass_ms(2000);
	raw_await(&r, 1);
	assert_int_equal(raw_cqe(&r, 0)->status, -ETIMEDOUT);
	raw_close(&r);
}

TEST_GIVEN(more_clients_have_shorter_rings, begin, end, SMALL_HOST "[socket]\nmax_clients = 4096\n")
{
	struct raw r;

	raw_open(&r, d.socket);
	assert_int_equal(r.ok.sq_entries, 16);
	raw_close(&r);
	engine_works(d.socket);
}
