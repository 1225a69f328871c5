/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis.h - the Redis tier: images as values of a Redis or Valkey, alone, several side by side, or
 * a Cluster, shared by nodes. Value: the packed image (daemon/IMAGE.md: header, scales, payload, no
 * padding) in an envelope with a MAC. Name: key_prefix, 16 hex digits of the tenant (redis_seal.h),
 * a colon, and the block's key in 64 hex digits.
 *
 * Two threads. The core thread calls what is here; an I/O thread of the tier's own has the
 * connections, so that an endpoint that is slow, large or lying takes nothing from the core but a
 * slot for a while. They meet in two bounded mailboxes (redis.c). A xfer's buffer is the I/O
 * thread's until done, and it never blocks but in epoll; no reply, however late, is written to a
 * buffer whose xfer has ended.
 *
 *	core thread              mailbox        I/O thread
 *	tier_submit ───────────> asked ──────> endpoint by key ──> connection ──> Redis
 *	tier_complete <───────── answered <──── header checked, body straight into the buffer
 *
 * Status of a xfer: 0; -ENOENT: not there; -EBADMSG: a value that is not this block (not an image,
 * another's, of another geometry, truncated, damaged, a wrong type): a miss, counted, and deleted
 * if it is still the same value; -EKEYREJECTED: all is right but the MAC: made by somebody who does
 * not know the secret; likewise. A value of another form (an older or newer kvtierd's) is -ENOENT,
 * counted, and stays. -EFBIG (tier.h); -ETIMEDOUT: not within timeout_ms; -ECONNRESET; -ECANCELED;
 * -ENOSPC, -EROFS: the endpoint takes no stores now (-OOM, -READONLY, -MISCONF, -CLUSTERDOWN...);
 * -EACCES: it refuses us; -EREMOTEIO: another error reply. tier_submit(): -EAGAIN: too many on
 * their way; -ENODEV: the endpoint the key belongs to is not to be tried now, or none is; -EROFS:
 * it takes no stores now. `kept` is never set.
 *
 * One endpoint, each by itself; policy in redis_breaker.h:
 *
 *	connecting --AUTH, topology--> up --3 failures in a row, -LOADING, -BUSY--> open: nothing is sent
 *	    ^                          ^ \                                           | 1 s, doubling to 30 s, +- 25 %
 *	    │                          │  -OOM, -READONLY, -MISCONF: up, no stores for a while
 *	    └── connection lost        └── one probe succeeds <── half-open <────────┘
 *	-NOAUTH, -WRONGPASS, -NOPERM: misconfigured: tried again every 30 s, one line in the log a minute
 */
#ifndef KVTIER_REDIS_H
#define KVTIER_REDIS_H

#include "redis_seal.h"
#include "tiers/redis/conn/redis_tls.h"
#include "tiers/tier.h"

enum {
	/* configured; a Cluster may have up to REDIS_MAP_ENDPOINTS of its own */
	REDIS_ENDPOINTS = 16,
	REDIS_MAP_ENDPOINTS = 64,
	REDIS_ADDRESS_BYTES = 256,	/* "host:port", "[v6]:port" or "unix:/path", with its 0 */
	REDIS_PREFIX_BYTES = 64,
	REDIS_SECRET_BYTES = 512,	/* username, password */
	REDIS_CONNECTIONS = 64,		/* to one endpoint */
	REDIS_TEXT_BYTES = 256,
};

enum redis_cluster { REDIS_CLUSTER_AUTO, REDIS_CLUSTER_YES, REDIS_CLUSTER_NO };

struct redis_events {
	void *arg;
	/* a state, or it takes stores again. Core thread, never inside a call */
	void (*changed)(void *arg);
};

/* What pointers point to is copied by tier_open(). */
struct redis_tier_conf {
	const char *endpoints[REDIS_ENDPOINTS];
	/* Without Cluster values are spread over them by key: rendezvous by the endpoints' texts,
	 * so nodes that share a cache must spell them alike. */
	uint32_t n_endpoints;
	/* auto: ask the first that answers; endpoints are then seeds */
	enum redis_cluster cluster;
	const char *cluster_hosts;	/* redis_hosts.h; "" or NULL: what is near the endpoints */
	/* "" or NULL: none. Never in a text, log or core dump's argv */
	const char *username, *password;
	bool tls;			/* to all but unix: endpoints */
	struct redis_tls_conf tls_conf;
	const char *key_prefix;
	uint64_t ttl_ms;		/* 0: none */
	uint32_t connections;		/* to each endpoint */
	uint32_t timeout_ms;		/* of each xfer, from tier_submit(), and of connecting */
	uint32_t max_in_flight;		/* xfers lent at once; beyond that -EAGAIN */
	uint32_t max_image_bytes;	/* a longer value is none of ours; 0: IMAGE_MAX_BYTES */
	struct redis_events events;
};

struct redis_counters {			/* all since open */
	/* that got an answer; hits: good header */
	uint64_t gets_total, hits_total, sets_total, probes_total;
	uint64_t received_bytes_total, sent_bytes_total;	/* of values */
	/* values not as they should be, those redis_condemn() told of included */
	uint64_t corrupt_total;
	uint64_t forged_total;		/* values without a right MAC, which were whole */
	uint64_t other_forms_total;	/* values of another form */
	uint64_t deleted_total;		/* of the corrupt and forged: deleted */
	/* xfers that ended so; errors: other error replies */
	uint64_t timeouts_total, resets_total, errors_total;
	uint64_t refused_stores_total;	/* -OOM, -READONLY, -MISCONF, -CLUSTERDOWN */
	uint64_t redirects_total;	/* MOVED, ASK */
	uint64_t refused_hosts_total;	/* times that a redirect named an endpoint that no slot map has, or a map one that is
					 * not of cluster_hosts: not connected to */
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
	enum tier_state state;		/* STARTING: connecting; UP; READONLY: no stores now; OFFLINE: breaker open;
					 * MISCONFIGURED */
	char text[REDIS_TEXT_BYTES];	/* why, or "" */
	char tls[16];			/* "TLSv1.3", of what is connected; "": none */
	uint32_t slots;			/* of a Cluster; 0 */
	uint32_t connections, in_flight;
	uint64_t retry_in_ms;		/* OFFLINE, MISCONFIGURED, READONLY */
	struct redis_counters counters;
};

struct redis_tier_status {
	bool cluster;
	uint32_t endpoints, usable;	/* usable: takes reads */
	/* "address: why" of the first that is not up */
	char text[REDIS_TEXT_BYTES + REDIS_ADDRESS_BYTES];
	struct redis_counters counters;	/* sums, endpoints that are gone included */
};

/*
 * Who is connected gets the password. So a redirect is followed to endpoints and endpoints of the
 * slot map only, and of these only to those that cluster_hosts lets in; others are shown as
 * misconfigured, and what they would have is missed.
 *
 * tier_open(): -EINVAL with text naming the [redis] option; an endpoint that is not there is no
 * error. tier_close(): from the loop's thread, xfers that are lent end first with -ECANCELED; takes
 * no longer than one turn of the I/O thread. tier_state(): STARTING until the first endpoint
 * answered or failed; UP: all are; DEGRADED: some; READONLY: none takes stores; OFFLINE;
 * MISCONFIGURED: none is usable and one of them refuses us.
 *
 * submit of a write: buffer is a complete image; it must not change until done. What the key is its
 * header says.
 *
 * Why what has no right MAC may be deleted: its name has 64 bits that follow from tenant and
 * secret, so nodes with another secret neither ask for it nor wrote it.
 */

/* Whether it is worth to submit now: the endpoint this tenant's key belongs to is usable. Cheap: an
 * atomic or two. */
bool redis_readable(const struct tier *t, const struct redis_seal *seal, const uint8_t key[32]);
bool redis_writable(const struct tier *t, const struct redis_seal *seal, const uint8_t key[32]);
/* The image that a read brought failed its checksum: counted, and the value is deleted if it still
 * has these bytes (EVAL; where that is refused it stays). Hashes them: about a millisecond for a
 * MiB; so at most ten a second, others stay until they are found bad again. */
void redis_condemn(struct tier *t, const struct redis_seal *seal, const uint8_t *image,
		   uint32_t bytes);
/* Snapshots, at most 200 ms old. */
void redis_status(const struct tier *t, struct redis_tier_status *ret);
/* false: no such */
bool redis_endpoint_row(const struct tier *t, uint32_t i, struct redis_endpoint_row *ret);

#endif
