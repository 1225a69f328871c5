/* SPDX-License-Identifier: Apache-2.0 */
/*
 * purge.h - many blocks go, some in each turn of the loop: the blocks of a tenant that is purged,
 * and of spaces whose numbers others need. Core thread only.
 */
#ifndef KVTIER_PURGE_H
#define KVTIER_PURGE_H

#include <stdint.h>

struct loop;
struct purge;
struct store;

/*
 * Drops every block of a tenant from all tiers, and makes NVMe forget them for good; `done` runs
 * later, once: status 0, or why blocks on a disk could come back after a restart, and how many
 * blocks went. -EBUSY: one is under way.
 */
int purge_begin(struct purge *purge, const char *tenant,
		void (*done)(void *arg, int status, uint64_t blocks), void *arg);
/* done will not be called; the purge goes on */
void purge_cancel(struct purge *purge, void *arg);

int purge_open(struct store *store, struct loop *loop, struct purge **ret);
void purge_close(struct purge *purge); /* NULL is fine */

#endif
