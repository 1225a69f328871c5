/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conn.h - one connection: handshake, control messages, submission ring, spaces, death. server.h
 * has all of them. Core thread only.
 *
 *  accept -> GREETING --HELLO--> MEETING --rings made (a helper)--> OPEN
 *                |                  |                                 |
 *                |                  |                 HUP, pidfd, violation, shutdown
 *                |                  |                                 v
 *                `-- 5 s, bad HELLO-+-------- 5 s, no rings -------> DYING
 *                                                                     | no requests left
 *                                                                     v
 *                     slot is free <-- unmapped, closed (helpers) -- ENDED
 */
#ifndef KVTIER_CONN_H
#define KVTIER_CONN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "intake.h"
#include "daemon/base/loop.h"
#include "daemon/shared/client.h"

struct kvtierd;
struct server;

enum conn_state { CONN_GREETING, CONN_MEETING, CONN_OPEN, CONN_DYING, CONN_ENDED };

struct conn {
	struct server *server;
	struct conn *next; /* in order of arrival; free list when unused */
	enum conn_state state;
	struct client client; /* all that op/ knows of it */
	uid_t uid;
	struct loop_watch socket;
	struct loop_watch process; /* pidfd; fd -1: none */
	/* GREETING, MEETING: their deadline; OPEN: looks at the ring while nobody hears
	 * doorbells */
	struct loop_timer timer;
	uint32_t version;     /* that HELLO agreed on */
	struct intake intake; /* while it is not IDLE, no packet is read */
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

/* c is zeroed but for what server.c knows of the peer. fd and pidfd (-1: none) become the
 * connection's on success only. 0 or -errno. */
int conn_start(struct conn *c, int fd, int pidfd);
void conn_kill(struct conn *c);      /* -> DYING; any state is fine */
void conn_look(struct conn *c);      /* takes what packets there are */
void conn_turn_away(struct conn *c); /* GREETING: somebody else needs the slot */
/* DYING and no ops left. True: nothing is left of it */
bool conn_end(struct conn *c);
/* OPEN: what it has imported of this device is lost, or the device itself. */
void conn_lost(struct conn *c, const struct device *device, const char *why);

#endif
