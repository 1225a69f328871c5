/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_endpoint.h - an endpoint: one Redis or Valkey, configured or named by a Cluster's slot map.
 * It has its links, its health, and the jobs that wait for a link. Life and invariants:
 * redis_endpoint.c. I/O thread only.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "redis.h"
#include "redis_breaker.h"
#include "redis_job.h"
#include "tiers/redis/conn/redis_address.h"
#include "tiers/redis/conn/redis_conn.h"

struct redis_condemned;

/* The troubles of an endpoint. The log tells when one begins, and when it is over. */
enum redis_trouble { REDIS_SILENT, REDIS_REFUSING, REDIS_UNTAKEN, REDIS_BABBLING, REDIS_TROUBLES };

/* One of the `connections` that an endpoint may have. The connection in it dies and is opened
 * again. */
struct redis_link {
	struct redis_endpoint *endpoint;
	struct redis_conn *conn;   /* may be NULL */
	uint64_t opened_ns, up_ns; /* this connection; up_ns 0: not yet */
	bool opened;               /* ever */
	/* the end of a command on it has told of a failure when it died */
	bool told;
	bool stores; /* takes SETs as well */
};

struct redis_endpoint {
	struct redis_io *io;
	bool used;
	bool seed;    /* configured */
	bool listed;  /* has slots in the map; without a Cluster: is configured */
	bool foreign; /* as far as is known, cluster_hosts does not let it in */
	char address[REDIS_ADDRESS_BYTES];
	uint32_t slots;
	/* its addresses, numeric */
	char resolved[REDIS_RESOLVED][REDIS_ADDRESS_BYTES];
	uint32_t n_resolved, at;
	struct redis_lookup *lookup; /* under way */
	uint64_t lookup_ns;          /* begun last; 0: never */
	/* health */
	struct redis_breaker breaker;
	bool proven; /* it has answered since it was opened */
	/* EVAL was refused to this connection's user: not tried again until the next connect */
	bool refused_evals, refused_refresh;
	/* we are closing its links: the ends of their commands are no news of the endpoint */
	bool hushed;
	uint64_t failed_ns;   /* the iteration whose failure was counted */
	uint64_t untaken_ns;  /* the iteration whose lost store was counted */
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
	struct loop_timer due;
	struct redis_counters counters;     /* but not its connections' */
	struct redis_conn_counters traffic; /* its connections' */
};

void redis_endpoint_open(struct redis_endpoint *endpoint, struct redis_io *io, const char *address);
/* Ends its jobs, and adds its counters to io->gone. */
void redis_endpoint_close(struct redis_endpoint *endpoint);
/* Takes the job, or ends it where the breaker is open. */
void redis_endpoint_submit(struct redis_endpoint *endpoint, struct redis_job *job);
/* WAITING or SENT */
void redis_endpoint_cancel(struct redis_endpoint *endpoint, struct redis_job *job);
void redis_endpoint_poll(struct redis_endpoint *endpoint); /* does the work that is due */
/* redis_chore_send() on a link that is up. */
int redis_endpoint_send(struct redis_endpoint *endpoint, struct redis_chore *chore);
/* Asks the endpoint to delete the value. Where it cannot be asked, the value stays, and is found
 * bad again. */
void redis_endpoint_delete(struct redis_endpoint *endpoint, const struct redis_condemned *what);

/* A value was read: asks the endpoint to keep it for the whole [redis] ttl again, if less than half
 * is left. Where it cannot be asked, the next read does. */
void redis_endpoint_refresh(struct redis_endpoint *endpoint, const struct redis_name *name);

/* --- its health --- */

/* It has answered, and its breaker is closed. */
bool redis_endpoint_usable(const struct redis_endpoint *endpoint);
/* The end of a command is news of the endpoint's health. */
void redis_endpoint_answered(struct redis_endpoint *endpoint);
void redis_endpoint_stored(struct redis_endpoint *endpoint);
void redis_endpoint_failed(struct redis_endpoint *endpoint, const char *why);
/* Called besides failed() or verdict(): a store was not taken. refused: an answer said so. */
void redis_endpoint_untaken(struct redis_endpoint *endpoint, bool refused, const char *why);
void redis_endpoint_verdict(struct redis_endpoint *endpoint, enum redis_verdict verdict, bool store,
			    const char *words);
/* In words: why c ended without a reply. */
const char *redis_endpoint_why(const struct redis_command *c);
/* Whether the error reply on `conn` says that the endpoint has no room for this link while another
 * link is up. */
bool redis_endpoint_crowded(struct redis_endpoint *endpoint, const struct redis_conn *conn,
			    const char *words);

/* --- questions --- */

bool redis_link_is_up(const struct redis_link *link);
/* It has no job and no trial. */
bool redis_endpoint_idle(const struct redis_endpoint *endpoint);
/* A Cluster's endpoint may name itself by a port alone: this is the host that it means. With TLS it
 * is the name in its certificate. */
const char *redis_endpoint_itself(const struct redis_endpoint *endpoint);
void redis_endpoint_counters(const struct redis_endpoint *endpoint, struct redis_counters *ret);
void redis_counters_add(struct redis_counters *sum, const struct redis_counters *c);
