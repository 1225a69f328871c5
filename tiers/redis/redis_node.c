/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_node.c - one Redis server: its connections, the jobs that wait for one, and its health. I/O thread only.
 *
 *	          lookup, connect                trial answered
 *	opened ─────────────────> trial on link 0 ─────────────> usable <─> (some links down: opened again as needed)
 *	                             ^      │ fails                │ 3 failures, -LOADING, -NOAUTH...
 *	                             │      v                      v
 *	                             └── resting: links closed, jobs ended, nothing is sent until its wait is over
 *
 * Invariants
 *   N1 the breaker decides; what it lets through after a rest is one connection and one command, the trial: a GET of
 *      a name that nobody has, because a server may answer PING and yet refuse every GET (-NOPERM, -MASTERDOWN). A
 *      server that was just opened has its trial, too, so that wrong passwords are seen before an engine waits.
 *   N2 failures that come in one turn count once: one connection died, or one stall was seen, with all that was on it.
 *   N3 SETs go to the first half of the links only, so that where there are several a GET need not queue behind
 *      megabytes; and no more of them than a little ahead of the socket, because one whose bytes are half out when
 *      its deadline comes costs the connection, and all that is on it.
 *   N4 connections are closed in redis_node_turn() only: a timer's callback, never inside one of the connection's.
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/base/container_of.h"
#include "daemon/base/log.h"
#include "redis_inner.h"

enum {
	LOG_MS = 60000,
	LOOKUP_POLL_MS = 5,
	LOOKUP_SOON_MS = 100,		/* a look-up takes a few ms, or seconds: then the tick is soon enough */
};

static const char nobody[] = "0000000000000000000000000000000000000000000000000000000000000000";

static uint64_t now_of(const struct redis_node *node)
{
	return loop_now(node->io->loop);
}

void redis_node_kick(struct redis_node *node)
{
	loop_timer_set(node->io->loop, &node->turn, now_of(node));
}

bool redis_node_usable(const struct redis_node *node)
{
	return node->proven && node->breaker.state == REDIS_CLOSED;
}

bool redis_node_idle(const struct redis_node *node)
{
	return node->waiting.n == 0 && node->in_flight == 0 && !node->trial;
}

/* --- health --- */

/* Servers repeat what they did not understand, a password perhaps. */
void redis_words(const struct redis *r, const char *words, char *ret, size_t n)
{
	const char *echo = strstr(words, ", with args");

	(void)snprintf(ret, n, "%.*s", (int)(echo ? echo - words : (ptrdiff_t)strlen(words)), words);
	if (redis_words_betray(ret, r->login->password))
		(void)snprintf(ret, n, "an error whose words repeat the password");
}

static void say_why(struct redis_node *node, const char *words)
{
	redis_words(node->io->tier, words, node->text, sizeof node->text);
}

/* Once a minute: for each endpoint, and for all others together, of which a map may name new ones every second. */
static void log_refusal(struct redis_node *node)
{
	uint64_t *logged_ns = node->seed ? &node->logged_ns : &node->io->logged_ns;

	if (!node->breaker.misconfigured || (*logged_ns && now_of(node) < *logged_ns + LOG_MS * 1000000ull))
		return;
	*logged_ns = now_of(node);
	if (node->foreign) {
		log_warning("Redis at %s is %s; add its host there if it is of the Cluster", node->address, node->text);
		return;
	}
	log_warning("Redis at %s refuses %s: %s", node->address, node->breaker.stores_alone ? "stores" : "kvtierd",
		    node->text);
}

const char *redis_why(const struct redis_command *c)
{
	const char *text = "";

	if (c->status == -ETIMEDOUT)
		return "no answer within timeout_ms";
	(void)redis_conn_why(c->conn, &text);
	return text[0] ? text : "the connection was lost";
}

/* After the breaker has heard something. */
static void judged(struct redis_node *node, bool bad)
{
	const bool was_usable = node->proven;

	log_refusal(node);
	if (node->breaker.state != REDIS_CLOSED) {
		node->proven = false;
		node->io->topology.wanted = true;	/* another server may have its slots soon */
		redis_node_kick(node);
	} else if (!bad) {
		node->proven = true;
	}
	if (was_usable == node->proven)
		return;
	redis_view_flags(node->io);
	if (node->proven)
		redis_topology_ask(node->io);
}

void redis_node_answered(struct redis_node *node)
{
	node->answered_ns = now_of(node);
	redis_breaker_success(&node->breaker, now_of(node));
	judged(node, false);
}

void redis_node_stored(struct redis_node *node)
{
	redis_breaker_stored(&node->breaker);
}

void redis_node_failed(struct redis_node *node, const char *why)
{
	if (node->hushed || (node->breaker.state == REDIS_CLOSED && node->failed_ns == now_of(node)))
		return;
	node->failed_ns = now_of(node);
	if (node->breaker.state != REDIS_OPEN)
		say_why(node, why);
	redis_breaker_failure(&node->breaker, now_of(node));
	judged(node, true);
}

void redis_node_verdict(struct redis_node *node, enum redis_verdict verdict, bool store, const char *words)
{
	const bool bad = verdict == REDIS_SAYS_NO_STORES || verdict == REDIS_SAYS_NOT_NOW ||
			 verdict == REDIS_SAYS_NOT_YOU;
	const bool took_stores = redis_breaker_takes_stores(&node->breaker, now_of(node));

	node->answered_ns = now_of(node);
	if (bad)
		say_why(node, words);
	redis_breaker_verdict(&node->breaker, verdict, store, now_of(node));
	judged(node, bad && !(store || verdict == REDIS_SAYS_NO_STORES));
	if (took_stores != redis_breaker_takes_stores(&node->breaker, now_of(node)))
		redis_view_flags(node->io);
}

/* --- commands --- */

static void chore_done(struct redis_command *command)
{
	struct redis_chore *chore = (struct redis_chore *)command;	/* first member */

	chore->done(chore);
}

int redis_chore_send(struct redis_chore *chore, struct redis_node *node, struct redis_conn *conn)
{
	chore->node = node;
	chore->command.deadline_ns = redis_io_deadline(node->io);
	chore->command.done = chore_done;
	return redis_conn_submit(conn, &chore->command);
}

int redis_node_chore(struct redis_node *node, struct redis_chore *chore)
{
	struct redis_link *link = redis_node_usable(node) ? redis_link_pick(node, XFER_PROBE, 0) : NULL;

	return link ? redis_chore_send(chore, node, link->conn) : -ENOTCONN;
}

static void trial_done(struct redis_chore *chore)
{
	const struct redis_command *c = &chore->command;
	struct redis_node *node = chore->node;
	enum redis_verdict verdict;

	node->trial = NULL;
	if (c->status == -EREMOTEIO) {
		verdict = redis_verdict(c->error, strlen(c->error));
		redis_node_verdict(node, verdict, false, c->error);
	} else if (c->status == -ETIMEDOUT || c->status == -ECONNRESET || c->status == -ECANCELED) {
		redis_node_failed(node, redis_why(c));
	} else {
		redis_node_answered(node);
	}
	redis_chore_give(node->io, chore);
	redis_node_kick(node);
}

/* Whatever the answer is, it is one: the identity fits no image. */
static void send_trial(struct redis_node *node, struct redis_conn *conn)
{
	static const struct image_identity identity;
	static const struct image_geometry geometry;
	struct redis_chore *chore = redis_chore_take(node->io);
	char name[REDIS_PREFIX_BYTES + sizeof nobody];

	if (!chore)
		return;
	(void)snprintf(name, sizeof name, "%s%s", node->io->tier->key_prefix, nobody);
	redis_command_get(&chore->command, name, strlen(name));
	chore->value = (struct redis_value){ .identity = &identity, .geometry = &geometry };
	chore->command.value = &chore->value;
	chore->done = trial_done;
	node->trial = chore;
	if (redis_chore_send(chore, node, conn)) {
		node->trial = NULL;
		redis_chore_give(node->io, chore);
	}
}

/* --- jobs --- */

/* One more connection, if none is being opened. */
static void grow(struct redis_node *node)
{
	struct redis_link *none = NULL;

	for (uint32_t i = node->n_links; i-- > 0;) {
		if (!node->links[i].conn)
			none = &node->links[i];
		else if (!redis_link_is_up(&node->links[i]))
			return;
	}
	if (none)
		redis_link_open(none);
}

static bool send_now(struct redis_node *node, struct redis_job *job)
{
	struct redis_link *link = redis_link_pick(node, job->op, job->value.room);

	if (!link || redis_job_send(job, link->conn))
		return false;
	loop_timer_unset(node->io->loop, &job->timer);
	if (redis_conn_in_flight(link->conn) > 1)
		grow(node);
	return true;
}

/* In order, but those of a kind that finds no room let the others behind them pass. */
static void pump(struct redis_node *node)
{
	bool blocked[XFER_PROBE + 1] = { false };
	struct redis_jobs left;
	struct redis_job *job;

	redis_jobs_clear(&left);
	while (!(blocked[XFER_READ] && blocked[XFER_WRITE] && blocked[XFER_PROBE]) &&
	       (job = redis_jobs_take(&node->waiting)) != NULL) {
		if (!blocked[job->op] && send_now(node, job))
			continue;
		blocked[job->op] = true;
		redis_jobs_append(&left, job);
	}
	redis_jobs_move(&left, &node->waiting);
	redis_jobs_move(&node->waiting, &left);
	if (node->waiting.n > 0)
		grow(node);
}

static void on_waited_out(struct loop_timer *timer)
{
	struct redis_job *job = container_of(timer, struct redis_job, timer);
	struct redis_node *node = job->node;

	assert(job->phase == REDIS_WAITING);
	redis_jobs_remove(&node->waiting, job);
	node->counters.timeouts_total++;
	/* What is on its links is not answered. One that has more to do than it can is well. */
	if (node->proven && now_of(node) - node->answered_ns >= node->io->tier->timeout_ms * 1000000ull)
		redis_node_failed(node, "no answer within timeout_ms");
	redis_job_end(node->io, job, -ETIMEDOUT);
}

void redis_node_submit(struct redis_node *node, struct redis_job *job)
{
	job->node = node;
	if (node->breaker.state != REDIS_CLOSED) {
		redis_job_end(node->io, job, -ENODEV);
		return;
	}
	if (node->proven && node->waiting.n == 0 && send_now(node, job))
		return;
	job->phase = REDIS_WAITING;
	job->timer.fire = on_waited_out;
	loop_timer_set(node->io->loop, &job->timer, job->deadline_ns);
	redis_jobs_append(&node->waiting, job);
	redis_node_kick(node);
}

void redis_node_cancel(struct redis_node *node, struct redis_job *job)
{
	if (job->phase == REDIS_SENT) {
		redis_conn_cancel(&job->command);
		return;
	}
	redis_jobs_remove(&node->waiting, job);
	redis_job_end(node->io, job, -ECANCELED);
}

static void end_waiting(struct redis_node *node, int status)
{
	struct redis_job *job;

	while ((job = redis_jobs_take(&node->waiting)) != NULL)
		redis_job_end(node->io, job, status);
}

/* --- the turn --- */

static void try_it(struct redis_node *node)
{
	struct redis_link *link = &node->links[0];

	if (!link->conn)
		redis_link_open(link);
	else if (redis_link_is_up(link) && !node->trial)
		send_trial(node, link->conn);
}

void redis_node_turn(struct redis_node *node)
{
	const bool wanted = node->waiting.n > 0 || redis_node_wanted(node);

	redis_link_lookup(node);
	redis_links_bury(node);
	if (node->breaker.state == REDIS_OPEN) {
		redis_links_close(node);
		end_waiting(node, -ENODEV);
		if (!wanted || !redis_breaker_try(&node->breaker, now_of(node)))
			return;
	}
	if (!wanted && redis_node_idle(node)) {
		redis_links_close(node);
	} else if (!node->proven) {
		try_it(node);
	} else {
		if (!node->links[0].conn)	/* one is kept, so that a server that is gone is noticed */
			redis_link_open(&node->links[0]);
		pump(node);
	}
	if (node->lookup && now_of(node) < node->lookup_ns + LOOKUP_SOON_MS * 1000000ull)
		loop_timer_set(node->io->loop, &node->turn, now_of(node) + LOOKUP_POLL_MS * 1000000ull);
}

static void on_turn(struct loop_timer *timer)
{
	redis_node_turn(container_of(timer, struct redis_node, turn));
}

/* --- open and close --- */

void redis_node_open(struct redis_node *node, struct redis_io *io, const char *address)
{
	const uint32_t half = io->tier->connections / 2;

	*node = (struct redis_node){ .io = io, .used = true, .n_links = io->tier->connections };
	(void)snprintf(node->address, sizeof node->address, "%s", address);
	if (redis_is_numeric(address)) {
		memcpy(node->resolved[0], node->address, sizeof node->address);
		node->n_resolved = 1;
	}
	for (uint32_t i = 0; i < node->n_links; i++) {
		node->links[i].node = node;
		node->links[i].stores = i < (half ? half : 1);
	}
	redis_jobs_clear(&node->waiting);
	redis_breaker_open(&node->breaker, now_of(node) ^ (uintptr_t)node);
	node->turn.fire = on_turn;
	redis_node_kick(node);
}

void redis_node_close(struct redis_node *node)
{
	struct redis_counters counters;

	redis_links_close(node);
	end_waiting(node, -ECONNRESET);
	redis_lookup_abandon(&node->io->lookups, node->lookup);
	loop_timer_unset(node->io->loop, &node->turn);
	redis_node_counters(node, &counters);
	redis_counters_add(&node->io->gone, &counters);
	node->lookup = NULL;
	node->used = node->listed = node->proven = false;
	assert(redis_node_idle(node));
}
