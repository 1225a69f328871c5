/* SPDX-License-Identifier: Apache-2.0 */
/*
 * flush.h - has everything that is in host memory now written to NVMe, and synced: for `kvtierctl
 * flush`, and at a clean stop. One flush at a time. Core thread only.
 */
#ifndef KVTIER_FLUSH_H
#define KVTIER_FLUSH_H

#include <stdbool.h>
#include <stdint.h>

struct flush;
struct loop;
struct store;
struct tier;

/* tier: that blocks are written to, by the writeback that the store has. drain_us: [nvme]
 * drain_us. -ENOMEM. */
int flush_open(struct store *store, struct tier *tier, struct loop *loop, uint32_t drain_us,
	       struct flush **ret);
void flush_close(struct flush *f); /* NULL is fine */

/*
 * Everything in host memory now is written under any write policy, then synced; blocks that are
 * stored meanwhile do not prolong it. `done` runs from the loop, once, with 0 or with the first of
 * these that happened:
 *	-errno of a write that failed
 *	-EROFS, -ENODEV	no disk takes writes, and none is expected to come back
 *	-EDQUOT		the write budget is used up
 *	-EIO		a disk is in trouble, and nothing moved for ten seconds
 *	-ETIMEDOUT	a disk does not end its last writes: nothing moved for ten seconds
 *	-ESHUTDOWN	the daemon stops: flush_drain()
 * last: the tier takes no writes after it. Returns 0, -EBUSY: a flush is under way, or -ENODEV: no
 * NVMe tier (f is NULL); `done` does not run then.
 */
int flush_begin(struct flush *f, bool last, void (*done)(void *arg, int status), void *arg);
/* The asker with this arg goes: its done() will not run. The flush goes on. NULL is fine. */
void flush_cancel(struct flush *f, void *arg);

/* At a clean stop, when no op is left: writes the blocks that are only in memory, for at most
 * [nvme] drain_us. A flush of an operator ends with -ESHUTDOWN. `done` runs once: inside this call
 * where there is no NVMe tier (f is NULL), else from the loop. */
void flush_drain(struct flush *f, void (*done)(void *arg), void *arg);

#endif
