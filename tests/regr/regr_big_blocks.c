/* SPDX-License-Identifier: Apache-2.0 */
/* make: wrap=connect (two clients are two processes) */
/*
 * regr_big_blocks.c - goal: a client that stores big blocks as fast as it can takes neither the
 * room that another needs for a few blocks, nor the blocks that it uses. Method: a real kvtierd of
 * 16 slabs; one thread stores blocks that fill a slab each, 16 ops of 4 blocks at a time and always
 * new ones. A quiet client stores a few small blocks again and again, and loads what it stored not
 * long ago: every block must be stored, and every load a hit. Then likewise with a storer whose
 * chains are longer than memory, or whose blocks are as small; with quiet clients that come one
 * after the other, each when memory is full; and with small blocks that fill the table of blocks,
 * not memory: in each round the storer stores more than the table holds, so whatever goes by age
 * alone is gone.
 */

#include "tests/lib/lib.h"

enum {
	PAGES = 64,
	ROUNDS = 250,
	ROUNDS_MAX = 50000,
	ENDED_MIN = 8,
	FEW = 4,
	REMEMBERED = 8,
	NEWCOMERS = 12,
	TABLE = 512,
	TABLE_ROUNDS = 15,
	PATIENCE_MS = 60000
};

static const char config[] = HOST("16M", "1M");
/* A quarter of the table, for two clients: 64 blocks each. A round stores 4. */
static const char small_table[] = HOST("16M", "1M") "[index]\nmax_blocks = 512\n";
/* A quarter of memory, for two clients: 21 blocks. The others are on NVMe alone. */
static const char table_of_a_disk[] = HOST("2M", "256K") "[nvme]\nbytes = 64M\nsegment_bytes = 1M\n"
							 "[index]\nmax_blocks = 512\n";

static struct {
	struct engine e;
	uint32_t chain; /* blocks of an op; as many ops as there are pages for */
	pthread_t thread;
	atomic_bool stop;
	uint64_t stored, refused;
	atomic_uint ended; /* its ops */
} s;

static struct daemon d;

static struct tally {
	uint32_t stored, refused, hits, misses;
} tally; /* of the quiet one */

static struct kvtier_geometry geometry_of(bool big)
{
	struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_RAW);

	if (big) {
		g = large_geometry(KVTIER_CODEC_RAW);
		g.layers = 30; /* 960 KiB a page */
	}
	g.model = big ? "big@1" : "other@1";
	return g;
}

static uint64_t begin_op(uint64_t chain, uint32_t first)
{
	const struct kvtier_op o = { .size = sizeof(o), .timeout_ms = PATIENCE_MS };
	struct kvtier_key keys[PAGES];
	uint32_t pages[PAGES];
	uint64_t op;

	chain_keys(&s.e, chain, s.chain, keys);
	pages_from(first, pages, s.chain);
	for (uint32_t i = 0; i < s.chain; i++)
		s.e.memory[pages[i] * s.e.page_bytes] = (uint8_t)chain;
	assert_int_equal(kvtier_store(s.e.space, keys, pages, s.chain, &o, &op), 0);
	return op;
}

static void *store_flat_out(TEST_UNUSED void *arg)
{
	uint64_t ops[PAGES], chain = 1000;
	const uint32_t n = PAGES / s.chain;

	for (uint32_t i = 0; i < n; i++)
		ops[i] = begin_op(chain++, i * s.chain);
	for (uint32_t i = 0; !atomic_load(&s.stop); i = (i + 1) % n) {
		struct kvtier_result result = { .size = sizeof(result) };

		assert_int_equal(kvtier_wait(s.e.client, ops[i], PATIENCE_MS, &result), 0);
		s.stored += result.ok;
		s.refused += s.chain - result.ok;
		atomic_fetch_add(&s.ended, 1);
		ops[i] = begin_op(chain++, i * s.chain);
	}
	return NULL;
}

static void quiet_round(struct engine *e, uint32_t round)
{
	struct kvtier_key keys[FEW];
	int32_t blocks[FEW];
	uint32_t pages[FEW];

	pages_from(0, pages, FEW);
	chain_keys(e, round, FEW, keys);
	for (uint32_t i = 0; i < FEW; i++)
		page_fill(e, pages[i], &keys[i], 0);
	(void)engine_store(e, keys, pages, FEW, NULL, blocks);
	for (uint32_t i = 0; i < FEW; i++) {
		tally.stored += blocks[i] >= 0;
		tally.refused += blocks[i] < 0;
	}
	for (uint32_t back = 0; back < REMEMBERED && back <= round; back++) {
		uint32_t hits;

		chain_keys(e, round - back, FEW, keys);
		hits = chain_load(e, keys, 0, FEW);
		tally.hits += hits;
		tally.misses += FEW - hits;
	}
}

static void greedy_begins(const char *lines, bool big, uint32_t chain)
{
	const struct kvtier_geometry greedy = geometry_of(big);

	memset(&s, 0, sizeof(s));
	tally = (struct tally){ 0 };
	s.chain = chain;
	daemon_start(&d, lines);
	engine_open(&s.e, d.socket, "greedy", &greedy, PAGES);
	assert_int_equal(pthread_create(&s.thread, NULL, store_flat_out, NULL), 0);
}

static void greedy_ends(void)
{
	atomic_store(&s.stop, true);
	assert_int_equal(pthread_join(s.thread, NULL), 0);
	printf("quiet: %u blocks stored, %u refused; %u hits, %u misses; greedy: %llu stored, %llu "
	       "refused\n",
	       tally.stored, tally.refused, tally.hits, tally.misses, (unsigned long long)s.stored,
	       (unsigned long long)s.refused);
	engine_close(&s.e);
	daemon_remove(&d);
	assert_int_equal(tally.refused, 0);
	assert_int_equal(tally.misses, 0);
	assert_true(atomic_load(&s.ended) >= ENDED_MIN && s.stored > 0);
}

static void quiet_beside(bool big, uint32_t chain)
{
	struct engine e;

	greedy_begins(config, big, chain);
	engine_open(&e, d.socket, "quiet", &tiny_raw, FEW);
	for (uint32_t round = 0;
	     round < ROUNDS || (round < ROUNDS_MAX && atomic_load(&s.ended) < ENDED_MIN); round++)
		quiet_round(&e, round);
	engine_close(&e);
	greedy_ends();
}

static void newcomers_beside(bool big, uint32_t chain)
{
	struct kvtier_geometry quiet = tiny_geometry(KVTIER_CODEC_RAW);

	greedy_begins(config, big, chain);
	daemon_stat_reaches(&d, "tiers.host.evicted_blocks_total", 1);
	for (uint32_t i = 0; i < NEWCOMERS; i++) {
		char model[32];
		struct engine e;

		(void)snprintf(model, sizeof(model), "newcomer@%u", i);
		quiet.model = model;
		engine_open(&e, d.socket, model, &quiet, FEW);
		for (uint32_t round = 0; round < REMEMBERED; round++)
			quiet_round(&e, round);
		engine_close(&e);
	}
	AWAIT(atomic_load(&s.ended) >= ENDED_MIN);
	greedy_ends();
}

/* The storer ends so many ops that the table holds none of the blocks that it held before. */
static void let_the_table_turn_over(void)
{
	const uint32_t ended = atomic_load(&s.ended);

	AWAIT(atomic_load(&s.ended) - ended >= TABLE / s.chain + PAGES / s.chain);
}

static void quiet_beside_a_full_table(const char *lines)
{
	struct engine e;

	greedy_begins(lines, false, 4);
	engine_open(&e, d.socket, "quiet", &tiny_raw, FEW);
	for (uint32_t round = 0; round < TABLE_ROUNDS; round++) {
		quiet_round(&e, round);
		let_the_table_turn_over();
	}
	engine_close(&e);
	greedy_ends();
}

TEST_DO(big_blocks_push_nobody_out, quiet_beside(true, 4));
TEST_DO(chains_longer_than_memory_push_nobody_out, quiet_beside(true, 32));
TEST_DO(many_small_blocks_push_nobody_out, quiet_beside(false, 4));
TEST_DO(a_full_table_pushes_nobody_out, quiet_beside_a_full_table(small_table));

TEST(a_table_full_of_blocks_on_nvme_pushes_nobody_out)
{
	if (!disk_dir())
		skip();
	quiet_beside_a_full_table(table_of_a_disk);
}

TEST_DO(big_blocks_take_no_newcomers_blocks, newcomers_beside(true, 4));
TEST_DO(chains_longer_than_memory_take_no_newcomers_blocks, newcomers_beside(true, 32));
