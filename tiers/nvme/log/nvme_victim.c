/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme_victim.c - see nvme_victim.h.
 */
#include "nvme_victim.h"

enum { SAMPLE = 512, CREDIT_PER_MILLE = 30 };

/* --- ages --- */

static uint32_t slot_at(const struct nvme_ages *ages, uint32_t back)
{
	return (ages->epoch - back) % NVME_AGES;
}

static uint32_t slot_of(const struct nvme_ages *ages, uint64_t tick)
{
	uint32_t back = 0;

	while (back < NVME_AGES - 1 && tick < ages->begin[slot_at(ages, back)])
		back++;
	return slot_at(ages, back);
}

/* For each epoch that has begun since, the oldest one joins the one behind it. */
static void catch_up(const struct nvme_ages *ages, struct nvme_heat *heat)
{
	if (ages->epoch - heat->epoch > NVME_AGES) /* all of them join */
		heat->epoch = ages->epoch - NVME_AGES;
	while (heat->epoch != ages->epoch) {
		const uint32_t oldest = ++heat->epoch % NVME_AGES;

		heat->age[(oldest + 1) % NVME_AGES] += heat->age[oldest];
		heat->age[oldest] = 0;
	}
}

void nvme_ages_grow(struct nvme_ages *ages)
{
	if (++ages->added <= ages->all / NVME_AGES)
		return;
	const uint32_t oldest = ++ages->epoch % NVME_AGES;

	ages->blocks[(oldest + 1) % NVME_AGES] += ages->blocks[oldest];
	ages->blocks[oldest] = 0;
	ages->begin[oldest] = ages->latest + 1;
	ages->added = 0;
}

static void count(struct nvme_ages *ages, struct nvme_heat *heat, uint64_t tick)
{
	const uint32_t slot = slot_of(ages, tick);

	catch_up(ages, heat);
	heat->age[slot]++;
	heat->blocks++;
	heat->tick_sum += tick;
	ages->blocks[slot]++;
	ages->all++;
	if (tick > ages->latest)
		ages->latest = tick;
	if (tick < ages->least || !ages->least)
		ages->least = tick;
}

void nvme_ages_take(struct nvme_ages *ages, struct nvme_heat *heat, uint64_t tick)
{
	const uint32_t slot = slot_of(ages, tick);

	/* At a start a record may be touched right before it is put: then counts go below zero, and
	 * come back. */
	catch_up(ages, heat);
	heat->age[slot]--;
	heat->blocks--;
	heat->tick_sum -= tick;
	ages->blocks[slot]--;
	ages->all--;
}

void nvme_ages_put(struct nvme_ages *ages, struct nvme_heat *heat, uint64_t tick)
{
	count(ages, heat, tick);
	heat->records++;
}

void nvme_ages_touch(struct nvme_ages *ages, struct nvme_heat *heat, uint64_t tick, uint64_t now)
{
	nvme_ages_take(ages, heat, tick);
	count(ages, heat, now);
}

void nvme_ages_clear(struct nvme_ages *ages, struct nvme_heat *heat)
{
	catch_up(ages, heat);
	for (uint32_t i = 0; i < NVME_AGES; i++)
		ages->blocks[i] -= heat->age[i];
	ages->all -= heat->blocks;
	*heat = (struct nvme_heat){ .epoch = ages->epoch };
}

void nvme_ages_older(struct nvme_ages *ages)
{
	if (ages->back == NVME_AGES - 1 || !ages->least)
		return;
	ages->begin[slot_at(ages, ages->back++)] = ages->least;
}

/* The tick behind the epoch that began so many epochs ago. */
static uint64_t end_of(const struct nvme_ages *ages, uint32_t back)
{
	return back ? ages->begin[slot_at(ages, back - 1)] : ages->latest + 1;
}

uint64_t nvme_ages_tick(const struct nvme_ages *ages, double share)
{
	double below = share * (double)ages->all;

	for (uint32_t back = NVME_AGES; back-- > 0;) {
		const uint32_t slot = slot_at(ages, back), blocks = ages->blocks[slot];
		const uint64_t begin = ages->begin[slot];

		if (blocks && below <= blocks)
			return begin +
			       (uint64_t)((double)(end_of(ages, back) - begin) * below / blocks);
		below -= blocks;
	}
	return ages->latest;
}

/* --- credit --- */

void nvme_credit_open(struct nvme_credit *credit, uint64_t capacity_bytes, uint32_t segment_bytes)
{
	credit->most = (double)capacity_bytes / 100;
	if (credit->most < segment_bytes)
		credit->most = segment_bytes;
	credit->bytes = credit->most / 2;
}

void nvme_credit_earn(struct nvme_credit *credit, uint64_t bytes)
{
	credit->bytes += (double)bytes * CREDIT_PER_MILLE / 1000;
	if (credit->bytes > credit->most)
		credit->bytes = credit->most;
}

uint64_t nvme_credit_tick(const struct nvme_credit *credit, const struct nvme_ages *ages)
{
	const double full = credit->bytes > 0 ? credit->bytes / credit->most : 0;

	return nvme_ages_tick(ages, .9 - .8 * full);
}

/* --- the victim --- */

/* What a record is worth: about 1 since `carry`, and before that the fourth power of how much
 * younger it would have to be. An exact order would drop the oldest, and whatever is a little
 * younger next; so the price has to fall steeply. */
static double worth(const struct nvme_ages *ages, double tick, uint64_t carry)
{
	const double part =
		((double)(ages->latest - carry) + 1) / ((double)ages->latest - tick + 1);

	return part > 1 ? 1 + (1 - 1 / part) / 1000 : part * part * part * part;
}

/* For each record that gets free: the worth of records that are dropped or written again. */
static double loss(const struct nvme_ages *ages, const struct nvme_heat *heat, const double *worths,
		   uint64_t carry)
{
	double sum = 0, again = 0, freed;

	for (uint32_t i = 0; i < NVME_AGES; i++) {
		sum += heat->age[i] * worths[i];
		again += worths[i] > 1 ? heat->age[i] : 0;
	}
	if (again <= 0 && heat->blocks) /* then the mean tells more than the epochs */
		sum = heat->blocks * worth(ages, (double)heat->tick_sum / heat->blocks, carry);
	freed = heat->records - again;
	return freed > heat->records / 4.0 ? sum / freed : 4 * sum / heat->records;
}

uint32_t nvme_victim_pick(const struct nvme_ages *ages, struct nvme_heat *heat, uint32_t n,
			  uint64_t carry_tick, uint32_t *seed)
{
	uint32_t best = NVME_NO_VICTIM;
	double least = 0, worths[NVME_AGES];

	for (uint32_t back = 0; back < NVME_AGES; back++) {
		const uint64_t begin = ages->begin[slot_at(ages, back)];

		worths[slot_at(ages, back)] =
			worth(ages, ((double)begin + (double)end_of(ages, back)) / 2, carry_tick);
	}
	for (uint32_t i = 0; i < n && (i < SAMPLE || best == NVME_NO_VICTIM); i++) {
		uint32_t at = i;
		double its;

		if (n > SAMPLE) {
			*seed = *seed * 1664525u + 1013904223u;
			at = i < 2 * SAMPLE ? (uint32_t)((uint64_t)*seed * n >> 32) : i;
		}
		if (!heat[at].eligible)
			continue;
		catch_up(ages, &heat[at]);
		its = loss(ages, &heat[at], worths, carry_tick);
		if (best == NVME_NO_VICTIM || its < least) {
			best = at;
			least = its;
		}
	}
	return best;
}

/* Live before dead, wanted before others, newest first; then by entry, so that there is one order
 * only. */
static bool better(const struct nvme_candidate *x, const struct nvme_candidate *y)
{
	if (x->live != y->live)
		return x->live;
	if (x->wanted != y->wanted)
		return x->wanted;
	return x->tick != y->tick ? x->tick > y->tick : x->entry < y->entry;
}

void nvme_victim_add(struct nvme_candidate *heap, uint32_t n, const struct nvme_candidate *c)
{
	for (; n > 0 && better(c, &heap[(n - 1) / 2]); n = (n - 1) / 2)
		heap[n] = heap[(n - 1) / 2];
	heap[n] = *c;
}

bool nvme_victim_take(struct nvme_candidate *heap, uint32_t n, uint64_t carry_tick,
		      uint64_t room_bytes, double credit_bytes, uint64_t *taken)
{
	const struct nvme_candidate best = heap[0];
	const uint64_t then = *taken + best.bytes;
	uint32_t at = 0;

	if (!best.live || then > room_bytes ||
	    (!best.wanted && (best.tick <= carry_tick || (double)then > credit_bytes)))
		return false;
	*taken = then;
	n--;
	for (uint32_t child = 1; child < n; child = 2 * at + 1) {
		child += child + 1 < n && better(&heap[child + 1], &heap[child]);
		if (!better(&heap[child], &heap[n]))
			break;
		heap[at] = heap[child];
		at = child;
	}
	heap[at] = heap[n];
	heap[n] = best;
	return true;
}
