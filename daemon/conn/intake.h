/* SPDX-License-Identifier: Apache-2.0 */
/*
 * intake.h - what helper threads do for a connection, since it may block. An intake makes the
 * rings, or receives a packet with descriptors, checks it and maps its regions. A leaving unmaps
 * regions and rings and closes the socket of a connection that has ended.
 *
 *  IDLE --begin_intake--> LENT --done--> IDLE
 *                           `-- over its limits, while regions wait to be unmapped --> HELD
 *                               HELD --these are unmapped--> LENT
 */
#pragma once

#include <sys/socket.h>

#include "base/workers.h"
#include "daemon/session/mount.h"
#include "daemon/session/stream_order.h"
#include "daemon/session/ring.h"

enum {
	/* SCM_MAX_FD: all that a packet can carry, so that recvmsg() closes no descriptor */
	INTAKE_MAX_FDS = 253,
	/* Regions of all clients together. Each is a mapping, and vm.max_map_count is 65530. */
	INTAKE_MAX_REGIONS = 49152,
	/* Allocations that ALLOCS bring, of all clients together: each takes some of the driver's
	 * memory. */
	INTAKE_MAX_ALLOCS = 4 << 20,
};

/* Bytes of the regions of all clients: regions may be sparse, and the address space has 128 TiB. */
#define INTAKE_MAX_BYTES (64ull << 40)

/* What a client has of regions, including those that wait to be unmapped, and its limits. */
struct intake_usage {
	uint64_t bytes, max_bytes;
	uint32_t regions, max_regions, allocs, max_allocs, clients;
	bool waits; /* some of it waits to be unmapped */
};

/* An intake takes one packet, or makes the rings for a HELLO. It is embedded in a connection. Its
 * fields belong to the helper while `work` is lent. `ranges` stays from one packet to the next. */
struct intake {
	struct work work;
	enum { INTAKE_IDLE, INTAKE_LENT, INTAKE_HELD } state; /* core's */
	int socket;
	bool greeted; /* HELLO was answered: SPACE_OPEN may come */
	bool discard; /* its connection has ended: close all that is held */
	const struct devices *devices;
	struct intake_usage usage;
	/* not NULL: a HELLO was taken, and rings of so many entries and blocks are to be made.
	 * NULL: a packet is taken */
	struct ring *ring;
	uint32_t ring_entries, arena_blocks;
	uint32_t version; /* of the wire; core's, set before the first packet is taken */
	/* out */
	/* 0: the rings are made; or the packet is a SPACE_OPEN, and mount has its regions; or an
	 * ORDER, and order has its words; or an ALLOCS, and ranges has them.
	 * -EAGAIN: it is over its limits for now, call again. -EPROTO: it breaks the protocol.
	 * -ECONNRESET: there is no packet. Any other error: it is refused, and text says why;
	 * -EMFILE: for want of a descriptor */
	int status;
	uint16_t type; /* of the packet */
	uint32_t seq;
	char text[232];
	size_t n;
	uint8_t *packet; /* freed by intake_drop() */
	/* if status is 0, one of these is the core's */
	struct mount *mount;
	struct stream_order *order;
	/* between packets: ranges for the next SPACE_OPEN; or NULL */
	struct ranges *ranges;
	/* between calls */
	uint32_t n_fds;
	int fds[INTAKE_MAX_FDS];
};

/* Looks at the next packet, which stays in the queue. *ret_fds says whether it carries descriptors:
 * recvmsg() without room for them tells. > 0: the packet's bytes; 0: the queue is empty;
 * -ECONNRESET: the client is gone. */
ssize_t intake_peek(int socket, bool *ret_fds);

/* Copies a packet that has regions without descriptors, for a helper to take in. 0 or -ENOMEM. */
int intake_hold(struct intake *intake, const void *packet, size_t n);

/* On a helper thread. */
enum work_end intake_run(struct work *work, uint32_t thread);
void intake_drop(struct intake *intake); /* core: frees the packet, forgets ring; INTAKE_IDLE */

/* What a connection gives back. It is embedded in the connection, too. */
struct leaving {
	struct work work;
	bool lent;
	struct mount *list; /* taken by this job */
	struct stream_order *orders;
	struct ranges *ranges; /* ranges that no SPACE_OPEN took; or NULL */
	/* closed with its queue, in which descriptors may lie; -1: not yet */
	int socket;
	struct ring *ring; /* likewise; NULL: not yet */
};

enum work_end leaving_run(struct work *work, uint32_t thread);
