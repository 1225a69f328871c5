/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loop.h - the core thread's event loop: file descriptors (epoll), timers, and pollers
 * (shared-memory rings that have no fd). Everything runs on the thread that called loop_run(). No
 * allocation after open: there is room for LOOP_MAX_TIMERS timers from then on, so that to set one
 * cannot fail.
 *
 *	run: timers due -> pollers (each with a budget) -> epoll, without waiting while a poller had
 *	     work in the last spin_us; else: before_sleep hook, pollers once more, epoll_wait until
 *	     the next timer
 */
#ifndef KVTIER_LOOP_H
#define KVTIER_LOOP_H

#include <stdbool.h>
#include <stdint.h>

struct loop;

/* More than any configuration sets at once: one an op, one a connection, and some tens beside. One
 * more is a bug. A pointer each, touched as used. */
enum { LOOP_MAX_TIMERS = 131072 };

/* Embedded in its owner; lent to the loop from add to remove. */
struct loop_watch {
	int fd;
	void (*ready)(struct loop_watch *watch, uint32_t events); /* EPOLL* bits */
};

struct loop_timer {
	uint64_t due_ns;                        /* CLOCK_MONOTONIC */
	uint32_t position;                      /* in the heap, + 1; 0 = not set */
	void (*fire)(struct loop_timer *timer); /* already unset when called */
};

struct loop_poller {
	struct loop_poller *next, **link;
	bool (*poll)(struct loop_poller *poller); /* true: did some work */
};

int loop_open(uint32_t spin_us, struct loop **ret);
void loop_close(struct loop *loop); /* NULL is fine */
int loop_add(struct loop *loop, struct loop_watch *watch, uint32_t events);
int loop_modify(struct loop *loop, struct loop_watch *watch, uint32_t events);
/* fd still open; safe from any callback */
void loop_remove(struct loop *loop, struct loop_watch *watch);
/* Sets it anew if it is set already. */
void loop_timer_set(struct loop *loop, struct loop_timer *timer, uint64_t due_ns);
void loop_timer_unset(struct loop *loop, struct loop_timer *timer); /* not set: fine */
void loop_poller_add(struct loop *loop, struct loop_poller *poller);
/* safe from its own poll() */
void loop_poller_remove(struct loop *loop, struct loop_poller *poller);
/* Called with true right before the loop may sleep (pollers are asked once more after it), false
 * after. */
void loop_on_sleep(struct loop *loop, void (*fn)(void *arg, bool asleep), void *arg);
uint64_t loop_now(const struct loop *loop); /* CLOCK_MONOTONIC ns, as of this turn */
uint64_t loop_clock(void);                  /* likewise, as of this moment: some 25 ns */
int loop_run(struct loop *loop);            /* until loop_stop(); 0 or -errno */
void loop_stop(struct loop *loop);
void loop_assert_core(const struct loop *loop); /* the caller is the loop's thread */

#endif
