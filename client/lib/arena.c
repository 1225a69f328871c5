/* SPDX-License-Identifier: Apache-2.0 */
/*
 * arena.c - contiguous ranges of arena slots and of staging pages, for ops. There are few at a time
 * (one an op), so a sorted array is quicker than a linked list. The caller holds the ring lock.
 */
#include "arena.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

void arena_init(struct arena *arena, uint32_t blocks)
{
	arena->blocks = blocks;
	arena->n_used = 0;
}

int arena_take(struct arena *arena, uint32_t least, uint32_t most, struct range *ret)
{
	struct range best = { 0, 0 };
	uint32_t at = 0, end = 0;

	assert(least > 0 && least <= most);
	if (arena->n_used == KVTIER_MAX_OPS)
		return -EAGAIN;
	for (uint32_t i = 0; i <= arena->n_used && best.n < most; i++) {
		const uint32_t next = i < arena->n_used ? arena->used[i].first : arena->blocks;
		const uint32_t gap = next - end < most ? next - end : most;

		if (gap > best.n) {
			best = (struct range){ end, gap };
			at = i;
		}
		if (i < arena->n_used)
			end = next + arena->used[i].n;
	}
	if (best.n < least)
		return -EAGAIN;
	memmove(&arena->used[at + 1], &arena->used[at],
		(arena->n_used - at) * sizeof(arena->used[0]));
	arena->used[at] = best;
	arena->n_used++;
	*ret = best;
	return 0;
}

void arena_give(struct arena *arena, uint32_t first)
{
	uint32_t at = 0;

	while (at < arena->n_used && arena->used[at].first != first)
		at++;
	assert(at < arena->n_used);
	arena->n_used--;
	memmove(&arena->used[at], &arena->used[at + 1],
		(arena->n_used - at) * sizeof(arena->used[0]));
}
