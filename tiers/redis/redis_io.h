/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_io.h - the I/O thread of the Redis tier: its loop, and its end of the mailboxes.
 */
#ifndef KVTIER_REDIS_IO_H
#define KVTIER_REDIS_IO_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/loop.h"
#include "redis_chore.h"
#include "redis_endpoint.h"
#include "redis_hosts.h"
#include "redis_job.h"
#include "redis_tier.h"
#include "redis_topology.h"
#include "tiers/redis/conn/redis_lookup.h"

/* The I/O thread's. */
struct redis_io {
	struct redis *tier;
	struct loop *loop;
	bool stopping;
	bool changed; /* the view's flags: redis_view_flags(), before ended jobs are handed over */
	struct loop_watch asked_watch;
	struct loop_poller flush; /* hands over the jobs that ended in this turn */
	struct loop_timer tick;
	struct mails ended; /* jobs */
	enum redis_mode mode;
	struct redis_hosts hosts; /* hosts that a map may name */
	struct redis_topology topology;
	/* the first n_endpoints: as configured, in that order */
	struct redis_endpoint endpoints[REDIS_ALL_ENDPOINTS];
	struct redis_counters gone; /* of endpoints that are closed */
	struct redis_lookups lookups;
	uint64_t logged_ns;  /* of all endpoints that are not configured */
	uint64_t refused_ns; /* a redirect that was not followed was logged */
	struct redis_chore chores[REDIS_CHORES], *free_chores;
};

/* Core thread. start: the thread with its loop; 0 or -errno. stop: within one turn of the thread;
 * lent jobs stay where they were. */
int redis_io_start(struct redis *r);
void redis_io_stop(struct redis *r);

/* I/O thread: the deadline of something that begins now */
static inline uint64_t redis_io_deadline(const struct redis_io *io)
{
	return loop_now(io->loop) + (uint64_t)io->tier->timeout_ms * 1000000;
}

/* I/O thread: the endpoint's turn comes in this turn of the loop, or the next. */
static inline void redis_io_kick(struct redis_endpoint *endpoint)
{
	loop_timer_set(endpoint->io->loop, &endpoint->turn, loop_now(endpoint->io->loop));
}

#endif
