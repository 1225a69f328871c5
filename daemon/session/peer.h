/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peer.h - a process that has connected, and what ops need of each of its connections: the memory
 * shared with the client, and the counts of its ops. A connection (conn/conn.h) opens and closes
 * ring and mounts, and op/ keeps the counts. The header has types alone. Core thread only.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/list.h"
#include "mount.h"
#include "stream_order.h"
#include "ring.h"

struct op;

/* The process that has connected. Limits and queues are by process, since a process can have many
 * connections. The kernel gives pid 0 for a process in a namespace that the daemon does not see;
 * then each connection counts as a process. */
struct peer {
	struct peer *next;  /* in the list of free ones */
	uint32_t tenant;    /* of the socket; on another socket the process is another peer */
	uint32_t n_clients; /* its connections */
	uint32_t number;    /* device_job.client of its jobs */
	uint32_t n_ops;
	uint32_t room_round; /* for room.c */
	/* the rest is for schedule.c. queue: its ops with blocks to begin */
	struct list queue;
	struct list queued;       /* in the queue of peers, while it has such ops */
	uint32_t n_queued;        /* ops in its queue */
	uint32_t passed_round;    /* the round in which all its ops were passed over */
	uint32_t n_waiting;       /* parts that a device may hold until layers come */
	uint32_t n_parts;         /* parts of its ops */
	uint64_t in_flight_bytes; /* host memory that its parts take */
	uint32_t n_mounts;        /* mounts that have a guarantee */
};

struct client {
	uint32_t id;     /* of the connection */
	uint32_t tenant; /* the place of its socket in the configuration */
	pid_t pid;       /* at connect(), as the kernel says */
	struct peer *peer;
	char name[WIRE_NAME_BYTES];
	struct ring ring;
	struct mount *mounts[WIRE_MAX_SPACES];
	struct stream_order *orders; /* one for each device */
	struct op *ops;              /* the list of op.c */
	uint32_t n_ops;
	uint64_t asked_ns;  /* when it last began an op; 0: never */
	struct list asking; /* for schedule.c: from its first op until it is cut */
	/* for op.c: the client asked to be told of a completion through its socket */
	bool wake;
	uint32_t arena_claimed; /* slots that all its ops have */
	uint64_t stored_blocks, loaded_blocks, missed_blocks, sparse_blocks;
};
