/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_load.c - the whole use of libkvtier: `store_load store` fills pages and stores them, `store_load
 * load`, another process, gets them back and compares. Needs a running kvtierd.
 *
 *	cc -D_GNU_SOURCE store_load.c $(pkg-config --cflags --libs kvtier) -o store_load
 *	./store_load store && ./store_load load
 */
#include <stdio.h>
#include <string.h>

#include "kvtier.h"

enum { LAYERS = 4, HEADS = 2, DIM = 64, TOKENS = 16, BLOCKS = 8 };
enum { PLANE = TOKENS * HEADS * DIM * 2 /* bytes, FP16 */, PAGE = LAYERS * 2 * PLANE };

static int fail(const char *what)
{
	(void)fprintf(stderr, "%s: %s\n", what, kvtier_last_error());
	return 1;
}

/* What page b holds, 1 <= value < 2 in FP16. */
static uint16_t value(int b, int i)
{
	return (uint16_t)(0x3c00 + (b * 37 + i) % 1024);
}

int main(int argc, char **argv)
{
	const int storing = argc > 1 && !strcmp(argv[1], "store");
	struct kvtier_region region = { .size = sizeof(region) };
	struct kvtier_shared *shared;
	if (kvtier_memory_alloc(BLOCKS * PAGE, "pages", &shared) || kvtier_memory_region(shared, &region))
		return fail("memory");
	uint16_t *memory = kvtier_memory_address(shared);

	struct kvtier_client *client;
	struct kvtier_space *space;
	const struct kvtier_geometry geometry = {
		.size = sizeof(geometry), .dtype = KVTIER_FP16, .model = "example@1", .convention = "example",
		.layers = LAYERS, .kv_heads = HEADS, .head_dim_k = DIM, .head_dim_v = DIM,
		.block_tokens = TOKENS, .world = 1, .codec = KVTIER_CODEC_RAW };
	struct kvtier_segment segments[LAYERS * 2];
	for (uint32_t i = 0; i < LAYERS * 2; i++)	/* [page][layer][K|V][token][head][dim] */
		segments[i] = (struct kvtier_segment){
			.size = sizeof(segments[i]), .layer = i / 2, .kind = KVTIER_K + i % 2,
			.offset = i * PLANE,
			.page_stride = PAGE, .token_stride = HEADS * DIM * 2, .head_stride = DIM * 2 };
	const struct kvtier_options options = { .size = sizeof(options), .name = "example" };
	if (kvtier_connect(&options, &client))
		return fail("connect");
	if (kvtier_space_open(client, &geometry, &region, 1, segments, LAYERS * 2, &space))
		return fail("space");

	uint32_t tokens[BLOCKS * TOKENS], pages[BLOCKS];
	for (uint32_t i = 0; i < BLOCKS * TOKENS; i++)
		tokens[i] = i * 7, pages[i / TOKENS] = i / TOKENS;
	struct kvtier_key keys[BLOCKS];
	size_t n = BLOCKS;
	struct kvtier_hit hit = { .size = sizeof(hit) };
	if (kvtier_keys(space, NULL, tokens, BLOCKS * TOKENS, keys, &n) ||
	    kvtier_lookup(space, keys, n, &hit))
		return fail("lookup");
	uint64_t op;
	if (!storing && hit.blocks < n && !kvtier_prefetch(space, keys, n, &op)) {	/* other nodes may have them */
		(void)kvtier_wait(client, op, 1000, NULL);
		(void)kvtier_lookup(space, keys, n, &hit);
	}
	(void)printf("%u of %zu blocks are present\n", hit.blocks, n);

	for (int i = 0; storing && i < BLOCKS * PAGE / 2; i++)
		memory[i] = value(i / (PAGE / 2), i % (PAGE / 2));
	struct kvtier_result result = { .size = sizeof(result) };
	if (storing ? kvtier_store(space, keys, pages, n, NULL, &op)
		    : kvtier_load(space, keys, pages, n, NULL, &op))
		return fail("submit");
	if (kvtier_wait(client, op, -1, &result))
		return fail("wait");
	int wrong = 0;
	for (int i = 0; !storing && i < (int)result.prefix * PAGE / 2; i++)
		wrong += memory[i] != value(i / (PAGE / 2), i % (PAGE / 2));
	(void)printf("%s %u of %u blocks, %d values wrong\n", storing ? "stored" : "loaded", result.ok,
		     result.n, wrong);
	/* An engine that uses its pages further: 0 but for a daemon that stands still, and then this frees them at once. */
	if (kvtier_space_close(space) > 0 && kvtier_memory_take_back(shared))
		return fail("take back");
	kvtier_close(client);
	kvtier_memory_free(shared);
	return wrong || result.ok != result.n;
}
