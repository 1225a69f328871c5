/* SPDX-License-Identifier: Apache-2.0 */
/*
 * workers.h - threads that do work for one owner thread and give it back.
 *
 *	owner: workers_submit --queue--> a worker: run() --mailbox--> owner: done()
 *	                          ^--- WORK_AGAIN ---'
 *
 * A struct work is embedded in its owner. It is lent from workers_submit() until done() begins.
 * done() runs on the owner thread, exactly once, from the loop or from workers_reap(), and never
 * inside workers_submit(). A pool allocates memory only when it is opened, so submitting cannot
 * fail.
 *
 * The owner thread handles signals: workers have all blocked but SIGBUS, which device/guard.h
 * needs.
 *
 * A pool has a fixed number of threads, or it grows: a thread is made when work waits and no thread
 * is idle, and a thread ends when more than `keep` are idle. If no thread can be made, work waits
 * for one that exists.
 *
 * Two kinds of threads are not of a pool: the Redis tier's, which runs a loop of its own and takes
 * jobs from a mailbox (mailbox.h), and threads that may have to be left behind (nvme_file.c,
 * redis_address.c), since workers_close() waits for all threads of the pool.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "mailbox.h"

struct loop;
struct workers;

enum work_end { WORK_ENDED, WORK_AGAIN /* back into the queue */ };

struct work {
	struct mail mail; /* the pool's */
	/* Runs on a worker. `thread` is its number, from 0; below `threads` in a pool of fixed
	 * size. */
	enum work_end (*run)(struct work *work, uint32_t thread);
	void (*done)(struct work *work); /* on the owner thread; may submit it again */
};

/* A queue in another order than first come, first served. All is called with the pool's lock
 * held. */
struct workers_order {
	void (*put)(void *arg, struct work *work);
	void (*put_back)(void *arg, struct work *work); /* WORK_AGAIN */
	struct work *(*take)(void *arg);                /* NULL: no such call */
	/* more work like `ended`, which runs no more, is in the queue or runs */
	bool (*more)(void *arg, const struct work *ended);
};

struct workers_conf {
	/* done() runs from it. NULL: workers_reap() is called by the owner */
	struct loop *loop;
	uint32_t threads; /* at most */
	/* so many idle threads stay; if >= threads, all are made at open and stay */
	uint32_t keep;
	size_t stack_bytes; /* 0: the default */
	/* While `order` has more, the owner is told of ended work when so many have ended, or when
	 * workers_tell() finds that a piece of work ended late_ns ago. 0: it is told at once. */
	uint32_t wake_batch;
	uint64_t late_ns;
	int nicer; /* than the owner, by so much: they get less of a CPU that both want */
	const struct workers_order *order; /* NULL: first come, first served */
	void *order_arg;
};

/* 0 or -errno. */
int workers_open(const struct workers_conf *conf, struct workers **ret);
/*
 * Opens a pool of helpers, for calls that may block for as long as a client likes: receiving or
 * closing a descriptor that came from outside (a TCP socket lingers, a FUSE or NFS file asks its
 * server), and unmapping gigabytes. Work that blocks holds up one thread, and no other work as long
 * as fewer than max_threads pieces block.
 */
int workers_open_helpers(struct loop *loop, uint32_t max_threads, struct workers **ret);
/* Runs the work that was submitted before it returns, without calling done(). workers may be
 * NULL. */
void workers_close(struct workers *workers);

/* The owner bounds the work that it lends; the pool does not. */
void workers_submit(struct workers *workers, struct work *work);
/* The same for each work.mail of a list, which is empty then: one thread is woken, and wakes the
 * next one. */
void workers_submit_all(struct workers *workers, struct mails *all);
uint32_t workers_lent(const struct workers *workers);

/* Calls done() for work that has ended, for `most` pieces at most. Returns how many there were. It
 * takes no lock and makes no system call when no work has ended. */
uint32_t workers_reap(struct workers *workers, uint32_t most);
/* The descriptor is readable when work may have ended, until the owner calls workers_hear(), which
 * it does before workers_reap(). */
int workers_fd(const struct workers *workers);
void workers_hear(struct workers *workers);

/* run() calls this now and then: it tells the owner of work that ended late_ns ago. now_ns is
 * CLOCK_MONOTONIC. */
void workers_tell(struct workers *workers, uint64_t now_ns);
