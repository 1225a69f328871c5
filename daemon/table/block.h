/* SPDX-License-Identifier: Apache-2.0 */
/*
 * block.h - the blocks the daemon holds: key, copies, chain, recency. Core thread only.
 *
 * A block has a copy in a host slot, one on NVMe, or both. One with no host copy is *away*. GPUs
 * may have further copies of any of them (blocks_gpu): these come and go without a change of the
 * states drawn here, and are dropped when the block is.
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
 *      (leaf-first), unless it has an NVMe copy and no leaf can be evicted. An away block has no
 *      parent here and gets no new children; it keeps its old children, and gets its parent back
 *      when it is promoted without any. It is an heir of the parent that it left, and is dropped
 *      soon after that. So presence is monotone along a chain, but for a moment, for blocks that
 *      were found at a start, and where a damaged block was: lookups are hints, and a load says
 *      which block it did not find.
 *   B4 a pinned block keeps its host slot: it is not dropped, demoted, moved or overwritten.
 *      Its NVMe copy may come, move and be dropped.
 * The tiers' own accounts (tier_free, tier_forget, tier_touch) are kept in step by copies.c,
 * mover.c. Memory: all reserved at blocks_open() (touched as used); <= 96 bytes a
 * block with the index.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tiers/tier.h"
#include "daemon/index/index.h"

enum { BLOCK_NONE = 0xffffffff };

struct blocks;
struct changes;
struct quota;
struct evict;
struct hint_table;
struct space_counts;

/* The keeper of copies on GPUs (move/gpu_cache.h). It is asked about blocks that have such
 * copies. */
struct blocks_gpu {
	void *arg;
	/* the block is dropped: drop its copies, too */
	void (*forget)(void *arg, uint32_t block);
	/* the units that have a copy of it, as bits 1 << unit */
	uint64_t (*units)(void *arg, uint32_t block);
};

struct blocks_conf {
	uint32_t max_blocks;
	/* it stays the caller's, and is closed after the blocks. NULL: no GPU has copies */
	const struct blocks_gpu *gpu;
	/* it is told of blocks that are dropped (hint_table_forget()). It stays the caller's, is
	 * closed after the blocks, and may be NULL */
	struct hint_table *hints;
	struct quota *quota;     /* counts_open() */
	struct changes *changes; /* it is told of blocks; it stays the caller's, and may be NULL */
	bool shared; /* another tier may have a parent that is not here: there are no heirs */
};

int blocks_open(const struct blocks_conf *conf, struct index *index, struct blocks **ret);
void blocks_close(struct blocks *blocks); /* index stays the caller's */

/* The block with this key in this space, or BLOCK_NONE. */
uint32_t blocks_find(const struct blocks *blocks, const uint8_t key[32], uint32_t space);

/* A call with this key, or one that drops this number's block, comes soon: asks for the memory that
 * it will wait for. A number may be any. */
void blocks_soon_key(const struct blocks *blocks, const uint8_t key[32], uint32_t space);
void blocks_expect(struct blocks *blocks, uint64_t more); /* index_expect() */
void blocks_soon(const struct blocks *blocks, uint32_t block);

/* Makes a block visible with a host copy. Its last access is right before its parent's, or without
 * one the latest tick of any block. The slot and class of `host` are kept; the host tier knows the
 * slot's generation (tier_extent()). parent is BLOCK_NONE, or a block of the same space that was
 * found by its key just now or pinned since; it gains a child. A parent that was dropped,
 * condemned or demoted meanwhile counts as BLOCK_NONE. variant says which of the space's image
 * sizes it has, 0 or 1. -EEXIST: the key is there; -ENOSPC: table or index are full; -EXFULL: the
 * index has no room near its place, where dropping another block would help by chance alone. After
 * an error the slot stays the caller's. */
int blocks_commit(struct blocks *blocks, const uint8_t key[32], uint32_t space, uint32_t parent,
		  uint32_t variant, const struct extent *host, uint32_t *ret);
/* The same with an NVMe copy only, last accessed at `tick` (< 2^48). -EEXIST: *ret has the key. */
int blocks_commit_away(struct blocks *blocks, const uint8_t key[32], uint32_t space,
		       uint32_t variant, const struct extent *nvme, uint64_t tick, uint32_t *ret);

/* The block was accessed now. `tick` is a clock that never goes back (the core's op counter). Ticks
 * fall along a chain, so parents are newer than their children. */
void blocks_touch(struct blocks *blocks, uint32_t block, uint64_t tick);

/* A pinned block keeps its key, space and extent even after it was condemned. blocks_unpin() says
 * whether blocks_condemned() has a slot to free now. */
void blocks_pin(struct blocks *blocks, uint32_t block);
bool blocks_unpin(struct blocks *blocks, uint32_t block);
uint32_t blocks_pins(const struct blocks *blocks, uint32_t block);

/* The parent, which is present. BLOCK_NONE: the block starts a chain, is away, or is an orphan. */
uint32_t blocks_parent(const struct blocks *blocks, uint32_t block);
/* The block before it in its chain, of an away block, too, and though it is away itself. Its last
 * access is no earlier. BLOCK_NONE: there is none, or the table does not know it, as behind a start
 * or among many heirs. A hint: another block may have the number since. */
uint32_t blocks_before(const struct blocks *blocks, uint32_t block);
/* It is present: not dropped and not condemned. */
bool blocks_live(const struct blocks *blocks, uint32_t block);
/* A block that is held has no children with a host copy. */
bool blocks_leaf(const struct blocks *blocks, uint32_t block);
/* It is present, without children or pins. */
bool blocks_evictable(const struct blocks *blocks, uint32_t block);

uint64_t blocks_tick(const struct blocks *blocks, uint32_t block); /* last access */
uint64_t blocks_latest(const struct blocks *blocks); /* the last access of any block */
/* It is `tick`, though no block was accessed: so returns that are foretold come nearer. */
void blocks_later(struct blocks *blocks, uint64_t tick);
uint32_t blocks_space(const struct blocks *blocks, uint32_t block);
uint32_t blocks_variant(const struct blocks *blocks, uint32_t block);
const uint8_t *blocks_key(const struct blocks *blocks, uint32_t block);

/* --- copies --- */

uint32_t blocks_tiers(const struct blocks *blocks, uint32_t block); /* 1 << enum tier_id */
/* The host slot, or BLOCK_NONE: away. For the extent ask tier_extent(). */
uint32_t blocks_host_slot(const struct blocks *blocks, uint32_t block);
/* Whether there is an NVMe copy; *ret (may be NULL) says where. */
bool blocks_nvme(const struct blocks *blocks, uint32_t block, struct extent *ret);
/* The NVMe copy is there now (unit < 16, generation < 2^20); with NULL, it is gone. An away block
 * cannot lose its copy this way; it can be dropped or condemned. The block has to be present: after
 * a write the caller asks blocks_live() first. */
void blocks_set_nvme(struct blocks *blocks, uint32_t block, const struct extent *where);
/* The host copy of a block that is not pinned has moved to another slot. */
void blocks_move(struct blocks *blocks, uint32_t block, const struct extent *to);
/* Gives up the host copy of a block that has an NVMe copy and no pins, and is best a leaf. Returns
 * its slot, for the caller to free. */
uint32_t blocks_demote(struct blocks *blocks, uint32_t block);
/* An away block that is present, pinned or not, has a host copy again. parent is as for
 * blocks_commit(). */
void blocks_promote(struct blocks *blocks, uint32_t block, uint32_t parent,
		    const struct extent *host);

/* This block, which is present, got a copy on a GPU or lost one: brings the index up to date. */
void blocks_gpu_changed(struct blocks *blocks, uint32_t block);

/* A mark for the caller: the block stands in the write-behind queue. The mark ends with the block,
 * so blocks_queued() is false for a number whose block was dropped or condemned. */
bool blocks_queued(const struct blocks *blocks, uint32_t block);
void blocks_set_queued(struct blocks *blocks, uint32_t block, bool queued);

/* The account (space_counts.h) of a block with a host copy. */
uint32_t blocks_account(const struct blocks *blocks, uint32_t block);
/* The order in which blocks with a host copy are evicted, with a group for each account. It is for
 * victim.h, and for hints.h, which moves blocks between its bands. All other changes to it are made
 * through this header. */
struct evict *blocks_order(const struct blocks *blocks);

/* Removes an unpinned leaf, or an unpinned away block without children, from table and index. The
 * caller has told the NVMe tier to forget its copy (blocks_nvme() says where). Returns its slot,
 * for the caller to free, or BLOCK_NONE. */
uint32_t blocks_drop(struct blocks *blocks, uint32_t block);

/* An away block whose parent was dropped, for the caller to drop, or to condemn if it is not
 * evictable. BLOCK_NONE: there is none. */
uint32_t blocks_lost(struct blocks *blocks);
/* The last one of a chain of heirs that begins with this block; it has no heirs. */
uint32_t blocks_last_heir(const struct blocks *blocks, uint32_t block);

/* Removes a block that is damaged or purged. Unlike eviction this may take a block with pins and
 * children. The block is invisible at once: not in the index, not found, not counted. The caller
 * has told the NVMe tier to forget its copy. Its slot, if it has one, comes through
 * blocks_condemned() when its pins are gone. Children can still be found, as orphans, and age out;
 * until then its number is not used again. */
void blocks_condemn(struct blocks *blocks, uint32_t block);
/* The next slot to free; false: there is none. */
bool blocks_condemned(struct blocks *blocks, uint32_t *ret_slot);

/* Looks at up to `budget` numbers from *cursor on, which begins as 0, and calls fn for the blocks
 * among them; fn may drop or condemn the block. False when the end was reached. */
bool blocks_walk(struct blocks *blocks, uint32_t *cursor, uint32_t budget,
		 void (*fn)(void *arg, uint32_t block), void *arg);
/* Looks at some numbers from *cursor on, round and round, and calls fn for at most `budget` blocks
 * of doomed spaces (space_counts.h); fn condemns them. */
void blocks_walk_doomed(struct blocks *blocks, uint32_t *cursor, uint32_t numbers, uint32_t budget,
			void (*fn)(void *arg, uint32_t block), void *arg);

/* The numbers from this one on were never given out. */
uint32_t blocks_used(const struct blocks *blocks);
uint32_t blocks_count(const struct blocks *blocks);
/* The number of blocks with a copy in this tier. */
uint32_t blocks_copies(const struct blocks *blocks, enum tier_id tier);
struct space_counts *blocks_counts(const struct blocks *blocks); /* counts by space, and accounts */
