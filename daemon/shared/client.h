/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client.h - the part of a connection that its ops need: whose it is, the memory shared with its
 * client, and their own books. The connection (front/conn.h) has one, and opens and closes ring and
 * mounts; the ops keep the books. Types alone. Core thread only.
 */
#ifndef KVTIER_SHARED_CLIENT_H
#define KVTIER_SHARED_CLIENT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/base/list.h"
#include "mount.h"
#include "order.h"
#include "ring.h"

struct op;

/* The process that has connected. Shares and turns are by process, since a process can have many
 * connections. The kernel says 0 of a process in a namespace that the daemon does not see: then
 * each connection counts as a process. */
struct peer {
	struct peer *next;  /* free */
	uint32_t n_clients; /* its connections */
	uint32_t number;    /* device_job.client of its jobs */
	uint32_t n_ops;
	struct list queue; /* turn.c's: its ops with blocks to begin */
	/* turn.c's: stands in the queue of peers while it has such ops */
	struct list queued;
	uint32_t n_queued;        /* ops in its queue */
	uint32_t passed_round;    /* turn.c's: the round in which all its ops were passed over */
	uint32_t room_round;      /* room.c's */
	uint32_t n_waiting;       /* share.c's: parts that a device may hold until layers come */
	uint32_t n_parts;         /* share.c's: of its ops... */
	uint64_t in_flight_bytes; /* ...and the host memory that they take */
	uint32_t n_mounts;        /* share.c's: that have a guarantee */
};

struct client {
	uint32_t id; /* of the connection */
	pid_t pid;   /* kernel-verified, as of connect() */
	struct peer *peer;
	char name[WIRE_NAME_BYTES];
	struct ring ring;
	struct mount *mounts[WIRE_MAX_SPACES];
	struct order *orders; /* one a device */
	struct op *ops;       /* op.c's list */
	uint32_t n_ops;
	uint64_t asked_ns;  /* when it last began an op; 0: never */
	struct list asking; /* share.c's: from its first op until it is cut */
	/* op.c's: the client asked to be told of a completion through its socket */
	bool wake;
	uint32_t arena_claimed; /* slots of its ops together */
	uint64_t stored_blocks, loaded_blocks, missed_blocks, sparse_blocks;
};

#endif
