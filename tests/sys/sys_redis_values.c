/* SPDX-License-Identifier: Apache-2.0 */
/* make: seconds=15 lane=wait no=thread (the daemon's threads run in others) */
/* make: wrap=clock_gettime,epoll_wait needs=kvtierd_clock (the test holds the clock) */
/*
 * sys_redis_values.c - goal: with any bytes in Redis under a block's name, an engine gets that
 * block's bytes or a miss and an untouched page. A damaged value is counted and deleted, and a good
 * value in its place is found again. Method: one node stores a chain, its values are overwritten by
 * hand, the other node loads and prefetches them.
 */
#include "tests/lib/lib_shared.h"
#include "tests/lib/test.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FRONT = SHARED_FRONT, HEADER = 128, SCALES = 8 };
enum { N = SHARED_BLOCKS, ROOM = 2 * SHARED_RAW_IMAGE, VAST = 300 << 20, LARGE = 64 << 20 };
enum { SLACK_KIB = 64 << 10 };

static const char corrupt[] = "tiers.redis.corrupt_blocks_total";

struct world {
	struct shared *s;
	struct random random;
	uint32_t used;          /* keys of the chain that cases have had */
	char name[SHARED_NAME]; /* of the value in hand */
	const struct kvtier_key *key;
	uint8_t good[ROOM], bad[ROOM];
	size_t bytes; /* of bad */
};

static struct world w;

FIXTURE(set_up)
{
	w.s = shared_begin(NULL, NULL, KVTIER_CODEC_FP8);
	w.random = random_seeded("sys_redis_values");
	node_store_through(&w.s->a, w.s->keys, N);
	return 0;
}

FIXTURE(tear_down)
{
	node_owes_nothing(&w.s->b);
	shared_end(w.s);
	return 0;
}

/* Takes the next block of the chain in hand: bad is its good value, to be spoilt. */
static void take(void)
{
	assert_true(w.used < N);
	w.key = &w.s->keys[w.used++];
	shared_name("kvtier:", w.key, w.name);
	assert_int_equal(redis_get(&w.s->redis, w.name, w.good, sizeof(w.good)), SHARED_FP8_BYTES);
	memcpy(w.bad, w.good, SHARED_FP8_BYTES);
	w.bytes = SHARED_FP8_BYTES;
}

static void plant(void)
{
	redis_put(&w.s->redis, w.name, w.bad, w.bytes);
}

static uint32_t loads(void)
{
	return node_load_each(&w.s->b, w.key, 0, 1);
}

/* So many a second and no more, or it would take the daemon's time: the next load finds remaining
 * ones bad. */
static void is_deleted(void)
{
	const uint64_t until = now_ns() + SHARED_MS * 1000000ull;

	while (redis_ask(&w.s->redis, "EXISTS %s", w.name) != 0) {
		if (now_ns() > until)
			fail_msg("%s is not deleted", w.name);
		nap_ms(20);
		assert_int_equal(loads(), 0);
	}
}

/* The value in hand is a miss, is counted, and goes. */
static void is_refused(void)
{
	const uint64_t before = daemon_stat(&w.s->b.d, corrupt);

	plant();
	assert_int_equal(loads(), 0);
	daemon_stat_becomes(&w.s->b.d, corrupt, before + 1, PATIENT_MS);
	is_deleted();
}

/* A connection may have been closed over the value before. */
static void a_good_one_is_found(void)
{
	const uint64_t until = now_ns() + SHARED_MS * 1000000ull;

	redis_put(&w.s->redis, w.name, w.good, SHARED_FP8_BYTES);
	while (loads() == 0) {
		if (now_ns() > until)
			fail_msg("a good value is not found");
		nap_ms(20);
	}
}

/* Loaded and prefetched. */
static void is_refused_and_a_good_one_found(void)
{
	is_refused();
	plant();
	assert_int_equal(node_prefetch(&w.s->b, w.key, 1), 0);
	assert_int_equal(engine_lookup(&w.s->b.e, w.key, 1), 0);
	is_deleted();
	a_good_one_is_found();
}

/* --- too short, too long --- */

static void cut_at(size_t bytes)
{
	take();
	w.bytes = bytes;
	is_refused_and_a_good_one_found();
}

TEST(an_empty_value)
{
	cut_at(0);
}

TEST(one_byte)
{
	cut_at(1);
}

TEST(cut_in_the_header)
{
	cut_at(FRONT + HEADER - 1);
}

TEST(cut_after_the_header)
{
	cut_at(FRONT + HEADER);
}

TEST(cut_in_the_scales)
{
	cut_at(FRONT + HEADER + SCALES / 2);
}

TEST(cut_before_the_payload)
{
	cut_at(FRONT + HEADER + SCALES);
}

TEST(cut_in_the_payload)
{
	cut_at(SHARED_FP8_BYTES / 2);
}

TEST(one_byte_short)
{
	cut_at(SHARED_FP8_BYTES - 1);
}

TEST(one_byte_long)
{
	take();
	w.bad[w.bytes++] = 0;
	is_refused_and_a_good_one_found();
}

TEST(twice_the_value)
{
	take();
	memcpy(w.bad + w.bytes, w.good, SHARED_FP8_BYTES);
	w.bytes *= 2;
	is_refused_and_a_good_one_found();
}

/* As it lies in memory. */
TEST(with_its_padding)
{
	take();
	memset(w.bad + FRONT + HEADER + SCALES, 0, 4096);
	memcpy(w.bad + FRONT + 4096, w.good + FRONT + HEADER + SCALES, 4096 + REDIS_MAC_BYTES);
	w.bytes = 2 * 4096 + REDIS_SEAL_BYTES;
	is_refused_and_a_good_one_found();
}

/* --- bits --- */

static void flip_each(size_t first, size_t n)
{
	take();
	for (size_t i = first; i < first + n; i++) {
		memcpy(w.bad, w.good, SHARED_FP8_BYTES);
		w.bad[i] ^= (uint8_t)(1u << random_below(&w.random, 8));
		is_refused();
	}
	a_good_one_is_found();
}

TEST(a_bit_of_each_byte_of_the_header)
{
	flip_each(FRONT, HEADER);
}

TEST(a_bit_of_each_scale)
{
	flip_each(FRONT + HEADER, SCALES);
}

TEST(a_bit_of_the_payload)
{
	take();
	for (int i = 0; i < 16; i++) {
		memcpy(w.bad, w.good, SHARED_FP8_BYTES);
		w.bad[FRONT + HEADER + SCALES + random_below(&w.random, 4096)] ^=
			(uint8_t)(1u << random_below(&w.random, 8));
		is_refused();
	}
	a_good_one_is_found();
}

TEST(the_last_bit)
{
	take();
	w.bad[SHARED_FP8_BYTES - REDIS_MAC_BYTES - 1] ^= 1;
	is_refused_and_a_good_one_found();
}

/* --- of somebody else --- */

TEST(another_blocks_value)
{
	char name[SHARED_NAME];

	take();
	shared_name("kvtier:", &w.s->keys[0], name);
	assert_int_equal(redis_get(&w.s->redis, name, w.bad, sizeof(w.bad)), SHARED_FP8_BYTES);
	is_refused_and_a_good_one_found();
}

/* Of the same model and shape, but for one word. */
TEST(another_spaces_value)
{
	struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_FP8);
	struct kvtier_key key;
	char name[SHARED_NAME];

	take();
	g.extras = "lora=7";
	node_leave(&w.s->a);
	node_join(&w.s->a, &g);
	chain_keys(&w.s->a.e, 1, 1, &key);
	node_store_through(&w.s->a, &key, 1);
	shared_name("kvtier:", &key, name);
	assert_int_equal(redis_get(&w.s->redis, name, w.bad, sizeof(w.bad)), SHARED_FP8_BYTES);
	is_refused_and_a_good_one_found();
}

TEST(another_programs_text)
{
	static const char text[] = "{\"session\": 4711, \"user\": \"somebody\", \"expires\": "
				   "\"2031-01-01T00:00:00Z\"}";

	take();
	w.bytes = sizeof(text) - 1;
	memcpy(w.bad, text, w.bytes);
	is_refused_and_a_good_one_found();
}

/* As many bytes as the block has, all alike. */
TEST(zeros)
{
	take();
	memset(w.bad, 0, w.bytes);
	is_refused_and_a_good_one_found();
}

TEST(random_bytes)
{
	take();
	for (size_t i = 0; i < w.bytes; i++)
		w.bad[i] = (uint8_t)random_next(&w.random);
	is_refused_and_a_good_one_found();
}

/* It is somebody's list, by some accident: left alone. */
TEST(another_type)
{
	const uint64_t before = daemon_stat(&w.s->b.d, corrupt);

	take();
	assert_int_equal(redis_ask(&w.s->redis, "DEL %s", w.name), 1);
	assert_int_equal(redis_ask(&w.s->redis, "LPUSH %s one two three", w.name), 3);
	assert_int_equal(loads(), 0);
	daemon_stat_becomes(&w.s->b.d, corrupt, before + 1, PATIENT_MS);
	assert_int_equal(node_prefetch(&w.s->b, w.key, 1), 0);
	nap_ms(200); /* it would be gone by now */
	assert_int_equal(redis_ask(&w.s->redis, "LLEN %s", w.name), 3);
	a_good_one_is_found();
}

/* It begins as the block does. */
TEST(a_long_value_takes_no_memory)
{
	const bool roomy =
		(uint64_t)sysconf(_SC_AVPHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE) > 3ull << 30;
	const size_t bytes = roomy ? VAST : LARGE;
	uint8_t *value = calloc(1, bytes);
	long before;

	assert_non_null(value);
	take();
	memcpy(value, w.good, SHARED_FP8_BYTES);
	redis_put(&w.s->redis, w.name, value, bytes);
	free(value);
	before = daemon_rss_kib(&w.s->b.d);
	for (int i = 0; i < 3; i++)
		assert_int_equal(loads(), 0);
	assert_true(daemon_rss_kib(&w.s->b.d) < before + SLACK_KIB);
	a_good_one_is_found();
}

TEST_GROUP(set_up, tear_down);

TEST_BEGIN
{
	redis_needed();
}
