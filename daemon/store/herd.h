/* SPDX-License-Identifier: Apache-2.0 */
/*
 * herd.h - what is asked of many blocks of the table (block.h): who goes next, walks over all of
 * them, slots of those that were condemned. Core thread only; nothing here blocks, allocates or
 * fails.
 */
#ifndef KVTIER_HERD_H
#define KVTIER_HERD_H

#include "block.h"

/* Least recent unpinned leaf of a class, of all accounts, or BLOCK_NONE; *ret_tick (may be NULL)
 * its last access. Only blocks with a host copy. */
uint32_t herd_victim(const struct blocks *blocks, uint32_t class, uint64_t *ret_tick);

/* An away block to drop where a number is needed: the least recent of those without pins and
 * children among the next `budget` numbers, at which *hand goes round (0 to start); BLOCK_NONE:
 * there is none. Away blocks are in no order, as that would take memory from each: the oldest of n
 * that were seen is one of the oldest n-th, give or take. */
uint32_t herd_sample_away(const struct blocks *blocks, uint32_t *hand, uint32_t budget);

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
