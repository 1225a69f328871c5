/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_address.h - an endpoint's address as text ("host:port", "[v6]:port" or "unix:/path"), and
 * the look-up of names.
 *
 * The functions on text are pure, and any thread may call them. A look-up asks the name server in a
 * thread of its own, so no function here waits for one. Look-ups belong to the I/O thread.
 *
 *	start ──> running ──thread──> done ──poll, abandon──> freed
 *	             └──abandon──> abandoned ──thread──> freed by the thread, however late
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { REDIS_ADDRESS_BYTES = 256, REDIS_PORT_BYTES = 8 }; /* with the 0 */

bool redis_address_valid(const char *address); /* NULL is not valid */
/* A path, or a numeric host: no name server is needed to connect to it. */
bool redis_address_numeric(const char *address);
bool redis_host_numeric(const char *host); /* without port and [ ] */
/* The host, without [ ]; "" for a path. */
void redis_address_host(const char *address, char ret[REDIS_ADDRESS_BYTES]);
/* The host without [ ], and the port in digits. false: the address is a path, or not valid. */
bool redis_address_split(const char *address, char ret_host[REDIS_ADDRESS_BYTES],
			 char ret_port[REDIS_PORT_BYTES]);

/* --- look-ups --- */

struct redis_lookup;

enum {
	/* at once in this process; configured endpoints have room beside them */
	REDIS_LOOKUPS = 16,
	REDIS_LOOKUP_AGAIN_MS = 1000, /* the caller looks a name up at most this often */
	REDIS_RESOLVED = 8,           /* addresses of one name; more are left out */
};

/* -EAGAIN: `limit` look-ups are under way, abandoned ones included. -EINVAL: no "host:port".
 * -ENOMEM, or -errno of the thread. */
int redis_lookup_start(const char *address, uint32_t limit, struct redis_lookup **ret);
/* -EINPROGRESS: the look-up is not over. Any other answer ends and frees it: the number of
 * addresses found, > 0; -EAGAIN: the name server does not answer; -ENOENT: no such name. */
int redis_lookup_poll(struct redis_lookup *lookup, char (*ret)[REDIS_ADDRESS_BYTES], uint32_t n);
/* The caller does not want the answer any more. `lookup` may be NULL. */
void redis_lookup_abandon(struct redis_lookup *lookup);
