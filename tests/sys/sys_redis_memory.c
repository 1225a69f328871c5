/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait */
/* make: wrap=clock_gettime,epoll_wait needs=kvtierd_clock (the test holds the clock) */
/*
 * sys_redis_memory.c - goal: values on their way to a Redis, or waiting for one that does not
 * answer, cost an engine no more of its memory than was promised, in any state of the Redis.
 * Method: a real kvtierd with little memory, and a real Redis that is stopped.
 */
#include "tests/lib/lib_shared.h"
#include "tests/lib/test.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "tests/lib/lib_damage.h"

enum { N = SHARED_BLOCKS };

static struct shared *begin(const char *host, const char *lines, const struct kvtier_geometry *g)
{
	struct shared *w = shared_world();
	const struct node_conf conf = { .endpoints = w->redis.address,
					.host = host,
					.lines = lines };

	redis_start(&w->redis, NULL);
	node_place(&w->a, &conf);
	node_live(&w->a);
	node_join(&w->a, g);
	return w;
}

static void end(struct shared *w)
{
	redis_signal(&w->redis, SIGCONT);
	node_owes_nothing(&w->a);
	shared_end(w);
}

static int store_one(struct shared *w, uint64_t chain)
{
	struct kvtier_key key;

	chain_keys(&w->a.e, chain, 1, &key);
	return chain_store(&w->a.e, &key, 0, 1);
}

/* 16M hold 1,360 blocks. The queue is full with 85 of them: then each that goes has one slot to
 * give. */
TEST(a_full_queue_takes_no_more_than_it_gives)
{
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_RAW);
	struct shared *w = begin("bytes = 16M\nslab_bytes = 1M",
				 "write = on-evict\nmax_inflight_bytes = 1M\n"
				 "timeout_ms = 60000",
				 &g);

	redis_signal(&w->redis, SIGSTOP);
	for (uint64_t i = 0; i < 1700; i++)
		assert_int_equal(store_one(w, i), 0);
	node_stat_reaches(&w->a, "tiers.host.evicted_blocks_total", 1700 - 1360);
	assert_in_range(daemon_stat(&w->a.d, "tiers.host.evicted_blocks_total"), 1700 - 1360,
			1700 - 1360 + 85);
	end(w);
}

/* An eighth of 64M are 682 blocks. */
TEST(an_operator_evicts_as_much_as_he_asks_for)
{
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_RAW);
	struct shared *w =
		begin("bytes = 64M\nslab_bytes = 1M", "write = on-evict\ntimeout_ms = 60000", &g);

	redis_signal(&w->redis, SIGSTOP);
	for (uint64_t i = 0; i < 600; i++)
		assert_int_equal(store_one(w, i), 0);
	assert_int_equal(daemon_ctl(&w->a.d, "evict --bytes 100K --json", w->a.text,
				    sizeof(w->a.text)),
			 0);
	assert_non_null(strstr(w->a.text, "\"evicted_blocks\":9,"));
	node_evict(&w->a);
	daemon_stat_becomes(&w->a.d, "tiers.host.blocks", 0, SHARED_MS);
	end(w);
}

/* 4M hold 16 blocks, one a slab as they are larger than half of one, and 32 may be on their way. */
TEST(writes_that_hang_do_not_hold_up_stores)
{
	const struct kvtier_geometry g = large_geometry(KVTIER_CODEC_RAW);
	struct shared *w =
		begin("bytes = 4M\nslab_bytes = 256K", "write = through\ntimeout_ms = 60000", &g);

	redis_signal(&w->redis, SIGSTOP);
	for (uint64_t i = 0; i < 60; i++)
		if (store_one(w, i))
			fail_msg("store %u found no room", (unsigned)i);
	end(w);
}

/* 4M hold 16 blocks: two that may go, and blocks of a chain that is being stored. The chain needs
 * their place, and gets it. */
TEST(an_inherited_slot_is_given_back_when_nothing_else_is_left)
{
	const struct kvtier_geometry g = large_geometry(KVTIER_CODEC_RAW);
	struct shared *w =
		begin("bytes = 4M\nslab_bytes = 256K", "write = on-evict\ntimeout_ms = 60000", &g);

	redis_signal(&w->redis, SIGSTOP);
	for (uint64_t i = 0; i < 2; i++)
		assert_int_equal(store_one(w, 100 + i), 0);
	chain_keys(&w->a.e, 1, N, w->keys);
	assert_int_equal(chain_store(&w->a.e, w->keys, 0, 16), 0);
	assert_int_equal(engine_lookup(&w->a.e, w->keys, 16), 16);
	end(w);
}

/* A value with a good header, checksum and MAC, that no kvtierd writes. */
static void other_codecs_are_a_miss(uint32_t codec, enum image_codec codec_k,
				    enum image_codec codec_v)
{
	const struct kvtier_geometry g = tiny_geometry(codec);
	struct shared *w = begin(NULL, NULL, &g);
	static uint8_t value[2 * SHARED_RAW_IMAGE], packed[SHARED_RAW_IMAGE];
	static _Alignas(IMAGE_ALIGN) uint8_t image[SHARED_RAW_IMAGE];
	struct image_header header;
	struct image_shape shape;
	struct redis_seal seal;
	char name[SHARED_NAME];
	size_t front;

	chain_keys(&w->a.e, 1, 1, w->keys);
	node_store_through(&w->a, w->keys, 1);
	shared_name("kvtier:", &w->keys[0], name);
	assert_true(redis_get(&w->redis, name, value, sizeof(value)) > SHARED_FRONT);
	memcpy(&header, value + SHARED_FRONT, sizeof(header));
	damage_recoded(&header, codec_k, codec_v, image, &shape);
	front = sizeof(header) + shape.scale_bytes;
	memcpy(packed, image, front);
	memcpy(packed + front, image + shape.payload_offset, shape.payload_bytes);
	shared_seal(0, &seal);
	redis_put(&w->redis, name, value, redis_sealed(&seal, packed, shape.packed_bytes, value));
	node_evict(&w->a);
	assert_int_equal(node_load_each(&w->a, w->keys, 0, 1), 0);
	shared_asks_until(&w->redis, 0, "DBSIZE");
	node_stat_reaches(&w->a, "tiers.redis.corrupt_blocks_total", 1);
	end(w);
}

/* In a space that promises exact bytes. */
TEST(a_value_of_another_codec_is_a_miss)
{
	other_codecs_are_a_miss(KVTIER_CODEC_RAW, CODEC_FP8, CODEC_FP8);
}

TEST(a_value_of_two_codecs_is_a_miss)
{
	other_codecs_are_a_miss(KVTIER_CODEC_FP8, CODEC_FP8, CODEC_RAW);
	other_codecs_are_a_miss(KVTIER_CODEC_FP8, CODEC_RAW, CODEC_FP8);
}

/* Else it would be evicted before its child, which nobody finds without it. */
TEST(a_block_is_kept_under_the_parent_that_the_op_names)
{
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_RAW);
	struct shared *w = begin(NULL, NULL, &g);
	struct kvtier_op_options o = { .size = sizeof(o) };
	const uint32_t page = 1;
	uint64_t op;

	chain_keys(&w->a.e, 1, 2, w->keys);
	node_store_through(&w->a, w->keys, 2);
	node_evict(&w->a);
	assert_int_equal(node_load_each(&w->a, w->keys, 0, 1), 1);
	page_poison(&w->a.e, page);
	o.parent = &w->keys[0];
	assert_int_equal(kvtier_load(w->a.e.space, &w->keys[1], &page, 1, &o, &op), 0);
	assert_int_equal(node_load_end(&w->a, op, &w->keys[1], page, 1, 0), 1);
	assert_int_equal(engine_lookup(&w->a.e, w->keys, 2), 2);
	assert_int_equal(daemon_ctl(&w->a.d, "evict --bytes 1K", w->a.text, sizeof(w->a.text)), 0);
	assert_int_equal(engine_lookup(&w->a.e, w->keys, 2), 1);
	end(w);
}

/* The blocks before it and behind it are in Redis, and good. */
TEST(a_prefetch_says_what_it_kept)
{
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_RAW);
	struct shared *w = begin(NULL, NULL, &g);
	static uint8_t value[SHARED_RAW_BYTES];
	int32_t statuses[N];
	struct kvtier_result result = { .size = sizeof(result),
					.blocks = statuses,
					.blocks_max = N };
	char name[SHARED_NAME];
	uint64_t op;

	chain_keys(&w->a.e, 1, N, w->keys);
	node_store_through(&w->a, w->keys, N);
	node_evict(&w->a);
	shared_name("kvtier:", &w->keys[8], name);
	assert_int_equal(redis_get(&w->redis, name, value, sizeof(value)), sizeof(value));
	value[1000] ^= 1;
	redis_put(&w->redis, name, value, sizeof(value));
	assert_int_equal(kvtier_prefetch(w->a.e.space, w->keys, N, &op), 0);
	assert_int_equal(kvtier_wait(w->a.e.client, op, -1, &result), 0);
	for (uint32_t i = 0; i < N; i++)
		assert_int_equal(statuses[i], i < 8 ? 0 : -ENOENT);
	assert_int_equal(engine_lookup(&w->a.e, w->keys, N), 8);
	end(w);
}

/* 4M hold 16 blocks. */
TEST(a_chain_longer_than_memory_is_loaded)
{
	const struct kvtier_geometry g = large_geometry(KVTIER_CODEC_RAW);
	struct shared *w = begin("bytes = 4M\nslab_bytes = 256K", NULL, &g);

	chain_keys(&w->a.e, 1, N, w->keys);
	for (uint32_t i = 0; i < N; i += 8) {
		for (uint32_t k = i; k < i + 8; k++)
			assert_int_equal(chain_store(&w->a.e, &w->keys[k], k, 1), 0);
		shared_asks_until(&w->redis, i + 8, "DBSIZE");
	}
	node_evict(&w->a);
	for (int round = 0; round < 20; round++)
		assert_int_equal(chain_load(&w->a.e, w->keys, 0, N), N);
	end(w);
}

TEST_BEGIN
{
	redis_needed();
}
