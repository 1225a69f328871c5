/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * sim_gpu_cache - copies of blocks on GPUs against a naive model: arrays that are searched from end
 * to end. Method: random keeps, hits, checks and evictions, bad copies, blocks that go while their
 * copies are pinned and whose numbers are used again, memory that is lost, on GPUs small enough to
 * be full all the time; after each step a random block is looked up on every GPU; now and then
 * everything is compared; at the end every slot has come back.
 */
#include "tests/lib/lib_gpu_cache.h"
#include "tiers/slabs.h"

enum {
	UNITS = 3,
	SLOT = 4096,
	SLAB = 16 * SLOT,
	SLOTS = 48,
	KEYS = 100,
	STEPS = 200000,
	USES = 32
};

/* A copy; `order`: when it came or was hit last. */
struct row {
	bool kept, loose;
	uint32_t key, pins;
	uint64_t order;
};

struct pinned {
	struct gpu_use use;
	struct row *row;
};

struct model {
	struct gpu_rig rig;
	struct random random;
	struct row row[UNITS][SLOTS];
	struct pinned pinned[USES];
	uint32_t n_pinned, generation;
	bool here[KEYS];
	uint64_t now;
};

static uint32_t below(struct model *m, uint32_t n)
{
	return random_below(&m->random, n);
}

static struct row *row_of(struct model *m, uint32_t unit, uint32_t key)
{
	for (uint32_t i = 0; i < SLOTS; i++)
		if (m->row[unit][i].kept && m->row[unit][i].key == key)
			return &m->row[unit][i];
	return NULL;
}

static struct row *free_row(struct model *m, uint32_t unit)
{
	for (uint32_t i = 0; i < SLOTS; i++)
		if (!m->row[unit][i].kept && !m->row[unit][i].loose)
			return &m->row[unit][i];
	return NULL;
}

/* The least recent one without pins. */
static struct row *victim(struct model *m, uint32_t unit)
{
	struct row *best = NULL;

	for (uint32_t i = 0; i < SLOTS; i++) {
		struct row *row = &m->row[unit][i];

		if (row->kept && !row->pins && (!best || row->order < best->order))
			best = row;
	}
	return best;
}

static void let_go(struct row *row)
{
	row->kept = false;
	row->loose = row->pins > 0;
}

static void keep(struct model *m, uint32_t unit, uint32_t key)
{
	const bool there = row_of(m, unit, key) != NULL;
	struct row *row = there ? NULL : free_row(m, unit);

	if (!there && !row) {
		row = victim(m, unit);
		if (row)
			row->kept = false;
	}
	assert_int_equal(gpu_rig_keep(&m->rig, unit, key, 0), row != NULL);
	if (row && m->here[key])
		*row = (struct row){ .kept = true, .key = key, .order = ++m->now };
}

static void pin(struct model *m, uint32_t unit, struct row *row, bool hit)
{
	struct pinned *p = &m->pinned[m->n_pinned];
	struct device_job job = { 0 };
	const uint32_t block = gpu_rig_find(&m->rig, row->key, 0);

	if (m->n_pinned == USES)
		return;
	*p = (struct pinned){ gpu_rig_use(&m->rig, unit, 0), row };
	if (hit) {
		assert_true(gpu_cache_pin(m->rig.cache, &p->use, block, &job));
		row->order = ++m->now;
	} else {
		gpu_cache_hold(m->rig.cache, &p->use, block);
	}
	row->pins++;
	m->n_pinned++;
}

static void unpin(struct model *m)
{
	const uint32_t at = below(m, m->n_pinned);
	struct pinned p = m->pinned[at];

	m->pinned[at] = m->pinned[--m->n_pinned];
	gpu_cache_unpin(m->rig.cache, &p.use);
	p.row->pins--;
	p.row->loose = p.row->loose && p.row->pins > 0;
}

/* The block goes, or comes. */
static void change(struct model *m, uint32_t key)
{
	m->here[key] = !m->here[key];
	if (m->here[key]) {
		(void)gpu_rig_block(&m->rig, key, 0);
		return;
	}
	copies_condemn(&m->rig.tables, gpu_rig_find(&m->rig, key, 0));
	for (uint32_t unit = 0; unit < UNITS; unit++)
		if (row_of(m, unit, key))
			let_go(row_of(m, unit, key));
}

static void evict(struct model *m)
{
	uint64_t evicted;
	uint32_t unit = 0;

	while (unit < UNITS && !victim(m, unit))
		unit++;
	assert_int_equal(gpu_cache_evict(m->rig.cache, 1, 1, &evicted), unit < UNITS ? SLOT : 0);
	assert_int_equal(evicted, unit < UNITS);
	if (unit == UNITS)
		return;
	/* of the block that is the oldest, which is the least recent copy's in a class */
	victim(m, unit)->kept = false;
}

static void lose(struct model *m, uint32_t unit)
{
	for (uint32_t i = 0; i < SLOTS; i++)
		if (m->row[unit][i].pins)
			return;
	gpu_rig_memory(&m->rig, unit, SLOTS * SLOT, ++m->generation);
	gpu_rig_iterate(&m->rig);
	for (uint32_t i = 0; i < SLOTS; i++)
		m->row[unit][i].kept = false;
}

static void compare(struct model *m, uint32_t key)
{
	for (uint32_t unit = 0; unit < UNITS; unit++)
		assert_int_equal(gpu_rig_has(&m->rig, unit, key, 0), row_of(m, unit, key) != NULL);
}

static void compare_all(struct model *m)
{
	uint32_t slots = 0;

	for (uint32_t key = 0; key < KEYS; key++)
		compare(m, key);
	for (uint32_t unit = 0; unit < UNITS; unit++)
		for (uint32_t i = 0; i < SLOTS; i++)
			slots += m->row[unit][i].kept || m->row[unit][i].loose;
	assert_int_equal(m->rig.tables.tiers[TIER_GPU]->extents, slots);
}

static void step(struct model *m)
{
	const uint32_t unit = below(m, UNITS), key = below(m, KEYS), what = below(m, 64);
	struct row *row = row_of(m, unit, key);

	if (what < 6)
		change(m, key);
	else if (what == 6)
		evict(m);
	else if (what == 7 && below(m, 100) == 0)
		lose(m, unit);
	else if (what < 20 && m->n_pinned)
		unpin(m);
	else if (!row || what == 63)
		keep(m, unit, key);
	else if (what < 40)
		pin(m, unit, row, what < 30);
	else if (what < 44) {
		gpu_cache_condemn(m->rig.cache, gpu_rig_find(&m->rig, key, 0), unit);
		let_go(row);
	}
}

TEST(everything_is_what_the_naive_model_is)
{
	const uint64_t steps = env_number("STEPS", STEPS);
	struct model *m = calloc(1, sizeof(*m));

	assert_non_null(m);
	m->random = random_seeded("sim_gpu_cache");
	gpu_rig_open(&m->rig, &(struct gpu_rig_conf){ .units = UNITS,
						      .blocks = 2 * KEYS,
						      .unit_bytes = SLOTS * SLOT,
						      .slab_bytes = SLAB,
						      .image_bytes = { SLOT, SLOT, SLOT } });
	for (uint32_t unit = 0; unit < UNITS; unit++)
		gpu_rig_memory(&m->rig, unit, SLOTS * SLOT, ++m->generation);
	for (uint64_t i = 0; i < steps; i++) {
		step(m);
		compare(m, below(m, KEYS));
		if (i % 500 == 0)
			compare_all(m);
	}
	for (uint32_t key = 0; key < KEYS; key++)
		if (m->here[key])
			change(m, key);
	while (m->n_pinned)
		unpin(m);
	assert_int_equal(m->rig.tables.tiers[TIER_GPU]->extents, 0);
	compare_all(m);
	gpu_rig_close(&m->rig);
	free(m);
}
