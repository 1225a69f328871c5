/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slabs.c - slabs of equal slots, one slot size (class) a slab. Contract: slabs.h.
 *
 * A class serves the images that fill at least 16/17 of its slot (rounded to 4 KiB). A slab that
 * loses its last image is free for any class; a class without slabs may change its slot size.
 *
 * Allocation takes a slot of the fullest slab that has one, so that sparse slabs run empty. If a
 * unit is wanted, a slab of that unit is taken first, even a free one; then any other.
 *
 * Each slot has 8 bytes. One half is the generation: it is odd while the slot is in use, and alloc
 * and free each count it up, so a stale extent never matches. The other half is the owner, or in a
 * free slot the next free slot. Slots that never were in use need no list: they start at
 * slab.fresh. The array is [slot][slab], because slabs of few slots would each touch a page of
 * their own otherwise. It costs memory only as slots come into use.
 *
 *	not usable yet ──more()──> free ──first slot taken──> in a class <──slabs_reopen── closed
 *	                            ^ ^───last slot freed───────┘    └──slabs_close_slab────^ │
 *	                            └─────────────────────────────────────last slot freed─────┘
 *
 * Lists: the free slabs of each unit, and the slabs of each class, fill and unit. The unit of a
 * slab is given and never changes. A fill is in sixteenths of a slab, rounded down, so every search
 * is O(FILLS) a unit, for any capacity. Lists are numbered: the free ones, then
 * [class][fill][unit], so that a walk from the sparsest to the fullest slab of a class counts up.
 *
 * Invariants
 *   H1 a slab is in exactly one list: free, or one of its class's by its fill. A closed slab, and
 *      slabs that are not usable (yet, or ever), are in no list.
 *   H2 a slab in a class has used > 0.
 *   H3 tier.used_bytes = sum over classes of used * slot_bytes.
 *   H4 of a class with a closed slab at least (used of that slab - moves begun) slots outside it
 *      are free: slabs_alloc() does not take these slabs. When an outside slab of the class becomes
 *      free this ends, and so does the reason to empty one.
 */
#include "slabs.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/reserve.h"

enum { FILLS = 17 /* the last: full */, NO_SLOT = -1 };

struct slot {
	uint32_t generation;
	uint32_t owner;
};

struct slab {
	uint32_t next, prev; /* in its list; SLABS_NONE ends */
	uint32_t used;
	uint32_t fresh;    /* slots from here on were not used since the slab got its class */
	int32_t free_slot; /* the first free slot below `fresh`, or -1 */
	uint8_t class;     /* TIER_MAX_CLASSES: no class */
	uint8_t fill;
};

struct class
{
	uint32_t slot_bytes;
	uint32_t slots; /* a slab */
	uint32_t slabs;
	uint32_t used;
};

struct slabs {
	struct slabs_conf conf;
	uint32_t n_units;   /* 1: all are of one */
	uint32_t n_classes; /* indices that were ever in use are below */
	uint32_t closed;    /* the slab that is being emptied, or SLABS_NONE */
	uint32_t moving;    /* slots outside it that were taken for its own: both are in use */
	struct slab *slabs;
	uint32_t *heads;                          /* of the lists; SLABS_NONE: empty */
	uint32_t n_free, free_of[TIER_MAX_NODES]; /* free slabs: all, by unit */
	struct slot *slots;
	uint64_t slots_bytes;
	struct class classes[TIER_MAX_CLASSES];
};

/* --- lists --- */

static uint32_t unit_of(const struct slabs *s, uint32_t slab)
{
	return s->conf.units ? s->conf.units[slab] : 0;
}

/* The lists of a class are [first_list(class), first_list(class + 1)). */
static uint32_t first_list(const struct slabs *s, uint32_t class)
{
	return s->n_units * (1 + class * FILLS);
}

/* By the slab's class, fill and unit. */
static uint32_t list_of(const struct slabs *s, uint32_t slab)
{
	const struct slab *at = &s->slabs[slab];

	return unit_of(s, slab) + (at->class == TIER_MAX_CLASSES ?
					   0 :
					   first_list(s, at->class) + s->n_units * at->fill);
}

/* A slab that is added is in no list. */
static void list_add(struct slabs *s, uint32_t slab)
{
	struct slab *at = &s->slabs[slab];
	uint32_t *head = &s->heads[list_of(s, slab)];

	at->next = *head;
	at->prev = SLABS_NONE;
	if (*head != SLABS_NONE)
		s->slabs[*head].prev = slab;
	*head = slab;
	s->n_free += at->class == TIER_MAX_CLASSES;
	s->free_of[unit_of(s, slab)] += at->class == TIER_MAX_CLASSES;
}

static void list_remove(struct slabs *s, uint32_t slab)
{
	const struct slab *at = &s->slabs[slab];

	if (at->prev != SLABS_NONE)
		s->slabs[at->prev].next = at->next;
	else
		s->heads[list_of(s, slab)] = at->next;
	if (at->next != SLABS_NONE)
		s->slabs[at->next].prev = at->prev;
	s->n_free -= at->class == TIER_MAX_CLASSES;
	s->free_of[unit_of(s, slab)] -= at->class == TIER_MAX_CLASSES;
}

/* The fullest slab of a class that is not full: of this unit, or of any (TIER_ANY_UNIT).
 * SLABS_NONE: all are full. */
static uint32_t fullest(const struct slabs *s, uint32_t class, uint32_t unit)
{
	const uint32_t first = first_list(s, class);

	for (uint32_t list = first + s->n_units * (FILLS - 1); list-- > first;)
		if (s->heads[list] != SLABS_NONE &&
		    (unit >= s->n_units || list % s->n_units == unit))
			return s->heads[list];
	return SLABS_NONE;
}

/* For an image of this class (SLABS_NONE: its slots are no choice): of this unit the fullest slab
 * that is not full, or a free one. Where that unit has neither, or does not exist (>= n_units): of
 * all units the fullest, or a free one of the unit that has most. SLABS_NONE: no slab. */
static uint32_t pick(const struct slabs *s, uint32_t class, uint32_t unit)
{
	uint32_t slab = SLABS_NONE, most = 0;

	if (unit < s->n_units && class != SLABS_NONE)
		slab = fullest(s, class, unit);
	if (unit < s->n_units && slab == SLABS_NONE)
		slab = s->heads[unit];
	if (slab == SLABS_NONE && class != SLABS_NONE)
		slab = fullest(s, class, TIER_ANY_UNIT);
	for (uint32_t i = 1; slab == SLABS_NONE && i < s->n_units; i++)
		if (s->free_of[i] > s->free_of[most])
			most = i;
	return slab == SLABS_NONE ? s->heads[most] : slab;
}

/* --- slots --- */

/* In the array of slots. */
static uint32_t number_of(const struct slabs *s, uint32_t slab, uint32_t slot)
{
	return slot * s->conf.n_slabs + slab;
}
static_assert((uint64_t)TIER_MAX_SLABS * TIER_MAX_SLAB_SLOTS <= UINT32_MAX, "number_of()");

static struct slot *slot_at(const struct slabs *s, uint32_t slab, uint32_t slot)
{
	return &s->slots[number_of(s, slab, slot)];
}

int slabs_extent(const struct slabs *s, uint32_t slot, struct extent *ret)
{
	const uint32_t slab = slot >> 16, i = slot & 0xffff;

	if (slab >= s->conf.n_slabs || s->slabs[slab].class == TIER_MAX_CLASSES ||
	    i >= s->slabs[slab].fresh || !(slot_at(s, slab, i)->generation & 1))
		return -ESTALE;
	*ret = (struct extent){ .tier = (uint8_t)s->conf.tier->ops->id,
				.unit = s->conf.units ? s->conf.units[slab] : s->conf.unit,
				.class = s->slabs[slab].class,
				.slot = slot,
				.generation = slot_at(s, slab, i)->generation };
	return 0;
}

uint32_t slabs_number(const struct slabs *s, const struct extent *where)
{
	return number_of(s, where->slot >> 16, where->slot & 0xffff);
}

int slabs_numbered(const struct slabs *s, uint32_t number, struct extent *ret)
{
	const uint32_t slot = number / s->conf.n_slabs;

	if (slot >= TIER_MAX_SLAB_SLOTS)
		return -ESTALE;
	return slabs_extent(s, (number % s->conf.n_slabs) << 16 | slot, ret);
}

uint32_t slabs_slab(const struct extent *where)
{
	return where->slot >> 16;
}

/* The slot of an extent; NULL when it is stale or never was one. */
static struct slot *slot_live(const struct slabs *s, const struct extent *where)
{
	struct extent now;

	if (slabs_extent(s, where->slot, &now) || !extent_equal(&now, where) ||
	    now.class != where->class)
		return NULL;
	return slot_at(s, slabs_slab(where), where->slot & 0xffff);
}

/* The closed slab, if it is of this class; NULL. */
static const struct slab *closed_of(const struct slabs *s, uint32_t class)
{
	const struct slab *closed = s->closed == SLABS_NONE ? NULL : &s->slabs[s->closed];

	return closed && closed->class == class ? closed : NULL;
}

/* The slots in use in the slabs of a class that are not closed. */
static uint32_t open_used(const struct slabs *s, uint32_t class)
{
	const struct slab *closed = closed_of(s, class);

	return s->classes[class].used - (closed ? closed->used : 0);
}

static uint32_t open_slabs(const struct slabs *s, uint32_t class)
{
	return s->classes[class].slabs - (closed_of(s, class) != NULL);
}

/* Free slots of a class that a request may be given: without those that the move out of its closed
 * slab will need. */
static uint32_t open_free(const struct slabs *s, uint32_t class)
{
	const struct slab *closed = closed_of(s, class);
	const uint32_t n = open_slabs(s, class) * s->classes[class].slots - open_used(s, class);
	const uint32_t kept = closed ? closed->used - s->moving : 0;

	return n > kept ? n - kept : 0;
}

static uint8_t fill_of(const struct class *c, uint32_t used)
{
	return (uint8_t)((uint64_t)used * (FILLS - 1) / c->slots);
}

/* After slab.used changed to a value > 0. */
static void refile(struct slabs *s, struct class *c, uint32_t slab)
{
	struct slab *at = &s->slabs[slab];
	const uint8_t fill = fill_of(c, at->used);

	if (fill == at->fill || slab == s->closed)
		return;
	list_remove(s, slab);
	at->fill = fill;
	list_add(s, slab);
}

/* Slabs that became usable are free. If no slab is, a slab that is not quite ready is taken. */
static void harvest(struct slabs *s)
{
	uint32_t slab;

	while ((slab = s->conf.more(s->conf.arg, s->n_free == 0)) != SLABS_NONE)
		list_add(s, slab);
	s->conf.tier->capacity_bytes =
		(s->conf.n_slabs - s->conf.lost(s->conf.arg)) * s->conf.slab_bytes;
}

/* A free slab. */
static void slab_to_class(struct slabs *s, uint32_t slab, uint32_t class)
{
	list_remove(s, slab);
	s->slabs[slab] = (struct slab){ .free_slot = NO_SLOT, .class = (uint8_t) class };
	list_add(s, slab);
	s->classes[class].slabs++;
}

static void slab_to_free(struct slabs *s, uint32_t slab)
{
	struct slab *at = &s->slabs[slab];

	if (slab == s->closed)
		s->closed = SLABS_NONE;
	else
		list_remove(s, slab);
	s->classes[at->class].slabs--;
	at->class = TIER_MAX_CLASSES;
	list_add(s, slab);
}

/* The slab is the class's and has a free slot. */
static void take_slot(struct slabs *s, uint32_t slab, struct extent *ret)
{
	struct slab *at = &s->slabs[slab];
	struct class *c = &s->classes[at->class];
	const uint32_t slot = at->free_slot != NO_SLOT ? (uint32_t)at->free_slot : at->fresh;
	struct slot *taken = slot_at(s, slab, slot);

	assert(at->used < c->slots && slot < c->slots && !(taken->generation & 1));
	if (at->free_slot != NO_SLOT)
		at->free_slot = (int32_t)taken->owner;
	else
		at->fresh++;
	taken->generation++;
	taken->owner = SLABS_NO_OWNER;
	at->used++;
	c->used++;
	refile(s, c, slab);
	s->conf.tier->used_bytes += c->slot_bytes;
	s->conf.tier->extents++;
	(void)slabs_extent(s, slab << 16 | slot, ret);
}

static uint32_t slot_need(uint32_t bytes)
{
	return (bytes / SLABS_SLOT_LEAST + (bytes % SLABS_SLOT_LEAST > 0)) * SLABS_SLOT_LEAST;
}

/* The smallest class that has slabs and is at most 1/16 too large; where every index is taken, the
 * smallest that is large enough. -1: none. */
static int find_class(const struct slabs *s, uint32_t need)
{
	int best = -1;
	bool spare = s->n_classes < TIER_MAX_CLASSES;

	for (uint32_t i = 0; i < s->n_classes; i++) {
		const struct class *c = &s->classes[i];

		spare |= c->slabs == 0;
		if (c->slabs && c->slot_bytes >= need &&
		    (best < 0 || c->slot_bytes < s->classes[best].slot_bytes))
			best = (int)i;
	}
	if (best >= 0 && spare && s->classes[best].slot_bytes - need > need / 16)
		return -1;
	return best;
}

/* An index without slabs, made a class of this slot size; -1: all are in use. */
static int make_class(struct slabs *s, uint32_t need)
{
	struct class *c;
	uint32_t i = 0;

	while (i < s->n_classes && s->classes[i].slabs)
		i++;
	if (i == TIER_MAX_CLASSES)
		return -1;
	s->n_classes += i == s->n_classes;
	c = &s->classes[i];
	*c = (struct class){ .slot_bytes = need, .slots = (uint32_t)(s->conf.slab_bytes / need) };
	if (c->slots > TIER_MAX_SLAB_SLOTS)
		c->slots = TIER_MAX_SLAB_SLOTS;
	return (int)i;
}

int slabs_alloc(struct slabs *s, uint32_t bytes, uint32_t unit, struct extent *ret)
{
	uint32_t slab, of = SLABS_NONE;
	int class;

	if (bytes > s->conf.slab_bytes)
		return -E2BIG;
	harvest(s);
	class = find_class(s, slot_need(bytes));
	if (class >= 0 && open_free(s, (uint32_t) class) > 0)
		of = (uint32_t) class;
	slab = pick(s, of, unit);
	if (slab == SLABS_NONE)
		return -ENOSPC;
	if (s->slabs[slab].class == TIER_MAX_CLASSES) {
		if (class < 0)
			class = make_class(s, slot_need(bytes));
		if (class < 0)
			return -ENOSPC;
		slab_to_class(s, slab, (uint32_t) class);
	}
	take_slot(s, slab, ret);
	return 0;
}

void slabs_free(struct slabs *s, const struct extent *where)
{
	struct slot *slot = slot_live(s, where);
	const uint32_t slab = slabs_slab(where);
	struct class *c = &s->classes[where->class];
	struct slab *at = &s->slabs[slab];

	assert(slot); /* freed twice, or not from here */
	slot->generation++;
	slot->owner = (uint32_t)at->free_slot;
	at->free_slot = (int32_t)(where->slot & 0xffff);
	at->used--;
	c->used--;
	s->conf.tier->used_bytes -= c->slot_bytes;
	s->conf.tier->extents--;
	if (at->used)
		refile(s, c, slab);
	else
		slab_to_free(s, slab);
}

uint64_t slabs_offset(const struct slabs *s, const struct extent *where)
{
	if (!slot_live(s, where))
		return UINT64_MAX;
	return slabs_slab(where) * s->conf.slab_bytes +
	       (uint64_t)(where->slot & 0xffff) * s->classes[where->class].slot_bytes;
}

/* --- facts about slots, slabs and classes --- */

int slabs_class_of(const struct slabs *s, uint32_t bytes)
{
	return find_class(s, slot_need(bytes));
}

uint64_t slabs_slab_bytes(const struct slabs *s)
{
	return s->conf.slab_bytes;
}

uint32_t slabs_slot_bytes(const struct slabs *s, uint32_t bytes)
{
	const int class = find_class(s, slot_need(bytes));

	return bytes > s->conf.slab_bytes ? 0 :
	       class >= 0                 ? s->classes[class].slot_bytes :
					    slot_need(bytes);
}

uint32_t slabs_extent_bytes(const struct slabs *s, const struct extent *where)
{
	return slot_live(s, where) ? s->classes[where->class].slot_bytes : 0;
}

uint32_t slabs_classes(const struct slabs *s)
{
	return s->n_classes;
}

void slabs_class_view(const struct slabs *s, uint32_t class, struct tier_class_view *ret)
{
	const struct class *c = &s->classes[class];

	assert(class < s->n_classes);
	*ret = (struct tier_class_view){ .slot_bytes = c->slot_bytes,
					 .slots_per_slab = c->slots,
					 .slabs = open_slabs(s, class),
					 .used_slots = open_used(s, class),
					 .free_slots = open_free(s, class) };
}

uint32_t slabs_free_slabs(struct slabs *s)
{
	harvest(s);
	return s->n_free;
}

uint32_t slabs_next(const struct slabs *s, uint32_t class, uint32_t slab)
{
	const uint32_t end = first_list(s, class + 1);
	uint32_t list = first_list(s, class);

	assert(class < s->n_classes);
	if (slab != SLABS_NONE && s->slabs[slab].next != SLABS_NONE)
		return s->slabs[slab].next;
	if (slab != SLABS_NONE)
		list = list_of(s, slab) + 1;
	while (list < end && s->heads[list] == SLABS_NONE)
		list++;
	return list < end ? s->heads[list] : SLABS_NONE;
}

bool slabs_walk(struct slabs *s, uint32_t slab, bool (*fn)(void *arg, const struct extent *where),
		void *arg)
{
	/* fn may free the last slot, and with it the slab */
	const uint32_t end = s->slabs[slab].fresh;
	struct extent where;

	for (uint32_t i = 0; i < end; i++)
		if (!slabs_extent(s, slab << 16 | i, &where) && !fn(arg, &where))
			return false;
	return true;
}

void slabs_set_owner(struct slabs *s, const struct extent *where, uint32_t owner)
{
	struct slot *slot = slot_live(s, where);

	assert(slot);
	slot->owner = owner;
}

uint32_t slabs_owner(const struct slabs *s, const struct extent *where)
{
	assert(slot_live(s, where));
	return slabs_owner_numbered(s, slabs_number(s, where));
}

uint32_t slabs_owner_numbered(const struct slabs *s, uint32_t number)
{
	assert(number < s->slots_bytes / sizeof(struct slot) && s->slots[number].generation & 1);
	return s->slots[number].owner;
}

/* --- emptying --- */

void slabs_close_slab(struct slabs *s, uint32_t slab)
{
	struct slab *at = &s->slabs[slab];

	assert(s->closed == SLABS_NONE && s->moving == 0 && at->class < TIER_MAX_CLASSES);
	list_remove(s, slab);
	s->closed = slab;
	assert(open_slabs(s, at->class) * s->classes[at->class].slots - open_used(s, at->class) >=
	       at->used);
}

bool slabs_closed_next(const struct slabs *s, uint32_t *cursor, struct extent *ret)
{
	while (s->closed != SLABS_NONE && *cursor < s->slabs[s->closed].fresh)
		if (!slabs_extent(s, s->closed << 16 | (*cursor)++, ret))
			return true;
	return false;
}

int slabs_move_begin(struct slabs *s, struct extent *to)
{
	const struct slab *closed = &s->slabs[s->closed];
	uint32_t slab;

	assert(s->closed != SLABS_NONE && s->moving < closed->used);
	slab = fullest(s, closed->class, unit_of(s, s->closed));
	if (slab == SLABS_NONE)
		slab = fullest(s, closed->class, TIER_ANY_UNIT);
	if (slab == SLABS_NONE)
		return -ENOSPC;
	s->moving++;
	take_slot(s, slab, to);
	return 0;
}

void slabs_move_end(struct slabs *s, const struct extent *where)
{
	assert(s->moving > 0);
	s->moving--;
	slabs_free(s, where);
}

uint32_t slabs_closed_used(const struct slabs *s)
{
	return s->closed == SLABS_NONE ? 0 : s->slabs[s->closed].used;
}

void slabs_reopen(struct slabs *s)
{
	const uint32_t slab = s->closed;
	struct slab *at = &s->slabs[slab];

	assert(slab != SLABS_NONE && s->moving == 0);
	s->closed = SLABS_NONE;
	at->fill = fill_of(&s->classes[at->class], at->used);
	list_add(s, slab);
}

/* --- life --- */

int slabs_open(const struct slabs_conf *conf, struct slabs **ret)
{
	const uint64_t fit = conf->slab_bytes / SLABS_SLOT_LEAST;
	struct slabs *s = calloc(1, sizeof(*s));

	if (!s)
		return -ENOMEM;
	s->conf = *conf;
	s->n_units = conf->units ? conf->n_units : 1;
	s->closed = SLABS_NONE;
	s->slabs = calloc(conf->n_slabs, sizeof(*s->slabs));
	s->heads = calloc(first_list(s, TIER_MAX_CLASSES), sizeof(*s->heads));
	s->slots_bytes = (fit < TIER_MAX_SLAB_SLOTS ? fit : TIER_MAX_SLAB_SLOTS) * conf->n_slabs *
			 sizeof(struct slot);
	s->slots = reserve(s->slots_bytes);
	if (!s->slabs || !s->heads || !s->slots) {
		slabs_close(s);
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < first_list(s, TIER_MAX_CLASSES); i++)
		s->heads[i] = SLABS_NONE;
	for (uint32_t i = 0; i < conf->n_slabs; i++)
		s->slabs[i].class = TIER_MAX_CLASSES;
	harvest(s);
	*ret = s;
	return 0;
}

void slabs_close(struct slabs *s)
{
	if (!s)
		return;
	unreserve(s->slots, s->slots_bytes);
	free(s->heads);
	free(s->slabs);
	free(s);
}
