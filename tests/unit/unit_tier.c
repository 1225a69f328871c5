/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * Goal: the wrappers of tier.c hold both sides to the contract, and fault.c fails as planned and no
 * more. Method: a made-up tier of one 4 KiB record whose completions wait until the test lets them
 * go.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/fault.h"
#include "tests/lib/test.h"

enum { RECORD = 4096, MAX_WAITING = 80 };

struct record {
	struct tier base;
	struct xfer *waiting[MAX_WAITING];
	uint32_t n, cancelled;
	bool closed;
	uint8_t bytes[RECORD];
};

static void record_close(struct tier *t)
{
	((struct record *)t)->closed = true;
}

static int record_alloc(struct tier *t, uint32_t bytes, uint32_t unit, struct extent *ret)
{
	(void)bytes;
	(void)unit;
	t->extents++;
	t->used_bytes += RECORD;
	*ret = (struct extent){ .tier = TIER_NVME, .generation = 1 };
	return 0;
}

static void record_free(struct tier *t, const struct extent *where)
{
	(void)where;
	t->extents--;
	t->used_bytes -= RECORD;
}

static int record_submit(struct tier *t, struct xfer *x)
{
	struct record *r = (struct record *)t;

	if (r->n == MAX_WAITING)
		return -EAGAIN;
	r->waiting[r->n++] = x;
	return 0;
}

static void record_cancel(struct tier *t, struct xfer *x)
{
	(void)x;
	((struct record *)t)->cancelled++;
}

static enum tier_state record_state(const struct tier *t)
{
	(void)t;
	return TIER_READONLY;
}

static const struct tier_ops record_ops = { .name = "nvme",
					    .id = TIER_NVME,
					    .caps = TIER_CAP_DURABLE,
					    .close = record_close,
					    .alloc = record_alloc,
					    .free = record_free,
					    .submit = record_submit,
					    .cancel = record_cancel,
					    .state = record_state };

static void record_open(struct record *ret)
{
	memset(ret, 0, sizeof(*ret));
	ret->base.ops = &record_ops;
	ret->base.capacity_bytes = 1 << 20;
}

static void record_finish_all(struct record *r, int status)
{
	const uint32_t n = r->n;

	r->n = 0;
	for (uint32_t i = 0; i < n; i++)
		tier_complete(r->waiting[i], status);
}

/* An op as a request would embed it. */
struct op {
	struct xfer x; /* first */
	uint32_t done;
};

static _Alignas(4096) uint8_t buffer[RECORD];

static void op_done(struct xfer *x)
{
	((struct op *)x)->done++;
}

static struct op op(void)
{
	return (struct op){ .x = { .where = { .tier = TIER_NVME },
				   .buffer = buffer,
				   .bytes = RECORD,
				   .op = XFER_WRITE,
				   .done = op_done } };
}

TEST(an_xfer_completes_once)
{
	struct record r;
	struct op o = op();

	record_open(&r);
	assert_int_equal(tier_submit(&r.base, &o.x), 0);
	assert_int_equal(r.base.in_flight, 1);
	assert_int_equal(o.done, 0);
	record_finish_all(&r, 0);
	assert_int_equal(o.done, 1);
	assert_int_equal(o.x.status, 0);
	assert_int_equal(r.base.in_flight, 0);
	assert_int_equal(r.base.xfers_total, 1);
}

/* Runs fn in a child and says whether it ended in an assertion. */
static bool aborts(void (*fn)(void))
{
	const pid_t child = fork();
	int status;

	if (child == 0) {
		(void)signal(SIGABRT, SIG_DFL);
		(void)close(2);
		fn();
		_exit(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

static void complete_twice(void)
{
	struct record r;
	struct op o = op();

	record_open(&r);
	(void)tier_submit(&r.base, &o.x);
	r.n = 0;
	tier_complete(&o.x, 0);
	tier_complete(&o.x, 0);
}

static void submit_twice(void)
{
	struct record r;
	struct op o = op();

	record_open(&r);
	(void)tier_submit(&r.base, &o.x);
	(void)tier_submit(&r.base, &o.x);
}

static void submit_unaligned(void)
{
	struct record r;
	struct op o = op();

	record_open(&r);
	o.x.buffer++;
	(void)tier_submit(&r.base, &o.x);
}

static void close_while_lent(void)
{
	struct record r;
	struct op o = op();

	record_open(&r);
	(void)tier_submit(&r.base, &o.x);
	tier_close(&r.base);
}

TEST(misuse_aborts)
{
	assert_true(aborts(complete_twice));
	assert_true(aborts(submit_twice));
	assert_true(aborts(submit_unaligned));
	assert_true(aborts(close_while_lent));
}

TEST(an_extent_of_another_tier_is_stale)
{
	struct record r;
	struct op o = op();

	record_open(&r);
	o.x.where.tier = TIER_REDIS;
	assert_int_equal(tier_submit(&r.base, &o.x), -ESTALE);
	assert_false(o.x.in_flight);
}

TEST(a_gpu_tier_without_gpus_says_so)
{
	const struct tier_conf conf = { .slab_bytes = 1 << 20 };
	char text[TIER_TEXT_BYTES];
	struct tier *t;

	assert_int_equal(tier_open(TIER_GPU, &conf, NULL, &t, text, sizeof(text)), -EINVAL);
	assert_non_null(strstr(text, "[gpu]"));
}

TEST(states_have_names)
{
	assert_string_equal(tier_state_name(TIER_STARTING), "starting");
	assert_string_equal(tier_state_name(TIER_OFFLINE), "offline");
}

TEST(the_nth_alloc_fails)
{
	struct record r;
	struct extent where;
	struct tier *t;

	record_open(&r);
	assert_int_equal(fault_wrap(&r.base, &t), 0);
	fault_set(t, &(struct fault_plan){ .alloc_nth = 2, .alloc_errno = -ENOSPC });
	assert_int_equal(tier_alloc(t, 1, &where), 0);
	assert_int_equal(tier_alloc(t, 1, &where), -ENOSPC);
	assert_int_equal(tier_alloc(t, 1, &where), 0);
	assert_int_equal(t->used_bytes, 2 * RECORD);
	assert_int_equal(t->allocs_full_total, 1);
	tier_free(t, &where);
	assert_int_equal(t->extents, 1);
	assert_int_equal(tier_state(t), TIER_READONLY);
	tier_close(t);
	assert_true(r.closed);
}

TEST(the_nth_xfer_fails_at_submit_or_at_the_end)
{
	struct op a = op(), b = op(), c = op();
	struct record r;
	struct tier *t;

	record_open(&r);
	assert_int_equal(fault_wrap(&r.base, &t), 0);
	fault_set(t, &(struct fault_plan){ .submit_nth = 2,
					   .submit_errno = -EIO,
					   .done_nth = 2,
					   .done_errno = -EBADMSG });
	assert_int_equal(tier_submit(t, &a.x), 0);
	assert_int_equal(tier_submit(t, &b.x), -EIO);
	assert_int_equal(tier_submit(t, &c.x), 0);
	record_finish_all(&r, 0);
	assert_int_equal(a.x.status, 0);
	assert_int_equal(c.x.status, -EBADMSG);
	assert_int_equal(a.done + b.done + c.done, 2);
	assert_int_equal(t->xfers_failed_total, 1);
	tier_close(t);
}

TEST(held_completions_wait)
{
	struct op a = op(), b = op();
	struct record r;
	struct tier *t;

	record_open(&r);
	assert_int_equal(fault_wrap(&r.base, &t), 0);
	fault_set(t, &(struct fault_plan){ .hold = true });
	assert_int_equal(tier_submit(t, &a.x), 0);
	assert_int_equal(tier_submit(t, &b.x), 0);
	record_finish_all(&r, -EIO);
	assert_int_equal(a.done + b.done, 0);
	assert_int_equal(fault_release(t, 1), 1);
	assert_int_equal(a.done, 1);
	assert_int_equal(a.x.status, -EIO);
	assert_int_equal(fault_release(t, 9), 1);
	assert_int_equal(b.done, 1);
	tier_close(t);
}

TEST(a_deaf_tier_does_not_hear_cancel)
{
	struct op a = op();
	struct record r;
	struct tier *t;

	record_open(&r);
	assert_int_equal(fault_wrap(&r.base, &t), 0);
	assert_int_equal(tier_submit(t, &a.x), 0);
	fault_set(t, &(struct fault_plan){ .deaf = true });
	tier_cancel(t, &a.x);
	assert_int_equal(r.cancelled, 0);
	fault_set(t, &(struct fault_plan){ .deaf = false });
	tier_cancel(t, &a.x);
	assert_int_equal(r.cancelled, 1);
	record_finish_all(&r, -ECANCELED);
	assert_int_equal(a.done, 1);
	tier_cancel(t, &a.x); /* too late: nothing happens */
	assert_int_equal(r.cancelled, 1);
	tier_close(t);
}

TEST(depth_is_bounded)
{
	static struct op ops[FAULT_MAX_XFERS + 1];
	struct record r;
	struct tier *t;

	record_open(&r);
	assert_int_equal(fault_wrap(&r.base, &t), 0);
	for (int i = 0; i <= FAULT_MAX_XFERS; i++) {
		ops[i] = op();
		assert_int_equal(tier_submit(t, &ops[i].x), i < FAULT_MAX_XFERS ? 0 : -EAGAIN);
	}
	record_finish_all(&r, 0);
	assert_int_equal(tier_submit(t, &ops[FAULT_MAX_XFERS].x), 0);
	record_finish_all(&r, 0);
	tier_close(t);
}
