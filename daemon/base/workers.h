/* SPDX-License-Identifier: Apache-2.0 */
/*
 * workers.h - threads that do work for one owner thread and give it back.
 *
 *	owner: workers_submit --queue--> a worker: run() --mailbox--> owner: done()
 *	                          ^--- WORK_AGAIN ---'
 *
 * Work is embedded in its owner and lent from workers_submit() until `done` begins, which runs on
 * the owner thread, exactly once, from the loop or from workers_reap(), never inside
 * workers_submit(). Nothing is allocated after open, and submitting cannot fail for want of memory.
 *
 * Signals are the owner's: workers have all blocked but SIGBUS, which device/guard.h needs.
 *
 * A pool has a fixed number of threads, or grows: a thread is made when work waits and none is
 * idle, and ends when more than `keep` are idle. Where no thread can be made, work waits for a
 * thread that is there.
 *
 * Not used by the Redis tier's thread, which runs a loop of its own and takes from a mailbox
 * (mailbox.h); nor by threads that may have to be left behind (nvme_opening.c, redis_lookup.c):
 * workers_close() waits for all of them.
 */
#ifndef KVTIER_WORKERS_H
#define KVTIER_WORKERS_H

#include <stdbool.h>
#include <stddef.h>

#include "mailbox.h"

struct loop;
struct workers;

enum work_end { WORK_ENDED, WORK_AGAIN /* back into the queue */ };

struct work {
	struct mail mail; /* the pool's */
	/* On a worker; `thread` is its number, from 0: below `threads` in a pool of fixed size. */
	enum work_end (*run)(struct work *work, uint32_t thread);
	void (*done)(struct work *work); /* on the owner thread; may submit it again */
};

/* A queue in another order than first come, first served. All is called with the pool's lock
 * held. */
struct workers_order {
	void (*put)(void *arg, struct work *work);
	void (*put_back)(void *arg, struct work *work); /* WORK_AGAIN */
	struct work *(*take)(void *arg);                /* NULL: there is none */
	/* more work like `ended` is in the queue */
	bool (*more)(void *arg, const struct work *ended);
};

struct workers_conf {
	/* done() runs from it. NULL: workers_reap() is called by the owner */
	struct loop *loop;
	uint32_t threads; /* at most */
	/* so many idle ones stay; >= threads: all are made at open, and stay */
	uint32_t keep;
	size_t stack_bytes; /* 0: the default */
	uint32_t depth;     /* work lent at most; 0: the owner has a bound of its own */
	/* While `order` has more, the owner is told of ended work when so many have ended, or when
	 * workers_tell() finds that a piece of work ended late_ns ago. 0: it is told at once. */
	uint32_t wake_batch;
	uint64_t late_ns;
	/* threads ask for short slices of their CPU, and offer it when one is over (cpu.h) */
	bool slices;
	int nicer; /* than the owner, by so much: they get less of a CPU that both want */
	/* each thread stays on a CPU of its own; with `slices` others claim it for the thread */
	bool apart;
	const struct workers_order *order; /* NULL: first come, first served */
	void *order_arg;
};

/* 0 or -errno. */
int workers_open(const struct workers_conf *conf, struct workers **ret);
/* Submitted work is run before it returns; done() is not called any more. NULL is fine. */
void workers_close(struct workers *workers);

/* 0, or -EAGAIN: `depth` of them are lent */
int workers_submit(struct workers *workers, struct work *work);
/* All of a list of struct work, by their `mail`, with one lock; `depth` must be 0. */
void workers_submit_all(struct workers *workers, struct mails *mails);
uint32_t workers_lent(const struct workers *workers);

/* done() of work that has ended, of `most` pieces at most. Returns how many. No lock and no system
 * call where there is none. */
uint32_t workers_reap(struct workers *workers, uint32_t most);
/* Readable when there may be something to reap, until the owner hears of it: workers_hear(), before
 * workers_reap(). */
int workers_fd(const struct workers *workers);
void workers_hear(struct workers *workers);

/* On a worker, inside run(), whose `thread` this is: it is at work. now_ns is CLOCK_MONOTONIC. The
 * owner is told of work that ended late_ns ago, and CPUs are claimed for other workers. */
void workers_tell(struct workers *workers, uint32_t thread, uint64_t now_ns);

#endif
