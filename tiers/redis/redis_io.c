/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_io.c - the I/O thread of the Redis tier: its loop; the way of a job from mailbox to
 * mailbox, in one attempt after another, each of which is a command on one connection; and the
 * view. Contract: redis_io.h.
 *
 *	mail.asked ─> begin() ─> topology, endpoint, connection ─> sent_done() ─> redis_job_end()
 *	ended ─each iteration─> mail.answered
 *
 * The meaning of a command's end for the xfer, for the endpoint's health, and for where the job is
 * tried next:
 *
 *	reply                        the xfer's status     the endpoint
 *	value, OK, 1                 0                     is well
 *	nil, 0                       -ENOENT               is well
 *	a value of another form      -ENOENT               is well
 *	not this block, -WRONGTYPE   -EBADMSG, deleted     is well
 *	its MAC is not right         -EKEYREJECTED, del.   is well
 *	-MOVED, -ASK                 is tried elsewhere    is well
 *	-TRYAGAIN, -CLUSTERDOWN      again in 50 ms        is well until the deadline
 *	-CLUSTERDOWN to a SET        -EROFS                takes no stores for a while
 *	-OOM                         -ENOSPC               takes no stores for a while
 *	-READONLY, -MISCONF...       -EROFS                takes no stores for a while
 *	-NOPERM to a SET             -EROFS                takes no stores for a while, and says why
 *	-NOPERM to GETRANGE          STRLEN is tried       is well
 *	-NOAUTH, -NOPERM...          -EACCES               is misconfigured
 *	-LOADING, -BUSY...           -EREMOTEIO            is not asked for a while
 *	-ERR max number of clients   as -LOADING; with another link up: is tried there
 *	another error                -EREMOTEIO            is well; of a SET: takes no stores
 *	no reply                     -ETIMEDOUT,           has failed once
 *	                             -ECONNRESET
 *
 * Invariants
 *   O1 the jobs that ended in one iteration are handed over with one lock and one wake-up.
 *   O2 no message tells that a job is cancelled, its flag does. Taking a job from the mailbox looks
 *      at the flag; a flag that is set later is found by a look over the pool, which any_cancelled
 *      asks for.
 *   O3 the flags that the core reads are up to date before a job that ended is handed over.
 *
 * The view: flags, slots and the tier's state are atomics, written at the end of an iteration that
 * changed them, and read before each submit. Rows and counters are copied under a lock, ten times a
 * second.
 *
 * The thread opens the loop itself, because a loop belongs to the thread that opened it.
 */
#include "redis_io.h"

#include <assert.h>
#include <errno.h>
#include <hiredis/hiredis.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/list.h"
#include "base/thread.h"

enum {
	TICK_MS = 100,
	/* An endpoint that sent so much while a job waited for its answer in vain is busy, and not
	 * dead: others of its clients want values, too. */
	BUSY_BYTES = 64 << 10,
};

/* For the start: from the starter to the thread, and back. */
struct redis_io_start {
	struct redis_io *io;
	sem_t ready;
	int error;
};

/* --- attempts --- */

static bool begins(const char *text, const char *with)
{
	return strncmp(text, with, strlen(with)) == 0;
}

static void delete_bad(const struct redis_job *job)
{
	struct redis_condemned what = { .name = job->name,
					.length = job->value.length,
					.part = job->value.part };

	if (!job->value.hashed)
		return;
	memcpy(what.sha1, job->value.sha1, sizeof(what.sha1));
	redis_endpoint_delete(job->endpoint, &what);
}

/* The reply to a probe: whether there is such a value. If the front of the value was asked for,
 * also whether it is of this block. */
static int probe_answered(struct redis_job *job)
{
	const struct redisReply *reply = job->command.reply;
	struct redis_counters *counters = &job->endpoint->counters;
	struct redis_front front;
	struct image_shape shape;
	int r;

	if (!job->value.geometry || job->by_length) {
		if (reply->type != REDIS_REPLY_INTEGER)
			return -EREMOTEIO;
		return reply->integer > 0 ? 0 : -ENOENT;
	}
	if (reply->type != REDIS_REPLY_STRING || reply->len > sizeof(front))
		return -EREMOTEIO;
	if (reply->len == 0)
		return -ENOENT;
	r = -EBADMSG;
	if (reply->len == sizeof(front)) {
		memcpy(&front, reply->str, sizeof(front));
		r = redis_front_check(&front, job->value.identity, job->value.geometry, &shape);
	}
	counters->other_forms_total += r == -ENOTSUP;
	counters->corrupt_total += r == -EBADMSG;
	if (r == 0)
		job->value.bytes = shape.image_bytes;
	return r == -ENOTSUP ? -ENOENT : r;
}

static bool is_store(const struct redis_job *job)
{
	return job->op == XFER_WRITE;
}

static void count_form(const struct redis_job *job)
{
	struct redis_counters *counters = &job->endpoint->counters;
	const uint32_t plain = job->shape.packed_bytes - (uint32_t)sizeof(struct image_header);

	counters->coded_total += job->pack.n > 0;
	counters->coding_full_total += job->pack.full;
	counters->saved_bytes_total += job->pack.n > 0 ? plain - job->pack.n : 0;
}

/* An answer that is no error. */
static int judge_answer(struct redis_job *job)
{
	const struct redis_command *c = &job->command;
	struct redis_counters *counters = &job->endpoint->counters;
	int r;

	redis_endpoint_answered(job->endpoint);
	switch (job->op) {
	case XFER_READ:
		counters->gets_total++;
		counters->hits_total += c->status == 0 || c->status == -EFBIG;
		counters->corrupt_total += c->status == -EBADMSG;
		counters->forged_total += c->status == -EKEYREJECTED;
		counters->other_forms_total += c->status == -ENOTSUP;
		if (c->status == -EBADMSG || c->status == -EKEYREJECTED)
			delete_bad(job);
		if (c->status == 0 && !job->value.outdated)
			redis_endpoint_refresh(job->endpoint, &job->name);
		return c->status == -ENOTSUP ? -ENOENT : c->status;
	case XFER_WRITE:
		if (c->reply->type != REDIS_REPLY_STATUS || strcmp(c->reply->str, "OK") != 0)
			break;
		counters->sets_total++;
		count_form(job);
		redis_endpoint_stored(job->endpoint);
		return 0;
	case XFER_PROBE:
		r = probe_answered(job);
		if (r == -EREMOTEIO)
			break;
		counters->probes_total++;
		return r;
	}
	counters->errors_total++;
	if (is_store(job))
		redis_endpoint_untaken(job->endpoint, true, "a store is answered, but not by OK");
	return -EREMOTEIO;
}

static int refused(struct redis_job *job, enum redis_verdict verdict)
{
	const char *words = job->command.error;
	const bool store = is_store(job);
	struct redis_endpoint *endpoint = job->endpoint;

	if (store)
		redis_endpoint_untaken(endpoint, true, words);
	/* While a Cluster votes, reads wait for it. Stores do not: they have time, and each try
	 * sends megabytes. */
	if (store && (verdict == REDIS_SAYS_NO_STORES || begins(words, "CLUSTERDOWN"))) {
		endpoint->counters.refused_stores_total++;
		redis_endpoint_verdict(endpoint, REDIS_SAYS_NO_STORES, true, words);
		return begins(words, "OOM") ? -ENOSPC : -EROFS;
	}
	if (verdict == REDIS_SAYS_NOT_YOU && begins(words, "NOPERM") && job->op != XFER_READ) {
		/* Without the right to SET a user may still GET; without EXISTS, or GETRANGE
		 * and STRLEN, only hints are lost. */
		endpoint->counters.refused_stores_total += store;
		if (store)
			redis_endpoint_verdict(endpoint, verdict, true, words);
		return store ? -EROFS : -EACCES;
	}
	redis_endpoint_verdict(endpoint, verdict, false, words);
	if (verdict == REDIS_SAYS_WRONG_TYPE && job->op == XFER_READ) {
		endpoint->counters.gets_total++;
		endpoint->counters.corrupt_total++;
		return -EBADMSG;
	}
	endpoint->counters.errors_total++;
	return verdict == REDIS_SAYS_NOT_YOU ? -EACCES : -EREMOTEIO;
}

/* A user, or a proxy, may refuse GETRANGE and answer STRLEN. */
static bool ask_for_length(struct redis_job *job, enum redis_verdict verdict)
{
	const bool of_command =
		verdict == REDIS_SAYS_UNKNOWN_COMMAND || verdict == REDIS_SAYS_NOTHING ||
		(verdict == REDIS_SAYS_NOT_YOU && begins(job->command.error, "NOPERM"));

	if (job->op != XFER_PROBE || !job->value.geometry || job->by_length || !of_command)
		return false;
	job->by_length = true;
	redis_topology_route(job->endpoint->io, job);
	return true;
}

static void error_reply(struct redis_job *job)
{
	const char *words = job->command.error;
	const enum redis_verdict verdict = redis_verdict(words);
	struct redis_io *io = job->endpoint->io;

	if (verdict == REDIS_SAYS_MOVED && redis_topology_redirected(io, job, words))
		return;
	io->topology.wanted |= redis_slots_pass(words);
	if (loop_now(io->loop) < job->deadline_ns &&
	    ((redis_slots_pass(words) && job->op != XFER_WRITE) ||
	     redis_endpoint_crowded(job->endpoint, job->command.conn, words))) {
		redis_topology_delay(io, job);
		return;
	}
	if (!ask_for_length(job, verdict))
		redis_job_end(io, job, refused(job, verdict));
}

static void no_answer(struct redis_job *job)
{
	const char *why = redis_endpoint_why(&job->command);

	redis_endpoint_failed(job->endpoint, why);
	if (is_store(job))
		redis_endpoint_untaken(job->endpoint, false, why);
}

static void sent_done(struct redis_command *command)
{
	struct redis_job *job = (struct redis_job *)command; /* first member */
	struct redis_endpoint *endpoint = job->endpoint;
	struct redis_io *io = endpoint->io;

	assert(job->phase == REDIS_SENT && endpoint->in_flight > 0);
	endpoint->in_flight--;
	if (endpoint->waiting.n > 0)
		redis_io_kick(endpoint);
	job->phase = REDIS_IDLE;
	switch (command->status) {
	case -ECANCELED:
		redis_job_end(io, job, -ECANCELED);
		return;
	case -ETIMEDOUT:
		endpoint->counters.timeouts_total++;
		if (endpoint->traffic.heard_bytes - job->heard < BUSY_BYTES)
			no_answer(job);
		redis_job_end(io, job, -ETIMEDOUT);
		return;
	case -ECONNRESET:
		endpoint->counters.resets_total++;
		no_answer(job);
		redis_job_end(io, job, atomic_load(&job->cancelled) ? -ECANCELED : -ECONNRESET);
		return;
	case -EREMOTEIO:
		error_reply(job);
		return;
	default:
		redis_job_end(io, job, judge_answer(job));
	}
}

/* Whether the job's image is to become a form or a lesser image before it is sent. */
static bool begin_pack(struct redis_io *io, struct redis_job *job)
{
	struct redis_packer *packer = &io->packer;
	struct redis_pack *pack = &job->pack;

	if (job->op != XFER_WRITE)
		return false;
	if (!(job->codec &&
	      redis_pack_lesser(packer, pack, job->buffer, &job->shape, job->codec)) &&
	    (pack->lesser || pack->full || !io->tier->compress ||
	     !redis_pack_begin(packer, pack, job->buffer, &job->shape, loop_now(io->loop))))
		return false;
	job->phase = REDIS_PACKING;
	mails_append(&io->packing, &job->mail);
	return true;
}

/* One step of one image in an iteration of the loop: connections are served in between. */
static bool pack_some(struct loop_poller *poller)
{
	struct redis_io *io = container_of(poller, struct redis_io, pack);
	struct redis_job *job = io->packing.n > 0 ? redis_job_take(&io->packing) : NULL;
	bool more, late;

	if (!job)
		return false;
	more = redis_pack_step(&io->packer, &job->pack, loop_now(io->loop)) == CODEC_MORE;
	late = loop_now(io->loop) >= job->deadline_ns;
	if (late)
		redis_job_end(io, job, -ETIMEDOUT);
	else if (more)
		mails_append(&io->packing, &job->mail); /* the others have their turns */
	else
		redis_topology_route(io, job);
	return true;
}

/* Taken from mail.asked. */
static void begin(struct redis_io *io, struct redis_job *job)
{
	job->phase = REDIS_IDLE;
	job->hops = 0;
	job->asking = job->by_length = false;
	job->endpoint = NULL;
	job->command.done = sent_done;
	if (atomic_load(&job->cancelled))
		redis_job_end(io, job, -ECANCELED);
	else if (loop_now(io->loop) >= job->deadline_ns)
		redis_job_end(io, job, -ETIMEDOUT);
	else if (!begin_pack(io, job))
		redis_topology_route(io, job);
}

/* Its flag is set; it may be in any phase. */
static void cancel(struct redis_io *io, struct redis_job *job)
{
	switch (job->phase) {
	case REDIS_PACKING:
		mails_remove(&io->packing, &job->mail);
		redis_job_end(io, job, -ECANCELED);
		break;
	case REDIS_WAITING:
	case REDIS_SENT:
		redis_endpoint_cancel(job->endpoint, job);
		break;
	case REDIS_DELAYED:
		redis_job_end(io, job, -ECANCELED);
		break;
	default:
		/* ended, or not taken yet; the flag may also be that of an earlier xfer */
		break;
	}
}

/* --- the view --- */

struct redis_totals {
	uint32_t all, usable, stores, starting, refused;
};

/* Whether the endpoint has a share of the keys. */
static bool counts(const struct redis_endpoint *endpoint)
{
	return endpoint->used && endpoint->listed;
}

static bool takes_stores(const struct redis_endpoint *endpoint)
{
	return redis_endpoint_usable(endpoint) && redis_breaker_takes_stores(&endpoint->breaker);
}

static enum tier_state endpoint_state(const struct redis_endpoint *endpoint)
{
	if (endpoint->breaker.state != REDIS_CLOSED)
		return endpoint->breaker.misconfigured ? TIER_MISCONFIGURED : TIER_OFFLINE;
	if (!endpoint->proven)
		return endpoint->failed_ns ? TIER_OFFLINE : TIER_STARTING;
	return takes_stores(endpoint) ? TIER_UP : TIER_READONLY;
}

static struct redis_totals totals(const struct redis_io *io)
{
	struct redis_totals t = { 0 };

	for (uint32_t i = 0; i < REDIS_ALL_ENDPOINTS; i++) {
		const struct redis_endpoint *endpoint = &io->endpoints[i];

		if (!counts(endpoint))
			continue;
		t.all++;
		t.usable += redis_endpoint_usable(endpoint);
		t.stores += takes_stores(endpoint);
		t.starting += endpoint_state(endpoint) == TIER_STARTING;
		t.refused += endpoint_state(endpoint) == TIER_MISCONFIGURED;
	}
	return t;
}

static enum tier_state tier_state_of(const struct redis_io *io)
{
	const struct redis_totals t = totals(io);

	if (t.usable == 0 && t.refused > 0)
		return TIER_MISCONFIGURED;
	if (t.usable == 0)
		return t.starting == t.all ? TIER_STARTING : TIER_OFFLINE;
	if (io->mode == REDIS_MODE_UNKNOWN)
		return TIER_STARTING;
	if (t.stores == 0)
		return TIER_READONLY;
	return t.stores < t.all ? TIER_DEGRADED : TIER_UP;
}

static void show_slots(struct redis_io *io)
{
	io->slots_changed = false;
	for (uint32_t i = 0; i < REDIS_SLOTS; i++)
		atomic_store_explicit(&io->tier->view->slot[i], io->topology.slot[i],
				      memory_order_relaxed);
}

static void show_flags(struct redis_io *io)
{
	struct redis_view *view = io->tier->view;
	const int state = (int)tier_state_of(io);
	bool changed = false;

	io->changed = false;
	if (io->slots_changed) /* first: a reader of "Cluster" finds its slots */
		show_slots(io);
	for (uint32_t i = 0; i < REDIS_ALL_ENDPOINTS; i++) {
		const struct redis_endpoint *endpoint = &io->endpoints[i];
		unsigned int flags = 0;

		if (endpoint->used && redis_endpoint_usable(endpoint))
			flags = REDIS_TAKES_READS;
		if (flags && redis_breaker_may_store(&endpoint->breaker, loop_now(io->loop)))
			flags |= REDIS_MAY_STORE;
		changed |= atomic_exchange(&view->flags[i], flags) != flags;
	}
	changed |= atomic_exchange(&view->mode, (int)io->mode) != (int)io->mode;
	/* Last: a reader of "up" finds an endpoint that takes its job. */
	changed |= atomic_exchange(&view->state, state) != state;
	if (changed) {
		atomic_store(&io->tier->mail.changed, true);
		mailbox_ring(&io->tier->mail.answered);
	}
}

/* When it will be tried again, or take stores again. */
static uint64_t retry_in_ms(const struct redis_endpoint *endpoint, enum tier_state state)
{
	const uint64_t now = loop_now(endpoint->io->loop);
	uint64_t at = 0;

	if (state == TIER_READONLY)
		at = endpoint->breaker.no_stores_until_ns;
	else if (endpoint->breaker.state == REDIS_OPEN)
		at = endpoint->breaker.until_ns;
	return at > now ? (at - now) / 1000000 : 0;
}

static void fill_row(const struct redis_endpoint *endpoint, struct redis_endpoint_row *row)
{
	memcpy(row->address, endpoint->address, sizeof(row->address));
	row->state = endpoint_state(endpoint);
	row->text[0] = 0;
	if (row->state == TIER_READONLY)
		memcpy(row->text, endpoint->stores_text, sizeof(row->text));
	else if (row->state != TIER_UP && row->state != TIER_STARTING)
		memcpy(row->text, endpoint->text, sizeof(row->text));
	row->slots = endpoint->slots;
	row->connections = 0;
	row->tls[0] = 0;
	for (uint32_t i = 0; i < endpoint->n_links; i++) {
		if (!redis_link_is_up(&endpoint->links[i]))
			continue;
		row->connections++;
		(void)snprintf(row->tls, sizeof(row->tls), "%s",
			       redis_conn_tls(endpoint->links[i].conn));
	}
	row->in_flight = endpoint->in_flight + endpoint->waiting.n;
	row->retry_in_ms = retry_in_ms(endpoint, row->state);
	redis_endpoint_counters(endpoint, &row->counters);
}

static void fill_status(const struct redis_io *io, const struct redis_view *view,
			struct redis_tier_status *ret)
{
	const struct redis_totals t = totals(io);

	*ret = (struct redis_tier_status){
		.cluster = io->mode == REDIS_MODE_CLUSTER,
		.endpoints = t.all,
		.usable = t.usable,
		.counters = io->gone,
		.views = ret->views + 1,
	};
	for (uint32_t i = 0; i < REDIS_ALL_ENDPOINTS; i++) {
		struct redis_counters counters;

		if (!io->endpoints[i].used)
			continue;
		redis_endpoint_counters(&io->endpoints[i], &counters);
		redis_counters_add(&ret->counters, &counters);
	}
	for (uint32_t i = 0; i < view->n_rows && !ret->text[0]; i++)
		if (view->rows[i].text[0])
			(void)snprintf(ret->text, sizeof(ret->text), "%s: %s",
				       view->rows[i].address, view->rows[i].text);
	if (io->mode == REDIS_MODE_UNKNOWN && !ret->text[0])
		(void)snprintf(ret->text, sizeof(ret->text), "%s", io->topology.text);
}

static void show_rows(struct redis_io *io)
{
	struct redis_view *view = io->tier->view;

	(void)pthread_mutex_lock(&view->lock);
	view->n_rows = 0;
	for (uint32_t i = 0; i < REDIS_ALL_ENDPOINTS; i++)
		if (counts(&io->endpoints[i]))
			fill_row(&io->endpoints[i], &view->rows[view->n_rows++]);
	fill_status(io, view, &view->status);
	(void)pthread_mutex_unlock(&view->lock);
}

/* --- the mailboxes --- */

static void cancel_marked(struct redis_io *io)
{
	struct redis *r = io->tier;

	for (uint32_t i = 0; i < r->max_in_flight; i++)
		if (atomic_load_explicit(&r->jobs[i].cancelled, memory_order_relaxed))
			cancel(io, &r->jobs[i]);
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
		begin(io, job);
	if (atomic_exchange(&mail->any_cancelled, false))
		cancel_marked(io);
	delete_condemned(io, condemned, n_condemned);
}

/* Runs once per iteration, before the loop sleeps. */
static bool hand_over(struct loop_poller *poller)
{
	struct redis_io *io = container_of(poller, struct redis_io, flush);

	if (io->changed)
		show_flags(io);
	if (io->ended.n > 0)
		mailbox_post(&io->tier->mail.answered, &io->ended);
	return false; /* the loop may sleep */
}

/* The core has another setup for us. */
static void take_over(struct redis_io *io)
{
	struct redis_setup *setup = atomic_exchange(&io->tier->mail.setup, NULL);

	if (!setup)
		return;
	redis_topology_close(io);
	redis_setup_free(io->setup);
	io->setup = setup;
	redis_topology_start(io);
}

static void on_tick(struct loop_timer *timer)
{
	struct redis_io *io = container_of(timer, struct redis_io, tick);

	take_over(io);
	redis_topology_tick(io);
	show_flags(io);
	show_rows(io);
	loop_timer_set(io->loop, timer, loop_now(io->loop) + (uint64_t)TICK_MS * 1000000);
}

/* --- the thread --- */

static int set_up(struct redis_io *io)
{
	int r = loop_open(0, &io->loop);

	if (r)
		return r;
	mails_clear(&io->ended);
	mails_clear(&io->packing);
	for (uint32_t i = 0; i < REDIS_CHORES; i++) {
		io->chores[i].next = io->free_chores;
		io->free_chores = &io->chores[i];
	}
	io->asked_watch = (struct loop_watch){ .fd = io->tier->mail.asked.fd, .ready = on_asked };
	r = loop_add(io->loop, &io->asked_watch, EPOLLIN);
	if (r) {
		loop_close(io->loop);
		return r;
	}
	io->flush.poll = hand_over;
	loop_poller_add(io->loop, &io->flush);
	io->pack.poll = pack_some;
	loop_poller_add(io->loop, &io->pack);
	io->tick.fire = on_tick;
	loop_timer_set(io->loop, &io->tick, loop_now(io->loop));
	take_over(io);
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
	for (struct redis_job *job; (job = redis_job_take(&io->packing)) != NULL;)
		redis_job_end(io, job, -ECANCELED);
	redis_topology_close(io);
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
