/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_copy_table - copies of blocks on devices against a naive model: arrays that are searched from
 * end to end. Method: random additions, removals, touches and pins, blocks that go while their
 * copies are pinned and whose numbers are used again, in units small enough to be full all the
 * time; after each step a random block is looked up on every unit and a victim is asked for; now
 * and then everything is compared; at the end every slot has come back.
 */
#include <errno.h>
#include <stdlib.h>

#include "daemon/store/copy_table.h"
#include "tests/lib/random.h"
#include "tests/lib/test.h"

enum { UNITS = 3, COPIES = 48, CLASSES = 4, BLOCKS = 100, STEPS = 200000, PINNED = 32 };

/* A copy, by its number; `order`: when it came or was touched last. */
struct row {
	bool kept, loose;
	uint32_t block, pins, class;
	uint64_t order;
};

struct pinned {
	uint32_t unit, copy;
};

struct model {
	struct copy_table *table;
	struct random random;
	struct row row[UNITS][COPIES];
	struct pinned pinned[PINNED];
	uint32_t n_pinned;
	uint64_t now, slots_out;
};

static uint32_t below(struct model *m, uint32_t n)
{
	return random_below(&m->random, n);
}

static struct row *row_of(struct model *m, uint32_t unit, uint32_t block)
{
	for (uint32_t i = 0; i < COPIES; i++)
		if (m->row[unit][i].kept && m->row[unit][i].block == block)
			return &m->row[unit][i];
	return NULL;
}

/* As the owner of a slot: asked of no copy that is not kept. */
static uint32_t block_of(void *arg, uint32_t unit, uint32_t copy)
{
	const struct model *m = arg;

	assert_true(copy < COPIES && m->row[unit][copy].kept);
	return m->row[unit][copy].block;
}

/* As an allocator of slots: any that is free, or one that the table has no number for. */
static uint32_t free_copy(struct model *m, uint32_t unit)
{
	const uint32_t first = below(m, COPIES);

	for (uint32_t i = 0; i < COPIES; i++) {
		const uint32_t at = (first + i) % COPIES;

		if (!m->row[unit][at].kept && !m->row[unit][at].loose)
			return at;
	}
	return COPIES + below(m, 10);
}

static void add(struct model *m, uint32_t unit, uint32_t block)
{
	const struct row row = {
		.kept = true, .block = block, .class = below(m, CLASSES), .order = ++m->now
	};
	const uint32_t copy = free_copy(m, unit);
	const int expected = copy >= COPIES ? -ENOSPC : row_of(m, unit, block) ? -EEXIST : 0;

	if (copy < COPIES)
		m->row[unit][copy] = row;
	assert_int_equal(copy_table_add(m->table, block, unit, copy, row.class), expected);
	m->slots_out += expected == 0;
	if (expected == -EEXIST)
		m->row[unit][copy].kept = false;
}

static void take_out(struct model *m, uint32_t unit, struct row *row)
{
	assert_ptr_equal(&m->row[unit][copy_table_remove(m->table, row->block, unit)], row);
	row->kept = false;
	m->slots_out--;
}

/* Every slot that comes back is one of a loose row without pins, each once. */
static void take_loose(struct model *m)
{
	uint32_t unit, copy;

	while (copy_table_loose(m->table, &unit, &copy)) {
		struct row *row = &m->row[unit][copy];

		assert_true(row->loose && !row->pins);
		row->loose = false;
		m->slots_out--;
	}
	for (unit = 0; unit < UNITS; unit++)
		for (uint32_t i = 0; i < COPIES; i++)
			assert_false(m->row[unit][i].loose && !m->row[unit][i].pins);
}

static void forget(struct model *m, uint32_t block)
{
	copy_table_forget(m->table, block);
	for (uint32_t unit = 0; unit < UNITS; unit++) {
		struct row *row = row_of(m, unit, block);

		if (!row)
			continue;
		row->kept = false;
		row->loose = true;
	}
}

static void touch(struct model *m, uint32_t unit, struct row *row)
{
	copy_table_touch(m->table, row->block, unit);
	row->order = ++m->now;
}

static void pin(struct model *m, uint32_t unit, struct row *row)
{
	if (m->n_pinned == PINNED)
		return;
	m->pinned[m->n_pinned] =
		(struct pinned){ unit, copy_table_pin(m->table, row->block, unit) };
	assert_ptr_equal(&m->row[unit][m->pinned[m->n_pinned++].copy], row);
	row->pins++;
}

static void unpin(struct model *m)
{
	const uint32_t at = below(m, m->n_pinned);
	const struct pinned p = m->pinned[at];

	m->pinned[at] = m->pinned[--m->n_pinned];
	copy_table_unpin(m->table, p.unit, p.copy);
	m->row[p.unit][p.copy].pins--;
}

static void compare_victim(struct model *m, uint32_t unit, uint32_t class)
{
	const struct row *best = NULL;
	const uint32_t victim = copy_table_victim(m->table, unit, class);

	for (uint32_t i = 0; i < COPIES; i++) {
		const struct row *r = &m->row[unit][i];

		if (r->kept && !r->pins && r->class == class && (!best || r->order < best->order))
			best = r;
	}
	assert_int_equal(victim, best ? best->block : COPY_NONE);
}

static void compare(struct model *m, uint32_t block)
{
	uint64_t units = 0;

	for (uint32_t unit = 0; unit < UNITS; unit++) {
		const struct row *row = row_of(m, unit, block);
		uint32_t copy;

		units |= (uint64_t)(row != NULL) << unit;
		assert_int_equal(copy_table_find(m->table, block, unit, &copy), row != NULL);
		if (row)
			assert_ptr_equal(&m->row[unit][copy], row);
	}
	assert_int_equal(copy_table_units(m->table, block), units);
}

static void compare_all(struct model *m)
{
	for (uint32_t block = 0; block < BLOCKS; block++)
		compare(m, block);
	for (uint32_t unit = 0; unit < UNITS; unit++) {
		uint32_t kept = 0;

		for (uint32_t i = 0; i < COPIES; i++)
			kept += m->row[unit][i].kept;
		assert_int_equal(copy_table_count(m->table, unit), kept);
		for (uint32_t class = 0; class < CLASSES; class ++)
			compare_victim(m, unit, class);
	}
}

static void step(struct model *m)
{
	const uint32_t unit = below(m, UNITS), block = below(m, BLOCKS), what = below(m, 32);
	struct row *row = row_of(m, unit, block);

	if (what == 0)
		forget(m, block);
	else if (what == 1)
		take_loose(m);
	else if (what < 8 && m->n_pinned)
		unpin(m);
	else if (!row || what == 31)
		add(m, unit, block);
	else if (what < 14)
		pin(m, unit, row);
	else if (what < 20 && !row->pins)
		take_out(m, unit, row);
	else
		touch(m, unit, row);
}

TEST(everything_is_what_the_naive_model_is)
{
	const uint64_t steps = env_number("STEPS", STEPS);
	struct model *m = calloc(1, sizeof(*m));

	assert_non_null(m);
	m->random = random_seeded("sim_copy_table");
	const struct copy_table_conf conf = { .units = UNITS,
					      .copies = COPIES,
					      .classes = CLASSES,
					      .seed = random_next(&m->random),
					      .block_of = block_of,
					      .arg = m };

	assert_int_equal(copy_table_open(&conf, &m->table), 0);
	for (uint64_t i = 0; i < steps; i++) {
		step(m);
		compare(m, below(m, BLOCKS));
		compare_victim(m, below(m, UNITS), below(m, CLASSES));
		if (i % 500 == 0)
			compare_all(m);
	}
	for (uint32_t block = 0; block < BLOCKS; block++)
		forget(m, block);
	while (m->n_pinned)
		unpin(m);
	take_loose(m);
	assert_int_equal(m->slots_out, 0);
	compare_all(m);
	copy_table_close(m->table);
	free(m);
}
