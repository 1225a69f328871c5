/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_view.h - facts that the I/O thread shows the core thread, so that the core never waits to
 * ask. Functions: I/O thread only; redis.c reads.
 */
#ifndef KVTIER_REDIS_VIEW_H
#define KVTIER_REDIS_VIEW_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "redis.h"
#include "redis_topology.h"

struct redis_io;

enum { REDIS_TAKES_READS = 1, REDIS_MAY_STORE = 2 };

struct redis_view {
	/* Before each submit. May be seen half old, half new: hints; the endpoint itself decides.
	 * */
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

void redis_view_flags(struct redis_io *io); /* after each turn that changed a state */
void redis_view_slots(struct redis_io *io); /* after each slot map */
void redis_view_rows(struct redis_io *io);  /* ten times a second */

#endif
