/* SPDX-License-Identifier: Apache-2.0 */
/*
 * histogram.c - buckets of times: contract in histogram.h.
 *
 * A time of b bits, b > HISTOGRAM_STEP_BITS, lies in the bucket that is named by its highest bit
 * and the next HISTOGRAM_STEP_BITS bits. Shorter times are buckets of their own.
 */
#include "histogram.h"

static uint32_t bucket_of(uint64_t time)
{
	uint32_t shift;

	if (time > HISTOGRAM_MAX)
		time = HISTOGRAM_MAX;
	if (time < HISTOGRAM_STEPS)
		return (uint32_t)time;
	shift = (uint32_t)(63 - __builtin_clzll(time)) - HISTOGRAM_STEP_BITS;
	return shift * HISTOGRAM_STEPS + (uint32_t)(time >> shift);
}

static uint32_t shift_of(uint32_t bucket)
{
	return bucket < HISTOGRAM_STEPS ? 0 : bucket / HISTOGRAM_STEPS - 1;
}

static uint64_t shortest(uint32_t bucket)
{
	return bucket < HISTOGRAM_STEPS ?
		       bucket :
		       (uint64_t)(bucket % HISTOGRAM_STEPS + HISTOGRAM_STEPS) << shift_of(bucket);
}

static uint64_t middle(uint32_t bucket)
{
	return shortest(bucket) + (1ull << shift_of(bucket)) / 2;
}

uint64_t histogram_longest(uint32_t bucket)
{
	return shortest(bucket) + (1ull << shift_of(bucket)) - 1;
}

static uint64_t get(const uint64_t *count)
{
	return __atomic_load_n(count, __ATOMIC_RELAXED);
}

static void set(uint64_t *count, uint64_t to)
{
	__atomic_store_n(count, to, __ATOMIC_RELAXED);
}

void histogram_add_n(struct histogram *histogram, uint64_t time, uint64_t n)
{
	uint64_t *const count = &histogram->count[bucket_of(time)];

	set(count, get(count) + n);
}

void histogram_add(struct histogram *histogram, uint64_t time)
{
	histogram_add_n(histogram, time, 1);
}

uint64_t histogram_below(const struct histogram *histogram, uint32_t bits)
{
	const uint32_t end = (bits - HISTOGRAM_STEP_BITS + 1) * HISTOGRAM_STEPS;
	uint64_t below = 0;

	for (uint32_t i = 0; i < end; i++)
		below += get(&histogram->count[i]);
	return below;
}

uint64_t histogram_total(const struct histogram *histogram)
{
	return histogram_below(histogram, HISTOGRAM_TOP_BIT);
}

uint64_t histogram_sum(const struct histogram *histogram)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < HISTOGRAM_BUCKETS; i++)
		sum += get(&histogram->count[i]) * middle(i);
	return sum;
}

uint64_t histogram_percentile(const struct histogram *histogram, unsigned percent)
{
	const uint64_t total = histogram_total(histogram);
	/* the smallest rank that at least `percent` of all have reached, from 1; total * percent
	 * may not fit */
	const uint64_t rank = total / 100 * percent + (total % 100 * percent + 99) / 100;
	uint64_t passed = 0;

	for (uint32_t i = 0; total > 0 && i < HISTOGRAM_BUCKETS; i++) {
		passed += get(&histogram->count[i]);
		if (passed >= rank)
			return middle(i);
	}
	return 0;
}
