/* SPDX-License-Identifier: Apache-2.0 */
/* make: wrap=pread,pwrite,fdatasync,io_uring_peek_batch_cqe */
/*
 * Goal: an op ends once, with status 0 only where all bytes are right, and others go on, for
 * anything that a disk or the kernel does to a transfer. Method: a plan decides how the transfers
 * of both engines end (lib_io_faults.h).
 */
#include "tests/lib/lib_io.h"
#include "tests/lib/lib_io_faults.h"

enum { MAX_TRIES = 16 }; /* of io.c */

/* --- transfers: both engines --- */

enum { PAGES = 64, OP_PAGES = 8 };

static struct io_rig rig;
static uint32_t transfers; /* that the op under the last plan took */

static struct io_plan plan(enum io_kind kind, uint32_t times, int32_t result)
{
	return (struct io_plan){ .kinds = 1u << kind, .times = times, .result = result };
}

/* Writes pages of contents 500.. with the plan for writes, and reads them without. */
static void write_and_look(struct io_plan p, int expected)
{
	for (uint32_t i = 0; i < OP_PAGES; i++)
		io_rig_fill(rig.buffers + (size_t)i * PAGE, 500 + i, PAGE);
	io_plan_set(p);
	assert_int_equal(io_rig_do(&rig, IO_WRITE, 8 * PAGE, OP_PAGES * PAGE, 0), expected);
	transfers = io_transfers();
	io_plan_set((struct io_plan){ 0 });
	if (expected)
		return;
	memset(rig.buffers, 0, OP_PAGES * PAGE);
	assert_int_equal(io_rig_do(&rig, IO_READ, 8 * PAGE, OP_PAGES * PAGE, 0), 0);
	assert_true(io_rig_pages_are(&rig, 0, 500, OP_PAGES));
}

static void read_and_look(struct io_plan p, int expected)
{
	memset(rig.buffers, 0, OP_PAGES * PAGE);
	io_plan_set(p);
	assert_int_equal(io_rig_do(&rig, IO_READ, 24 * PAGE, OP_PAGES * PAGE, 0), expected);
	transfers = io_transfers();
	io_plan_set((struct io_plan){ 0 });
	if (expected == 0)
		assert_true(io_rig_pages_are(&rig, 0, 24, OP_PAGES));
}

#define CASE_BOTH(fn)                       \
	ON_BOTH_BETWEEN(fn, io_plan_none(); \
			io_rig_open_plain(&rig, state, PAGES), io_rig_tear_down(&rig))

CASE_BOTH(short_transfers_are_continued)
{
	const struct io_plan reads = plan(IO_READ, 3, 2 * PAGE);
	const struct io_plan writes = plan(IO_WRITE, 7, PAGE);

	for (int registered = 0; registered < 2; registered++) {
		read_and_look(reads, 0);
		assert_int_equal(transfers, 4);
		write_and_look(writes, 0);
		assert_int_equal(transfers, 8);
		assert_int_equal(io_buffers_add(rig.io, rig.buffers, OP_PAGES * PAGE), 0);
	}
}

/* Each page needs ten calls: more than the bound in all, never without a byte in between. */
CASE_BOTH(what_moves_is_not_given_up)
{
	read_and_look((struct io_plan){ .kinds = 1 << IO_READ,
					.times = 51,
					.result = -EINTR,
					.page_every = 10 },
		      0);
}

CASE_BOTH(a_page_cut_in_two_is_moved_again)
{
	read_and_look(plan(IO_READ, 2, PAGE + 512), 0);
	write_and_look(plan(IO_WRITE, 2, 700), 0);
}

CASE_BOTH(interruptions_are_tried_again)
{
	read_and_look(plan(IO_READ, MAX_TRIES, -EINTR), 0);
	assert_int_equal(transfers, MAX_TRIES + 1);
	write_and_look(plan(IO_WRITE, MAX_TRIES, -EAGAIN), 0);
	assert_int_equal(transfers, MAX_TRIES + 1);
}

CASE_BOTH(trying_again_has_an_end)
{
	static const int32_t results[] = { -EINTR, -EAGAIN, 700 };

	for (size_t i = 0; i < 3; i++) {
		const int expected = results[i] < 0 ? results[i] : -EIO;
		struct io_rig_op r = io_rig_op(&rig, IO_READ, 0, PAGE, 0);

		io_plan_set(plan(IO_READ, 1000, results[i]));
		assert_int_equal(io_submit(rig.io, &r.op), 0);
		io_rig_run(&rig, 1);
		assert_int_equal(r.op.status, expected);
		assert_int_equal(io_transfers(), MAX_TRIES + 1);
	}
}

CASE_BOTH(a_transfer_of_nothing_is_eio)
{
	read_and_look(plan(IO_READ, 1, 0), -EIO);
	write_and_look(plan(IO_WRITE, 1, 0), -EIO);
}

/* The n-th of four fails, or the rest of the n-th after a short transfer. */
CASE_BOTH(an_error_is_its_ops_alone)
{
	static const int32_t errors[] = { EIO, ENOSPC, ENODEV };

	for (uint32_t n = 0; n < 4; n++) {
		struct io_rig_op ops[4];
		uint32_t failed = 0;

		io_plan_set((struct io_plan){ .kinds = 1 << IO_READ | 1 << IO_WRITE,
					      .skip = n,
					      .times = 1,
					      .result = -errors[n % 3] });
		for (uint32_t i = 0; i < 4; i++) {
			ops[i] = io_rig_op(&rig, i % 2 ? IO_READ : IO_WRITE, i * OP_PAGES * PAGE,
					   OP_PAGES * PAGE, i * OP_PAGES);
			assert_int_equal(io_submit(rig.io, &ops[i].op), 0);
		}
		io_rig_run(&rig, 4);
		for (uint32_t i = 0; i < 4; i++) {
			assert_int_equal(ops[i].dones, 1);
			assert_true(ops[i].op.status == 0 || ops[i].op.status == -errors[n % 3]);
			failed += ops[i].op.status != 0;
		}
		assert_int_equal(failed, 1);
	}
}

/* --- runs: io_uring --- */

enum { RUN = 8 };

/* A run of RUN pages of the file, whose order in memory is another. Under the plan it takes so many
 * transfers, and the first `failed` ops end with -EIO. */
static void read_run(struct io_plan p, uint32_t expected, uint32_t failed)
{
	struct io_rig_op ops[RUN];

	memset(rig.buffers, 0, RUN * PAGE);
	io_plan_set(p);
	rig.ended = 0;
	for (uint32_t i = 0; i < RUN; i++) {
		ops[i] = io_rig_op(&rig, IO_READ, (16 + i) * PAGE, PAGE, RUN - 1 - i);
		assert_int_equal(io_submit(rig.io, &ops[i].op), 0);
	}
	io_rig_run(&rig, RUN);
	assert_int_equal(io_transfers(), expected);
	for (uint32_t i = 0; i < RUN; i++) {
		assert_int_equal(ops[i].dones, 1);
		assert_int_equal(ops[i].op.status, i < failed ? -EIO : 0);
		assert_true(i < failed || io_rig_pages_are(&rig, RUN - 1 - i, 16 + i, 1));
	}
	io_plan_set((struct io_plan){ 0 });
}

#define ON_URING(fn) TEST_ROWS(fn, ROW_ON_URING(fn))

ON_URING(ops_side_by_side_are_one_transfer)
{
	io_plan_none();
	io_rig_open_plain(&rig, state, PAGES);
	read_run(plan(IO_READ, 0, 0), 1, 0);
	assert_int_equal(io_buffers_add(rig.io, rig.buffers, RUN * PAGE), 0);
	read_run(plan(IO_READ, 0, 0), 1, 0);
	io_rig_tear_down(&rig);
}

ON_URING(an_error_of_a_run_is_its_ops_alone)
{
	io_plan_none();
	io_rig_open_plain(&rig, state, PAGES);
	read_run(plan(IO_READ, 1, -EIO), 1 + RUN, 0);
	read_run(plan(IO_READ, 2, -EIO), 1 + RUN, 1);
	io_rig_tear_down(&rig);
}

ON_URING(a_short_run_is_continued_op_by_op)
{
	io_plan_none();
	io_rig_open_plain(&rig, state, PAGES);
	read_run(plan(IO_READ, 1, 3 * PAGE + 512), 1 + RUN - 3, 0);
	read_run(plan(IO_READ, 1, 0), 1 + RUN, 0);
	io_rig_tear_down(&rig);
}

CASE_BOTH(a_sync_that_fails_says_so)
{
	io_plan_set(plan(IO_FDATASYNC, 1, -EIO));
	assert_int_equal(io_rig_do(&rig, IO_FDATASYNC, 0, 0, 0), -EIO);
	assert_int_equal(io_rig_do(&rig, IO_FDATASYNC, 0, 0, 0), 0);
}

/* One write in the disk that does not end, more behind it: the reads submitted after all of them
 * do. */
ON_BOTH(reads_overtake_queued_writes)
{
	const struct io_conf conf = { .engine = *(enum io_engine_choice *)*state,
				      .read_depth = 1,
				      .write_depth = 1 };
	struct io_rig_op writes[4], reads[4];

	io_plan_none();
	io_rig_open(&rig, &conf, PAGES);
	io_hold(1 << IO_WRITE);
	for (uint32_t i = 0; i < 4; i++) {
		writes[i] = io_rig_op(&rig, IO_WRITE, i * PAGE, PAGE, i);
		assert_int_equal(io_submit(rig.io, &writes[i].op), 0);
	}
	for (uint32_t i = 0; i < 4; i++) {
		reads[i] = io_rig_op(&rig, IO_READ, (32 + i) * PAGE, PAGE, 32 + i);
		assert_int_equal(io_submit(rig.io, &reads[i].op), 0);
	}
	io_rig_run(&rig, 4);
	assert_true(io_rig_pages_are(&rig, 32, 32, 4));
	for (uint32_t i = 0; i < 4; i++) {
		assert_int_equal(reads[i].order, i + 1); /* depth 1: as submitted */
		assert_int_equal(writes[i].dones, 0);
	}
	io_hold(0);
	io_rig_run(&rig, 4);
	for (uint32_t i = 0; i < 4; i++)
		assert_int_equal(writes[i].order, 4 + i + 1);
	io_rig_tear_down(&rig);
}

CASE_BOTH(a_stall_can_be_seen_and_harms_nobody_else)
{
	struct io_rig_op write;
	struct io_load before, after;

	io_hold(1 << IO_WRITE);
	write = io_rig_op(&rig, IO_WRITE, 0, PAGE, 0);
	assert_int_equal(io_submit(rig.io, &write.op), 0);
	io_rig_run_a_little(&rig);
	io_load(rig.io, &before);
	assert_int_equal(before.writes_in_disk, 1);
	assert_true(before.oldest_ns > 0);
	assert_int_equal(io_rig_do(&rig, IO_READ, 0, PAGE, 8), 0);
	io_rig_run_a_little(&rig);
	io_load(rig.io, &after);
	assert_true(after.oldest_ns > before.oldest_ns);
	assert_int_equal(write.dones, 0);
	assert_int_equal(io_close(rig.io), -EBUSY);
	assert_int_equal(io_file_set(rig.io, -1), -EBUSY);
	io_hold(0);
	io_rig_run(&rig, 1);
	assert_int_equal(write.dones, 1);
	io_load(rig.io, &after);
	assert_int_equal(after.oldest_ns, 0);
}

/* Reads of pages nobody writes, writes of pages nobody reads until the end. */
CASE_BOTH(random_faults_change_no_byte)
{
	struct random random = random_seeded("random_faults_change_no_byte"), plan_random = random;
	struct io_rig_op ops[6];

	io_plan_set((struct io_plan){ .random = &plan_random });
	for (uint32_t round = 0; round < 40; round++) {
		memset(rig.buffers, 0, 6 * OP_PAGES * PAGE);
		for (uint32_t i = 0; i < 6; i++) {
			const uint32_t n = 1 + random_below(&random, OP_PAGES),
				       at = (i < 2 ? i : 2 + i % 2) * OP_PAGES;

			ops[i] = io_rig_op(&rig, i < 2 ? IO_WRITE : IO_READ, at * PAGE, n * PAGE,
					   i * OP_PAGES);
			for (uint32_t k = 0; i < 2 && k < n; k++)
				io_rig_fill(ops[i].op.buffer + (size_t)k * PAGE, at + k, PAGE);
			assert_int_equal(io_submit(rig.io, &ops[i].op), 0);
		}
		io_rig_run(&rig, 6);
		for (uint32_t i = 0; i < 6; i++) {
			const uint32_t at = (uint32_t)(ops[i].op.offset / PAGE);

			assert_int_equal(ops[i].dones, 1);
			assert_int_equal(ops[i].op.status, 0);
			assert_true(
				io_rig_pages_are(&rig, i * OP_PAGES, at, ops[i].op.bytes / PAGE));
		}
	}
	io_plan_set((struct io_plan){ 0 });
	assert_int_equal(io_rig_do(&rig, IO_READ, 0, PAGES * PAGE, 0), 0);
	assert_true(io_rig_pages_are(&rig, 0, 0, PAGES));
}

TEST_FIRST(io_rig_needed());
