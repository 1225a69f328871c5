/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conn.h - one connection, from accept to its end: its packets and control messages, its limits,
 * and its submission ring. struct front has what all connections use together; server.h has all
 * connections. Core thread only.
 *
 *  accept -> GREETING --HELLO--> MEETING --rings made (a helper)--> OPEN
 *                |                  |                                 |
 *                |                  |                 HUP, pidfd, violation, shutdown
 *                |                  |                                 v
 *                `-- 5 s, bad HELLO-+-------- 5 s, no rings -------> DYING
 *                                                                     | no requests left
 *                                                                     v
 *                     slot is free <-- unmapped, closed (helpers) -- ENDED
 *
 * Invariants
 *   K1 a client's message ends at most its own connection: the client gets an ERROR with the
 *      sentence, and then the socket is closed.
 *   K2 when a connection ends, for any reason, the daemon has stopped touching the client's pages.
 *      A dying connection's socket and ring are not looked at, and its socket stays open and
 *      silent until its last part in flight has ended (milliseconds). Only then the reason is
 *      sent, and the socket hangs up.
 *   K3 no call that sends blocks: if a client does not read its replies and a packet does not fit
 *      into its socket, its connection ends.
 *   K4 the core touches a client's message only as bytes of a packet. A helper (intake.c) handles
 *      descriptors, regions and the queue of the socket. A connection has at most one intake and
 *      one leaving under way, and its slot is taken until both have ended. So an intake or leaving
 *      that blocks holds up this connection alone.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/log.h"
#include "base/loop.h"
#include "daemon/session/peer.h"
#include "intake.h"
#include "refusal.h"

struct kvtierd;

/* What all connections use together. The server makes it. */
struct front {
	struct kvtierd *d;
	struct workers *helpers;
	/* The kernel keeps descriptors out of a socket until HELLO is answered. False: it cannot,
	 * being older than 6.16. */
	bool guarded;
	int self; /* a pidfd by which clients see this process end; -1: this kernel has none */
	/* when a client was last not served for want of a descriptor, which `status` tells for ten
	 * minutes; 0: never */
	uint64_t out_of_files_ns;
	struct refusals refusals;
	uint32_t n_alive, n_dying;                 /* connections */
	uint32_t n_beyond;                         /* spaces that are open beyond guarantees */
	_Alignas(8) char buffer[WIRE_MAX_MESSAGE]; /* for one packet at a time */
};

enum conn_state { CONN_GREETING, CONN_MEETING, CONN_OPEN, CONN_DYING, CONN_ENDED };

struct conn {
	struct front *front;
	struct conn *next; /* in order of arrival; free list when unused */
	enum conn_state state;
	struct client client; /* all that op/ knows of the connection */
	uid_t uid;
	const struct config_socket *socket_conf; /* of the socket that it came by */
	struct loop_watch socket;
	struct loop_watch process; /* a pidfd; fd -1: it is not known */
	/* the deadline of GREETING and MEETING; in OPEN it looks at the ring while doorbells are
	 * not heard */
	struct loop_timer timer;
	uint32_t version;                  /* that was agreed on by HELLO */
	uint32_t version_min, version_max; /* that the client offered; 0: none yet */
	struct intake intake;              /* while it is not IDLE, no packet is read */
	struct leaving leaving;
	/* spaces that are closed and whose regions are still mapped, which count for the client */
	struct mount *unwanted;
	struct stream_order *unwanted_orders;
	struct loop_poller poller; /* the submission ring */
	uint32_t closing_mounts;
	int32_t end_error; /* DYING: what the client is told before the socket closes, or 0 */
	uint32_t end_seq;
	char end_text[200];
	uint64_t born_ns;
};

/* c is zeroed, but for the facts about the peer that server.c has set. fd and pidfd (which may be
 * -1) become the connection's on success only. 0 or -errno. */
int conn_start(struct conn *c, int fd, int pidfd);
void conn_look(struct conn *c);     /* takes the packets that have come */
void conn_kill(struct conn *c);     /* -> DYING, from any state */
void conn_displace(struct conn *c); /* in GREETING, when another client needs the slot */
/* An OPEN connection that has memory or events of this device, which the device has lost, is DYING
 * from now on. */
void conn_lost(struct conn *c, const struct device *device, const char *why);
/* Call it in DYING when no ops are left. True: the connection has given all back. */
bool conn_end(struct conn *c);

/* What it has of regions, and may have. */
void conn_usage(const struct conn *c, struct intake_usage *ret);
/* Adds the lookups of an OPEN connection since the last call to the stats. */
void conn_count_lookups(struct conn *c);

/* Sends an ERROR; text is cut to the bytes that fit. 0 or -errno. */
int conn_send_error(int socket, uint32_t seq, int error, const char *text);
