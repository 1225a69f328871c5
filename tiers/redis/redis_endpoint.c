/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_endpoint.c - one endpoint: its health, its links, the jobs that wait for one of them, its
 * trial, its poll. Contract: redis_endpoint.h. I/O thread only.
 *
 *	        lookup, connect                  answered
 *	opened ───────────────> trial on link 0 ────────> usable; links are opened as needed
 *	                           ^    │ fails             │ 3 failures, -LOADING, -NOAUTH...
 *	                           │    v                   v
 *	                           └─ resting: links closed, jobs ended, all quiet for a while
 *
 * Health: the breaker decides, from the news of commands and connections. This file has the words
 * for it, their log, and the consequences: the endpoint's poll, the question for a slot map, the
 * mark that the view has changed.
 *
 * A link:
 *
 *	empty ──open──> connecting ──> up ─────> dead ──bury──> empty
 *	                   └── refused, deadline ──^
 *
 * The death of a link counts as a failure of the endpoint in three cases: the link was never up;
 * the endpoint told it to go away; or it was up only for a moment (a proxy accepts connections
 * though its server is gone) and its commands have not told of the failure already. The death of a
 * link that was up for a while is no news, since Redis closes idle connections. After an opening
 * the next one waits RETRY_MS, so whatever an endpoint does makes no storm of connections. An
 * endpoint that has no room for one more connection of ours is well.
 *
 * A link asks ahead for two values, or READS_AHEAD_BYTES of smaller ones. That keeps Redis busy.
 * The bound has three reasons:
 *   - Redis copies all values that it was asked for before it sends the first; many values do not
 *     fit its CPU's cache.
 *   - Few bytes are still to come when no xfer waits for them any more.
 *   - A read that finds all links full can still be cancelled at no cost.
 *
 * A name may have several addresses. They are tried in turn; when all have failed, the name is
 * looked up again.
 *
 * Invariants
 *   N1 the breaker decides. After a rest it lets through one connection and one command, the trial:
 *      a GET of a name that no block has, because an endpoint may answer PING and yet refuse every
 *      GET (-NOPERM, -MASTERDOWN). An endpoint that was just opened has its trial as well: so a
 *      wrong password is seen before an engine waits.
 *   N2 SETs go to the first half of the links only: where there are several, a GET need not queue
 *      behind megabytes. And only a little more of them is submitted than the socket takes: a SET
 *      that is half out when its deadline comes costs the connection, with all that is on it.
 *   N3 connections are closed in redis_endpoint_poll() only: in a timer's callback, never inside
 *      one of the connection's.
 *   N4 failures that come in one iteration count once: one connection died, or one stall was seen,
 *      with all that was on it.
 */
#include "redis_endpoint.h"

#include <assert.h>
#include <errno.h>
#include <hiredis/hiredis.h>
#include <stdio.h>
#include <string.h>

#include "base/list.h"
#include "base/log.h"
#include "redis_hosts.h"
#include "redis_io.h"

enum {
	LOG_MS = 60000,
	LOOKUP_POLL_MS = 5,
	/* a look-up takes a few ms, or seconds: then the tick is soon enough */
	LOOKUP_SOON_MS = 100,
	RETRY_MS = 100,
	YOUNG_MS = 500,
	CROWDED_MS = 1000,
	STORES_AHEAD_BYTES = 4 << 20,
	READS_AHEAD_BYTES = 2 << 20,
};

static const char no_block[] = "0000000000000000000000000000000000000000000000000000000000000000";

static uint64_t now_of(const struct redis_endpoint *endpoint)
{
	return loop_now(endpoint->io->loop);
}

/* --- its health --- */

bool redis_endpoint_usable(const struct redis_endpoint *endpoint)
{
	return endpoint->proven && endpoint->breaker.state == REDIS_CLOSED;
}

static void say_why(const struct redis_endpoint *endpoint, const char *words, char *ret, size_t n)
{
	redis_words_show(words, endpoint->io->setup->password, ret, n);
}

/* --- the log: a line when a trouble begins, and one when it is over --- */

/* One trouble is told at most once a minute, however often it begins and ends. Endpoints that are
 * not configured have one minute together: a map may name new ones every second. */
static void tell_begin(struct redis_endpoint *endpoint, enum redis_trouble trouble,
		       const char *sentence, const char *words)
{
	uint64_t *logged_ns =
		endpoint->seed ? &endpoint->logged_ns[trouble] : &endpoint->io->logged_ns;

	if (endpoint->told[trouble] ||
	    (*logged_ns && now_of(endpoint) < *logged_ns + LOG_MS * 1000000ull))
		return;
	*logged_ns = now_of(endpoint);
	endpoint->told[trouble] = true;
	log_warning("redis_trouble", "Redis at %s %s%s", endpoint->address, sentence, words);
}

static void tell_end(struct redis_endpoint *endpoint, enum redis_trouble trouble,
		     const char *sentence)
{
	if (endpoint->told[trouble])
		log_info("redis_well", "Redis at %s %s", endpoint->address, sentence);
	endpoint->told[trouble] = false;
}

/* The breaker is open. */
static void tell_open(struct redis_endpoint *endpoint)
{
	if (!endpoint->breaker.misconfigured)
		tell_begin(endpoint, REDIS_SILENT, "is offline: ", endpoint->text);
	else if (endpoint->foreign)
		tell_begin(endpoint, REDIS_REFUSING,
			   "is not connected to; add its host there if it is of the Cluster: ",
			   endpoint->text);
	else
		tell_begin(endpoint, REDIS_REFUSING, "refuses kvtierd: ", endpoint->text);
}

static void tell_closed(struct redis_endpoint *endpoint)
{
	const bool refused = endpoint->told[REDIS_REFUSING];

	tell_end(endpoint, REDIS_REFUSING, "lets kvtierd in again");
	endpoint->told[REDIS_SILENT] &= !refused; /* one line is enough */
	tell_end(endpoint, REDIS_SILENT, "is back");
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

	if (endpoint->breaker.state != REDIS_CLOSED) {
		tell_open(endpoint);
		endpoint->proven = false;
		/* another endpoint may have its slots soon */
		endpoint->io->topology.wanted = true;
		redis_io_kick(endpoint);
	} else if (!bad) {
		tell_closed(endpoint);
		endpoint->proven = true;
	}
	if (was_usable == endpoint->proven)
		return;
	endpoint->io->changed = true;
	if (endpoint->proven)
		loop_timer_set(endpoint->io->loop, &endpoint->io->topology.due, now_of(endpoint));
}

void redis_endpoint_answered(struct redis_endpoint *endpoint)
{
	endpoint->answered_ns = now_of(endpoint);
	redis_breaker_success(&endpoint->breaker);
	judged(endpoint, false);
}

void redis_endpoint_stored(struct redis_endpoint *endpoint)
{
	endpoint->io->changed |= !redis_breaker_takes_stores(&endpoint->breaker);
	redis_breaker_stored(&endpoint->breaker);
	tell_end(endpoint, REDIS_UNTAKEN, "takes stores again");
}

void redis_endpoint_untaken(struct redis_endpoint *endpoint, bool refused, const char *why)
{
	if (!refused && (endpoint->hushed || endpoint->untaken_ns == now_of(endpoint)))
		return;
	endpoint->untaken_ns = now_of(endpoint);
	redis_breaker_untaken(&endpoint->breaker, refused);
	if (redis_breaker_takes_stores(&endpoint->breaker))
		return;
	endpoint->io->changed = true;
	say_why(endpoint, why, endpoint->stores_text, sizeof(endpoint->stores_text));
	tell_begin(endpoint, REDIS_UNTAKEN, "takes no stores: ", endpoint->stores_text);
}

/* A connection was closed for bytes that are no reply; its commands tell of their own ends. */
static void babbled(struct redis_endpoint *endpoint, const char *why)
{
	char text[REDIS_TEXT_BYTES];

	say_why(endpoint, why, text, sizeof(text));
	endpoint->told[REDIS_BABBLING] = false; /* it has no end */
	tell_begin(endpoint, REDIS_BABBLING,
		   "breaks the protocol, and the connection was closed: ", text);
}

void redis_endpoint_failed(struct redis_endpoint *endpoint, const char *why)
{
	if (endpoint->hushed ||
	    (endpoint->breaker.state == REDIS_CLOSED && endpoint->failed_ns == now_of(endpoint)))
		return;
	endpoint->failed_ns = now_of(endpoint);
	if (endpoint->breaker.state != REDIS_OPEN)
		say_why(endpoint, why, endpoint->text, sizeof(endpoint->text));
	redis_breaker_failure(&endpoint->breaker, now_of(endpoint));
	judged(endpoint, true);
}

void redis_endpoint_verdict(struct redis_endpoint *endpoint, enum redis_verdict verdict, bool store,
			    const char *words)
{
	const bool bad = verdict == REDIS_SAYS_NO_STORES || verdict == REDIS_SAYS_NOT_NOW ||
			 verdict == REDIS_SAYS_NOT_YOU;
	const bool might_store = redis_breaker_may_store(&endpoint->breaker, now_of(endpoint));
	const bool alone = store || verdict == REDIS_SAYS_NO_STORES; /* reads go on */

	endpoint->answered_ns = now_of(endpoint);
	if (bad && !alone)
		say_why(endpoint, words, endpoint->text, sizeof(endpoint->text));
	redis_breaker_verdict(&endpoint->breaker, verdict, store, now_of(endpoint));
	judged(endpoint, bad && !alone);
	if (might_store != redis_breaker_may_store(&endpoint->breaker, now_of(endpoint)))
		endpoint->io->changed = true;
}

/* --- its links --- */

static uint64_t after_ms(const struct redis_endpoint *endpoint, uint64_t ms)
{
	return now_of(endpoint) + ms * 1000000;
}

/* The address to connect to; "": not known. */
static const char *address_of(const struct redis_endpoint *endpoint)
{
	return endpoint->n_resolved ? endpoint->resolved[endpoint->at % endpoint->n_resolved] : "";
}

bool redis_link_is_up(const struct redis_link *link)
{
	return link->conn && redis_conn_state(link->conn) == REDIS_CONN_UP;
}

static bool is_full(const struct redis_conn *conn, enum xfer_op op, uint32_t bytes)
{
	const uint64_t ahead = bytes > READS_AHEAD_BYTES / 2 ? 2ull * bytes : READS_AHEAD_BYTES;

	if (redis_conn_in_flight(conn) + 2 > REDIS_CONN_COMMANDS)
		return true;
	if (op == XFER_WRITE)
		return redis_conn_unsent_bytes(conn) > STORES_AHEAD_BYTES;
	return op == XFER_READ && redis_conn_expected_bytes(conn) >= ahead;
}

/* The link with the least to do, of the links that are up and have room for ASKING and a command of
 * this kind; NULL if there is no such link. bytes: room of a read's value. */
static struct redis_link *pick_link(struct redis_endpoint *endpoint, enum xfer_op op,
				    uint32_t bytes)
{
	const bool store = op == XFER_WRITE;
	struct redis_link *best = NULL;
	uint64_t best_unsent = 0;
	uint32_t best_in_flight = 0;

	for (uint32_t i = 0; i < endpoint->n_links && (!store || endpoint->links[i].stores); i++) {
		struct redis_link *link = &endpoint->links[i];
		uint32_t in_flight;
		uint64_t unsent;

		if (!redis_link_is_up(link) || is_full(link->conn, op, bytes))
			continue;
		in_flight = redis_conn_in_flight(link->conn);
		unsent = redis_conn_unsent_bytes(link->conn);
		if (!best || unsent < best_unsent ||
		    (unsent == best_unsent && in_flight < best_in_flight)) {
			best = link;
			best_unsent = unsent;
			best_in_flight = in_flight;
		}
	}
	return best;
}

static void on_conn_changed(struct redis_conn *conn, void *arg)
{
	struct redis_link *link = arg;
	struct redis_endpoint *endpoint = link->endpoint;

	if (redis_conn_state(conn) == REDIS_CONN_UP) {
		link->up_ns = now_of(endpoint);
		endpoint->refused_evals = endpoint->refused_refresh = false;
	} else if (redis_conn_state(conn) == REDIS_CONN_DOWN) {
		/* its commands ended right before this */
		link->told = endpoint->failed_ns == now_of(endpoint);
	}
	redis_io_kick(endpoint);
}

static void on_room(struct redis_conn *conn, void *arg)
{
	struct redis_link *link = arg;

	(void)conn;
	if (link->endpoint->waiting.n > 0)
		redis_io_kick(link->endpoint);
}

static void start_lookup(struct redis_endpoint *endpoint)
{
	const uint32_t limit = REDIS_LOOKUPS + (endpoint->seed ? REDIS_ENDPOINTS : 0);
	int r;

	if (endpoint->lookup ||
	    (endpoint->lookup_ns &&
	     now_of(endpoint) < endpoint->lookup_ns + REDIS_LOOKUP_AGAIN_MS * 1000000ull))
		return;
	endpoint->lookup_ns = now_of(endpoint);
	r = redis_lookup_start(endpoint->address, limit, &endpoint->lookup);
	if (r && r != -EAGAIN)
		redis_endpoint_failed(endpoint, strerror(-r));
}

/* Takes over the result of a look-up, if there is one. */
static void take_lookup(struct redis_endpoint *endpoint)
{
	int n;

	if (!endpoint->lookup)
		return;
	n = redis_lookup_poll(endpoint->lookup, endpoint->resolved, REDIS_RESOLVED);
	if (n == -EINPROGRESS)
		return;
	endpoint->lookup = NULL;
	endpoint->n_resolved = n > 0 ? (uint32_t)n : 0;
	endpoint->at = 0;
	for (int i = 0; i < n && endpoint->seed && !endpoint->io->setup->cluster_hosts; i++) {
		char host[REDIS_ADDRESS_BYTES];

		redis_address_host(endpoint->resolved[i], host);
		redis_hosts_add_near(&endpoint->io->hosts, host);
	}
	if (n <= 0)
		redis_endpoint_failed(endpoint, n == -EAGAIN ? "the name server does not answer" :
							       "no such name");
}

/* A slot map has named the endpoint: may it have the password? */
static bool is_let_in(struct redis_endpoint *endpoint)
{
	char host[REDIS_ADDRESS_BYTES], address[REDIS_ADDRESS_BYTES];

	redis_address_host(endpoint->address, host);
	redis_address_host(address_of(endpoint), address);
	endpoint->foreign =
		!endpoint->seed && !redis_hosts_allow(&endpoint->io->hosts, host, address);
	return !endpoint->foreign;
}

/* Opens the connection, or does the step that must come before it (a look-up), or waits while it
 * is too early. */
static void open_link(struct redis_link *link)
{
	struct redis_endpoint *endpoint = link->endpoint;
	const struct redis_setup *setup = endpoint->io->setup;
	char host[REDIS_ADDRESS_BYTES];
	const struct redis_conn_conf conf = { .address = address_of(endpoint),
					      .username = setup->username,
					      .password = setup->password,
					      .tls = setup->tls,
					      .seals = &setup->seals,
					      .host = host,
					      .deadline_ns = redis_io_deadline(endpoint->io),
					      .max_value_bytes = IMAGE_MAX_BYTES + REDIS_SEAL_BYTES,
					      .changed = on_conn_changed,
					      .room = on_room,
					      .arg = link,
					      .counters = &endpoint->traffic };
	int err;

	if (now_of(endpoint) < endpoint->retry_ns)
		return;
	if (endpoint->n_resolved == 0) {
		start_lookup(endpoint);
		return;
	}
	if (!is_let_in(endpoint)) {
		endpoint->retry_ns = after_ms(endpoint, RETRY_MS);
		/* another address of its name may be let in */
		if (++endpoint->at < endpoint->n_resolved)
			return;
		endpoint->at = 0;
		endpoint->counters.refused_hosts_total++;
		redis_endpoint_verdict(
			endpoint, REDIS_SAYS_NOT_YOU, false,
			"named by a slot map, but not by [redis] cluster_hosts: not connected to");
		return;
	}
	redis_address_host(endpoint->address, host);
	link->up_ns = 0;
	link->told = false;
	link->opened_ns = now_of(endpoint);
	err = redis_conn_open(endpoint->io->loop, &conf, &link->conn);
	if (err) {
		link->conn = NULL;
		endpoint->retry_ns = after_ms(endpoint, RETRY_MS);
		redis_endpoint_failed(endpoint, strerror(-err));
		return;
	}
	endpoint->counters.reconnects_total += link->opened;
	link->opened = true;
}

static void close_link(struct redis_link *link)
{
	struct redis_conn *conn = link->conn;

	link->conn = NULL; /* first: a job that ends now must not be sent on it again */
	redis_conn_close(conn);
}

static bool any_up(const struct redis_endpoint *endpoint, const struct redis_conn *but)
{
	for (uint32_t i = 0; i < endpoint->n_links; i++)
		if (endpoint->links[i].conn != but && redis_link_is_up(&endpoint->links[i]))
			return true;
	return false;
}

bool redis_endpoint_crowded(struct redis_endpoint *endpoint, const struct redis_conn *conn,
			    const char *words)
{
	if (strncmp(words, "ERR max number of clients", 25) != 0 || !any_up(endpoint, conn))
		return false;
	endpoint->retry_ns = after_ms(endpoint, CROWDED_MS);
	return true;
}

/* The next address of a name next time; after the last the name is looked up again. */
static void connect_failed(struct redis_endpoint *endpoint, int why, const char *text)
{
	const enum redis_verdict verdict = redis_verdict(text);

	endpoint->retry_ns = after_ms(endpoint, RETRY_MS);
	if (any_up(endpoint, NULL)) { /* it is well, and has no room for more of us */
		endpoint->retry_ns = after_ms(endpoint, CROWDED_MS);
		return;
	}
	if (++endpoint->at >= endpoint->n_resolved) {
		endpoint->at = 0;
		if (!redis_address_numeric(endpoint->address))
			endpoint->n_resolved = 0;
	}
	/* a slot map or a redirect sent us there */
	endpoint->counters.refused_hosts_total += why == -EKEYREJECTED && !endpoint->seed;
	if (verdict == REDIS_SAYS_NOT_NOW) /* first: AUTH as well is answered by -LOADING */
		redis_endpoint_verdict(endpoint, verdict, false, text);
	else if (why == -EACCES || why == -EKEYREJECTED || verdict == REDIS_SAYS_NOT_YOU)
		redis_endpoint_verdict(endpoint, REDIS_SAYS_NOT_YOU, false, text);
	else
		redis_endpoint_failed(endpoint, text[0] ? text : strerror(-why));
}

static bool is_failure(const struct redis_link *link, int why)
{
	/* -EACCES when it was up: TLS 1.3, where a server looks at our certificate late. */
	if (!link->up_ns || why == -ECONNREFUSED || why == -EACCES)
		return true;
	return !link->told && now_of(link->endpoint) < link->up_ns + YOUNG_MS * 1000000ull;
}

/* No connection of the endpoint is opened sooner than RETRY_MS after this link's was. */
static void not_too_soon(struct redis_endpoint *endpoint, const struct redis_link *link)
{
	const uint64_t soonest_ns = link->opened_ns + RETRY_MS * 1000000ull;

	if (endpoint->retry_ns < soonest_ns)
		endpoint->retry_ns = soonest_ns;
}

/* Closes dead connections, and tells the breaker of deaths that are failures of the endpoint. */
static void bury_links(struct redis_endpoint *endpoint)
{
	for (uint32_t i = 0; i < endpoint->n_links; i++) {
		struct redis_link *link = &endpoint->links[i];
		char text[REDIS_TEXT_BYTES];
		const char *words;
		int why;

		if (!link->conn || redis_conn_state(link->conn) != REDIS_CONN_DOWN)
			continue;
		why = redis_conn_why(link->conn, &words);
		(void)snprintf(text, sizeof(text), "%s", words);
		if (why == -EPROTO)
			babbled(endpoint, text);
		close_link(link);
		not_too_soon(endpoint, link);
		if (is_failure(link, why))
			connect_failed(endpoint, why, text);
	}
}

/* All of them; commands on them end, and that is no failure. */
static void close_links(struct redis_endpoint *endpoint)
{
	endpoint->hushed = true;
	for (uint32_t i = 0; i < endpoint->n_links; i++)
		if (endpoint->links[i].conn)
			close_link(&endpoint->links[i]);
	endpoint->hushed = false;
}

/* --- questions --- */

bool redis_endpoint_idle(const struct redis_endpoint *endpoint)
{
	return endpoint->waiting.n == 0 && endpoint->in_flight == 0 && !endpoint->trial;
}

const char *redis_endpoint_itself(const struct redis_endpoint *endpoint)
{
	return endpoint->io->setup->tls ? endpoint->address : address_of(endpoint);
}

void redis_endpoint_counters(const struct redis_endpoint *endpoint, struct redis_counters *ret)
{
	*ret = endpoint->counters;
	ret->breaker_opens_total += endpoint->breaker.opens_total;
	ret->received_bytes_total = endpoint->traffic.received_bytes;
	ret->sent_bytes_total = endpoint->traffic.sent_bytes;
	ret->late_total = endpoint->traffic.late;
	ret->protocol_errors_total = endpoint->traffic.protocol_errors;
}

/* All members are uint64_t. */
void redis_counters_add(struct redis_counters *sum, const struct redis_counters *c)
{
	const uint64_t *from = (const uint64_t *)c;
	uint64_t *to = (uint64_t *)sum;

	for (size_t n = 0; n < sizeof(*c) / sizeof(*from); n++)
		to[n] += from[n];
}

/* --- the trial --- */

static void trial_done(struct redis_command *c)
{
	struct redis_chore *chore = redis_chore_of(c);
	struct redis_endpoint *endpoint = chore->endpoint;
	enum redis_verdict verdict;

	endpoint->trial = NULL;
	if (c->status == -EREMOTEIO) {
		verdict = redis_verdict(c->error);
		redis_endpoint_verdict(endpoint, verdict, false, c->error);
	} else if (c->status == -ETIMEDOUT || c->status == -ECONNRESET || c->status == -ECANCELED) {
		redis_endpoint_failed(endpoint, redis_endpoint_why(c));
	} else {
		redis_endpoint_answered(endpoint);
	}
	redis_chore_give(chore);
	redis_io_kick(endpoint);
}

/* Any reply to the trial is an answer; no image has this identity. */
static void send_trial(struct redis_endpoint *endpoint, struct redis_conn *conn)
{
	static const struct image_identity identity;
	static const struct image_geometry geometry;
	struct redis_chore *chore = redis_chore_take(endpoint, trial_done);
	char name[REDIS_PREFIX_BYTES + sizeof(no_block)];

	if (!chore)
		return;
	(void)snprintf(name, sizeof(name), "%s%s", endpoint->io->tier->key_prefix, no_block);
	redis_command_make(&chore->command, (const char *const[]){ "GET", name, NULL });
	chore->value = (struct redis_value){ .identity = &identity, .geometry = &geometry };
	chore->command.value = &chore->value;
	endpoint->trial = chore;
	if (redis_chore_send(chore, conn))
		endpoint->trial = NULL;
}

/* --- other chores --- */

int redis_endpoint_send(struct redis_endpoint *endpoint, struct redis_chore *chore)
{
	struct redis_link *link =
		redis_endpoint_usable(endpoint) ? pick_link(endpoint, XFER_PROBE, 0) : NULL;

	return redis_chore_send(chore, link ? link->conn : NULL);
}

/* An EVAL has ended. An ACL without EVAL, or an endpoint without scripts, is not asked again; it is
 * no misconfiguration. Returns whether the script did what it is for. */
static bool evaluated(struct redis_command *c, bool *refused)
{
	const bool did = c->status == 0 && c->reply && c->reply->type == REDIS_REPLY_INTEGER &&
			 c->reply->integer == 1;

	if (c->status == -EREMOTEIO && redis_verdict(c->error) != REDIS_SAYS_MOVED)
		*refused = true;
	redis_chore_give(redis_chore_of(c));
	return did;
}

static void deleted(struct redis_command *c)
{
	struct redis_endpoint *endpoint = redis_chore_of(c)->endpoint;

	endpoint->counters.deleted_total += evaluated(c, &endpoint->refused_evals);
}

void redis_endpoint_delete(struct redis_endpoint *endpoint, const struct redis_condemned *what)
{
	struct redis_chore *chore =
		endpoint->refused_evals ? NULL : redis_chore_take(endpoint, deleted);

	if (!chore)
		return;
	redis_command_delete_if(&chore->command, what->name.text, what->sha1, what->part,
				what->length);
	/* Where it cannot be sent, the next read finds the value bad again. */
	(void)redis_endpoint_send(endpoint, chore);
}

static void refreshed(struct redis_command *c)
{
	struct redis_endpoint *endpoint = redis_chore_of(c)->endpoint;

	endpoint->counters.refreshed_total += evaluated(c, &endpoint->refused_refresh);
}

void redis_endpoint_refresh(struct redis_endpoint *endpoint, const struct redis_name *name)
{
	const uint64_t ttl_ms = endpoint->io->tier->ttl_ms;
	struct redis_chore *chore = ttl_ms == 0 || endpoint->refused_refresh ?
					    NULL :
					    redis_chore_take(endpoint, refreshed);

	if (!chore)
		return;
	redis_command_refresh(&chore->command, name->text, ttl_ms);
	(void)redis_endpoint_send(endpoint, chore);
}

/* --- jobs --- */

/* One more connection, if none is being opened. */
static void grow(struct redis_endpoint *endpoint)
{
	struct redis_link *empty = NULL;

	for (uint32_t i = endpoint->n_links; i-- > 0;) {
		if (!endpoint->links[i].conn)
			empty = &endpoint->links[i];
		else if (!redis_link_is_up(&endpoint->links[i]))
			return;
	}
	if (empty)
		open_link(empty);
}

static bool send_now(struct redis_endpoint *endpoint, struct redis_job *job)
{
	struct redis_link *link = pick_link(endpoint, job->op, job->value.room);

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

/* --- the poll --- */

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
		    redis_endpoint_usable(&endpoint->io->endpoints[i]))
			return false;
	return true;
}

static void try_it(struct redis_endpoint *endpoint)
{
	struct redis_link *link = &endpoint->links[0];

	if (!link->conn)
		open_link(link);
	else if (redis_link_is_up(link) && !endpoint->trial)
		send_trial(endpoint, link->conn);
}

void redis_endpoint_poll(struct redis_endpoint *endpoint)
{
	const bool wanted = endpoint->waiting.n > 0 || is_kept(endpoint);

	take_lookup(endpoint);
	bury_links(endpoint);
	if (endpoint->breaker.state == REDIS_OPEN) {
		close_links(endpoint);
		end_waiting(endpoint, -ENODEV);
		if (!wanted || !redis_breaker_try(&endpoint->breaker, now_of(endpoint)))
			return;
	}
	if (!wanted && redis_endpoint_idle(endpoint)) {
		close_links(endpoint);
	} else if (!endpoint->proven) {
		try_it(endpoint);
	} else {
		/* one is kept, so that an endpoint that is gone is noticed */
		if (!endpoint->links[0].conn)
			open_link(&endpoint->links[0]);
		pump(endpoint);
	}
	if (endpoint->lookup &&
	    now_of(endpoint) < endpoint->lookup_ns + LOOKUP_SOON_MS * 1000000ull)
		loop_timer_set(endpoint->io->loop, &endpoint->due,
			       now_of(endpoint) + LOOKUP_POLL_MS * 1000000ull);
}

static void on_due(struct loop_timer *timer)
{
	redis_endpoint_poll(container_of(timer, struct redis_endpoint, due));
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
	endpoint->due.fire = on_due;
	redis_io_kick(endpoint);
}

void redis_endpoint_close(struct redis_endpoint *endpoint)
{
	struct redis_counters counters;

	close_links(endpoint);
	end_waiting(endpoint, -ECONNRESET);
	redis_lookup_abandon(endpoint->lookup);
	loop_timer_unset(endpoint->io->loop, &endpoint->due);
	redis_endpoint_counters(endpoint, &counters);
	redis_counters_add(&endpoint->io->gone, &counters);
	endpoint->lookup = NULL;
	endpoint->used = endpoint->listed = endpoint->proven = false;
	assert(redis_endpoint_idle(endpoint));
}
