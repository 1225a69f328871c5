/* SPDX-License-Identifier: Apache-2.0 */
/*
 * workers.c - see workers.h.
 *
 *	a thread:  runs work --queue empty--> idle, in its seat --called--> looks into the queue
 *	               ^                                                        |
 *	               `---------------------------- work ----------------------'
 *
 * Invariants
 *   W1 work in the queue has a thread that is on its way, or there are `threads` of them, or none
 *      could be made.
 *   W2 an ending thread joins the thread that ended before it, and workers_close() joins the last:
 *      no thread outlives the pool, and none has to be remembered.
 *
 * Where each thread stays on a CPU of its own, it may wait there behind a thread that the kernel
 * takes the CPU from at its tick only. So the owner and the workers that have a CPU claim the CPU
 * for the waiting thread (cpu.h). `present` says which threads have work and were not seen to do
 * it.
 *
 * The owner thread's: lent, taken. `present` is atomic. The lock guards the rest. Take no locks
 * while holding it but the mailbox's.
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
#include <time.h>
#include <unistd.h>

#include "container_of.h"
#include "cpu.h"
#include "loop.h"
#include "thread.h"

enum {
	CLAIMED_MAX = 8,   /* threads that others claim a CPU for */
	CLAIM_NS = 200000, /* not seen for so long: two slices */
};

/* Of a thread that stays on a CPU. Atomic. */
struct presence {
	pid_t thread; /* 0: there is none */
	/* when it was called, was at work, or its CPU was claimed for it; 0: it sleeps */
	uint64_t seen_ns;
	uint32_t claims;
};

/* Where a thread sleeps, and its slice of its CPU; on its stack. */
struct seat {
	struct seat *next;
	sem_t called;
	struct cpu_slice slice;
	struct presence *presence; /* one of the pool's; NULL: it stays on no CPU */
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
	/* the first ended that the owner was not told of; 0: none. Atomic */
	uint64_t unsaid_since;

	pthread_mutex_t lock;
	pthread_cond_t fewer; /* threads */
	struct mails queue;   /* where there is no order */
	struct seat *idle;    /* the latest to sit down comes first: its caches are warm */
	uint32_t n_queued, n_threads, n_idle, n_started;
	bool stopping;
	struct presence present[CLAIMED_MAX]; /* by number */
	bool any_ended;                       /* a thread has; then: */
	pthread_t last_ended;                 /* it waits to be joined */
};

static struct work *work_of(struct mail *mail)
{
	return container_of(mail, struct work, mail);
}

/* --- the queue: with the lock held --- */

static void queue_put(struct workers *w, struct work *work)
{
	w->n_queued++;
	if (w->conf.order)
		w->conf.order->put(w->conf.order_arg, work);
	else
		mails_append(&w->queue, &work->mail);
}

static void queue_put_back(struct workers *w, struct work *work)
{
	w->n_queued++;
	if (w->conf.order)
		w->conf.order->put_back(w->conf.order_arg, work);
	else
		mails_append(&w->queue, &work->mail);
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

static uint64_t clock_ns(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void tell(struct workers *w)
{
	__atomic_store_n(&w->unsaid_since, 0, __ATOMIC_RELAXED);
	mailbox_tell(&w->ended);
}

static void seen(struct presence *presence, uint64_t now_ns)
{
	if (presence)
		__atomic_store_n(&presence->seen_ns, now_ns, __ATOMIC_RELAXED);
}

/* For a thread that has something to do and was not seen for a while. The first thread that notes
 * this makes the claim. */
static void claim_cpu(struct presence *p, uint64_t now_ns)
{
	const pid_t thread = __atomic_load_n(&p->thread, __ATOMIC_RELAXED);
	uint64_t since = __atomic_load_n(&p->seen_ns, __ATOMIC_RELAXED);

	if (thread == 0 || since == 0 || now_ns < since + CLAIM_NS)
		return;
	if (__atomic_compare_exchange_n(&p->seen_ns, &since, now_ns, false, __ATOMIC_RELAXED,
					__ATOMIC_RELAXED))
		(void)cpu_slice_claim(thread, __atomic_add_fetch(&p->claims, 1, __ATOMIC_RELAXED));
}

static void claim_cpus(struct workers *w, uint64_t now_ns)
{
	for (uint32_t i = 0; i < CLAIMED_MAX && w->conf.apart; i++)
		claim_cpu(&w->present[i], now_ns);
}

void workers_tell(struct workers *w, uint32_t thread, uint64_t now_ns)
{
	const uint64_t since = __atomic_load_n(&w->unsaid_since, __ATOMIC_RELAXED);

	if (thread < CLAIMED_MAX)
		seen(&w->present[thread], now_ns);
	claim_cpus(w, now_ns);
	if (since != 0 && now_ns >= since + w->conf.late_ns)
		tell(w);
}

/* With the lock held, which it lets go of to wake the owner. */
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

/* Until it is called. With the lock held, which it lets go of. */
static void sit(struct workers *w, struct seat *seat)
{
	seat->next = w->idle;
	w->idle = seat;
	w->n_idle++;
	seen(seat->presence, 0);
	(void)pthread_mutex_unlock(&w->lock);
	while (sem_wait(&seat->called))
		assert(errno == EINTR);
	cpu_slice_begin(&seat->slice, clock_ns());
	(void)pthread_mutex_lock(&w->lock);
}

/* An idle one, for call() when the lock is free; NULL: none is idle. With the lock held. */
static struct seat *rouse(struct workers *w)
{
	struct seat *seat = w->idle;

	if (!seat)
		return NULL;
	w->idle = seat->next;
	w->n_idle--;
	seen(seat->presence, clock_ns());
	return seat;
}

static void call(struct seat *seat)
{
	if (seat)
		(void)sem_post(&seat->called);
}

/* The next of the queue; NULL: the thread ends. With the lock held. */
static struct work *next(struct workers *w, struct seat *seat)
{
	struct work *work;

	while (!(work = queue_take(w)) && !w->stopping && w->n_idle < w->conf.keep)
		sit(w, seat);
	return work;
}

/* With the lock held, which it lets go of. */
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

/* Where it cannot be had, the kernel places threads, and changes them at its tick, as it does with
 * any. */
static void settle(struct workers *w, struct seat *seat, uint32_t number)
{
	if (w->conf.nicer)
		(void)setpriority(PRIO_PROCESS, 0, w->nice);
	if (w->conf.slices)
		(void)cpu_slice_ask();
	if (w->conf.apart)
		(void)cpu_stay_on(number);
	cpu_slice_begin(&seat->slice, clock_ns());
	seat->presence = NULL;
	if (w->conf.slices && w->conf.apart && number < CLAIMED_MAX) {
		seat->presence = &w->present[number];
		__atomic_store_n(&seat->presence->thread, gettid(), __ATOMIC_RELAXED);
		seen(seat->presence, seat->slice.began_ns);
	}
}

static void *work_on(void *arg)
{
	struct workers *w = arg;
	struct seat seat;
	struct work *work;
	uint32_t number;

	(void)sem_init(&seat.called, 0, 0);
	(void)pthread_mutex_lock(&w->lock);
	number = w->n_started++;
	settle(w, &seat, number);
	while ((work = next(w, &seat)) != NULL) {
		enum work_end end;

		(void)pthread_mutex_unlock(&w->lock);
		end = work->run(work, number);
		if (w->conf.slices)
			(void)cpu_slice_look(&seat.slice, clock_ns());
		(void)pthread_mutex_lock(&w->lock);
		if (end == WORK_ENDED)
			finish(w, work);
		else
			queue_put_back(w, work);
	}
	seen(seat.presence, 0);
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

/* Returns the seat of the thread to be called. */
static struct seat *submit_locked(struct workers *w, struct work *work)
{
	struct seat *seat = rouse(w);

	w->lent++;
	queue_put(w, work);
	if (!seat && w->n_threads < w->conf.threads)
		(void)add_thread(w);
	return seat;
}

int workers_submit(struct workers *w, struct work *work)
{
	struct seat *seat;

	if (w->conf.depth > 0 && w->lent >= w->conf.depth)
		return -EAGAIN;
	(void)pthread_mutex_lock(&w->lock);
	seat = submit_locked(w, work);
	(void)pthread_mutex_unlock(&w->lock);
	call(seat);
	return 0;
}

void workers_submit_all(struct workers *w, struct mails *mails)
{
	struct seat *seat, *called = NULL;
	struct mail *mail;

	assert(w->conf.depth == 0);
	(void)pthread_mutex_lock(&w->lock);
	while ((mail = mails_take(mails)) != NULL) {
		seat = submit_locked(w, work_of(mail));
		if (seat) {
			seat->next = called;
			called = seat;
		}
	}
	(void)pthread_mutex_unlock(&w->lock);
	while ((seat = called) != NULL) {
		called = seat->next; /* the seat is its thread's again when that is called */
		call(seat);
	}
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

	if (w->lent > 0)
		claim_cpus(w, loop_now(w->conf.loop));
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

void workers_close(struct workers *w)
{
	struct seat *seat;

	if (!w)
		return;
	(void)pthread_mutex_lock(&w->lock);
	w->stopping = true;
	while ((seat = rouse(w)) != NULL)
		call(seat);
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
