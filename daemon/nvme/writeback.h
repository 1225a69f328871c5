/* SPDX-License-Identifier: Apache-2.0 */
/*
 * writeback.h - writes blocks that have only a host copy to NVMe, behind the stores that brought them, so that
 * eviction finds a copy there and a crash costs only what was not written yet. Core thread only.
 */
#ifndef KVTIER_WRITEBACK_H
#define KVTIER_WRITEBACK_H

#include <stdbool.h>
#include <stdint.h>

struct kvtierd;
struct writeback;

/* d->tiers[TIER_NVME] is there. writes: blocks in the tier's hands at once. */
int  writeback_open(struct kvtierd *d, uint32_t writes, struct writeback **ret);
void writeback_close(struct writeback *w);	/* NULL is fine; no write in flight */

/* A block that has a host copy may want one on NVMe: it was committed or accessed. Cheap, and nothing happens where
 * there is no tier, it has one, or it is queued. The queue is bounded: one too many is counted and not queued. */
void writeback_add(struct kvtierd *d, uint32_t block);
/* The tier may take more than when it last refused. */
void writeback_kick(struct writeback *w);
/* This block is being written: one of its pins is ours. */
bool writeback_holds(const struct kvtierd *d, uint32_t block);
uint32_t writeback_in_flight(const struct writeback *w);	/* NULL: 0 */
bool writeback_moving(const struct writeback *w);	/* something is queued or under way, and not stuck; NULL: false */
uint64_t writeback_ended(const struct writeback *w);	/* writes so far; NULL: 0 */

/*
 * Everything in host memory now is to be written, whatever the policy says, then synced; what is stored meanwhile
 * does not prolong it. `done` runs later, once: 0, or -errno of the tier: of the first write that failed; -EROFS or
 * -ENODEV where no disk takes any and none is to be waited for; -EDQUOT: the write budget is used up; when nothing
 * moved for ten seconds -EIO: a disk is in trouble, or -ETIMEDOUT: it does not end its last writes.
 * last: the tier takes no writes after that. -EBUSY: one is under way; -ENODEV: no NVMe tier.
 */
int  writeback_flush(struct kvtierd *d, bool last, void (*done)(void *arg, int status), void *arg);
void writeback_flush_cancel(struct kvtierd *d, void *arg);	/* done will not be called; the flush goes on */
/* Ends a flush that is under way, if there is one, with -ESHUTDOWN. */
void writeback_flush_abort(struct kvtierd *d);

#endif
