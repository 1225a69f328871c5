/* SPDX-License-Identifier: Apache-2.0 */
/*
 * intake.h - packets that carry descriptors are received, checked and mapped off the core thread,
 * and rings are made there. The rings, the regions and the socket of a connection that ended are
 * unmapped and closed there, too.
 *
 *  IDLE --intake_start--> LENT --done--> IDLE
 *                           `-- over its share, while regions wait to be unmapped --> HELD
 *                               HELD --these are unmapped--> LENT
 */
#ifndef KVTIER_INTAKE_H
#define KVTIER_INTAKE_H

#include <sys/socket.h>

#include "daemon/base/helper.h"
#include "daemon/shared/mount.h"
#include "daemon/shared/order.h"
#include "daemon/shared/ring.h"

enum {
	/* SCM_MAX_FD: all that a packet can carry, so that none is closed by recvmsg() */
	INTAKE_MAX_FDS = 253,
	/* Regions of all clients together: vm.max_map_count is 65530, and each is a mapping. */
	INTAKE_MAX_REGIONS = 49152,
	/* Allocations that PARTS bring, of all clients together: each takes some of the driver's
	 * memory. */
	INTAKE_MAX_PARTS = 4 << 20,
};

/* Bytes of them: regions may be sparse, and the address space has 128 TiB. */
#define INTAKE_MAX_BYTES (64ull << 40)

/* The regions that a client has mapped, with the regions that wait to be unmapped, and its
 * limits. */
struct intake_share {
	uint64_t bytes, max_bytes;
	uint32_t regions, max_regions, parts, max_parts, clients;
	bool waits; /* some of it waits to be unmapped */
};

/* One packet, or the rings for a HELLO. Embedded in a connection; the fields belong to the helper
 * while job is lent. `parts` stays from one packet to the next. */
struct intake {
	struct helper_job job;
	enum { INTAKE_IDLE, INTAKE_LENT, INTAKE_HELD } state; /* core's */
	int socket;
	bool greeted; /* HELLO was answered: SPACE_OPEN may come */
	bool discard; /* nobody wants it any more: close all that is held */
	const struct devices *devices;
	struct intake_share share;
	/* A HELLO was taken: rings of so many entries and blocks are to be made, and nothing else;
	 * NULL: a packet is taken. */
	struct ring *ring;
	uint32_t ring_entries, arena_blocks;
	/* out */
	/* 0: the rings are made; or packet is a SPACE_OPEN, mount has its regions; or an ORDER,
	 * order has its events and words; or a PARTS, parts has them. -EAGAIN: over its share for
	 * now, call again. -EPROTO: a violation. -ECONNRESET: no packet. Else: refused,
	 * -EMFILE for want of a descriptor. text says why */
	int status;
	uint16_t type; /* of the packet */
	uint32_t seq;
	char text[232];
	size_t n;
	uint8_t *packet; /* freed by intake_drop() */
	/* the core's, if status is 0: one of the two */
	struct mount *mount;
	struct order *order;
	/* between packets: ranges for the next SPACE_OPEN; NULL: none */
	struct parts *parts;
	/* between calls */
	uint32_t n_fds;
	int fds[INTAKE_MAX_FDS];
};

/* Does the next packet carry descriptors? recvmsg() without room for any says so, and takes none. >
 * 0: bytes of the next packet, which stays; 0: none there; -ECONNRESET: gone; *ret_fds: it has
 * some. */
ssize_t intake_peek(int socket, bool *ret_fds);

/* A packet without descriptors that has regions all the same: the helper takes it in like the
 * others. 0 or -ENOMEM. */
int intake_hold(struct intake *intake, const void *packet, size_t n);

/* On a helper thread. */
void intake_run(struct helper_job *job);
void intake_drop(struct intake *intake); /* core: frees the packet, forgets ring; INTAKE_IDLE */

/* All that a connection gives back. Likewise embedded. */
struct leaving {
	struct helper_job job;
	bool lent;
	struct mount *list; /* taken by this job */
	struct order *orders;
	struct parts *parts; /* ranges that no SPACE_OPEN took; NULL: none */
	/* closed with its queue, in which descriptors may lie; -1: not yet */
	int socket;
	struct ring *ring; /* likewise; NULL: not yet */
};

void leaving_run(struct helper_job *job);

#endif
