/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_server.h - the servers of the Redis cases.
 *
 * Servers are bin/redis-server beside this program, or redis-server (or valkey-server) on PATH.
 * They keep nothing on disk and die with the program. Or KVTIER_BENCH_REDIS names the server, as
 * 10.0.0.2:6379, over TCP always. It must be empty, and is left so: no case shall flush anyone's
 * data.
 */
#pragma once

#include "bench.h"

enum { BENCH_SERVERS = 4, BENCH_SERVER_PATIENCE_MS = 10000 };

struct bench_server {
	bool want_tls; /* set before the start */
	pid_t pid;     /* 0: not ours */
	int fd;        /* to ask it something; blocking */
	bool flush;    /* not ours, and was empty when we came */
	char dir[64], socket[80];
	/* "unix:/path", "127.0.0.1:port", as in [redis] endpoints; one not ours: the same */
	char local[96], tcp[32];
	/* want_tls: such an endpoint, and its certificate, which is its own authority */
	char tls[32], cert[96], key[96];
};

const char *bench_server_given(void); /* KVTIER_BENCH_REDIS, or NULL */
/* Takes a zeroed one; until the case ends. The case is skipped where there is no redis-server, or
 * the given server is not empty. */
void bench_server_start(struct bench_server *s);
void bench_server_flush(struct bench_server *s);     /* the database that was found empty alone */
long long bench_server_keys(struct bench_server *s); /* DBSIZE */
/* To an endpoint; a blocking socket that gives up after the patience, or -errno. */
int bench_connect(const char *endpoint);
