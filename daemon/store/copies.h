/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copies.h - keeps the block table (block.h) and the tiers' own accounts in step: a block that is
 * dropped frees its slot, and the NVMe tier hears of it. Core thread only; nothing here blocks,
 * allocates or fails.
 */
#ifndef KVTIER_COPIES_H
#define KVTIER_COPIES_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/image.h"
#include "block.h"

struct store;
struct nvme_events;
struct space;

/* The table's answers to the NVMe tier: records found at start become away blocks; blocks follow
 * the records that it moves or drops. arg is the store; release and changed are the caller's to
 * fill in. */
void copies_events(struct store *store, struct nvme_events *ret);

/* Accessed by the op of this tick: in the table, and in the account of the block's segment. */
void copies_touch(struct store *store, uint32_t block, uint64_t tick);
/* As if it had never been accessed, in both. */
void copies_age(struct store *store, uint32_t block);
/* All copies of an unpinned leaf or away block go. */
void copies_drop(struct store *store, uint32_t block);
/* All copies of a block that is present go, pinned or not (block.h). */
void copies_condemn(struct store *store, uint32_t block);
/* The NVMe copy of a block that is present goes: it is bad, or out of reach. Without a host copy
 * that is the block. */
void copies_drop_nvme(struct store *store, uint32_t block);
/* An image in a slot without owner becomes a block of the space, under parent (BLOCK_NONE: it
 * starts a chain): 0, and the slot is the block's. 1: there is such a block in host memory; the
 * slot stays the caller's. -ENOSPC, -EXFULL: as blocks_commit(), likewise. Where the table is full
 * a block goes for it, as place_may_drop() says; guaranteed: bytes of host memory by space. Of the
 * table's numbers as large a part is guaranteed to a space as of host memory. */
int copies_enter(struct store *store, const struct space *space, const uint8_t key[32],
		 enum image_codec codec, const struct extent *where, uint32_t parent,
		 const uint64_t *guaranteed, uint32_t *ret);
/* The slot becomes that of an away block. */
void copies_promote(struct store *store, uint32_t block, const struct extent *where,
		    uint32_t parent);
/* A device has a copy of this block, too, in a slot that is the block's from now on. 0; -EEXIST,
 * -ENOSPC (copy_table_add()): the slot stays the caller's. */
int copies_add_beside(struct store *store, uint32_t block, const struct extent *where);
/* The copy on this unit goes, and its slot is free. It is there, and not pinned. */
void copies_drop_beside(struct store *store, uint32_t block, uint32_t unit);
/* It is bad: it goes, pinned or not. It is there. */
void copies_condemn_beside(struct store *store, uint32_t block, uint32_t unit);
/* The slots of condemned blocks whose last pin is gone, and of copies beside whose block went. */
void copies_free_condemned(struct store *store);

/* Size of the block's image; 0: of a space whose sizes are not known (yet). */
uint32_t copies_image_bytes(const struct store *store, uint32_t block);

#endif
