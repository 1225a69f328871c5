/* SPDX-License-Identifier: Apache-2.0 */
/* make: seconds=20 lane=wait */
/* make: wrap=clock_gettime,epoll_wait needs=kvtierd_clock (the test holds the clock) */
/*
 * sys_redis_share.c - goal: a node's engine finds the blocks that another node's engine stored, in
 * right bytes, where space, tenant and secret agree, and never where they do not. Blocks that come
 * are kept as a chain. Method: two real kvtierd with an engine each and one real Redis. The written
 * values: sys_redis_write.c.
 */
#include "tests/lib/lib_shared.h"
#include "tests/lib/test.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "tests/lib/lib_disk.h"

enum { N = SHARED_BLOCKS, HALF = N / 2 };

static void stat_is(const struct node *n, const char *path, uint64_t value)
{
	daemon_stat_becomes(&n->d, path, value, PATIENT_MS);
}

static uint32_t tiers_of(struct node *n, const struct kvtier_key *keys, uint32_t blocks)
{
	struct kvtier_hit hit = { .size = sizeof(hit) };

	assert_int_equal(kvtier_lookup(n->e.space, keys, blocks, &hit), 0);
	assert_int_equal(hit.blocks, blocks);
	return hit.tiers;
}

/* --- found --- */

static void b_prefetches_what_a_stored(uint32_t codec)
{
	struct shared *w = shared_begin(NULL, NULL, codec);

	node_store_through(&w->a, w->keys, N);
	assert_int_equal(engine_lookup(&w->b.e, w->keys, N), 0);
	assert_int_equal(node_prefetch(&w->b, w->keys, N), N);
	assert_int_equal(engine_lookup(&w->b.e, w->keys, N), N);
	assert_int_equal(tiers_of(&w->b, w->keys, N), KVTIER_TIER_HOST);
	assert_int_equal(chain_load(&w->b.e, w->keys, 0, N), N);
	shared_end(w);
}

TEST(prefetch_in_an_fp8_space)
{
	b_prefetches_what_a_stored(KVTIER_CODEC_FP8);
}

TEST(prefetch_in_a_raw_space)
{
	b_prefetches_what_a_stored(KVTIER_CODEC_RAW);
}

TEST(load_without_prefetch)
{
	struct shared *w = shared_begin(NULL, NULL, KVTIER_CODEC_FP8);

	node_store_through(&w->a, w->keys, N);
	assert_int_equal(chain_load(&w->b.e, w->keys, 0, N), N);
	assert_int_equal(engine_lookup(&w->b.e, w->keys, N), N); /* kept */
	shared_end(w);
}

/* FP8 holds all but the middle one, which was stored raw, and is larger than the space says. */
TEST(a_block_that_fp8_cannot_hold)
{
	struct shared *w = shared_begin(NULL, NULL, KVTIER_CODEC_FP8);
	uint32_t page = 0;

	for (uint32_t i = 0; i < 3; i++) {
		memset(w->a.e.memory, i == 1 ? 0xff : 0x40, w->a.e.page_bytes); /* 0xffff: a NaN */
		assert_int_equal(engine_store(&w->a.e, &w->keys[i], &page, 1,
					      i ? &w->keys[i - 1] : NULL, NULL),
				 0);
	}
	stat_is(&w->a, "store.raw_blocks_total", 1);
	stat_is(&w->a, "tiers.redis.written_blocks_total", 3);
	assert_int_equal(node_prefetch(&w->b, w->keys, 3), 3);
	for (uint32_t i = 0; i < 3; i++) {
		page_poison(&w->b.e, page);
		assert_int_equal(engine_load(&w->b.e, &w->keys[i], &page, 1, NULL), 0);
		for (size_t at = 0; at < w->b.e.page_bytes; at++)
			assert_int_equal(w->b.e.memory[at], i == 1 ? 0xff : 0x40);
	}
	shared_end(w);
}

/* Once as Redis', then as memory's. */
TEST(hits_are_the_redis_tiers_once)
{
	struct shared *w = shared_begin(NULL, NULL, KVTIER_CODEC_FP8);

	node_store_through(&w->a, w->keys, N);
	assert_int_equal(chain_load(&w->b.e, w->keys, 0, N), N);
	stat_is(&w->b, "tiers.redis.hit_blocks_total", N);
	stat_is(&w->b, "tiers.host.hit_blocks_total", 0);
	assert_int_equal(chain_load(&w->b.e, w->keys, 0, N), N);
	stat_is(&w->b, "tiers.redis.hit_blocks_total", N);
	stat_is(&w->b, "tiers.host.hit_blocks_total", N);
	stat_is(&w->a, "tiers.redis.hit_blocks_total", 0);
	shared_end(w);
}

TEST(absent_blocks_are_misses_and_counted)
{
	struct shared *w = shared_begin(NULL, NULL, KVTIER_CODEC_FP8);

	assert_int_equal(chain_load(&w->b.e, w->keys, 0, N), 0);
	stat_is(&w->b, "tiers.redis.miss_blocks_total", N);
	shared_end(w);
}

TEST(a_node_that_restarted_empty_finds_it_again)
{
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_RAW);
	struct shared *w = shared_begin(NULL, NULL, KVTIER_CODEC_RAW);

	node_store_through(&w->a, w->keys, N);
	assert_int_equal(chain_load(&w->b.e, w->keys, 0, N), N);
	node_die(&w->b, SIGKILL);
	node_live(&w->b);
	node_join(&w->b, &g);
	assert_int_equal(engine_lookup(&w->b.e, w->keys, N), 0);
	assert_int_equal(chain_load(&w->b.e, w->keys, 0, N), N);
	shared_end(w);
}

/* One node at the socket, one at the port. */
TEST(unix_and_tcp_are_the_same_server)
{
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_RAW);
	struct shared *w = shared_begin(NULL, NULL, KVTIER_CODEC_RAW);
	char endpoint[REDIS_TEST_PATH + 8];
	const struct node_conf conf = { .endpoints = endpoint };

	(void)snprintf(endpoint, sizeof(endpoint), "unix:%s", w->redis.socket);
	node_again(&w->a, &conf, &g);
	node_store_through(&w->a, w->keys, N);
	assert_int_equal(node_prefetch(&w->b, w->keys, N), N);
	assert_int_equal(chain_load(&w->b.e, w->keys, 0, N), N);
	shared_end(w);
}

/* Servers that know nothing of each other: each has a part, and every node knows which. */
TEST(several_servers_share_the_blocks)
{
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_RAW);
	char endpoints[2 * REDIS_TEST_PATH], backwards[2 * REDIS_TEST_PATH];
	struct shared *w = shared_world();
	struct redis_server other;

	redis_start(&w->redis, NULL);
	redis_start(&other, NULL);
	(void)snprintf(endpoints, sizeof(endpoints), "%s %s", w->redis.address, other.address);
	(void)snprintf(backwards, sizeof(backwards), "%s %s", other.address, w->redis.address);
	node_place(&w->a, &(struct node_conf){ .endpoints = endpoints });
	node_place(&w->b, &(struct node_conf){ .endpoints = backwards });
	node_live(&w->a);
	node_live(&w->b);
	node_join(&w->a, &g);
	node_join(&w->b, &g);
	node_becomes(&w->a, "up", SHARED_MS);
	node_becomes(&w->b, "up", SHARED_MS);
	chain_keys(&w->a.e, 1, N, w->keys);
	node_store_through(&w->a, w->keys, N);
	assert_in_range(redis_ask(&w->redis, "DBSIZE"), 1, N - 1);
	assert_int_equal(redis_ask(&w->redis, "DBSIZE") + redis_ask(&other, "DBSIZE"), N);
	assert_int_equal(chain_load(&w->b.e, w->keys, 0, N), N);
	redis_stop(&other);
	shared_end(w);
}

/* --- not found --- */

/* A stored; B is another in one respect. Neither its own keys of these tokens nor a lookup with A's
 * find anything. */
static void assert_strangers(struct shared *w)
{
	struct kvtier_key its[N];

	node_store_through(&w->a, w->keys, N);
	chain_keys(&w->b.e, 1, N, its);
	for (int i = 0; i < N; i++)
		assert_memory_not_equal(its[i].bytes, w->keys[i].bytes, 16);
	assert_int_equal(node_prefetch(&w->b, its, N), 0);
	assert_int_equal(chain_load(&w->b.e, its, 0, N), 0);
	assert_int_equal(engine_lookup(&w->b.e, its, N), 0);
	assert_int_equal(redis_ask(&w->redis, "DBSIZE"), N);
}

static void b_again(struct shared *w, const struct node_conf *conf)
{
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_RAW);

	node_again(&w->b, conf, &g);
}

TEST(another_space_finds_nothing)
{
	struct shared *w = shared_begin(NULL, NULL, KVTIER_CODEC_RAW);
	struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_RAW);

	g.extras = "lora=7";
	node_leave(&w->b);
	node_join(&w->b, &g);
	assert_strangers(w);
	shared_end(w);
}

/* Even with the keys in its hands: a value says whose it is. */
TEST(another_spaces_key_is_a_miss)
{
	struct shared *w = shared_begin(NULL, NULL, KVTIER_CODEC_RAW);
	struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_RAW);

	g.model = "tiny@2";
	node_leave(&w->b);
	node_join(&w->b, &g);
	node_store_through(&w->a, w->keys, N);
	assert_int_equal(chain_load(&w->b.e, w->keys, 0, N), 0);
	assert_int_equal(engine_lookup(&w->b.e, w->keys, N), 0);
	shared_end(w);
}

/* Its name is as long as "default". */
TEST(another_tenant_finds_nothing)
{
	struct shared *w = shared_begin(NULL, NULL, KVTIER_CODEC_RAW);

	b_again(w, &(struct node_conf){ .endpoints = w->redis.address,
					.lines = "[socket]\ntenant = another\n" });
	assert_strangers(w);
	shared_end(w);
}

TEST(another_secret_finds_nothing)
{
	struct shared *w = shared_begin(NULL, NULL, KVTIER_CODEC_RAW);

	b_again(w, &(struct node_conf){ .endpoints = w->redis.address, .secret = 1 });
	assert_strangers(w);
	shared_end(w);
}

/* --- chains --- */

TEST(half_a_chain_is_half_a_chain)
{
	struct shared *w = shared_begin(NULL, NULL, KVTIER_CODEC_FP8);

	node_store_through(&w->a, w->keys, HALF);
	assert_int_equal(node_prefetch(&w->b, w->keys, N), HALF);
	assert_int_equal(engine_lookup(&w->b.e, w->keys, N), HALF);
	assert_int_equal(chain_load(&w->b.e, w->keys, 0, N), HALF);
	shared_end(w);
}

static void take_out(struct shared *w, uint32_t i)
{
	char name[SHARED_NAME];

	shared_name("kvtier:", &w->keys[i], name);
	assert_int_equal(redis_ask(&w->redis, "DEL %s", name), 1);
}

/* Lookups are monotone: no block is there without the block before it. */
TEST(a_prefetch_ends_at_a_hole)
{
	struct shared *w = shared_begin(NULL, NULL, KVTIER_CODEC_FP8);

	node_store_through(&w->a, w->keys, N);
	take_out(w, HALF);
	assert_int_equal(node_prefetch(&w->b, w->keys, N), HALF);
	assert_int_equal(engine_lookup(&w->b.e, w->keys, N), HALF);
	for (uint32_t i = HALF; i < N; i++)
		assert_int_equal(engine_lookup(&w->b.e, &w->keys[i], 1), 0);
	shared_end(w);
}

/* A load gives present blocks, and keeps blocks that are under their parent. */
TEST(a_load_passes_over_a_hole)
{
	struct shared *w = shared_begin(NULL, NULL, KVTIER_CODEC_FP8);

	node_store_through(&w->a, w->keys, N);
	take_out(w, HALF);
	assert_int_equal(chain_load(&w->b.e, w->keys, 0, N), N - 1);
	assert_int_equal(engine_lookup(&w->b.e, w->keys, N), HALF);
	for (uint32_t i = HALF; i < N; i++)
		assert_int_equal(engine_lookup(&w->b.e, &w->keys[i], 1), 0);
	shared_end(w);
}

/* The first half is B's own, stored by its engine; the rest is brought from Redis, under it. */
TEST(a_chain_goes_on_in_redis)
{
	struct shared *w = shared_begin(NULL, NULL, KVTIER_CODEC_FP8);

	node_store_through(&w->a, w->keys, N);
	assert_int_equal(chain_store(&w->b.e, w->keys, 0, HALF), 0);
	assert_int_equal(node_prefetch(&w->b, w->keys, N), N);
	assert_int_equal(engine_lookup(&w->b.e, w->keys, N), N);
	assert_int_equal(chain_load(&w->b.e, w->keys, 0, N), N);
	shared_end(w);
}

/* Many at once want the same absent chain: all get it, once kept. */
TEST(loads_of_the_same_chain_meet)
{
	struct shared *w = shared_begin(NULL, NULL, KVTIER_CODEC_FP8);
	enum { OPS = 8, PART = SHARED_PAGES / OPS };
	uint64_t ops[OPS];

	node_store_through(&w->a, w->keys, N);
	for (uint32_t i = 0; i < OPS; i++)
		ops[i] = node_load_begin(&w->b, w->keys, i * PART, PART, 0);
	for (uint32_t i = 0; i < OPS; i++)
		assert_int_equal(node_load_end(&w->b, ops[i], w->keys, i * PART, PART, -ENOENT),
				 PART);
	assert_int_equal(engine_lookup(&w->b.e, w->keys, N), PART);
	node_owes_nothing(&w->b);
	shared_end(w);
}

/* --- and on --- */

/* Redis is gone when it is read again. */
TEST(what_came_goes_on_to_nvme)
{
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_RAW);
	struct shared *w;

	disk_need("threads");
	w = shared_begin(NULL, "[nvme]\nbytes = 64M\nsegment_bytes = 4M\nio = threads\n",
			 KVTIER_CODEC_RAW);
	node_store_through(&w->a, w->keys, N);
	assert_int_equal(node_prefetch(&w->b, w->keys, N), N);
	disk_flush(&w->b.d);
	node_die(&w->b, SIGKILL);
	redis_kill(&w->redis);
	node_live(&w->b);
	node_join(&w->b, &g);
	assert_int_equal(engine_lookup(&w->b.e, w->keys, N), N);
	assert_int_equal(chain_load(&w->b.e, w->keys, 0, N), N);
	stat_is(&w->b, "tiers.nvme.hit_blocks_total", N);
	shared_end(w);
}

TEST_BEGIN
{
	redis_needed();
}
