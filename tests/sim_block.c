/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_block - table, index, policy and the client's reader together against a naive model.
 * Method: random commits, touches, pins, moves, evictions, drops and condemnations, in a table small enough
 * to be full and to reuse its numbers all the time; after each step a random key is looked up in all of them,
 * and now and then everything is compared; at the end the numbers are shown not to be lost.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>

#include "../client/map.h"
#include "../daemon/block.h"
#include "random.h"

enum { KEYS = 400, MAX = 150, SPACES = 3, CLASSES = 4, STEPS = 200000, NOT_HERE = 0xfffffff0 };

/* One key's block, as the model has it. */
struct entry {
	bool here;
	uint32_t block, space, parent;		/* parent: key number */
	uint32_t pins, children;		/* children: those that are here and name this very block */
	uint64_t tick, life;
	struct extent where;
};

struct model {
	struct index *index;
	struct blocks *blocks;
	struct map *map;
	struct random random;
	struct entry entry[KEYS];
	uint64_t parent_life[KEYS];	/* of the parent block when the child came */
	uint32_t held[MAX];		/* condemned blocks still pinned: pins by block number */
	uint32_t here, condemned, returned;
	uint64_t now, lives;
};

static struct extent random_extent(struct model *m)
{
	return (struct extent){
		.tier = (uint8_t)random_below(&m->random, TIER_COUNT),
		.device = (uint8_t)random_below(&m->random, 256),
		.class = (uint8_t)random_below(&m->random, CLASSES),
		.slot = (uint32_t)random_next(&m->random),
		.generation = (uint32_t)random_next(&m->random),
	};
}

static bool parent_lives(const struct model *m, uint32_t k)
{
	const uint32_t p = m->entry[k].parent;

	return p != NOT_HERE && m->entry[p].here && m->entry[p].life == m->parent_life[k];
}

static void commit(struct model *m, uint32_t k)
{
	struct entry *e = &m->entry[k];
	const uint32_t p = random_below(&m->random, KEYS), space = random_below(&m->random, SPACES);
	const bool chained = m->entry[p].here && m->entry[p].space == space && p != k;
	const struct extent where = random_extent(m);
	uint32_t block;
	uint8_t key[32];

	random_key(k, key);
	const uint32_t parent = m->entry[p].here ? m->entry[p].block : BLOCK_NONE;
	const int r = blocks_commit(m->blocks, key, space, parent, &where, &block);
	if (r == -ENOSPC) {
		assert_int_equal(blocks_count(m->blocks), m->here);
		return;
	}
	assert_int_equal(r, 0);
	*e = (struct entry){ .here = true, .block = block, .space = space, .parent = chained ? p : NOT_HERE,
			     .tick = m->now, .life = ++m->lives, .where = where };
	if (chained) {
		m->entry[p].children++;
		m->parent_life[k] = m->entry[p].life;
	}
	m->here++;
}

static void forget(struct model *m, uint32_t k)
{
	if (parent_lives(m, k))
		m->entry[m->entry[k].parent].children--;
	m->entry[k].here = false;
	m->here--;
}

static void drop(struct model *m, uint32_t k)
{
	struct extent where;

	if (m->entry[k].pins || m->entry[k].children)
		return;
	blocks_drop(m->blocks, m->entry[k].block, &where);
	assert_memory_equal(&where, &m->entry[k].where, sizeof(where));
	forget(m, k);
}

static void condemn(struct model *m, uint32_t k)
{
	blocks_condemn(m->blocks, m->entry[k].block);
	m->held[m->entry[k].block] = m->entry[k].pins;
	m->condemned++;
	forget(m, k);
}

/* Lets go of the pins of one condemned block, and takes what became free. */
static void release(struct model *m, uint32_t block)
{
	struct extent where;

	while (m->held[block]) {
		m->held[block]--;
		blocks_unpin(m->blocks, block);
	}
	while (blocks_condemned(m->blocks, &where))
		m->returned++;
}

static void evict(struct model *m)
{
	const uint32_t class = random_below(&m->random, CLASSES);
	uint32_t best = NOT_HERE, k;
	uint64_t tick;
	const uint32_t victim = blocks_victim(m->blocks, class, &tick);

	for (k = 0; k < KEYS; k++) {
		const struct entry *e = &m->entry[k];

		if (e->here && !e->pins && !e->children && e->where.class == class &&
		    (best == NOT_HERE || e->tick < m->entry[best].tick ||
		     (e->tick == m->entry[best].tick && e->block < m->entry[best].block)))
			best = k;
	}
	assert_int_equal(victim, best == NOT_HERE ? BLOCK_NONE : m->entry[best].block);
	if (best == NOT_HERE)
		return;
	assert_int_equal(tick, m->entry[best].tick);
	drop(m, best);
}

static void move(struct model *m, uint32_t k)
{
	if (m->entry[k].pins)
		return;
	m->entry[k].where = random_extent(m);
	blocks_move(m->blocks, m->entry[k].block, &m->entry[k].where);
}

static void step(struct model *m)
{
	const uint32_t k = random_below(&m->random, KEYS), what = random_below(&m->random, 64);
	struct entry *e = &m->entry[k];

	if (what == 0)
		release(m, random_below(&m->random, MAX));
	else if (what < 8)
		evict(m);
	else if (!e->here)
		commit(m, k);
	else if (what < 12)
		drop(m, k);
	else if (what < 14)
		condemn(m, k);
	else if (what < 20)
		move(m, k);
	else if (what < 28) {
		blocks_pin(m->blocks, e->block);
		e->pins++;
	} else if (what < 44 && e->pins) {
		blocks_unpin(m->blocks, e->block);
		e->pins--;
	} else {
		e->tick = ++m->now;
		blocks_touch(m->blocks, e->block, e->tick);
	}
}

static void compare(struct model *m, uint32_t k)
{
	const struct entry *e = &m->entry[k];
	struct kvtier_key key;
	struct extent where;
	uint8_t tiers;

	random_key(k, key.bytes);
	map_probe(m->map, &key, 1, &tiers);
	assert_int_equal(tiers, e->here ? 1 << e->where.tier : 0);
	for (uint32_t space = 0; space < SPACES; space++)
		assert_int_equal(blocks_find(m->blocks, key.bytes, space),
				 e->here && e->space == space ? e->block : BLOCK_NONE);
	if (!e->here)
		return;
	blocks_extent(m->blocks, e->block, &where);
	assert_memory_equal(&where, &e->where, sizeof(where));
	assert_memory_equal(blocks_key(m->blocks, e->block), key.bytes, 32);
	assert_int_equal(blocks_pins(m->blocks, e->block), e->pins);
}

static void compare_all(struct model *m)
{
	uint32_t count[SPACES] = { 0 };

	for (uint32_t k = 0; k < KEYS; k++) {
		compare(m, k);
		if (m->entry[k].here)
			count[m->entry[k].space]++;
	}
	for (uint32_t space = 0; space < SPACES; space++)
		assert_int_equal(blocks_space_count(m->blocks, space), count[space]);
	assert_int_equal(blocks_count(m->blocks), m->here);
	assert_int_equal(index_entries(m->index), m->here);
}

/* Everything goes; then the whole table must be there to use. */
static void empty_and_refill(struct model *m)
{
	for (uint32_t k = 0; k < KEYS; k++) {
		struct entry *e = &m->entry[k];

		for (; e->here && e->pins; e->pins--)
			blocks_unpin(m->blocks, e->block);
		if (e->here)
			condemn(m, k);
	}
	for (uint32_t block = 0; block < MAX; block++)
		release(m, block);
	assert_int_equal(m->returned, m->condemned);
	assert_int_equal(m->here, 0);
	for (uint32_t k = 0; k < MAX; k++)
		commit(m, k);
	assert_int_equal(m->here, MAX);
}

static void everything_is_what_the_naive_model_is(void **state)
{
	struct model *m = calloc(1, sizeof(*m));

	(void)state;
	assert_non_null(m);
	m->random = random_seeded("sim_block");
	assert_int_equal(index_open(MAX, &m->index), 0);
	assert_int_equal(blocks_open(&(struct blocks_conf){ .max_blocks = MAX, .classes = CLASSES }, m->index,
				     &m->blocks), 0);
	assert_int_equal(map_open(index_fd(m->index), index_bytes(m->index), &m->map), 0);
	for (uint32_t i = 0; i < STEPS; i++) {
		step(m);
		compare(m, random_below(&m->random, KEYS));
		if (i % 500 == 0)
			compare_all(m);
	}
	empty_and_refill(m);
	compare_all(m);
	map_close(m->map);
	blocks_close(m->blocks);
	index_close(m->index);
	free(m);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(everything_is_what_the_naive_model_is) };

	return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
