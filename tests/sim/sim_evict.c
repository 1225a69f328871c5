/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_evict - leaf-first LRU, and the order of blocks that are expected back, are exactly the
 * policies they say they are. Method: random operations on
 * evict.c and on a naive model that scans all blocks for its victim, compared after each. Hit rates
 * on a real trace: sim_evict_trace.c.
 */

#include "daemon/table/evict.h"
#include "tests/lib/test.h"

enum { BLOCKS = 200, CLASSES = 3, OPS = 300000 };

struct model_block {
	bool here, hidden, away;
	uint32_t parent, class, pins, children;
	uint64_t tick;
	uint64_t back; /* 0: it is not expected */
};

struct model {
	struct model_block block[BLOCKS];
	struct evict *evict;
	struct random random;
	uint64_t now;
};

static bool model_candidate(const struct model *m, uint32_t i, uint32_t class, bool expected)
{
	const struct model_block *b = &m->block[i];

	return b->here && !b->hidden && !b->away && !b->pins && !b->children && b->class == class &&
	       (b->back > 0) == expected;
}

/* The first one by the return: the one that is overdue for longest, or the farthest. */
static uint32_t model_farthest(const struct model *m, uint32_t class)
{
	uint32_t late = EVICT_NONE, far = EVICT_NONE;

	for (uint32_t i = 0; i < BLOCKS; i++) {
		if (!model_candidate(m, i, class, true))
			continue;
		if (late == EVICT_NONE || m->block[i].back < m->block[late].back)
			late = i;
		if (far == EVICT_NONE || m->block[i].back >= m->block[far].back)
			far = i;
	}
	if (late != EVICT_NONE && m->block[late].back < m->now &&
	    2 * (m->now - m->block[late].tick) > m->block[far].back - m->now &&
	    m->block[far].back >= m->now)
		return late;
	return late != EVICT_NONE && m->block[far].back < m->now &&
			       m->block[late].tick < m->block[far].tick ?
		       late :
		       far;
}

static uint32_t model_victim(const struct model *m, uint32_t class, bool expected)
{
	uint32_t ret = EVICT_NONE;

	for (uint32_t i = 0; i < BLOCKS; i++) {
		if (!model_candidate(m, i, class, expected))
			continue;
		if (ret == EVICT_NONE || m->block[i].tick < m->block[ret].tick)
			ret = i;
	}
	return ret;
}

static uint32_t model_parent(struct model *m)
{
	const uint32_t parent = random_below(&m->random, BLOCKS);
	const struct model_block *b = &m->block[parent];

	return !b->here || b->hidden || b->away || random_below(&m->random, 4) == 0 ? EVICT_NONE :
										      parent;
}

/* New, or back from being away. */
static void model_add(struct model *m, uint32_t i)
{
	struct model_block *b = &m->block[i];
	const uint32_t parent = b->children ? EVICT_NONE : model_parent(m);

	b->parent = parent;
	b->class = random_below(&m->random, CLASSES);
	if (parent != EVICT_NONE)
		m->block[parent].children++;
	if (b->away)
		evict_return(m->evict, i, parent, b->class);
	else
		evict_add(m->evict, i, parent, b->class, m->now);
	b->away = false;
}

static void model_new(struct model *m, uint32_t i)
{
	m->block[i] = (struct model_block){ .parent = EVICT_NONE,
					    .tick = m->now,
					    .away = random_below(&m->random, 4) == 0 };
	if (m->block[i].away)
		evict_add_away(m->evict, i, m->now);
	else
		model_add(m, i);
	m->block[i].here = true;
}

static uint32_t model_leave(struct model *m, uint32_t i)
{
	const uint32_t parent = m->block[i].parent;

	if (parent != EVICT_NONE)
		m->block[parent].children--;
	m->block[i].parent = EVICT_NONE;
	return parent;
}

/* One random operation that is legal for block i. */
static void model_step(struct model *m, uint32_t i)
{
	struct model_block *b = &m->block[i];

	m->now += random_below(&m->random, 2);
	if (!b->here) {
		model_new(m, i);
		return;
	}
	switch (random_below(&m->random, 10)) {
	case 0:
		if (b->pins || b->children)
			break;
		assert_int_equal(evict_remove(m->evict, i), model_leave(m, i));
		b->here = false;
		break;
	case 1:
		b->pins++;
		evict_pin(m->evict, i);
		break;
	case 2:
	case 3:
		if (!b->pins)
			break;
		b->pins--;
		evict_unpin(m->evict, i);
		break;
	case 4:
		if (b->away)
			break;
		b->class = random_below(&m->random, CLASSES);
		evict_move(m->evict, i, b->class);
		break;
	case 5:
		if (b->hidden || random_below(&m->random, 8))
			break;
		assert_int_equal(evict_hide(m->evict, i), model_leave(m, i));
		b->hidden = true;
		b->away = false;
		b->back = 0;
		break;
	case 6:
		if (b->away) {
			model_add(m, i);
		} else if (!b->hidden && !b->pins) {
			assert_int_equal(evict_leave(m->evict, i), model_leave(m, i));
			b->away = true;
		}
		break;
	case 7:
		if (b->hidden)
			break;
		b->back = m->now + random_below(&m->random, 4000);
		evict_expect(m->evict, i, b->back);
		break;
	default:
		if (b->tick < m->now)
			b->back = 0;
		b->tick = m->now;
		evict_touch(m->evict, i, m->now);
	}
}

static void model_compare(const struct model *m, uint32_t i)
{
	const struct model_block *b = &m->block[i];

	for (uint32_t class = 0; class < CLASSES; class ++) {
		assert_int_equal(evict_victim(m->evict, 0, class, EVICT_USUAL),
				 model_victim(m, class, false));
		assert_int_equal(evict_victim(m->evict, 0, class, EVICT_EXPECTED),
				 model_victim(m, class, true));
		assert_int_equal(evict_farthest(m->evict, 0, class, m->now),
				 model_farthest(m, class));
	}
	if (!b->here)
		return;
	assert_int_equal(evict_pins(m->evict, i), b->pins);
	assert_int_equal(evict_children(m->evict, i), b->children);
	assert_int_equal(evict_parent(m->evict, i), b->parent);
	if (!b->away)
		assert_int_equal(evict_class(m->evict, i), b->class);
	assert_int_equal(evict_tick(m->evict, i), b->tick);
}

TEST(is_what_the_naive_model_is)
{
	struct model *m = calloc(1, sizeof(*m));

	assert_non_null(m);
	m->random = random_seeded("sim_evict");
	m->now = UINT32_MAX - OPS / 8; /* the tick's low half wraps on the way */
	assert_int_equal(evict_open(BLOCKS, CLASSES, NULL, random_next(&m->random), &m->evict), 0);
	for (int op = 0; op < OPS; op++) {
		const uint32_t i = random_below(&m->random, BLOCKS);

		model_step(m, i);
		model_compare(m, i);
	}
	evict_close(m->evict);
	free(m);
}
