/* SPDX-License-Identifier: Apache-2.0 */
/*
 * session.h - a client's connection: handshake, dispatch, reconnection.
 *
 *	AWAY --connected, HELLO sent--> GREETING --HELLO_OK, links mapped--> UP
 *	  ^------------- hang-up, timeout, violation, cut: session_lost() ----'
 */
#ifndef KVTIER_LIB_SESSION_H
#define KVTIER_LIB_SESSION_H

#include <stdint.h>

struct kvtier_client;

enum session_state { SESSION_AWAY, SESSION_GREETING, SESSION_UP };

/* One non-blocking step: connects if it is time, takes packets, opens and closes spaces. Control
 * held. */
void session_advance(struct kvtier_client *c, uint64_t now);
/* The same step from calls that do not hold control, at most once a millisecond (AWAY: once a
 * backoff). */
void session_nudge(struct kvtier_client *c);
/* Drops the connection, completes every op with -ECONNRESET. Control lock held. error < 0. */
void session_lost(struct kvtier_client *c, int error, const char *why);
/* Like session_lost(), but takes the lock itself, and does nothing if `serial` is not the current
 * connection any more. */
void session_cut(struct kvtier_client *c, uint64_t serial, int error, const char *why);
/* unmaps retired links that nobody uses; control */
void session_reap(struct kvtier_client *c);
/* Sleeps until the socket has a packet, for a slice at most. No lock held. */
void session_pause(struct kvtier_client *c, uint64_t deadline);
void session_doorbell(struct kvtier_client *c, uint64_t serial); /* no lock held */

#endif
