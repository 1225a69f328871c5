/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme_victim.c - the policy of the log. Contract and reasons: nvme_victim.h.
 */
#include "nvme_victim.h"

#include <stdlib.h>

static uint64_t mean(const struct nvme_heat *heat)
{
	return heat->blocks ? heat->tick_sum / heat->blocks : 0;
}

uint32_t nvme_victim_pick(const struct nvme_heat *heat, uint32_t n)
{
	uint32_t best = NVME_NO_VICTIM;

	for (uint32_t i = 0; i < n; i++) {
		if (!heat[i].eligible)
			continue;
		if (best == NVME_NO_VICTIM || mean(&heat[i]) < mean(&heat[best]))
			best = i;
	}
	return best;
}

static int by_mean(const void *a, const void *b, void *arg)
{
	const struct nvme_heat *heat = arg;
	const uint64_t x = mean(&heat[*(const uint32_t *)a]), y = mean(&heat[*(const uint32_t *)b]);

	return x < y ? -1 : x > y;
}

uint64_t nvme_victim_middle(const struct nvme_heat *heat, uint32_t n, uint32_t *scratch)
{
	uint64_t blocks = 0, below = 0;
	uint32_t used = 0;

	for (uint32_t i = 0; i < n; i++) {
		if (heat[i].blocks)
			scratch[used++] = i;
		blocks += heat[i].blocks;
	}
	qsort_r(scratch, used, sizeof(*scratch), by_mean, (void *)(uintptr_t)heat);
	for (uint32_t i = 0; i < used; i++) {
		below += heat[scratch[i]].blocks;
		if (2 * below >= blocks)
			return mean(&heat[scratch[i]]);
	}
	return 0;
}

/* Live before dead, wanted before others, newest first; then by entry, so that there is one order
 * only. */
static int by_worth(const void *a, const void *b)
{
	const struct nvme_candidate *x = a, *y = b;

	if (x->live != y->live)
		return y->live - x->live;
	if (x->wanted != y->wanted)
		return y->wanted - x->wanted;
	if (x->tick != y->tick)
		return x->tick > y->tick ? -1 : 1;
	return x->entry < y->entry ? -1 : x->entry > y->entry;
}

uint32_t nvme_victim_carry(struct nvme_candidate *candidates, uint32_t n, uint64_t middle,
			   uint64_t room_bytes)
{
	uint64_t used = 0;
	uint32_t count = 0;

	qsort(candidates, n, sizeof(*candidates), by_worth);
	for (uint32_t i = 0; i < n; i++) {
		struct nvme_candidate *c = &candidates[i];

		c->carry = i == count && c->live && (c->wanted || c->tick > middle) &&
			   used + c->bytes <= room_bytes;
		if (!c->carry)
			continue;
		used += c->bytes;
		count++;
	}
	return count;
}
