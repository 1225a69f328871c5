/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copies.h - keeps the block table (block.h) and the tiers' own accounts in step: when a block is
 * dropped, its slot is freed and the NVMe tier is told. It also has what holders of blocks and
 * images need: leases, and calls on an image by its extent, which find the tier that the extent
 * names. Core thread only; no call here blocks, allocates or fails.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/image.h"
#include "daemon/table/block.h"

struct tables;
struct nvme_events;
struct space;

/* --- images by where they lie --- */

/* For images in addressable tiers. */
void extents_free(const struct tables *tables, const struct extent *where);
uint8_t *extents_address(const struct tables *tables, const struct extent *where);
uint32_t extents_bytes(const struct tables *tables, const struct extent *where);
/* For images in any tier, even one that is not configured. */
bool extents_readable(const struct tables *tables, const struct extent *where);
void extents_forget(const struct tables *tables, const struct extent *where, uint64_t tick);
void extents_touch(const struct tables *tables, const struct extent *where, uint64_t tick,
		   uint64_t now_tick);

/* Where the block lies in host memory; false: it is away. */
bool extents_in_host(const struct tables *tables, uint32_t block, struct extent *ret);
/* Whether a block that is away could be read now; *ret (may be NULL) is its place. */
bool extents_away(const struct tables *tables, uint32_t block, struct extent *ret);
/* Whether a tier that keeps its images over a restart would take this block now. */
bool extents_durable(const struct tables *tables, const uint8_t key[32]);

/* --- leases --- */

/* A pin on one block. It belongs to an op, and so ends with the op's connection at the latest.
 * While it is held the block is not evicted or moved. Embedded in its owner; zeroed, it is not
 * held. */
struct lease {
	uint32_t block;
	bool held;
};

/* the lease must not be held */
void lease_take(struct tables *tables, struct lease *lease, uint32_t block);
/* the lease need not be held; frees blocks that were condemned meanwhile */
void lease_drop(struct tables *tables, struct lease *lease);

/* --- copies of blocks --- */

/* Sets the table's answers to the NVMe tier: records that it finds at start become away blocks, and
 * blocks follow the records that it moves or drops. arg is `tables`; the caller fills in release
 * and changed. */
void copies_events(struct tables *tables, struct nvme_events *ret);

/* Notes that the op of this tick has accessed the block, in the table and in the account of its
 * segment. depth: 0 for the parent of the op's first block, 1 for that block and so on. Ticks fall
 * with it, so that a parent is newer than its child. */
void copies_touch(struct tables *tables, uint32_t block, uint64_t tick, uint32_t depth);
/* An op of this tick uses the blocks of a chain up to this one, whether or not it names them: its
 * engine has them. A block must not be newer than its parent, or NVMe takes the parent first, and
 * the block with it. So below a block that was used a moment ago ticks go on from its tick, and
 * else from the op's. Returns the tick of this block: those of the op's own blocks are below it. */
uint64_t copies_touch_chain(struct tables *tables, uint32_t block, uint64_t tick);
/* Makes the block look never accessed, in both. */
void copies_age(struct tables *tables, uint32_t block);
/* Drops all copies of a block that is present, pinned or not (block.h). */
void copies_condemn(struct tables *tables, uint32_t block);
/* Drops a block that is lost (blocks_lost()). False: there is none. */
bool copies_drop_lost(struct tables *tables);
/* Drops the NVMe copy of a block that is present, because the copy is bad or out of reach. If the
 * block has no host copy, all of it is dropped. */
void copies_drop_nvme(struct tables *tables, uint32_t block);
/* Makes a block of the space, under parent (BLOCK_NONE: it starts a chain), of the image in a slot
 * without owner. 0: the slot is the block's from now on; it takes the place of a lesser image that
 * nobody uses. 1: host memory has this block already.
 * -ENOSPC, -EXFULL: as blocks_commit() says. In the last three cases the slot stays the caller's.
 * If the table is full, a block is dropped for the new one, as quota_may_take() says. */
int copies_enter(struct tables *tables, const struct space *space, const uint8_t key[32],
		 enum image_codec codec, const struct extent *where, uint32_t parent,
		 uint32_t *ret);
/* Gives the slot to a block that is away. */
void copies_promote(struct tables *tables, uint32_t block, const struct extent *where,
		    uint32_t parent);
/* The size of the block's image; 0 if the sizes of its space are not known (yet). */
uint32_t copies_image_bytes(const struct tables *tables, uint32_t block);
