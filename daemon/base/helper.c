/* SPDX-License-Identifier: Apache-2.0 */
/*
 * helper.c - a pool of threads that grows with the calls that block (helper.h).
 *
 * Invariant: a job in the queue has a thread that is idle or on its way, or there are max_threads, or no thread could
 * be made. The one lock guards all below it. Take no locks while holding it.
 */
#include "helper.h"
#include "container_of.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "loop.h"

enum {
	KEEP_IDLE = 2,			/* threads; more of them end */
	STACK_BYTES = 256 << 10,	/* address space; a few pages are touched */
};

struct helpers {
	struct loop *loop;
	struct loop_watch watch;	/* eventfd */
	uint32_t max_threads;
	uint32_t busy;			/* jobs lent; core thread */

	pthread_mutex_t lock;
	pthread_cond_t more, fewer;	/* jobs; threads */
	uint32_t n_threads, n_idle, n_queued;
	bool stopping;
	struct helper_job *queue, **queue_end;
	struct helper_job *finished, **finished_end;
};

/* With the lock held. */
static struct helper_job *take(struct helpers *h)
{
	struct helper_job *job = h->queue;

	h->queue = job->next;
	if (!h->queue)
		h->queue_end = &h->queue;
	h->n_queued--;
	return job;
}

static void finish(struct helpers *h, struct helper_job *job)
{
	const uint64_t one = 1;
	bool first;

	pthread_mutex_lock(&h->lock);
	first = !h->finished;
	job->next = NULL;
	*h->finished_end = job;
	h->finished_end = &job->next;
	/* Under the lock: helpers_close() closes it only when no thread is left that could be here. */
	if (first)
		(void)!write(h->watch.fd, &one, sizeof one);
	pthread_mutex_unlock(&h->lock);
}

static void *help(void *arg)
{
	struct helpers *h = arg;

	pthread_mutex_lock(&h->lock);
	for (;;) {
		h->n_idle++;
		while (!h->queue && !h->stopping && h->n_idle <= KEEP_IDLE)
			pthread_cond_wait(&h->more, &h->lock);
		h->n_idle--;
		if (!h->queue)
			break;
		struct helper_job *job = take(h);

		pthread_mutex_unlock(&h->lock);
		job->run(job);
		finish(h, job);
		pthread_mutex_lock(&h->lock);
	}
	h->n_threads--;
	pthread_cond_signal(&h->fewer);
	pthread_mutex_unlock(&h->lock);
	return NULL;
}

/* With the lock held. */
static int add_thread(struct helpers *h)
{
	pthread_attr_t attr;
	sigset_t all, before;
	pthread_t thread;
	int r = pthread_attr_init(&attr);

	if (r)
		return -r;
	(void)pthread_attr_setstacksize(&attr, STACK_BYTES);
	(void)pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	sigfillset(&all);	/* signals are the core's (signalfd) */
	pthread_sigmask(SIG_SETMASK, &all, &before);
	r = pthread_create(&thread, &attr, help, h);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attr);
	if (r == 0)
		h->n_threads++;
	return -r;
}

void helper_start(struct helpers *h, struct helper_job *job)
{
	loop_assert_core(h->loop);
	h->busy++;
	pthread_mutex_lock(&h->lock);
	job->next = NULL;
	*h->queue_end = job;
	h->queue_end = &job->next;
	h->n_queued++;
	if (h->n_queued > h->n_idle && h->n_threads < h->max_threads)
		(void)add_thread(h);
	pthread_cond_signal(&h->more);
	pthread_mutex_unlock(&h->lock);
}

static void on_finished(struct loop_watch *watch, uint32_t events)
{
	struct helpers *h = container_of(watch, struct helpers, watch);
	struct helper_job *list;
	uint64_t count;

	(void)events;
	(void)!read(watch->fd, &count, sizeof count);
	pthread_mutex_lock(&h->lock);
	list = h->finished;
	h->finished = NULL;
	h->finished_end = &h->finished;
	pthread_mutex_unlock(&h->lock);
	for (struct helper_job *job = list, *next; job; job = next) {
		next = job->next;
		h->busy--;
		job->done(job);
	}
}

uint32_t helpers_busy(const struct helpers *h)
{
	return h->busy;
}

int helpers_open(struct loop *loop, uint32_t max_threads, struct helpers **ret)
{
	struct helpers *h = calloc(1, sizeof *h);
	int r;

	assert(max_threads > 0);
	if (!h)
		return -ENOMEM;
	h->loop = loop;
	h->max_threads = max_threads;
	h->queue_end = &h->queue;
	h->finished_end = &h->finished;
	h->watch.ready = on_finished;
	pthread_mutex_init(&h->lock, NULL);
	pthread_cond_init(&h->more, NULL);
	pthread_cond_init(&h->fewer, NULL);
	h->watch.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	r = h->watch.fd < 0 ? -errno : loop_add(loop, &h->watch, EPOLLIN);
	if (r && h->watch.fd >= 0) {
		(void)close(h->watch.fd);
		h->watch.fd = -1;
	}
	pthread_mutex_lock(&h->lock);
	if (r == 0)
		r = add_thread(h);
	pthread_mutex_unlock(&h->lock);
	if (r) {
		helpers_close(h);
		return r;
	}
	*ret = h;
	return 0;
}

void helpers_close(struct helpers *h)
{
	if (!h)
		return;
	assert(h->busy == 0);
	pthread_mutex_lock(&h->lock);
	h->stopping = true;
	pthread_cond_broadcast(&h->more);
	while (h->n_threads > 0)	/* all are idle: they end at once */
		pthread_cond_wait(&h->fewer, &h->lock);
	pthread_mutex_unlock(&h->lock);
	if (h->watch.fd >= 0) {
		loop_remove(h->loop, &h->watch);
		(void)close(h->watch.fd);
	}
	pthread_cond_destroy(&h->more);
	pthread_cond_destroy(&h->fewer);
	pthread_mutex_destroy(&h->lock);
	free(h);
}
