/* SPDX-License-Identifier: Apache-2.0 */
/*
 * server.h - the listening socket, and all connections (conn.h). Core thread only.
 *
 * server.c and conn.c call each other, as no other two files of the daemon do: the server opens,
 * cuts and buries connections, and a connection asks it for what all of them share.
 */
#ifndef KVTIER_SERVER_H
#define KVTIER_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/base/log.h"

enum { GREETING_S = 5 }; /* a client that has not said HELLO by then is cut */

struct conn;
struct helpers;
struct kvtierd;
struct server;

/* Listens from then on. 0, or -errno with text. */
int server_open(struct kvtierd *d, struct server **ret, char *text, size_t n);
/* Stops listening and cuts every connection; they drain, and then close, while the loop runs on. */
void server_shutdown(struct server *server);
/* connections drain, or helpers are at work; NULL: no */
bool server_busy(const struct server *server);
/* after shutdown, and no longer busy; NULL is fine */
void server_close(struct server *server);

uint32_t server_connections(const struct server *server); /* alive */
/* lookup counters -> stats; a few times a second */
void server_sample(struct server *server);

/* For `kvtierctl clients`: one row per connection, in order of arrival. */
struct conn_row {
	uint32_t id;
	pid_t pid;
	uid_t uid;
	char name[64];
	char tenant[32];
	uint32_t spaces, regions, ops; /* open, registered, outstanding */
	uint64_t pages;                /* of these ops: what the daemon may still touch */
	/* cut; its socket closes when the last page is let go */
	bool ending;
	uint64_t region_bytes;
	uint32_t memories; /* how its pages are reached: 1 << enum wire_memory; 0: no regions */
	uint64_t stored_blocks, loaded_blocks, missed_blocks, sparse_blocks;
	uint64_t age_ns;
};
/* false: past the end */
bool server_row(const struct server *server, uint32_t position, struct conn_row *ret);

/* For conn.c. */
struct kvtierd *server_daemon(const struct server *server);
const char *server_tenant(const struct server *server);
/* the daemon's own; -1: this kernel makes none */
int server_pidfd(const struct server *server);
struct log_limit *server_log(struct server *server);
/* WIRE_MAX_MESSAGE bytes, 8-aligned, for one packet at a time */
void *server_buffer(struct server *server);
struct helpers *server_helpers(struct server *server);
/* Descriptors can be kept from a socket, and are until server_let_fds_in(). False: the kernel is
 * older than 6.16. */
bool server_guarded(const struct server *server);
void server_let_fds_in(int fd);
void server_conn_dying(struct server *server); /* one more to free once it has drained */

#endif
