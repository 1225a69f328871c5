/* SPDX-License-Identifier: Apache-2.0 */
/* make: wrap=clock_gettime,epoll_wait needs=kvtierd_clock (the test holds the clock) */
/*
 * regr_11_11_absent_keys.c - goal: loads of keys that nobody has cost nobody a block, though a
 * Redis has to be asked for each. Slots were taken for what it might have before it was asked:
 * others' blocks were evicted for nothing. Method: a real kvtierd, a real Redis. One engine fills
 * host memory with small blocks. Another, with larger ones, loads thousands of random keys; then
 * all of the first one's blocks must still be there. What Redis does have still comes, and is kept.
 * The same for users of Redis who may not ask for a header (GETRANGE), nor for a length (STRLEN):
 * for the latter nothing comes where no memory is free.
 */
#include "tests/lib/lib_shared.h"
#include "tests/lib/test.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { CHAINS = 20, CHAIN = 30, ABSENT = 4096, AN_OP = 64 };

static struct kvtier_key keys[CHAINS][CHAIN], absent[AN_OP];

/* 600 blocks, of which 4M hold 300 to 340: nothing is free then. */
static void fill(struct node *n)
{
	for (uint32_t i = 0; i < CHAINS; i++) {
		chain_keys(&n->e, 100 + i, CHAIN, keys[i]);
		assert_int_equal(chain_store(&n->e, keys[i], 0, CHAIN), 0);
	}
}

static uint32_t present(struct node *n)
{
	uint32_t ret = 0;

	for (uint32_t i = 0; i < CHAINS; i++)
		ret += engine_lookup(&n->e, keys[i], CHAIN);
	return ret;
}

static void loads_of_what_nobody_has(struct engine *e)
{
	uint32_t pages[AN_OP];

	pages_from(0, pages, AN_OP);
	for (uint32_t i = 0; i < ABSENT; i += AN_OP) {
		int32_t blocks[AN_OP];

		chain_keys(e, 1000000 + i, AN_OP, absent);
		assert_int_equal(engine_load(e, absent, pages, AN_OP, blocks), -ENOENT);
		for (uint32_t k = 0; k < AN_OP; k++)
			assert_int_equal(blocks[k], -ENOENT);
	}
}

/* Memory is full of one engine's blocks; Redis has them, and a large one of the other engine's. */
static struct shared *begin(struct engine *other)
{
	const struct kvtier_geometry small = tiny_geometry(KVTIER_CODEC_RAW),
				     large = large_geometry(KVTIER_CODEC_RAW);
	struct shared *w = shared_world();

	redis_start(&w->redis, NULL);
	node_place(&w->a, &(struct node_conf){ .endpoints = w->redis.address,
					       .host = "bytes = 4M\nslab_bytes = 256K" });
	node_live(&w->a);
	node_join(&w->a, &small);
	engine_open(other, w->a.d.socket, "other", &large, AN_OP);
	chain_keys(other, 1, 1, absent);
	assert_int_equal(chain_store(other, absent, 0, 1), 0);
	shared_asks_until(&w->redis, 1, "DBSIZE");
	node_evict(&w->a);
	fill(&w->a);
	daemon_stat_becomes(&w->a.d, "tiers.redis.queued_blocks", 0, SHARED_MS);
	assert_in_range(present(&w->a), 250, 340);
	return w;
}

/* For this value room is made: a few slabs of the other's at most. */
static void what_redis_has_comes(struct shared *w, struct engine *other, uint32_t before)
{
	chain_keys(other, 1, 1, absent);
	assert_int_equal(chain_load(other, absent, 0, 1), 1);
	assert_int_equal(engine_lookup(other, absent, 1), 1);
	assert_in_range(present(&w->a), before - 44, before - 1);
}

static void nobody_is_evicted(struct shared *w, struct engine *other, uint32_t before)
{
	loads_of_what_nobody_has(other);
	printf("%u random keys loaded: of %u blocks of another engine %u are there\n", ABSENT,
	       before, present(&w->a));
	assert_int_equal(present(&w->a), before);
}

TEST(absent_keys_evict_nobody)
{
	struct engine other;
	struct shared *w = begin(&other);
	const uint32_t before = present(&w->a);

	nobody_is_evicted(w, &other, before);
	what_redis_has_comes(w, &other, before);
	assert_int_equal(daemon_stat(&w->a.d, "tiers.redis.unasked_blocks_total"), 0);
	engine_close(&other);
	shared_end(w);
}

static void forbid(struct shared *w, const char *commands)
{
	char reply[64];

	redis_say(&w->redis, reply, sizeof(reply), "ACL SETUSER default %s", commands);
	assert_string_equal(reply, "OK");
}

TEST(without_getrange_the_length_is_asked)
{
	struct engine other;
	struct shared *w = begin(&other);
	const uint32_t before = present(&w->a);

	forbid(w, "-getrange");
	nobody_is_evicted(w, &other, before);
	what_redis_has_comes(w, &other, before);
	assert_int_equal(daemon_stat(&w->a.d, "tiers.redis.unasked_blocks_total"), 0);
	engine_close(&other);
	shared_end(w);
}

/* Then a load into full memory is a miss, which is counted. */
TEST(a_user_who_may_not_ask_evicts_nobody)
{
	struct engine other;
	struct shared *w = begin(&other);
	const uint32_t before = present(&w->a);

	forbid(w, "-getrange -strlen");
	nobody_is_evicted(w, &other, before);
	daemon_stat_becomes(&w->a.d, "tiers.redis.unasked_blocks_total", ABSENT, SHARED_MS);
	chain_keys(&other, 1, 1, absent);
	assert_int_equal(chain_load(&other, absent, 0, 1), 0);
	daemon_stat_becomes(&w->a.d, "tiers.redis.unasked_blocks_total", ABSENT + 1, SHARED_MS);
	assert_int_equal(present(&w->a), before);
	node_evict(&w->a); /* now there is room */
	assert_int_equal(chain_load(&other, absent, 0, 1), 1);
	engine_close(&other);
	shared_end(w);
}

TEST_BEGIN
{
	redis_needed();
}
