/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme_victim.c - see nvme_victim.h.
 */
#include "nvme_victim.h"

#include <string.h>

enum {
	SAMPLE = 512,
	/* percent of the log's bytes; where so many are free, a victim makes room for one record */
	FREE_MOST = 8
};

/* --- ages --- */

void nvme_ages_open(struct nvme_ages *ages, struct nvme_heat *heat, uint32_t segments)
{
	*ages = (struct nvme_ages){ .heat = heat, .segments = segments, .spans = 1 };
	for (uint32_t i = 0; i < NVME_SPANS; i++)
		ages->order[i] = (uint8_t)i;
	ages->low[0] = UINT64_MAX;
}

/* Where in the order the span of a tick is. */
static uint32_t place_of(const struct nvme_ages *ages, uint64_t tick)
{
	uint32_t at = ages->spans - 1;

	while (at > 0 && tick < ages->begin[ages->order[at]])
		at--;
	return at;
}

/* A segment in which all joins are counted. */
static struct nvme_heat *heat_now(struct nvme_ages *ages, uint32_t segment)
{
	struct nvme_heat *ret = &ages->heat[segment];

	for (; ret->joins != ages->joins; ret->joins++) {
		const uint32_t from = ages->from[ret->joins % NVME_JOINS],
			       into = ages->into[ret->joins % NVME_JOINS];

		ret->in[into] = (uint16_t)(ret->in[into] + ret->in[from]);
		ret->in[from] = 0;
	}
	return ret;
}

/* Two neighbours with few records become one span, but not the new one at `fresh`, which is to get
 * more. An old span counts for more, as the records that make room are told apart by old spans. */
static void join(struct nvme_ages *ages, uint32_t fresh)
{
	uint32_t best = 0;
	uint64_t least = UINT64_MAX;

	for (uint32_t i = 0; i + 1 < ages->spans; i++) {
		const uint64_t cost =
			((uint64_t)ages->in[ages->order[i]] + ages->in[ages->order[i + 1]]) *
			(ages->spans - i);

		if (i != fresh && i + 1 != fresh && cost < least) {
			least = cost;
			best = i;
		}
	}
	const uint8_t into = ages->order[best], from = ages->order[best + 1];

	ages->spans--;
	memmove(&ages->order[best + 1], &ages->order[best + 2], ages->spans - best - 1);
	ages->order[ages->spans] = from;
	ages->in[into] += ages->in[from];
	ages->in[from] = 0;
	ages->high[into] = ages->high[from];
	ages->from[ages->joins % NVME_JOINS] = from;
	ages->into[ages->joins++ % NVME_JOINS] = into;
	/* each segment counts a join before the ring forgets it */
	for (uint32_t i = 0; i <= ages->segments / (NVME_JOINS / 2); i++)
		(void)heat_now(ages, ages->swept++ % ages->segments);
}

/* There is a span for a record of this tick. */
static void grow(struct nvme_ages *ages, uint64_t tick)
{
	uint32_t at = place_of(ages, tick);
	const uint8_t span = ages->order[at], next = ages->order[ages->spans];
	const bool later = tick > ages->high[span];

	if (!later && tick >= ages->low[span])
		return;
	if (ages->in[span] <= ages->all / NVME_SPANS) {
		if (later)
			ages->high[span] = tick;
		if (tick < ages->low[span])
			ages->low[span] = tick;
		return;
	}
	at += later;
	memmove(&ages->order[at + 1], &ages->order[at], ages->spans++ - at);
	ages->order[at] = next;
	ages->begin[next] = later ? ages->high[span] + 1 : ages->begin[span];
	if (!later)
		ages->begin[span] = ages->low[span];
	ages->low[next] = ages->high[next] = tick;
	if (ages->spans == NVME_SPANS)
		join(ages, at);
}

static void count(struct nvme_ages *ages, uint32_t segment, uint64_t tick, int by)
{
	const uint32_t span = ages->order[place_of(ages, tick)];
	struct nvme_heat *heat = heat_now(ages, segment);

	/* At a start a record may be touched right before it is put: then counts go below zero, and
	 * come back. */
	heat->in[span] = (uint16_t)(heat->in[span] + by);
	ages->in[span] += (uint32_t)by;
}

void nvme_ages_put(struct nvme_ages *ages, uint32_t segment, uint64_t tick, uint32_t bytes)
{
	grow(ages, tick);
	count(ages, segment, tick, 1);
	ages->heat[segment].blocks++;
	ages->heat[segment].bytes += bytes;
	ages->all++;
	ages->bytes += bytes;
}

void nvme_ages_take(struct nvme_ages *ages, uint32_t segment, uint64_t tick, uint32_t bytes)
{
	count(ages, segment, tick, -1);
	ages->heat[segment].blocks--;
	ages->heat[segment].bytes -= bytes;
	ages->all--;
	ages->bytes -= bytes;
	ages->free += ages->heat[segment].sealed ? bytes : 0;
}

void nvme_ages_touch(struct nvme_ages *ages, uint32_t segment, uint64_t tick, uint64_t now)
{
	grow(ages, now);
	count(ages, segment, tick, -1);
	count(ages, segment, now, 1);
}

void nvme_ages_seal(struct nvme_ages *ages, uint32_t segment, uint64_t free_bytes)
{
	struct nvme_heat *heat = &ages->heat[segment];

	if (free_bytes * heat->blocks < heat->bytes)
		free_bytes = 0; /* a tail that is shorter than a record */
	heat->sealed = true;
	heat->full = heat->bytes + free_bytes;
	ages->free += free_bytes;
}

static void unseal(struct nvme_ages *ages, struct nvme_heat *heat)
{
	if (heat->sealed)
		ages->free -= heat->full - heat->bytes;
	heat->sealed = false;
}

void nvme_ages_clear(struct nvme_ages *ages, uint32_t segment)
{
	struct nvme_heat *heat = heat_now(ages, segment);

	unseal(ages, heat);
	for (uint32_t i = 0; i < NVME_SPANS; i++)
		ages->in[i] -= heat->in[i];
	ages->all -= heat->blocks;
	ages->bytes -= heat->bytes;
	*heat = (struct nvme_heat){ .joins = ages->joins };
}

/* --- the victim --- */

/* The tick before which the segment's coldest records were last used that have so many bytes with
 * its free ones. The records of a span are taken to be spread evenly. UINT64_MAX: all its records,
 * or the tick is after `limit`. */
static uint64_t tick_of(const struct nvme_ages *ages, const struct nvme_heat *heat, uint64_t bytes,
			uint64_t limit)
{
	const uint64_t free = heat->full - heat->bytes;
	uint64_t records;

	if (free >= bytes || !heat->bytes)
		return 0;
	records = ((bytes - free) * heat->blocks + heat->bytes - 1) / heat->bytes;
	for (uint32_t at = 0; at < ages->spans; at++) {
		const uint32_t span = ages->order[at];
		const uint64_t low = ages->low[span], end = ages->high[span] + 1;

		if (low > limit)
			break;
		if (records <= heat->in[span])
			return low +
			       (uint64_t)((double)(end - low) * (double)records / heat->in[span]);
		records -= heat->in[span];
	}
	return UINT64_MAX;
}

/* How many bytes a victim is to have for others. */
static uint64_t enough(const struct nvme_ages *ages, uint32_t segment_bytes)
{
	const uint64_t most = (ages->bytes + ages->free) * FREE_MOST / 100;
	uint64_t ret = 0;

	if (ages->free < most)
		ret = (uint64_t)((double)(most - ages->free) / (double)most * segment_bytes / 4);
	return ret > 0 ? ret : 1;
}

uint32_t nvme_victim_pick(struct nvme_ages *ages, uint32_t segment_bytes, uint64_t *ret_tick)
{
	const uint32_t n = ages->segments;
	const uint64_t bytes = enough(ages, segment_bytes);
	uint32_t ret = NVME_NO_VICTIM;
	uint64_t most = 0;

	for (uint32_t i = n > SAMPLE ? 0 : SAMPLE; i < SAMPLE + n; i++) {
		uint32_t at = i - SAMPLE;
		uint64_t tick, free;

		if (i >= SAMPLE && n > SAMPLE && ret != NVME_NO_VICTIM)
			break;
		if (i < SAMPLE) {
			ages->seed = ages->seed * 1664525u + 1013904223u;
			at = (uint32_t)((uint64_t)ages->seed * n >> 32);
		}
		if (!ages->heat[at].sealed)
			continue;
		tick = tick_of(ages, heat_now(ages, at), bytes,
			       ret == NVME_NO_VICTIM ? UINT64_MAX : *ret_tick);
		free = ages->heat[at].full - ages->heat[at].bytes;
		if (ret != NVME_NO_VICTIM &&
		    (tick > *ret_tick || (tick == *ret_tick && free <= most)))
			continue;
		ret = at;
		*ret_tick = tick;
		most = free;
	}
	if (ret != NVME_NO_VICTIM)
		unseal(ages, &ages->heat[ret]);
	return ret;
}
