/* SPDX-License-Identifier: Apache-2.0 */
/* arena.h - contiguous ranges of [0, blocks), first fit, given back in any order. */
#ifndef KVTIER_LIB_ARENA_H
#define KVTIER_LIB_ARENA_H

#include <stdint.h>

#include "client/kvtier.h"

struct range {
	uint32_t first, n;
};

struct arena {
	uint32_t blocks, n_used;
	struct range used[KVTIER_MAX_OPS]; /* by first, disjoint */
};

void arena_init(struct arena *arena, uint32_t blocks);
/* A range of at most `most` and at least `least` > 0: the largest gap up to `most`. -EAGAIN: no
 * room. */
int arena_take(struct arena *arena, uint32_t least, uint32_t most, struct range *ret);
void arena_give(struct arena *arena, uint32_t first); /* the start of a range that was taken */

#endif
