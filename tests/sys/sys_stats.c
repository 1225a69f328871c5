/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sys_stats.c - goal: the page of `kvtierctl stats` shows an engine's ops on a live daemon. Method:
 * an engine stores, looks up, loads and misses known numbers of blocks, and the page is read before
 * and after.
 */
#include "tests/lib/lib.h"

#include <stdio.h>
#include <string.h>

enum { BLOCKS = 8, MISSED = 8 };

static char out[1 << 14];

static void page_says(const struct daemon *d, const char *arguments, const char *words)
{
	assert_int_equal(daemon_ctl(d, arguments, out, sizeof(out)), 0);
	if (!strstr(out, words))
		fail_msg("\"%s\" is not in: %s", words, out);
}

TEST(the_page_tells_what_an_engine_did)
{
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_RAW);
	uint32_t pages[BLOCKS + MISSED];
	struct kvtier_key keys[BLOCKS + MISSED];
	const char *load, *store;
	struct daemon d;
	struct engine e;

	daemon_start(&d, "[host]\nbytes = 1M\nslab_bytes = 256K\nhuge_pages = no\n");
	page_says(&d, "stats", "Nothing was loaded, stored or looked up since the start");
	engine_open(&e, d.socket, "engine", &g, BLOCKS + MISSED);
	chain_keys(&e, 1, BLOCKS + MISSED, keys);
	for (uint32_t i = 0; i < BLOCKS + MISSED; i++)
		page_fill(&e, pages[i] = i, &keys[i], 1);
	assert_int_equal(engine_store(&e, keys, pages, BLOCKS, NULL, NULL), 0);
	assert_int_equal(engine_lookup(&e, keys, BLOCKS + MISSED), BLOCKS);
	(void)engine_load(&e, keys, pages, BLOCKS, NULL);
	(void)engine_load(&e, keys, pages, BLOCKS + MISSED, NULL);
	page_says(&d, "stats", "OK: kvtierd ");
	daemon_stat_becomes(&d, "spaces", 1, PATIENT_MS); /* with a heartbeat */
	daemon_stat_becomes(&d, "lookup.requested_blocks_total", BLOCKS + MISSED, PATIENT_MS);
	page_says(&d, "stats", "Hit rate: 50.0 % of 16 blocks that were looked up.");
	daemon_stat_becomes(&d, "load.ops_total", 2, PATIENT_MS);
	page_says(&d, "stats", "1 client, 1 space, ");
	load = strstr(out, "\nload ");
	store = strstr(out, "\nstore ");
	assert_true(load && store);
	/* ops, blocks; a time that no op took would be "-" */
	assert_memory_equal(load + strspn(load + 1, "load ") + 1, "2      16  ", 11);
	assert_memory_equal(store + strspn(store + 1, "store ") + 1, "1       8  ", 11);
	assert_null(strstr(load, " - ")); /* a host tier has a fill */
	assert_true(daemon_stat(&d, "load.p50_us") <= daemon_stat(&d, "load.p99_us"));
	assert_int_equal(daemon_stat(&d, "load.blocks_total"), 2 * BLOCKS);
	page_says(&d, "stats --watch=0.1 --count 2",
		  "Nothing was loaded, stored or looked up in the last ");
	page_says(&d, "stats --all", "load.p99_us");
	engine_close(&e);
	daemon_remove(&d);
}
