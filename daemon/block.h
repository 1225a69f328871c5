/* SPDX-License-Identifier: Apache-2.0 */
/*
 * block.h - the blocks the daemon holds: key, place, chain, recency. Core thread only.
 *
 * Invariants
 *   B1 a block is in the index exactly while it is here, and here only after its image is complete.
 *   B2 key equality is all 32 bytes and the space; a fingerprint alone never decides.
 *   B3 a parent stays while it has children (leaf-first): only a leaf without pins is ever dropped by
 *      eviction, so presence is monotone along a chain.
 *   B4 a pinned block keeps its extent: it is neither dropped, nor moved, nor overwritten.
 * Memory: all reserved at blocks_open() (touched as used); <= 96 bytes a block with the index.
 */
#ifndef KVTIER_BLOCK_H
#define KVTIER_BLOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../tiers/tier.h"
#include "index.h"

enum { BLOCK_NONE = 0xffffffff };

struct blocks;

struct blocks_conf {
	uint32_t max_blocks;
	uint32_t classes;	/* slab classes, for one eviction order each; <= TIER_MAX_CLASSES */
};

int  blocks_open(const struct blocks_conf *conf, struct index *index, struct blocks **ret);
void blocks_close(struct blocks *blocks);	/* index stays the caller's */

/* The block with this key in this space, or BLOCK_NONE. */
uint32_t blocks_find(const struct blocks *blocks, const uint8_t key[32], uint32_t space);

/* Makes a block visible at `where`, as accessed at the latest tick that any block was. parent: BLOCK_NONE or a
 * block of the same space, found by its key just now or pinned since; it gains a child. One that was dropped
 * or condemned meanwhile counts as BLOCK_NONE. -EEXIST: the key is there; -ENOSPC: table or index full (the
 * caller keeps the extent). */
int  blocks_commit(struct blocks *blocks, const uint8_t key[32], uint32_t space, uint32_t parent,
		   const struct extent *where, uint32_t *ret);

/* Accessed now. `tick` is a clock that never goes back (the core's op counter); a chain is touched
 * with one tick, so parents are never older than their children. */
void blocks_touch(struct blocks *blocks, uint32_t block, uint64_t tick);

/* A pinned block answers for its key, space and extent even after it was condemned. */
void blocks_pin(struct blocks *blocks, uint32_t block);
void blocks_unpin(struct blocks *blocks, uint32_t block);
uint32_t blocks_pins(const struct blocks *blocks, uint32_t block);

uint32_t blocks_parent(const struct blocks *blocks, uint32_t block);	/* BLOCK_NONE: starts a chain */
bool blocks_evictable(const struct blocks *blocks, uint32_t block);	/* present, a leaf, not pinned */

void blocks_extent(const struct blocks *blocks, uint32_t block, struct extent *ret);
uint32_t blocks_space(const struct blocks *blocks, uint32_t block);
const uint8_t *blocks_key(const struct blocks *blocks, uint32_t block);
void blocks_move(struct blocks *blocks, uint32_t block, const struct extent *to);	/* not pinned */

/* Least recent unpinned leaf of a class, or BLOCK_NONE; *ret_tick (may be NULL) its last access. */
uint32_t blocks_victim(const struct blocks *blocks, uint32_t class, uint64_t *ret_tick);

/* Removes an unpinned leaf from table and index; *ret (may be NULL) is its extent, the caller's to free. */
void blocks_drop(struct blocks *blocks, uint32_t block, struct extent *ret);

/* Damaged, purged...: unlike eviction this may take a block with children. It is invisible at once (not in
 * the index, not found, not counted); its slot is returned when its pins are gone, through
 * blocks_condemned(). Children stay findable, as orphans, and age out; its number is not used again before
 * they did. */
void blocks_condemn(struct blocks *blocks, uint32_t block);
bool blocks_condemned(struct blocks *blocks, struct extent *ret);	/* next extent to free; false: none */

/* Looks at up to `budget` numbers from *cursor on (0 to start) and calls fn for the blocks among them, which
 * fn may drop or condemn; false when the end was reached. */
bool blocks_walk(struct blocks *blocks, uint32_t *cursor, uint32_t budget,
		 void (*fn)(void *arg, uint32_t block), void *arg);

uint32_t blocks_count(const struct blocks *blocks);
uint32_t blocks_space_count(const struct blocks *blocks, uint32_t space);	/* spaces < TIER_MAX_SPACES */
uint64_t blocks_memory(const struct blocks *blocks);

#endif
