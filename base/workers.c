/* SPDX-License-Identifier: Apache-2.0 */
/*
 * workers.c - see workers.h.
 *
 *	a thread:  runs work --queue empty--> idle, in its seat --called--> looks into the queue
 *	               ^                                                        |
 *	               `---------------------------- work ----------------------'
 *
 * Invariants
 *   W1 while work is in the queue a thread is on its way to it, unless all `threads` of the pool
 *      are busy, or no further thread could be made. A thread that took work and left some calls
 *      the next thread, so the owner makes one call for any number of pieces.
 *   W2 an ending thread joins the thread that ended before it, and workers_close() joins the last:
 *      no thread outlives the pool, and no list of threads is needed.
 *
 * The owner thread alone uses `lent` and `taken`. The lock guards the rest. A holder of the lock
 * takes no other lock but the mailbox's.
 *
 * Each thread sleeps on a semaphore of its own, because calling it must not block the owner.
 * glibc's pthread_cond_signal() does: now and then it waits until the threads that it woke before
 * have run, which takes milliseconds where they wait for a CPU (nptl/pthread_cond_common.c,
 * __condvar_quiesce_and_switch_g1).
 */
#include "workers.h"

#include <assert.h>
#include <errno.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/resource.h>

#include "clock.h"
#include "list.h"
#include "loop.h"
#include "thread.h"

enum {
	HELPERS_IDLE = 2,                /* so many idle threads stay */
	HELPERS_STACK_BYTES = 256 << 10, /* address space; a few pages are touched */
	/* A third of the share of core and workers, where they want the same CPU: to unmap a dead
	 * client's memory takes tens of milliseconds, and others' ops do not wait for it. With a
	 * higher nice value, openings and stops would wait for seconds where other programs have
	 * all CPUs. */
	HELPERS_NICER = 5,
};

/* Where a thread sleeps; on its stack. */
struct seat {
	struct seat *next;
	sem_t called;
};

struct workers {
	struct workers_conf conf;
	int nice; /* of threads that are nicer than their owner */
	struct loop_watch watch;
	/* finds ended work without the kernel, while the loop spins */
	struct loop_poller poller;
	struct mailbox ended;
	struct mails taken; /* out of it, for reap to go through */
	uint32_t lent;
	/* the first ended that the owner was not told of; 0: no such job. Atomic */
	uint64_t unsaid_since;

	pthread_mutex_t lock;
	pthread_cond_t fewer; /* a thread has ended */
	struct mails queue;   /* if the pool has no order of its own */
	struct seat *idle;    /* the latest to sit down comes first: its caches are warm */
	uint32_t n_queued, n_threads, n_idle, n_started;
	bool stopping;
	bool any_ended;       /* a thread has ended, */
	pthread_t last_ended; /* and the last one waits to be joined */
};

static struct work *work_of(struct mail *mail)
{
	return container_of(mail, struct work, mail);
}

/* --- the queue: with the lock held --- */

static void queue_put(struct workers *w, struct work *work, bool again)
{
	const struct workers_order *order = w->conf.order;

	w->n_queued++;
	if (!order)
		mails_append(&w->queue, &work->mail);
	else
		(again ? order->put_back : order->put)(w->conf.order_arg, work);
}

static struct work *queue_take(struct workers *w)
{
	if (w->n_queued == 0)
		return NULL;
	w->n_queued--;
	return w->conf.order ? w->conf.order->take(w->conf.order_arg) :
			       work_of(mails_take(&w->queue));
}

static bool queue_has_more(struct workers *w, const struct work *ended)
{
	return w->conf.order && w->conf.order->more &&
	       w->conf.order->more(w->conf.order_arg, ended);
}

/* --- workers --- */

static void tell(struct workers *w)
{
	__atomic_store_n(&w->unsaid_since, 0, __ATOMIC_RELAXED);
	mailbox_tell(&w->ended);
}

void workers_tell(struct workers *w, uint64_t now_ns)
{
	const uint64_t since = __atomic_load_n(&w->unsaid_since, __ATOMIC_RELAXED);

	if (since != 0 && now_ns >= since + w->conf.late_ns)
		tell(w);
}

/* With the lock held, which it releases to wake the owner. */
static void finish(struct workers *w, struct work *work)
{
	const bool more = queue_has_more(w, work);
	struct mails one;
	uint32_t untold;

	mails_clear(&one);
	mails_append(&one, &work->mail);
	untold = mailbox_put(&w->ended, &one);
	if (untold > 0 && (!more || untold >= w->conf.wake_batch)) {
		(void)pthread_mutex_unlock(&w->lock);
		tell(w);
		(void)pthread_mutex_lock(&w->lock);
	} else if (untold == 1) {
		__atomic_store_n(&w->unsaid_since, clock_ns(), __ATOMIC_RELAXED);
	}
}

/* Sleeps until it is called. With the lock held, which it releases meanwhile. */
static void sit(struct workers *w, struct seat *seat)
{
	seat->next = w->idle;
	w->idle = seat;
	w->n_idle++;
	(void)pthread_mutex_unlock(&w->lock);
	while (sem_wait(&seat->called))
		assert(errno == EINTR);
	(void)pthread_mutex_lock(&w->lock);
}

/* Takes an idle thread, to be called once the lock is free; NULL: all are busy. Lock held. */
static struct seat *rouse(struct workers *w)
{
	struct seat *seat = w->idle;

	if (!seat)
		return NULL;
	w->idle = seat->next;
	w->n_idle--;
	return seat;
}

static int add_thread(struct workers *w);

/* Where work is in the queue, finds a thread for it: an idle one, which is returned as by rouse(),
 * or a new one. Lock held. */
static struct seat *find_thread(struct workers *w)
{
	struct seat *seat = w->n_queued > 0 ? rouse(w) : NULL;

	if (w->n_queued > 0 && !seat && w->n_threads < w->conf.threads)
		(void)add_thread(w);
	return seat;
}

/* Without the lock. */
static void call(struct seat *seat)
{
	if (seat)
		(void)sem_post(&seat->called);
}

/* Waits for the next work of the queue; NULL: the thread ends. With the lock held. */
static struct work *next(struct workers *w, struct seat *seat)
{
	struct work *work;

	while (!(work = queue_take(w)) && !w->stopping && w->n_idle < w->conf.keep)
		sit(w, seat);
	return work;
}

/* With the lock held, which it releases. */
static void end_thread(struct workers *w)
{
	const bool any = w->any_ended;
	const pthread_t before = w->last_ended;

	w->any_ended = true;
	w->last_ended = pthread_self();
	w->n_threads--;
	(void)pthread_cond_signal(&w->fewer);
	(void)pthread_mutex_unlock(&w->lock);
	if (any)
		(void)pthread_join(before, NULL);
}

static void *work_on(void *arg)
{
	struct workers *w = arg;
	struct seat seat;
	struct work *work;
	uint32_t number;

	(void)sem_init(&seat.called, 0, 0);
	if (w->conf.nicer)
		(void)setpriority(PRIO_PROCESS, 0, w->nice);
	(void)pthread_mutex_lock(&w->lock);
	number = w->n_started++;
	while ((work = next(w, &seat)) != NULL) {
		struct seat *other = find_thread(w);
		enum work_end end;

		(void)pthread_mutex_unlock(&w->lock);
		call(other);
		end = work->run(work, number);
		(void)pthread_mutex_lock(&w->lock);
		if (end == WORK_ENDED)
			finish(w, work);
		else
			queue_put(w, work, true);
	}
	(void)sem_destroy(&seat.called);
	end_thread(w);
	return NULL;
}

/* With the lock held. */
static int add_thread(struct workers *w)
{
	pthread_t thread;
	const int r = thread_start(&thread, w->conf.stack_bytes, work_on, w);

	w->n_threads += r == 0;
	return r;
}

/* --- the owner --- */

void workers_submit_all(struct workers *w, struct mails *all)
{
	struct seat *seat;
	struct mail *mail;

	if (w->conf.loop)
		loop_assert_core(w->conf.loop);
	w->lent += all->n;
	(void)pthread_mutex_lock(&w->lock);
	while ((mail = mails_take(all)) != NULL)
		queue_put(w, work_of(mail), false);
	seat = find_thread(w);
	(void)pthread_mutex_unlock(&w->lock);
	call(seat);
}

void workers_submit(struct workers *w, struct work *work)
{
	struct mails one;

	mails_clear(&one);
	mails_append(&one, &work->mail);
	workers_submit_all(w, &one);
}

uint32_t workers_lent(const struct workers *w)
{
	return w->lent;
}

uint32_t workers_reap(struct workers *w, uint32_t most)
{
	uint32_t n = 0;

	mailbox_take(&w->ended, &w->taken);
	for (; n < most && w->taken.n > 0; n++) {
		struct work *work = work_of(mails_take(&w->taken));

		w->lent--;
		work->done(work);
	}
	return n;
}

int workers_fd(const struct workers *w)
{
	return w->ended.fd;
}

void workers_hear(struct workers *w)
{
	mailbox_hear(&w->ended);
}

static void on_ended(struct loop_watch *watch, uint32_t events)
{
	struct workers *w = container_of(watch, struct workers, watch);

	(void)events;
	workers_hear(w);
	(void)workers_reap(w, UINT32_MAX);
}

static bool on_poll(struct loop_poller *poller)
{
	struct workers *w = container_of(poller, struct workers, poller);

	return w->lent > 0 && workers_reap(w, UINT32_MAX) > 0;
}

static int start(struct workers *w)
{
	const uint32_t n = w->conf.keep < w->conf.threads ? 1 : w->conf.threads;
	int r = 0;

	if (w->conf.loop) {
		w->watch = (struct loop_watch){ .fd = w->ended.fd, .ready = on_ended };
		w->poller.poll = on_poll;
		r = loop_add(w->conf.loop, &w->watch, EPOLLIN);
		if (r) {
			w->conf.loop = NULL;
			return r;
		}
		loop_poller_add(w->conf.loop, &w->poller);
	}
	(void)pthread_mutex_lock(&w->lock);
	while (r == 0 && w->n_threads < n)
		r = add_thread(w);
	(void)pthread_mutex_unlock(&w->lock);
	return r;
}

int workers_open(const struct workers_conf *conf, struct workers **ret)
{
	struct workers *w = calloc(1, sizeof(*w));
	int r;

	assert(conf->threads > 0);
	if (!w)
		return -ENOMEM;
	w->conf = *conf;
	w->nice = getpriority(PRIO_PROCESS, 0) + conf->nicer;
	mails_clear(&w->taken);
	mails_clear(&w->queue);
	r = mailbox_open(&w->ended);
	if (r) {
		free(w);
		return r;
	}
	(void)pthread_mutex_init(&w->lock, NULL);
	(void)pthread_cond_init(&w->fewer, NULL);
	r = start(w);
	if (r)
		workers_close(w);
	else
		*ret = w;
	return r;
}

int workers_open_helpers(struct loop *loop, uint32_t max_threads, struct workers **ret)
{
	const struct workers_conf conf = {
		.loop = loop,
		.threads = max_threads,
		.keep = HELPERS_IDLE,
		.stack_bytes = HELPERS_STACK_BYTES,
		.nicer = HELPERS_NICER,
	};

	return workers_open(&conf, ret);
}

void workers_close(struct workers *w)
{
	struct seat *seat;

	if (!w)
		return;
	(void)pthread_mutex_lock(&w->lock);
	w->stopping = true;
	while ((seat = rouse(w)) != NULL)
		(void)sem_post(&seat->called);
	while (w->n_threads > 0)
		(void)pthread_cond_wait(&w->fewer, &w->lock);
	(void)pthread_mutex_unlock(&w->lock);
	if (w->any_ended)
		(void)pthread_join(w->last_ended, NULL);
	if (w->conf.loop) {
		loop_poller_remove(w->conf.loop, &w->poller);
		loop_remove(w->conf.loop, &w->watch);
	}
	mailbox_close(&w->ended);
	(void)pthread_cond_destroy(&w->fewer);
	(void)pthread_mutex_destroy(&w->lock);
	free(w);
}
