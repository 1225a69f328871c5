/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loop.c - the core thread's event loop.
 *
 * Invariants
 *   L1 a callback may remove any watch, timer or poller, its own included: events already fetched
 *      for a removed watch are blanked, and the poller cursor steps over a removed one.
 *   L2 the loop sleeps only after `on_sleep(true)` was followed by one more round of pollers that
 *      found no work; a client that fills a ring after that sees the flag and rings the doorbell.
 *   L3 a timer that stops the loop is the last one that fires: what it saw is not changed by
 *      another.
 *   L4 a busy poller starves no other: timers are looked at every iteration, epoll at least every
 *      EPOLL_NS.
 */
#include "loop.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "clock.h"
#include "histogram.h"
#include "vault.h"

enum {
	MAX_EVENTS = 64,
	SPIN_ROUNDS = 64, /* poller rounds between looks at the clock while spinning */
	/* while there is other work, ask the kernel this often: it costs 0.3-1 us */
	EPOLL_NS = 20000,
};

struct loop {
	struct histogram *iterations; /* NULL: not counted */
	int epoll_fd;
	uint64_t now_ns;
	uint64_t spin_ns;
	pthread_t thread;
	bool running;
	void (*on_sleep)(void *arg, bool asleep);
	void *on_sleep_arg;
	struct loop_poller *pollers, *next_poller;
	int n_events, at_event;
	struct epoll_event events[MAX_EVENTS];
	uint32_t n_timers;
	struct loop_timer *timers[LOOP_MAX_TIMERS]; /* binary heap by due_ns */
};

int loop_open(uint32_t spin_us, struct loop **ret)
{
	struct loop *l = calloc(1, sizeof(*l));

	if (!l)
		return -ENOMEM;
	l->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (l->epoll_fd < 0) {
		const int error = -errno;

		free(l);
		return error;
	}
	l->spin_ns = (uint64_t)spin_us * 1000;
	l->thread = pthread_self();
	l->now_ns = clock_ns();
	*ret = l;
	return 0;
}

void loop_close(struct loop *l)
{
	if (!l)
		return;
	(void)close(l->epoll_fd);
	free(l);
}

void loop_assert_core(const struct loop *l)
{
	assert(pthread_equal(l->thread, pthread_self()));
}

uint64_t loop_now(const struct loop *l)
{
	return l->now_ns;
}

/* --- watches --- */

int loop_add(struct loop *l, struct loop_watch *watch, uint32_t events)
{
	struct epoll_event e = { .events = events, .data.ptr = watch };

	return epoll_ctl(l->epoll_fd, EPOLL_CTL_ADD, watch->fd, &e) ? -errno : 0;
}

int loop_modify(struct loop *l, struct loop_watch *watch, uint32_t events)
{
	struct epoll_event e = { .events = events, .data.ptr = watch };

	return epoll_ctl(l->epoll_fd, EPOLL_CTL_MOD, watch->fd, &e) ? -errno : 0;
}

void loop_remove(struct loop *l, struct loop_watch *watch)
{
	(void)epoll_ctl(l->epoll_fd, EPOLL_CTL_DEL, watch->fd, NULL);
	for (int i = l->at_event; i < l->n_events; i++)
		if (l->events[i].data.ptr == watch)
			l->events[i].data.ptr = NULL;
}

/* --- timers: a binary heap, each timer knowing its position --- */

static void heap_put(struct loop *l, uint32_t at, struct loop_timer *timer)
{
	l->timers[at] = timer;
	timer->position = at + 1;
}

static void heap_up(struct loop *l, uint32_t at, struct loop_timer *timer)
{
	while (at > 0 && l->timers[(at - 1) / 2]->due_ns > timer->due_ns) {
		heap_put(l, at, l->timers[(at - 1) / 2]);
		at = (at - 1) / 2;
	}
	heap_put(l, at, timer);
}

static void heap_down(struct loop *l, uint32_t at, struct loop_timer *timer)
{
	for (;;) {
		uint32_t child = 2 * at + 1;

		if (child >= l->n_timers)
			break;
		if (child + 1 < l->n_timers &&
		    l->timers[child + 1]->due_ns < l->timers[child]->due_ns)
			child++;
		if (l->timers[child]->due_ns >= timer->due_ns)
			break;
		heap_put(l, at, l->timers[child]);
		at = child;
	}
	heap_put(l, at, timer);
}

void loop_timer_set(struct loop *l, struct loop_timer *timer, uint64_t due_ns)
{
	loop_timer_unset(l, timer);
	assert(l->n_timers < LOOP_MAX_TIMERS);
	timer->due_ns = due_ns;
	heap_up(l, l->n_timers++, timer);
}

void loop_timer_unset(struct loop *l, struct loop_timer *timer)
{
	struct loop_timer *last;
	uint32_t at;

	if (timer->position == 0)
		return;
	at = timer->position - 1;
	timer->position = 0;
	last = l->timers[--l->n_timers];
	if (last == timer)
		return;
	if (at > 0 && l->timers[(at - 1) / 2]->due_ns > last->due_ns)
		heap_up(l, at, last);
	else
		heap_down(l, at, last);
}

static bool fire_due(struct loop *l)
{
	bool fired = false;

	/* A timer set for "now" by a firing one waits for the next iteration, so this ends. */
	for (uint32_t n = l->n_timers;
	     n > 0 && l->running && l->n_timers > 0 && l->timers[0]->due_ns <= l->now_ns; n--) {
		struct loop_timer *timer = l->timers[0];

		loop_timer_unset(l, timer);
		timer->fire(timer);
		fired = true;
	}
	return fired;
}

/* --- pollers --- */

void loop_poller_add(struct loop *l, struct loop_poller *poller)
{
	poller->next = l->pollers;
	poller->link = &l->pollers;
	if (poller->next)
		poller->next->link = &poller->next;
	l->pollers = poller;
}

void loop_poller_remove(struct loop *l, struct loop_poller *poller)
{
	if (!poller->link)
		return;
	if (l->next_poller == poller)
		l->next_poller = poller->next;
	*poller->link = poller->next;
	if (poller->next)
		poller->next->link = poller->link;
	poller->link = NULL;
}

static bool poll_all(struct loop *l)
{
	bool worked = false;

	for (struct loop_poller *p = l->pollers; p; p = l->next_poller) {
		l->next_poller = p->next;
		worked |= p->poll(p);
	}
	l->next_poller = NULL;
	return worked;
}

void loop_on_sleep(struct loop *l, void (*fn)(void *arg, bool asleep), void *arg)
{
	l->on_sleep = fn;
	l->on_sleep_arg = arg;
}

void loop_count_iterations(struct loop *l, struct histogram *times)
{
	l->iterations = times;
}

/* --- the iteration --- */

static void count_iteration(struct loop *l, uint64_t began_ns, uint64_t now_ns)
{
	if (l->iterations)
		histogram_add(l->iterations, now_ns - began_ns);
}

static int timeout_ms(const struct loop *l)
{
	uint64_t ms;

	if (l->n_timers == 0)
		return -1;
	if (l->timers[0]->due_ns <= l->now_ns)
		return 0;
	ms = (l->timers[0]->due_ns - l->now_ns + 999999) / 1000000;
	return ms > 60000 ? 60000 : (int)ms;
}

static int wait_and_dispatch(struct loop *l, int timeout)
{
	int n;

	if (timeout != 0)
		registers_forget(); /* OpenSSL's and other code's copies: TLS, AUTH */
	n = epoll_wait(l->epoll_fd, l->events, MAX_EVENTS, timeout);

	if (n < 0 && errno != EINTR)
		return -errno;
	l->now_ns = clock_ns();
	l->n_events = n > 0 ? n : 0;
	for (int i = 0; i < l->n_events; i++) {
		struct loop_watch *watch = l->events[i].data.ptr;

		l->at_event = i + 1;
		if (watch)
			watch->ready(watch, l->events[i].events);
	}
	l->n_events = l->at_event = 0;
	return n > 0 ? 1 : 0;
}

/* Polls for a while without the kernel. True: something was done. */
static bool spin(struct loop *l)
{
	for (int i = 0; i < SPIN_ROUNDS; i++) {
		if (poll_all(l))
			return true;
		cpu_relax();
	}
	return false;
}

bool loop_tired(const struct loop *l)
{
	return clock_ns() - l->now_ns >= LOOP_SLICE_NS;
}

int loop_run(struct loop *l)
{
	uint64_t last_work_ns = 0, last_epoll_ns = 0, began_ns = 0;
	bool busy = false; /* in the iteration that began at began_ns */

	l->running = true;
	while (l->running) {
		bool worked, may_sleep;
		int r, timeout;

		l->now_ns = clock_ns();
		if (busy)
			count_iteration(l, began_ns, l->now_ns);
		began_ns = l->now_ns;
		busy = fire_due(l);
		worked = l->now_ns - last_work_ns < l->spin_ns ? spin(l) : poll_all(l);
		if (worked)
			last_work_ns = l->now_ns;
		timeout = timeout_ms(l);
		may_sleep = !worked && l->running && timeout != 0 &&
			    l->now_ns - last_work_ns >= l->spin_ns;
		if (may_sleep && l->on_sleep) {
			l->on_sleep(l->on_sleep_arg, true);
			if (poll_all(l)) {
				l->on_sleep(l->on_sleep_arg, false);
				last_work_ns = l->now_ns;
				may_sleep = false;
			} else {
				/* pollers may have set a timer */
				timeout = l->running ? timeout_ms(l) : 0;
			}
		}
		busy |= !may_sleep && last_work_ns == began_ns;
		if (!may_sleep && l->now_ns - last_epoll_ns < EPOLL_NS)
			continue;
		if (may_sleep && busy) /* timers */
			count_iteration(l, began_ns, clock_ns());
		r = wait_and_dispatch(l, may_sleep ? timeout : 0);
		last_epoll_ns = l->now_ns;
		if (may_sleep) {
			began_ns = l->now_ns;
			busy = false;
		}
		busy |= r > 0;
		if (may_sleep && l->on_sleep)
			l->on_sleep(l->on_sleep_arg, false);
		if (r < 0)
			return r;
		if (r > 0)
			last_work_ns = l->now_ns;
	}
	return 0;
}

void loop_stop(struct loop *l)
{
	l->running = false;
}
