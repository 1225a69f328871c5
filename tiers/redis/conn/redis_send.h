/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_send.h - the sending side of a connection (redis_row.h); on the thread of its loop.
 */
#ifndef KVTIER_REDIS_SEND_H
#define KVTIER_REDIS_SEND_H

#include <stdbool.h>

struct redis_conn;

/* Sends entries from `unsent` on, half a MiB at most. -errno: the socket, or TLS, has failed, and
 * the caller sees to it. */
int redis_send_turn(struct redis_conn *c);
/* whether the loop tells that the socket takes bytes */
void redis_send_want(struct redis_conn *c, bool writable);
/* TLS: reading may leave bytes to read, or something to send */
void redis_send_after_read(struct redis_conn *c);

#endif
