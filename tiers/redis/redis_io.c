/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_io.c - the I/O thread of the Redis tier: its loop, its end of the mailboxes, how a job
 * waits and ends.
 *
 *	mail.asked ─take─> redis_route() ─> endpoint ... redis_job_end() ─> ended ─once a turn─> mail.answered
 *
 * Invariants
 *   O1 a job ends once: redis_job_end() is the only way, and its phase is ENDED from then on.
 *   O2 what ended in one turn is handed over with one lock and one wake-up.
 *   O3 a job that is cancelled is told so by its flag, never by a message: whoever takes it from
 *      the mailbox looks, and a flag set later is found by the look over the pool that
 *      any_cancelled asks for.
 *
 * The thread makes the loop itself, because a loop belongs to who opened it.
 */
#include <assert.h>
#include <errno.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "daemon/base/container_of.h"
#include "redis_inner.h"

enum { TICK_MS = 100, DELAY_MS = 50 };

/* What the starter and the thread tell each other. */
struct start {
	struct redis_io *io;
	sem_t ready;
	int error;
};

/* --- lists of jobs, and eventfds: either thread --- */

void redis_jobs_clear(struct redis_jobs *list)
{
	*list = (struct redis_jobs){ .last = &list->first };
}

void redis_jobs_append(struct redis_jobs *list, struct redis_job *job)
{
	job->next = NULL;
	*list->last = job;
	list->last = &job->next;
	list->n++;
}

struct redis_job *redis_jobs_take(struct redis_jobs *list)
{
	struct redis_job *job = list->first;

	if (!job)
		return NULL;
	list->first = job->next;
	if (!list->first)
		list->last = &list->first;
	list->n--;
	return job;
}

void redis_jobs_move(struct redis_jobs *to, struct redis_jobs *from)
{
	if (from->n == 0)
		return;
	*to->last = from->first;
	to->last = from->last;
	to->n += from->n;
	redis_jobs_clear(from);
}

void redis_jobs_remove(struct redis_jobs *list, struct redis_job *job)
{
	struct redis_job **link = &list->first;

	while (*link != job)
		link = &(*link)->next;
	*link = job->next;
	if (!job->next)
		list->last = link;
	list->n--;
}

void redis_wake(int fd)
{
	const uint64_t one = 1;

	(void)!write(fd, &one, sizeof one);	/* full: then it was woken long ago */
}

/* --- jobs --- */

void redis_job_end(struct redis_io *io, struct redis_job *job, int status)
{
	assert(job->phase != REDIS_ENDED && status <= 0);
	loop_timer_unset(io->loop, &job->timer);
	job->phase = REDIS_ENDED;
	job->status = io->stopping && status == -ECONNRESET ? -ECANCELED : status;
	job->endpoint = NULL;
	redis_jobs_append(&io->ended, job);
}

static void on_delay_over(struct loop_timer *timer)
{
	struct redis_job *job = container_of(timer, struct redis_job, timer);
	struct redis_io *io = job->endpoint->io;

	assert(job->phase == REDIS_DELAYED);
	if (loop_now(io->loop) >= job->deadline_ns)
		redis_job_gave_up(job);
	else
		redis_route(io, job);
}

void redis_job_delay(struct redis_io *io, struct redis_job *job)
{
	uint64_t due = loop_now(io->loop) + (uint64_t)DELAY_MS * 1000000;

	assert(job->endpoint);
	if (due > job->deadline_ns)
		due = job->deadline_ns;
	job->phase = REDIS_DELAYED;
	job->timer.fire = on_delay_over;
	loop_timer_set(io->loop, &job->timer, due);
}

static void begin(struct redis_io *io, struct redis_job *job)
{
	job->phase = REDIS_IDLE;
	job->hops = 0;
	job->asking = false;
	job->endpoint = NULL;
	if (atomic_load(&job->cancelled))
		redis_job_end(io, job, -ECANCELED);
	else if (loop_now(io->loop) >= job->deadline_ns)
		redis_job_end(io, job, -ETIMEDOUT);
	else
		redis_route(io, job);
}

static void cancel(struct redis_io *io, struct redis_job *job)
{
	switch (job->phase) {
	case REDIS_WAITING:
	case REDIS_SENT:
		redis_endpoint_cancel(job->endpoint, job);
		break;
	case REDIS_DELAYED:
		redis_job_end(io, job, -ECANCELED);
		break;
	default:
		/* ended, or not taken yet; the flag may also be of an xfer before this one */
		break;
	}
}

static void cancel_marked(struct redis_io *io)
{
	struct redis *r = io->tier;

	for (uint32_t i = 0; i < r->max_in_flight; i++)
		if (atomic_load_explicit(&r->jobs[i].cancelled, memory_order_relaxed))
			cancel(io, &r->jobs[i]);
}

/* --- chores --- */

struct redis_chore *redis_chore_take(struct redis_io *io)
{
	struct redis_chore *chore = io->free_chores;

	if (!chore)
		return NULL;
	io->free_chores = chore->next;
	chore->endpoint = NULL;
	chore->value = (struct redis_value){ 0 };
	chore->command.value = NULL;
	return chore;
}

void redis_chore_give(struct redis_io *io, struct redis_chore *chore)
{
	chore->next = io->free_chores;
	io->free_chores = chore;
}

uint64_t redis_io_deadline(const struct redis_io *io)
{
	return loop_now(io->loop) + (uint64_t)io->tier->timeout_ms * 1000000;
}

/* --- the mailboxes --- */

static void delete_condemned(struct redis_io *io, const struct redis_condemned *what, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		struct redis_endpoint *endpoint = redis_endpoint_of(io, &what[i].name);

		if (endpoint)
			redis_delete(endpoint, &what[i]);
	}
}

static void on_asked(struct loop_watch *watch, uint32_t events)
{
	struct redis_io *io = container_of(watch, struct redis_io, asked);
	struct redis_mail *mail = &io->tier->mail;
	struct redis_condemned condemned[REDIS_CONDEMNED];
	struct redis_jobs taken;
	struct redis_job *job;
	uint32_t n_condemned;
	uint64_t n;

	(void)events;
	(void)!read(watch->fd, &n, sizeof n);
	redis_jobs_clear(&taken);
	(void)pthread_mutex_lock(&mail->lock);
	io->stopping = mail->stop;
	if (!io->stopping)	/* else the core ends what it asked for last */
		redis_jobs_move(&taken, &mail->asked);
	n_condemned = mail->n_condemned;
	memcpy(condemned, mail->condemned, n_condemned * sizeof condemned[0]);
	mail->n_condemned = 0;
	(void)pthread_mutex_unlock(&mail->lock);
	if (io->stopping) {
		loop_stop(io->loop);
		return;
	}
	while ((job = redis_jobs_take(&taken)) != NULL)
		begin(io, job);
	if (atomic_exchange(&mail->any_cancelled, false))
		cancel_marked(io);
	delete_condemned(io, condemned, n_condemned);
}

/* Runs once a turn, before the loop sleeps. */
static bool hand_over(struct loop_poller *poller)
{
	struct redis_io *io = container_of(poller, struct redis_io, flush);
	struct redis_mail *mail = &io->tier->mail;
	bool first;

	if (io->ended.n == 0)
		return false;
	(void)pthread_mutex_lock(&mail->lock);
	first = mail->answered.n == 0;
	redis_jobs_move(&mail->answered, &io->ended);
	(void)pthread_mutex_unlock(&mail->lock);
	if (first)
		redis_wake(mail->answered_fd);
	return false;	/* no reason for the loop not to sleep */
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
	redis_jobs_clear(&io->ended);
	for (uint32_t i = 0; i < REDIS_CHORES; i++)
		redis_chore_give(io, &io->chores[i]);
	io->asked = (struct loop_watch){ .fd = io->tier->mail.asked_fd, .ready = on_asked };
	r = loop_add(io->loop, &io->asked, EPOLLIN);
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
	struct start *start = arg;
	struct redis_io *io = start->io;
	const int r = set_up(io);

	start->error = r;
	(void)sem_post(&start->ready);	/* start is gone after this */
	if (r)
		return NULL;
	/* epoll failing is all that can end it otherwise: then all time out at close */
	(void)loop_run(io->loop);
	for (uint32_t i = 0; i < REDIS_ALL_ENDPOINTS; i++)
		if (io->endpoints[i].used)
			redis_endpoint_close(&io->endpoints[i]);
	redis_lookups_leave(&io->lookups);
	loop_close(io->loop);
	return NULL;
}

/* Signals are the core thread's business. */
static int start_thread(struct redis *r, struct start *start)
{
	sigset_t all, before;
	int error;

	(void)sigfillset(&all);
	(void)pthread_sigmask(SIG_SETMASK, &all, &before);
	error = pthread_create(&r->thread, NULL, work, start);
	(void)pthread_sigmask(SIG_SETMASK, &before, NULL);
	return -error;
}

int redis_io_start(struct redis *r)
{
	struct start start = { .io = r->io };
	int error;

	r->io->tier = r;
	if (sem_init(&start.ready, 0, 0))
		return -errno;
	error = start_thread(r, &start);
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
	(void)pthread_mutex_lock(&r->mail.lock);
	r->mail.stop = true;
	(void)pthread_mutex_unlock(&r->mail.lock);
	redis_wake(r->mail.asked_fd);
	(void)pthread_join(r->thread, NULL);
	r->threaded = false;
}
