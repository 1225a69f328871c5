/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_load.c - shows how libkvtier is used, from connecting to closing. `store_load store` fills
 * pages and stores them. `store_load load`, another process, gets them back and compares. The
 * program needs a running kvtierd.
 *
 *	cc -D_GNU_SOURCE store_load.c $(pkg-config --cflags --libs kvtier) -o store_load
 *	./store_load store && ./store_load load
 */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "kvtier.h"

enum {
	LAYERS = 4,
	HEADS = 2,
	DIM = 64,
	TOKENS = 16, /* in a block */
	BLOCKS = 8,
	VALUE = 2, /* bytes of an FP16 value */
	PLANE = TOKENS * HEADS * DIM * VALUE,
	PAGE = LAYERS * 2 * PLANE,
	SEGMENTS = LAYERS * 2,
};

static int fail(const char *call)
{
	(void)fprintf(stderr, "%s: %s\n", call, kvtier_last_error());
	return 1;
}

/* The i-th value of page b: 1 <= value < 2 in FP16. */
static uint16_t value(size_t b, size_t i)
{
	return (uint16_t)(0x3c00 + (b * 37 + i) % 1024);
}

static void fill(uint16_t *memory)
{
	for (size_t i = 0; i < BLOCKS * PAGE / VALUE; i++)
		memory[i] = value(i / (PAGE / VALUE), i % (PAGE / VALUE));
}

static unsigned wrong_values(const uint16_t *memory, size_t blocks)
{
	unsigned wrong = 0;
	for (size_t i = 0; i < blocks * PAGE / VALUE; i++)
		wrong += memory[i] != value(i / (PAGE / VALUE), i % (PAGE / VALUE));
	return wrong;
}

/* Two engines share blocks when the geometry says the same of both. The segments say where the K
 * and V of a layer lie in a page: here [page][layer][K, V][token][head][dim]. */
static int open_space(struct kvtier_client *client, const struct kvtier_region *region,
		      struct kvtier_space **ret)
{
	const struct kvtier_geometry geometry =
		KVTIER_INIT(kvtier_geometry, .dtype = KVTIER_FP16, .model = "example@1",
			    .convention = "example", .layers = LAYERS, .kv_heads = HEADS,
			    .head_dim_k = DIM, .head_dim_v = DIM, .block_tokens = TOKENS,
			    .world = 1, .codec = KVTIER_CODEC_RAW);
	struct kvtier_segment segments[SEGMENTS];
	for (uint32_t i = 0; i < SEGMENTS; i++) {
		segments[i] = KVTIER_INIT(kvtier_segment, .layer = i / 2,
					  .kind = i % 2 ? KVTIER_V : KVTIER_K, .offset = i * PLANE,
					  .page_stride = PAGE, .head_stride = DIM * VALUE,
					  .token_stride = HEADS * DIM * VALUE);
	}
	return kvtier_space_open(client, &geometry, region, 1, segments, SEGMENTS, ret);
}

/* How many blocks of the prompt are present. If some are missing, asks for the blocks that other
 * nodes stored in Redis. A prefetch that fails costs only hits, so the lookup alone
 * counts. */
static int find(struct kvtier_client *client, struct kvtier_space *space,
		const struct kvtier_key *keys, size_t n, struct kvtier_hit *ret)
{
	int r = kvtier_lookup(space, keys, n, ret);
	if (r < 0 || ret->blocks == n)
		return r;
	uint64_t op;
	if (kvtier_prefetch(space, keys, n, NULL, &op) == 0)
		(void)kvtier_wait(client, op, 1000, NULL);
	return kvtier_lookup(space, keys, n, ret);
}

static int run(bool storing, struct kvtier_client *client, struct kvtier_space *space,
	       uint16_t *memory)
{
	uint32_t tokens[BLOCKS * TOKENS];
	uint32_t pages[BLOCKS];
	for (uint32_t i = 0; i < BLOCKS * TOKENS; i++)
		tokens[i] = i * 7;
	for (uint32_t b = 0; b < BLOCKS; b++)
		pages[b] = b;
	struct kvtier_key keys[BLOCKS];
	size_t n = BLOCKS;
	if (kvtier_keys(space, NULL, tokens, BLOCKS * TOKENS, keys, &n) < 0)
		return fail("keys");
	struct kvtier_hit hit = KVTIER_INIT(kvtier_hit);
	if (find(client, space, keys, n, &hit) < 0)
		return fail("find");
	(void)printf("%u of %zu blocks are present\n", hit.blocks, n);

	uint64_t op;
	int r;
	if (storing) {
		fill(memory);
		r = kvtier_store(space, keys, pages, n, NULL, &op);
	} else {
		r = kvtier_load(space, keys, pages, n, NULL, &op);
	}
	if (r < 0)
		return fail("submit");
	struct kvtier_result result = KVTIER_INIT(kvtier_result);
	if (kvtier_wait(client, op, -1, &result) < 0)
		return fail("wait");
	/* Only the first result.prefix blocks are in their pages. */
	const unsigned wrong = storing ? 0 : wrong_values(memory, result.prefix);
	(void)printf("%s %u of %u blocks, %u values wrong\n", storing ? "stored" : "loaded",
		     result.ok, result.n, wrong);
	return wrong || result.ok != result.n;
}

int main(int argc, char **argv)
{
	const bool storing = argc == 2 && !strcmp(argv[1], "store");
	if (!storing && (argc != 2 || strcmp(argv[1], "load") != 0)) {
		(void)fprintf(stderr, "usage: store_load store | load\n");
		return 2;
	}
	struct kvtier_memory *shared;
	if (kvtier_memory_alloc(BLOCKS * PAGE, "pages", &shared) < 0)
		return fail("memory");
	struct kvtier_region region = KVTIER_INIT(kvtier_region);
	if (kvtier_memory_region(shared, &region) < 0)
		return fail("region");
	struct kvtier_client *client;
	const struct kvtier_options options = KVTIER_INIT(kvtier_options, .name = "example");
	if (kvtier_connect(&options, &client) < 0)
		return fail("connect");
	struct kvtier_space *space;
	if (open_space(client, &region, &space) < 0)
		return fail("space");
	int code = run(storing, client, space, kvtier_memory_address(shared));
	/* An engine that goes on using its pages asks whether all of them are free again. They are
	 * not when the daemon stands still; taking the memory back frees them at once. */
	if (kvtier_space_close(space) > 0 && kvtier_memory_take_back(shared) < 0)
		code = fail("take back");
	kvtier_close(client);
	kvtier_memory_free(shared);
	return code;
}
