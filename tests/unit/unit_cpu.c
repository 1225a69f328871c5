/* SPDX-License-Identifier: Apache-2.0 */
/* make: wrap=sched_yield */
/*
 * unit_cpu.c - goal: a thread that asked for short slices has them, with its nice value and without
 * handing them on; it offers its CPU when a slice of work is over, not before, and not for the time
 * that it slept; threads that are to stay apart are on different CPUs, and those of a pool do both.
 * Method: sched_yield() is counted, time is made up, the kernel is asked what it noted.
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

static void *child(void *arg)
{
	*(struct attr *)arg = attr_now();
	return NULL;
}

static void *ask(void *arg)
{
	const struct attr before = attr_now();
	struct attr now, childs;

	(void)arg;
	assert_int_equal(cpu_slice_ask(), 0);
	now = attr_now();
	apart(child, &childs);
	assert_int_equal(now.policy, before.policy);
	assert_int_equal(now.nice, before.nice);
	assert_int_equal(now.flags & RESET_ON_FORK, RESET_ON_FORK);
	if (now.runtime_ns) /* a kernel before 6.12 does not say, and gives none */
		assert_int_equal(now.runtime_ns, SLICE_NS);
	assert_int_equal(childs.runtime_ns, before.runtime_ns);
	return NULL;
}

static void a_thread_has_short_slices_and_its_children_do_not(void **state)
{
	(void)state;
	apart(ask, NULL);
}

static void *ask_as_a_batch(void *arg)
{
	const struct sched_param none = { 0 };

	(void)arg;
	assert_int_equal(sched_setscheduler(0, SCHED_BATCH, &none), 0);
	assert_int_equal(cpu_slice_ask(), -EOPNOTSUPP);
	assert_int_equal(sched_getscheduler(0), SCHED_BATCH);
	return NULL;
}

static void another_policy_is_left_alone(void **state)
{
	(void)state;
	apart(ask_as_a_batch, NULL);
}

static void *stay(void *arg)
{
	cpu_set_t set;

	assert_int_equal(cpu_stay_on(cpu_usable()), -EINVAL);
	assert_int_equal(cpu_stay_on(*(uint32_t *)arg), 0);
	assert_int_equal(cpu_usable(), 1);
	assert_int_equal(sched_getaffinity(0, sizeof(set), &set), 0);
	*(uint32_t *)arg = UINT32_MAX;
	for (uint32_t cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &set))
			*(uint32_t *)arg = cpu;
	return NULL;
}

static void each_number_is_a_cpu_of_its_own(void **state)
{
	const uint32_t n = cpu_usable();
	cpu_set_t seen;

	(void)state;
	CPU_ZERO(&seen);
	for (uint32_t i = 0; i < n; i++) {
		uint32_t cpu = i;

		apart(stay, &cpu);
		assert_false(CPU_ISSET(cpu, &seen));
		CPU_SET(cpu, &seen);
	}
}

struct item {
	struct work work;
	uint32_t cpus;
};

static enum work_end work_for_a_slice(struct work *work, uint32_t thread)
{
	const uint64_t end = loop_clock() + SLICE_NS;

	(void)thread;
	((struct item *)work)->cpus = cpu_usable();
	while (loop_clock() < end)
		;
	return WORK_ENDED;
}

static void done(struct work *work)
{
	(void)work;
}

static void a_pool_offers_its_cpus_and_its_threads_stay_apart(void **state)
{
	const struct workers_conf conf = { .threads = 1, .keep = 1, .slices = true, .apart = true };
	struct item item = { .work = { .run = work_for_a_slice, .done = done } };
	struct workers *pool;

	(void)state;
	yields = 0;
	assert_int_equal(workers_open(&conf, &pool), 0);
	assert_int_equal(workers_submit(pool, &item.work), 0);
	workers_close(pool);
	assert_int_equal(item.cpus, 1);
	assert_int_equal(yields, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_cpu_is_offered_once_a_slice),
		cmocka_unit_test(a_thread_has_short_slices_and_its_children_do_not),
		cmocka_unit_test(another_policy_is_left_alone),
		cmocka_unit_test(each_number_is_a_cpu_of_its_own),
		cmocka_unit_test(a_pool_offers_its_cpus_and_its_threads_stay_apart),
	};

	return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
