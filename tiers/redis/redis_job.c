/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_job.c - a job's life in the I/O thread: begun, sent as a command, tried again, ended.
 * Contract and phases: redis_job.h. I/O thread only.
 *
 * What the end of a command means for the xfer, for the endpoint's health, and for where the job is
 * tried next:
 *
 *	reply                        the xfer's status     the endpoint
 *	value, OK, 1                 0                     is well
 *	nil, 0                       -ENOENT               is well
 *	a value of another form      -ENOENT               is well
 *	not this block, -WRONGTYPE   -EBADMSG, deleted     is well
 *	its MAC is not right         -EKEYREJECTED, del.   is well
 *	-MOVED, -ASK                 goes on elsewhere     is well
 *	-TRYAGAIN, -CLUSTERDOWN      goes on in 50 ms      is well until the deadline
 *	-CLUSTERDOWN to a SET        -EROFS                takes no stores for a while
 *	-OOM                         -ENOSPC               takes no stores for a while
 *	-READONLY, -MISCONF...       -EROFS                takes no stores for a while
 *	-NOPERM to a SET             -EROFS                takes no stores for a while, and says why
 *	-NOAUTH, -NOPERM...          -EACCES               is misconfigured
 *	-LOADING, -BUSY...           -EREMOTEIO            is not asked for a while
 *	-ERR max number of clients   as -LOADING; with another link up: goes on there
 *	another error                -EREMOTEIO            is well
 *	none                         -ETIMEDOUT,           has failed once
 *	                             -ECONNRESET
 *
 * Invariant
 *   J1 a job ends once: redis_job_end() is the only way, and its phase is ENDED from then on.
 */
#include "redis_job.h"

#include <assert.h>
#include <errno.h>
#include <hiredis/hiredis.h>
#include <string.h>

#include "daemon/base/container_of.h"
#include "redis_chore.h"
#include "redis_endpoint.h"
#include "redis_io.h"
#include "redis_tier.h"
#include "redis_topology.h"

enum { DELAY_MS = 50 };

static bool begins(const char *text, const char *with)
{
	return strncmp(text, with, strlen(with)) == 0;
}

/* A slot on its way from one endpoint to another, or a Cluster that is voting. */
static bool passes(const char *words)
{
	return begins(words, "TRYAGAIN") || begins(words, "CLUSTERDOWN");
}

/* --- waiting and ending --- */

void redis_job_end(struct redis_io *io, struct redis_job *job, int status)
{
	assert(job->phase != REDIS_ENDED && status <= 0);
	loop_timer_unset(io->loop, &job->timer);
	job->phase = REDIS_ENDED;
	job->status = io->stopping && status == -ECONNRESET ? -ECANCELED : status;
	job->endpoint = NULL;
	mails_append(&io->ended, &job->mail);
}

/* DELAYED, and its deadline has come. */
static void gave_up(struct redis_job *job)
{
	const char *words = job->command.error;

	/* The Cluster is down for longer than a job lasts: the next jobs need not wait for it. */
	if (job->endpoint->used && passes(words))
		redis_endpoint_verdict(job->endpoint, redis_verdict(words, strlen(words)), false,
				       words);
	redis_job_end(job->endpoint->io, job, -ETIMEDOUT);
}

static void on_delay_over(struct loop_timer *timer)
{
	struct redis_job *job = container_of(timer, struct redis_job, timer);
	struct redis_io *io = job->endpoint->io;

	assert(job->phase == REDIS_DELAYED);
	if (loop_now(io->loop) >= job->deadline_ns)
		gave_up(job);
	else
		redis_topology_route(io, job);
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

void redis_job_begin(struct redis_io *io, struct redis_job *job)
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
		redis_topology_route(io, job);
}

void redis_job_cancel(struct redis_io *io, struct redis_job *job)
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

/* --- what the end of a command means --- */

static void delete_bad(const struct redis_job *job)
{
	struct redis_condemned what = { .name = job->name,
					.length = job->value.length,
					.packed = job->value.packed };

	if (!job->value.hashed)
		return;
	memcpy(what.sha1, job->value.sha1, sizeof(what.sha1));
	redis_chore_delete(job->endpoint, &what);
}

/* The reply to a probe: whether there is such a value, or where its front was asked for, such a
 * block. */
static int probe_answered(struct redis_job *job)
{
	const struct redisReply *reply = job->command.reply;
	struct redis_counters *counters = &job->endpoint->counters;
	struct redis_front front;
	struct image_shape shape;
	int r;

	if (!job->value.geometry) {
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
		return c->status == -ENOTSUP ? -ENOENT : c->status;
	case XFER_WRITE:
		if (c->reply->type != REDIS_REPLY_STATUS || strcmp(c->reply->str, "OK") != 0)
			break;
		counters->sets_total++;
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
	return -EREMOTEIO;
}

static int refused(struct redis_job *job, enum redis_verdict verdict)
{
	const char *words = job->command.error;
	const bool store = job->op == XFER_WRITE;
	struct redis_endpoint *endpoint = job->endpoint;

	/* A Cluster that votes: reads wait for it; stores have time, and are megabytes each time.
	 * */
	if (store && (verdict == REDIS_SAYS_NO_STORES || begins(words, "CLUSTERDOWN"))) {
		endpoint->counters.refused_stores_total++;
		redis_endpoint_verdict(endpoint, REDIS_SAYS_NO_STORES, true, words);
		return begins(words, "OOM") ? -ENOSPC : -EROFS;
	}
	if (verdict == REDIS_SAYS_NOT_YOU && begins(words, "NOPERM") && job->op != XFER_READ) {
		/* Without the right to SET a user may still GET; without EXISTS or GETRANGE only
		 * hints are lost. */
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

static void error_reply(struct redis_job *job)
{
	const char *words = job->command.error;
	const enum redis_verdict verdict = redis_verdict(words, strlen(words));
	struct redis_io *io = job->endpoint->io;

	if (verdict == REDIS_SAYS_MOVED && redis_topology_redirected(io, job, words))
		return;
	io->topology.wanted |= passes(words);
	if (loop_now(io->loop) < job->deadline_ns &&
	    ((passes(words) && job->op != XFER_WRITE) ||
	     redis_link_was_too_many(job->endpoint, job->command.conn, words))) {
		redis_job_delay(io, job);
		return;
	}
	redis_job_end(io, job, refused(job, verdict));
}

static void sent_done(struct redis_command *command)
{
	struct redis_job *job = (struct redis_job *)command; /* first member */
	struct redis_endpoint *endpoint = job->endpoint;
	struct redis_io *io = endpoint->io;

	assert(job->phase == REDIS_SENT && endpoint->in_flight > 0);
	endpoint->in_flight--;
	if (endpoint->waiting.n > 0)
		redis_endpoint_kick(endpoint);
	job->phase = REDIS_IDLE;
	switch (command->status) {
	case -ECANCELED:
		redis_job_end(io, job, -ECANCELED);
		return;
	case -ETIMEDOUT:
		endpoint->counters.timeouts_total++;
		redis_endpoint_failed(endpoint, redis_endpoint_why(command));
		redis_job_end(io, job, -ETIMEDOUT);
		return;
	case -ECONNRESET:
		endpoint->counters.resets_total++;
		redis_endpoint_failed(endpoint, redis_endpoint_why(command));
		redis_job_end(io, job, atomic_load(&job->cancelled) ? -ECANCELED : -ECONNRESET);
		return;
	case -EREMOTEIO:
		error_reply(job);
		return;
	default:
		redis_job_end(io, job, judge_answer(job));
	}
}

/* --- sending --- */

static void asking_done(struct redis_chore *chore)
{
	/* the command behind ASKING tells how it went */
	redis_chore_give(chore->endpoint->io, chore);
}

static int send_asking(struct redis_job *job, struct redis_conn *conn)
{
	static const char *const words[] = { "ASKING" };
	struct redis_io *io = job->endpoint->io;
	struct redis_chore *chore;
	int r;

	/* Both or none: an ASKING alone would be for the next command, which did not ask for it. */
	if (redis_conn_in_flight(conn) + 2 > REDIS_CONN_COMMANDS)
		return -EAGAIN;
	chore = redis_chore_take(io);
	if (!chore)
		return -EAGAIN;
	chore->done = asking_done;
	redis_command_words(&chore->command, words, 1);
	r = redis_chore_send(chore, job->endpoint, conn);
	if (r)
		redis_chore_give(io, chore);
	return r;
}

int redis_job_send(struct redis_job *job, struct redis_conn *conn)
{
	struct redis_command *c = &job->command;
	const struct redis *r = job->endpoint->io->tier;
	int err = job->asking ? send_asking(job, conn) : 0;

	if (err)
		return err;
	c->value = NULL;
	switch (job->op) {
	case XFER_READ:
		redis_command_get(c, job->name.text, job->name.bytes);
		c->value = &job->value;
		break;
	case XFER_WRITE:
		err = redis_command_set(c, job->name.text, job->name.bytes, job->buffer,
					&job->shape, job->seal, r->ttl_ms);
		break;
	case XFER_PROBE:
		if (job->value.geometry)
			redis_command_front(c, job->name.text, job->name.bytes,
					    sizeof(struct redis_front));
		else
			redis_command_exists(c, job->name.text, job->name.bytes);
		break;
	}
	c->deadline_ns = job->deadline_ns;
	c->done = sent_done;
	if (!err)
		err = redis_conn_submit(conn, c);
	if (err)
		return err;
	job->asking = false;
	job->phase = REDIS_SENT;
	job->endpoint->in_flight++;
	return 0;
}
