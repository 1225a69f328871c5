/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sys_random.c - goal: no sequence of stores, loads, evictions, reconnections gives an engine a
 * wrong byte, a block that was never stored, or a chain with a hole. Method: thousands of random
 * steps by engines of different codecs, ways to memory and block sizes, which compete for a small
 * host tier, against a model of the blocks that may be there.
 */
#include "tests/lib/lib.h"

enum {
	ENGINES = 6,
	SPACES = 4,
	CHAINS = 12, /* a space */
	LENGTH = 10, /* blocks a chain */
	PAGES = 4 * LENGTH,
	STEPS = 4000,
	ROUNDS = 250, /* of concurrent ops */
};

static struct {
	struct daemon d;
	struct random random;
	struct engine engines[ENGINES];
	/* The model: how much of each chain was ever stored since all was evicted, by space. */
	uint32_t stored[SPACES][CHAINS];
	uint64_t hits, misses;
} w;

/* Engines 0 and 1 share a space, as do 2 and 3: one loads the other's blocks. */
static uint32_t space_of(uint32_t engine)
{
	static const uint32_t spaces[ENGINES] = { 0, 0, 1, 1, 2, 3 };

	return spaces[engine];
}

static struct kvtier_geometry geometry_of(uint32_t space)
{
	struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_RAW);

	if (space == 1)
		g.codec = KVTIER_CODEC_FP8;
	if (space >= 2)
		g = large_geometry(space == 2 ? KVTIER_CODEC_RAW : KVTIER_CODEC_FP8);
	return g;
}

static void open_engine(uint32_t i)
{
	const struct kvtier_geometry g = geometry_of(space_of(i));
	char name[16];

	snprintf(name, sizeof(name), "engine%u", i);
	if (i == 1 || i == 3 || i == 5)
		engine_open_staged(&w.engines[i], w.d.socket, name, &g, PAGES,
				   5 * engine_page_bytes(&g));
	else
		engine_open(&w.engines[i], w.d.socket, name, &g, PAGES);
}

static void keys_of(uint32_t engine, uint32_t chain, struct kvtier_key *ret)
{
	chain_keys(&w.engines[engine], 1000 + chain, LENGTH, ret);
}

static void step_store(uint32_t engine, uint32_t chain)
{
	struct engine *e = &w.engines[engine];
	uint32_t *stored = &w.stored[space_of(engine)][chain];
	const uint32_t n = 1 + random_below(&w.random, LENGTH);
	struct kvtier_key keys[LENGTH];

	keys_of(engine, chain, keys);
	assert_int_equal(chain_store(e, keys, 0, n), 0);
	if (n > *stored)
		*stored = n;
	/* Nothing ran since: all blocks just stored are there. */
	assert_true(engine_lookup(e, keys, LENGTH) >= n);
}

/* Goes on where the chain ends, below its last present block; a block that is gone meanwhile is no
 * parent. */
static void step_extend(uint32_t engine, uint32_t chain)
{
	struct engine *e = &w.engines[engine];
	struct kvtier_key keys[LENGTH];
	uint32_t pages[LENGTH], have;

	keys_of(engine, chain, keys);
	have = engine_lookup(e, keys, LENGTH);
	if (have == 0 || have == LENGTH)
		return;
	pages_from(0, pages, LENGTH);
	for (uint32_t i = have; i < LENGTH; i++)
		page_fill(e, pages[i], &keys[i], 0);
	assert_int_equal(engine_store(e, keys + have, pages + have, LENGTH - have, &keys[have - 1],
				      NULL),
			 0);
	w.stored[space_of(engine)][chain] = LENGTH;
	assert_int_equal(engine_lookup(e, keys, LENGTH), LENGTH);
}

static void step_load(uint32_t engine, uint32_t chain)
{
	struct engine *e = &w.engines[engine];
	struct kvtier_key keys[LENGTH];
	uint32_t seen, hits;

	keys_of(engine, chain, keys);
	seen = engine_lookup(e, keys, LENGTH);
	assert_true(seen <= w.stored[space_of(engine)][chain]);
	hits = chain_load(e, keys, LENGTH, LENGTH); /* compares every byte */
	/* a prefix, as lookup said: nothing ran in between */
	assert_int_equal(hits, seen);
	w.hits += hits;
	w.misses += LENGTH - hits;
}

/* Each block asked for alone: presence must not have holes. */
static void step_holes(uint32_t engine, uint32_t chain)
{
	struct kvtier_key keys[LENGTH];
	uint32_t before = 1;

	keys_of(engine, chain, keys);
	for (uint32_t i = 0; i < LENGTH; i++) {
		const uint32_t now = engine_lookup(&w.engines[engine], &keys[i], 1);

		assert_true(now <= before);
		before = now;
	}
}

static void step_evict(void)
{
	if (random_below(&w.random, 4)) {
		(void)daemon_told(&w.d, "evict --bytes 600K");
		return;
	}
	(void)daemon_told(&w.d, "evict --all");
	memset(w.stored, 0, sizeof(w.stored));
}

static void step(void)
{
	const uint32_t engine = random_below(&w.random, ENGINES),
		       chain = random_below(&w.random, CHAINS);
	const uint32_t what = random_below(&w.random, 1000);

	if (what < 350) {
		step_store(engine, chain);
	} else if (what < 500) {
		step_extend(engine, chain);
	} else if (what < 900) {
		step_load(engine, chain);
	} else if (what < 980) {
		step_holes(engine, chain);
	} else if (what < 995) {
		engine_close(&w.engines[engine]);
		open_engine(engine);
	} else {
		step_evict();
	}
}

static void begin(const char *name)
{
	memset(&w, 0, sizeof(w));
	w.random = random_seeded(name);
	daemon_start(&w.d, HOST("4M", "512K") "verify = always\n");
	for (uint32_t i = 0; i < ENGINES; i++)
		open_engine(i);
}

static void end(void)
{
	for (uint32_t i = 0; i < ENGINES; i++)
		engine_close(&w.engines[i]);
	assert_int_equal(daemon_stat(&w.d, "tiers.host.corrupt_blocks_total"), 0);
	assert_int_equal(daemon_stat(&w.d, "protocol_errors_total"), 0);
	daemon_stat_becomes(&w.d, "leases", 0, PATIENT_MS);
	daemon_stat_reaches(&w.d, "tiers.host.evicted_blocks_total", 1);
	daemon_remove(&w.d);
}

TEST(one_step_after_another)
{
	begin("one_step_after_another");
	for (int i = 0; i < STEPS; i++)
		step();
	assert_true(w.hits > 100 && w.misses > 100); /* both were tried */
	end();
}

/* --- all engines at once: only bytes and statuses can be judged --- */

struct ongoing {
	uint64_t op;
	bool load;
	uint32_t n;
	struct kvtier_key keys[LENGTH];
	int32_t blocks[LENGTH];
};

static void submit(uint32_t engine, struct ongoing *o)
{
	struct engine *e = &w.engines[engine];
	const struct kvtier_op options = { .size = sizeof(options) };
	uint32_t pages[LENGTH];

	o->load = random_below(&w.random, 2);
	o->n = 1 + random_below(&w.random, LENGTH);
	keys_of(engine, random_below(&w.random, CHAINS), o->keys);
	pages_from(o->load ? 0 : LENGTH, pages, LENGTH);
	for (uint32_t i = 0; i < o->n; i++) {
		if (o->load)
			page_poison(e, pages[i]);
		else
			page_fill(e, pages[i], &o->keys[i], 0);
	}
	assert_int_equal(o->load ? kvtier_load(e->space, o->keys, pages, o->n, &options, &o->op) :
				   kvtier_store(e->space, o->keys, pages, o->n, &options, &o->op),
			 0);
}

static void take(uint32_t engine, struct ongoing *o)
{
	struct engine *e = &w.engines[engine];
	struct kvtier_result result = { .size = sizeof(result),
					.blocks = o->blocks,
					.blocks_max = LENGTH };

	assert_int_equal(kvtier_wait(e->client, o->op, -1, &result), 0);
	for (uint32_t i = 0; i < o->n; i++) {
		const int32_t status = o->blocks[i];

		if (!o->load)
			assert_true(status == 0 || status == 1 || status == -ENOSPC ||
				    status == -ENOENT);
		else if (status == 0)
			assert_true(page_is(e, i, &o->keys[i], 0));
		else
			assert_true(status == -ENOENT && page_is_poison(e, i));
	}
}

TEST(all_engines_at_once)
{
	begin("all_engines_at_once");
	for (int round = 0; round < ROUNDS; round++) {
		struct ongoing ongoing[ENGINES];

		for (uint32_t i = 0; i < ENGINES; i++)
			submit(i, &ongoing[i]);
		for (uint32_t i = 0; i < ENGINES; i++)
			take(i, &ongoing[i]);
		for (uint32_t i = 0; i < ENGINES; i++)
			step_holes(i, random_below(&w.random, CHAINS));
	}
	end();
}
