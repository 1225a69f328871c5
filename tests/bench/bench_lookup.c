/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_lookup.c - lookup.*: the client's reader over a table of 4 M blocks.
 *
 * The table is made once, by the first case that needs it (about 5 s), with every block a leaf.
 * Keys asked for are drawn anew for each sample, so buckets come from DRAM (or a last-level cache
 * that holds the table), as in an engine that does other work between lookups; the keys themselves
 * were just made, as there. The note of each case gives a dependent random read of as many bytes,
 * measured in the same run.
 */

#include "client/lib/base/map.h"
#include "daemon/table/block.h"
#include "daemon/index/index.h"
#include "bench.h"
#include "tests/lib/random.h"

enum {
	BLOCKS = 4 << 20,
	PROMPT = 8192,
	BATCH = 64,
	BATCHES = 500,
	SAMPLES = 40,
	RUNS = 15,
	CHASES = 20000
};
enum prompt { PROMPT_PRESENT, PROMPT_ABSENT, PROMPT_HALF };

struct bed {
	struct index *index;
	struct blocks *blocks;
	struct map *map;
	struct fingerprint_key index_key; /* of space 0: zeros */
	struct kvtier_key *keys;          /* room for the longest sample */
	uint32_t *chain; /* one cycle through as many cache lines as the table has */
	uint32_t lines;
	struct random random;
};

static void bed_fill(struct bed *bed)
{
	const struct extent where = { .tier = TIER_HOST };
	uint8_t key[32];
	uint32_t block;

	for (uint64_t i = 0; i < BLOCKS; i++) {
		random_key(i, key);
		bench_must(blocks_commit(bed->blocks, key, 0, BLOCK_NONE, 0, &where, &block));
		blocks_touch(bed->blocks, block, i);
	}
}

/* Sattolo's shuffle: a permutation that is one cycle. One word a cache line. */
static void bed_chain(struct bed *bed)
{
	bed->lines = (uint32_t)(index_bytes(bed->index) / 64);
	bed->chain = mmap(NULL, bed->lines * 64ull, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (bed->chain == MAP_FAILED)
		bench_must(-ENOMEM);
	for (uint32_t i = 0; i < bed->lines; i++)
		bed->chain[i * 16ull] = i;
	for (uint32_t i = bed->lines - 1; i > 0; i--) {
		const uint32_t j = random_below(&bed->random, i), swap = bed->chain[i * 16ull];

		bed->chain[i * 16ull] = bed->chain[j * 16ull];
		bed->chain[j * 16ull] = swap;
	}
}

/* The table of all cases here, until the program ends. */
static struct bed *bed_get(void)
{
	static struct bed bed;
	static bool made;
	const struct blocks_conf conf = { .max_blocks = BLOCKS };

	if (made)
		return &bed;
	bed.random.state = 1;
	bench_must(index_open(BLOCKS, &bed.index));
	bench_must(blocks_open(&conf, bed.index, &bed.blocks));
	bed_fill(&bed);
	bed.keys = calloc(BATCH * BATCHES > PROMPT ? BATCH * BATCHES : PROMPT, sizeof(*bed.keys));
	bench_must(bed.keys ? 0 : -ENOMEM);
	bench_must(map_open(index_fd(bed.index), index_bytes(bed.index), &bed.map));
	bed_chain(&bed);
	made = true;
	return &bed;
}

static double chase_ns(struct bed *bed)
{
	uint32_t at = random_below(&bed->random, bed->lines);
	const uint64_t start = bench_now_ns();

	for (int i = 0; i < CHASES; i++)
		at = bed->chain[at * 16ull];
	/* `at` is used, so the loop is not for nothing. */
	return (double)(bench_now_ns() - start + (at == UINT32_MAX)) / CHASES;
}

static void note(struct bench_result *ret, struct bed *bed)
{
	bench_note(ret, "%u blocks; a dependent random read of %u MB: %.0f ns", BLOCKS,
		   (uint32_t)(bed->lines * 64ull >> 20), chase_ns(bed));
}

static void run_block(const struct bench_case *self, struct bench_result *ret)
{
	uint8_t tiers[BATCH];
	struct bed *bed = bed_get();

	(void)self;
	for (int run = 0; run < RUNS; run++) {
		uint32_t found = 0;

		for (int i = 0; i < BATCH * BATCHES; i++)
			random_key(random_below(&bed->random, BLOCKS), bed->keys[i].bytes);
		const uint64_t start = bench_now_ns();
		for (int i = 0; i < BATCHES; i++) {
			map_probe(bed->map, &bed->index_key, bed->keys + i * BATCH, BATCH, tiers);
			found += tiers[0] != 0;
		}
		bench_add(ret, (double)(bench_now_ns() - start) / (BATCH * BATCHES), 100);
		if (found != BATCHES)
			bench_must(-EBADMSG);
	}
	note(ret, bed);
}

/* Fills a prompt with keys of which the first `present` are in the table. */
static void prompt_make(struct bed *bed, size_t present)
{
	for (size_t i = 0; i < PROMPT; i++) {
		const uint32_t number = random_below(&bed->random, BLOCKS);

		random_key(i < present ? number : BLOCKS + number, bed->keys[i].bytes);
	}
}

static size_t prompt_present(struct bed *bed, enum prompt prompt)
{
	switch (prompt) {
	case PROMPT_PRESENT:
		return PROMPT;
	case PROMPT_ABSENT:
		return 0;
	default:
		return 1 + random_below(&bed->random, PROMPT - 1);
	}
}

static void run_prompt(const struct bench_case *self, struct bench_result *ret)
{
	const enum prompt prompt = *(const enum prompt *)self->arg;
	struct bed *bed = bed_get();

	for (int run = 0; run < RUNS; run++) {
		uint64_t spent = 0;

		for (int i = 0; i < SAMPLES; i++) {
			const size_t present = prompt_present(bed, prompt);

			prompt_make(bed, present);
			const uint64_t start = bench_now_ns();
			const size_t found =
				map_prefix(bed->map, &bed->index_key, bed->keys, PROMPT, NULL);
			spent += bench_now_ns() - start;
			if (found != present)
				bench_must(-EBADMSG);
		}
		bench_add(ret, (double)spent / SAMPLES / 1000, 10);
	}
	note(ret, bed);
}

#define LESS(name, run, prose, unit, arg)                  \
	{                                                  \
		name, run, prose, 1, BENCH_LESS, unit, arg \
	}

const struct bench_case bench_lookup_cases[] = {
	LESS("lookup.block", run_block, "a random key, in batches of 64, of 4 Mi blocks", "ns",
	     NULL),
	LESS("lookup.prompt.present", run_prompt, "8,192-block prompt, all present", "us",
	     &(const enum prompt){ PROMPT_PRESENT }),
	LESS("lookup.prompt.absent", run_prompt, "8,192-block prompt, none present", "us",
	     &(const enum prompt){ PROMPT_ABSENT }),
	LESS("lookup.prompt.half", run_prompt, "8,192-block prompt, some present", "us",
	     &(const enum prompt){ PROMPT_HALF }),
	{ 0 },
};
