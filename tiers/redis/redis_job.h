/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_job.h - a job: one xfer on its way through the I/O thread. Jobs lie in a pool of
 * max_in_flight, so nothing is allocated under way. The functions: I/O thread only.
 *
 * Which struct lies in which:
 *
 *	xfer              one block, by the core (tier.h)                 ends once: tier_complete()
 *	 └ job            the same in the I/O thread: attempts,           ends once: redis_job_end()
 *	    │             redirects, pauses
 *	    └ command     one attempt, on one connection                  ends once: its done()
 *	       └ row entry   where its reply is awaited (redis_row.h)     may outlive the others
 *
 *	endpoint          one Redis: its breaker, its queue of jobs (redis_endpoint.h)
 *	 └ link           one of its `connections`, opened again when it dies (redis_link.h)
 *	    └ connection  one socket, until it dies; has the row (redis_conn.h)
 *
 * A job's phases:
 *
 *	mail.asked ──> WAITING for a link ──> SENT ──reply, deadline──> ENDED ──> mail.answered
 *	                 ^                     │
 *	                 ├── DELAYED <─────────┤ -TRYAGAIN, -CLUSTERDOWN, redirect to nobody
 *	                 └─────────────────────┘ MOVED, ASK
 *
 * Which struct times out. A job has one deadline, timeout_ms after tier_submit(); all its attempts
 * have the same one. At any moment one party looks at it:
 *	in a mailbox	nobody; taking the job from mail.asked ends it if the deadline has passed
 *	WAITING		the job's timer, in redis_endpoint.c
 *	DELAYED		the job's timer, in redis_topology.c: the next attempt, or the end
 *	SENT		the connection, in redis_row.c. The command ends, and with it the job. Its
 *			row entry stays for the late reply; if half of the command is out, the
 *			connection is closed
 * The status is -ETIMEDOUT in each case. To connect, TLS and AUTH have timeout_ms together, in
 * redis_row.c; jobs that need the connection are WAITING meanwhile, under their own deadline.
 */
#ifndef KVTIER_REDIS_JOB_H
#define KVTIER_REDIS_JOB_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/container_of.h"
#include "daemon/base/loop.h"
#include "daemon/base/mailbox.h"
#include "redis.h"
#include "tiers/redis/conn/redis_command.h"

struct redis_conn;
struct redis_endpoint;
struct redis_io;

enum redis_phase { REDIS_IDLE, REDIS_WAITING, REDIS_DELAYED, REDIS_SENT, REDIS_ENDED };

/* A block's name in Redis, and where it belongs by that name. */
struct redis_name {
	char text[REDIS_PREFIX_BYTES + REDIS_TAG_BYTES + 1 + 64];
	uint32_t bytes;
	uint32_t slot;     /* in a Cluster */
	uint32_t endpoint; /* without one: the endpoint's number */
};

struct redis_job {
	struct redis_command command;  /* first */
	struct redis_value value;      /* of a read */
	struct image_shape shape;      /* of a write */
	const struct redis_seal *seal; /* of a write */
	struct xfer *xfer;             /* the core's; NULL: free */
	enum xfer_op op;
	uint8_t *buffer;
	struct redis_name name;
	uint64_t deadline_ns;
	/* Set by the core, cleared when the job is filled again. No message tells of it:
	 * redis_mail.any_cancelled has the I/O thread look over the pool. */
	atomic_bool cancelled;
	/* The I/O thread's, from mail.asked to mail.answered; `phase` always. */
	enum redis_phase phase;
	int status;    /* ENDED */
	uint32_t hops; /* redirects followed */
	bool asking;   /* the next attempt is preceded by ASKING */
	/* a probe: its GETRANGE was refused, so STRLEN says whether there is a value */
	bool by_length;
	struct redis_endpoint *endpoint;
	struct loop_timer timer; /* WAITING, DELAYED */
	struct mail mail;        /* in a list */
};

/* The first of a list of jobs; NULL: empty. Either thread. */
static inline struct redis_job *redis_job_take(struct mails *list)
{
	struct mail *mail = mails_take(list);

	return mail ? container_of(mail, struct redis_job, mail) : NULL;
}

/* Sends the job as a command, with ASKING before it where that is due. Its done() is
 * redis_attempt.c's, set before. -EAGAIN, -ENOTCONN as redis_conn_submit(); -EIO: no nonce for the
 * value. */
int redis_job_send(struct redis_job *job, struct redis_conn *conn);
/* on its way back to the core */
void redis_job_end(struct redis_io *io, struct redis_job *job, int status);

#endif
