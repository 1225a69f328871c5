/* SPDX-License-Identifier: Apache-2.0 */
/*
 * purge.h - drops many blocks, some in each iteration of the loop: the blocks of a tenant that is
 * purged, those of spaces whose numbers are needed for others, and heirs of blocks that are gone.
 * Core thread only.
 */
#pragma once

#include <stdint.h>

struct loop;
struct purge;
struct tables;

/*
 * Drops every block of a tenant from all tiers, and makes NVMe forget them for good. `done` runs
 * once, later, with the number of dropped blocks and status 0, or the reason why blocks on a disk
 * could come back after a restart. -EBUSY: another purge is under way. -ENOENT: no socket and no
 * space is of this tenant.
 */
int purge_begin(struct purge *purge, const char *tenant,
		void (*done)(void *arg, int status, uint64_t blocks), void *arg);
/* the purge goes on, and `done` will not be called */
void purge_cancel(struct purge *purge, void *arg);

int purge_open(struct tables *tables, struct loop *loop, struct purge **ret);
void purge_close(struct purge *purge); /* may be NULL */
