/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sys_store_load.c - goal: an engine gets another engine's blocks back byte for byte, through the
 * real daemon. Method: payloads that are a function of key and offset, compared after every load,
 * for each codec and way to memory.
 */
#include "tests/lib/lib.h"

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

TEST(raw_is_exact)
{
	other_engine_gets(KVTIER_CODEC_RAW, false);
}

TEST(fp8_gives_e4m3_values_exactly)
{
	other_engine_gets(KVTIER_CODEC_FP8, false);
}

TEST(staged_memory_gets_the_same)
{
	other_engine_gets(KVTIER_CODEC_RAW, true);
}

TEST(missing_key_is_enoent)
{
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_RAW);
	struct kvtier_key keys[2];
	const uint32_t pages[2] = { 0, 1 };
	int32_t blocks[2];
	struct engine e;
	struct daemon d;

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

TEST(nan_block_is_kept_raw)
{
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_FP8);
	struct kvtier_key key;
	const uint32_t from = 0, to = 1;
	struct engine e;
	struct daemon d;

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

/* [layer][K|V][head][token][dim]: the same block elsewhere in the page. */
static void open_head_major(struct engine *e, const struct engine *like, const struct daemon *d)
{
	const struct kvtier_options o = { .size = sizeof(o), .socket_path = d->socket };
	const struct kvtier_region region = {
		.size = sizeof(region),
		.memory = KVTIER_MEMFD,
		.fd = like->fd,
		.length = like->page_bytes * PAGES,
	};
	struct kvtier_segment segments[8];
	const size_t n = engine_segments(&like->geometry, segments, 8);

	*e = *like;
	for (size_t i = 0; i < n; i++) {
		segments[i].token_stride = 32 * 2;
		segments[i].head_stride = 16 * 32 * 2;
	}
	assert_int_equal(kvtier_connect(&o, &e->client), 0);
	assert_int_equal(kvtier_space_open(e->client, &e->geometry, &region, 1, segments, n,
					   &e->space),
			 0);
}

TEST(other_layout_gets_the_same_values)
{
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_FP8);
	const uint32_t to = 50;
	struct kvtier_key keys[CHAIN];
	struct engine a, b;
	struct daemon d;
	const uint16_t *have, *want;

	daemon_start(&d, config);
	engine_open(&a, d.socket, "token-major", &g, PAGES);
	store_chain(&a, 1, 7, keys);
	open_head_major(&b, &a, &d);
	assert_int_equal(engine_load(&b, keys, &to, 1, NULL), 0);
	want = (const uint16_t *)(const void *)a.memory;
	have = (const uint16_t *)(const void *)(a.memory + to * a.page_bytes);
	for (size_t plane = 0; plane < 4; plane++)
		for (size_t token = 0; token < 16; token++)
			for (size_t head = 0; head < 2; head++)
				assert_memory_equal(&have[((plane * 2 + head) * 16 + token) * 32],
						    &want[((plane * 16 + token) * 2 + head) * 32],
						    64);
	kvtier_close(b.client);
	engine_close(&a);
	daemon_remove(&d);
}

TEST(storing_again_copies_nothing)
{
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_RAW);
	struct kvtier_key keys[CHAIN];
	uint32_t pages[CHAIN];
	int32_t blocks[CHAIN];
	struct engine e;
	struct daemon d;

	daemon_start(&d, config);
	engine_open(&e, d.socket, "e", &g, PAGES);
	store_chain(&e, 1, 7, keys);
	pages_from(0, pages, CHAIN);
	for (uint32_t i = 0; i < CHAIN; i++)
		page_poison(&e, i);
	assert_int_equal(engine_store(&e, keys, pages, CHAIN, NULL, blocks), 0);
	for (uint32_t i = 0; i < CHAIN; i++)
		assert_int_equal(blocks[i], KVTIER_BLOCK_PRESENT);
	load_chain(&e, keys, 7);
	engine_close(&e);
	daemon_remove(&d);
}

TEST(chain_without_its_parent_is_not_kept)
{
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_RAW);
	const uint32_t pages[2] = { 0, 1 };
	struct kvtier_key keys[3];
	int32_t blocks[2];
	struct engine e;
	struct daemon d;

	daemon_start(&d, config);
	engine_open(&e, d.socket, "e", &g, PAGES);
	chain_keys(&e, 4, 3, keys);
	assert_int_equal(engine_store(&e, &keys[1], pages, 2, &keys[0], blocks), -ENOENT);
	assert_int_equal(blocks[1], -ENOENT);
	assert_int_equal(engine_lookup(&e, &keys[1], 1), 0);
	assert_int_equal(engine_lookup(&e, &keys[2], 1), 0);
	engine_close(&e);
	daemon_remove(&d);
}

TEST(page_out_of_range_fails_alone)
{
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_RAW);
	struct kvtier_key keys[CHAIN];
	uint32_t pages[3] = { 40, PAGES, 41 };
	int32_t blocks[3];
	struct engine e;
	struct daemon d;

	daemon_start(&d, config);
	engine_open(&e, d.socket, "e", &g, PAGES);
	store_chain(&e, 1, 7, keys);
	assert_int_equal(engine_load(&e, keys, pages, 3, blocks), -EFAULT);
	assert_int_equal(blocks[0], 0);
	assert_int_equal(blocks[1], -EFAULT);
	assert_int_equal(blocks[2], 0);
	assert_true(page_is(&e, 40, &keys[0], 7) && page_is(&e, 41, &keys[2], 7));
	engine_close(&e);
	daemon_remove(&d);
}

TEST(prefetch_says_what_is_there)
{
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_RAW);
	struct kvtier_key keys[CHAIN];
	struct kvtier_result result = { .size = sizeof(result) };
	struct engine e;
	struct daemon d;
	uint64_t op;

	daemon_start(&d, config);
	engine_open(&e, d.socket, "e", &g, PAGES);
	store_chain(&e, 1, 7, keys);
	memset(&keys[5], 9, sizeof(keys[5]));
	assert_int_equal(kvtier_prefetch(e.space, keys, CHAIN, &op), 0);
	assert_int_equal(kvtier_wait(e.client, op, -1, &result), 0);
	assert_int_equal(result.prefix, 5);
	assert_int_equal(result.ok, CHAIN - 1);
	engine_close(&e);
	daemon_remove(&d);
}
