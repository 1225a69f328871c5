/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_breaker.c - whether an endpoint is to be tried, and the meaning of its error replies.
 * Contract: redis_breaker.h. The words and sentences are from Redis 2.8 to 7.2 and Valkey
 * (src/server.c, acl.c, networking.c, cluster.c).
 */
#include "redis_breaker.h"

#include <assert.h>
#include <string.h>

/* A wait, without its jitter. */
static const uint64_t SHORTEST_NS = REDIS_BREAKER_REST_MS * 1000000ull,
		      LONGEST_NS = REDIS_BREAKER_RESTS * REDIS_BREAKER_REST_MS * 1000000ull;

/* The first that fits counts, so the longer of two with the same beginning stands first. */
static const struct {
	const char *says; /* up to a blank or the end */
	enum redis_verdict verdict;
} verdicts[] = {
	{ "WRONGTYPE", REDIS_SAYS_WRONG_TYPE },
	{ "OOM", REDIS_SAYS_NO_STORES },
	{ "READONLY", REDIS_SAYS_NO_STORES },
	{ "MISCONF", REDIS_SAYS_NO_STORES },
	{ "NOREPLICAS", REDIS_SAYS_NO_STORES },
	{ "CLUSTERDOWN The cluster is down and only accepts read commands", REDIS_SAYS_NO_STORES },
	/* this slot is not served; other slots are */
	{ "CLUSTERDOWN Hash slot not served", REDIS_SAYS_NOTHING },
	{ "CLUSTERDOWN", REDIS_SAYS_NOT_NOW },
	{ "LOADING", REDIS_SAYS_NOT_NOW },
	{ "BUSY", REDIS_SAYS_NOT_NOW },
	{ "MASTERDOWN", REDIS_SAYS_NOT_NOW },
	{ "ERR max number of clients", REDIS_SAYS_NOT_NOW },
	{ "NOAUTH", REDIS_SAYS_NOT_YOU },
	{ "WRONGPASS", REDIS_SAYS_NOT_YOU },
	{ "NOPERM", REDIS_SAYS_NOT_YOU },
	{ "DENIED", REDIS_SAYS_NOT_YOU },   /* protected mode */
	{ "ERR AUTH", REDIS_SAYS_NOT_YOU }, /* "...called without any password configured" */
	/* the same before Redis 6 */
	{ "ERR Client sent AUTH,", REDIS_SAYS_NOT_YOU },
	{ "ERR invalid password", REDIS_SAYS_NOT_YOU }, /* before Redis 6 */
	/* NOAUTH before Redis 2.8 */
	{ "ERR operation not permitted", REDIS_SAYS_NOT_YOU },
	/* a username, before Redis 6 */
	{ "ERR wrong number of arguments for 'auth'", REDIS_SAYS_NOT_YOU },
	{ "MOVED", REDIS_SAYS_MOVED },
	{ "ASK", REDIS_SAYS_MOVED },
	{ "ERR unknown command", REDIS_SAYS_UNKNOWN_COMMAND },
	{ "ERR unknown subcommand", REDIS_SAYS_UNKNOWN_COMMAND },
	{ "ERR Unknown subcommand", REDIS_SAYS_UNKNOWN_COMMAND }, /* before Redis 7 */
};

enum redis_verdict redis_verdict(const char *text)
{
	for (size_t i = 0; i < sizeof(verdicts) / sizeof(*verdicts); i++) {
		const size_t length = strlen(verdicts[i].says);

		if (strncmp(text, verdicts[i].says, length) == 0 && strchr(" ,", text[length]))
			return verdicts[i].verdict;
	}
	return REDIS_SAYS_NOTHING;
}

static uint64_t random_next(struct redis_breaker *b)
{
	assert(b->random != 0);
	b->random ^= b->random << 13; /* xorshift64: there is no gain in guessing it */
	b->random ^= b->random >> 7;
	b->random ^= b->random << 17;
	return b->random;
}

/* +- 25 %, so that nodes that lost an endpoint together do not come back together. */
static uint64_t jittered(struct redis_breaker *b, uint64_t wait_ns)
{
	return wait_ns - wait_ns / 4 + random_next(b) % (wait_ns / 2 + 1);
}

static uint64_t doubled(uint64_t wait_ns)
{
	if (wait_ns == 0)
		return SHORTEST_NS;
	return 2 * wait_ns < LONGEST_NS ? 2 * wait_ns : LONGEST_NS;
}

static void open_for(struct redis_breaker *b, uint64_t wait_ns, uint64_t now_ns)
{
	if (b->state == REDIS_CLOSED)
		b->opens_total++;
	b->state = REDIS_OPEN;
	b->wait_ns = wait_ns;
	b->until_ns = now_ns + jittered(b, wait_ns);
	b->failures = 0;
	if (redis_breaker_takes_stores(b))
		b->untaken = 0; /* that was the outage's doing */
}

static void stop_stores(struct redis_breaker *b, uint64_t wait_ns, uint64_t now_ns)
{
	b->no_stores_wait_ns = wait_ns;
	b->no_stores_until_ns = now_ns + jittered(b, wait_ns);
}

void redis_breaker_open(struct redis_breaker *b, uint64_t seed)
{
	*b = (struct redis_breaker){
		.state = REDIS_CLOSED,
		.random = seed ? seed : 1,
	};
}

bool redis_breaker_try(struct redis_breaker *b, uint64_t now_ns)
{
	if (b->state == REDIS_OPEN && now_ns >= b->until_ns) {
		b->state = REDIS_HALF;
		return true;
	}
	return b->state == REDIS_CLOSED;
}

bool redis_breaker_may_store(const struct redis_breaker *b, uint64_t now_ns)
{
	return now_ns >= b->no_stores_until_ns;
}

bool redis_breaker_takes_stores(const struct redis_breaker *b)
{
	return b->untaken < REDIS_BREAKER_FAILURES;
}

void redis_breaker_success(struct redis_breaker *b)
{
	if (b->state == REDIS_OPEN)
		return;
	b->state = REDIS_CLOSED;
	b->failures = 0;
	b->misconfigured = false;
}

void redis_breaker_failure(struct redis_breaker *b, uint64_t now_ns)
{
	if (b->state == REDIS_OPEN ||
	    (b->state == REDIS_CLOSED && ++b->failures < REDIS_BREAKER_FAILURES))
		return;
	open_for(b, b->state == REDIS_HALF ? doubled(b->wait_ns) : SHORTEST_NS, now_ns);
	b->misconfigured = false; /* the reason is another one now */
}

static void not_now(struct redis_breaker *b, uint64_t now_ns)
{
	if (b->state == REDIS_CLOSED)
		b->failures = REDIS_BREAKER_FAILURES - 1;
	redis_breaker_failure(b, now_ns);
}

static void not_you(struct redis_breaker *b, uint64_t now_ns)
{
	if (b->state != REDIS_OPEN || !b->misconfigured)
		open_for(b, LONGEST_NS, now_ns);
	b->misconfigured = true;
}

/* Stores that were on their way when the wait began do not lengthen it; a store after the wait
 * does. */
static void no_stores(struct redis_breaker *b, uint64_t wait_ns, uint64_t now_ns)
{
	if (redis_breaker_may_store(b, now_ns))
		stop_stores(b, wait_ns, now_ns);
	redis_breaker_success(b);
}

void redis_breaker_verdict(struct redis_breaker *b, enum redis_verdict verdict, bool store,
			   uint64_t now_ns)
{
	switch (verdict) {
	case REDIS_SAYS_NOT_NOW:
		not_now(b, now_ns);
		break;
	case REDIS_SAYS_NOT_YOU:
		/* An ACL without SET refuses stores alone: values of other nodes can be read. */
		if (store)
			no_stores(b, LONGEST_NS, now_ns);
		else
			not_you(b, now_ns);
		break;
	case REDIS_SAYS_NO_STORES:
		no_stores(b, doubled(b->no_stores_wait_ns), now_ns);
		break;
	default:
		redis_breaker_success(b); /* it answers */
	}
}

void redis_breaker_stored(struct redis_breaker *b)
{
	b->no_stores_until_ns = 0;
	b->no_stores_wait_ns = 0;
	b->untaken = 0;
}

void redis_breaker_untaken(struct redis_breaker *b, bool refused)
{
	if (refused)
		b->untaken = REDIS_BREAKER_FAILURES;
	else if (redis_breaker_takes_stores(b) && b->state == REDIS_CLOSED)
		b->untaken++;
}
