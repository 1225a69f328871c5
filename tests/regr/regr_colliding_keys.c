/* SPDX-License-Identifier: Apache-2.0 */
/*
 * regr_colliding_keys.c - goal: a client cannot choose keys that keep another's blocks out of the
 * index, or that empty it. Method: a bystander stores a chain. For each key of a victim an attacker
 * stores tiny blocks whose keys begin like it; then the victim stores its chain. Every store must
 * succeed, nobody's block may be evicted, all of them must load.
 */
#include "tests/lib/lib.h"

enum { VICTIM = 16, BYSTANDER = 64, COLLIDING = 24, BATCH = VICTIM * COLLIDING };

/* 16 tokens of one head with one value each: 64 bytes a block. */
static struct kvtier_geometry least_geometry(void)
{
	struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_RAW);

	g.model = "attacker@1";
	g.layers = g.kv_heads = 1;
	g.head_dim_k = g.head_dim_v = 1;
	return g;
}

static void keys_like(const struct kvtier_key *victim, struct kvtier_key *ret)
{
	for (uint32_t i = 0; i < BATCH; i++) {
		random_key(i, ret[i].bytes);
		memcpy(ret[i].bytes, victim[i / COLLIDING].bytes, 16);
	}
}

TEST(keys_that_begin_alike_harm_nobody)
{
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_RAW), least = least_geometry();
	static struct kvtier_key keys[VICTIM], other[BYSTANDER], colliding[BATCH];
	struct engine victim, bystander, attacker;
	uint32_t refused = 0;
	struct daemon d;

	daemon_start(&d, HOST("16M", "256K"));
	engine_open(&bystander, d.socket, "bystander", &g, BYSTANDER);
	engine_open(&victim, d.socket, "victim", &g, VICTIM);
	engine_open(&attacker, d.socket, "attacker", &least, 1);
	chain_keys(&bystander, 1, BYSTANDER, other);
	chain_keys(&victim, 2, VICTIM, keys);
	assert_int_equal(chain_store(&bystander, other, 0, BYSTANDER), 0);
	keys_like(keys, colliding);
	for (uint32_t i = 0; i < BATCH; i++) {
		page_fill(&attacker, 0, &colliding[i], 0);
		refused += engine_store(&attacker, &colliding[i], (uint32_t[]){ 0 }, 1, NULL,
					NULL) != 0;
	}
	print_message("%u of the attacker's %d blocks were refused\n", refused, BATCH);
	assert_int_equal(chain_store(&victim, keys, 0, VICTIM), 0);
	assert_int_equal(engine_lookup(&victim, keys, VICTIM), VICTIM);
	assert_int_equal(chain_load(&victim, keys, 0, VICTIM), VICTIM);
	assert_int_equal(chain_load(&bystander, other, 0, BYSTANDER), BYSTANDER);
	assert_int_equal(refused, 0);
	daemon_stat_becomes(&d, "tiers.host.blocks", BATCH + VICTIM + BYSTANDER, 20000);
	assert_int_equal(daemon_stat(&d, "tiers.host.evicted_blocks_total"), 0);
	engine_close(&attacker);
	engine_close(&victim);
	engine_close(&bystander);
	daemon_remove(&d);
}
