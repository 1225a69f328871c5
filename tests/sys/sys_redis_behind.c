/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait */
/* make: wrap=clock_gettime,epoll_wait needs=kvtierd_clock (the test holds the clock) */
/*
 * sys_redis_behind.c - goal: ops wait behind another op that brings the same block from Redis
 * (flight.c), and go on. So do more ops than one turn of the loop lets go on, and ops behind one
 * that has the block and waits for a server that hangs. Method: a real kvtierd and real
 * redis-servers that are stopped. sys_redis_joined.c shows that joining saves requests.
 */
#include "tests/lib/lib_shared.h"
#include "tests/lib/test.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

enum { OPS = 12, BLOCKS = 500, ROUNDS = 12, WAIT_MS = 15000 };

static void wait_for(struct node *n, uint64_t op, int32_t *statuses)
{
	struct kvtier_result result = { .size = sizeof(result),
					.blocks = statuses,
					.blocks_max = BLOCKS };

	memset(statuses, 0x7f, BLOCKS * sizeof(*statuses));
	assert_int_equal(kvtier_wait(n->e.client, op, 2 * WAIT_MS, &result), 0);
}

/* Thousands of parts that want one block, while it comes from Redis, is not kept, and is stored by
 * another. */
TEST(a_crowd_goes_on)
{
	const struct kvtier_op_options options = { .size = sizeof(options), .timeout_ms = WAIT_MS };
	struct shared *w = shared_begin_in(NULL, "timeout_ms = 20000\n[device]\ndepth = 4096\n",
					   "bytes = 128M\nslab_bytes = 1M", KVTIER_CODEC_RAW);
	static struct kvtier_key keys[BLOCKS], absent;
	static uint32_t pages[BLOCKS];
	static int32_t statuses[BLOCKS];
	const uint32_t page = 2;
	uint64_t ops[OPS], store;

	chain_keys(&w->a.e, 7, 1, &absent);
	node_store_through(&w->a, w->keys, 2);
	for (uint32_t i = 0; i < BLOCKS; i++) {
		keys[i] = i ? w->keys[1] : absent;
		pages[i] = 1;
	}
	for (uint32_t round = 0; round < ROUNDS; round++) {
		redis_signal(&w->redis, SIGSTOP);
		for (uint32_t i = 0; i < OPS; i++)
			assert_int_equal(kvtier_load(w->b.e.space, keys, pages, BLOCKS, &options,
						     &ops[i]),
					 0);
		nap_ms(100);
		redis_signal(&w->redis, SIGCONT);
		nap_ms(round * 3);
		assert_int_equal(kvtier_store(w->b.e.space, &w->keys[1], &page, 1, NULL, &store),
				 0);
		wait_for(&w->b, store, statuses);
		for (uint32_t i = 0; i < OPS; i++) {
			wait_for(&w->b, ops[i], statuses);
			for (uint32_t k = 0; k < BLOCKS; k++)
				assert_true(statuses[k] == -ENOENT || (k > 0 && statuses[k] == 0));
		}
		node_evict(&w->b);
	}
	shared_end(w);
}

/* Neighbours of the chain, at one server each; how far along it. */
static uint32_t at_two_servers(const struct redis_server servers[2], const struct kvtier_key *keys)
{
	char name[2][SHARED_NAME];

	for (uint32_t i = 0; i + 1 < SHARED_BLOCKS; i++) {
		shared_name("kvtier:", &keys[i], name[0]);
		shared_name("kvtier:", &keys[i + 1], name[1]);
		if (redis_ask(&servers[0], "EXISTS %s", name[0]) == 1 &&
		    redis_ask(&servers[1], "EXISTS %s", name[1]) == 1)
			return i;
	}
	fail_msg("all of a chain is at one server");
	return 0;
}

/* The first op's second block came at once, and waits to be kept under its first, whose server
 * hangs. */
TEST(a_hung_server_holds_only_its_own)
{
	static struct redis_server servers[2];
	static struct node a, b;
	struct kvtier_key keys[SHARED_BLOCKS];
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_RAW);
	char ends[2 * REDIS_TEST_PATH];
	uint64_t both, second;
	uint32_t at;

	redis_start(&servers[0], NULL);
	redis_start(&servers[1], NULL);
	(void)snprintf(ends, sizeof(ends), "%s %s", servers[0].address, servers[1].address);
	node_place(&a, &(struct node_conf){ .endpoints = ends, .lines = "timeout_ms = 20000" });
	node_place(&b, &(struct node_conf){ .endpoints = ends, .lines = "timeout_ms = 20000" });
	node_live(&a);
	node_live(&b);
	node_join(&a, &g);
	node_join(&b, &g);
	chain_keys(&a.e, 1, SHARED_BLOCKS, keys);
	node_store_through(&a, keys, SHARED_BLOCKS);
	at = at_two_servers(servers, keys);
	redis_signal(&servers[0], SIGSTOP);
	both = node_load_begin(&b, &keys[at], 0, 2, 0);
	nap_ms(100);
	second = node_load_begin(&b, &keys[at + 1], 4, 1, 5000);
	assert_int_equal(node_load_end(&b, second, &keys[at + 1], 4, 1, -ENOENT), 1);
	redis_signal(&servers[0], SIGCONT);
	assert_int_equal(node_load_end(&b, both, &keys[at], 0, 2, -ENOENT), 2);
	node_owes_nothing(&b);
	node_end(&a);
	node_end(&b);
	redis_stop(&servers[0]);
	redis_stop(&servers[1]);
}

TEST_BEGIN
{
	redis_needed();
}
