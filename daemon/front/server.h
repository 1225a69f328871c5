/* SPDX-License-Identifier: Apache-2.0 */
/*
 * server.h - the listening socket, and all connections (conn.h). The parts of the daemon that
 * connections share are in front.h. Core thread only.
 */
#ifndef KVTIER_SERVER_H
#define KVTIER_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "client/wire.h"

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

/* For `kvtierctl clients`: a row for each connection, in order of arrival; then those of clients
 * that were refused (refusals.h), which have the first seven members alone. */
struct conn_row {
	pid_t pid;
	uid_t uid;
	char name[64];
	uint32_t version_min, version_max; /* of the wire; of a connection the one in use */
	uint64_t age_ns;                   /* since it came, or was refused */
	uint32_t refused;                  /* times; 0: it is connected */
	char why[200];                     /* "": it was not refused */
	uint32_t id;
	char tenant[32];
	uint32_t spaces, regions, ops; /* open, registered, outstanding */
	uint64_t pages;                /* of these ops: the pages that the daemon may still touch */
	/* cut; its socket closes when the last page is let go */
	bool ending;
	uint64_t region_bytes;
	uint32_t memories; /* how its pages are reached: 1 << enum wire_memory; 0: no regions */
	char not_engine[WIRE_WHY_BYTES]; /* why a space is not in engine mode; "" */
	char gpu_staged[WIRE_WHY_BYTES]; /* why a space's pages on a GPU are staged; "" */
	uint64_t stored_blocks, loaded_blocks, missed_blocks, sparse_blocks;
};
/* false: past the end */
bool server_row(const struct server *server, uint32_t position, struct conn_row *ret);
/* Spaces whose pages on a GPU are staged; and of one of them, which client's it is, and why: text,
 * which stays as it is where there is none. */
uint32_t server_staged(const struct server *server, char *text, size_t n);

#endif
