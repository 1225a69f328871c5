/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copy_table.c - see copy_table.h. Core thread only.
 *
 * A unit has an array of copies, those that are free on a list, and a hash from a block's number to
 * its copy: open addressing with linear probing, at most two thirds full, so a search that finds
 * looks at 2 places on average, and one in vain at 5. A removal moves later ones of the run up, so
 * there are no marks of what was.
 *
 * The order of a class is a list, at whose end a copy is put when it comes or is touched. Ticks are
 * not compared for it: an op that began long ago may touch a copy late, and to look for the place
 * of its tick would take long.
 */
#include "copy_table.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "daemon/base/reserve.h"

enum copy_state { COPY_FREE = 0, COPY_KEPT, COPY_LOOSE };

/* Numbers of copies have 26 bits; the last one ends a list. */
enum { COPY_END = (1 << 26) - 1 };

#define TICK_MASK ((1ull << 48) - 1)

/* Packed, because every byte counts. */
struct __attribute__((packed)) copy {
	uint32_t block; /* KEPT */
	uint32_t slot, generation;
	/* KEPT: in the order of its class; FREE, and LOOSE without pins: next on that list */
	uint64_t next : 26;
	uint64_t prev : 26;
	uint64_t class : 6;
	uint64_t state : 2; /* enum copy_state */
	uint64_t tick : 48;
	uint64_t pins : 20; /* more than there are parts */
};
static_assert(sizeof(struct copy) == 28, "copy_table.h says what a copy takes");
static_assert(TIER_MAX_CLASSES <= 1 << 6, "copy.class");

struct order {
	uint32_t first, last; /* least, most recent; COPY_END: empty */
};

struct unit {
	struct copy *copies;
	uint32_t *places; /* the hash: number of a copy + 1; 0: empty */
	uint32_t used;    /* copies from here on were never in use */
	uint32_t count;   /* KEPT */
	uint32_t free, loose;
	struct order order[TIER_MAX_CLASSES];
};

struct copy_table {
	struct copy_table_conf conf;
	uint32_t places; /* of each hash */
	uint32_t loose;  /* copies that can be freed */
	struct unit unit[];
};

/* --- the hash --- */

static uint32_t place_of(const struct copy_table *t, uint32_t block)
{
	const uint64_t hash = ((block + 1) * (t->conf.seed | 1) * 0x9e3779b97f4a7c15u) >> 32;

	return (uint32_t)(hash * t->places >> 32);
}

static uint32_t after(const struct copy_table *t, uint32_t place)
{
	return place + 1 < t->places ? place + 1 : 0;
}

/* How far it is from one place on to another one. */
static uint32_t way(const struct copy_table *t, uint32_t from, uint32_t to)
{
	return to >= from ? to - from : to + t->places - from;
}

/* The place of the block's copy, or the empty one where it would be. */
static uint32_t search(const struct copy_table *t, const struct unit *u, uint32_t block)
{
	uint32_t place = place_of(t, block);

	while (u->places[place] && u->copies[u->places[place] - 1].block != block)
		place = after(t, place);
	return place;
}

/* COPY_NONE: it has none there. */
static uint32_t copy_of(const struct copy_table *t, const struct unit *u, uint32_t block)
{
	const uint32_t found = u->places[search(t, u, block)];

	return found ? found - 1 : COPY_NONE;
}

/* Later ones of the run that could stand in the hole move up. */
static void unhash(const struct copy_table *t, struct unit *u, uint32_t block)
{
	uint32_t hole = search(t, u, block), at = hole;

	assert(u->places[hole]);
	while (u->places[at = after(t, at)]) {
		const uint32_t home = place_of(t, u->copies[u->places[at] - 1].block);

		/* how far it is from home, against how far the hole is */
		if (way(t, home, at) < way(t, hole, at))
			continue;
		u->places[hole] = u->places[at];
		hole = at;
	}
	u->places[hole] = 0;
}

/* --- orders --- */

static void order_remove(struct unit *u, uint32_t at)
{
	const struct copy *c = &u->copies[at];
	struct order *order = &u->order[c->class];

	if (c->prev != COPY_END)
		u->copies[c->prev].next = c->next;
	else
		order->first = c->next;
	if (c->next != COPY_END)
		u->copies[c->next].prev = c->prev;
	else
		order->last = c->prev;
}

static void order_add(struct unit *u, uint32_t at)
{
	struct copy *c = &u->copies[at];
	struct order *order = &u->order[c->class];

	c->prev = order->last & COPY_END;
	c->next = COPY_END;
	if (c->prev != COPY_END)
		u->copies[c->prev].next = at & COPY_END;
	else
		order->first = at;
	order->last = at;
}

/* --- copies --- */

static struct unit *unit_at(const struct copy_table *t, uint32_t unit)
{
	assert(unit < t->conf.units);
	return (struct unit *)(uintptr_t)&t->unit[unit];
}

static struct copy *kept(const struct copy_table *t, struct unit *u, uint32_t block)
{
	const uint32_t at = copy_of(t, u, block);

	assert(at != COPY_NONE);
	return &u->copies[at];
}

static struct extent extent_of(uint32_t unit, const struct copy *c)
{
	return (struct extent){ .tier = TIER_GPU,
				.unit = (uint8_t)unit,
				.class = c->class,
				.slot = c->slot,
				.generation = c->generation };
}

static uint32_t take_free(const struct copy_table *t, struct unit *u)
{
	const uint32_t at = u->free;

	if (at == COPY_END)
		return u->used < t->conf.copies ? u->used++ : COPY_NONE;
	u->free = u->copies[at].next;
	return at;
}

static void give_free(struct unit *u, uint32_t at)
{
	u->copies[at].state = COPY_FREE;
	u->copies[at].next = u->free & COPY_END;
	u->free = at;
}

/* It is no block's any more. */
static void detach(const struct copy_table *t, struct unit *u, uint32_t at)
{
	order_remove(u, at);
	unhash(t, u, u->copies[at].block);
	u->count--;
}

static void loosen(struct copy_table *t, struct unit *u, uint32_t at)
{
	if (u->copies[at].pins)
		return;
	u->copies[at].next = u->loose & COPY_END;
	u->loose = at;
	t->loose++;
}

int copy_table_add(struct copy_table *t, uint32_t block, const struct extent *where, uint64_t tick)
{
	struct unit *u = unit_at(t, where->unit);
	const uint32_t place = search(t, u, block);
	uint32_t at;

	assert(where->tier == TIER_GPU && where->class < t->conf.classes && block != COPY_NONE);
	if (u->places[place])
		return -EEXIST;
	at = take_free(t, u);
	if (at == COPY_NONE)
		return -ENOSPC;
	u->copies[at] = (struct copy){ .block = block,
				       .slot = where->slot,
				       .generation = where->generation,
				       .class = (uint64_t)where->class & (TIER_MAX_CLASSES - 1),
				       .state = COPY_KEPT,
				       .tick = tick & TICK_MASK };
	u->places[place] = at + 1;
	u->count++;
	order_add(u, at);
	return 0;
}

bool copy_table_find(const struct copy_table *t, uint32_t block, uint32_t unit, struct extent *ret)
{
	const struct unit *u = t ? unit_at(t, unit) : NULL;
	const uint32_t at = u ? copy_of(t, u, block) : COPY_NONE;

	if (at != COPY_NONE && ret)
		*ret = extent_of(unit, &u->copies[at]);
	return at != COPY_NONE;
}

uint64_t copy_table_units(const struct copy_table *t, uint32_t block)
{
	uint64_t ret = 0;

	for (uint32_t i = 0; t && i < t->conf.units; i++)
		ret |= (uint64_t)copy_table_find(t, block, i, NULL) << i;
	return ret;
}

void copy_table_remove(struct copy_table *t, uint32_t block, uint32_t unit, struct extent *ret)
{
	struct unit *u = unit_at(t, unit);
	struct copy *c = kept(t, u, block);
	const uint32_t at = (uint32_t)(c - u->copies);

	assert(c->pins == 0);
	*ret = extent_of(unit, c);
	detach(t, u, at);
	give_free(u, at);
}

void copy_table_forget(struct copy_table *t, uint32_t block)
{
	for (uint32_t i = 0; i < t->conf.units; i++)
		if (copy_of(t, unit_at(t, i), block) != COPY_NONE)
			copy_table_forget_on(t, block, i);
}

void copy_table_forget_on(struct copy_table *t, uint32_t block, uint32_t unit)
{
	struct unit *u = unit_at(t, unit);
	const uint32_t at = (uint32_t)(kept(t, u, block) - u->copies);

	detach(t, u, at);
	u->copies[at].state = COPY_LOOSE;
	loosen(t, u, at);
}

bool copy_table_loose(struct copy_table *t, struct extent *ret)
{
	for (uint32_t i = 0; t && t->loose && i < t->conf.units; i++) {
		struct unit *u = unit_at(t, i);
		const uint32_t at = u->loose;

		if (at == COPY_END)
			continue;
		*ret = extent_of(i, &u->copies[at]);
		u->loose = u->copies[at].next;
		give_free(u, at);
		t->loose--;
		return true;
	}
	return false;
}

void copy_table_touch(struct copy_table *t, uint32_t block, uint32_t unit, uint64_t tick)
{
	struct unit *u = unit_at(t, unit);
	struct copy *c = kept(t, u, block);
	const uint32_t at = (uint32_t)(c - u->copies);

	if (tick > c->tick)
		c->tick = tick & TICK_MASK;
	order_remove(u, at);
	order_add(u, at);
}

uint32_t copy_table_pin(struct copy_table *t, uint32_t block, uint32_t unit)
{
	struct unit *u = unit_at(t, unit);
	struct copy *c = kept(t, u, block);

	c->pins++;
	assert(c->pins > 0);
	return (uint32_t)(c - u->copies);
}

bool copy_table_pinned(const struct copy_table *t, uint32_t block, uint32_t unit)
{
	return kept(t, unit_at(t, unit), block)->pins > 0;
}

void copy_table_unpin(struct copy_table *t, uint32_t unit, uint32_t pinned)
{
	struct unit *u = unit_at(t, unit);
	struct copy *c = &u->copies[pinned];

	assert(pinned < u->used && c->state != COPY_FREE && c->pins > 0);
	c->pins--;
	if (c->state == COPY_LOOSE)
		loosen(t, u, pinned);
}

uint32_t copy_table_victim(const struct copy_table *t, uint32_t unit, uint32_t class,
			   uint64_t *ret_tick)
{
	const struct unit *u = unit_at(t, unit);
	uint32_t at = u->order[class].first;

	while (at != COPY_END && u->copies[at].pins)
		at = u->copies[at].next;
	if (at == COPY_END)
		return COPY_NONE;
	if (ret_tick)
		*ret_tick = u->copies[at].tick;
	return u->copies[at].block;
}

uint32_t copy_table_count(const struct copy_table *t, uint32_t unit)
{
	return unit_at(t, unit)->count;
}

uint64_t copy_table_memory(const struct copy_table *t)
{
	uint64_t bytes = 0;

	if (!t)
		return 0;
	for (uint32_t i = 0; i < t->conf.units; i++)
		bytes += t->unit[i].used * sizeof(struct copy) + t->places * sizeof(uint32_t);
	return sizeof(*t) + t->conf.units * sizeof(struct unit) + bytes;
}

/* --- life --- */

static bool unit_open(const struct copy_table *t, struct unit *u)
{
	u->free = u->loose = COPY_END;
	for (uint32_t i = 0; i < TIER_MAX_CLASSES; i++)
		u->order[i] = (struct order){ COPY_END, COPY_END };
	u->copies = reserve(t->conf.copies * sizeof(struct copy));
	u->places = reserve(t->places * sizeof(uint32_t));
	return u->copies && u->places;
}

int copy_table_open(const struct copy_table_conf *conf, struct copy_table **ret)
{
	struct copy_table *t;

	if (conf->units == 0 || conf->units > COPY_UNITS_MAX || conf->copies == 0 ||
	    conf->copies >= COPY_END || conf->classes > TIER_MAX_CLASSES)
		return -EINVAL;
	t = calloc(1, sizeof(*t) + conf->units * sizeof(struct unit));
	if (!t)
		return -ENOMEM;
	t->conf = *conf;
	t->places = conf->copies + conf->copies / 2 + 1;
	for (uint32_t i = 0; i < conf->units; i++) {
		if (!unit_open(t, &t->unit[i])) {
			copy_table_close(t);
			return -ENOMEM;
		}
	}
	*ret = t;
	return 0;
}

void copy_table_close(struct copy_table *t)
{
	if (!t)
		return;
	for (uint32_t i = 0; i < t->conf.units; i++) {
		struct unit *u = &t->unit[i];

		unreserve(u->copies, t->conf.copies * sizeof(struct copy));
		unreserve(u->places, t->places * sizeof(uint32_t));
	}
	free(t);
}
