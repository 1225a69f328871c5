/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Goal: io.h holds its contract on a real disk, on io_uring as on threads: right bytes, bounds,
 * refusals, the end of the file, exactly one completion, nothing left behind. Method: a file opened
 * with O_DIRECT in $TMPDIR, build/ or . (skipped on tmpfs); each case runs on both engines.
 */
#include "tests/lib/lib_io.h"

#include <sys/eventfd.h>

static struct io_rig rig;

/* A case on both engines, at a file of so many pages. */
#define ON_A_RIG(name, pages) \
	ON_BOTH_BETWEEN(name, io_rig_open_plain(&rig, state, pages), io_rig_tear_down(&rig))

/* --- bytes --- */

enum { MODEL_PAGES = 512, SLOTS = 24, SLOT_PAGES = 16, STEPS = 1500 };

/* Ops in flight never overlap, so the model knows the bytes that each must see. */
struct walk {
	struct io_rig rig;
	struct random random;
	uint64_t model[MODEL_PAGES]; /* content of each page */
	struct io_rig_op ops[SLOTS];
	uint32_t started;
};

static bool overlaps(const struct walk *w, uint32_t first, uint32_t n)
{
	for (uint32_t i = 0; i < SLOTS; i++) {
		const struct io_op *op = &w->ops[i].op;
		const uint32_t at = (uint32_t)(op->offset / PAGE), end = at + op->bytes / PAGE;

		if (op->state != IO_IDLE && first < end && at < first + n)
			return true;
	}
	return false;
}

static void walk_check(struct walk *w, struct io_rig_op *r)
{
	const uint32_t first = (uint32_t)(r->op.offset / PAGE);

	assert_int_equal(r->op.status, 0);
	assert_int_equal(r->dones, 1);
	r->dones = 0;
	if (r->op.kind == IO_READ)
		for (uint32_t i = 0; i < r->op.bytes / PAGE; i++)
			assert_true(io_rig_is(r->op.buffer + (size_t)i * PAGE, w->model[first + i],
					      PAGE));
}

static void walk_start(struct walk *w, uint32_t slot)
{
	const enum io_kind kind = random_below(&w->random, 2) ? IO_READ : IO_WRITE;
	struct io_rig_op *r = &w->ops[slot];
	uint32_t first, n;

	do {
		n = 1 + random_below(&w->random, SLOT_PAGES);
		first = random_below(&w->random, MODEL_PAGES - n + 1);
	} while (overlaps(w, first, n));
	*r = io_rig_op(&w->rig, kind, (uint64_t)first * PAGE, n * PAGE, slot * SLOT_PAGES);
	for (uint32_t i = 0; i < n; i++) {
		if (kind == IO_WRITE)
			w->model[first + i] = random_next(&w->random);
		io_rig_fill(r->op.buffer + (size_t)i * PAGE,
			    kind == IO_WRITE ? w->model[first + i] : 1ull << 60, PAGE);
	}
	assert_int_equal(io_submit(w->rig.io, &r->op), 0);
	w->started++;
}

ON_BOTH(random_blocks_come_back)
{
	static struct walk w;
	struct io_conf conf = { .engine = *(enum io_engine_choice *)*state };

	memset(&w, 0, sizeof(w));
	w.random = random_seeded("random_blocks_come_back");
	/* deep enough for all slots to be lent in one direction */
	conf.read_depth = SLOTS / IO_QUEUES + random_below(&w.random, 16);
	conf.write_depth = SLOTS / IO_QUEUES + random_below(&w.random, 16);
	io_rig_open(&w.rig, &conf, MODEL_PAGES);
	for (uint32_t i = 0; i < MODEL_PAGES; i++)
		w.model[i] = i;
	/* Half of the slots, and half of one: registered, not registered, across the border. */
	assert_int_equal(io_buffers_add(w.rig.io, w.rig.buffers,
					(SLOTS * SLOT_PAGES + SLOT_PAGES) / 2 * PAGE),
			 0);
	for (uint32_t i = 0; i < SLOTS; i++)
		walk_start(&w, i);
	while (w.rig.ended < w.started) {
		io_rig_run(&w.rig, 1);
		for (uint32_t i = 0; i < SLOTS; i++) /* before a new write changes the model */
			if (w.ops[i].dones > 0)
				walk_check(&w, &w.ops[i]);
		for (uint32_t i = 0; i < SLOTS && w.started < STEPS; i++)
			if (w.ops[i].op.state == IO_IDLE)
				walk_start(&w, i);
	}
	assert_int_equal(w.started, STEPS);
	/* and the bytes on the disk, not through us */
	for (uint32_t i = 0; i < MODEL_PAGES; i++) {
		assert_int_equal(pread(w.rig.fd, w.rig.buffers, PAGE, (off_t)i * PAGE), PAGE);
		assert_true(io_rig_is(w.rig.buffers, w.model[i], PAGE));
	}
	io_rig_tear_down(&w.rig);
}

/* --- bounds and refusals --- */

ON_BOTH(a_full_queue_says_eagain)
{
	enum { READS = IO_QUEUES * 2, WRITES = IO_QUEUES * 1 };
	const struct io_conf conf = { .engine = *(enum io_engine_choice *)*state,
				      .read_depth = 2,
				      .write_depth = 1 };
	struct io_rig_op reads[READS + 1], writes[WRITES + 1];

	io_rig_open(&rig, &conf, 8);
	for (uint32_t i = 0; i <= READS; i++) {
		reads[i] = io_rig_op(&rig, IO_READ, i % 8 * PAGE, PAGE, i);
		assert_int_equal(io_submit(rig.io, &reads[i].op), i < READS ? 0 : -EAGAIN);
	}
	for (uint32_t i = 0; i <= WRITES; i++) {
		writes[i] = io_rig_op(&rig, IO_WRITE, i * PAGE, PAGE, 16 + i);
		assert_int_equal(io_submit(rig.io, &writes[i].op), i < WRITES ? 0 : -EAGAIN);
	}
	io_rig_run(&rig, READS + WRITES);
	assert_int_equal(reads[READS].dones + writes[WRITES].dones, 0);
	/* still ours, and now there is room */
	assert_int_equal(io_submit(rig.io, &reads[READS].op), 0);
	assert_int_equal(io_submit(rig.io, &writes[WRITES].op), 0);
	io_rig_run(&rig, 2);
	io_rig_tear_down(&rig);
}

ON_A_RIG(what_is_misaligned_is_refused, 8)
{
	struct io_rig_op ops[11], *good = &ops[10];
	struct io_load load;

	for (uint32_t i = 0; i < 11; i++)
		ops[i] = io_rig_op(&rig, i % 2 ? IO_READ : IO_WRITE, PAGE, 2 * PAGE, 0);
	ops[0].op.offset += 512;
	ops[1].op.buffer += 512;
	ops[2].op.bytes += 512;
	ops[3].op.bytes = 0;
	ops[4].op.buffer = NULL;
	/* ends after the last offset there is */
	ops[5].op.offset = (uint64_t)INT64_MAX + 1 - PAGE;
	ops[6].op.offset = UINT64_MAX - PAGE + 1;
	ops[7].op.kind = (enum io_kind)0;
	ops[8].op.kind = (enum io_kind)(IO_FDATASYNC + 1);
	/* of a part of a file: there is no such thing */
	ops[9].op.kind = IO_FDATASYNC;
	for (uint32_t i = 0; i < 10; i++)
		assert_int_equal(io_submit(rig.io, &ops[i].op), -EINVAL);
	io_load(rig.io, &load);
	assert_int_equal(load.lent, 0);
	assert_int_equal(io_submit(rig.io, &good->op), 0);
	io_rig_run(&rig, 1);
	assert_int_equal(good->op.status, 0);
	for (uint32_t i = 0; i < 10; i++)
		assert_int_equal(ops[i].dones, 0);
}

/* --- ends and errors --- */

ON_A_RIG(the_end_of_the_file_is_enodata, 8)
{
	/* the last page */
	assert_int_equal(io_rig_do(&rig, IO_READ, 7 * PAGE, PAGE, 0), 0);
	/* right after it */
	assert_int_equal(io_rig_do(&rig, IO_READ, 8 * PAGE, PAGE, 0), -ENODATA);
	assert_int_equal(io_rig_do(&rig, IO_READ, 1000 * PAGE, PAGE, 0), -ENODATA);
	/* across it */
	assert_int_equal(io_rig_do(&rig, IO_READ, 6 * PAGE, 3 * PAGE, 0), -ENODATA);
}

ON_A_RIG(an_end_within_a_page_is_enodata, 2)
{
	assert_int_equal(ftruncate(rig.fd, PAGE + 1000), 0);
	assert_int_equal(io_rig_do(&rig, IO_READ, 0, PAGE, 0), 0);
	assert_int_equal(io_rig_do(&rig, IO_READ, 0, 2 * PAGE, 0), -ENODATA);
	assert_int_equal(io_rig_do(&rig, IO_READ, PAGE, PAGE, 0), -ENODATA);
}

ON_A_RIG(a_size_limit_is_an_error_after_what_fitted, 1)
{
	const struct rlimit limit = { 4 * PAGE, RLIM_INFINITY };
	struct rlimit before;
	int beyond, across;

	(void)signal(SIGXFSZ, SIG_IGN);
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
	io_rig_fill(rig.buffers, 77, 4 * PAGE);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
	beyond = io_rig_do(&rig, IO_WRITE, 8 * PAGE, PAGE, 0);
	across = io_rig_do(&rig, IO_WRITE, 2 * PAGE, 4 * PAGE, 0);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
	assert_int_equal(beyond, -EFBIG);
	assert_int_equal(across, -EFBIG);
	assert_int_equal(pread(rig.fd, rig.buffers, 2 * PAGE, 2 * PAGE), 2 * PAGE);
	assert_true(io_rig_is(rig.buffers, 77, 2 * PAGE));
}

ON_A_RIG(an_error_reaches_its_op, 2)
{
	char path[64];
	int read_only, event;

	(void)snprintf(path, sizeof(path), "/proc/self/fd/%d", rig.fd);
	read_only = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
	event = eventfd(0, EFD_CLOEXEC);
	assert_int_equal(io_file_set(rig.io, read_only), 0);
	assert_int_equal(io_rig_do(&rig, IO_WRITE, 0, PAGE, 0), -EBADF);
	assert_int_equal(io_rig_do(&rig, IO_READ, 0, PAGE, 0), 0);
	assert_int_equal(io_file_set(rig.io, event), 0);
	assert_int_equal(io_rig_do(&rig, IO_FDATASYNC, 0, 0, 0), -EINVAL);
	(void)close(read_only);
	(void)close(event);
}

ON_A_RIG(what_has_ended_is_no_load, 8)
{
	struct io_load load;

	assert_int_equal(io_rig_do(&rig, IO_READ, 0, 3 * PAGE, 0), 0);
	assert_int_equal(io_rig_do(&rig, IO_WRITE, 0, 5 * PAGE, 0), 0);
	assert_int_equal(io_rig_do(&rig, IO_FDATASYNC, 0, 0, 0), 0);
	io_load(rig.io, &load);
	assert_int_equal(load.lent + load.reads_in_disk + load.writes_in_disk, 0);
	assert_int_equal(load.oldest_ns, 0);
}

/* --- completions --- */

struct chain {
	struct io_rig_op r; /* first */
	uint32_t left, ended;
	bool submitting;
};

static void chain_done(struct io_op *op)
{
	struct chain *c = (struct chain *)op;

	assert_false(c->submitting);
	assert_int_equal(op->status, 0);
	c->ended++;
	assert_int_equal(io_close(c->r.rig->io), -EBUSY);
	if (c->left-- == 0) {
		loop_stop(c->r.rig->loop);
		return;
	}
	c->submitting = true;
	assert_int_equal(io_submit(c->r.rig->io, op), 0);
	c->submitting = false;
}

ON_A_RIG(done_may_submit_the_same_op_again, 8)
{
	struct chain chain;

	chain = (struct chain){ .r = io_rig_op(&rig, IO_READ, 0, PAGE, 0),
				.left = 99,
				.submitting = true };
	chain.r.op.done = chain_done;
	assert_int_equal(io_submit(rig.io, &chain.r.op), 0);
	chain.submitting = false;
	assert_int_equal(loop_run(rig.loop), 0);
	assert_int_equal(chain.ended, 100);
}

ON_A_RIG(close_refuses_while_an_op_is_lent, 1)
{
	struct io_rig_op r;

	r = io_rig_op(&rig, IO_READ, 0, PAGE, 0);
	assert_int_equal(io_submit(rig.io, &r.op), 0);
	assert_int_equal(io_close(rig.io), -EBUSY);
	assert_int_equal(io_file_set(rig.io, -1), -EBUSY);
	io_rig_run(&rig, 1);
	assert_int_equal(r.op.status, 0);
}

static void submit(void *op)
{
	(void)io_submit(rig.io, op);
}

ON_A_RIG(an_op_lent_twice_is_the_programmers_error, 1)
{
	struct io_rig_op r;

	r = io_rig_op(&rig, IO_READ, 0, PAGE, 0);
	assert_int_equal(io_submit(rig.io, &r.op), 0);
	assert_true(test_aborts(submit, &r.op));
	io_rig_run(&rig, 1);
}

/* --- the file, and buffers --- */

ON_A_RIG(a_file_comes_after_another, 4)
{
	struct io_rig_op read = io_rig_op(&rig, IO_READ, 0, PAGE, 0);
	struct io_rig other;

	io_rig_prepare(&other, 0);
	assert_int_equal(io_rig_do(&rig, IO_READ, 0, PAGE, 0), 0);
	assert_int_equal(io_file_set(rig.io, -1), 0);
	assert_int_equal(io_submit(rig.io, &read.op), -EBADF);
	assert_int_equal(io_file_set(rig.io, other.fd), 0);
	/* the other file is empty */
	assert_int_equal(io_rig_do(&rig, IO_READ, 0, PAGE, 0), -ENODATA);
	assert_int_equal(io_file_set(rig.io, rig.fd), 0);
	assert_int_equal(io_rig_do(&rig, IO_READ, 0, PAGE, 0), 0);
	io_rig_tear_down(&other);
}

ON_A_RIG(buffers_that_are_no_pages_are_refused, 4)
{
	assert_int_equal(io_buffers_add(rig.io, rig.buffers + 512, PAGE), -EINVAL);
	assert_int_equal(io_buffers_add(rig.io, rig.buffers, PAGE + 512), -EINVAL);
	assert_int_equal(io_buffers_add(rig.io, rig.buffers, 0), -EINVAL);
	assert_int_equal(io_rig_do(&rig, IO_READ, 0, PAGE, 0), 0);
}

ON_A_RIG(many_areas_of_buffers_work, 4)
{
	for (uint32_t i = 0; i < 20; i++)
		assert_int_equal(io_buffers_add(rig.io, rig.buffers + (size_t)i * 2 * PAGE,
						2 * PAGE),
				 0);
	for (uint32_t i = 0; i < 40; i++) {
		assert_int_equal(io_rig_do(&rig, IO_READ, PAGE, 2 * PAGE, i), 0);
		assert_true(io_rig_is(rig.buffers + (size_t)i * PAGE, 1, PAGE));
		assert_true(io_rig_is(rig.buffers + (size_t)(i + 1) * PAGE, 2, PAGE));
	}
}

TEST_FIRST(io_rig_needed());
