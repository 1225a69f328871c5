/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_health.c - the health of an endpoint, from the news of its commands and connections. The
 * breaker decides; this file keeps the words, logs them, and pushes the consequences: the
 * endpoint's turn, the question for a slot map, the mark that the view has changed. Contract:
 * redis_health.h. I/O thread only.
 *
 * Invariant
 *   H1 failures that come in one turn count once: one connection died, or one stall was seen, with
 *      all that was on it.
 */
#include "redis_health.h"

#include <errno.h>

#include "daemon/base/log.h"
#include "redis_endpoint.h"
#include "redis_io.h"
#include "tiers/redis/conn/redis_words.h"

enum { LOG_MS = 60000 };

static uint64_t now_of(const struct redis_endpoint *endpoint)
{
	return loop_now(endpoint->io->loop);
}

bool redis_health_usable(const struct redis_endpoint *endpoint)
{
	return endpoint->proven && endpoint->breaker.state == REDIS_CLOSED;
}

static void say_why(struct redis_endpoint *endpoint, const char *words)
{
	redis_words_show(words, endpoint->io->tier->login->password, endpoint->text,
			 sizeof(endpoint->text));
}

/* Once a minute for each configured endpoint, and once for all others together: a map may name new
 * ones every second. */
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

const char *redis_health_why(const struct redis_command *c)
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
		redis_io_kick(endpoint);
	} else if (!bad) {
		endpoint->proven = true;
	}
	if (was_usable == endpoint->proven)
		return;
	endpoint->io->changed = true;
	if (endpoint->proven)
		loop_timer_set(endpoint->io->loop, &endpoint->io->topology.turn, now_of(endpoint));
}

void redis_health_answered(struct redis_endpoint *endpoint)
{
	endpoint->answered_ns = now_of(endpoint);
	redis_breaker_success(&endpoint->breaker, now_of(endpoint));
	judged(endpoint, false);
}

void redis_health_stored(struct redis_endpoint *endpoint)
{
	redis_breaker_stored(&endpoint->breaker);
}

void redis_health_failed(struct redis_endpoint *endpoint, const char *why)
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

void redis_health_verdict(struct redis_endpoint *endpoint, enum redis_verdict verdict, bool store,
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
		endpoint->io->changed = true;
}
