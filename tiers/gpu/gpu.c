/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu.c - see gpu.h. Core thread only.
 *
 * Of a slab it is known which one space all bytes in it are of: none at first, as its memory comes
 * zeroed. A slab that has had images of two spaces is nobody's, and each slot taken there is
 * scrubbed. A tag a slot would cost memory, and would have to follow slabs that change their slot
 * size. All slabs of parked memory are nobody's.
 */
#include "gpu.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tiers/slabs.h"

/* Of a slab: zeroes alone; bytes of several spaces. */
#define CLEAN   0
#define NOBODYS UINT64_MAX

struct gpu_unit {
	struct slabs *slabs; /* NULL: ABSENT */
	bool up;
	struct gpu_memory memory;
	struct gpu_book *book; /* the caller's; NULL: none */
	uint32_t n_slabs;
	uint32_t looked; /* slabs before it were given, or are held */
	uint64_t *space; /* by slab */
	uint8_t *slab;   /* enum slab_is, by slab */
};

/* HELD: the book says something of it, and gpu_reclaim() had it not. */
enum slab_is { SLAB_NEW, SLAB_HELD, SLAB_GIVEN };

struct gpu_tier {
	struct tier base;
	uint64_t slab_bytes;
	uint32_t n_units;
	struct gpu_unit units[];
};

static struct gpu_tier *gpu_of(const struct tier *t)
{
	return (struct gpu_tier *)(uintptr_t)t;
}

static struct gpu_unit *unit_of(const struct tier *t, uint32_t unit)
{
	assert(unit < gpu_of(t)->n_units);
	return &gpu_of(t)->units[unit];
}

/* --- memory comes and goes --- */

static uint32_t more(void *arg, bool hurry)
{
	struct gpu_unit *u = arg;

	(void)hurry;
	for (; u->looked < u->n_slabs; u->looked++)
		if (u->slab[u->looked] == SLAB_NEW) {
			u->slab[u->looked] = SLAB_GIVEN;
			return u->looked++;
		}
	return SLABS_NONE;
}

static uint32_t none_lost(void *arg)
{
	(void)arg;
	return 0;
}

/* The capacity of all allocators; slabs.c has each one's. */
static void count_capacity(struct gpu_tier *g)
{
	g->base.capacity_bytes = 0;
	for (uint32_t i = 0; i < g->n_units; i++)
		if (g->units[i].slabs)
			g->base.capacity_bytes += g->units[i].n_slabs * g->slab_bytes;
}

static void forget(struct gpu_tier *g, struct gpu_unit *u)
{
	slabs_close(u->slabs);
	free(u->space);
	free(u->slab);
	*u = (struct gpu_unit){ 0 };
	count_capacity(g);
}

static int make_slabs(struct gpu_unit *u, const struct slabs_conf *conf)
{
	uint32_t slots;

	u->space = calloc(conf->n_slabs, sizeof(*u->space));
	u->slab = calloc(conf->n_slabs, sizeof(*u->slab));
	if (!u->space || !u->slab)
		return -ENOMEM;
	for (uint32_t i = 0; u->memory.parked && i < conf->n_slabs; i++) {
		u->space[i] = NOBODYS;
		if (u->book && gpu_book_slab(u->book, i, &slots))
			u->slab[i] = SLAB_HELD;
	}
	return slabs_open(conf, &u->slabs);
}

int gpu_gain(struct tier *t, uint32_t unit, const struct gpu_memory *memory, struct gpu_book *book)
{
	struct gpu_tier *g = gpu_of(t);
	struct gpu_unit *u = unit_of(t, unit);
	const uint64_t n = memory->bytes / g->slab_bytes;
	struct slabs_conf conf = {
		.tier = t,
		.unit = (uint8_t)unit,
		.slab_bytes = g->slab_bytes,
		.n_slabs = n < TIER_MAX_SLABS ? (uint32_t)n : TIER_MAX_SLABS,
		.more = more,
		.lost = none_lost,
		.arg = u,
	};
	int r;

	assert(!u->slabs && memory->generation > 0 && memory->base % 4096 == 0);
	if (conf.n_slabs == 0)
		return 0;
	*u = (struct gpu_unit){ .memory = *memory, .n_slabs = conf.n_slabs, .book = book };
	r = make_slabs(u, &conf);
	if (r) {
		forget(g, u);
		return r;
	}
	u->up = true;
	count_capacity(g);
	return 0;
}

static bool in_use(const struct gpu_unit *u)
{
	struct tier_class_view view;

	for (uint32_t i = 0; i < slabs_classes(u->slabs); i++) {
		slabs_class_view(u->slabs, i, &view);
		if (view.slabs)
			return true;
	}
	return false;
}

void gpu_settle(struct tier *t, uint32_t unit)
{
	struct gpu_unit *u = unit_of(t, unit);

	if (u->slabs && !u->up && !in_use(u))
		forget(gpu_of(t), u);
}

void gpu_lose(struct tier *t, uint32_t unit)
{
	struct gpu_unit *u = unit_of(t, unit);

	u->up = false;
	u->book = NULL;
	gpu_settle(t, unit);
}

uint32_t gpu_units(const struct tier *t)
{
	return gpu_of(t)->n_units;
}

bool gpu_up(const struct tier *t, uint32_t unit)
{
	return unit_of(t, unit)->up;
}

bool gpu_leaving(const struct tier *t, uint32_t unit)
{
	const struct gpu_unit *u = unit_of(t, unit);

	return u->slabs && !u->up;
}

uint32_t gpu_generation(const struct tier *t, uint32_t unit)
{
	const struct gpu_unit *u = unit_of(t, unit);

	return u->up ? u->memory.generation : 0;
}

/* --- slots --- */

struct slabs *gpu_slabs(const struct tier *t, uint32_t unit)
{
	return unit_of(t, unit)->slabs;
}

bool gpu_slot_of(const struct tier *t, const struct extent *where, struct gpu_slot *ret)
{
	const struct gpu_unit *u = unit_of(t, where->unit);
	const uint64_t offset = u->up ? slabs_offset(u->slabs, where) : UINT64_MAX;

	if (offset == UINT64_MAX)
		return false;
	*ret = (struct gpu_slot){ .where = *where,
				  .address = u->memory.base + offset,
				  .generation = u->memory.generation,
				  .bytes = slabs_extent_bytes(u->slabs, where) };
	return true;
}

int gpu_alloc(struct tier *t, uint32_t unit, uint32_t bytes, uint64_t space, struct gpu_slot *ret)
{
	struct gpu_unit *u = unit_of(t, unit);
	struct extent where;
	uint64_t *tag;
	int r;

	assert(space != CLEAN && space != NOBODYS);
	if (!u->up)
		return -ENODEV;
	r = slabs_alloc(u->slabs, bytes, TIER_ANY_UNIT, &where);
	count_capacity(gpu_of(t)); /* slabs.c wrote its own there */
	if (r) {
		t->allocs_full_total += r == -ENOSPC;
		return r;
	}
	t->allocs_total++;
	(void)gpu_slot_of(t, &where, ret);
	tag = &u->space[where.slot >> 16];
	if (*tag == CLEAN)
		*tag = space;
	if (*tag != space)
		*tag = NOBODYS;
	ret->scrub = *tag == NOBODYS;
	return 0;
}

static void gpu_free(struct tier *t, const struct extent *where)
{
	struct gpu_unit *u = unit_of(t, where->unit);

	if (u->book)
		gpu_book_clear(u->book, where->slot >> 16, where->slot & 0xffff);
	slabs_free(u->slabs, where);
}

/* --- its book --- */

void gpu_holds(struct tier *t, const struct extent *where, const uint8_t owner[32],
	       const uint8_t key[32], uint32_t image_bytes)
{
	struct gpu_unit *u = unit_of(t, where->unit);
	struct gpu_book_entry entry = { .image_bytes = image_bytes };

	if (!u->book)
		return;
	memcpy(entry.owner, owner, sizeof(entry.owner));
	memcpy(entry.key, key, sizeof(entry.key));
	gpu_book_set(u->book, where->slot >> 16, where->slot & 0xffff,
		     slabs_extent_bytes(u->slabs, where), &entry);
}

uint32_t gpu_reclaim(struct tier *t, uint32_t unit, uint32_t slab, struct gpu_claim *ret,
		     uint32_t max)
{
	struct gpu_unit *u = unit_of(t, unit);
	uint32_t slots = 0, n = 0;
	uint32_t bytes;

	if (!u->up || slab >= u->n_slabs || u->slab[slab] != SLAB_HELD)
		return 0;
	bytes = gpu_book_slab(u->book, slab, &slots);
	for (uint32_t i = 0; bytes && i < slots; i++) {
		if (n == max || !gpu_book_get(u->book, slab, i, &ret[n].entry) ||
		    slabs_take_at(u->slabs, slab, i, bytes, &ret[n].where))
			gpu_book_clear(u->book, slab, i);
		else
			n++;
	}
	u->slab[slab] = n > 0 ? SLAB_GIVEN : SLAB_NEW;
	if (n == 0 && u->looked > slab)
		u->looked = slab;
	count_capacity(gpu_of(t));
	return n;
}

static uint8_t *gpu_address(struct tier *t, const struct extent *where)
{
	struct gpu_slot slot;

	return gpu_slot_of(t, where, &slot) ? (uint8_t *)(uintptr_t)slot.address : NULL;
}

/* --- the tier --- */

static enum tier_state gpu_state(const struct tier *t)
{
	for (uint32_t i = 0; i < gpu_of(t)->n_units; i++)
		if (gpu_up(t, i))
			return TIER_UP;
	return TIER_STARTING;
}

static int gpu_open(const struct tier_conf *conf, struct loop *loop, struct tier **ret, char *text,
		    size_t n)
{
	struct gpu_tier *g;

	(void)loop;
	if (conf->units == 0 || conf->units > GPU_UNITS_MAX) {
		snprintf(text, n, "[gpu] bytes: there are %u GPUs, of 1 to %d", conf->units,
			 GPU_UNITS_MAX);
		return -EINVAL;
	}
	g = calloc(1, sizeof(*g) + conf->units * sizeof(g->units[0]));
	if (!g) {
		snprintf(text, n, "[gpu] bytes: out of memory");
		return -ENOMEM;
	}
	g->base.ops = &gpu_ops;
	g->slab_bytes = conf->slab_bytes;
	g->n_units = conf->units;
	*ret = &g->base;
	return 0;
}

static void gpu_close(struct tier *t)
{
	struct gpu_tier *g = t ? gpu_of(t) : NULL;

	for (uint32_t i = 0; g && i < g->n_units; i++)
		forget(g, &g->units[i]);
	free(g);
}

const struct tier_ops gpu_ops = {
	.name = "gpu",
	.id = TIER_GPU,
	.caps = TIER_CAP_DEVICE_ADDRESSABLE,
	.open = gpu_open,
	.close = gpu_close,
	.free = gpu_free,
	.address = gpu_address,
	.state = gpu_state,
	.slabs_of = gpu_slabs,
};
