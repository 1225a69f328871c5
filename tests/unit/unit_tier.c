/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * Goal: the wrappers of tier.c hold both sides to the contract, and fault.c fails as planned and no
 * more. Method: a made-up tier of one 4 KiB record whose completions wait until the test lets them
 * go.
 */

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

static int record_alloc(struct tier *t, TEST_UNUSED uint32_t bytes, TEST_UNUSED uint32_t unit,
			struct extent *ret)
{
	t->extents++;
	t->used_bytes += RECORD;
	*ret = (struct extent){ .tier = TIER_NVME, .generation = 1 };
	return 0;
}

static void record_free(struct tier *t, TEST_UNUSED const struct extent *where)
{
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

static void record_cancel(struct tier *t, TEST_UNUSED struct xfer *x)
{
	((struct record *)t)->cancelled++;
}

static enum tier_state record_state(TEST_UNUSED const struct tier *t)
{
	return TIER_READONLY;
}

static const struct tier_ops record_ops = { .id = TIER_NVME,
					    .caps = TIER_CAP_DURABLE,
					    .close = record_close,
					    .alloc = record_alloc,
					    .free = record_free,
					    .submit = record_submit,
					    .cancel = record_cancel,
					    .state = record_state };

/* Of each case: the tier, and a wrapper around it where the case is WRAPPED. */
static struct record r;
static struct tier *t;

static void record_finish_all(int status)
{
	const uint32_t n = r.n;

	r.n = 0;
	for (uint32_t i = 0; i < n; i++)
		tier_complete(r.waiting[i], status);
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

static struct op o; /* the case's first */

FIXTURE_DO(record_open, o = op();
	   r = (struct record){ .base = { .ops = &record_ops, .capacity_bytes = 1 << 20 } });

FIXTURE(record_wrap)
{
	(void)record_open(state);
	return fault_wrap(&r.base, &t);
}

FIXTURE(record_unwrap)
{
	tier_close(t);
	return !r.closed;
}

TEST_EACH(record_open, NULL);
#define WRAPPED(name) TEST_WITH(name, record_wrap, record_unwrap)

TEST(an_xfer_completes_once)
{
	assert_int_equal(tier_submit(&r.base, &o.x), 0);
	assert_int_equal(r.base.in_flight, 1);
	assert_int_equal(o.done, 0);
	record_finish_all(0);
	assert_int_equal(o.done, 1);
	assert_int_equal(o.x.status, 0);
	assert_int_equal(r.base.in_flight, 0);
	assert_int_equal(r.base.xfers_total, 1);
}

static void complete_twice(TEST_UNUSED void *arg)
{
	(void)tier_submit(&r.base, &o.x);
	r.n = 0;
	tier_complete(&o.x, 0);
	tier_complete(&o.x, 0);
}

static void submit_twice(TEST_UNUSED void *arg)
{
	(void)tier_submit(&r.base, &o.x);
	(void)tier_submit(&r.base, &o.x);
}

static void submit_unaligned(TEST_UNUSED void *arg)
{
	o.x.buffer++;
	(void)tier_submit(&r.base, &o.x);
}

static void close_while_lent(TEST_UNUSED void *arg)
{
	(void)tier_submit(&r.base, &o.x);
	tier_close(&r.base);
}

TEST(misuse_aborts)
{
	assert_true(test_aborts(complete_twice, NULL));
	assert_true(test_aborts(submit_twice, NULL));
	assert_true(test_aborts(submit_unaligned, NULL));
	assert_true(test_aborts(close_while_lent, NULL));
}

TEST(an_extent_of_another_tier_is_stale)
{
	o.x.where.tier = TIER_REDIS;
	assert_int_equal(tier_submit(&r.base, &o.x), -ESTALE);
	assert_false(o.x.in_flight);
}

TEST(states_have_names)
{
	assert_string_equal(tier_state_name(TIER_STARTING), "starting");
	assert_string_equal(tier_state_name(TIER_OFFLINE), "offline");
}

WRAPPED(the_nth_alloc_fails)
{
	struct extent where;

	fault_set(t, &(struct fault_plan){ .alloc_nth = 2, .alloc_errno = -ENOSPC });
	assert_int_equal(tier_alloc(t, 1, &where), 0);
	assert_int_equal(tier_alloc(t, 1, &where), -ENOSPC);
	assert_int_equal(tier_alloc(t, 1, &where), 0);
	assert_int_equal(t->used_bytes, 2 * RECORD);
	tier_free(t, &where);
	assert_int_equal(t->extents, 1);
	assert_int_equal(tier_state(t), TIER_READONLY);
}

WRAPPED(the_nth_xfer_fails_at_submit_or_at_the_end)
{
	struct op b = op(), c = op();

	fault_set(t, &(struct fault_plan){ .submit_nth = 2,
					   .submit_errno = -EIO,
					   .done_nth = 2,
					   .done_errno = -EBADMSG });
	assert_int_equal(tier_submit(t, &o.x), 0);
	assert_int_equal(tier_submit(t, &b.x), -EIO);
	assert_int_equal(tier_submit(t, &c.x), 0);
	record_finish_all(0);
	assert_int_equal(o.x.status, 0);
	assert_int_equal(c.x.status, -EBADMSG);
	assert_int_equal(o.done + b.done + c.done, 2);
}

WRAPPED(held_completions_wait)
{
	struct op b = op();

	fault_set(t, &(struct fault_plan){ .hold = true });
	assert_int_equal(tier_submit(t, &o.x), 0);
	assert_int_equal(tier_submit(t, &b.x), 0);
	record_finish_all(-EIO);
	assert_int_equal(o.done + b.done, 0);
	assert_int_equal(fault_release(t, 1), 1);
	assert_int_equal(o.done, 1);
	assert_int_equal(o.x.status, -EIO);
	assert_int_equal(fault_release(t, 9), 1);
	assert_int_equal(b.done, 1);
}

WRAPPED(a_deaf_tier_does_not_hear_cancel)
{
	assert_int_equal(tier_submit(t, &o.x), 0);
	fault_set(t, &(struct fault_plan){ .deaf = true });
	tier_cancel(t, &o.x);
	assert_int_equal(r.cancelled, 0);
	fault_set(t, &(struct fault_plan){ .deaf = false });
	tier_cancel(t, &o.x);
	assert_int_equal(r.cancelled, 1);
	record_finish_all(-ECANCELED);
	assert_int_equal(o.done, 1);
	tier_cancel(t, &o.x); /* too late: nothing happens */
	assert_int_equal(r.cancelled, 1);
}

WRAPPED(depth_is_bounded)
{
	static struct op ops[FAULT_MAX_XFERS + 1];

	for (int i = 0; i <= FAULT_MAX_XFERS; i++) {
		ops[i] = op();
		assert_int_equal(tier_submit(t, &ops[i].x), i < FAULT_MAX_XFERS ? 0 : -EAGAIN);
	}
	record_finish_all(0);
	assert_int_equal(tier_submit(t, &ops[FAULT_MAX_XFERS].x), 0);
	record_finish_all(0);
}
