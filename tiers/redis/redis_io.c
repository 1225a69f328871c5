/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_io.c - the I/O thread of the Redis tier: its loop, and its end of the mailboxes. Contract:
 * redis_io.h.
 *
 *	mail.asked ─> redis_attempt_begin() ... redis_job_end() ─> ended
 *	ended ─once a turn─> mail.answered
 *
 * Invariants
 *   O1 the jobs that ended in one turn are handed over with one lock and one wake-up.
 *   O2 no message tells that a job is cancelled, its flag does. Taking a job from the mailbox looks
 *      at the flag; a flag that is set later is found by a look over the pool, which any_cancelled
 *      asks for.
 *   O3 the flags that the core reads are up to date before a job that ended is handed over.
 *
 * The thread opens the loop itself, because a loop belongs to the thread that opened it.
 */
#include "redis_io.h"

#include <errno.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "daemon/base/container_of.h"
#include "daemon/base/thread.h"
#include "redis_attempt.h"
#include "redis_view.h"

enum { TICK_MS = 100 };

/* For the start: from the starter to the thread, and back. */
struct redis_io_start {
	struct redis_io *io;
	sem_t ready;
	int error;
};

/* --- the mailboxes --- */

static void cancel_marked(struct redis_io *io)
{
	struct redis *r = io->tier;

	for (uint32_t i = 0; i < r->max_in_flight; i++)
		if (atomic_load_explicit(&r->jobs[i].cancelled, memory_order_relaxed))
			redis_attempt_cancel(io, &r->jobs[i]);
}

static void delete_condemned(struct redis_io *io, const struct redis_condemned *what, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		struct redis_endpoint *endpoint = redis_topology_find(io, &what[i].name);

		if (endpoint)
			redis_endpoint_delete(endpoint, &what[i]);
	}
}

static void on_asked(struct loop_watch *watch, uint32_t events)
{
	struct redis_io *io = container_of(watch, struct redis_io, asked_watch);
	struct redis_mail *mail = &io->tier->mail;
	struct redis_condemned condemned[REDIS_CONDEMNED];
	struct mails taken;
	struct redis_job *job;
	uint32_t n_condemned;

	(void)events;
	mailbox_hear(&mail->asked);
	io->stopping = atomic_load(&mail->stop);
	if (io->stopping) { /* the core ends these jobs */
		loop_stop(io->loop);
		return;
	}
	mails_clear(&taken);
	mailbox_take(&mail->asked, &taken);
	(void)pthread_mutex_lock(&mail->lock);
	n_condemned = mail->n_condemned;
	memcpy(condemned, mail->condemned, n_condemned * sizeof(condemned[0]));
	mail->n_condemned = 0;
	(void)pthread_mutex_unlock(&mail->lock);
	while ((job = redis_job_take(&taken)) != NULL)
		redis_attempt_begin(io, job);
	if (atomic_exchange(&mail->any_cancelled, false))
		cancel_marked(io);
	delete_condemned(io, condemned, n_condemned);
}

/* Runs once a turn, before the loop sleeps. */
static bool hand_over(struct loop_poller *poller)
{
	struct redis_io *io = container_of(poller, struct redis_io, flush);

	if (io->changed)
		redis_view_flags(io);
	if (io->ended.n > 0)
		mailbox_post(&io->tier->mail.answered, &io->ended);
	return false; /* the loop may sleep */
}

static void on_tick(struct loop_timer *timer)
{
	struct redis_io *io = container_of(timer, struct redis_io, tick);

	redis_lookups_reap(&io->lookups);
	redis_topology_tick(io);
	redis_view_flags(io);
	redis_view_rows(io);
	loop_timer_set(io->loop, timer, loop_now(io->loop) + (uint64_t)TICK_MS * 1000000);
}

/* --- the thread --- */

static int set_up(struct redis_io *io)
{
	int r = loop_open(0, &io->loop);

	if (r)
		return r;
	mails_clear(&io->ended);
	for (uint32_t i = 0; i < REDIS_CHORES; i++)
		redis_chore_give(io, &io->chores[i]);
	io->asked_watch = (struct loop_watch){ .fd = io->tier->mail.asked.fd, .ready = on_asked };
	r = loop_add(io->loop, &io->asked_watch, EPOLLIN);
	if (r) {
		loop_close(io->loop);
		return r;
	}
	io->flush.poll = hand_over;
	loop_poller_add(io->loop, &io->flush);
	io->tick.fire = on_tick;
	loop_timer_set(io->loop, &io->tick, loop_now(io->loop));
	redis_topology_start(io);
	return 0;
}

static void *work(void *arg)
{
	struct redis_io_start *start = arg;
	struct redis_io *io = start->io;
	const int r = set_up(io);

	start->error = r;
	(void)sem_post(&start->ready); /* start is gone after this */
	if (r)
		return NULL;
	/* it ends when told so; if epoll fails, all jobs time out at close */
	(void)loop_run(io->loop);
	for (uint32_t i = 0; i < REDIS_ALL_ENDPOINTS; i++)
		if (io->endpoints[i].used)
			redis_endpoint_close(&io->endpoints[i]);
	redis_lookups_leave(&io->lookups);
	loop_close(io->loop);
	return NULL;
}

int redis_io_start(struct redis *r)
{
	struct redis_io_start start = { .io = r->io };
	int error;

	r->io->tier = r;
	if (sem_init(&start.ready, 0, 0))
		return -errno;
	error = thread_start(&r->thread, 0, work, &start);
	if (!error) {
		while (sem_wait(&start.ready) && errno == EINTR)
			;
		error = start.error;
		if (error)
			(void)pthread_join(r->thread, NULL);
	}
	(void)sem_destroy(&start.ready);
	r->threaded = !error;
	return error;
}

void redis_io_stop(struct redis *r)
{
	atomic_store(&r->mail.stop, true);
	mailbox_ring(&r->mail.asked);
	(void)pthread_join(r->thread, NULL);
	r->threaded = false;
}
