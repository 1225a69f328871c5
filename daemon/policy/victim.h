/* SPDX-License-Identifier: Apache-2.0 */
/*
 * victim.h - picks the block of the table (block.h) that is evicted next, from host memory or from
 * the table. Core thread only; no call here blocks, allocates or fails.
 */
#pragma once

#include "daemon/table/block.h"

/* Picks the accounts (space_counts.h) that a block may be taken from. *ret_spared becomes true if
 * may_take() refuses an account that has a block. */
struct victim_filter {
	bool (*may_take)(void *arg, uint32_t account);
	void *arg;
	bool *ret_spared;
};

/* The block of a class that is evicted next: the least recent unpinned leaf with a host copy,
 * or BLOCK_NONE. *ret_tick (may be NULL) is its worth (evict.h). filter NULL: all accounts may
 * be taken from. Blocks of tenants with a lower priority come first. If there are hints, the
 * tenant that pays is picked first: the one with the least recently used block, whatever hints
 * say. Then a block of this tenant is picked in the order that its hints ask for. So no hint
 * moves the border between tenants. Blocks that are held are never evicted, and a tenant that
 * holds all its blocks does not pay. A block that is demoted or retired counts as never
 * accessed. */
uint32_t victim_of(const struct blocks *blocks, uint32_t class, const struct victim_filter *filter,
		   uint64_t *ret_tick);

/* The block's worth (evict.h); 0 for blocks of a retired space. */
uint64_t victim_worth(const struct blocks *blocks, uint32_t block);

/* An away block to drop when a number is needed, or BLOCK_NONE. It looks at the next `budget`
 * numbers from *hand on (0 at first), moves *hand on, and picks the first by priority and
 * victim_worth() among blocks without pins and children. may_drop picks the spaces; NULL: all. Away
 * blocks are in no order, since an order would take memory for each of them. The oldest of n blocks
 * that were seen is, give or take, among the oldest n-th of all. */
uint32_t victim_away(const struct blocks *blocks, uint32_t *hand, uint32_t budget,
		     bool (*may_drop)(void *arg, uint32_t space), void *arg);
