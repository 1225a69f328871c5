/* SPDX-License-Identifier: Apache-2.0 */
/* make: seconds=15 lane=wait no=thread (the daemon's threads run in others) */
/* make: wrap=clock_gettime,epoll_wait needs=kvtierd_clock (the test holds the clock) */
/*
 * sys_redis_cluster.c - goal: a Redis Cluster is one cache: blocks that one node's engine stored
 * through it, another node's engine finds; while slots move and masters change, every block of
 * every op is right or a miss, and afterwards all is as before. Method: two real kvtierd, a real
 * Cluster of three masters with a replica each; threads that store and load all the time.
 */
#include "tests/lib/lib_shared.h"
#include "tests/lib/test.h"

#include <stdio.h>
#include <string.h>

enum { N = SHARED_BLOCKS, MASTERS = 3, AROUND_MS = 1000, MOVED_SLOTS = 200 };

static const char lines[] = "timeout_ms = 3000";

static struct redis_cluster_rig rig;
static struct node a, b;
static struct kvtier_key keys[N];

FIXTURE(set_up)
{
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_RAW);
	char seeds[2 * REDIS_TEST_PATH];

	redis_cluster_start(&rig, NULL);
	(void)snprintf(seeds, sizeof(seeds), "%s %s", rig.server[0].address, rig.server[1].address);
	node_place(&a,
		   &(struct node_conf){ .endpoints = seeds, .host = SHARED_TIGHT, .lines = lines });
	/* a replica is a seed as good as any */
	node_place(&b, &(struct node_conf){ .endpoints = rig.server[5].address,
					    .host = SHARED_TIGHT,
					    .lines = lines });
	node_live(&a);
	node_live(&b);
	node_join(&a, &g);
	node_join(&b, &g);
	node_becomes(&a, "up", SHARED_MS);
	node_becomes(&b, "up", SHARED_MS);
	chain_keys(&a.e, 1, N, keys);
	return 0;
}

FIXTURE(tear_down)
{
	node_owes_nothing(&a);
	node_owes_nothing(&b);
	node_end(&a);
	node_end(&b);
	redis_cluster_stop(&rig);
	return 0;
}

/* --- at rest --- */

TEST(what_a_stored_b_finds)
{
	node_store_through(&a, keys, N);
	assert_int_equal(node_prefetch(&b, keys, N), N);
	assert_int_equal(chain_load(&b.e, keys, 0, N), N);
}

TEST(all_masters_have_a_part)
{
	for (uint32_t i = 0; i < MASTERS; i++)
		assert_in_range(redis_ask(&rig.server[i], "DBSIZE"), 1, N - 1);
	daemon_stat_becomes(&a.d, "tiers.redis.endpoints", MASTERS, SHARED_MS);
	daemon_stat_becomes(&a.d, "tiers.redis.usable_endpoints", MASTERS, SHARED_MS);
}

TEST(endpoints_are_the_masters)
{
	daemon_stat_becomes(&b.d, "tiers.redis.usable_endpoints", MASTERS, SHARED_MS);
	assert_int_equal(daemon_ctl(&b.d, "endpoints", b.text, sizeof(b.text)), 0);
	for (uint32_t i = 0; i < MASTERS; i++)
		assert_non_null(strstr(b.text, rig.server[i].address));
}

/* --- under load --- */

static struct shared_load stores, loads;

static void load_begin(void)
{
	shared_load_begin(&stores, &a, true);
	shared_load_begin(&loads, &b, false);
	nap_ms(AROUND_MS);
}

static void load_end(void)
{
	nap_ms(AROUND_MS);
	shared_load_end(&stores);
	shared_load_end(&loads);
	assert_true(loads.hits > 0);
	shared_works_again(&a, &b);
}

static uint64_t followed(const struct node *n)
{
	return daemon_stat(&n->d, "tiers.redis.redirects_total") +
	       daemon_stat(&n->d, "tiers.redis.topology_changes_total");
}

TEST(slots_move_under_load)
{
	const uint64_t before = followed(&b);

	load_begin();
	redis_cluster_move(&rig, 0, 1, MOVED_SLOTS);
	redis_cluster_move(&rig, 2, 0, MOVED_SLOTS);
	load_end();
	assert_true(followed(&b) > before);
	daemon_stat_becomes(&b.d, "tiers.redis.corrupt_blocks_total", 0, SHARED_MS);
}

/* The master that was is told, and redirects. */
TEST(a_replica_takes_over_under_load)
{
	const uint64_t before = followed(&b);

	load_begin();
	(void)redis_cluster_failover(&rig, 2);
	load_end();
	assert_true(followed(&b) > before);
}

TEST(a_master_dies_under_load)
{
	const uint64_t before = followed(&b);

	load_begin();
	redis_kill(&rig.server[1]);
	nap_ms(AROUND_MS);
	(void)redis_cluster_failover(&rig, 1);
	load_end();
	assert_true(followed(&b) > before);
	node_becomes(&b, "up", 3 * SHARED_MS);
}

TEST_GROUP(set_up, tear_down);

TEST_BEGIN
{
	redis_needed();
}
