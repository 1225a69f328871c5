/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_reuse - the miss-ratio curve that is sampled agrees with a simulation of all keys within two
 * percentage points, for half to four times the room, with each seed of the sample; what else the
 * sample says is right, too.
 * Method: made traces of three kinds: uses by Zipf's law, a loop, and sessions whose prompts grow.
 * sim_reuse_trace.c does it with a public trace. A sample is off by chance, so traces and samples
 * are the same each time; SEED=n makes other traces.
 */
#include <math.h>

#include "daemon/policy/reuse.h"
#include "tests/lib/lib_trace.h"

TEST_BEGIN
{
	(void)setenv("SEED", "1", 0);
}

/* Most uses are of few keys. The inverse of the law's integral gives a key. */
TEST(uses_by_zipfs_law)
{
	enum { KEYS = 60000, USES = 250000 };
	const double exponent = 0.8, all = pow(KEYS, 1 - exponent);
	struct random random = random_seeded("sim_reuse");
	struct requests t = { 0 };

	for (int i = 0; i < USES; i++) {
		const double u = (double)random_below(&random, 1u << 30) / (1u << 30);
		const uint32_t id = (uint32_t)pow(u * (all - 1) + 1, 1 / (1 - exponent)) - 1;

		trace_add(&t, &id, 1);
	}
	trace_assert_sampled(&t, 6000);
	requests_free(&t);
}

/* The curve of a loop is a step: all or no uses are hits. */
TEST(a_loop)
{
	enum { LENGTH = 30000, REQUEST = 100 };
	struct requests t = { 0 };
	uint32_t ids[REQUEST];

	for (uint32_t i = 0; i < 8 * LENGTH; i += REQUEST) {
		for (uint32_t k = 0; k < REQUEST; k++)
			ids[k] = (i + k) % LENGTH;
		trace_add(&t, ids, REQUEST);
	}
	trace_assert_sampled(&t, 20000);
	requests_free(&t);
}

/* Each request is its session's prompt, which has a beginning that it shares with a tenth of all
 * sessions, and is longer each time. A session that ends makes room for a new one. */
TEST(sessions_whose_prompts_grow)
{
	enum { SESSIONS = 150, SHARED = 20, MAX = 200, REQUESTS = 6000 };
	struct random random = random_seeded("sim_reuse");
	static uint32_t ids[SESSIONS][MAX], n[SESSIONS];
	uint32_t next = 10 * SHARED;
	struct requests t = { 0 };

	memset(n, 0, sizeof(n));
	for (int i = 0; i < REQUESTS; i++) {
		const uint32_t s = (uint32_t)random_below(&random, SESSIONS);
		const uint32_t more = 1 + (uint32_t)random_below(&random, 10);

		if (n[s] + more > MAX || random_below(&random, 20) == 0)
			n[s] = 0;
		for (; n[s] < SHARED; n[s]++)
			ids[s][n[s]] = s % 10 * SHARED + n[s];
		for (uint32_t k = 0; k < more; k++)
			ids[s][n[s]++] = next++;
		trace_add(&t, ids[s], n[s]);
	}
	trace_assert_sampled(&t, 3000);
	requests_free(&t);
}

/* --- what else the sample says --- */

static struct histogram gap, age, idle;
static struct reuse *reuse;

FIXTURE(begin)
{
	const struct reuse_times times = { &gap, &age, &idle };

	memset(&gap, 0, sizeof(gap));
	memset(&age, 0, sizeof(age));
	memset(&idle, 0, sizeof(idle));
	return reuse_open(1, &times, 0, &reuse);
}

FIXTURE_DO(end, reuse_close(reuse));

static void at(uint64_t s)
{
	reuse_now(reuse, s * 1000000000);
}

static bool nth_key(void *arg, uint32_t at, uint8_t ret[32])
{
	(void)arg;
	random_key(at, ret);
	return true;
}

static void use_all(uint32_t n)
{
	reuse_chain(reuse, n, 1000, nth_key, NULL);
}

static void evict_all(uint64_t n)
{
	for (uint64_t i = 0; i < n; i++)
		reuse_leave(reuse, random_key_of(i).bytes);
}

static void about(uint64_t is, uint64_t want, double part)
{
	if ((double)is < (double)want * (1 - part) || (double)is > (double)want * (1 + part))
		fail_msg("%llu is not about %llu", (unsigned long long)is,
			 (unsigned long long)want);
}

TEST_WITH(times_of_few_blocks_are_all_counted, begin, end)
{
	at(5);
	use_all(10);
	at(25);
	use_all(4);
	assert_int_equal(histogram_total(&gap), 4);
	about(histogram_percentile(&gap, 50), 20000000, 1. / 32);
	at(65);
	evict_all(10);
	at(66);
	evict_all(1); /* it is not there any more */
	assert_int_equal(histogram_total(&age), 10);
	about(histogram_percentile(&age, 1), 60000000, 1. / 32);
	assert_int_equal(histogram_total(&idle), 10);
	about(histogram_percentile(&idle, 40), 40000000, 1. / 32);
	about(histogram_percentile(&idle, 50), 60000000, 1. / 32);
	use_all(1); /* it is back */
	at(76);
	evict_all(1);
	about(histogram_percentile(&age, 1), 10000000, 1. / 32);
}

TEST_WITH(times_of_many_blocks_count_for_all, begin, end)
{
	enum { KEYS = 100000 };

	reuse_tick(reuse, KEYS * 1000);
	use_all(KEYS);
	assert_in_range(reuse_samples(reuse), REUSE_SAMPLES / 3, REUSE_SAMPLES);
	evict_all(KEYS);
	about(histogram_total(&age), KEYS, .1);
	use_all(KEYS);
	about(histogram_total(&gap), KEYS, .1);
}

TEST_WITH(the_working_set_is_what_was_used_in_the_window, begin, end)
{
	enum { KEYS = 20000 };
	const uint32_t windows[] = { 900, 3600, 86400 };
	uint64_t bytes[3];

	reuse_tick(reuse, KEYS * 1000);
	at(10);
	use_all(KEYS);
	at(3000);
	use_all(KEYS / 2);
	at(4000);
	use_all(KEYS / 4);
	at(4500);
	reuse_working_set(reuse, windows, 3, bytes);
	about(bytes[0], KEYS / 4 * 1000, .1);
	about(bytes[1], KEYS / 2 * 1000, .1);
	about(bytes[2], KEYS * 1000, .1);
}

/* A chain is evicted from its end, so its first block is a hit also in a memory that holds no more
 * than this one, and its last block is none. */
TEST_WITH(a_chain_leaves_from_its_end, begin, end)
{
	reuse_tick(reuse, 1 << 20);
	use_all(10);
	use_all(1);
	assert_in_range(reuse_miss_ppm(reuse, 1500), 10 * 1000000 / 11, 10 * 1000000 / 11 + 1);
}

/* Numbers of last week do not hide those of today. */
TEST_WITH(what_was_long_ago_counts_for_little, begin, end)
{
	reuse_tick(reuse, 1 << 20);
	use_all(2000);
	assert_int_equal(reuse_miss_ppm(reuse, 1 << 20), 1000000);
	for (uint64_t day = 1; day <= 14; day++) {
		at(day * 86400);
		reuse_tick(reuse, 1 << 20);
	}
	for (int i = 0; i < 200; i++)
		use_all(10);
	assert_in_range(reuse_miss_ppm(reuse, 1 << 20), 0, 20000);
}
