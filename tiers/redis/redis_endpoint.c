/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_endpoint.c - one endpoint: the jobs that wait for one of its links, its trial, its health.
 * Contract: redis_endpoint.h. I/O thread only.
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
 *   N2 failures that come in one turn count once: one connection died, or one stall was seen, with
 *      all that was on it.
 *   N3 SETs go to the first half of the links only: where there are several, a GET need not queue
 *      behind megabytes. And only a little more of them is submitted than the socket takes: a SET
 *      that is half out when its deadline comes costs the connection, with all that is on it.
 *   N4 connections are closed in redis_endpoint_turn() only: in a timer's callback, never inside
 *      one of the connection's.
 */
#include "redis_endpoint.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/base/container_of.h"
#include "daemon/base/log.h"
#include "redis_chore.h"
#include "redis_io.h"
#include "redis_tier.h"
#include "redis_topology.h"
#include "redis_view.h"
#include "tiers/redis/conn/redis_address.h"
#include "tiers/redis/conn/redis_words.h"

enum {
	LOG_MS = 60000,
	LOOKUP_POLL_MS = 5,
	/* a look-up takes a few ms, or seconds: then the tick is soon enough */
	LOOKUP_SOON_MS = 100,
};

static const char nobody[] = "0000000000000000000000000000000000000000000000000000000000000000";

static uint64_t now_of(const struct redis_endpoint *endpoint)
{
	return loop_now(endpoint->io->loop);
}

void redis_endpoint_kick(struct redis_endpoint *endpoint)
{
	loop_timer_set(endpoint->io->loop, &endpoint->turn, now_of(endpoint));
}

bool redis_endpoint_usable(const struct redis_endpoint *endpoint)
{
	return endpoint->proven && endpoint->breaker.state == REDIS_CLOSED;
}

bool redis_endpoint_idle(const struct redis_endpoint *endpoint)
{
	return endpoint->waiting.n == 0 && endpoint->in_flight == 0 && !endpoint->trial;
}

const char *redis_endpoint_numeric(const struct redis_endpoint *endpoint)
{
	return endpoint->n_resolved ? endpoint->resolved[endpoint->at % endpoint->n_resolved] : "";
}

const char *redis_endpoint_itself(const struct redis_endpoint *endpoint)
{
	return endpoint->io->tier->tls ? endpoint->address : redis_endpoint_numeric(endpoint);
}

void redis_endpoint_counters(const struct redis_endpoint *endpoint, struct redis_counters *ret)
{
	*ret = endpoint->counters;
	ret->breaker_opens_total += endpoint->breaker.opens_total;
	redis_links_count(endpoint, ret);
}

/* --- health --- */

static void say_why(struct redis_endpoint *endpoint, const char *words)
{
	redis_words_show(words, endpoint->io->tier->login->password, endpoint->text,
			 sizeof(endpoint->text));
}

/* Once a minute: for each endpoint, and for all others together, of which a map may name new ones
 * every second. */
static void log_refusal(struct redis_endpoint *endpoint)
{
	uint64_t *logged_ns = endpoint->seed ? &endpoint->logged_ns : &endpoint->io->logged_ns;

	if (!endpoint->breaker.misconfigured ||
	    (*logged_ns && now_of(endpoint) < *logged_ns + LOG_MS * 1000000ull))
		return;
	*logged_ns = now_of(endpoint);
	if (endpoint->foreign) {
		log_warning("Redis at %s is %s; add its host there if it is of the Cluster",
			    endpoint->address, endpoint->text);
		return;
	}
	log_warning("Redis at %s refuses %s: %s", endpoint->address,
		    endpoint->breaker.stores_alone ? "stores" : "kvtierd", endpoint->text);
}

const char *redis_endpoint_why(const struct redis_command *c)
{
	const char *text = "";

	if (c->status == -ETIMEDOUT)
		return "no answer within timeout_ms";
	(void)redis_conn_why(c->conn, &text);
	return text[0] ? text : "the connection was lost";
}

/* After the breaker has heard something. */
static void judged(struct redis_endpoint *endpoint, bool bad)
{
	const bool was_usable = endpoint->proven;

	log_refusal(endpoint);
	if (endpoint->breaker.state != REDIS_CLOSED) {
		endpoint->proven = false;
		/* another endpoint may have its slots soon */
		endpoint->io->topology.wanted = true;
		redis_endpoint_kick(endpoint);
	} else if (!bad) {
		endpoint->proven = true;
	}
	if (was_usable == endpoint->proven)
		return;
	redis_view_flags(endpoint->io);
	if (endpoint->proven)
		redis_topology_ask(endpoint->io);
}

void redis_endpoint_answered(struct redis_endpoint *endpoint)
{
	endpoint->answered_ns = now_of(endpoint);
	redis_breaker_success(&endpoint->breaker, now_of(endpoint));
	judged(endpoint, false);
}

void redis_endpoint_stored(struct redis_endpoint *endpoint)
{
	redis_breaker_stored(&endpoint->breaker);
}

void redis_endpoint_failed(struct redis_endpoint *endpoint, const char *why)
{
	if (endpoint->hushed ||
	    (endpoint->breaker.state == REDIS_CLOSED && endpoint->failed_ns == now_of(endpoint)))
		return;
	endpoint->failed_ns = now_of(endpoint);
	if (endpoint->breaker.state != REDIS_OPEN)
		say_why(endpoint, why);
	redis_breaker_failure(&endpoint->breaker, now_of(endpoint));
	judged(endpoint, true);
}

void redis_endpoint_verdict(struct redis_endpoint *endpoint, enum redis_verdict verdict, bool store,
			    const char *words)
{
	const bool bad = verdict == REDIS_SAYS_NO_STORES || verdict == REDIS_SAYS_NOT_NOW ||
			 verdict == REDIS_SAYS_NOT_YOU;
	const bool took_stores = redis_breaker_takes_stores(&endpoint->breaker, now_of(endpoint));

	endpoint->answered_ns = now_of(endpoint);
	if (bad)
		say_why(endpoint, words);
	redis_breaker_verdict(&endpoint->breaker, verdict, store, now_of(endpoint));
	judged(endpoint, bad && !(store || verdict == REDIS_SAYS_NO_STORES));
	if (took_stores != redis_breaker_takes_stores(&endpoint->breaker, now_of(endpoint)))
		redis_view_flags(endpoint->io);
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
		redis_endpoint_verdict(endpoint, verdict, false, c->error);
	} else if (c->status == -ETIMEDOUT || c->status == -ECONNRESET || c->status == -ECANCELED) {
		redis_endpoint_failed(endpoint, redis_endpoint_why(c));
	} else {
		redis_endpoint_answered(endpoint);
	}
	redis_chore_give(endpoint->io, chore);
	redis_endpoint_kick(endpoint);
}

/* Whatever the answer is, it is one: the identity fits no image. */
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
		redis_endpoint_failed(endpoint, "no answer within timeout_ms");
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
	redis_endpoint_kick(endpoint);
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
	const bool wanted = endpoint->waiting.n > 0 || redis_topology_wants(endpoint);

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
	redis_breaker_open(&endpoint->breaker, now_of(endpoint) ^ (uintptr_t)endpoint,
			   io->tier->rest_ms);
	endpoint->turn.fire = on_turn;
	redis_endpoint_kick(endpoint);
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
