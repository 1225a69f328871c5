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

static void say_why(const struct redis_endpoint *endpoint, const char *words, char *ret, size_t n)
{
	redis_words_show(words, endpoint->io->tier->login->password, ret, n);
}

/* --- the log: a line when a trouble begins, and one when it is over --- */

/* Of one trouble at most once a minute, however often it comes and goes. Endpoints that are not
 * configured have one minute together: a map may name new ones every second. */
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
	log_warning("Redis at %s %s%s", endpoint->address, sentence, words);
}

static void tell_end(struct redis_endpoint *endpoint, enum redis_trouble trouble,
		     const char *sentence)
{
	if (endpoint->told[trouble])
		log_info("Redis at %s %s", endpoint->address, sentence);
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
	endpoint->io->changed |= !redis_breaker_takes_stores(&endpoint->breaker);
	redis_breaker_stored(&endpoint->breaker);
	tell_end(endpoint, REDIS_UNTAKEN, "takes stores again");
}

void redis_health_untaken(struct redis_endpoint *endpoint, bool refused, const char *why)
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

void redis_health_babbled(struct redis_endpoint *endpoint, const char *why)
{
	char text[REDIS_TEXT_BYTES];

	say_why(endpoint, why, text, sizeof(text));
	endpoint->told[REDIS_BABBLING] = false; /* it has no end */
	tell_begin(endpoint, REDIS_BABBLING,
		   "breaks the protocol, and the connection was closed: ", text);
}

void redis_health_failed(struct redis_endpoint *endpoint, const char *why)
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

void redis_health_verdict(struct redis_endpoint *endpoint, enum redis_verdict verdict, bool store,
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
