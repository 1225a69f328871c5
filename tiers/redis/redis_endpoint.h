/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_endpoint.h - an endpoint: one Redis or Valkey, configured or named by a Cluster's slot map.
 * Its links, and the jobs that wait for one. Life and invariants: redis_endpoint.c. I/O thread
 * only.
 */
#ifndef KVTIER_REDIS_ENDPOINT_H
#define KVTIER_REDIS_ENDPOINT_H

#include <stdbool.h>
#include <stdint.h>

#include "redis.h"
#include "redis_breaker.h"
#include "redis_job.h"
#include "redis_link.h"
#include "tiers/redis/conn/redis_lookup.h"

struct redis_chore;
struct redis_condemned;

/* What is wrong with an endpoint, of which the log tells when it begins and when it is over. */
enum redis_trouble { REDIS_SILENT, REDIS_REFUSING, REDIS_UNTAKEN, REDIS_BABBLING, REDIS_TROUBLES };

struct redis_endpoint {
	struct redis_io *io;
	bool used;
	bool seed;    /* configured */
	bool listed;  /* has slots in the map; without a Cluster: is configured */
	bool foreign; /* cluster_hosts does not let it in, as far as is known */
	char address[REDIS_ADDRESS_BYTES];
	uint32_t slots;
	/* its addresses, numeric */
	char resolved[REDIS_RESOLVED][REDIS_ADDRESS_BYTES];
	uint32_t n_resolved, at;
	struct redis_lookup *lookup; /* under way */
	uint64_t lookup_ns;          /* begun last; 0: never */
	/* health: redis_health.h */
	struct redis_breaker breaker;
	bool proven; /* it has answered since it was opened */
	/* EVAL was refused to this connection's user: not tried again until the next connect */
	bool refused_evals;
	/* links are being closed by us: their commands' ends tell nothing of the endpoint */
	bool hushed;
	uint64_t failed_ns;   /* the turn whose failure was counted */
	uint64_t untaken_ns;  /* the turn whose lost store was counted */
	uint64_t answered_ns; /* last */
	uint64_t retry_ns;    /* no connection before this */
	/* when the log told of it last; told: it has not said yet that it is over */
	uint64_t logged_ns[REDIS_TROUBLES];
	bool told[REDIS_TROUBLES];
	uint64_t named_ns;         /* a redirect named it last */
	struct redis_chore *trial; /* under way */
	char text[REDIS_TEXT_BYTES];
	char stores_text[REDIS_TEXT_BYTES]; /* why it takes no stores */
	/* work */
	struct mails waiting;        /* jobs */
	uint32_t n_links, in_flight; /* jobs sent */
	struct redis_link links[REDIS_CONNECTIONS];
	struct loop_timer turn;
	struct redis_counters counters; /* but not living connections' */
};

void redis_endpoint_open(struct redis_endpoint *endpoint, struct redis_io *io, const char *address);
/* ends its jobs; its counters go to io->gone */
void redis_endpoint_close(struct redis_endpoint *endpoint);
/* Takes the job, or ends it where the breaker is open. */
void redis_endpoint_submit(struct redis_endpoint *endpoint, struct redis_job *job);
/* WAITING or SENT */
void redis_endpoint_cancel(struct redis_endpoint *endpoint, struct redis_job *job);
void redis_endpoint_turn(struct redis_endpoint *endpoint); /* does the work that is due */
/* Lends the chore to a link that is up. -ENOTCONN: there is none. On error it stays the
 * caller's. */
int redis_endpoint_send(struct redis_endpoint *endpoint, struct redis_chore *chore);
/* Asks the endpoint to delete the value. Where it cannot be asked, the value stays, and is found
 * bad again. */
void redis_endpoint_delete(struct redis_endpoint *endpoint, const struct redis_condemned *what);

/* has no job and no trial */
bool redis_endpoint_idle(const struct redis_endpoint *endpoint);
/* A Cluster's endpoint may name itself by a port alone: this is the host that it means. With TLS it
 * is the name in its certificate. */
const char *redis_endpoint_itself(const struct redis_endpoint *endpoint);
void redis_endpoint_counters(const struct redis_endpoint *endpoint, struct redis_counters *ret);
void redis_counters_add(struct redis_counters *sum, const struct redis_counters *c);

#endif
