/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis.h - the Redis tier: blocks as values of Redis or Valkey, which several nodes share. An
 * *endpoint* is one Redis or Valkey; there may be one, several side by side, or a Cluster of them.
 * How the tier is made, and how it is run: README.md in this folder.
 *
 * A value is the packed image (daemon/IMAGE.md: header, scales, payload, no padding) in an envelope
 * with a MAC, or with `compress` often the coded form of it (kernels/form.h), or where an xfer has
 * a codec a lesser image (tiers/recode.h). Its name is key_prefix, 16 hex digits of the tenant
 * (redis_seal.h), a colon, and the block's key in 64 hex digits.
 *
 * The tier has two threads. The core thread calls the functions below. An I/O thread of the tier's
 * own has the connections, so an endpoint that is slow, large or lying costs the core a slot for a
 * while and no more. The two meet in two bounded mailboxes. An xfer's buffer is the I/O thread's
 * until the xfer is done. A reply that comes later is not written to it.
 *
 *	core thread              mailbox        I/O thread
 *	tier_submit ───────────> asked ──────> endpoint by key ──> connection ──> Redis
 *	tier_complete <───────── answered <─── header checked, body straight into the buffer
 *
 * Status of an xfer:
 *	0		done
 *	-ENOENT		there is no such value. A value of another form, by an older or newer
 *			kvtierd, ends so, too: it is counted, and stays
 *	-EBADMSG	the value is not this block: it is no image, or another block's, or of
 *			another geometry, or truncated, damaged, or of a wrong type. It is counted,
 *			and deleted if it is still the same value
 *	-EKEYREJECTED	all is right but the MAC: the value was written without the secret. It is
 *			counted and deleted in the same way
 *	-EFBIG		see tier.h
 *	-ETIMEDOUT	no answer within timeout_ms
 *	-ECONNRESET	the connection was lost
 *	-ECANCELED	tier_cancel(), or the tier was closed
 *	-ENOSPC, -EROFS	the endpoint takes no stores now: -OOM; -READONLY, -MISCONF, -CLUSTERDOWN...
 *	-EACCES		the endpoint refuses us
 *	-EREMOTEIO	another error reply
 * `kept` is never set.
 *
 * tier_submit(): -EAGAIN: max_in_flight xfers are lent. -ENODEV: the endpoint of this key is not to
 * be tried now, or no endpoint has it. -EROFS: the endpoint takes no stores now. The buffer of a
 * write is a complete image, whose header says which block it is; it must not change until done.
 *
 * tier_open(): -EINVAL with text naming the [redis] option; an endpoint that does not answer is no
 * error. tier_close() is called from the loop's thread. Lent xfers end first, with -ECANCELED; the
 * call takes one iteration of the I/O thread.
 *
 * tier_state(), over all endpoints that have a part of the keys:
 *	STARTING	all have yet to answer or fail
 *	UP, DEGRADED	all, or some, can be read and written
 *	READONLY	all refuse stores
 *	OFFLINE		all are unusable
 *	MISCONFIGURED	all are unusable, and one of them refuses us
 *
 * redis_breaker.h says when an endpoint is left alone, or gets no stores, and for how long. The log
 * has a line when that begins, and one when it is over.
 *
 * A host that kvtierd connects to gets the password. So a redirect is followed only to an endpoint
 * that is configured or in the slot map, and only where cluster_hosts lets it in. Others are shown
 * as misconfigured; their blocks are misses.
 *
 * A value without a right MAC may be deleted: its name has 64 bits that follow from tenant and
 * secret, so a node with another secret has not written it and does not ask for it.
 */
#pragma once

#include "tiers/redis/conn/redis_address.h"
#include "tiers/redis/conn/redis_conn.h"
#include "tiers/redis/conn/redis_seal.h"
#include "tiers/redis/conn/redis_tls.h"
#include "tiers/tier.h"

extern const struct tier_ops redis_ops;

enum {
	/* configured; a Cluster may have up to REDIS_MAP_ENDPOINTS of its own */
	REDIS_ENDPOINTS = 16,
	REDIS_MAP_ENDPOINTS = 64,
	REDIS_PREFIX_BYTES = 64,
	REDIS_CONNECTIONS = 64, /* to one endpoint */
};

struct redis_events {
	void *arg;
	/* A state changed, or an endpoint takes stores again. On the core thread, never inside a
	 * call of the tier. */
	void (*changed)(void *arg);
};

/* tier_open() copies the strings. */
struct redis_tier_conf {
	const char *endpoints[REDIS_ENDPOINTS];
	/* The first that answers is asked whether it is of a Cluster; the endpoints are then its
	 * seeds. Without a Cluster values are spread over them by key: rendezvous by the endpoints'
	 * texts, so nodes that share a cache must spell them alike. */
	uint32_t n_endpoints;
	const char *cluster_hosts; /* redis_hosts.h; "" or NULL: hosts near the endpoints */
	/* may be "" or NULL; never in a text, log or core dump's argv */
	const char *username, *password;
	bool tls; /* to all but unix: endpoints */
	struct redis_tls_conf tls_conf;
	const struct redis_seals *seals; /* which are copied; NULL: none */
	const char *key_prefix;
	uint64_t ttl_ms;        /* 0: values stay until they are evicted */
	bool compress;          /* values are coded where that saves enough (form_trial.h) */
	uint32_t connections;   /* to each endpoint */
	uint32_t timeout_ms;    /* of each xfer, from tier_submit(), and of connecting */
	uint32_t max_in_flight; /* xfers lent at once; beyond that -EAGAIN */
	struct redis_events events;
};

/* Takes over other endpoints, another login, other files of TLS, other seals: all connections end,
 * with the xfers on them, and the tier connects anew. False: the setup means the same as the one in
 * use, and was freed. */
struct redis_setup;
bool redis_change(struct tier *t, struct redis_setup *setup);

struct redis_counters { /* all since open */
	/* xfers that got an answer; hits: values with a good header */
	uint64_t gets_total, hits_total, sets_total, probes_total;
	uint64_t received_bytes_total, sent_bytes_total; /* of values */
	/* damaged values, found by the tier or told by tier_condemn() */
	uint64_t corrupt_total;
	uint64_t forged_total;                   /* values without a right MAC, which were whole */
	uint64_t other_forms_total;              /* values of another form */
	uint64_t coded_total, saved_bytes_total; /* sets of coded values, and what they saved */
	uint64_t coding_full_total;              /* sets not coded for want of room */
	uint64_t refreshed_total;                /* values that stay for the whole ttl again */
	uint64_t deleted_total;                  /* corrupt and forged values that were deleted */
	/* xfers that ended so; errors: other error replies */
	uint64_t timeouts_total, resets_total, errors_total;
	uint64_t refused_stores_total; /* -OOM, -READONLY, -MISCONF, -CLUSTERDOWN */
	uint64_t redirects_total;      /* MOVED, ASK */
	/* Redirects to an endpoint that no slot map has; endpoints of a map that cluster_hosts does
	 * not let in, or whose certificate is not theirs: they have not heard AUTH. */
	uint64_t refused_hosts_total;
	/* replies that came after their command had ended; parsed and thrown away */
	uint64_t late_total;
	/* replies that are no RESP, or beyond its bounds: the connection is closed */
	uint64_t protocol_errors_total;
	/* topology: slot maps taken over */
	uint64_t breaker_opens_total, reconnects_total, topology_total;
};

/* One endpoint, for kvtierctl. */
struct redis_endpoint_row {
	char address[REDIS_ADDRESS_BYTES];
	/* STARTING: connecting. READONLY: has taken no store since it refused one. OFFLINE: breaker
	 * open. UP, MISCONFIGURED. */
	enum tier_state state;
	char text[REDIS_TEXT_BYTES]; /* why, or "" */
	char tls[16];                /* "TLSv1.3", of the connections; "": without TLS */
	uint32_t slots;              /* of a Cluster; 0 */
	uint32_t connections, in_flight;
	uint64_t retry_in_ms; /* OFFLINE, MISCONFIGURED, READONLY */
	struct redis_counters counters;
};

struct redis_tier_status {
	bool cluster;
	uint32_t endpoints, usable; /* usable: takes reads */
	/* "address: why" of the first that is not up */
	char text[REDIS_ADDRESS_BYTES + 2 + REDIS_TEXT_BYTES];
	struct redis_counters counters; /* sums, endpoints that are gone included */
	uint64_t views;                 /* how many times all of this was brought up to date */
};

/* Snapshots, at most 200 ms old. */
void redis_status(const struct tier *t, struct redis_tier_status *ret);
/* false: there is no i-th endpoint */
bool redis_endpoint_row(const struct tier *t, uint32_t i, struct redis_endpoint_row *ret);
