/* SPDX-License-Identifier: Apache-2.0 */
/*
 * herd.h - questions about many blocks of the table (block.h): which block goes next, walks over
 * all blocks, slots of blocks that were condemned. Core thread only; nothing here blocks, allocates
 * or fails.
 */
#ifndef KVTIER_HERD_H
#define KVTIER_HERD_H

#include "block.h"

/* The block of a class that goes next: the least recent unpinned leaf, or BLOCK_NONE; *ret_tick
 * (may be NULL) its last access. Only blocks with a host copy. Where there are hints: recency alone
 * says which tenant pays, with its least recent block, kept or not; and of its blocks the ones go
 * first that its hints name. So no hint moves the border between tenants. Blocks that are held
 * never go; a tenant that holds all it has does not pay. A block that is demoted or retired counts
 * as never accessed. */
uint32_t herd_victim(const struct blocks *blocks, uint32_t class, uint64_t *ret_tick);

/* Likewise, of the accounts that may_take() says yes to; *ret_spared becomes true where there is
 * one that it says no to. */
struct herd_filter {
	bool (*may_take)(void *arg, uint32_t account);
	void *arg;
	bool *ret_spared;
};
uint32_t herd_victim_of(const struct blocks *blocks, uint32_t class,
			const struct herd_filter *filter, uint64_t *ret_tick);

/* Its last access, as hints see it: never, of a retired space; now (UINT64_MAX), of blocks kept or
 * held. */
uint64_t herd_worth(const struct blocks *blocks, uint32_t block);

/* An away block to drop where a number is needed: the least (herd_worth()) of the blocks without
 * pins and children among the next `budget` numbers, at which *hand goes round (0 to start);
 * BLOCK_NONE: there is none. may_drop: of the spaces that it says yes to; NULL: of all. Away blocks
 * are in no order, as that would take memory from each: the oldest of n that were seen is one of
 * the oldest n-th, give or take. */
uint32_t herd_sample_away(const struct blocks *blocks, uint32_t *hand, uint32_t budget,
			  bool (*may_drop)(void *arg, uint32_t space), void *arg);

/* Looks at up to `budget` numbers from *cursor on (0 to start) and calls fn for the blocks among
 * them, which fn may drop or condemn; false when the end was reached. */
bool herd_walk(struct blocks *blocks, uint32_t *cursor, uint32_t budget,
	       void (*fn)(void *arg, uint32_t block), void *arg);
/* A walk over some numbers from *cursor on, round and round, that calls fn for blocks of doomed
 * spaces (tally.h), which condemns them, for at most `budget` of them. */
void herd_walk_doomed(struct blocks *blocks, uint32_t *cursor, uint32_t numbers, uint32_t budget,
		      void (*fn)(void *arg, uint32_t block), void *arg);

/* Gives the slots of condemned blocks whose last pin is gone back to their tier. */
void herd_free_condemned(struct blocks *blocks, struct tier *host);

#endif
