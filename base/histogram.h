/* SPDX-License-Identifier: Apache-2.0 */
/*
 * histogram.h - counts of times by their length, in an array of fixed size that a second process
 * may read. The unit of the times is the caller's.
 *
 * Each doubling of the time is cut into HISTOGRAM_STEPS equal buckets, and a bucket stands for its
 * middle. So a time read from here is at most 1/32 (3.2 %) too small or too large, and below
 * HISTOGRAM_STEPS it is exact. Times above HISTOGRAM_MAX are counted as that: it is 18 minutes in
 * ns, and 12 days in us.
 *
 * Writer: one thread, by relaxed stores. Readers may be many; each counter is whole, but not all
 * are of one instant.
 */
#pragma once

#include <stdint.h>

enum {
	HISTOGRAM_STEP_BITS = 4,
	HISTOGRAM_STEPS = 1 << HISTOGRAM_STEP_BITS,
	HISTOGRAM_TOP_BIT = 40, /* times of this many bits have buckets */
	HISTOGRAM_BUCKETS = (HISTOGRAM_TOP_BIT - HISTOGRAM_STEP_BITS + 1) * HISTOGRAM_STEPS,
};
#define HISTOGRAM_MAX ((1ull << HISTOGRAM_TOP_BIT) - 1)

/* A zeroed histogram is empty. */
struct histogram {
	uint64_t count[HISTOGRAM_BUCKETS];
};

void histogram_add(struct histogram *histogram, uint64_t time);
void histogram_add_n(struct histogram *histogram, uint64_t time, uint64_t n); /* n such times */
uint64_t histogram_total(const struct histogram *histogram);
/* The sum of all times, at most 1/32 off. */
uint64_t histogram_sum(const struct histogram *histogram);
/* How many times are below 2^bits, exactly. bits: HISTOGRAM_STEP_BITS to HISTOGRAM_TOP_BIT */
uint64_t histogram_below(const struct histogram *histogram, uint32_t bits);
/* The longest time that this bucket counts. */
uint64_t histogram_longest(uint32_t bucket);
/* The time that `percent` per cent of the times do not exceed; 0 if no time was counted. percent: 1
 * to 100. */
uint64_t histogram_percentile(const struct histogram *histogram, unsigned percent);
