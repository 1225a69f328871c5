/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_wire.h - the limit of cases on Redis: sockets by hand.
 *
 * The raw loop is one thread with non-blocking connections, `depth` commands outstanding on each.
 * SET: writev of command and value from memory, and its "+OK". GET: the reply with one recv after
 * the other into memory. It does nothing else: no deadlines, no parsing but a comparison of the few
 * bytes that are known beforehand. With `mac` one Poly1305 goes over each value, as the tier's does
 * (daemon/IMAGE.md, "In Redis"): before it is sent, or as it comes.
 *
 * Its memory is of the host tier's kind (bench_memory()), and as much as the code that is measured
 * against it has: a few slots stay in the CPU's cache, a slot for every value does not. A command
 * takes the slot that was given back longest ago, so it shares it with no other outstanding
 * command, and a pass goes through all slots.
 */
#pragma once

#include "bench_server.h"

enum { BENCH_WIRE_CONNECTIONS = 64, BENCH_WIRE_DEPTH = 16 };

struct bench_wire {
	const struct bench_server *servers;
	uint32_t n_servers;
	bool tcp;                     /* else the Unix socket, if it has one */
	uint32_t connections;         /* to each server */
	uint32_t depth;               /* on each connection, at most BENCH_WIRE_DEPTH */
	uint32_t values, value_bytes; /* value i is on server i % n_servers */
	bool mac;
	/* values of memory, at least one for each command outstanding */
	uint32_t slots;
};

const char *bench_wire_way(const struct bench_wire *w); /* "TCP", for a note */
/* All values once; GB/s of them; the CPU seconds of that are added to *cpu, unless NULL. They must
 * have been set before they are got; if something else comes the case fails. */
double bench_wire_run(const struct bench_wire *w, bool set, double *cpu);
