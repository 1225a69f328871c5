/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unit_map_race - readers while the writer inserts, removes, splits and displaces: stable keys are
 * found every time; keys that were never there, and keys removed before, never. Method: one writer
 * does a fixed number of steps around a set of stable keys, in a table that churns full, so that
 * stable entries are displaced all the time, or in one that grows from one page; two threads probe
 * until it is done. Meant for -fsanitize=thread too. A writer that stops half-way is played by
 * hand.
 */

#include "client/lib/base/map.h"
#include "daemon/index/index.h"
#include "tests/lib/test.h"

enum {
	SMALL = 2000,
	LARGE = 20000,
	STABLE = 500,
	STEPS = 200000,
	ROUNDS = 20,
	READERS = 2,
	BATCH = 64
};

static const struct fingerprint_key index_key = { { 1, 2 } };

struct race {
	struct index *index;
	struct map *map;
	struct kvtier_key stable[STABLE], never[STABLE], removed[STABLE];
	uint32_t started, stop;
};

struct reader {
	struct race *race;
	struct random random;
	uint64_t missed, ghosts;
};

static void *read_loop(void *arg)
{
	struct reader *reader = arg;
	struct race *race = reader->race;
	uint8_t tiers[BATCH];

	__atomic_fetch_add(&race->started, 1, __ATOMIC_RELAXED);
	while (!__atomic_load_n(&race->stop, __ATOMIC_RELAXED)) {
		const uint32_t first = random_below(&reader->random, STABLE - BATCH);

		map_probe(race->map, &index_key, race->stable + first, BATCH, tiers);
		for (int i = 0; i < BATCH; i++)
			reader->missed += tiers[i] != 2;
		map_probe(race->map, &index_key, race->never + first, BATCH, tiers);
		for (int i = 0; i < BATCH; i++)
			reader->ghosts += tiers[i] != 0;
		map_probe(race->map, &index_key, race->removed + first, BATCH, tiers);
		for (int i = 0; i < BATCH; i++)
			reader->ghosts += tiers[i] != 0;
	}
	return NULL;
}

static int insert(struct race *race, const uint8_t key[32], uint32_t block, uint32_t tiers,
		  uint32_t generation)
{
	const struct print print = fingerprint(&index_key, key);

	return index_insert(race->index, &print, block, tiers, generation);
}

static void erase(struct race *race, const uint8_t key[32], uint32_t block)
{
	const struct print print = fingerprint(&index_key, key);

	index_remove(race->index, &print, block);
}

static void fill(struct race *race)
{
	for (uint32_t i = 0; i < STABLE; i++) {
		random_key(1u << 20 | i, race->stable[i].bytes);
		random_key(1u << 21 | i, race->never[i].bytes);
		random_key(1u << 22 | i, race->removed[i].bytes);
		/* An entry in the buckets of a key that was never there: only a bit that names no
		 * bucket of so small a table, of one half or the other, tells them apart. */
		if (i % 2) {
			struct print print = fingerprint(&index_key, race->never[i].bytes);

			print.half[i / 2 % 2] ^= 1ull << 31;
			assert_int_equal(index_insert(race->index, &print, 1u << 21 | i, 2, i), 0);
		}
		assert_int_equal(insert(race, race->stable[i].bytes, 1u << 20 | i, 2, i), 0);
	}
	for (uint32_t i = 0; i < STABLE; i++)
		assert_int_equal(insert(race, race->removed[i].bytes, 1u << 22 | i, 2, i), 0);
	for (uint32_t i = 0; i < STABLE; i++)
		erase(race, race->removed[i].bytes, 1u << 22 | i);
}

/* Grows the table to its end, then replaces entries in it at random. */
static void write_steps(struct race *race, struct random *random, uint32_t max, uint32_t steps)
{
	uint32_t live[LARGE], n = 0, next = 0;
	uint8_t key[32];

	for (uint32_t step = 0; step < steps; step++) {
		if (n == max - STABLE - STABLE / 2) {
			const uint32_t i = random_below(random, n);

			random_key(live[i], key);
			erase(race, key, live[i]);
			live[i] = live[--n];
		}
		random_key(next, key);
		if (insert(race, key, next, 1, step) == 0)
			live[n++] = next;
		next++;
	}
}

static void run(struct random *random, uint32_t max, uint32_t steps)
{
	struct race *race = calloc(1, sizeof(*race));
	struct reader reader[READERS];
	pthread_t thread[READERS];

	assert_non_null(race);
	assert_int_equal(index_open(max, &race->index), 0);
	assert_int_equal(map_open(index_fd(race->index), index_bytes(race->index), &race->map), 0);
	fill(race);
	for (uint32_t i = 0; i < READERS; i++) {
		reader[i] =
			(struct reader){ .race = race, .random = { .state = random_next(random) } };
		assert_int_equal(pthread_create(&thread[i], NULL, read_loop, &reader[i]), 0);
	}
	while (__atomic_load_n(&race->started, __ATOMIC_RELAXED) < READERS)
		(void)sched_yield();
	write_steps(race, random, max, steps);
	__atomic_store_n(&race->stop, 1, __ATOMIC_RELAXED);
	for (uint32_t i = 0; i < READERS; i++) {
		assert_int_equal(pthread_join(thread[i], NULL), 0);
		assert_int_equal(reader[i].missed, 0);
		assert_int_equal(reader[i].ghosts, 0);
	}
	map_close(race->map);
	index_close(race->index);
	free(race);
}

TEST(stable_keys_are_found_while_others_displace_them)
{
	struct random random = random_seeded("unit_map_race");

	run(&random, SMALL, STEPS);
}

/* Each round splits every bucket there is a few times, and ends when the table is full. */
TEST(stable_keys_are_found_while_buckets_split)
{
	struct random random = random_seeded("unit_map_race");

	for (int i = 0; i < ROUNDS; i++)
		run(&random, LARGE, LARGE - STABLE);
}

static struct wire_bucket *bucket_at(struct index *index, uint64_t half)
{
	struct wire_index *head = index_head(index);

	return (struct wire_bucket *)(void *)((uint8_t *)head + WIRE_INDEX_OFFSET) +
	       wire_bucket_of(half, head->shape);
}

/* A daemon killed while it wrote a slot leaves part of it: this entry is absent, the others are
 * found. */
TEST(a_writer_stopped_half_way_hides_nothing)
{
	struct kvtier_key key, lost;
	struct print print, lost_print;
	struct wire_bucket *bucket;
	struct index *index;
	struct map *map;
	uint8_t tiers;
	uint64_t number = 1;

	random_key(number, key.bytes);
	print = fingerprint(&index_key, key.bytes);
	assert_int_equal(index_open(SMALL, &index), 0);
	assert_int_equal(map_open(index_fd(index), index_bytes(index), &map), 0);
	assert_int_equal(index_insert(index, &print, 1, 2, 0), 0);
	bucket = bucket_at(index, print.half[0]);
	do {
		random_key(++number, lost.bytes);
		lost_print = fingerprint(&index_key, lost.bytes);
	} while (bucket_at(index, lost_print.half[0]) != bucket);
	bucket->seq++;
	bucket->print[1] = wire_print_of(lost_print.half); /* its meta never came */
	map_probe(map, &index_key, &key, 1, &tiers);
	assert_int_equal(tiers, 2);
	map_probe(map, &index_key, &lost, 1, &tiers);
	assert_int_equal(tiers, 0);
	map_close(map);
	index_close(index);
}
