/* SPDX-License-Identifier: Apache-2.0 */
/*
 * server.h - the listening sockets, and all connections (conn.h). Core thread only.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "client/abi/wire.h"

struct kvtierd;
struct server;

/* Listens from then on. 0, or -errno with text. */
int server_open(struct kvtierd *d, struct server **ret, char *text, size_t n);
/* Stops listening and cuts every connection. They drain, and then close, while the loop runs on. */
void server_shutdown(struct server *server);
/* Whether connections drain or helpers are at work; false for NULL. */
bool server_busy(const struct server *server);
/* Call it after server_shutdown(), when it is not busy any more. server may be NULL. */
void server_close(struct server *server);

/* Brings the stats up to date: lookups, connections, refusals. Call it a few times a second. */
void server_sample(struct server *server);
/* Brings up to date what quota says that tenants have by their connections, for people. */
void server_count(struct server *server);

/* A row of `kvtierctl clients`: one for each connection, in order of arrival, and then one for each
 * process that was refused (conn.h), which has only the members up to `why`. */
struct conn_row {
	pid_t pid;
	uid_t uid;
	char name[64];
	uint32_t version_min, version_max; /* of the wire; of a connection the one in use */
	uint64_t age_ns;                   /* since it came, or was refused */
	uint32_t refused;                  /* times; 0: it is connected */
	const char *reason;                /* one word for why; NULL: it was not refused */
	char why[200];                     /* "": it was not refused */
	uint32_t id;
	char tenant[32];
	uint32_t spaces, regions, ops; /* open, registered, outstanding */
	uint64_t pages;                /* of these ops: the pages that the daemon may still touch */
	/* cut; its socket closes when the last page is touched no more */
	bool ending;
	uint64_t region_bytes;
	uint32_t memories; /* how its pages are reached: 1 << enum wire_memory; 0: no regions */
	char gpu_staged[WIRE_WHY_BYTES]; /* why a space's pages on a GPU are staged; "" */
	uint64_t stored_blocks, loaded_blocks, missed_blocks, sparse_blocks;
};
/* False: there is no such row. */
bool server_row(const struct server *server, uint32_t position, struct conn_row *ret);
/* The number of spaces whose pages on a GPU are staged. If there is one, text names the client of
 * such a space and the reason. */
uint32_t server_staged(const struct server *server, char *text, size_t n);
