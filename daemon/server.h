/* SPDX-License-Identifier: Apache-2.0 */
/*
 * server.h - what server.c (listening, the table of connections) and conn.c (one of them) share.
 */
#ifndef KVTIER_SERVER_H
#define KVTIER_SERVER_H

#include "conn.h"
#include "log.h"

enum { GREETING_S = 5 };

struct kvtierd *server_daemon(const struct server *server);
int  server_pidfd(const struct server *server);		/* the daemon's own; -1: this kernel makes none */
struct log_limit *server_log(struct server *server);
void *server_buffer(struct server *server);		/* WIRE_MAX_MESSAGE bytes, 8-aligned, for one packet at a time */
void server_conn_dying(struct server *server);		/* one more to free once it has drained */

/* fd and pidfd (-1: none) become the connection's on success only. */
int  conn_start(struct conn *c, int fd, int pidfd);
void conn_kill(struct conn *c);				/* -> DYING; any state is fine */
void conn_free_resources(struct conn *c);		/* DYING and no requests left: ends it, frees what it has */

#endif
