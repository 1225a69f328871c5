/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_job.h - a job: one xfer on its way through the I/O thread. Jobs lie in a pool of
 * max_in_flight, so no memory is allocated under way. The functions are for the I/O thread only.
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
 *	 └ link           one of its `connections`, opened again when it dies (redis_endpoint.h)
 *	    └ connection  one socket, until it dies; has the row (redis_conn.h)
 *
 * A job's phases:
 *
 *	mail.asked ──> PACKING ──> (a write that is to be coded, or requantised)
 *	mail.asked ──> WAITING for a link ──> SENT ──reply, deadline──> ENDED ──> mail.answered
 *	                 ^                     │
 *	                 ├── DELAYED <─────────┤ -TRYAGAIN, -CLUSTERDOWN, a redirect not followed
 *	                 └─────────────────────┘ MOVED, ASK
 *
 * Which struct times out. A job has one deadline, timeout_ms after tier_submit(); all its attempts
 * have the same one. Where it is looked at, by the phase:
 *	in a mailbox	taking the job from mail.asked ends it if the deadline has passed
 *	PACKING		each turn of the packer, in redis_io.c
 *	WAITING		the job's timer, in redis_endpoint.c
 *	DELAYED		the job's timer, in redis_topology.c: the next attempt, or the end
 *	SENT		the connection, in redis_row.c. The command ends, and with it the job. Its
 *			row entry stays for the late reply; if half of the command is out, the
 *			connection is closed
 * The status is -ETIMEDOUT in each case. To connect, TLS and AUTH have timeout_ms together, in
 * redis_row.c; jobs that need the connection are WAITING meanwhile, under their own deadline.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "base/loop.h"
#include "base/mailbox.h"
#include "redis.h"
#include "tiers/redis/conn/redis_command.h"
#include "tiers/redis/conn/redis_pack.h"

struct redis_conn;
struct redis_endpoint;
struct redis_io;

enum redis_phase {
	REDIS_IDLE,
	REDIS_PACKING,
	REDIS_WAITING,
	REDIS_DELAYED,
	REDIS_SENT,
	REDIS_ENDED
};

/* A block's name in Redis, and where it belongs by that name. */
struct redis_name {
	char text[REDIS_PREFIX_BYTES + REDIS_TAG_BYTES + 1 + 64 + 1];
	uint32_t slot;   /* in a Cluster */
	uint8_t key[32]; /* of the block: without a Cluster it says which endpoint */
};

struct redis_job {
	struct redis_command command;  /* first */
	struct redis_value value;      /* of a read */
	struct image_shape shape;      /* of a write */
	struct redis_pack pack;        /* of a write, until it has ended */
	const struct redis_seal *seal; /* of a write */
	struct xfer *xfer;             /* the core's; NULL: free */
	enum xfer_op op;
	uint32_t codec; /* of a write: xfer.codec */
	bool lesser;    /* ENDED: a write of a lesser image */
	uint8_t *buffer;
	struct redis_name name;
	uint64_t deadline_ns;
	/* Set by the core, cleared when the job is filled again. No message tells of it:
	 * redis_mail.any_cancelled has the I/O thread look over the pool. */
	atomic_bool cancelled;
	/* The I/O thread's, from mail.asked to mail.answered; `phase` always. */
	enum redis_phase phase;
	int status;     /* ENDED */
	uint32_t hops;  /* redirects followed */
	uint64_t heard; /* bytes that had come from the endpoint when the job was sent */
	bool asking;    /* the next attempt is preceded by ASKING */
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

/* Sends the job as a command, with ASKING before it where that is due. Its done() was set before,
 * by redis_io.c. -EAGAIN, -ENOTCONN as redis_conn_submit(); -EIO: no nonce for the value. */
int redis_job_send(struct redis_job *job, struct redis_conn *conn);
/* Sends the job back to the core. */
void redis_job_end(struct redis_io *io, struct redis_job *job, int status);

/* --- chores --- */

enum { REDIS_CHORES = 64 };

/* A command of the tier's own: the trial of an endpoint, CLUSTER SLOTS, ASKING, the deletion of a
 * bad value. They lie in a pool. */
struct redis_chore {
	struct redis_command command; /* first */
	struct redis_value value;
	struct redis_endpoint *endpoint;
	struct redis_chore *next; /* free */
};

static inline struct redis_chore *redis_chore_of(struct redis_command *command)
{
	return container_of(command, struct redis_chore, command);
}

/* NULL: all are lent. done() gives it back. */
struct redis_chore *redis_chore_take(struct redis_endpoint *endpoint,
				     void (*done)(struct redis_command *command));
void redis_chore_give(struct redis_chore *chore);
/* Lends the chore to a connection until its done(). On error, -ENOTCONN if there is no connection,
 * it is given back. */
int redis_chore_send(struct redis_chore *chore, struct redis_conn *conn);
