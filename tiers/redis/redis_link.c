/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_link.c - the connections of one endpoint: to which address, opened, chosen, buried.
 * Contract: redis_link.h. I/O thread only.
 *
 *	none ──open──> connecting ──> up ──────> dead ──bury──> none
 *	                   └── refused, deadline ──^
 *
 * Some deaths are failures of the endpoint: of a link that was never up; of a link that was told to
 * go away; of a link that was up only for a moment (a proxy accepts connections though nobody is
 * behind it), unless its commands have told of the failure already. The death of a link that was up
 * for a while says nothing: Redis closes idle connections. After an opening the next one waits
 * RETRY_MS, so nothing that an endpoint does makes a storm of connections. An endpoint that has no
 * room for one more connection of ours is well.
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
 */
#include "redis_link.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "redis_endpoint.h"
#include "redis_health.h"
#include "redis_hosts.h"
#include "redis_io.h"
#include "tiers/redis/conn/redis_address.h"

enum {
	RETRY_MS = 100,
	YOUNG_MS = 500,
	CROWDED_MS = 1000,
	STORES_AHEAD_BYTES = 4 << 20,
	READS_AHEAD_BYTES = 2 << 20,
};

static uint64_t now_of(const struct redis_endpoint *endpoint)
{
	return loop_now(endpoint->io->loop);
}

static uint64_t after_ms(const struct redis_endpoint *endpoint, uint64_t ms)
{
	return now_of(endpoint) + ms * 1000000;
}

const char *redis_link_address(const struct redis_endpoint *endpoint)
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

struct redis_link *redis_link_pick(struct redis_endpoint *endpoint, enum xfer_op op, uint32_t bytes)
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
		endpoint->refused_evals = false;
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
	r = redis_lookup_start(&endpoint->io->lookups, endpoint->address, limit, &endpoint->lookup);
	if (r && r != -EAGAIN)
		redis_health_failed(endpoint, strerror(-r));
}

void redis_link_lookup(struct redis_endpoint *endpoint)
{
	int n;

	if (!endpoint->lookup)
		return;
	n = redis_lookup_poll(&endpoint->io->lookups, endpoint->lookup, endpoint->resolved,
			      REDIS_RESOLVED);
	if (n == -EINPROGRESS)
		return;
	endpoint->lookup = NULL;
	endpoint->n_resolved = n > 0 ? (uint32_t)n : 0;
	endpoint->at = 0;
	for (int i = 0; i < n && endpoint->seed && !endpoint->io->tier->cluster_hosts; i++) {
		char host[REDIS_ADDRESS_BYTES];

		redis_address_host(endpoint->resolved[i], host);
		redis_hosts_add_near(&endpoint->io->hosts, host);
	}
	if (n <= 0)
		redis_health_failed(endpoint, n == -EAGAIN ? "the name server does not answer" :
							     "no such name");
}

/* A slot map has named the endpoint: may it have the password? */
static bool is_let_in(struct redis_endpoint *endpoint)
{
	char host[REDIS_ADDRESS_BYTES], address[REDIS_ADDRESS_BYTES];

	redis_address_host(endpoint->address, host);
	redis_address_host(redis_link_address(endpoint), address);
	endpoint->foreign =
		!endpoint->seed && !redis_hosts_allow(&endpoint->io->hosts, host, address);
	return !endpoint->foreign;
}

void redis_link_open(struct redis_link *link)
{
	struct redis_endpoint *endpoint = link->endpoint;
	const struct redis *r = endpoint->io->tier;
	char host[REDIS_ADDRESS_BYTES];
	const struct redis_conn_conf conf = { .address = redis_link_address(endpoint),
					      .username = r->login->username,
					      .password = r->login->password,
					      .tls = r->tls,
					      .host = host,
					      .deadline_ns = redis_io_deadline(endpoint->io),
					      .max_value_bytes =
						      r->max_image_bytes + REDIS_SEAL_BYTES,
					      .changed = on_conn_changed,
					      .room = on_room,
					      .arg = link };
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
		redis_health_verdict(
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
		redis_health_failed(endpoint, strerror(-err));
		return;
	}
	endpoint->counters.reconnects_total += link->opened;
	link->opened = true;
}

static void count_link(struct redis_counters *sum, const struct redis_conn *conn)
{
	struct redis_conn_counters c;

	redis_conn_counters(conn, &c);
	sum->received_bytes_total += c.received_bytes;
	sum->sent_bytes_total += c.sent_bytes;
	sum->late_total += c.late;
	sum->protocol_errors_total += c.protocol_errors;
}

void redis_links_count(const struct redis_endpoint *endpoint, struct redis_counters *sum)
{
	for (uint32_t i = 0; i < endpoint->n_links; i++)
		if (endpoint->links[i].conn)
			count_link(sum, endpoint->links[i].conn);
}

static void close_link(struct redis_endpoint *endpoint, struct redis_link *link)
{
	struct redis_conn *conn = link->conn;

	count_link(&endpoint->counters, conn);
	link->conn = NULL; /* first: a job that ends now must not be sent on it again */
	redis_conn_close(conn);
}

static bool any_up(const struct redis_endpoint *endpoint)
{
	for (uint32_t i = 0; i < endpoint->n_links; i++)
		if (redis_link_is_up(&endpoint->links[i]))
			return true;
	return false;
}

bool redis_link_was_too_many(struct redis_endpoint *endpoint, const struct redis_conn *conn,
			     const char *words)
{
	bool another = false;

	if (strncmp(words, "ERR max number of clients", 25) != 0)
		return false;
	for (uint32_t i = 0; i < endpoint->n_links; i++)
		another |= endpoint->links[i].conn != conn && redis_link_is_up(&endpoint->links[i]);
	if (another)
		endpoint->retry_ns = after_ms(endpoint, CROWDED_MS);
	return another;
}

/* The next address of a name next time; after the last the name is looked up again. */
static void connect_failed(struct redis_endpoint *endpoint, int why, const char *text)
{
	const enum redis_verdict verdict = redis_verdict(text, strlen(text));

	endpoint->retry_ns = after_ms(endpoint, RETRY_MS);
	if (any_up(endpoint)) { /* it is well, and has no room for more of us */
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
	if (verdict == REDIS_SAYS_NOT_NOW) /* first: AUTH, too, is answered by -LOADING */
		redis_health_verdict(endpoint, verdict, false, text);
	else if (why == -EACCES || why == -EKEYREJECTED || verdict == REDIS_SAYS_NOT_YOU)
		redis_health_verdict(endpoint, REDIS_SAYS_NOT_YOU, false, text);
	else
		redis_health_failed(endpoint, text[0] ? text : strerror(-why));
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

void redis_links_bury(struct redis_endpoint *endpoint)
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
			redis_health_babbled(endpoint, text);
		close_link(endpoint, link);
		not_too_soon(endpoint, link);
		if (is_failure(link, why))
			connect_failed(endpoint, why, text);
	}
}

void redis_links_close(struct redis_endpoint *endpoint)
{
	endpoint->hushed = true;
	for (uint32_t i = 0; i < endpoint->n_links; i++)
		if (endpoint->links[i].conn)
			close_link(endpoint, &endpoint->links[i]);
	endpoint->hushed = false;
}
