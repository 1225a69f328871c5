/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_tier.h - the instance of the tier, and the mailboxes in which its two threads meet. For the
 * files of this folder only. Types alone; redis.c makes and frees them.
 */
#ifndef KVTIER_REDIS_TIER_H
#define KVTIER_REDIS_TIER_H

#include <pthread.h>
#include <stdatomic.h>

#include "redis.h"
#include "redis_job.h"

enum { REDIS_CONDEMNED = 16 };

struct redis_io;
struct redis_view;

/* A value to be deleted if it still is the value that was read. */
struct redis_condemned {
	struct redis_name name;
	uint8_t sha1[20];
	/* sha1 is of the image in the value, not of the whole value */
	bool packed;
	uint64_t length;
};

/* Both ways. Bounded, as a job is in one list at a time. */
struct redis_mail {
	struct mailbox asked, answered; /* jobs */
	/* News beside the jobs: set, then the mailbox is rung. */
	atomic_bool stop, any_cancelled; /* asked */
	atomic_bool changed;             /* answered: an endpoint's flags or the tier's state did */
	/* Asked, too. The lock guards both; take no locks while holding it. */
	pthread_mutex_t lock;
	struct redis_condemned condemned[REDIS_CONDEMNED];
	uint32_t n_condemned;
};

struct redis_login {
	char username[REDIS_SECRET_BYTES], password[REDIS_SECRET_BYTES];
};

struct redis {
	struct tier base; /* first */
	/* constant while open; the thread reads them */
	char configured[REDIS_ENDPOINTS][REDIS_ADDRESS_BYTES];
	uint64_t configured_hash[REDIS_ENDPOINTS];
	struct redis_login *login; /* of vault.h */
	char key_prefix[REDIS_PREFIX_BYTES];
	uint32_t n_endpoints, connections, timeout_ms, max_in_flight, max_image_bytes;
	enum redis_cluster cluster;
	char *cluster_hosts; /* NULL: hosts near the endpoints */
	uint64_t ttl_ms;
	struct redis_tls *tls; /* NULL: none */
	struct redis_events events;
	struct redis_job *jobs; /* max_in_flight */
	struct redis_io *io;
	struct redis_view *view;
	struct redis_mail mail;
	atomic_uint_fast64_t condemned_total;
	/* the core's */
	/* when the second began in which n_hashed images were hashed */
	uint64_t condemn_ns;
	uint32_t n_hashed;
	struct loop *loop;
	struct loop_watch answered_watch; /* of mail.answered */
	struct mails arrived;             /* taken out of it, to be completed */
	bool watching, threaded, closing;
	pthread_t thread;
	struct mails free_jobs;
	struct xfer **lent; /* by job; NULL: free */
};

#endif
