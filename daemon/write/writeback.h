/* SPDX-License-Identifier: Apache-2.0 */
/*
 * writeback.h - writes blocks that have only a host copy to NVMe, behind the stores that brought
 * them. So eviction finds a copy there, and a crash costs only the blocks that were not written
 * yet. For `kvtierctl flush`, and at a clean stop, all such blocks are written at once. Core thread
 * only.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct loop;
struct tables;
struct writeback;

struct writeback_conf {
	struct tables *tables;
	struct tier *tier; /* where blocks are written to */
	struct loop *loop;
	uint32_t writes;  /* blocks in the tier's hands at once */
	uint32_t stop_us; /* [daemon] stop_us */
};

int writeback_open(const struct writeback_conf *conf, struct writeback **ret); /* -ENOMEM */
void writeback_close(struct writeback *w); /* may be NULL; no write in flight */

/* A block that has a host copy was committed or accessed, and may want a copy on NVMe. Has no
 * effect where there is no tier (w is NULL), or the block has such a copy or is queued. The queue
 * is bounded: a block too many is counted and not queued. */
void writeback_add(struct writeback *w, uint32_t block);
/* The tier may take more than when it last refused. */
void writeback_kick(struct writeback *w);
/* This block is being written: one of its pins is ours. NULL: false. */
bool writeback_holds(const struct writeback *w, uint32_t block);
/* Blocks are queued or being written, and some of them will be written soon: room in host memory is
 * worth waiting for. NULL: false. */
bool writeback_moving(const struct writeback *w);

uint32_t writeback_in_flight(const struct writeback *w); /* blocks being written. NULL: 0 */

/*
 * Everything in host memory now is written under any write policy, then synced; blocks that are
 * stored meanwhile do not prolong it. `done` runs from the loop, once, with 0 or with the first of
 * these that happened:
 *	-errno of a write that failed
 *	-EROFS, -ENODEV	no disk takes writes, or is expected to come back
 *	-EDQUOT		the write budget is used up
 *	-EIO		a disk is in trouble, and no write ended for ten seconds
 *	-ETIMEDOUT	a disk does not end its last writes: no write ended for ten seconds
 *	-ESHUTDOWN	the daemon stops: writeback_drain()
 * last: the tier takes no writes after it. Returns 0, -EBUSY: a flush is under way, or -ENODEV: no
 * NVMe tier (w is NULL); `done` does not run then.
 */
int writeback_flush(struct writeback *w, bool last, void (*done)(void *arg, int status), void *arg);
/* The asker with this arg has left: its done() will not run. The flush continues. w may be NULL. */
void writeback_flush_cancel(struct writeback *w, void *arg);
/* At a clean stop, when no op is left: writes the blocks that are only in memory, for at most
 * [daemon] stop_us. A flush of an operator ends with -ESHUTDOWN. `done` runs once: inside this call
 * where there is no NVMe tier (w is NULL), else from the loop. */
void writeback_drain(struct writeback *w, void (*done)(void *arg), void *arg);

/*
 * Admission: which block is worth a write while the write budget is short. Pure: no I/O, clock, log
 * or allocation, so traces replay by the million (tests/sim/sim_admit_trace.c).
 *
 * A block whose parent is not on NVMe and not on its way there is refused: once host memory has
 * lost the parent, no load could find the block by its chain. With no budget, or plenty of it left,
 * every other block is written. With a short budget only a block is written that was refused before
 * and came again (a second miss): most blocks that are stored are never asked for.
 */
enum {
	/* of the budget's reserve: from here on everything is admitted */
	ADMIT_PLENTY_PERCENT = 50,
	ADMIT_REMEMBERED = 128 << 10, /* refused keys; the oldest are forgotten */
	ADMIT_WAYS = 16,
	ADMIT_BUCKETS = ADMIT_REMEMBERED / ADMIT_WAYS,
};

/* Fingerprints of refused keys, the latest of a bucket first; all zeros: no key. A full bucket
 * forgets its oldest, so the table is never swept, and does not grow. Keys are hashes. A client
 * that crafts keys to crowd a bucket makes the daemon forget the other blocks of that bucket, which
 * costs a later write of each. */
struct admit {
	uint32_t bucket[ADMIT_BUCKETS][ADMIT_WAYS]; /* 0: empty */
};

/* To be asked once each time that a block is stored: asking again looks like the second miss.
 * budget_percent: the rest of the budget's reserve; 100: there is no budget. parent_there: the
 * block starts its chain, or its parent is on NVMe or was admitted. A key that is refused is
 * remembered by 32 bits of it, among 16 in a place: one in 2^28 refusals is taken for a second one.
 * O(1). */
bool admit_ask(struct admit *admit, const uint8_t key[32], uint32_t budget_percent,
	       bool parent_there);
