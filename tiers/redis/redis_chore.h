/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_chore.h - commands of the tier's own: the trial of an endpoint, CLUSTER SLOTS, ASKING, the
 * deletion of bad values. A fixed pool. I/O thread only.
 */
#ifndef KVTIER_REDIS_CHORE_H
#define KVTIER_REDIS_CHORE_H

#include "redis_job.h"

enum { REDIS_CHORES = 64 };

struct redis_chore {
	struct redis_command command; /* first */
	struct redis_value value;
	struct redis_endpoint *endpoint;
	void (*done)(struct redis_chore *chore);
	struct redis_chore *next; /* free */
};

struct redis_chore *redis_chore_take(struct redis_io *io); /* NULL: none left */
void redis_chore_give(struct redis_io *io, struct redis_chore *chore);
/* Lends the chore to a connection of the endpoint until its done(). On error it stays the
 * caller's. */
int redis_chore_send(struct redis_chore *chore, struct redis_endpoint *endpoint,
		     struct redis_conn *conn);

#endif
