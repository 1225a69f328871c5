/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copy_table.h - copies of blocks in the memory of devices, beside host memory and NVMe: which
 * block a slot of a device has, which slot has a block there, and which copy goes next. Pure: no
 * I/O, clock, log, or allocation after open. Core thread only; used through block.h, which knows
 * of each block whether it has a copy here at all.
 *
 * Devices are units 0, 1... of a tier (extent.unit). A block has at most one copy a unit. A copy
 * has the number of its slot (tier_slot_number()), which says all else of where it lies. Such a
 * copy is a cache of an image in host memory or on NVMe, never the last one: when a block goes its
 * copies go with it, and when a copy goes nothing else changes.
 *
 *	  copy_table_add          copy_table_remove
 *	─────────────────> kept ────────────────────> gone: its slot is the caller's to free
 *	                    │                           ^
 *	                    │ copy_table_forget         │ copy_table_loose
 *	                    └──────> loose, pinned ───> loose
 *	                               last unpin
 *
 * Invariants
 *   C1 a kept copy is found by unit and block, in O(1). A loose one is no block's and is not found:
 *      the block's number may be another block's by now.
 *   C2 each unit has an order of its own for each class of slots: the copy that came or was touched
 *      last is the last to go. Only kept copies are in it. A pinned one is no victim. Between two
 *      classes there is no order here: the caller knows when their blocks were accessed.
 *   C3 a copy keeps its slot while it is pinned: a device may read it.
 *
 * Memory: 15 bytes a copy, where slots are of one size, beside the 8 of its slot (slabs.c), which
 * know the block; reserved at open and touched as used. Where no device keeps copies there is no
 * table. NULL is fine only where that is said.
 */
#ifndef KVTIER_COPY_TABLE_H
#define KVTIER_COPY_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "tiers/tier.h"

enum {
	COPY_UNITS_MAX = 64,
	COPY_NUMBERS = (1 << 26) - 1, /* at most, a unit: 256 GiB of the smallest slots */
	COPY_NONE = 0xffffffff,       /* no block; no copy */
};

struct copy_table;

struct copy_table_conf {
	uint32_t units;   /* 1..COPY_UNITS_MAX */
	uint32_t copies;  /* numbers that slots of a unit may have; <= COPY_NUMBERS */
	uint32_t classes; /* of slots, one order each; <= TIER_MAX_CLASSES */
	uint64_t seed;    /* keeps clients from choosing where numbers collide */
	/* The block that a kept copy was added for: the owner of its slot. */
	uint32_t (*block_of)(void *arg, uint32_t unit, uint32_t copy);
	void *arg;
};

/* 0, -EINVAL, -ENOMEM. */
int copy_table_open(const struct copy_table_conf *conf, struct copy_table **ret);
void copy_table_close(struct copy_table *t); /* NULL is fine */

/* The block has the copy of this number, in a slot of this class. No copy has the number. From
 * before this call until the copy is kept no more block_of() says the block. -EEXIST: the block has
 * one on this unit already; -ENOSPC: the table has no such number. The slot stays the caller's
 * then. */
int copy_table_add(struct copy_table *t, uint32_t block, uint32_t unit, uint32_t copy,
		   uint32_t class);
/* Its copy on this unit (ret may be NULL); false: it has none there. NULL table: none. */
bool copy_table_find(const struct copy_table *t, uint32_t block, uint32_t unit, uint32_t *ret);
/* The units that have a copy of it, as bits 1 << unit. NULL table: none. */
uint64_t copy_table_units(const struct copy_table *t, uint32_t block);
/* The copy on this unit, which is there and not pinned, goes; its slot is the caller's. */
uint32_t copy_table_remove(struct copy_table *t, uint32_t block, uint32_t unit);
/* The block goes: each of its copies is loose. */
void copy_table_forget(struct copy_table *t, uint32_t block);
/* The copy on this unit, which is there, is loose. */
void copy_table_forget_on(struct copy_table *t, uint32_t block, uint32_t unit);
/* The next slot to free: of a loose copy without pins. False: none. NULL table: none. */
bool copy_table_loose(struct copy_table *t, uint32_t *ret_unit, uint32_t *ret);

/* The copy on this unit, which is there, was accessed. */
void copy_table_touch(struct copy_table *t, uint32_t block, uint32_t unit);
/* It is about to be read. Returns its number, for the unpin: the block may be gone by then. */
uint32_t copy_table_pin(struct copy_table *t, uint32_t block, uint32_t unit);
bool copy_table_pinned(const struct copy_table *t, uint32_t block, uint32_t unit); /* it is there */
void copy_table_unpin(struct copy_table *t, uint32_t unit, uint32_t pinned);

/* The block whose copy in a slot of this class goes next, of the copies that are not pinned, or
 * COPY_NONE. O(1 + pinned copies of the class): there are no more pinned copies than jobs of a
 * device. */
uint32_t copy_table_victim(const struct copy_table *t, uint32_t unit, uint32_t class);

uint32_t copy_table_count(const struct copy_table *t, uint32_t unit); /* kept */
uint64_t copy_table_memory(const struct copy_table *t);               /* in use. NULL: 0 */

#endif
