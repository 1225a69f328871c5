/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_link.h - a link: one of the `connections` that an endpoint may have. The connection in it
 * dies and is opened again; redis_link.c says when, and how much is asked for ahead on each. I/O
 * thread only.
 */
#ifndef KVTIER_REDIS_LINK_H
#define KVTIER_REDIS_LINK_H

#include <stdbool.h>
#include <stdint.h>

#include "tiers/redis/conn/redis_conn.h"
#include "tiers/tier.h"

struct redis_counters;
struct redis_endpoint;

struct redis_link {
	struct redis_endpoint *endpoint;
	struct redis_conn *conn;   /* NULL: none */
	uint64_t opened_ns, up_ns; /* this connection; up_ns 0: not yet */
	bool opened;               /* ever */
	/* the end of a command on it has told of a failure when it died */
	bool told;
	bool stores; /* takes SETs as well */
};

/* the address to connect to; "": not known */
const char *redis_link_address(const struct redis_endpoint *endpoint);
bool redis_link_is_up(const struct redis_link *link);
/* The link with the least to do, of the links that are up and have room for ASKING and a command of
 * this kind; NULL: none. bytes: room of a read's value. */
struct redis_link *redis_link_pick(struct redis_endpoint *endpoint, enum xfer_op op,
				   uint32_t bytes);
/* Opens the connection, or does the step that must come before it (a look-up), or nothing while it
 * is too early. */
void redis_link_open(struct redis_link *link);
/* takes over the result of a look-up, if there is one */
void redis_link_lookup(struct redis_endpoint *endpoint);
/* Whether the error reply on `conn` says that the endpoint has no room for this link while another
 * link is up. */
bool redis_link_was_too_many(struct redis_endpoint *endpoint, const struct redis_conn *conn,
			     const char *words);
/* Closes dead connections, and tells the breaker of deaths that are failures of the endpoint. */
void redis_links_bury(struct redis_endpoint *endpoint);
/* all; commands on them end, and that is no failure */
void redis_links_close(struct redis_endpoint *endpoint);
/* adds living connections' */
void redis_links_count(const struct redis_endpoint *endpoint, struct redis_counters *sum);

#endif
