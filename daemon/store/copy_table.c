/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copy_table.c - see copy_table.h. Core thread only.
 *
 * A unit has an array of copies, by number, and a hash from a block's number to its copy. The hash
 * is lists that go through the copies, two copies long on average, and grows by linear hashing: a
 * list is divided for every second copy that comes. So no copy pays for a rehash, and the array of
 * heads is touched as far as there were copies. It does not shrink.
 *
 * The order of a class is a list, at whose end a copy is put when it comes or is touched. A copy
 * has no tick: an op that began long ago may touch it late, and to look for the place of a tick
 * would take long. Nor has it the number of its block, which its slot has: what is on a list of the
 * hash is told apart by block_of().
 */
#include "copy_table.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "daemon/base/reserve.h"

enum copy_state { COPY_FREE = 0, COPY_KEPT, COPY_LOOSE };

/* Numbers of copies have 26 bits; the last one ends a list. */
enum { COPY_END = COPY_NUMBERS };
static_assert(COPY_NUMBERS == (1 << 26) - 1, "the fields of struct copy");

enum { CHAIN = 2 /* copies a list of the hash, on average */ };

/* Packed, because every byte counts. */
struct __attribute__((packed)) copy {
	/* KEPT: in the order of its class; LOOSE without pins: next on that list */
	uint64_t next : 26;
	uint64_t prev : 26;
	uint64_t chain : 26; /* KEPT: next on its list of the hash */
	uint64_t class : 6;
	uint64_t state : 2; /* enum copy_state */
	uint64_t pins : 18; /* more than there are parts */
};
static_assert(sizeof(struct copy) == 13, "copy_table.h says what a copy takes");
static_assert(TIER_MAX_CLASSES <= 1 << 6, "copy.class");

struct class_order {
	uint32_t first, last; /* least, most recent; COPY_END: empty */
};

struct unit_copies {
	struct copy *copies;
	uint32_t *heads;      /* the hash */
	uint32_t lists, mask; /* lists in use; the bits that number them */
	uint32_t used;        /* copies from here on were never in use */
	uint32_t count;       /* KEPT */
	uint32_t loose;
	struct class_order order[TIER_MAX_CLASSES];
};

struct copy_table {
	struct copy_table_conf conf;
	uint32_t heads; /* of each hash, at most */
	uint32_t loose; /* copies that can be freed */
	struct unit_copies unit[];
};

static struct unit_copies *unit_at(const struct copy_table *t, uint32_t unit)
{
	assert(unit < t->conf.units);
	return (struct unit_copies *)(uintptr_t)&t->unit[unit];
}

/* KEPT. */
static uint32_t block_of(const struct copy_table *t, const struct unit_copies *u, uint32_t at)
{
	return t->conf.block_of(t->conf.arg, (uint32_t)(u - t->unit), at);
}

/* --- the hash --- */

/* The head of the list that the block's copy would be on. */
static uint32_t *head_of(const struct copy_table *t, const struct unit_copies *u, uint32_t block)
{
	const uint64_t hash = ((block + 1) * (t->conf.seed | 1) * 0x9e3779b97f4a7c15u) >> 32;
	const uint32_t list = (uint32_t)hash & u->mask;

	/* those that were not divided yet have a bit less */
	return &u->heads[list < u->lists ? list : list & u->mask >> 1];
}

/* COPY_NONE: it has none there. */
static uint32_t copy_of(const struct copy_table *t, const struct unit_copies *u, uint32_t block)
{
	uint32_t at = *head_of(t, u, block);

	while (at != COPY_END && block_of(t, u, at) != block)
		at = u->copies[at].chain;
	return at != COPY_END ? at : COPY_NONE;
}

static void chain_add(const struct copy_table *t, struct unit_copies *u, uint32_t at)
{
	uint32_t *head = head_of(t, u, block_of(t, u, at));

	u->copies[at].chain = *head & COPY_END;
	*head = at;
}

static void chain_remove(const struct copy_table *t, struct unit_copies *u, uint32_t at)
{
	uint32_t *head = head_of(t, u, block_of(t, u, at)), before = *head;

	if (before == at) {
		*head = u->copies[at].chain;
		return;
	}
	while (u->copies[before].chain != at)
		before = u->copies[before].chain;
	u->copies[before].chain = u->copies[at].chain;
}

/* Divides the next list in turn with a new one behind the last. */
static void divide(const struct copy_table *t, struct unit_copies *u)
{
	const uint32_t new = u->lists++;
	uint32_t *old, at;

	if (new > u->mask)
		u->mask = u->mask << 1 | 1;
	old = &u->heads[new & u->mask >> 1];
	at = *old;
	*old = u->heads[new] = COPY_END;
	while (at != COPY_END) {
		const uint32_t next = u->copies[at].chain;

		chain_add(t, u, at);
		at = next;
	}
}

/* --- orders --- */

static void order_remove(struct unit_copies *u, uint32_t at)
{
	const struct copy *c = &u->copies[at];
	struct class_order *order = &u->order[c->class];

	if (c->prev != COPY_END)
		u->copies[c->prev].next = c->next;
	else
		order->first = c->next;
	if (c->next != COPY_END)
		u->copies[c->next].prev = c->prev;
	else
		order->last = c->prev;
}

static void order_add(struct unit_copies *u, uint32_t at)
{
	struct copy *c = &u->copies[at];
	struct class_order *order = &u->order[c->class];

	c->prev = order->last & COPY_END;
	c->next = COPY_END;
	if (c->prev != COPY_END)
		u->copies[c->prev].next = at & COPY_END;
	else
		order->first = at;
	order->last = at;
}

/* --- copies --- */

/* The number of a copy that is there. */
static uint32_t kept(const struct copy_table *t, const struct unit_copies *u, uint32_t block)
{
	const uint32_t at = copy_of(t, u, block);

	assert(at != COPY_NONE);
	return at;
}

/* It is no block's any more. */
static void detach(const struct copy_table *t, struct unit_copies *u, uint32_t at)
{
	order_remove(u, at);
	chain_remove(t, u, at);
	u->count--;
}

static void loosen(struct copy_table *t, struct unit_copies *u, uint32_t at)
{
	if (u->copies[at].pins)
		return;
	u->copies[at].next = u->loose & COPY_END;
	u->loose = at;
	t->loose++;
}

int copy_table_add(struct copy_table *t, uint32_t block, uint32_t unit, uint32_t copy,
		   uint32_t class)
{
	struct unit_copies *u = unit_at(t, unit);

	assert(class < t->conf.classes && block != COPY_NONE);
	if (copy >= t->conf.copies)
		return -ENOSPC;
	if (copy_of(t, u, block) != COPY_NONE)
		return -EEXIST;
	assert(u->copies[copy].state == COPY_FREE && block_of(t, u, copy) == block);
	u->copies[copy] = (struct copy){ .class = (uint64_t) class & (TIER_MAX_CLASSES - 1),
					 .state = COPY_KEPT };
	if (copy >= u->used)
		u->used = copy + 1;
	if (u->count++ >= CHAIN * u->lists && u->lists < t->heads)
		divide(t, u);
	chain_add(t, u, copy);
	order_add(u, copy);
	return 0;
}

bool copy_table_find(const struct copy_table *t, uint32_t block, uint32_t unit, uint32_t *ret)
{
	const struct unit_copies *u = t ? unit_at(t, unit) : NULL;
	const uint32_t at = u ? copy_of(t, u, block) : COPY_NONE;

	if (at != COPY_NONE && ret)
		*ret = at;
	return at != COPY_NONE;
}

uint64_t copy_table_units(const struct copy_table *t, uint32_t block)
{
	uint64_t ret = 0;

	for (uint32_t i = 0; t && i < t->conf.units; i++)
		ret |= (uint64_t)copy_table_find(t, block, i, NULL) << i;
	return ret;
}

uint32_t copy_table_remove(struct copy_table *t, uint32_t block, uint32_t unit)
{
	struct unit_copies *u = unit_at(t, unit);
	const uint32_t at = kept(t, u, block);

	assert(u->copies[at].pins == 0);
	detach(t, u, at);
	u->copies[at].state = COPY_FREE;
	return at;
}

void copy_table_forget(struct copy_table *t, uint32_t block)
{
	for (uint32_t i = 0; i < t->conf.units; i++)
		if (copy_of(t, unit_at(t, i), block) != COPY_NONE)
			copy_table_forget_on(t, block, i);
}

void copy_table_forget_on(struct copy_table *t, uint32_t block, uint32_t unit)
{
	struct unit_copies *u = unit_at(t, unit);
	const uint32_t at = kept(t, u, block);

	detach(t, u, at);
	u->copies[at].state = COPY_LOOSE;
	loosen(t, u, at);
}

bool copy_table_loose(struct copy_table *t, uint32_t *ret_unit, uint32_t *ret)
{
	for (uint32_t i = 0; t && t->loose && i < t->conf.units; i++) {
		struct unit_copies *u = unit_at(t, i);
		const uint32_t at = u->loose;

		if (at == COPY_END)
			continue;
		u->loose = u->copies[at].next;
		u->copies[at].state = COPY_FREE;
		t->loose--;
		*ret_unit = i;
		*ret = at;
		return true;
	}
	return false;
}

void copy_table_touch(struct copy_table *t, uint32_t block, uint32_t unit)
{
	struct unit_copies *u = unit_at(t, unit);
	const uint32_t at = kept(t, u, block);

	order_remove(u, at);
	order_add(u, at);
}

uint32_t copy_table_pin(struct copy_table *t, uint32_t block, uint32_t unit)
{
	struct unit_copies *u = unit_at(t, unit);
	const uint32_t at = kept(t, u, block);

	u->copies[at].pins++;
	assert(u->copies[at].pins > 0);
	return at;
}

bool copy_table_pinned(const struct copy_table *t, uint32_t block, uint32_t unit)
{
	const struct unit_copies *u = unit_at(t, unit);

	return u->copies[kept(t, u, block)].pins > 0;
}

void copy_table_unpin(struct copy_table *t, uint32_t unit, uint32_t pinned)
{
	struct unit_copies *u = unit_at(t, unit);
	struct copy *c = &u->copies[pinned];

	assert(pinned < u->used && c->state != COPY_FREE && c->pins > 0);
	c->pins--;
	if (c->state == COPY_LOOSE)
		loosen(t, u, pinned);
}

uint32_t copy_table_victim(const struct copy_table *t, uint32_t unit, uint32_t class)
{
	const struct unit_copies *u = unit_at(t, unit);
	uint32_t at = u->order[class].first;

	while (at != COPY_END && u->copies[at].pins)
		at = u->copies[at].next;
	return at != COPY_END ? block_of(t, u, at) : COPY_NONE;
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
		bytes +=
			t->unit[i].used * sizeof(struct copy) + t->unit[i].lists * sizeof(uint32_t);
	return sizeof(*t) + t->conf.units * sizeof(struct unit_copies) + bytes;
}

/* --- life --- */

static bool unit_open(const struct copy_table *t, struct unit_copies *u)
{
	u->loose = COPY_END;
	for (uint32_t i = 0; i < TIER_MAX_CLASSES; i++)
		u->order[i] = (struct class_order){ COPY_END, COPY_END };
	u->copies = reserve(t->conf.copies * sizeof(struct copy));
	u->heads = reserve(t->heads * sizeof(uint32_t));
	if (!u->copies || !u->heads)
		return false;
	u->heads[0] = COPY_END;
	u->lists = 1;
	return true;
}

int copy_table_open(const struct copy_table_conf *conf, struct copy_table **ret)
{
	struct copy_table *t;

	if (conf->units == 0 || conf->units > COPY_UNITS_MAX || conf->copies == 0 ||
	    conf->copies > COPY_NUMBERS || conf->classes > TIER_MAX_CLASSES)
		return -EINVAL;
	t = calloc(1, sizeof(*t) + conf->units * sizeof(struct unit_copies));
	if (!t)
		return -ENOMEM;
	t->conf = *conf;
	t->heads = conf->copies / CHAIN + 1;
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
		struct unit_copies *u = &t->unit[i];

		unreserve(u->copies, t->conf.copies * sizeof(struct copy));
		unreserve(u->heads, t->heads * sizeof(uint32_t));
	}
	free(t);
}
