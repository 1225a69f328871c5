/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * unit_histogram.c - goal: a percentile read from a histogram is never more off than histogram.h
 * promises. Method: known times at the edges of buckets; then random times of all magnitudes,
 * beside the exact percentiles of the sorted times.
 */

#include "base/histogram.h"
#include "tests/lib/test.h"

enum { TIMES = 5000 };

static void assert_close(uint64_t is, uint64_t exact)
{
	const uint64_t off = is > exact ? is - exact : exact - is;

	if (off > exact / 32)
		fail_msg("%llu ns instead of %llu ns", (unsigned long long)is,
			 (unsigned long long)exact);
}

TEST(an_empty_one_says_0)
{
	static const struct histogram empty;

	assert_int_equal(histogram_total(&empty), 0);
	assert_int_equal(histogram_percentile(&empty, 50), 0);
	assert_int_equal(histogram_percentile(&empty, 100), 0);
}

TEST(one_time_comes_back)
{
	for (unsigned bit = 0; bit < HISTOGRAM_TOP_BIT; bit++) {
		for (uint64_t around = 0; around <= 2; around++) {
			const uint64_t ns = (1ull << bit) - 1 + around;
			struct histogram h = { { 0 } };

			histogram_add(&h, ns);
			assert_int_equal(histogram_total(&h), 1);
			assert_close(histogram_percentile(&h, 1), ns);
			assert_close(histogram_percentile(&h, 100), ns);
		}
	}
}

TEST(what_is_too_long_counts_as_the_longest)
{
	struct histogram h = { { 0 } };

	histogram_add(&h, UINT64_MAX);
	histogram_add(&h, HISTOGRAM_MAX + 1);
	assert_int_equal(histogram_total(&h), 2);
	assert_close(histogram_percentile(&h, 50), HISTOGRAM_MAX);
}

static int by_size(const void *a, const void *b)
{
	const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

TEST(percentiles_are_near_the_exact_ones)
{
	struct random random = random_seeded("percentiles_are_near_the_exact_ones");
	static uint64_t times[TIMES];

	for (int round = 0; round < 20; round++) {
		const uint64_t n = 1 + random_below(&random, TIMES);
		struct histogram h = { { 0 } };

		for (uint64_t i = 0; i < n; i++) {
			times[i] = random_next(&random) >>
				   (64 - HISTOGRAM_TOP_BIT + random_below(&random, 30));
			histogram_add(&h, times[i]);
		}
		qsort(times, n, sizeof(times[0]), by_size);
		for (unsigned percent = 1; percent <= 100; percent++)
			assert_close(histogram_percentile(&h, percent),
				     times[(n * percent + 99) / 100 - 1]);
	}
}

TEST(powers_of_two_are_exact_limits)
{
	for (uint32_t bits = HISTOGRAM_STEP_BITS; bits <= HISTOGRAM_TOP_BIT; bits++) {
		struct histogram h = { { 0 } };

		histogram_add(&h, (1ull << bits) - 1);
		assert_int_equal(histogram_below(&h, bits), 1);
		if (bits > HISTOGRAM_STEP_BITS)
			assert_int_equal(histogram_below(&h, bits - 1), 0);
		histogram_add(&h, 1ull << bits); /* at the top it counts as the longest */
		assert_int_equal(histogram_below(&h, bits), bits < HISTOGRAM_TOP_BIT ? 1 : 2);
	}
}

TEST(buckets_join_without_a_gap)
{
	for (uint32_t bucket = 0; bucket < HISTOGRAM_BUCKETS; bucket++) {
		struct histogram h = { { 0 } };

		histogram_add(&h, histogram_longest(bucket));
		assert_int_equal(h.count[bucket], 1);
		histogram_add(&h, histogram_longest(bucket) + 1);
		if (bucket + 1 < HISTOGRAM_BUCKETS)
			assert_int_equal(h.count[bucket + 1], 1);
	}
	assert_int_equal(histogram_longest(HISTOGRAM_BUCKETS - 1), HISTOGRAM_MAX);
}

TEST(a_sum_is_near_the_exact_one)
{
	struct histogram h = { { 0 } };
	uint64_t sum = 0;

	for (uint64_t time = 1; time < 1000000; time += 1 + time / 7) {
		histogram_add(&h, time);
		sum += time;
	}
	assert_close(histogram_sum(&h), sum);
}
