/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sys_turns.c - goal: the slabs that are cleared for one client's stores, which costs the core a
 * hundred evictions and more a block, do not stand between the blocks of another client's load.
 * Method: memory full of old small blocks, and of large ones for which slabs of the small ones have
 * to be cleared; the daemon stands still until a store of large blocks and a load of small ones are
 * in their rings. The debug log says which slabs were cleared between the load's blocks.
 */
#include "tests/lib/lib.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

/* Of 8 MiB slabs, 8 in all: six of small images, of 8 KiB, and two of large ones, of 132 KiB. */
enum { SMALL_A_SLAB = 1024, LARGE_A_SLAB = 62 };
enum { CHAIN = 32, CHAINS = 6 * SMALL_A_SLAB / CHAIN, LOADED = 16, STORED = 8 };
enum { LARGE_CHAIN = 31, LARGE_CHAINS = 2 * LARGE_A_SLAB / LARGE_CHAIN };

static const char config[] = "[host]\nbytes = 64M\nslab_bytes = 8M\nhuge_pages = no\n"
			     "[daemon]\nlog_level = debug\n";

struct world {
	struct daemon d;
	struct engine stores, loads;
};

/* Every slot has a block, and the next large one begins to clear a slab. */
static void fill(struct world *w)
{
	struct kvtier_key keys[CHAIN];

	for (uint32_t i = 0; i < CHAINS; i++) {
		chain_keys(&w->loads, i, CHAIN, keys);
		assert_int_equal(chain_store(&w->loads, keys, 0, CHAIN), 0);
	}
	for (uint32_t i = 0; i < LARGE_CHAINS; i++) {
		chain_keys(&w->stores, i, LARGE_CHAIN, keys);
		assert_int_equal(chain_store(&w->stores, keys, 0, LARGE_CHAIN), 0);
	}
	daemon_stat_becomes(&w->d, "tiers.host.blocks", CHAINS * CHAIN + 2 * LARGE_A_SLAB,
			    PATIENT_MS);
	assert_int_equal(daemon_stat(&w->d, "tiers.host.evicted_blocks_total"), 0);
	chain_keys(&w->stores, LARGE_CHAINS, 1, keys);
	assert_int_equal(chain_store(&w->stores, keys, 0, 1), 0);
	daemon_stat_reaches(&w->d, "tiers.host.evicted_blocks_total", 100);
}

/* Both are in their rings before the daemon sees one of them. */
static void both_at_once(struct world *w)
{
	struct kvtier_result result = { .size = sizeof(result) };
	struct kvtier_key stored[STORED], loaded[LOADED];
	uint32_t pages[STORED];
	uint64_t store, load;

	chain_keys(&w->stores, LARGE_CHAINS + 1, STORED, stored);
	chain_keys(&w->loads, CHAINS - 1, LOADED, loaded);
	pages_from(0, pages, STORED);
	for (uint32_t i = 0; i < STORED; i++)
		page_fill(&w->stores, i, &stored[i], 0);
	daemon_signal(&w->d, SIGSTOP);
	assert_int_equal(kvtier_store(w->stores.space, stored, pages, STORED, NULL, &store), 0);
	load = chain_load_begin(&w->loads, loaded, 0, LOADED, 0);
	daemon_signal(&w->d, SIGCONT);
	assert_int_equal(chain_load_end(&w->loads, load, loaded, 0, LOADED, -ENOENT), LOADED);
	assert_int_equal(kvtier_wait(w->stores.client, store, -1, &result), 0);
	assert_int_equal(result.ok, STORED);
}

/* How often a turn's evictions were used up after the load's first block began and before its last
 * did. */
static uint32_t batches_between(const struct daemon *d)
{
	uint32_t looked_up = 0, ret = 0;
	char path[128], line[2048];
	FILE *f;

	(void)snprintf(path, sizeof(path), "%s/log", d->dir);
	f = fopen(path, "re");
	assert_non_null(f);
	while (looked_up < LOADED && fgets(line, sizeof(line), f)) {
		looked_up += strstr(line, ": lookup") != NULL;
		ret += looked_up > 0 && strstr(line, "evicted to clear a slab") != NULL;
	}
	(void)fclose(f);
	assert_int_equal(looked_up, LOADED);
	return ret;
}

/* Each of the eight large blocks would clear as many by itself. The load may begin in one turn and
 * go on in the next. */
TEST(a_load_waits_for_the_evictions_of_a_turn)
{
	const struct kvtier_geometry small = tiny_geometry(KVTIER_CODEC_FP8),
				     large = large_geometry(KVTIER_CODEC_RAW);
	static struct world w;

	daemon_start(&w.d, config);
	engine_open(&w.loads, w.d.socket, "loads", &small, CHAIN);
	engine_open(&w.stores, w.d.socket, "stores", &large, CHAIN);
	fill(&w);
	both_at_once(&w);
	assert_in_range(batches_between(&w.d), 0, 2);
	engine_close(&w.loads);
	engine_close(&w.stores);
	daemon_remove(&w.d);
}
