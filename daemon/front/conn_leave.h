/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conn_leave.h - a connection ends, and all that it held goes: spaces, orders, regions that a
 * helper unmaps, the socket. An intake that is over the connection's share waits for regions to be
 * unmapped, so intakes begin here, too. Core thread only.
 */
#ifndef KVTIER_CONN_LEAVE_H
#define KVTIER_CONN_LEAVE_H

#include "conn.h"

void conn_kill(struct conn *c); /* -> DYING; any state is fine */
/* The client broke the protocol: -> DYING, and text is said to it and to the log. */
void conn_violate(struct conn *c, uint32_t seq, const char *text);
/* The daemon lacks something for it, which is no fault of the client's: -> DYING; likewise said. */
void conn_refuse(struct conn *c, uint32_t seq, int error, const char *text);
void conn_turn_away(struct conn *c); /* GREETING: somebody else needs the slot */
/* OPEN, and it has something imported that this device has lost: DYING. */
void conn_lost(struct conn *c, const struct device *device, const char *why);
/* DYING and no ops left. True: nothing is left of it */
bool conn_end(struct conn *c);

/* Nobody touches a page of the mount any more; the order is nobody's. A helper takes them. */
void conn_leave(struct conn *c, struct mount *mount);
void conn_leave_order(struct conn *c, struct order *order);
void conn_left(struct helper_job *job); /* the helper is done: of struct leaving */
void conn_say_closed(struct conn *c, const struct mount *mount); /* SPACE_CLOSED */

/* Packets are not looked at until an intake has ended, or for a tick. Doorbells are among them: so
 * the ring is looked at now and then. */
void conn_pause(struct conn *c);
/* A helper takes the next packet, or all that the intake holds. */
void conn_begin_intake(struct conn *c);

#endif
