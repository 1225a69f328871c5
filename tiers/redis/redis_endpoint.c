/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_endpoint.c - one endpoint: the jobs that wait for one of its links, its trial, its turn.
 * Contract: redis_endpoint.h; its health: redis_health.h. I/O thread only.
 *
 *	        lookup, connect                  answered
 *	opened ───────────────> trial on link 0 ────────> usable; links are opened as needed
 *	                           ^    │ fails             │ 3 failures, -LOADING, -NOAUTH...
 *	                           │    v                   v
 *	                           └─ resting: links closed, jobs ended, nothing sent for a while
 *
 * Invariants
 *   N1 the breaker decides. After a rest it lets through one connection and one command, the trial:
 *      a GET of a name that nobody has, because an endpoint may answer PING and yet refuse every
 *      GET (-NOPERM, -MASTERDOWN). An endpoint that was just opened has its trial, too, so that a
 *      wrong password is seen before an engine waits.
 *   N2 SETs go to the first half of the links only: where there are several, a GET need not queue
 *      behind megabytes. And only a little more of them is submitted than the socket takes: a SET
 *      that is half out when its deadline comes costs the connection, with all that is on it.
 *   N3 connections are closed in redis_endpoint_turn() only: in a timer's callback, never inside
 *      one of the connection's.
 */
#include "redis_endpoint.h"

#include <assert.h>
#include <errno.h>
#include <hiredis/hiredis.h>
#include <stdio.h>
#include <string.h>

#include "daemon/base/container_of.h"
#include "redis_chore.h"
#include "redis_health.h"
#include "redis_io.h"
#include "tiers/redis/conn/redis_address.h"

enum {
	LOOKUP_POLL_MS = 5,
	/* a look-up takes a few ms, or seconds: then the tick is soon enough */
	LOOKUP_SOON_MS = 100,
};

static const char nobody[] = "0000000000000000000000000000000000000000000000000000000000000000";

static uint64_t now_of(const struct redis_endpoint *endpoint)
{
	return loop_now(endpoint->io->loop);
}

bool redis_endpoint_idle(const struct redis_endpoint *endpoint)
{
	return endpoint->waiting.n == 0 && endpoint->in_flight == 0 && !endpoint->trial;
}

const char *redis_endpoint_itself(const struct redis_endpoint *endpoint)
{
	return endpoint->io->tier->tls ? endpoint->address : redis_link_address(endpoint);
}

void redis_endpoint_counters(const struct redis_endpoint *endpoint, struct redis_counters *ret)
{
	*ret = endpoint->counters;
	ret->breaker_opens_total += endpoint->breaker.opens_total;
	redis_links_count(endpoint, ret);
}

void redis_counters_add(struct redis_counters *sum, const struct redis_counters *c)
{
	sum->gets_total += c->gets_total;
	sum->hits_total += c->hits_total;
	sum->sets_total += c->sets_total;
	sum->probes_total += c->probes_total;
	sum->received_bytes_total += c->received_bytes_total;
	sum->sent_bytes_total += c->sent_bytes_total;
	sum->corrupt_total += c->corrupt_total;
	sum->forged_total += c->forged_total;
	sum->other_forms_total += c->other_forms_total;
	sum->deleted_total += c->deleted_total;
	sum->timeouts_total += c->timeouts_total;
	sum->resets_total += c->resets_total;
	sum->errors_total += c->errors_total;
	sum->refused_stores_total += c->refused_stores_total;
	sum->redirects_total += c->redirects_total;
	sum->refused_hosts_total += c->refused_hosts_total;
	sum->late_total += c->late_total;
	sum->protocol_errors_total += c->protocol_errors_total;
	sum->breaker_opens_total += c->breaker_opens_total;
	sum->reconnects_total += c->reconnects_total;
	sum->topology_total += c->topology_total;
}

/* --- the trial --- */

static void trial_done(struct redis_chore *chore)
{
	const struct redis_command *c = &chore->command;
	struct redis_endpoint *endpoint = chore->endpoint;
	enum redis_verdict verdict;

	endpoint->trial = NULL;
	if (c->status == -EREMOTEIO) {
		verdict = redis_verdict(c->error, strlen(c->error));
		redis_health_verdict(endpoint, verdict, false, c->error);
	} else if (c->status == -ETIMEDOUT || c->status == -ECONNRESET || c->status == -ECANCELED) {
		redis_health_failed(endpoint, redis_health_why(c));
	} else {
		redis_health_answered(endpoint);
	}
	redis_chore_give(endpoint->io, chore);
	redis_io_kick(endpoint);
}

/* Any reply to the trial is an answer; no image has this identity. */
static void send_trial(struct redis_endpoint *endpoint, struct redis_conn *conn)
{
	static const struct image_identity identity;
	static const struct image_geometry geometry;
	struct redis_chore *chore = redis_chore_take(endpoint->io);
	char name[REDIS_PREFIX_BYTES + sizeof(nobody)];

	if (!chore)
		return;
	(void)snprintf(name, sizeof(name), "%s%s", endpoint->io->tier->key_prefix, nobody);
	redis_command_get(&chore->command, name, strlen(name));
	chore->value = (struct redis_value){ .identity = &identity, .geometry = &geometry };
	chore->command.value = &chore->value;
	chore->done = trial_done;
	endpoint->trial = chore;
	if (redis_chore_send(chore, endpoint, conn)) {
		endpoint->trial = NULL;
		redis_chore_give(endpoint->io, chore);
	}
}

/* --- other chores --- */

int redis_endpoint_send(struct redis_endpoint *endpoint, struct redis_chore *chore)
{
	struct redis_link *link =
		redis_health_usable(endpoint) ? redis_link_pick(endpoint, XFER_PROBE, 0) : NULL;

	return link ? redis_chore_send(chore, endpoint, link->conn) : -ENOTCONN;
}

static void deleted(struct redis_chore *chore)
{
	const struct redis_command *c = &chore->command;
	struct redis_endpoint *endpoint = chore->endpoint;

	if (c->status == 0 && c->reply && c->reply->type == REDIS_REPLY_INTEGER &&
	    c->reply->integer == 1)
		endpoint->counters.deleted_total++;
	/* An ACL without EVAL, or an endpoint without scripts, is not asked again; it is no
	 * misconfiguration. */
	if (c->status == -EREMOTEIO &&
	    redis_verdict(c->error, strlen(c->error)) != REDIS_SAYS_MOVED)
		endpoint->refused_evals = true;
	redis_chore_give(endpoint->io, chore);
}

void redis_endpoint_delete(struct redis_endpoint *endpoint, const struct redis_condemned *what)
{
	struct redis_chore *chore = endpoint->refused_evals ? NULL : redis_chore_take(endpoint->io);

	if (!chore)
		return;
	redis_command_delete_if(&chore->command, what->name.text, what->name.bytes, what->sha1,
				what->packed, what->length);
	chore->done = deleted;
	if (redis_endpoint_send(endpoint, chore))
		/* the next read finds it bad again */
		redis_chore_give(endpoint->io, chore);
}

/* --- jobs --- */

/* One more connection, if none is being opened. */
static void grow(struct redis_endpoint *endpoint)
{
	struct redis_link *none = NULL;

	for (uint32_t i = endpoint->n_links; i-- > 0;) {
		if (!endpoint->links[i].conn)
			none = &endpoint->links[i];
		else if (!redis_link_is_up(&endpoint->links[i]))
			return;
	}
	if (none)
		redis_link_open(none);
}

static bool send_now(struct redis_endpoint *endpoint, struct redis_job *job)
{
	struct redis_link *link = redis_link_pick(endpoint, job->op, job->value.room);

	if (!link || redis_job_send(job, link->conn))
		return false;
	loop_timer_unset(endpoint->io->loop, &job->timer);
	if (redis_conn_in_flight(link->conn) > 1)
		grow(endpoint);
	return true;
}

/* In order; but when a job finds no room, jobs of other kinds behind it may pass. */
static void pump(struct redis_endpoint *endpoint)
{
	bool blocked[XFER_PROBE + 1] = { false };
	struct mails left;
	struct redis_job *job;

	mails_clear(&left);
	while (!(blocked[XFER_READ] && blocked[XFER_WRITE] && blocked[XFER_PROBE]) &&
	       (job = redis_job_take(&endpoint->waiting)) != NULL) {
		if (!blocked[job->op] && send_now(endpoint, job))
			continue;
		blocked[job->op] = true;
		mails_append(&left, &job->mail);
	}
	mails_move(&left, &endpoint->waiting);
	mails_move(&endpoint->waiting, &left);
	if (endpoint->waiting.n > 0)
		grow(endpoint);
}

static void on_waited_out(struct loop_timer *timer)
{
	struct redis_job *job = container_of(timer, struct redis_job, timer);
	struct redis_endpoint *endpoint = job->endpoint;

	assert(job->phase == REDIS_WAITING);
	mails_remove(&endpoint->waiting, &job->mail);
	endpoint->counters.timeouts_total++;
	/* No command on its links was answered. An endpoint that answers, and has more to do than
	 * it can, is well. */
	if (endpoint->proven &&
	    now_of(endpoint) - endpoint->answered_ns >= endpoint->io->tier->timeout_ms * 1000000ull)
		redis_health_failed(endpoint, "no answer within timeout_ms");
	redis_job_end(endpoint->io, job, -ETIMEDOUT);
}

void redis_endpoint_submit(struct redis_endpoint *endpoint, struct redis_job *job)
{
	job->endpoint = endpoint;
	if (endpoint->breaker.state != REDIS_CLOSED) {
		redis_job_end(endpoint->io, job, -ENODEV);
		return;
	}
	if (endpoint->proven && endpoint->waiting.n == 0 && send_now(endpoint, job))
		return;
	job->phase = REDIS_WAITING;
	job->timer.fire = on_waited_out;
	loop_timer_set(endpoint->io->loop, &job->timer, job->deadline_ns);
	mails_append(&endpoint->waiting, &job->mail);
	redis_io_kick(endpoint);
}

void redis_endpoint_cancel(struct redis_endpoint *endpoint, struct redis_job *job)
{
	if (job->phase == REDIS_SENT) {
		redis_conn_cancel(&job->command);
		return;
	}
	mails_remove(&endpoint->waiting, &job->mail);
	redis_job_end(endpoint->io, job, -ECANCELED);
}

static void end_waiting(struct redis_endpoint *endpoint, int status)
{
	struct redis_job *job;

	while ((job = redis_job_take(&endpoint->waiting)) != NULL)
		redis_job_end(endpoint->io, job, status);
}

/* --- the turn --- */

/* Whether a connection to the endpoint is kept: it has slots, or it is a seed and no other endpoint
 * can be asked for the map. */
static bool is_kept(const struct redis_endpoint *endpoint)
{
	if (endpoint->listed)
		return true;
	if (!endpoint->seed)
		return false;
	for (uint32_t i = 0; i < REDIS_ALL_ENDPOINTS; i++)
		if (endpoint->io->endpoints[i].used && endpoint->io->endpoints[i].listed &&
		    redis_health_usable(&endpoint->io->endpoints[i]))
			return false;
	return true;
}

static void try_it(struct redis_endpoint *endpoint)
{
	struct redis_link *link = &endpoint->links[0];

	if (!link->conn)
		redis_link_open(link);
	else if (redis_link_is_up(link) && !endpoint->trial)
		send_trial(endpoint, link->conn);
}

void redis_endpoint_turn(struct redis_endpoint *endpoint)
{
	const bool wanted = endpoint->waiting.n > 0 || is_kept(endpoint);

	redis_link_lookup(endpoint);
	redis_links_bury(endpoint);
	if (endpoint->breaker.state == REDIS_OPEN) {
		redis_links_close(endpoint);
		end_waiting(endpoint, -ENODEV);
		if (!wanted || !redis_breaker_try(&endpoint->breaker, now_of(endpoint)))
			return;
	}
	if (!wanted && redis_endpoint_idle(endpoint)) {
		redis_links_close(endpoint);
	} else if (!endpoint->proven) {
		try_it(endpoint);
	} else {
		/* one is kept, so that an endpoint that is gone is noticed */
		if (!endpoint->links[0].conn)
			redis_link_open(&endpoint->links[0]);
		pump(endpoint);
	}
	if (endpoint->lookup &&
	    now_of(endpoint) < endpoint->lookup_ns + LOOKUP_SOON_MS * 1000000ull)
		loop_timer_set(endpoint->io->loop, &endpoint->turn,
			       now_of(endpoint) + LOOKUP_POLL_MS * 1000000ull);
}

static void on_turn(struct loop_timer *timer)
{
	redis_endpoint_turn(container_of(timer, struct redis_endpoint, turn));
}

/* --- open and close --- */

void redis_endpoint_open(struct redis_endpoint *endpoint, struct redis_io *io, const char *address)
{
	const uint32_t half = io->tier->connections / 2;

	*endpoint = (struct redis_endpoint){ .io = io, .used = true };
	endpoint->n_links = io->tier->connections;
	(void)snprintf(endpoint->address, sizeof(endpoint->address), "%s", address);
	if (redis_address_numeric(address)) {
		memcpy(endpoint->resolved[0], endpoint->address, sizeof(endpoint->address));
		endpoint->n_resolved = 1;
	}
	for (uint32_t i = 0; i < endpoint->n_links; i++) {
		endpoint->links[i].endpoint = endpoint;
		endpoint->links[i].stores = i < (half ? half : 1);
	}
	mails_clear(&endpoint->waiting);
	redis_breaker_open(&endpoint->breaker, now_of(endpoint) ^ (uintptr_t)endpoint);
	endpoint->turn.fire = on_turn;
	redis_io_kick(endpoint);
}

void redis_endpoint_close(struct redis_endpoint *endpoint)
{
	struct redis_counters counters;

	redis_links_close(endpoint);
	end_waiting(endpoint, -ECONNRESET);
	redis_lookup_abandon(&endpoint->io->lookups, endpoint->lookup);
	loop_timer_unset(endpoint->io->loop, &endpoint->turn);
	redis_endpoint_counters(endpoint, &counters);
	redis_counters_add(&endpoint->io->gone, &counters);
	endpoint->lookup = NULL;
	endpoint->used = endpoint->listed = endpoint->proven = false;
	assert(redis_endpoint_idle(endpoint));
}
