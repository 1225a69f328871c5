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

/* A value to be deleted if it still is the one that was read. */
struct redis_condemned {
	struct redis_name name;
	uint8_t sha1[20];
	/* sha1 is of the image in the value, not of the whole value */
	bool packed;
	uint64_t length;
};

struct redis_chore *redis_chore_take(struct redis_io *io); /* NULL: none left */
void redis_chore_give(struct redis_io *io, struct redis_chore *chore);
/* Lends the chore to a connection until its done(): of this connection; of a link of the endpoint
 * that is up, -ENOTCONN: there is none. On error the chore stays the caller's. */
int redis_chore_send(struct redis_chore *chore, struct redis_endpoint *endpoint,
		     struct redis_conn *conn);
int redis_chore_send_any(struct redis_chore *chore, struct redis_endpoint *endpoint);
/* Asks the endpoint to delete the value. Where that cannot be asked the value stays, and is found
 * bad again. */
void redis_chore_delete(struct redis_endpoint *endpoint, const struct redis_condemned *what);

#endif
