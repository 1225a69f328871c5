/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_attempt.c - the attempts of a job: the first one begun, each one judged, all of them called
 * off. Contract: redis_attempt.h. I/O thread only.
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
 *	-MOVED, -ASK                 goes on elsewhere     is well
 *	-TRYAGAIN, -CLUSTERDOWN      goes on in 50 ms      is well until the deadline
 *	-CLUSTERDOWN to a SET        -EROFS                takes no stores for a while
 *	-OOM                         -ENOSPC               takes no stores for a while
 *	-READONLY, -MISCONF...       -EROFS                takes no stores for a while
 *	-NOPERM to a SET             -EROFS                takes no stores for a while, and says why
 *	-NOPERM to GETRANGE          goes on with STRLEN   is well
 *	-NOAUTH, -NOPERM...          -EACCES               is misconfigured
 *	-LOADING, -BUSY...           -EREMOTEIO            is not asked for a while
 *	-ERR max number of clients   as -LOADING; with another link up: goes on there
 *	another error                -EREMOTEIO            is well; of a SET: takes no stores
 *	none                         -ETIMEDOUT,           has failed once
 *	                             -ECONNRESET
 */
#include "redis_attempt.h"

#include <assert.h>
#include <errno.h>
#include <hiredis/hiredis.h>
#include <string.h>

#include "redis_endpoint.h"
#include "redis_health.h"
#include "redis_io.h"
#include "redis_topology.h"

static bool begins(const char *text, const char *with)
{
	return strncmp(text, with, strlen(with)) == 0;
}

static void delete_bad(const struct redis_job *job)
{
	struct redis_condemned what = { .name = job->name,
					.length = job->value.length,
					.packed = job->value.packed };

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

/* An answer that is no error. */
static int judge_answer(struct redis_job *job)
{
	const struct redis_command *c = &job->command;
	struct redis_counters *counters = &job->endpoint->counters;
	int r;

	redis_health_answered(job->endpoint);
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
		redis_health_stored(job->endpoint);
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
		redis_health_untaken(job->endpoint, true, "a store is answered, but not by OK");
	return -EREMOTEIO;
}

static int refused(struct redis_job *job, enum redis_verdict verdict)
{
	const char *words = job->command.error;
	const bool store = is_store(job);
	struct redis_endpoint *endpoint = job->endpoint;

	if (store)
		redis_health_untaken(endpoint, true, words);
	/* While a Cluster votes, reads wait for it. Stores do not: they have time, and each try
	 * sends megabytes. */
	if (store && (verdict == REDIS_SAYS_NO_STORES || begins(words, "CLUSTERDOWN"))) {
		endpoint->counters.refused_stores_total++;
		redis_health_verdict(endpoint, REDIS_SAYS_NO_STORES, true, words);
		return begins(words, "OOM") ? -ENOSPC : -EROFS;
	}
	if (verdict == REDIS_SAYS_NOT_YOU && begins(words, "NOPERM") && job->op != XFER_READ) {
		/* Without the right to SET a user may still GET; without EXISTS, or GETRANGE
		 * and STRLEN, only hints are lost. */
		endpoint->counters.refused_stores_total += store;
		if (store)
			redis_health_verdict(endpoint, verdict, true, words);
		return store ? -EROFS : -EACCES;
	}
	redis_health_verdict(endpoint, verdict, false, words);
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
	const enum redis_verdict verdict = redis_verdict(words, strlen(words));
	struct redis_io *io = job->endpoint->io;

	if (verdict == REDIS_SAYS_MOVED && redis_topology_redirected(io, job, words))
		return;
	io->topology.wanted |= redis_slots_pass(words);
	if (loop_now(io->loop) < job->deadline_ns &&
	    ((redis_slots_pass(words) && job->op != XFER_WRITE) ||
	     redis_link_was_too_many(job->endpoint, job->command.conn, words))) {
		redis_topology_delay(io, job);
		return;
	}
	if (!ask_for_length(job, verdict))
		redis_job_end(io, job, refused(job, verdict));
}

static void no_answer(struct redis_job *job)
{
	const char *why = redis_health_why(&job->command);

	redis_health_failed(job->endpoint, why);
	if (is_store(job))
		redis_health_untaken(job->endpoint, false, why);
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

void redis_attempt_begin(struct redis_io *io, struct redis_job *job)
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
	else
		redis_topology_route(io, job);
}

void redis_attempt_cancel(struct redis_io *io, struct redis_job *job)
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
		/* ended, or not taken yet; the flag may also be that of an earlier xfer */
		break;
	}
}
