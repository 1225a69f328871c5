/* SPDX-License-Identifier: Apache-2.0 */
/* make: seconds=20 lane=wait no=thread (the daemon's threads run in others) */
/* make: wrap=clock_gettime,epoll_wait needs=kvtierd_clock (the test holds the clock) */
/*
 * sys_redis_write.c - goal: the daemon writes to Redis the values that the configuration says,
 * once, under the right name, for the right time, and byte for byte in the format. Method: two real
 * kvtierd, one real Redis that is looked into.
 */
#include "tests/lib/lib_clock.h"
#include "tests/lib/lib_shared.h"
#include "tests/lib/test.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "kernels/image.h"

enum { N = SHARED_BLOCKS, HEARTBEATS_MS = 600 };

static void stat_is(const struct node *n, const char *path, uint64_t value)
{
	daemon_stat_becomes(&n->d, path, value, PATIENT_MS);
}

/* --- values --- */

static long long bytes_of(const struct shared *w, const char *prefix, uint32_t i)
{
	char name[SHARED_NAME];

	shared_name(prefix, &w->keys[i], name);
	return redis_ask(&w->redis, "STRLEN %s", name);
}

/* The blocks' names and no others. */
TEST(names_are_prefix_and_key)
{
	struct shared *w = shared_begin(NULL, "key_prefix = one:two/", KVTIER_CODEC_FP8);

	node_store_through(&w->a, w->keys, N);
	assert_int_equal(redis_ask(&w->redis, "DBSIZE"), N);
	for (uint32_t i = 0; i < N; i++)
		assert_int_equal(bytes_of(w, "one:two/", i), SHARED_FP8_BYTES);
	assert_int_equal(chain_load(&w->b.e, w->keys, 0, N), N);
	shared_end(w);
}

TEST(the_prefix_may_be_empty)
{
	struct shared *w = shared_begin(NULL, "key_prefix =", KVTIER_CODEC_FP8);

	node_store_through(&w->a, w->keys, N);
	for (uint32_t i = 0; i < N; i++)
		assert_int_equal(bytes_of(w, "", i), SHARED_FP8_BYTES);
	assert_int_equal(chain_load(&w->b.e, w->keys, 0, N), N);
	shared_end(w);
}

/* Padding of an image in memory is not in its value. */
static void values_are_unpadded(uint32_t codec, size_t bytes)
{
	struct shared *w = shared_begin(NULL, NULL, codec);
	static uint8_t value[SHARED_RAW_IMAGE], image[SHARED_RAW_IMAGE];
	struct image_header header;
	struct image_shape shape;
	struct image_geometry g;
	struct image_identity its;
	char name[SHARED_NAME];

	node_store_through(&w->a, w->keys, 1);
	shared_name("kvtier:", &w->keys[0], name);
	assert_int_equal(redis_get(&w->redis, name, value, sizeof(value)), bytes);
	/* from here on: header, scales, payload, MAC */
	memmove(value, value + SHARED_FRONT, bytes - SHARED_FRONT);
	memcpy(&header, value, sizeof(header));
	memcpy(its.space_id, header.space_id, sizeof(its.space_id));
	memcpy(its.key, w->keys[0].bytes, sizeof(its.key));
	image_header_geometry(&header, &g);
	assert_int_equal(image_header_check(&header, &g, &its, &shape), 0);
	assert_int_equal(shape.packed_bytes + REDIS_SEAL_BYTES, bytes);
	memset(image, 0, sizeof(image));
	memcpy(image, value, sizeof(header) + shape.scale_bytes);
	memcpy(image + shape.payload_offset, value + sizeof(header) + shape.scale_bytes,
	       shape.payload_bytes);
	assert_true(image_checksum(image, &shape) == header.checksum);
	shared_end(w);
}

TEST(an_fp8_value_is_header_scales_payload)
{
	values_are_unpadded(KVTIER_CODEC_FP8, SHARED_FP8_BYTES);
}

TEST(a_raw_value_is_header_payload)
{
	values_are_unpadded(KVTIER_CODEC_RAW, SHARED_RAW_BYTES);
}

static long long lifetime_ms(const char *lines)
{
	struct shared *w = shared_begin(NULL, lines, KVTIER_CODEC_FP8);
	char name[SHARED_NAME];
	long long ms;

	node_store_through(&w->a, w->keys, 1);
	shared_name("kvtier:", &w->keys[0], name);
	ms = redis_ask(&w->redis, "PTTL %s", name);
	shared_end(w);
	return ms;
}

TEST(values_live_as_long_as_ttl_says)
{
	assert_in_range(lifetime_ms("ttl = 500"), 400000, 500000);
}

TEST(without_ttl_they_live_on)
{
	assert_int_equal(lifetime_ms(NULL), -1);
}

/* --- through --- */

/* Both engines stored it; only one value was sent for each. */
TEST(what_is_there_is_not_written_again)
{
	struct shared *w = shared_begin(NULL, NULL, KVTIER_CODEC_FP8);

	node_store_through(&w->a, w->keys, N);
	node_store_through(&w->b, w->keys, N);
	stat_is(&w->a, "tiers.redis.written_blocks_total", N);
	stat_is(&w->b, "tiers.redis.written_blocks_total", 0);
	stat_is(&w->b, "tiers.redis.present_blocks_total", N);
	shared_end(w);
}

TEST(what_came_from_there_is_not_written)
{
	struct shared *w = shared_begin(NULL, NULL, KVTIER_CODEC_FP8);

	node_store_through(&w->a, w->keys, N);
	assert_int_equal(node_prefetch(&w->b, w->keys, N), N);
	clock_pass_ms(HEARTBEATS_MS);
	stat_is(&w->b, "tiers.redis.queued_blocks", 0);
	stat_is(&w->b, "tiers.redis.written_blocks_total", 0);
	stat_is(&w->b, "tiers.redis.present_blocks_total", 0);
	shared_end(w);
}

TEST(written_bytes_are_counted)
{
	struct shared *w = shared_begin(NULL, NULL, KVTIER_CODEC_RAW);

	node_store_through(&w->a, w->keys, N);
	stat_is(&w->a, "tiers.redis.written_bytes_total", (uint64_t)N * SHARED_RAW_IMAGE);
	assert_int_equal(chain_load(&w->b.e, w->keys, 0, N), N);
	stat_is(&w->b, "tiers.redis.read_bytes_total", (uint64_t)N * SHARED_RAW_IMAGE);
	shared_end(w);
}

/* --- off --- */

/* A block that shall be written is queued at once, and until it is written. */
static void nothing_is_written(struct shared *w)
{
	clock_pass_ms(HEARTBEATS_MS);
	stat_is(&w->a, "tiers.redis.queued_blocks", 0);
	stat_is(&w->a, "tiers.redis.written_blocks_total", 0);
	assert_int_equal(redis_ask(&w->redis, "DBSIZE"), 0);
}

TEST(off_writes_nothing)
{
	struct shared *w = shared_begin(NULL, "write = off", KVTIER_CODEC_FP8);

	assert_int_equal(chain_store(&w->a.e, w->keys, 0, N), 0);
	node_evict(&w->a);
	nothing_is_written(w);
	shared_end(w);
}

TEST(off_reads)
{
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_FP8);
	struct shared *w = shared_begin(NULL, NULL, KVTIER_CODEC_FP8);

	node_again(&w->b,
		   &(struct node_conf){ .endpoints = w->redis.address, .lines = "write = off" },
		   &g);
	node_store_through(&w->a, w->keys, N);
	assert_int_equal(chain_load(&w->b.e, w->keys, 0, N), N);
	shared_end(w);
}

/* --- on-evict --- */

static void evicted_through(struct shared *w)
{
	assert_int_equal(chain_store(&w->a.e, w->keys, 0, N), 0);
	node_evict(&w->a);
	assert_int_equal(engine_lookup(&w->a.e, w->keys, N), 0);
	stat_is(&w->a, "tiers.redis.written_blocks_total", N);
}

TEST(a_store_alone_writes_nothing)
{
	struct shared *w = shared_begin(NULL, "write = on-evict", KVTIER_CODEC_FP8);

	assert_int_equal(chain_store(&w->a.e, w->keys, 0, N), 0);
	nothing_is_written(w);
	shared_end(w);
}

TEST(what_memory_evicts_others_find)
{
	struct shared *w = shared_begin(NULL, "write = on-evict", KVTIER_CODEC_FP8);

	evicted_through(w);
	assert_int_equal(node_prefetch(&w->b, w->keys, N), N);
	assert_int_equal(chain_load(&w->b.e, w->keys, 0, N), N);
	shared_end(w);
}

TEST(what_memory_evicts_it_finds_itself)
{
	struct shared *w = shared_begin(NULL, "write = on-evict", KVTIER_CODEC_RAW);

	evicted_through(w);
	assert_int_equal(chain_load(&w->a.e, w->keys, 0, N), N);
	stat_is(&w->a, "tiers.redis.hit_blocks_total", N);
	node_evict(&w->a); /* once more: it is there */
	stat_is(&w->a, "tiers.redis.present_blocks_total", N);
	stat_is(&w->a, "tiers.redis.written_blocks_total", N);
	shared_end(w);
}

/* More chains than memory holds, one after another: each block that it had to give up is in Redis,
 * or was dropped and counted. */
TEST(a_full_memory_overflows_into_redis)
{
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_RAW);
	struct shared *w = shared_begin(NULL, NULL, KVTIER_CODEC_RAW);
	uint32_t hits = 0;

	node_again(&w->a,
		   &(struct node_conf){ .endpoints = w->redis.address,
					.host = SHARED_TIGHT,
					.lines = "write = on-evict" },
		   &g);
	for (uint32_t chain = 0; chain < 8; chain++) {
		chain_keys(&w->a.e, chain, N, w->keys);
		assert_int_equal(chain_store(&w->a.e, w->keys, 0, N), 0);
		stat_is(&w->a, "tiers.redis.queued_blocks", 0);
	}
	for (uint32_t chain = 0; chain < 8; chain++) {
		chain_keys(&w->a.e, chain, N, w->keys);
		hits += chain_load(&w->a.e, w->keys, 0, N);
	}
	assert_true(hits + daemon_stat(&w->a.d, "tiers.redis.dropped_blocks_total") >= 8 * N);
	assert_true(daemon_stat(&w->a.d, "tiers.redis.hit_blocks_total") > 0);
	node_owes_nothing(&w->a);
	shared_end(w);
}

/* --- the queue --- */

/* Nothing is taken while Redis is stopped, and then no more than the bound: 1 MiB is 85 raw
 * blocks. */
TEST(the_queue_is_bounded_and_drops_the_oldest)
{
	struct shared *w =
		shared_begin(NULL, "max_inflight_bytes = 1M\ntimeout_ms = 20000", KVTIER_CODEC_RAW);
	struct kvtier_key keys[N];

	redis_signal(&w->redis, SIGSTOP);
	for (uint32_t chain = 0; chain < 8; chain++) {
		chain_keys(&w->a.e, chain, N, keys);
		assert_int_equal(chain_store(&w->a.e, keys, 0, N), 0);
		assert_true(daemon_stat(&w->a.d, "tiers.redis.queued_bytes") <= 1 << 20);
	}
	node_stat_reaches(&w->a, "tiers.redis.dropped_blocks_total",
			  8 * N - (1 << 20) / SHARED_RAW_IMAGE);
	redis_signal(&w->redis, SIGCONT);
	stat_is(&w->a, "tiers.redis.queued_blocks", 0);
	/* of the newest chain, all */
	assert_int_equal(node_load_each(&w->b, keys, 0, N), N);
	node_owes_nothing(&w->a);
	shared_end(w);
}

TEST_BEGIN
{
	redis_needed();
}
