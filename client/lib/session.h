/* SPDX-License-Identifier: Apache-2.0 */
/*
 * session.h - a client's connection: handshake, dispatch, reconnection.
 *
 *	AWAY --connected, HELLO sent--> GREETING --HELLO_OK, links mapped--> UP
 *	  ^------------- hang-up, timeout, violation, cut: session_lost() ----'
 */
#pragma once

#include <stdint.h>

struct kvtier_client;

enum session_state { SESSION_AWAY, SESSION_GREETING, SESSION_UP };

/* Takes one step, without blocking: connects if it is time, takes packets, opens and closes spaces.
 * Control held. */
void session_advance(struct kvtier_client *c, uint64_t now);
/* Takes the same step for a call that does not hold control, at most once a millisecond, and while
 * AWAY once a backoff. */
void session_nudge(struct kvtier_client *c);
/* Drops the connection, and ends every op with -ECONNRESET. error < 0 and why are the reason.
 * Control held. */
void session_lost(struct kvtier_client *c, int error, const char *why);
/* Calls session_lost() if `serial` is still the current connection. No lock held. */
void session_cut(struct kvtier_client *c, uint64_t serial, int error, const char *why);
/* Unmaps retired links that are not in use. Control held. */
void session_reap(struct kvtier_client *c);
/* Sleeps until the socket has a packet, for a slice at most. No lock held. */
void session_pause(struct kvtier_client *c, uint64_t deadline);
/* Tells the daemon, which sleeps, that there are entries in the ring. No lock held. */
void session_doorbell(struct kvtier_client *c, uint64_t serial);
