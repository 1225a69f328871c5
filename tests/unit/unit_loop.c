/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * unit_loop.c - goal: timers fire in order and once, callbacks may remove anything, and no work is
 * missed between the last look and the sleep. Method: small worlds around one loop, each ended by a
 * timer.
 */
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include "base/list.h"
#include "base/loop.h"
#include "daemon/config/config.h"
#include "tests/lib/test.h"

enum { TIMERS = 500 };

struct world {
	struct loop *loop;
	struct loop_timer end;
};

static struct world w;

static void stop(TEST_UNUSED struct loop_timer *timer)
{
	loop_stop(w.loop);
}

FIXTURE_DO(set_up, w = (struct world){ .end.fire = stop };
	   assert_int_equal(loop_open(0, &w.loop), 0));

FIXTURE_DO(tear_down, loop_close(w.loop); loop_close(NULL));

TEST_EACH(set_up, tear_down);

static void run_for(uint64_t ms)
{
	loop_timer_set(w.loop, &w.end, loop_now(w.loop) + ms * 1000000);
	assert_int_equal(loop_run(w.loop), 0);
}

/* --- timers --- */

struct numbered {
	struct loop_timer timer;
	uint64_t due_ns;
	int fired;
	struct numbered *also_unset;
};

static uint64_t last_due;
static struct numbered numbered[TIMERS];

static void fire_numbered(struct loop_timer *timer)
{
	struct numbered *n = (struct numbered *)(void *)timer;

	assert_true(n->due_ns >= last_due);         /* in order */
	assert_true(loop_now(w.loop) >= n->due_ns); /* not early */
	last_due = n->due_ns;
	n->fired++;
	if (n->also_unset)
		loop_timer_unset(w.loop, &n->also_unset->timer);
}

TEST(timers_fire_in_order_and_once)
{
	struct random random = random_seeded("timers_fire_in_order_and_once");
	const uint64_t start = loop_now(w.loop);

	last_due = 0;
	memset(numbered, 0, sizeof(numbered));
	for (int i = 0; i < TIMERS; i++) {
		numbered[i].timer.fire = fire_numbered;
		numbered[i].due_ns = start + random_below(&random, 5000000);
		loop_timer_set(w.loop, &numbered[i].timer, numbered[i].due_ns);
	}
	for (int i = 0; i < TIMERS; i += 3) { /* set again, later or earlier; unset */
		numbered[i].due_ns = start + random_below(&random, 5000000);
		loop_timer_set(w.loop, &numbered[i].timer, numbered[i].due_ns);
		loop_timer_unset(w.loop, &numbered[i + 1].timer);
		loop_timer_unset(w.loop, &numbered[i + 1].timer);
	}
	run_for(20);
	for (int i = 0; i < TIMERS; i++)
		assert_int_equal(numbered[i].fired, i % 3 != 1);
}

TEST(timer_may_unset_another_that_is_due)
{
	const uint64_t now = loop_now(w.loop);

	last_due = 0;
	memset(numbered, 0, sizeof(numbered));
	for (int i = 0; i < 2; i++) {
		numbered[i].timer.fire = fire_numbered;
		numbered[i].due_ns = now + (uint64_t)i;
		loop_timer_set(w.loop, &numbered[i].timer, numbered[i].due_ns);
	}
	numbered[0].also_unset = &numbered[1];
	run_for(2);
	assert_int_equal(numbered[0].fired, 1);
	assert_int_equal(numbered[1].fired, 0);
}

/* What the timer saw is so still: a daemon that is idle at its end got no new work since. */
TEST(timer_that_stops_the_loop_is_the_last_that_fires)
{
	last_due = 0;
	memset(numbered, 0, sizeof(numbered));
	numbered[0].timer.fire = fire_numbered;
	numbered[0].due_ns = loop_now(w.loop);
	loop_timer_set(w.loop, &numbered[0].timer, numbered[0].due_ns);
	loop_timer_set(w.loop, &w.end, numbered[0].due_ns - 1);
	assert_int_equal(loop_run(w.loop), 0);
	assert_int_equal(numbered[0].fired, 0);
	run_for(1); /* it is not lost */
	assert_int_equal(numbered[0].fired, 1);
}

static int again_fired;

static void fire_again(struct loop_timer *timer)
{
	again_fired++;
	loop_timer_set(w.loop, timer, loop_now(w.loop)); /* for ever */
}

TEST(timer_that_sets_itself_starves_nobody)
{
	struct numbered n = { .timer.fire = fire_again };

	again_fired = 0;
	loop_timer_set(w.loop, &n.timer, 0);
	run_for(3);
	assert_true(again_fired > 1);
	loop_timer_unset(w.loop, &n.timer);
}

#define CONFIG(section, key, type, preset, min, max, ...) \
	static const long long most_##section##_##key = (max);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-const-variable"
#include "daemon/config/tbl_config.h"
#pragma GCC diagnostic pop

TEST_DO(no_configuration_needs_more_timers_than_there_are,
	assert_true(CONFIG_MAX_OPS + most_socket_max_clients + config_device_depth() <
		    LOOP_MAX_TIMERS));

/* --- watches --- */

struct pair {
	struct loop_watch a, b;
	int fired;
};

static struct pair p;

static void ready(TEST_UNUSED struct loop_watch *watch, TEST_UNUSED uint32_t events)
{
	p.fired++;
	loop_remove(w.loop, &p.a);
	loop_remove(w.loop, &p.b);
}

/* Both are ready in the same iteration; the first one removes both. */
TEST(watch_may_remove_another_that_is_ready)
{
	p = (struct pair){ .a = { .fd = eventfd(1, EFD_CLOEXEC), .ready = ready },
			   .b = { .fd = eventfd(1, EFD_CLOEXEC), .ready = ready } };
	assert_int_equal(loop_add(w.loop, &p.a, EPOLLIN), 0);
	assert_int_equal(loop_add(w.loop, &p.b, EPOLLIN), 0);
	run_for(2);
	assert_int_equal(p.fired, 1);
	(void)close(p.a.fd);
	(void)close(p.b.fd);
}

TEST(watch_added_twice_is_an_error)
{
	struct loop_watch watch = { .fd = eventfd(0, EFD_CLOEXEC), .ready = ready };

	assert_int_equal(loop_add(w.loop, &watch, EPOLLIN), 0);
	assert_int_equal(loop_add(w.loop, &watch, EPOLLIN), -EEXIST);
	loop_remove(w.loop, &watch);
	assert_int_equal(loop_modify(w.loop, &watch, EPOLLIN), -ENOENT);
	(void)close(watch.fd);
}

/* --- pollers --- */

struct counted {
	struct loop_poller poller;
	struct counted *remove;
	int polled, works;
};

static bool poll_counted(struct loop_poller *poller)
{
	struct counted *c = (struct counted *)(void *)poller;

	c->polled++;
	if (c->remove)
		loop_poller_remove(w.loop, &c->remove->poller);
	return c->works-- > 0;
}

/* Three of them; the middle one removes itself, or its neighbour on either side. */
TEST(poller_may_remove_any)
{
	for (int victim = 0; victim < 3; victim++) {
		struct counted c[3];

		for (int i = 0; i < 3; i++) {
			c[i] = (struct counted){ .poller.poll = poll_counted };
			loop_poller_add(w.loop, &c[i].poller);
		}
		c[1].remove = &c[victim];
		run_for(1);
		assert_true(c[victim].polled <= 1);
		for (int i = 0; i < 3; i++)
			assert_true(i == victim || c[i].polled >= 2);
		for (int i = 0; i < 3; i++)
			loop_poller_remove(w.loop, &c[i].poller);
	}
}

struct sleeper {
	struct counted counted;
	int asleep, awake, polled_asleep, work_found_asleep;
	bool now;
};

static void on_sleep(void *arg, bool asleep)
{
	struct sleeper *s = arg;

	assert_true(asleep != s->now); /* in pairs */
	s->now = asleep;
	s->asleep += asleep;
	s->awake += !asleep;
}

static bool poll_sleeper(struct loop_poller *poller)
{
	struct sleeper *s = (struct sleeper *)(void *)poller;

	s->polled_asleep += s->now;
	/* Work that arrives just as the loop was about to sleep: it saw the flag, so nobody
	 * rings. */
	if (s->now && s->work_found_asleep < 5) {
		s->work_found_asleep++;
		return true;
	}
	return false;
}

TEST(pollers_are_asked_once_more_before_sleeping)
{
	struct sleeper s = { .counted.poller.poll = poll_sleeper };

	loop_poller_add(w.loop, &s.counted.poller);
	loop_on_sleep(w.loop, on_sleep, &s);
	run_for(2);
	assert_int_equal(s.work_found_asleep, 5);
	assert_true(s.polled_asleep > 5);
	assert_int_equal(s.asleep, s.awake);
}

static bool poll_until_tired(struct loop_poller *poller)
{
	const uint64_t until = now_ns() + 10000000000ull;

	while (!loop_tired(w.loop))
		assert_true(now_ns() < until);
	return poll_counted(poller) && now_ns() - loop_now(w.loop) >= LOOP_SLICE_NS;
}

/* This ends when the loop is tired, and the next iteration begins afresh. */
TEST(long_work_tires_an_iteration)
{
	struct counted busy = { .poller.poll = poll_until_tired, .works = INT32_MAX };

	loop_poller_add(w.loop, &busy.poller);
	run_for(2);
	assert_true(busy.polled >= 2);
	assert_int_equal(INT32_MAX - busy.works, busy.polled);
	loop_poller_remove(w.loop, &busy.poller);
}

TEST(busy_poller_starves_nobody)
{
	struct counted busy = { .poller.poll = poll_counted, .works = INT32_MAX };

	p = (struct pair){ .a = { .fd = eventfd(1, EFD_CLOEXEC), .ready = ready },
			   .b = { .fd = eventfd(0, EFD_CLOEXEC), .ready = ready } };
	loop_poller_add(w.loop, &busy.poller);
	assert_int_equal(loop_add(w.loop, &p.a, EPOLLIN), 0);
	run_for(2); /* the timer that ends it is proof enough of timers */
	assert_int_equal(p.fired, 1);
	loop_poller_remove(w.loop, &busy.poller);
	(void)close(p.a.fd);
	(void)close(p.b.fd);
}
