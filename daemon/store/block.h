/* SPDX-License-Identifier: Apache-2.0 */
/*
 * block.h - the blocks the daemon holds: key, copies, chain, recency. Core thread only.
 *
 * A block has a copy in a host slot, one on NVMe, or both. One with no host copy is *away*. Devices
 * may have further copies of any of them (copy_table.h): these come and go without a change of the
 * states drawn here, and go when the block goes.
 *
 *	         blocks_commit                        blocks_commit_away (recovery)
 *	              v           blocks_set_nvme               v
 *	            host ────────────────────────> both ──────> away      (blocks_demote)
 *	              ^ <──────────────────────────  ^  <───────── │      (blocks_promote)
 *	              │       blocks_set_nvme(NULL)                │
 *	              └── blocks_drop, blocks_condemn: gone ───────┘
 *
 * Invariants
 *   B1 a block is in the index exactly while it is here, and here only while it has a complete
 *      copy in host memory or on NVMe.
 *   B2 key equality is all 32 bytes and the space; a fingerprint alone never decides.
 *   B3 the chain links blocks that have host copies: there a parent stays while it has children
 *      (leaf-first), unless it has an NVMe copy and nothing else can go. An away block has no
 *      parent here and gets no new children; it keeps its old children, and gets its parent back
 *      when it is promoted without any. So presence is monotone along a chain, but for blocks that
 *      a reclaimed NVMe segment or a damaged image takes out of its middle: lookups are hints, and
 *      a load says which block it did not find.
 *   B4 a pinned block keeps its host slot: it is neither dropped, nor demoted, nor moved, nor
 *      overwritten. Its NVMe copy may come, move and go.
 * The tiers' own accounts (tier_free, tier_forget, tier_touch) are kept in step by copies.c,
 * mover.c and emptier.c. Memory: all reserved at blocks_open() (touched as used); <= 96 bytes a
 * block with the index.
 */
#ifndef KVTIER_BLOCK_H
#define KVTIER_BLOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tiers/tier.h"
#include "index.h"

enum { BLOCK_NONE = 0xffffffff };

struct blocks;
struct copy_table;
struct evict;
struct notes;
struct tally;

struct blocks_conf {
	uint32_t max_blocks;
	uint32_t classes; /* slab classes, for one eviction order each; <= TIER_MAX_CLASSES */
	/* copies on devices; the caller's, closed after the blocks. NULL: no device keeps any */
	struct copy_table *beside;
	/* told of blocks that go (notes_forget()); the caller's, likewise. NULL: nobody is */
	struct notes *notes;
};

int blocks_open(const struct blocks_conf *conf, struct index *index, struct blocks **ret);
void blocks_close(struct blocks *blocks); /* index stays the caller's */

/* The block with this key in this space, or BLOCK_NONE. */
uint32_t blocks_find(const struct blocks *blocks, const uint8_t key[32], uint32_t space);

/* Makes a block visible with a host copy, as accessed at the latest tick that any block was. Of
 * `host` slot and class are kept (the slot's generation is the host tier's: tier_extent()). parent:
 * BLOCK_NONE or a block of the same space, found by its key just now or pinned since; it gains a
 * child. A parent that was dropped, condemned or demoted meanwhile counts as BLOCK_NONE. variant: 0
 * or 1, which of the space's image sizes it has. -EEXIST: the key is there; -ENOSPC: table or index
 * full; -EXFULL: no room near its place in the index, where to drop another block would help by
 * chance alone. The caller keeps the slot. */
int blocks_commit(struct blocks *blocks, const uint8_t key[32], uint32_t space, uint32_t parent,
		  uint32_t variant, const struct extent *host, uint32_t *ret);
/* Likewise with an NVMe copy only, last accessed at `tick` (< 2^48). */
int blocks_commit_away(struct blocks *blocks, const uint8_t key[32], uint32_t space,
		       uint32_t variant, const struct extent *nvme, uint64_t tick, uint32_t *ret);

/* Accessed now. `tick` is a clock that never goes back (the core's op counter); a chain is touched
 * with one tick, so parents are never older than their children. */
void blocks_touch(struct blocks *blocks, uint32_t block, uint64_t tick);

/* A pinned block answers for its key, space and extent even after it was condemned. */
void blocks_pin(struct blocks *blocks, uint32_t block);
void blocks_unpin(struct blocks *blocks, uint32_t block);
uint32_t blocks_pins(const struct blocks *blocks, uint32_t block);

/* BLOCK_NONE: it starts a chain, is away, or an orphan. Else a block that is present. */
uint32_t blocks_parent(const struct blocks *blocks, uint32_t block);
/* present: neither gone nor condemned */
bool blocks_live(const struct blocks *blocks, uint32_t block);
/* no children with a host copy; held */
bool blocks_leaf(const struct blocks *blocks, uint32_t block);
/* present, without children or pins */
bool blocks_evictable(const struct blocks *blocks, uint32_t block);

uint64_t blocks_tick(const struct blocks *blocks, uint32_t block); /* last access */
uint32_t blocks_space(const struct blocks *blocks, uint32_t block);
uint32_t blocks_variant(const struct blocks *blocks, uint32_t block);
const uint8_t *blocks_key(const struct blocks *blocks, uint32_t block);

/* --- copies --- */

/* The host slot, or BLOCK_NONE: away. For the extent ask tier_extent(). */
uint32_t blocks_host_slot(const struct blocks *blocks, uint32_t block);
/* Whether there is an NVMe copy; *ret (may be NULL) says where. */
bool blocks_nvme(const struct blocks *blocks, uint32_t block, struct extent *ret);
/* The NVMe copy is there now (unit < 16, generation < 2^20), or, with NULL, no more. An away block
 * cannot lose its copy this way, only be dropped or condemned. For a block that is present: after a
 * write the caller asks blocks_live() first. */
void blocks_set_nvme(struct blocks *blocks, uint32_t block, const struct extent *where);
/* The host copy moved to another slot; not pinned. */
void blocks_move(struct blocks *blocks, uint32_t block, const struct extent *to);
/* Gives the host copy up: an unpinned block, best a leaf, with an NVMe copy. Returns its slot, the
 * caller's to free. */
uint32_t blocks_demote(struct blocks *blocks, uint32_t block);
/* An away block that is present, pinned or not, has a host copy again. parent: as for
 * blocks_commit(). */
void blocks_promote(struct blocks *blocks, uint32_t block, uint32_t parent,
		    const struct extent *host);

/* --- copies beside these: copy_table.h --- */

/* As in blocks_conf. A copy is there for a block that is present, pinned or not, away or not. When
 * the block goes its copies are loose (copy_table_loose()). */
struct copy_table *blocks_beside(const struct blocks *blocks);
/* A copy was added for this block, or one of its copies was removed: the clients' view of it
 * follows. Through copies.h, which does both. */
void blocks_look_beside(struct blocks *blocks, uint32_t block);

/* A mark of the caller's that goes when the block goes: it stands in the write-behind queue. Of a
 * number whose block went (dropped or condemned) blocks_queued() says no. */
bool blocks_queued(const struct blocks *blocks, uint32_t block);
void blocks_set_queued(struct blocks *blocks, uint32_t block, bool queued);

/* Accounts: tally.h. */
/* of a block with a host copy */
uint32_t blocks_account(const struct blocks *blocks, uint32_t block);
/* The order in which blocks with a host copy go, a group for each account; for herd.h, and for
 * hints.h, which moves blocks between its bands. All else of it is changed through this header. */
struct evict *blocks_order(const struct blocks *blocks);

/* Removes an unpinned leaf, or an unpinned away block without children, from table and index. Its
 * NVMe copy was forgotten by the caller (blocks_nvme() says where). Returns its slot, the caller's
 * to free, or BLOCK_NONE. */
uint32_t blocks_drop(struct blocks *blocks, uint32_t block);

/* Damaged, purged...: unlike eviction this may take a block with pins and children. It is invisible
 * at once (not in the index, not found, not counted); the caller has forgotten its NVMe copy. Its
 * slot, if it has one, is returned when its pins are gone, through blocks_condemned(). Children
 * stay findable, as orphans, and age out; its number is not used again before they did. */
void blocks_condemn(struct blocks *blocks, uint32_t block);
/* next slot to free; false: none */
bool blocks_condemned(struct blocks *blocks, uint32_t *ret_slot);

/* numbers from here on were never given out */
uint32_t blocks_used(const struct blocks *blocks);
uint32_t blocks_count(const struct blocks *blocks);
/* with a copy in this tier */
uint32_t blocks_copies(const struct blocks *blocks, enum tier_id tier);
struct tally *blocks_tally(const struct blocks *blocks); /* counts by space, and accounts */
uint64_t blocks_memory(const struct blocks *blocks);

#endif
