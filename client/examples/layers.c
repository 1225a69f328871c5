/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layers.c - stores and loads blocks layer by layer. `layers store` gives each group of layers to
 * kvtierd as soon as it is computed. `layers load`, another process, computes with a group while
 * the groups behind it are still on their way. Pages are in host memory here. With pages on a GPU a
 * stream does the work of this program's CPU: kvtier_stream_wait(), and kvtier_store_layers() with
 * the stream. store_load.c explains the rest. The program needs a running kvtierd.
 *
 *	cc -D_GNU_SOURCE layers.c $(pkg-config --cflags --libs kvtier) -o layers
 *	./layers store && ./layers load
 */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "kvtier.h"

enum {
	LAYERS = 8,
	GROUPS = 4, /* of two layers each */
	HEADS = 2,
	DIM = 64,
	TOKENS = 16, /* in a block */
	BLOCKS = 8,
	VALUES = TOKENS * HEADS * DIM, /* in a layer's K, or V */
	SEGMENTS = LAYERS * 2,
	PAGE = SEGMENTS * VALUES, /* values */
	VALUE = 2,                /* bytes of an FP16 value */
	TIMEOUT_MS = 10000,
};

static int fail(const char *call)
{
	(void)fprintf(stderr, "%s: %s\n", call, kvtier_last_error());
	return 1;
}

static uint32_t first_layer(uint32_t group)
{
	return LAYERS * group / GROUPS;
}

/* Stands for an attention layer: the i-th value of a layer of block b, 1 <= value < 2. */
static uint16_t value(uint32_t b, uint32_t layer, uint32_t i)
{
	return (uint16_t)(0x3c00 + (b * 37 + layer * 101 + i) % 1024);
}

/* Computes the layers of a group in all pages, or counts the values that are not as computed. */
static unsigned visit(uint16_t *memory, uint32_t group, bool compute)
{
	unsigned wrong = 0;

	for (uint32_t b = 0; b < BLOCKS; b++)
		for (uint32_t layer = first_layer(group); layer < first_layer(group + 1); layer++)
			for (uint32_t i = 0; i < 2 * VALUES; i++) {
				uint16_t *at = &memory[b * PAGE + layer * 2 * VALUES + i];

				if (compute)
					*at = value(b, layer, i);
				wrong += *at != value(b, layer, i);
			}
	return wrong;
}

/* [page][layer][K, V][token][head][dim] */
static int open_space(struct kvtier_client *client, const struct kvtier_region *region,
		      struct kvtier_space **ret)
{
	const struct kvtier_geometry geometry =
		KVTIER_INIT(kvtier_geometry, .dtype = KVTIER_FP16, .model = "layers@1",
			    .convention = "example", .layers = LAYERS, .kv_heads = HEADS,
			    .head_dim_k = DIM, .head_dim_v = DIM, .block_tokens = TOKENS,
			    .world = 1, .codec = KVTIER_CODEC_RAW);
	struct kvtier_segment segments[SEGMENTS];

	for (uint32_t i = 0; i < SEGMENTS; i++) {
		segments[i] = KVTIER_INIT(kvtier_segment, .layer = i / 2,
					  .kind = i % 2 ? KVTIER_V : KVTIER_K,
					  .offset = (uint64_t)i * VALUES * VALUE,
					  .page_stride = PAGE * VALUE, .head_stride = DIM * VALUE,
					  .token_stride = HEADS * DIM * VALUE);
	}
	return kvtier_space_open(client, &geometry, region, 1, segments, SEGMENTS, ret);
}

/* The op is submitted before anything is computed: it is given the groups one by one. */
static int store(struct kvtier_client *client, struct kvtier_space *space,
		 const struct kvtier_key *keys, const uint32_t *pages, uint16_t *memory)
{
	const struct kvtier_op options = KVTIER_INIT(kvtier_op, .layer_groups = GROUPS);
	struct kvtier_result result = KVTIER_INIT(kvtier_result);
	uint64_t op;

	if (kvtier_store(space, keys, pages, BLOCKS, &options, &op) < 0)
		return fail("store");
	for (uint32_t group = 0; group < GROUPS; group++) {
		(void)visit(memory, group, true);
		if (kvtier_store_layers(client, op, group + 1, NULL) < 0)
			return fail("store_layers");
	}
	if (kvtier_wait(client, op, -1, &result) < 0)
		return fail("wait");
	(void)printf("stored %u of %u blocks\n", result.ok, result.n);
	return result.ok != result.n;
}

/* After a group that does not come (-ENODATA), or a result that is no success, forget all that was
 * computed with these pages. */
static int load(struct kvtier_client *client, struct kvtier_space *space,
		const struct kvtier_key *keys, const uint32_t *pages, uint16_t *memory)
{
	const struct kvtier_op options = KVTIER_INIT(kvtier_op, .layer_groups = GROUPS);
	struct kvtier_result result = KVTIER_INIT(kvtier_result);
	unsigned wrong = 0;
	uint64_t op;

	if (kvtier_load(space, keys, pages, BLOCKS, &options, &op) < 0)
		return fail("load");
	for (uint32_t group = 0; group < GROUPS; group++) {
		if (kvtier_wait_layers(client, op, group, TIMEOUT_MS) < 0) {
			(void)fail("wait_layers");
			break;
		}
		wrong += visit(memory, group, false);
		(void)printf("layers %u to %u are there\n", first_layer(group),
			     first_layer(group + 1) - 1);
	}
	if (kvtier_wait(client, op, -1, &result) < 0)
		return fail("wait");
	(void)printf("loaded %u of %u blocks, %u values wrong\n", result.ok, result.n, wrong);
	return wrong || result.ok != result.n;
}

static int run(bool storing, struct kvtier_client *client, struct kvtier_space *space,
	       uint16_t *memory)
{
	uint32_t tokens[BLOCKS * TOKENS], pages[BLOCKS];
	struct kvtier_key keys[BLOCKS];
	size_t n = BLOCKS;

	for (uint32_t i = 0; i < BLOCKS * TOKENS; i++)
		tokens[i] = i * 11;
	for (uint32_t b = 0; b < BLOCKS; b++)
		pages[b] = b;
	if (kvtier_keys(space, NULL, tokens, BLOCKS * TOKENS, keys, &n) < 0)
		return fail("keys");
	return (storing ? store : load)(client, space, keys, pages, memory);
}

int main(int argc, char **argv)
{
	const bool storing = argc == 2 && !strcmp(argv[1], "store");
	const struct kvtier_options options = KVTIER_INIT(kvtier_options, .name = "layers");
	struct kvtier_region region = KVTIER_INIT(kvtier_region);
	struct kvtier_memory *shared;
	struct kvtier_client *client;
	struct kvtier_space *space;
	int code;

	if (!storing && (argc != 2 || strcmp(argv[1], "load") != 0)) {
		(void)fprintf(stderr, "usage: layers store | load\n");
		return 2;
	}
	if (kvtier_memory_alloc((size_t)BLOCKS * PAGE * VALUE, "pages", &shared) < 0)
		return fail("memory");
	if (kvtier_memory_region(shared, &region) < 0)
		return fail("region");
	if (kvtier_connect(&options, &client) < 0)
		return fail("connect");
	if (open_space(client, &region, &space) < 0)
		return fail("space");
	code = run(storing, client, space, kvtier_memory_address(shared));
	if (kvtier_space_close(space) > 0 && kvtier_memory_take_back(shared) < 0)
		code = fail("take back");
	kvtier_close(client);
	kvtier_memory_free(shared);
	return code;
}
