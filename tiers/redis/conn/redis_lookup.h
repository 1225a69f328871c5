/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_lookup.h - names into numeric addresses, without waiting for a name server: each look-up
 * has a thread of its own. All functions: I/O thread only; none blocks.
 *
 *	start ──> running ──thread──> done ──poll──> freed
 *	             └──abandon──> in the list ──thread──> done ──reap──> freed
 *	                                └──leave──> orphan ──thread──> freed by the thread
 */
#ifndef KVTIER_REDIS_LOOKUP_H
#define KVTIER_REDIS_LOOKUP_H

#include <stdbool.h>
#include <stdint.h>

#include "redis_address.h"

struct redis_lookup;

enum {
	REDIS_LOOKUPS = 16,           /* at once; configured endpoints have room beside them */
	REDIS_LOOKUP_AGAIN_MS = 1000, /* the caller looks a name up at most this often */
	REDIS_RESOLVED = 8,           /* addresses of one name; more are left out */
};

/* All look-ups that are under way. Zeroed by its owner before the first. */
struct redis_lookups {
	struct redis_lookup *abandoned; /* a list */
	uint32_t n;
};

/* -EAGAIN: `limit` look-ups are under way, abandoned ones included. -EINVAL: no "host:port".
 * -ENOMEM, or -errno of the thread. */
int redis_lookup_start(struct redis_lookups *all, const char *address, uint32_t limit,
		       struct redis_lookup **ret);
/* -EINPROGRESS. Else the look-up is over and freed: how many addresses were found, > 0; -EAGAIN:
 * the name server does not answer; -ENOENT: no such name. */
int redis_lookup_poll(struct redis_lookups *all, struct redis_lookup *lookup,
		      char (*ret)[REDIS_ADDRESS_BYTES], uint32_t n);
/* The caller does not want it any more; reap() frees it when it is over. NULL is fine. */
void redis_lookup_abandon(struct redis_lookups *all, struct redis_lookup *lookup);
void redis_lookups_reap(struct redis_lookups *all); /* frees abandoned look-ups that are over */
/* At the end of the tier: abandoned look-ups that still run free themselves, however late. */
void redis_lookups_leave(struct redis_lookups *all);

#endif
