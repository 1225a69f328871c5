/* SPDX-License-Identifier: Apache-2.0 */
/*
 * histogram.c - buckets of times: contract in histogram.h.
 *
 * A time of b bits, b > HISTOGRAM_STEP_BITS, lies in the bucket that is named by its highest bit
 * and the next HISTOGRAM_STEP_BITS bits. Shorter times are buckets of their own.
 */
#include "histogram.h"

static uint32_t bucket_of(uint64_t ns)
{
	uint32_t shift;

	if (ns > HISTOGRAM_MAX_NS)
		ns = HISTOGRAM_MAX_NS;
	if (ns < HISTOGRAM_STEPS)
		return (uint32_t)ns;
	shift = (uint32_t)(63 - __builtin_clzll(ns)) - HISTOGRAM_STEP_BITS;
	return shift * HISTOGRAM_STEPS + (uint32_t)(ns >> shift);
}

/* The middle of the bucket. */
static uint64_t bucket_ns(uint32_t bucket)
{
	uint32_t shift;

	if (bucket < HISTOGRAM_STEPS)
		return bucket;
	shift = bucket / HISTOGRAM_STEPS - 1;
	return ((uint64_t)(bucket % HISTOGRAM_STEPS + HISTOGRAM_STEPS) << shift) +
	       (1ull << shift) / 2;
}

static uint64_t get(const uint64_t *count)
{
	return __atomic_load_n(count, __ATOMIC_RELAXED);
}

static void set(uint64_t *count, uint64_t to)
{
	__atomic_store_n(count, to, __ATOMIC_RELAXED);
}

void histogram_add(struct histogram *histogram, uint64_t ns)
{
	uint64_t *const count = &histogram->count[bucket_of(ns)];

	set(count, get(count) + 1);
}

void histogram_since(const struct histogram *now, const struct histogram *before,
		     struct histogram *ret)
{
	for (uint32_t i = 0; i < HISTOGRAM_BUCKETS; i++)
		set(&ret->count[i], get(&now->count[i]) - get(&before->count[i]));
}

uint64_t histogram_total(const struct histogram *histogram)
{
	uint64_t total = 0;

	for (uint32_t i = 0; i < HISTOGRAM_BUCKETS; i++)
		total += get(&histogram->count[i]);
	return total;
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
			return bucket_ns(i);
	}
	return 0;
}
