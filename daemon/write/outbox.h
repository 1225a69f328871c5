/* SPDX-License-Identifier: Apache-2.0 */
/*
 * outbox.h - write-behind to Redis: blocks that were stored, or that leave host memory, wait here
 * until they are written. No op waits for the outbox: blocks that do not fit in [redis]
 * max_inflight_bytes are dropped and counted.
 *
 * A daemon has one outbox, tables.outbox. It is NULL where [redis] names no endpoint, and functions
 * that say so take NULL. Core thread only.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "daemon/move/mover.h"

struct config;
struct loop;
struct outbox;
struct tables;

/* blocks on their way to Redis at once; each is one xfer of the Redis tier */
enum { OUTBOX_WRITES = 32 };

/* Values are written to `tier`. config has the [redis] options. -ENOMEM */
int outbox_open(struct tables *tables, struct tier *tier, struct loop *loop,
		const struct config *config, struct outbox **ret);
void outbox_close(struct outbox *o); /* stopped, and no write is on its way. May be NULL */

/* A block was stored. With [redis] write = through it is queued. May be NULL. */
void outbox_add(struct outbox *o, uint32_t block);
/* An engine loads a block. With write = auto, while blocks are not written as they are stored, a
 * block in host memory is queued at its first load. May be NULL. */
void outbox_use(struct outbox *o, uint32_t block);
/* A block leaves host memory; the mover's heir. With [redis] write = on-evict the block is queued,
 * and its slot belongs to the outbox until the value is written or dropped. */
enum mover_heir outbox_inherit(void *outbox, uint32_t block, const struct extent *slot);
/* For a caller that finds no room by any other means: drops up to n blocks that wait with their
 * slots, the oldest first. false: no such block waits. May be NULL. */
bool outbox_give_back(struct outbox *o, uint32_t n);
/* A purge: blocks that wait with their slots are dropped. The others are found to be gone at their
 * turn. */
void outbox_disinherit(void *outbox);

/* Blocks that wait to be written, or are on their way. May be NULL: 0 */
uint32_t outbox_waiting(const struct outbox *o);
/* Whether the outbox leases this block because it is on its way. May be NULL. */
bool outbox_holds(const struct outbox *o, uint32_t block);

/* From now on no write is queued or started; queued blocks are dropped. May be NULL. */
void outbox_stop(struct outbox *o);
/*
 * At a clean stop, after the last op: queued blocks are written for at most [daemon] stop_us, as
 * far as endpoints take it. One line of the log counts the blocks that are not known to be written.
 * Then the outbox is stopped and `done` runs, once: inside this call where no block was to be
 * written, else from the loop. May be NULL.
 */
void outbox_drain(struct outbox *o, void (*done)(void *arg), void *arg);
