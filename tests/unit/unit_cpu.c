/* SPDX-License-Identifier: Apache-2.0 */
/* make: wrap=sched_yield */
/*
 * unit_cpu.c - goal: a thread that asked for short slices has them, with its nice value and without
 * handing them on; it offers its CPU when a slice of work is over, not before, and not for the time
 * that it slept; threads that are to stay apart are on different CPUs; those of a pool do either
 * where they are told to. Method: sched_yield() is counted, time is made up, the kernel is asked
 * what it noted.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon/base/cpu.h"
#include "daemon/base/loop.h"
#include "daemon/base/workers.h"

enum { SLICE_NS = 100000, RESET_ON_FORK = 1 };

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

static struct attr attr_now(void)
{
	struct attr ret = { .size = sizeof(ret) };

	assert_int_equal(syscall(SYS_sched_getattr, 0, &ret, sizeof(ret), 0), 0);
	return ret;
}

/* On a thread of its own, since it cannot be taken back. */
static void apart(void *(*run)(void *arg), void *arg)
{
	pthread_t thread;

	assert_int_equal(pthread_create(&thread, NULL, run, arg), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
}

static void the_cpu_is_offered_once_a_slice(void **state)
{
	struct cpu_slice slice;

	(void)state;
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

/* What a thread found that asked; the case that made the thread looks at it. */
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

static void a_thread_has_short_slices_and_its_children_do_not(void **state)
{
	struct asked a = { .policy = SCHED_OTHER, .nice = 19 };

	(void)state;
	apart(ask, &a);
	assert_int_equal(a.result, 0);
	assert_int_equal(a.now.policy, SCHED_OTHER);
	assert_int_equal(a.now.nice, 19);
	assert_int_equal(a.now.flags & RESET_ON_FORK, RESET_ON_FORK);
	if (a.now.runtime_ns) /* a kernel before 6.12 does not say, and gives none */
		assert_int_equal(a.now.runtime_ns, SLICE_NS);
	assert_int_equal(a.childs.runtime_ns, a.before.runtime_ns);
}

static void another_policy_is_left_alone(void **state)
{
	struct asked a = { .policy = SCHED_BATCH };

	(void)state;
	apart(ask, &a);
	assert_int_equal(a.before.policy, SCHED_BATCH);
	assert_int_equal(a.result, -EOPNOTSUPP);
	assert_int_equal(a.now.policy, SCHED_BATCH);
}

struct stayed {
	uint32_t number;
	int beyond, result; /* of a number that there is no CPU for; of this one */
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

static void each_number_is_a_cpu_of_its_own(void **state)
{
	const uint32_t n = cpu_usable();
	cpu_set_t seen;

	(void)state;
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

/* What two threads of this pool found. */
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

static void threads_of_a_pool_have_short_slices_and_offer_their_cpu(void **state)
{
	struct item items[2];

	(void)state;
	run_two(true, false, items);
	for (int i = 0; i < 2; i++)
		assert_int_equal(items[i].attr.flags & RESET_ON_FORK, RESET_ON_FORK);
	assert_int_equal(yields, 2);
	run_two(false, false, items);
	for (int i = 0; i < 2; i++)
		assert_int_equal(items[i].attr.flags & RESET_ON_FORK, 0);
	assert_int_equal(yields, 0);
}

static void threads_of_a_pool_stay_apart(void **state)
{
	const uint32_t n = cpu_usable();
	struct item items[2];

	(void)state;
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_cpu_is_offered_once_a_slice),
		cmocka_unit_test(a_thread_has_short_slices_and_its_children_do_not),
		cmocka_unit_test(another_policy_is_left_alone),
		cmocka_unit_test(each_number_is_a_cpu_of_its_own),
		cmocka_unit_test(threads_of_a_pool_have_short_slices_and_offer_their_cpu),
		cmocka_unit_test(threads_of_a_pool_stay_apart),
	};

	return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
