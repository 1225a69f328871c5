/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_wire.h - the limit of what is measured on Redis: sockets by hand, and servers of one's own to measure on.
 *
 * The raw loop is one thread with non-blocking connections, `depth` commands outstanding on each. SET: writev of
 * command and value from memory, and its "+OK". GET: the reply with one recv after the other into memory. It does
 * nothing else: no deadlines, no parsing but a comparison of the few bytes that are known beforehand. Servers are
 * redis-server (or valkey-server), keep nothing on disk, and die with the program.
 */
#ifndef KVTIER_BENCH_WIRE_H
#define KVTIER_BENCH_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { BENCH_SERVERS = 4, BENCH_WIRE_CONNECTIONS = 64 };

struct bench_server {
	pid_t pid;
	int fd;				/* to ask it something; blocking */
	char dir[64], socket[80];
	char local[96], loopback[32];	/* "unix:/path", "127.0.0.1:port", as in [redis] endpoints */
};

/* 0; -ENOTSUP: there is no redis-server here, note says so; -ETIMEDOUT: it does not answer. Takes zeroed ones. */
int  bench_server_start(struct bench_server *s, char *note, size_t n);
void bench_server_stop(struct bench_server *s);		/* half-started and zeroed ones are fine */
int  bench_server_flush(struct bench_server *s);	/* FLUSHALL */
int  bench_server_keys(struct bench_server *s, long long *ret);	/* DBSIZE */

struct bench_wire {
	const struct bench_server *servers;
	uint32_t n_servers;
	bool loopback;			/* TCP, else the Unix socket */
	uint32_t connections;		/* to each server */
	uint32_t depth;			/* on each connection */
	uint32_t values, value_bytes;	/* value i is on server i % n_servers */
};

/* All values once; GB/s of them; the CPU seconds of that are added to *cpu, unless NULL. They must have been set before
 * they are got. -EBADMSG: something else came. */
int bench_wire_run(const struct bench_wire *w, bool set, double *ret, double *cpu);

double bench_thread_seconds(void);	/* of CPU, of the calling thread */

#endif
