/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait seconds=12 */
/* make: wrap=clock_gettime,epoll_wait needs=kvtierd_clock (the test holds the clock) */
/*
 * sys_nvme_restart.c - goal: blocks that were written to the NVMe tier are there after the daemon
 * died or stopped, also blocks that do not fit into memory. An engine sees right bytes, and stats
 * say which tier gave them. Method: store, flush, kill -9 (or a clean stop), start again, look up
 * and load; a host tier much smaller than the stored blocks. Each case on both I/O engines.
 */
#include "tests/lib/lib_clock.h"
#include "tests/lib/lib_disk.h"
#include "tests/lib/test.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

enum { TINY = 48, LARGE = 32, CHAINS = 16, LONG = CHAINS * LARGE, LIVES = 4, HEARTBEATS_MS = 600 };

static const char roomy[] = "[host]\nbytes = 32M\nslab_bytes = 2M\nhuge_pages = no\n"
			    "[nvme]\nbytes = 128M\nsegment_bytes = 4M\n";
/* A large raw block takes 132 KiB: 8 MiB hold two chains of 32 at most. On disk a chain takes two
 * segments, since a flush seals the open one. */
static const char narrow[] = "[host]\nbytes = 8M\nslab_bytes = 2M\nhuge_pages = no\n"
			     "[nvme]\nbytes = 256M\nsegment_bytes = 4M\n";

struct world {
	struct daemon d;
	struct engine e;
	struct kvtier_geometry g;
	struct kvtier_key keys[LONG];
};

static struct world w;

static void begin(const char *engine, const char *config, struct kvtier_geometry g, uint32_t pages)
{
	disk_need(engine);
	memset(&w, 0, sizeof(w));
	w.g = g;
	disk_start(&w.d, engine, config);
	engine_open(&w.e, w.d.socket, "engine", &w.g, pages);
}

static void end(void)
{
	engine_close(&w.e);
	daemon_remove(&w.d);
}

/* The daemon ends this way and starts again; so does the engine, as another process would. */
static void live_again(int signal)
{
	const uint32_t pages = w.e.pages;

	engine_close(&w.e);
	daemon_signal(&w.d, signal);
	disk_restart(&w.d);
	engine_open(&w.e, w.d.socket, "engine", &w.g, pages);
}

/* A daemon after kill -9, to which so many blocks of a chain were stored and flushed before. */
static void second_life(const char *engine, uint32_t codec, uint32_t n)
{
	begin(engine, roomy, tiny_geometry(codec), 2 * TINY);
	chain_keys(&w.e, 1, TINY, w.keys);
	assert_int_equal(chain_store(&w.e, w.keys, 0, n), 0);
	disk_flush(&w.d);
	live_again(SIGKILL);
}

/* Some follow with the heartbeat only. */
static void stat_is(const char *path, uint64_t value)
{
	daemon_stat_becomes(&w.d, path, value, PATIENT_MS);
}

/* --- restart --- */

ON_BOTH_ENGINES(flushed_blocks_survive_kill9)
{
	second_life(*state, KVTIER_CODEC_FP8, TINY);
	assert_int_equal(engine_lookup(&w.e, w.keys, TINY), TINY);
	assert_int_equal(chain_load(&w.e, w.keys, TINY, TINY), TINY);
	end();
}

ON_BOTH_ENGINES(a_clean_stop_flushes)
{
	begin(*state, roomy, tiny_geometry(KVTIER_CODEC_RAW), 2 * TINY);
	chain_keys(&w.e, 1, TINY, w.keys);
	assert_int_equal(chain_store(&w.e, w.keys, 0, TINY), 0);
	live_again(SIGTERM);
	assert_int_equal(engine_lookup(&w.e, w.keys, TINY), TINY);
	assert_int_equal(chain_load(&w.e, w.keys, TINY, TINY), TINY);
	end();
}

ON_BOTH_ENGINES(many_lives_lose_nothing)
{
	begin(*state, roomy, tiny_geometry(KVTIER_CODEC_RAW), TINY);
	for (uint32_t life = 0; life < LIVES; life++) {
		for (uint32_t i = 0; i < life; i++) {
			chain_keys(&w.e, i, TINY, w.keys);
			assert_int_equal(chain_load(&w.e, w.keys, 0, TINY), TINY);
		}
		chain_keys(&w.e, life, TINY, w.keys);
		assert_int_equal(chain_store(&w.e, w.keys, 0, TINY), 0);
		disk_flush(&w.d);
		live_again(life % 2 ? SIGTERM : SIGKILL);
	}
	end();
}

ON_BOTH_ENGINES(what_was_not_stored_is_not_there)
{
	second_life(*state, KVTIER_CODEC_RAW, TINY / 2);
	assert_int_equal(engine_lookup(&w.e, w.keys, TINY), TINY / 2);
	assert_int_equal(chain_load(&w.e, w.keys, 0, TINY), TINY / 2);
	end();
}

ON_BOTH_ENGINES(hits_are_the_nvme_tiers_once)
{
	second_life(*state, KVTIER_CODEC_FP8, TINY);
	assert_int_equal(chain_load(&w.e, w.keys, 0, TINY), TINY);
	stat_is("tiers.nvme.hit_blocks_total", TINY);
	stat_is("tiers.host.hit_blocks_total", 0);
	/* promoted by the first load */
	assert_int_equal(chain_load(&w.e, w.keys, 0, TINY), TINY);
	stat_is("tiers.nvme.hit_blocks_total", TINY);
	stat_is("tiers.host.hit_blocks_total", TINY);
	end();
}

static uint32_t tiers_of(size_t n)
{
	struct kvtier_hit hit = { .size = sizeof(hit) };

	assert_int_equal(kvtier_lookup(w.e.space, w.keys, n, &hit), 0);
	assert_int_equal(hit.blocks, n);
	return hit.tiers;
}

ON_BOTH_ENGINES(lookup_says_which_tiers)
{
	begin(*state, roomy, tiny_geometry(KVTIER_CODEC_FP8), TINY);
	chain_keys(&w.e, 1, TINY, w.keys);
	assert_int_equal(chain_store(&w.e, w.keys, 0, TINY), 0);
	disk_flush(&w.d);
	assert_int_equal(tiers_of(TINY), KVTIER_TIER_HOST | KVTIER_TIER_NVME);
	live_again(SIGKILL);
	assert_int_equal(tiers_of(TINY), KVTIER_TIER_NVME);
	assert_int_equal(chain_load(&w.e, w.keys, 0, TINY), TINY);
	assert_int_equal(tiers_of(TINY), KVTIER_TIER_HOST | KVTIER_TIER_NVME);
	end();
}

/* The parent lies on disk only when its child is stored; both are one chain after the next
 * restart. */
ON_BOTH_ENGINES(a_chain_grows_over_a_restart)
{
	uint32_t pages[TINY];

	second_life(*state, KVTIER_CODEC_RAW, TINY / 2);
	pages_from(TINY / 2, pages, TINY / 2);
	for (uint32_t i = 0; i < TINY / 2; i++)
		page_fill(&w.e, pages[i], &w.keys[TINY / 2 + i], 0);
	assert_int_equal(engine_store(&w.e, &w.keys[TINY / 2], pages, TINY / 2,
				      &w.keys[TINY / 2 - 1], NULL),
			 0);
	assert_int_equal(engine_lookup(&w.e, w.keys, TINY), TINY);
	disk_flush(&w.d);
	live_again(SIGKILL);
	assert_int_equal(chain_load(&w.e, w.keys, 0, TINY), TINY);
	end();
}

/* A space's images have two sizes where FP8 cannot hold some; a restart must know both. */
ON_BOTH_ENGINES(blocks_that_fp8_cannot_hold_survive)
{
	const uint32_t page = 0;

	begin(*state, roomy, tiny_geometry(KVTIER_CODEC_FP8), 4);
	chain_keys(&w.e, 1, 2, w.keys);
	for (uint32_t i = 0; i < 2; i++) {
		/* 0x7f7f: too large for FP8 */
		memset(w.e.memory, i ? 0x40 : 0x7f, w.e.page_bytes);
		assert_int_equal(engine_store(&w.e, &w.keys[i], &page, 1, i ? w.keys : NULL, NULL),
				 0);
	}
	stat_is("store.raw_blocks_total", 1);
	disk_flush(&w.d);
	live_again(SIGKILL);
	for (uint32_t i = 0; i < 2; i++) {
		page_poison(&w.e, 0);
		assert_int_equal(engine_load(&w.e, &w.keys[i], &page, 1, NULL), 0);
		assert_int_equal(w.e.memory[1], i ? 0x40 : 0x7f);
		assert_int_equal(w.e.memory[w.e.page_bytes - 1], i ? 0x40 : 0x7f);
	}
	end();
}

ON_BOTH_ENGINES(storing_again_writes_nothing)
{
	int32_t blocks[TINY];
	uint32_t pages[TINY];

	second_life(*state, KVTIER_CODEC_RAW, TINY);
	pages_from(0, pages, TINY);
	assert_int_equal(engine_store(&w.e, w.keys, pages, TINY, NULL, blocks), 0);
	for (uint32_t i = 0; i < TINY; i++)
		assert_int_equal(blocks[i], KVTIER_BLOCK_PRESENT);
	disk_flush(&w.d);
	clock_pass_ms(HEARTBEATS_MS); /* it would show by now */
	stat_is("tiers.nvme.written_bytes_total", 0);
	end();
}

/* --- more than memory holds --- */

static void store_chains(uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		chain_keys(&w.e, i, LARGE, w.keys);
		assert_int_equal(chain_store(&w.e, w.keys, 0, LARGE), 0);
		disk_flush(&w.d); /* eviction drops blocks that are not on disk yet */
	}
}

ON_BOTH_ENGINES(evicted_blocks_are_demoted)
{
	begin(*state, narrow, large_geometry(KVTIER_CODEC_RAW), LARGE);
	store_chains(CHAINS);
	daemon_stat_reaches(&w.d, "tiers.host.demoted_blocks_total", 1);
	for (int round = 0; round < 2; round++)
		for (uint32_t i = 0; i < CHAINS; i++) {
			chain_keys(&w.e, i, LARGE, w.keys);
			assert_int_equal(engine_lookup(&w.e, w.keys, LARGE), LARGE);
			assert_int_equal(chain_load(&w.e, w.keys, 0, LARGE), LARGE);
		}
	stat_is("load.missed_blocks_total", 0);
	daemon_stat_reaches(&w.d, "tiers.nvme.hit_blocks_total", 1);
	daemon_stat_reaches(&w.d, "tiers.host.promoted_blocks_total", 1);
	end();
}

/* Without waiting for the disk: blocks that the tiers could not keep up with are misses, nothing
 * else. */
ON_BOTH_ENGINES(a_hurried_engine_gets_right_bytes_or_misses)
{
	uint32_t hits = 0;

	begin(*state, narrow, large_geometry(KVTIER_CODEC_RAW), LARGE);
	for (uint32_t i = 0; i < CHAINS; i++) {
		chain_keys(&w.e, i, LARGE, w.keys);
		assert_int_equal(chain_store(&w.e, w.keys, 0, LARGE), 0);
	}
	for (uint32_t i = 0; i < CHAINS; i++) {
		chain_keys(&w.e, i, LARGE, w.keys);
		hits += chain_load(&w.e, w.keys, 0, LARGE);
	}
	assert_true(hits >= LARGE); /* the newest chain is in memory */
	end();
}

/* All of it in one op: its blocks wait for the blocks before them to be written, and are all
 * kept. */
ON_BOTH_ENGINES(a_prefix_longer_than_memory_is_stored)
{
	begin(*state, narrow, large_geometry(KVTIER_CODEC_RAW), LONG);
	chain_keys(&w.e, 7, LONG, w.keys);
	assert_int_equal(chain_store(&w.e, w.keys, 0, LONG), 0);
	assert_int_equal(engine_lookup(&w.e, w.keys, LONG), LONG);
	assert_int_equal(chain_load(&w.e, w.keys, 0, LONG), LONG);
	end();
}

/* One op, eight times the host tier's size: each block in turn comes, is given, and makes room. */
ON_BOTH_ENGINES(a_prefix_longer_than_memory_loads)
{
	uint32_t pages[LONG];

	begin(*state, narrow, large_geometry(KVTIER_CODEC_RAW), LONG);
	chain_keys(&w.e, 7, LONG, w.keys);
	for (uint32_t i = 0; i < LONG; i += LARGE) {
		pages_from(i, pages, LARGE);
		for (uint32_t k = 0; k < LARGE; k++)
			page_fill(&w.e, pages[k], &w.keys[i + k], 0);
		assert_int_equal(engine_store(&w.e, &w.keys[i], pages, LARGE,
					      i ? &w.keys[i - 1] : NULL, NULL),
				 0);
		disk_flush(&w.d);
	}
	live_again(SIGKILL);
	assert_int_equal(engine_lookup(&w.e, w.keys, LONG), LONG);
	assert_int_equal(chain_load(&w.e, w.keys, 0, LONG), LONG);
	stat_is("tiers.nvme.hit_blocks_total", LONG);
	end();
}

/* --- prefetch --- */

static void prefetch(uint32_t n, int expected)
{
	struct kvtier_result result = { .size = sizeof(result) };
	uint64_t op;

	assert_int_equal(kvtier_prefetch(w.e.space, w.keys, n, &op), 0);
	assert_int_equal(kvtier_wait(w.e.client, op, -1, &result), 0);
	assert_int_equal(result.status, expected);
}

ON_BOTH_ENGINES(prefetch_promotes)
{
	second_life(*state, KVTIER_CODEC_FP8, TINY);
	prefetch(TINY, 0);
	assert_int_equal(tiers_of(TINY), KVTIER_TIER_HOST | KVTIER_TIER_NVME);
	stat_is("tiers.host.promoted_blocks_total", TINY);
	assert_int_equal(chain_load(&w.e, w.keys, 0, TINY), TINY);
	stat_is("tiers.host.hit_blocks_total", TINY);
	stat_is("tiers.nvme.hit_blocks_total", 0);
	end();
}

ON_BOTH_ENGINES(prefetch_of_the_absent_is_a_miss)
{
	second_life(*state, KVTIER_CODEC_FP8, TINY - 1);
	prefetch(TINY, -ENOENT);
	assert_int_equal(chain_load(&w.e, w.keys, 0, TINY), TINY - 1);
	end();
}

/* --- recovery and health --- */

ON_BOTH_ENGINES(recovery_is_reported)
{
	char engine[64], text[2048];

	begin(*state, roomy, tiny_geometry(KVTIER_CODEC_RAW), TINY);
	chain_keys(&w.e, 1, TINY, w.keys);
	assert_int_equal(chain_store(&w.e, w.keys, 0, TINY), 0);
	live_again(SIGTERM);
	daemon_stat_reaches(&w.d, "tiers.nvme.recovered_blocks", TINY);
	stat_is("tiers.nvme.blocks", TINY);
	daemon_stat_reaches(&w.d, "tiers.nvme.recovery_bytes", 4096);
	daemon_word(&w.d, "tiers.nvme.engine", engine, sizeof(engine));
	assert_string_equal(engine, (const char *)*state);
	/* asked-for threads are no error */
	assert_true(daemon_ctl(&w.d, "status", text, sizeof(text)) <= 1);
	end();
}
