/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis.h - the Redis tier: blocks as values of Redis or Valkey, which several nodes share. An
 * *endpoint* is one Redis or Valkey; there may be one, several side by side, or a Cluster of them.
 * How the tier is made, and how it is run: README.md in this folder.
 *
 * A value is the packed image (daemon/IMAGE.md: header, scales, payload, no padding) in an envelope
 * with a MAC. Its name is key_prefix, 16 hex digits of the tenant (redis_seal.h), a colon, and the
 * block's key in 64 hex digits.
 *
 * Two threads. The core thread calls the functions below. An I/O thread of the tier's own has the
 * connections, so an endpoint that is slow, large or lying costs the core a slot for a while and
 * nothing else. They meet in two bounded mailboxes. An xfer's buffer is the I/O thread's until the
 * xfer is done. A reply that comes later is not written to it.
 *
 *	core thread              mailbox        I/O thread
 *	tier_submit ───────────> asked ──────> endpoint by key ──> connection ──> Redis
 *	tier_complete <───────── answered <─── header checked, body straight into the buffer
 *
 * Status of an xfer:
 *	0		done
 *	-ENOENT		not there. Also a value of another form, by an older or newer kvtierd: it
 *			is counted, and stays
 *	-EBADMSG	the value is not this block: no image, another's, another geometry,
 *			truncated, damaged, a wrong type. It is counted, and deleted if it is still
 *			the same value
 *	-EKEYREJECTED	all is right but the MAC: it was written without the secret. Counted and
 *			deleted likewise
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
 * error. tier_close(): from the loop's thread; lent xfers end first, with -ECANCELED; takes one
 * turn of the I/O thread.
 *
 * tier_state(), over all endpoints that have a part of the keys:
 *	STARTING	none has answered or failed yet
 *	UP, DEGRADED	all, or some, can be read and written
 *	READONLY	none takes stores
 *	OFFLINE		none is usable
 *	MISCONFIGURED	none is usable, and one of them refuses us
 *
 * Each endpoint by itself; the policy is redis_breaker.h:
 *
 *	connecting ──AUTH, trial──> up ──3 failures in a row, -LOADING, -BUSY──> open: it rests
 *	    ^                       ^ │                                            │ 1 s to 30 s
 *	    │                       │ └─ -OOM, -READONLY, -MISCONF: readonly, no   v
 *	    └─── connection lost    │    store is sent for a while             half-open: one trial
 *	                            └───────────────── it succeeds ────────────────┘
 *	-NOAUTH, -WRONGPASS, -NOPERM: misconfigured; tried again every 30 s
 *	any error to a store, or three stores in a row without an answer: readonly, until a store
 *	was taken
 * The log has a line when an endpoint is left alone, refuses us or takes no stores, and when that
 * is over.
 *
 * A host that kvtierd connects to gets the password. So a redirect is followed only to an endpoint
 * that is configured or in the slot map, and only where cluster_hosts lets it in. Others are shown
 * as misconfigured; their blocks are misses.
 *
 * A value without a right MAC may be deleted: its name has 64 bits that follow from tenant and
 * secret, so nodes with another secret neither ask for it nor wrote it.
 */
#ifndef KVTIER_REDIS_H
#define KVTIER_REDIS_H

#include "redis_seal.h"
#include "tiers/redis/conn/redis_address.h"
#include "tiers/redis/conn/redis_conn.h"
#include "tiers/redis/conn/redis_tls.h"
#include "tiers/redis/conn/redis_words.h"
#include "tiers/tier.h"

extern const struct tier_ops redis_ops;

enum {
	/* configured; a Cluster may have up to REDIS_MAP_ENDPOINTS of its own */
	REDIS_ENDPOINTS = 16,
	REDIS_MAP_ENDPOINTS = 64,
	REDIS_PREFIX_BYTES = 64,
	REDIS_CONNECTIONS = 64, /* to one endpoint */
};

enum redis_cluster { REDIS_CLUSTER_AUTO, REDIS_CLUSTER_YES, REDIS_CLUSTER_NO };

struct redis_events {
	void *arg;
	/* A state changed, or an endpoint takes stores again. On the core thread, never inside a
	 * call of the tier. */
	void (*changed)(void *arg);
};

/* tier_open() copies the strings. */
struct redis_tier_conf {
	const char *endpoints[REDIS_ENDPOINTS];
	/* Without Cluster values are spread over them by key: rendezvous by the endpoints' texts,
	 * so nodes that share a cache must spell them alike. */
	uint32_t n_endpoints;
	/* auto: ask the first that answers; endpoints are then seeds */
	enum redis_cluster cluster;
	const char *cluster_hosts; /* redis_hosts.h; "" or NULL: hosts near the endpoints */
	/* "" or NULL: none. Never in a text, log or core dump's argv */
	const char *username, *password;
	bool tls; /* to all but unix: endpoints */
	struct redis_tls_conf tls_conf;
	const char *key_prefix;
	uint64_t ttl_ms;          /* 0: none */
	uint32_t connections;     /* to each endpoint */
	uint32_t timeout_ms;      /* of each xfer, from tier_submit(), and of connecting */
	uint32_t max_in_flight;   /* xfers lent at once; beyond that -EAGAIN */
	uint32_t max_image_bytes; /* a longer value is none of ours; 0: IMAGE_MAX_BYTES */
	struct redis_events events;
};

struct redis_counters { /* all since open */
	/* that got an answer; hits: with a good header */
	uint64_t gets_total, hits_total, sets_total, probes_total;
	uint64_t received_bytes_total, sent_bytes_total; /* of values */
	/* damaged values, found by the tier or told by redis_condemn() */
	uint64_t corrupt_total;
	uint64_t forged_total;      /* values without a right MAC, which were whole */
	uint64_t other_forms_total; /* values of another form */
	uint64_t deleted_total;     /* corrupt and forged values that were deleted */
	/* xfers that ended so; errors: other error replies */
	uint64_t timeouts_total, resets_total, errors_total;
	uint64_t refused_stores_total; /* -OOM, -READONLY, -MISCONF, -CLUSTERDOWN */
	uint64_t redirects_total;      /* MOVED, ASK */
	/* Redirects to an endpoint that no slot map has; endpoints of a map that cluster_hosts does
	 * not let in, or whose certificate is not theirs: none has heard AUTH. */
	uint64_t refused_hosts_total;
	/* replies that came when nobody waited any more; parsed and thrown away */
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
	char tls[16];                /* "TLSv1.3", of the connections; "": none */
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

/* Whether a submit is worth trying now: the endpoint that this tenant's key belongs to is usable.
 * Cheap: an atomic or two. */
bool redis_readable(const struct tier *t, const struct redis_seal *seal, const uint8_t key[32]);
bool redis_writable(const struct tier *t, const struct redis_seal *seal, const uint8_t key[32]);
/* The image that a read brought failed its checksum. It is counted, and the value is deleted if it
 * still has these bytes (by EVAL; where EVAL is refused, the value stays). To hash them takes about
 * a millisecond for a MiB. So at most ten values a second are hashed; others stay until they are
 * found bad again. */
void redis_condemn(struct tier *t, const struct redis_seal *seal, const uint8_t *image,
		   uint32_t bytes);
/* Snapshots, at most 200 ms old. */
void redis_status(const struct tier *t, struct redis_tier_status *ret);
/* false: there is no i-th endpoint */
bool redis_endpoint_row(const struct tier *t, uint32_t i, struct redis_endpoint_row *ret);

#endif
