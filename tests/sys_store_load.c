/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sys_store_load.c - goal: what one engine stores, another gets back byte for byte, through the real daemon.
 * Method: payloads that are a function of key and offset, compared after every load, for each codec and way to memory.
 */
#include "lib.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { PAGES = 64, CHAIN = 24 };

static const char config[] = "[host]\nbytes = 4M\nslab_bytes = 256K\nhuge_pages = no\n";

static void store_chain(struct engine *e, uint64_t chain, uint64_t salt, struct kvtier_key *keys)
{
	uint32_t pages[CHAIN];

	chain_keys(e, chain, CHAIN, keys);
	pages_from(0, pages, CHAIN);
	for (uint32_t i = 0; i < CHAIN; i++)
		page_fill(e, pages[i], &keys[i], salt);
	assert_int_equal(engine_store(e, keys, pages, CHAIN, NULL, NULL), 0);
}

static void load_chain(struct engine *e, const struct kvtier_key *keys, uint64_t salt)
{
	uint32_t pages[CHAIN];

	pages_from(30, pages, CHAIN);
	for (uint32_t i = 0; i < CHAIN; i++)
		page_poison(e, pages[i]);
	assert_int_equal(engine_load(e, keys, pages, CHAIN, NULL), 0);
	for (uint32_t i = 0; i < CHAIN; i++)
		assert_true(page_is(e, pages[i], &keys[i], salt));
}

static void other_engine_gets(uint32_t codec, bool staged)
{
	const struct kvtier_geometry g = tiny_geometry(codec);
	struct kvtier_key keys[CHAIN];
	struct engine a, b;
	struct daemon d;

	daemon_start(&d, config);
	engine_open(&a, d.socket, "a", &g, PAGES);
	store_chain(&a, 1, 7, keys);
	engine_close(&a);
	if (staged)
		engine_open_staged(&b, d.socket, "b", &g, PAGES, 5 * engine_page_bytes(&g));
	else
		engine_open(&b, d.socket, "b", &g, PAGES);
	assert_int_equal(engine_lookup(&b, keys, CHAIN), CHAIN);
	load_chain(&b, keys, 7);
	engine_close(&b);
	daemon_remove(&d);
}

static void raw_is_exact(void **state)
{
	(void)state;
	other_engine_gets(KVTIER_CODEC_RAW, false);
}

static void fp8_gives_e4m3_values_exactly(void **state)
{
	(void)state;
	other_engine_gets(KVTIER_CODEC_FP8, false);
}

static void staged_memory_gets_the_same(void **state)
{
	(void)state;
	other_engine_gets(KVTIER_CODEC_RAW, true);
}

static void missing_key_is_enoent(void **state)
{
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_RAW);
	struct kvtier_key keys[2];
	const uint32_t pages[2] = { 0, 1 };
	int32_t blocks[2];
	struct engine e;
	struct daemon d;

	(void)state;
	daemon_start(&d, config);
	engine_open(&e, d.socket, "e", &g, PAGES);
	chain_keys(&e, 2, 2, keys);
	page_poison(&e, 0);
	assert_int_equal(engine_load(&e, keys, pages, 2, blocks), -ENOENT);
	assert_int_equal(blocks[1], -ENOENT);
	assert_true(page_is_poison(&e, 0));
	engine_close(&e);
	daemon_remove(&d);
}

static void nan_block_is_kept_raw(void **state)
{
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_FP8);
	struct kvtier_key key;
	const uint32_t from = 0, to = 1;
	struct engine e;
	struct daemon d;

	(void)state;
	daemon_start(&d, config);
	engine_open(&e, d.socket, "e", &g, PAGES);
	chain_keys(&e, 3, 1, &key);
	page_fill(&e, 0, &key, 1);
	((uint16_t *)(void *)e.memory)[77] = 0x7fc1;
	assert_int_equal(engine_store(&e, &key, &from, 1, NULL, NULL), 0);
	assert_int_equal(engine_load(&e, &key, &to, 1, NULL), 0);
	assert_memory_equal(e.memory, e.memory + e.page_bytes, e.page_bytes);
	assert_int_equal(daemon_stat(&d, "store.raw_blocks_total"), 1);
	engine_close(&e);
	daemon_remove(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(raw_is_exact),
		cmocka_unit_test(fp8_gives_e4m3_values_exactly),
		cmocka_unit_test(staged_memory_gets_the_same),
		cmocka_unit_test(missing_key_is_enoent),
		cmocka_unit_test(nan_block_is_kept_raw),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
