/* SPDX-License-Identifier: Apache-2.0 */
/*
 * writeback.h - writes blocks that have only a host copy to NVMe, behind the stores that brought
 * them, so that eviction finds a copy there and a crash costs only the blocks that were not written
 * yet. Core thread only.
 */
#ifndef KVTIER_WRITEBACK_H
#define KVTIER_WRITEBACK_H

#include <stdbool.h>
#include <stdint.h>

struct loop;
struct store;
struct writeback;

struct writeback_conf {
	struct store *store;
	struct tier *tier; /* where blocks are written to */
	struct loop *loop;
	uint32_t writes; /* blocks in the tier's hands at once */
};

int writeback_open(const struct writeback_conf *conf, struct writeback **ret); /* -ENOMEM */
void writeback_close(struct writeback *w); /* NULL is fine; no write in flight */

/* A block that has a host copy was committed or accessed, and may want a copy on NVMe. Nothing
 * happens where there is no tier (w is NULL), or the block has such a copy or is queued. The queue
 * is bounded: a block too many is counted and not queued. */
void writeback_add(struct writeback *w, uint32_t block);
/* The tier may take more than when it last refused. */
void writeback_kick(struct writeback *w);
/* The daemon ends: no further write begins. */
void writeback_stop(struct writeback *w);
/* This block is being written: one of its pins is ours. NULL: false. */
bool writeback_holds(const struct writeback *w, uint32_t block);
/* Blocks are queued or being written, and some of them will be written soon: room in host memory is
 * worth waiting for. NULL: false. */
bool writeback_moving(const struct writeback *w);

/* How far it is. Totals count from the start of the daemon. */
uint32_t writeback_in_flight(const struct writeback *w); /* blocks being written. NULL: 0 */
uint32_t writeback_queued(const struct writeback *w);    /* blocks in the queue */
/* blocks that the queue still takes */
uint32_t writeback_room(const struct writeback *w);
/* the tier refused; nothing changed since */
bool writeback_blocked(const struct writeback *w);
uint64_t writeback_served(const struct writeback *w);  /* blocks that left the queue */
uint64_t writeback_started(const struct writeback *w); /* writes; the last one has this number */
uint64_t writeback_ended(const struct writeback *w);   /* writes, of any status. NULL: 0 */
/* Number of the oldest write under way; UINT64_MAX: none is. */
uint64_t writeback_oldest(const struct writeback *w);

/* For flush.c. on: from now on every block in the queue is written, and the policy is not asked. */
void writeback_write_all(struct writeback *w, bool on);
/* Status of the first write that failed since the last `on`; 0: none did. */
int writeback_failure(const struct writeback *w);

#endif
