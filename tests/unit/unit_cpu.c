/* SPDX-License-Identifier: Apache-2.0 */
/* make: wrap=sched_yield */
/*
 * unit_cpu.c - goal: a thread that asked for short slices has them, with its nice value and without
 * handing them on; it offers its CPU when a slice of work is over, not before, and not for the time
 * that it slept; a CPU is claimed for a thread that has short slices; threads that are to stay
 * apart are on different CPUs. Threads of a pool do each of these as they are told, and the loop
 * offers its CPU during any work. Method: sched_yield() is counted, time is made up, the kernel is
 * asked for its notes.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon/base/cpu.h"
#include "daemon/base/loop.h"
#include "daemon/base/workers.h"
#include "tests/lib/test.h"

enum { SLICE_NS = 100000, RESET_ON_FORK = 1, PATIENCE_MS = 10000 };

struct attr {
	uint32_t size, policy;
	uint64_t flags;
	int32_t nice;
	uint32_t priority;
	uint64_t runtime_ns, deadline_ns, period_ns;
};

static atomic_uint yields;

int __wrap_sched_yield(void);

int __wrap_sched_yield(void)
{
	yields++;
	return 0;
}

static struct attr attr_of(pid_t thread)
{
	struct attr ret = { .size = sizeof(ret) };

	(void)syscall(SYS_sched_getattr, thread, &ret, sizeof(ret), 0);
	return ret;
}

static struct attr attr_now(void)
{
	return attr_of(0);
}

/* On a thread of its own, since it cannot be taken back. */
static void apart(void *(*run)(void *arg), void *arg)
{
	pthread_t thread;

	assert_int_equal(pthread_create(&thread, NULL, run, arg), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
}

TEST(the_cpu_is_offered_once_a_slice)
{
	struct cpu_slice slice;

	yields = 0;
	cpu_slice_begin(&slice, 1000);
	assert_false(cpu_slice_look(&slice, 1000));
	assert_false(cpu_slice_look(&slice, 1000 + SLICE_NS - 1));
	assert_true(cpu_slice_look(&slice, 1000 + SLICE_NS));
	assert_false(cpu_slice_look(&slice, 1000 + SLICE_NS + 1));
	assert_true(cpu_slice_look(&slice, 1000 + 2 * SLICE_NS));
	cpu_slice_begin(&slice, 9 * SLICE_NS);
	assert_false(cpu_slice_look(&slice, 9 * SLICE_NS + 1));
	assert_int_equal(yields, 2);
}

/* The findings of a thread that asked; the case that made the thread looks at them. */
struct asked {
	int policy, nice; /* to have before it asks */
	int result;
	struct attr before, now, childs;
};

static void *child(void *arg)
{
	*(struct attr *)arg = attr_now();
	return NULL;
}

static void *ask(void *arg)
{
	struct asked *a = arg;
	const struct sched_param none = { 0 };

	(void)sched_setscheduler(0, a->policy, &none);
	(void)setpriority(PRIO_PROCESS, 0, a->nice);
	a->before = attr_now();
	a->result = cpu_slice_ask();
	a->now = attr_now();
	apart(child, &a->childs);
	return NULL;
}

TEST(a_thread_has_short_slices_and_its_children_do_not)
{
	struct asked a = { .policy = SCHED_OTHER, .nice = 19 };

	apart(ask, &a);
	assert_int_equal(a.result, 0);
	assert_int_equal(a.now.policy, SCHED_OTHER);
	assert_int_equal(a.now.nice, 19);
	assert_int_equal(a.now.flags & RESET_ON_FORK, RESET_ON_FORK);
	if (a.now.runtime_ns) /* a kernel before 6.12 does not say, and gives none */
		assert_int_equal(a.now.runtime_ns, SLICE_NS);
	assert_int_equal(a.childs.runtime_ns, a.before.runtime_ns);
}

TEST(another_policy_is_left_alone)
{
	struct asked a = { .policy = SCHED_BATCH };

	apart(ask, &a);
	assert_int_equal(a.before.policy, SCHED_BATCH);
	assert_int_equal(a.result, -EOPNOTSUPP);
	assert_int_equal(a.now.policy, SCHED_BATCH);
}

/* A thread that asked, or has another policy, while others claim a CPU for it. */
struct claimed {
	int policy;
	atomic_int thread; /* 0: it is not there yet */
	atomic_bool over;
};

static void *be_claimed(void *arg)
{
	struct claimed *c = arg;
	const struct sched_param none = { 0 };

	(void)sched_setscheduler(0, c->policy, &none);
	(void)setpriority(PRIO_PROCESS, 0, 19);
	(void)cpu_slice_ask();
	c->thread = gettid();
	while (!c->over)
		usleep(100);
	return NULL;
}

TEST(a_claim_changes_a_slice_by_next_to_nothing)
{
	struct claimed c = { .policy = SCHED_OTHER };
	struct attr first, second;
	pthread_t thread;
	int r[2];

	assert_int_equal(pthread_create(&thread, NULL, be_claimed, &c), 0);
	while (!c.thread)
		usleep(100);
	r[0] = cpu_slice_claim(c.thread, 1);
	first = attr_of(c.thread);
	r[1] = cpu_slice_claim(c.thread, 2);
	second = attr_of(c.thread);
	c.over = true;
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_int_equal(r[0], 0);
	assert_int_equal(r[1], 0);
	assert_int_equal(second.nice, 19);
	assert_int_equal(second.flags & RESET_ON_FORK, RESET_ON_FORK);
	if (first.runtime_ns == 0)
		skip(); /* a kernel before 6.12 */
	assert_int_equal(first.runtime_ns, SLICE_NS + 1);
	assert_int_equal(second.runtime_ns, SLICE_NS);
}

TEST(nothing_is_claimed_for_another_policy)
{
	struct claimed c = { .policy = SCHED_BATCH };
	struct attr after;
	pthread_t thread;
	int r;

	assert_int_equal(pthread_create(&thread, NULL, be_claimed, &c), 0);
	while (!c.thread)
		usleep(100);
	r = cpu_slice_claim(c.thread, 1);
	after = attr_of(c.thread);
	c.over = true;
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_int_equal(r, -EOPNOTSUPP);
	assert_int_equal(after.policy, SCHED_BATCH);
}

struct stayed {
	uint32_t number;
	int beyond, result; /* of a number without a CPU; of this CPU */
	cpu_set_t set;
};

static void *stay(void *arg)
{
	struct stayed *s = arg;

	s->beyond = cpu_stay_on(cpu_usable());
	s->result = cpu_stay_on(s->number);
	(void)sched_getaffinity(0, sizeof(s->set), &s->set);
	return NULL;
}

TEST(each_number_is_a_cpu_of_its_own)
{
	const uint32_t n = cpu_usable();
	cpu_set_t seen;

	CPU_ZERO(&seen);
	for (uint32_t i = 0; i < n; i++) {
		struct stayed s = { .number = i };

		apart(stay, &s);
		assert_int_equal(s.beyond, -EINVAL);
		assert_int_equal(s.result, 0);
		assert_int_equal(CPU_COUNT(&s.set), 1);
		CPU_OR(&seen, &seen, &s.set);
	}
	assert_int_equal(CPU_COUNT(&seen), n);
}

struct item {
	struct work work;
	uint32_t thread, cpus;
	struct attr attr;
	cpu_set_t set;
};

/* Both are at work at the same time, so each has a thread of its own. */
static atomic_uint at_work;

static enum work_end work_for_a_slice(struct work *work, uint32_t thread)
{
	struct item *item = (struct item *)work;
	uint64_t end;

	item->thread = thread;
	item->cpus = cpu_usable();
	item->attr = attr_now();
	(void)sched_getaffinity(0, sizeof(item->set), &item->set);
	for (at_work++; at_work < 2;)
		usleep(100);
	end = loop_clock() + SLICE_NS;
	while (loop_clock() < end)
		;
	return WORK_ENDED;
}

static void done(struct work *work)
{
	(void)work;
}

/* The findings of two threads of this pool. */
static void run_two(bool slices, bool stay_apart, struct item items[2])
{
	const struct workers_conf conf = {
		.threads = 2, .keep = 2, .slices = slices, .apart = stay_apart
	};
	struct workers *pool;

	yields = at_work = 0;
	assert_int_equal(workers_open(&conf, &pool), 0);
	for (int i = 0; i < 2; i++) {
		items[i] = (struct item){ .work = { .run = work_for_a_slice, .done = done } };
		assert_int_equal(workers_submit(pool, &items[i].work), 0);
	}
	workers_close(pool);
	assert_int_not_equal(items[0].thread, items[1].thread);
}

TEST(threads_of_a_pool_have_short_slices_and_offer_their_cpu)
{
	struct item items[2];

	run_two(true, false, items);
	for (int i = 0; i < 2; i++)
		assert_int_equal(items[i].attr.flags & RESET_ON_FORK, RESET_ON_FORK);
	assert_int_equal(yields, 2);
	run_two(false, false, items);
	for (int i = 0; i < 2; i++)
		assert_int_equal(items[i].attr.flags & RESET_ON_FORK, 0);
	assert_int_equal(yields, 0);
}

TEST(threads_of_a_pool_stay_apart)
{
	const uint32_t n = cpu_usable();
	struct item items[2];

	if (n < 2)
		skip();
	run_two(false, true, items);
	assert_int_equal(items[0].cpus, 1);
	assert_int_equal(items[1].cpus, 1);
	assert_false(CPU_EQUAL(&items[0].set, &items[1].set));
	run_two(false, false, items);
	assert_int_equal(items[0].cpus, n);
	assert_int_equal(items[1].cpus, n);
}

/* --- a worker that does not get on --- */

struct stuck {
	struct work work;
	struct workers *pool;
	struct stuck *other;
	atomic_int thread;
	atomic_bool over;
	struct attr before, early, late; /* of the other's thread */
};

static enum work_end be_stuck(struct work *work, uint32_t thread)
{
	struct stuck *s = (struct stuck *)work;

	(void)thread;
	s->before = attr_now();
	s->thread = gettid();
	while (!s->over)
		usleep(100);
	return WORK_ENDED;
}

static enum work_end see_the_other(struct work *work, uint32_t thread)
{
	struct stuck *s = (struct stuck *)work;

	while (!s->other->thread)
		usleep(100);
	workers_tell(s->pool, thread, 1);
	s->early = attr_of(s->other->thread);
	workers_tell(s->pool, thread, loop_clock() + 60000000000u);
	s->late = attr_of(s->other->thread);
	s->other->over = true;
	return WORK_ENDED;
}

TEST(workers_claim_the_cpu_of_one_that_was_not_seen)
{
	const struct workers_conf conf = { .threads = 2, .keep = 2, .slices = true, .apart = true };
	struct stuck items[2] = { { .work = { .run = be_stuck, .done = done } },
				  { .work = { .run = see_the_other, .done = done } } };
	struct workers *pool;

	items[1].other = &items[0];
	assert_int_equal(workers_open(&conf, &pool), 0);
	items[1].pool = pool;
	assert_int_equal(workers_submit(pool, &items[0].work), 0);
	assert_int_equal(workers_submit(pool, &items[1].work), 0);
	workers_close(pool);
	if (items[0].before.runtime_ns == 0)
		skip(); /* a kernel before 6.12 */
	assert_int_equal(items[0].before.runtime_ns, SLICE_NS);
	assert_int_equal(items[1].early.runtime_ns, SLICE_NS);
	assert_int_equal(items[1].late.runtime_ns, SLICE_NS + 1);
}

/* --- the loop --- */

static struct loop *loop;
static uint32_t turns;

enum { TURNS = 20 };

/* It is ready in each turn, as nobody reads it. */
static void use_up_a_slice(struct loop_watch *watch, uint32_t events)
{
	const uint64_t end = loop_clock() + SLICE_NS;

	(void)watch;
	(void)events;
	while (loop_clock() < end)
		;
	if (++turns == TURNS)
		loop_stop(loop);
}

TEST(a_loop_offers_its_cpu_that_works_for_descriptors_alone)
{
	struct loop_watch watch = { .fd = eventfd(1, EFD_CLOEXEC), .ready = use_up_a_slice };

	yields = 0;
	assert_int_equal(loop_open(1000000, &loop), 0); /* so it does not sleep */
	assert_int_equal(loop_add(loop, &watch, EPOLLIN), 0);
	assert_int_equal(loop_run(loop), 0);
	loop_close(loop);
	(void)close(watch.fd);
	assert_true(yields >= TURNS - 1);
}

static struct stuck alone;
static struct loop_timer timer;
static uint32_t looks;

/* Until its slice is another one. */
static void look_again(struct loop_timer *again)
{
	if (alone.thread && (alone.before.runtime_ns == 0 ||
			     attr_of(alone.thread).runtime_ns != alone.before.runtime_ns))
		alone.over = true;
	if (alone.over || ++looks == PATIENCE_MS)
		loop_stop(loop);
	else
		loop_timer_set(loop, again, loop_now(loop) + 1000000);
}

TEST(the_owner_claims_the_cpu_of_a_worker)
{
	struct workers_conf conf = { .threads = 1, .keep = 1, .slices = true, .apart = true };
	struct workers *pool;
	bool r;

	assert_int_equal(loop_open(0, &loop), 0);
	conf.loop = loop;
	assert_int_equal(workers_open(&conf, &pool), 0);
	alone.work = (struct work){ .run = be_stuck, .done = done };
	assert_int_equal(workers_submit(pool, &alone.work), 0);
	timer.fire = look_again;
	loop_timer_set(loop, &timer, loop_now(loop) + 1000000);
	assert_int_equal(loop_run(loop), 0);
	r = alone.over;
	alone.over = true;
	workers_close(pool);
	loop_close(loop);
	assert_true(r);
}
