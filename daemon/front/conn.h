/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conn.h - one connection: its struct, its start, its socket and its submission ring. Control
 * messages are in conn_message.h, its end in conn_leave.h, its share of the daemon in conn_share.h;
 * server.h has all connections. Core thread only.
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
 *   K1 a client's message ends at most its own connection: an ERROR with the sentence, then close.
 *   K2 the end of a connection, for any reason, is the daemon's word that it let go of the client's
 *      pages. A dying connection's socket and ring are not looked at any more, but its socket stays
 *      open and silent until its last part in flight let go (milliseconds). Only then the reason is
 *      sent, and the socket hangs up.
 *   K3 nothing is sent that could block: a packet that does not fit into the socket of a client
 *      that does not read its replies ends that connection.
 *   K4 a client's message is touched here only as bytes of a packet: descriptors, regions and its
 *      socket's queue are a helper's (intake.c). A connection has at most one intake and one
 *      leaving under way, and its slot is taken until both have ended: a blocked intake or leaving
 *      holds up this connection alone.
 */
#ifndef KVTIER_CONN_H
#define KVTIER_CONN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "front.h"
#include "intake.h"
#include "daemon/base/loop.h"
#include "daemon/shared/client.h"

/* between two looks at the ring of a client whose doorbells nobody hears */
enum { CONN_TICK_NS = 1000000 };

enum conn_state { CONN_GREETING, CONN_MEETING, CONN_OPEN, CONN_DYING, CONN_ENDED };

struct conn {
	struct front *front;
	struct conn *next; /* in order of arrival; free list when unused */
	enum conn_state state;
	struct client client; /* all that op/ knows of it */
	uid_t uid;
	struct loop_watch socket;
	struct loop_watch process; /* pidfd; fd -1: none */
	/* GREETING, MEETING: their deadline; OPEN: looks at the ring while nobody hears
	 * doorbells */
	struct loop_timer timer;
	uint32_t version;                  /* that HELLO agreed on */
	uint32_t version_min, version_max; /* that it offered; 0: none came */
	struct intake intake;              /* while it is not IDLE, no packet is read */
	struct leaving leaving;
	/* closed spaces, regions still mapped; counted in the client's share */
	struct mount *unwanted;
	struct order *unwanted_orders; /* likewise */
	struct loop_poller poller;     /* the submission ring */
	uint32_t closing_mounts;
	int32_t end_error; /* DYING: said before the socket closes; 0: nothing */
	uint32_t end_seq;
	char end_text[200];
	uint64_t born_ns;
};

/* c is zeroed but for server.c's facts about the peer. fd and pidfd (-1: none) become the
 * connection's on success only. 0 or -errno. */
int conn_start(struct conn *c, int fd, int pidfd);
void conn_look(struct conn *c); /* takes the packets that are there */

#endif
