/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quota.h - says who may have how much of what all clients share. There are two rules:
 *
 *	guaranteed   A fraction of all there is, divided among those who have some of it, is
 *	             guaranteed to them. No other holder takes what a holder has within its
 *	             guarantee.
 *	of free      A holder has at most k times as much as is free. So a holder that comes later
 *	             finds some, and more of it after few holders than after many.
 *
 * tbl_quota.h has each use of them, with its numbers; where another rule is used, it says why.
 * The queues (op/schedule.c, device_queue.c) are no quotas: they say who is next, not how much it
 * may have.
 *
 * A tenant is a number: the place of its socket in the configuration. QUOTA_OTHERS stands for all
 * tenants that have blocks on NVMe and no socket. Core thread only.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum {
	QUOTA_OTHERS = 16,
	QUOTA_TENANTS,
	QUOTA_NONE = 0,
	QUOTA_REST = -1,
};

enum quota_use {
#define QUOTA(name, percent, times, holder) QUOTA_##name,
#include "tbl_quota.h"
	QUOTA_USES
};

enum quota_holder { QUOTA_TENANT, QUOTA_PROCESS, QUOTA_CONNECTION };

extern const struct quota_line {
	const char *name;
	uint32_t percent;
	int32_t times;
	enum quota_holder holder;
} quota_lines[QUOTA_USES];

struct quota_tenant {
	const char *name;
	uint32_t share;    /* per cent; 0: not given */
	uint32_t priority; /* the blocks of tenants with a lower one are evicted first */
	uint32_t peers;    /* processes with ops */
	uint32_t active;   /* processes that began an op lately */
	uint64_t used[QUOTA_USES], refused[QUOTA_USES];
	uint64_t looked_up, hits; /* blocks of its lookups, which conn counts */
};

/* Zeroed, it is ready for quota_add() and quota_set(). */
struct quota {
	uint32_t n;       /* tenants with a socket */
	uint32_t working; /* tenants with ops */
	uint64_t all[QUOTA_USES], used[QUOTA_USES];
	uint64_t guarantee[QUOTA_USES]; /* of all holders together */
	struct quota_tenant tenant[QUOTA_TENANTS];
};

/* The two rules: the guarantee of one of so many holders; whether one more may be taken. */
uint64_t quota_guaranteed(uint64_t all, uint32_t percent, uint64_t holders);
bool quota_of_free(uint64_t used, uint64_t times, uint64_t free);

/* How much a space, or a tenant with all its spaces, has of host bytes or of block numbers. */
struct quota_account {
	uint64_t held, guaranteed;
};

/* The accounts that a block may be evicted from to make room for another one, as bits. */
enum quota_from {
	QUOTA_RICH = 1, /* from an account that holds more than is guaranteed to it */
	QUOTA_OWN = 2,
	QUOTA_ANY = 4, /* if the own account, with what it asks for, is within its guarantee */
};

/* Whether a block of `account` may be evicted for one of `own`. A slot is taken from a rich account
 * or the own one, by recency, and from any account only if no other help is under way. So most of
 * memory is given by recency alone, and a client that stores as fast as it can pays with its own
 * blocks once the others are down to their guarantee. Any block number will do, so a number is
 * taken from a rich account first, then from the own one, then from any: a space within its
 * guarantee does not pay while others are rich, however old its blocks are. */
bool quota_may_take(const struct quota_account *account, const struct quota_account *own,
		    uint64_t own_asks, unsigned from);

/* Adds a tenant with a socket. name stays the caller's, and must live as long. */
void quota_add(struct quota *quota, const char *name, uint32_t share, uint32_t priority);
void quota_change(struct quota *quota, uint32_t tenant, uint32_t share, uint32_t priority);
/* Sets how much there is of it, and how many per cent of that are guaranteed: the line's
 * percentage, or one of the configuration. */
void quota_set(struct quota *quota, enum quota_use use, uint64_t all, uint32_t percent);

static inline void quota_take(struct quota *quota, enum quota_use use, uint32_t tenant, uint64_t n)
{
	quota->tenant[tenant].used[use] += n;
	quota->used[use] += n;
}

static inline void quota_give(struct quota *quota, enum quota_use use, uint32_t tenant, uint64_t n)
{
	quota->tenant[tenant].used[use] -= n;
	quota->used[use] -= n;
}

static inline void quota_refused(struct quota *quota, enum quota_use use, uint32_t tenant)
{
	quota->tenant[tenant].refused[use]++;
}

/* The guarantee of one process with ops, of this tenant. */
static inline uint64_t quota_of_process(const struct quota *quota, enum quota_use use,
					uint32_t tenant)
{
	const uint64_t holders = (uint64_t)quota->working * quota->tenant[tenant].peers;

	return quota->guarantee[use] / (holders > 0 ? holders : 1);
}

/* A process of the tenant has its first op; or its last op has ended. */
void quota_peer_works(struct quota *quota, uint32_t tenant);
void quota_peer_rests(struct quota *quota, uint32_t tenant);

/* The guarantee of all holders of this tenant together. A tenant without a share has one of
 * host_bytes and blocks only while one of its processes is active. */
uint64_t quota_of_tenant(const struct quota *quota, enum quota_use use, uint32_t tenant);
/* Whether the tenant may have one more: it is within its guarantee, or some is left that the
 * guarantees of other tenants do not need. A tenant that is alone may have all. */
bool quota_allows(const struct quota *quota, enum quota_use use, uint32_t tenant);
/* For people: what a tenant may have, as things are now. */
uint64_t quota_limit(const struct quota *quota, enum quota_use use, uint32_t tenant);
