/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tbl_quota.h - who may have how much of what all clients share: every use of the two rules of
 * quota.h, once. `kvtierctl tenants` prints each of them for each tenant. No include guard:
 * included with QUOTA() defined, which it undefines.
 *
 *	QUOTA(name, percent, times, holder)
 *
 * percent  of all there is, guaranteed to all holders together, in equal parts
 * times    a holder has at most so many times as much as is free, beyond its guarantee; REST: it
 *          may have all that is free; NONE: its guarantee is its limit
 * holder   TENANT; PROCESS: tenants divide it, and the processes of each tenant divide the
 *          tenant's guarantee; CONNECTION: each of the [socket] max_clients
 */
/* The spaces that a process has open divide its guarantee. [socket] share gives a tenant another
 * percentage. A block that needs room takes it from holders beyond their guarantee, the least
 * recent block first (quota_may_take()): so most of memory is given by recency alone. */
QUOTA(host_bytes, 25, QUOTA_REST, PROCESS)
/* Block numbers, when all are in use: the same percentage as of host memory. */
QUOTA(blocks, 25, QUOTA_REST, PROCESS)
/* Slots and pins of ops. A process that is alone begins stores up to twice its guarantee, and loads
 * without limit: no other waits for it, and this excess ends when one comes (op/schedule.c, S2). */
QUOTA(in_flight_bytes, 25, QUOTA_NONE, PROCESS)
/* Blocks of ops that are under way. Both rules hold at once, so a second process finds some free.
 * With five, a process that is alone has more parts than its loads that wait for a tier
 * (op/schedule.c, S1). Half of a process's parts at most wait for layers of stores, so that its
 * loads go on. */
QUOTA(parts, 100, 5, PROCESS)
/* A user may have three quarters of them ([socket] max_clients_per_uid), and a process as many as
 * are left for the user's others; the last one is root's, so that an operator gets in. */
QUOTA(connections, 50, QUOTA_REST, TENANT)
/* A tenant beyond its guarantee is the first that gives up a space for a new one
 * (table/space.c). */
QUOTA(spaces, 100, QUOTA_REST, TENANT)
QUOTA(open_spaces, 50, QUOTA_REST, CONNECTION)
/* Mappings and addresses of a client's memory, which cannot be taken back while it has them. */
QUOTA(regions, 100, QUOTA_NONE, CONNECTION)
QUOTA(region_bytes, 100, QUOTA_NONE, CONNECTION)
QUOTA(allocations, 100, QUOTA_NONE, CONNECTION)
/* Bytes that hints retain or pin: [hints] share_percent for each tenant, whatever others have, and
 * three quarters of host memory for all together, since no store can evict them. */
QUOTA(kept_bytes, 25, QUOTA_NONE, TENANT)
QUOTA(hint_rows, 0, 7, TENANT)
QUOTA(sessions, 0, 7, TENANT)
#undef QUOTA
