/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_wire.h - the limit of what is measured on Redis: sockets by hand, and servers of one's own to measure on.
 *
 * The raw loop is one thread with non-blocking connections, `depth` commands outstanding on each. SET: writev of
 * command and value from memory, and its "+OK". GET: the reply with one recv after the other into memory. It does
 * nothing else: no deadlines, no parsing but a comparison of the few bytes that are known beforehand.
 *
 * Its memory is of the host tier's kind (bench_memory()), and as much as whoever is measured against it has: few slots
 * stay in the CPU's cache, one for every value do not. A command takes the slot that was given back longest ago, so it
 * shares it with no other that is outstanding, and a pass goes through all slots.
 *
 * Servers are redis-server (or valkey-server), keep nothing on disk, and die with the program; or the one that
 * KVTIER_BENCH_REDIS names, as 10.0.0.2:6379, over TCP always. That one must be empty, and is left so: what a case
 * flushes nobody shall miss.
 */
#ifndef KVTIER_BENCH_WIRE_H
#define KVTIER_BENCH_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { BENCH_SERVERS = 4, BENCH_WIRE_CONNECTIONS = 64, BENCH_WIRE_DEPTH = 16 };

struct bench_server {
	pid_t pid;			/* 0: not ours */
	int fd;				/* to ask it something; blocking */
	bool flush;			/* not ours, and was empty when we came */
	char dir[64], socket[80];
	char local[96], tcp[32];	/* "unix:/path", "127.0.0.1:port", as in [redis] endpoints; one not ours: the same */
};

const char *bench_server_given(void);	/* KVTIER_BENCH_REDIS, or NULL */
/* 0; -ENOTSUP: there is no redis-server here, or the one given is not empty, note says so; -ETIMEDOUT: it does not
 * answer; whatever else is wrong with the one given, note says. Takes zeroed ones. */
int  bench_server_start(struct bench_server *s, char *note, size_t n);
void bench_server_stop(struct bench_server *s);		/* half-started and zeroed ones are fine */
int  bench_server_flush(struct bench_server *s);	/* the database that was found empty, and no other */
int  bench_server_keys(struct bench_server *s, long long *ret);	/* DBSIZE */

struct bench_wire {
	const struct bench_server *servers;
	uint32_t n_servers;
	bool tcp;			/* else the Unix socket, if it has one */
	uint32_t connections;		/* to each server */
	uint32_t depth;			/* on each connection, at most BENCH_WIRE_DEPTH */
	uint32_t values, value_bytes;	/* value i is on server i % n_servers */
	uint32_t slots;			/* values of memory, at least one for each command outstanding */
};

const char *bench_wire_way(const struct bench_wire *w);	/* "TCP", for a note */
/* All values once; GB/s of them; the CPU seconds of that are added to *cpu, unless NULL. They must have been set before
 * they are got. -EBADMSG: something else came. */
int bench_wire_run(const struct bench_wire *w, bool set, double *ret, double *cpu);

double bench_thread_seconds(void);	/* of CPU, of the calling thread */

#endif
