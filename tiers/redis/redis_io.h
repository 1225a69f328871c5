/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_io.h - the instance of the tier, the mailboxes and the view in which its two threads meet,
 * and the I/O thread. Only the files of this folder include it. redis.c makes and frees the
 * instance.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/loop.h"
#include "redis.h"
#include "redis_endpoint.h"
#include "redis_hosts.h"
#include "redis_job.h"
#include "redis_topology.h"
#include "tiers/redis/conn/redis_address.h"
#include "tiers/redis/conn/redis_setup.h"

struct redis_io;

enum { REDIS_CONDEMNED = 16 };

/* A value to be deleted if it still is the value that was read. */
struct redis_condemned {
	struct redis_name name;
	uint8_t sha1[20];
	enum redis_part part; /* that sha1 is of */
	uint64_t length;
};

/* The mailboxes of both ways. They are bounded, since a job is in one list at a time. */
struct redis_mail {
	struct mailbox asked, answered; /* jobs */
	/* News beside the jobs: set, then the mailbox is rung. */
	atomic_bool stop, any_cancelled; /* asked */
	atomic_bool changed;             /* answered: an endpoint's flags or the tier's state did */
	/* asked; the lock guards both: take no locks while holding it */
	pthread_mutex_t lock;
	struct redis_condemned condemned[REDIS_CONDEMNED];
	uint32_t n_condemned;
	_Atomic(struct redis_setup *) setup; /* to be taken over with the next tick; or NULL */
};

enum { REDIS_TAKES_READS = 1, REDIS_MAY_STORE = 2 };

/* Facts that the I/O thread shows, so that the core never waits to ask. */
struct redis_view {
	/* The core reads these before each submit. It may see them half old, half new; the endpoint
	 * itself decides. */
	atomic_int mode;                        /* enum redis_mode */
	atomic_int state;                       /* enum tier_state */
	atomic_uint flags[REDIS_ALL_ENDPOINTS]; /* REDIS_TAKES_... */
	_Atomic uint8_t slot[REDIS_SLOTS];      /* CLUSTER: number of an endpoint */
	/* guards the fields below. Take no locks while holding it */
	pthread_mutex_t lock;
	struct redis_tier_status status;
	uint32_t n_rows;
	struct redis_endpoint_row rows[REDIS_ALL_ENDPOINTS];
};

struct redis {
	struct tier base; /* first */
	/* constant while open; the thread reads them */
	char key_prefix[REDIS_PREFIX_BYTES];
	uint32_t connections, timeout_ms, max_in_flight;
	uint64_t ttl_ms;
	bool compress;
	struct redis_events events;
	struct redis_job *jobs; /* max_in_flight */
	struct redis_io *io;
	struct redis_view *view;
	struct redis_mail mail;
	atomic_uint_fast64_t condemned_total;
	/* the core's */
	const struct redis_setup *setup; /* the newest */
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

/* The I/O thread's. */
struct redis_io {
	struct redis *tier;
	struct redis_setup *setup;
	struct loop *loop;
	bool stopping;
	/* the view's flags, and its slots: brought up to date before ended jobs are handed over */
	bool changed, slots_changed;
	struct loop_watch asked_watch;
	struct loop_poller flush; /* hands over the jobs that ended in this iteration */
	struct loop_timer tick;
	struct loop_poller pack; /* packs the first of `packing` */
	struct redis_packer packer;
	struct mails packing, ended; /* jobs */
	enum redis_mode mode;
	struct redis_hosts hosts; /* hosts that a map may name */
	struct redis_topology topology;
	/* the first setup->n_endpoints: as configured, in that order */
	struct redis_endpoint endpoints[REDIS_ALL_ENDPOINTS];
	struct redis_counters gone; /* of endpoints that are closed */
	uint64_t logged_ns;         /* of all endpoints that are not configured */
	uint64_t refused_ns;        /* a redirect that was not followed was logged */
	struct redis_chore chores[REDIS_CHORES], *free_chores;
};

/* For the core thread. start: the thread and its loop are there; 0 or -errno. stop: the thread ends
 * within one iteration of its loop, and lent jobs stay where they were. */
int redis_io_start(struct redis *r);
void redis_io_stop(struct redis *r);

/* I/O thread: the deadline of what begins now. */
static inline uint64_t redis_io_deadline(const struct redis_io *io)
{
	return loop_now(io->loop) + (uint64_t)io->tier->timeout_ms * 1000000;
}

/* I/O thread: the endpoint is polled in this iteration of the loop, or the next. */
static inline void redis_io_kick(struct redis_endpoint *endpoint)
{
	loop_timer_set(endpoint->io->loop, &endpoint->due, loop_now(endpoint->io->loop));
}
