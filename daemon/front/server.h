/* SPDX-License-Identifier: Apache-2.0 */
/*
 * server.h - what server.c (listening, the table of connections) and conn.c (one of them) share.
 */
#ifndef KVTIER_SERVER_H
#define KVTIER_SERVER_H

#include "conn.h"
#include "daemon/base/log.h"

enum { GREETING_S = 5 };

struct kvtierd *server_daemon(const struct server *server);
int  server_pidfd(const struct server *server);		/* the daemon's own; -1: this kernel makes none */
struct log_limit *server_log(struct server *server);
void *server_buffer(struct server *server);		/* WIRE_MAX_MESSAGE bytes, 8-aligned, for one packet at a time */
struct helpers *server_helpers(struct server *server);
/* Descriptors can be kept from a socket, and are until server_let_fds_in(). False: the kernel is older than 6.16. */
bool server_guarded(const struct server *server);
void server_let_fds_in(int fd);
void server_conn_dying(struct server *server);		/* one more to free once it has drained */

/* fd and pidfd (-1: none) become the connection's on success only. */
int  conn_start(struct conn *c, int fd, int pidfd);
void conn_kill(struct conn *c);				/* -> DYING; any state is fine */
void conn_look(struct conn *c);				/* takes what packets there are */
void conn_turn_away(struct conn *c);			/* GREETING: somebody else needs the slot */
bool conn_end(struct conn *c);				/* DYING and no requests left. True: nothing is left of it */
void conn_share(const struct conn *c, struct intake_share *ret);

#endif
