/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loop.h - the core thread's event loop. It serves file descriptors (by epoll), timers, and pollers
 * (for rings in shared memory, which have no descriptor). All callbacks run on the thread that
 * called loop_run(). The loop allocates memory only when it is opened, with room for
 * LOOP_MAX_TIMERS timers, so setting a timer cannot fail.
 *
 *	run: timers due -> pollers (each with a budget) -> epoll, without waiting while a poller had
 *	     work in the last spin_us; else: before_sleep hook, pollers once more, epoll_wait until
 *	     the next timer
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct loop;

/* More timers than any configuration sets at once: one for each op, one for each connection, and
 * some tens besides. A timer beyond this is a bug. Each takes a pointer, in memory that is touched
 * as it is used. */
enum { LOOP_MAX_TIMERS = 131072 };

enum { LOOP_SLICE_NS = 100000 };

/* Embedded in its owner, and lent to the loop from loop_add() to loop_remove(). */
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

struct histogram;
int loop_open(uint32_t spin_us, struct loop **ret);
void loop_close(struct loop *loop); /* may be NULL */
int loop_add(struct loop *loop, struct loop_watch *watch, uint32_t events);
int loop_modify(struct loop *loop, struct loop_watch *watch, uint32_t events);
/* The fd is still open. Any callback may call this. */
void loop_remove(struct loop *loop, struct loop_watch *watch);
/* A timer that is set already is set anew. */
void loop_timer_set(struct loop *loop, struct loop_timer *timer, uint64_t due_ns);
void loop_timer_unset(struct loop *loop, struct loop_timer *timer); /* also one that is not set */
void loop_poller_add(struct loop *loop, struct loop_poller *poller);
/* The poller's own poll() may call this. */
void loop_poller_remove(struct loop *loop, struct loop_poller *poller);
/* fn is called with true right before the loop may sleep, and with false afterwards. After the call
 * with true all pollers are asked once more. */
void loop_on_sleep(struct loop *loop, void (*fn)(void *arg, bool asleep), void *arg);
/* From now on each iteration that has work counts its ns: from the moment when the loop woke or
 * looked, until it looks or sleeps again. times stays the caller's. */
void loop_count_iterations(struct loop *loop, struct histogram *times);
uint64_t loop_now(const struct loop *loop); /* CLOCK_MONOTONIC ns, as of this iteration */
/* The iteration lasts for LOOP_SLICE_NS already: long work, which looks at this every few
 * microseconds and does at least one step in each iteration, goes on in the next iteration. So all
 * long work shares one slice, and short work waits for one slice at most. */
bool loop_tired(const struct loop *loop);
int loop_run(struct loop *loop); /* until loop_stop(); 0 or -errno */
/* No other timer fires; pollers and watches do so once more. */
void loop_stop(struct loop *loop);
void loop_assert_core(const struct loop *loop); /* the caller is the loop's thread */
