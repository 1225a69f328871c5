/* SPDX-License-Identifier: Apache-2.0 */
/* make: wrap=connect (two clients are two processes) */
/*
 * regr_6_many_sizes.c - goal: few small blocks of many sizes take little of another engine's
 * memory. Each size is a class of its own and holds a whole slab, so 464 blocks of 16 sizes, 1 % of
 * memory, took most of it. Method: a daemon of 16 slabs. One engine stores blocks of one size that
 * fill them, another one a few blocks of each of 16 sizes; which begins is another case, and
 * whether it closes each space before it opens the next. Then the first engine loads all.
 */
#include <stdio.h>

#include "tests/lib/lib.h"
#include "tests/lib/lib_apart.h"

enum {
	SLABS = 16,
	A_SLAB = 31,             /* blocks of the engine: 132 KiB, in slabs of 4 MiB */
	BLOCKS = SLABS * A_SLAB, /* of the engine */
	CHAIN = 8,               /* blocks of an op */
	SIZES = 16,              /* of the other one: 8 KiB, 12 KiB ... 68 KiB */
	OF_A_SIZE = 29,          /* blocks */
	MISSES_MAX = 2 * A_SLAB, /* a sixteenth, and the slab that a client is sure of */
};

static const char config[] = "[host]\nbytes = 64M\nslab_bytes = 4M\nhuge_pages = no\n";

static void store_all(struct engine *e)
{
	struct kvtier_key keys[CHAIN];

	for (uint32_t i = 0; i < BLOCKS / CHAIN; i++) {
		chain_keys(e, i, CHAIN, keys);
		assert_int_equal(chain_store(e, keys, 0, CHAIN), 0);
	}
}

static uint32_t missed(struct engine *e)
{
	struct kvtier_key keys[CHAIN];
	uint32_t ret = 0;

	for (uint32_t i = 0; i < BLOCKS / CHAIN; i++) {
		chain_keys(e, i, CHAIN, keys);
		ret += CHAIN - chain_load(e, keys, 0, CHAIN);
	}
	return ret;
}

static void store_a_size(struct engine *e, const struct daemon *d, uint32_t layers)
{
	struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_RAW);
	struct kvtier_key keys[OF_A_SIZE];

	g.layers = layers;
	engine_open(e, d->socket, "many sizes", &g, OF_A_SIZE);
	chain_keys(e, layers, OF_A_SIZE, keys);
	assert_int_equal(chain_store(e, keys, 0, OF_A_SIZE), 0);
}

/* The other one is a process with a connection for each size. */
static uint32_t beside_many_sizes(bool engine_first, bool open)
{
	struct kvtier_geometry g = large_geometry(KVTIER_CODEC_RAW);
	static struct engine sizes[SIZES];
	struct daemon d;
	struct engine e;
	uint32_t ret;

	daemon_start(&d, config);
	clients_apart(true);
	engine_open(&e, d.socket, "one size", &g, CHAIN);
	clients_apart(false);
	if (engine_first)
		store_all(&e);
	for (uint32_t i = 0; i < SIZES; i++) {
		store_a_size(&sizes[i], &d, i + 1);
		if (!open)
			engine_close(&sizes[i]);
	}
	if (!engine_first)
		store_all(&e);
	ret = missed(&e);
	printf("%u of %d blocks missed\n", ret, BLOCKS);
	for (uint32_t i = 0; open && i < SIZES; i++)
		engine_close(&sizes[i]);
	engine_close(&e);
	daemon_remove(&d);
	return ret;
}

TEST(small_blocks_of_many_sizes_take_little)
{
	assert_true(beside_many_sizes(true, true) <= MISSES_MAX);
}

TEST(many_sizes_one_after_another_take_little)
{
	assert_true(beside_many_sizes(true, false) <= MISSES_MAX);
}

TEST(small_blocks_of_many_sizes_give_way)
{
	assert_true(beside_many_sizes(false, true) <= MISSES_MAX);
}
