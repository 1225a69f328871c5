/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sys_evict.c - goal: a full host tier forgets the tails of the least recent chains first, counts
 * the forgotten blocks, gives every block size its room, and empties on request without harm to
 * loads under way. Method: more chains than fit.
 */
#include "tests/lib/lib.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { LENGTH = 32, CHAINS = 40, PAGES = 2 * LENGTH, BIG = 128 };

/* A raw tiny block takes 12 KiB: 1 MiB holds at most 85 of them, 2.6 chains. */
static const char config[] = "[host]\nbytes = 1M\nslab_bytes = 256K\nhuge_pages = no\n";

static void chains_store(struct engine *e, uint32_t first, uint32_t n)
{
	struct kvtier_key keys[LENGTH];

	for (uint32_t i = 0; i < n; i++) {
		chain_keys(e, first + i, LENGTH, keys);
		assert_int_equal(chain_store(e, keys, 0, LENGTH), 0);
	}
}

static uint32_t present(struct engine *e, uint32_t chain)
{
	struct kvtier_key keys[LENGTH];

	chain_keys(e, chain, LENGTH, keys);
	return engine_lookup(e, keys, LENGTH);
}

/* The present blocks are a prefix, and as many load as lookup says. */
static uint32_t prefix_loads(struct engine *e, uint32_t chain)
{
	struct kvtier_key keys[LENGTH];
	uint32_t n;

	chain_keys(e, chain, LENGTH, keys);
	n = engine_lookup(e, keys, LENGTH);
	for (uint32_t i = n; i < LENGTH; i++)
		assert_int_equal(engine_lookup(e, &keys[i], 1), 0);
	assert_int_equal(chain_load(e, keys, LENGTH, LENGTH), n);
	return n;
}

TEST(a_chains_head_outlives_its_tail)
{
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_RAW);
	uint32_t partial = 0;
	struct engine e;
	struct daemon d;

	daemon_start(&d, config);
	engine_open(&e, d.socket, "engine", &g, PAGES);
	for (uint32_t i = 0; i < CHAINS; i++) {
		chains_store(&e, i, 1);
		for (uint32_t k = 0; k <= i; k++)
			partial += present(&e, k) > 0 && present(&e, k) < LENGTH;
		for (uint32_t k = i < 3 ? 0 : i - 3; k <= i; k++)
			(void)prefix_loads(&e, k);
		assert_int_equal(present(&e, i), LENGTH); /* the newest is whole */
	}
	assert_true(partial > 0);
	engine_close(&e);
	daemon_remove(&d);
}

TEST(the_least_recent_chain_goes_first)
{
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_RAW);
	struct engine e;
	struct daemon d;

	daemon_start(&d, config);
	engine_open(&e, d.socket, "engine", &g, PAGES);
	chains_store(&e, 0, 2);
	assert_int_equal(prefix_loads(&e, 0), LENGTH); /* now 1 is the older one */
	chains_store(&e, 2, 1);
	assert_int_equal(present(&e, 0), LENGTH);
	assert_true(present(&e, 1) < LENGTH);
	engine_close(&e);
	daemon_remove(&d);
}

TEST(counters_balance)
{
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_RAW);
	uint32_t blocks = 0;
	struct engine e;
	struct daemon d;

	daemon_start(&d, config);
	engine_open(&e, d.socket, "engine", &g, PAGES);
	chains_store(&e, 0, CHAINS);
	assert_int_equal(daemon_stat(&d, "store.blocks_total"), CHAINS * LENGTH);
	assert_int_equal(daemon_stat(&d, "store.dropped_blocks_total"), 0);
	for (uint32_t i = 0; i < CHAINS; i++)
		blocks += present(&e, i);
	daemon_stat_becomes(&d, "tiers.host.blocks", blocks, PATIENT_MS);
	daemon_stat_becomes(&d, "tiers.host.evicted_blocks_total", CHAINS * LENGTH - blocks,
			    PATIENT_MS);
	assert_true(daemon_stat(&d, "tiers.host.used_bytes") <=
		    daemon_stat(&d, "tiers.host.capacity_bytes"));
	engine_close(&e);
	daemon_remove(&d);
}

TEST(another_block_size_gets_room)
{
	const struct kvtier_geometry tiny = tiny_geometry(KVTIER_CODEC_RAW),
				     large = large_geometry(KVTIER_CODEC_RAW);
	struct kvtier_key keys[2];
	struct engine a, b;
	struct daemon d;

	daemon_start(&d, config);
	engine_open(&a, d.socket, "tiny", &tiny, PAGES);
	engine_open(&b, d.socket, "large", &large, 8);
	chains_store(&a, 0, 8); /* every slab is the tiny ones' */
	chain_keys(&b, 1, 2, keys);
	assert_int_equal(chain_store(&b, keys, 0, 2), 0);
	assert_int_equal(chain_load(&b, keys, 4, 2), 2);
	chains_store(&a, 8, 8); /* and back again */
	assert_int_equal(present(&a, 15), LENGTH);
	engine_close(&a);
	engine_close(&b);
	daemon_remove(&d);
}

/* Every other short chain is old, so the blocks that are evicted for a large one lie in all slabs.
 * The others in the slab that it gets have to move. */
TEST(what_is_in_a_slab_that_others_get_moves)
{
	const struct kvtier_geometry tiny = tiny_geometry(KVTIER_CODEC_RAW),
				     large = large_geometry(KVTIER_CODEC_RAW);
	enum { SHORT = 4, N = 20 };
	struct kvtier_key keys[SHORT];
	struct engine a, b;
	struct daemon d;

	daemon_start(&d, config);
	engine_open(&a, d.socket, "tiny", &tiny, PAGES);
	engine_open(&b, d.socket, "large", &large, 8);
	for (uint32_t i = 0; i < N; i++) {
		chain_keys(&a, i, SHORT, keys);
		assert_int_equal(chain_store(&a, keys, 0, SHORT), 0);
	}
	for (uint32_t i = 0; i < N; i += 2) {
		chain_keys(&a, i, SHORT, keys);
		assert_int_equal(chain_load(&a, keys, LENGTH, SHORT), SHORT);
	}
	chain_keys(&b, 1, 1, keys);
	assert_int_equal(chain_store(&b, keys, 0, 1), 0);
	assert_int_equal(chain_load(&b, keys, 4, 1), 1);
	for (uint32_t i = 0; i < N; i += 2) {
		chain_keys(&a, i, SHORT, keys);
		assert_int_equal(chain_load(&a, keys, LENGTH, SHORT), SHORT);
	}
	daemon_stat_reaches(&d, "tiers.host.moved_blocks_total", 1);
	engine_close(&a);
	engine_close(&b);
	daemon_remove(&d);
}

TEST(evict_all_empties)
{
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_RAW);
	struct engine e;
	struct daemon d;
	char out[512];

	daemon_start(&d, config);
	engine_open(&e, d.socket, "engine", &g, PAGES);
	chains_store(&e, 0, 3);
	assert_int_equal(daemon_ctl(&d, "evict --all", out, sizeof(out)), 0);
	daemon_stat_becomes(&d, "tiers.host.used_bytes", 0, PATIENT_MS);
	daemon_stat_becomes(&d, "tiers.host.blocks", 0, PATIENT_MS);
	daemon_stat_becomes(&d, "index.entries", 0, PATIENT_MS);
	assert_int_equal(present(&e, 2), 0);
	chains_store(&e, 2, 1);
	assert_int_equal(prefix_loads(&e, 2), LENGTH);
	engine_close(&e);
	daemon_remove(&d);
}

/* Blocks being loaded are pinned: evicting all meanwhile neither frees nor changes them. */
TEST(loads_under_way_are_not_evicted_from)
{
	const struct kvtier_geometry g = large_geometry(KVTIER_CODEC_RAW);
	static struct kvtier_key keys[BIG];
	static int32_t blocks[BIG];
	uint32_t pages[BIG], whole = 0;
	struct engine e;
	struct daemon d;
	char out[512];

	daemon_start(&d,
		     "[host]\nbytes = 32M\nslab_bytes = 2M\nhuge_pages = no\n[device]\nworkers = "
		     "1\nkernels = ref\n");
	engine_open(&e, d.socket, "engine", &g, 2 * BIG);
	chain_keys(&e, 1, BIG, keys);
	pages_from(BIG, pages, BIG);
	for (int round = 0; round < 10; round++) {
		struct kvtier_result result = { .size = sizeof(result),
						.blocks = blocks,
						.blocks_max = BIG };
		uint64_t op;

		assert_int_equal(chain_store(&e, keys, 0, BIG), 0);
		for (uint32_t i = 0; i < BIG; i++)
			page_poison(&e, pages[i]);
		assert_int_equal(kvtier_load(e.space, keys, pages, BIG, NULL, &op), 0);
		assert_int_equal(daemon_ctl(&d, "evict --all", out, sizeof(out)), 0);
		assert_int_equal(kvtier_wait(e.client, op, -1, &result), 0);
		for (uint32_t i = 0; i < BIG; i++) {
			assert_true(blocks[i] == 0 || blocks[i] == -ENOENT);
			assert_true(blocks[i] == 0 ? page_is(&e, pages[i], &keys[i], 0) :
						     page_is_poison(&e, pages[i]));
			whole += blocks[i] == 0;
		}
	}
	assert_true(whole > 0);
	engine_close(&e);
	daemon_remove(&d);
}

/* The host tier has room for all three chains' blocks, the table of blocks does not. */
TEST(a_full_table_makes_room_too)
{
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_RAW);
	struct engine e;
	struct daemon d;

	daemon_start(
		&d, "[host]\nbytes = 4M\nslab_bytes = 256K\nhuge_pages = no\n[index]\nmax_blocks = "
		    "64\n");
	engine_open(&e, d.socket, "engine", &g, PAGES);
	chains_store(&e, 0, 3);
	assert_int_equal(present(&e, 2), LENGTH);
	assert_true(present(&e, 0) < LENGTH);
	assert_int_equal(daemon_stat(&d, "store.dropped_blocks_total"), 0);
	engine_close(&e);
	daemon_remove(&d);
}
