/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_breaker.h - whether an endpoint is to be tried, and the meaning of its error replies. It is
 * pure policy: (state, event with its time) -> state, without clock, log or I/O. Times are of one
 * clock that never goes back. One thread at a time may use a breaker.
 *
 *	CLOSED ──3 failures in a row, or one verdict──> OPEN ──wait over, try()──> HALF: one trial
 *	  ^                                              ^                          │ │
 *	  │                                              └─ it fails: wait doubled ─┘ │
 *	  └─────────────────────────── it succeeds ───────────────────────────────────┘
 *
 * The wait is 1 s at first, 30 s at most. Stores may be stopped while reads go on: for 1 s,
 * doubling to 30 s, after -OOM and the like; for 30 s after an ACL refused a store alone. Each
 * wait is up to a quarter longer or shorter by chance, so that nodes that lost an endpoint
 * together do not come back together. In OPEN a late reply is ignored, unless it is a refusal.
 *
 * After that wait a store may be tried, which does not mean that it will be taken. So an endpoint
 * that has refused a store, in whatever words, or that has left three in a row without an answer,
 * is one that takes no stores until it has taken one.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	REDIS_BREAKER_FAILURES = 3,
	REDIS_BREAKER_REST_MS = 1000, /* the first wait */
	REDIS_BREAKER_RESTS = 30,     /* the longest wait, as a multiple of the first */
};

enum redis_breaker_state { REDIS_CLOSED, REDIS_OPEN, REDIS_HALF };

struct redis_breaker {
	enum redis_breaker_state state;
	uint32_t failures;          /* in a row */
	uint64_t wait_ns, until_ns; /* OPEN: until then; the wait without its jitter */
	uint64_t random;            /* of the jitter; never 0 */
	uint64_t no_stores_until_ns;
	uint64_t no_stores_wait_ns; /* as long as each try ends so */
	/* stores that were not taken since one was; a refusal counts for REDIS_BREAKER_FAILURES */
	uint32_t untaken;
	uint64_t opens_total; /* from CLOSED; a trial that fails is no other outage */
	bool misconfigured;   /* not CLOSED: NOAUTH, WRONGPASS, NOPERM: tried again after 30 s */
};

/* The meaning of an error reply for the endpoint. text: without the '-'. */
enum redis_verdict {
	/* an error of this command, key or slot alone, -TRYAGAIN too */
	REDIS_SAYS_NOTHING,
	REDIS_SAYS_WRONG_TYPE, /* -WRONGTYPE: a miss */
	REDIS_SAYS_NO_STORES,  /* -OOM -READONLY -MISCONF -NOREPLICAS: reads go on */
	/* -LOADING -BUSY -MASTERDOWN -CLUSTERDOWN, too many clients: open at once */
	REDIS_SAYS_NOT_NOW,
	/* -NOAUTH -WRONGPASS -NOPERM -DENIED; "ERR ... AUTH ..." of an endpoint with another
	 * password, or without one */
	REDIS_SAYS_NOT_YOU,
	REDIS_SAYS_MOVED,           /* MOVED, ASK */
	REDIS_SAYS_UNKNOWN_COMMAND, /* an old or crippled endpoint */
};
/* Knows the sentences of Redis from 2.8 on and of Valkey; any other is NOTHING. */
enum redis_verdict redis_verdict(const char *text);

/* The breaker is CLOSED at first. */
void redis_breaker_open(struct redis_breaker *b, uint64_t seed);
/* Whether a command may be sent. After the wait it is true once, for the trial, whose end is told
 * by success(), failure() or verdict(). */
bool redis_breaker_try(struct redis_breaker *b, uint64_t now_ns);
/* A usable endpoint: a store may be sent. */
bool redis_breaker_may_store(const struct redis_breaker *b, uint64_t now_ns);
/* No store was refused since one was taken, as far as is known. */
bool redis_breaker_takes_stores(const struct redis_breaker *b);
/* An answer came, and is no error. */
void redis_breaker_success(struct redis_breaker *b);
/* No answer came in time, or the connection was refused or lost. */
void redis_breaker_failure(struct redis_breaker *b, uint64_t now_ns);
/* An error reply; store: to a command that stores. A reply that finds no fault with the endpoint
 * is a success. The caller does not tell of a NOT_YOU to EVAL, EXISTS or CLUSTER: the tier can do
 * without them, so an ACL that lacks them is no trouble. */
void redis_breaker_verdict(struct redis_breaker *b, enum redis_verdict verdict, bool store,
			   uint64_t now_ns);
/* Called besides success(): a store was taken, so stores are let through again. */
void redis_breaker_stored(struct redis_breaker *b);
/* Called besides verdict() or failure(): a store was not taken. refused: an answer said so. */
void redis_breaker_untaken(struct redis_breaker *b, bool refused);
