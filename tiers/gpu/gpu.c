/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu.c - see gpu.h. Core thread only.
 *
 * Of a slab it is known which one space all bytes in it are of: none at first, as its memory comes
 * zeroed. A slab that has had images of two spaces is nobody's, and each slot taken there is
 * scrubbed. A tag a slot would cost memory, and would have to follow slabs that change their slot
 * size.
 */
#include "gpu.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "tiers/slabs.h"

/* Of a slab: zeroes alone; bytes of several spaces. */
#define CLEAN   0
#define NOBODYS UINT64_MAX

struct gpu_unit {
	struct slabs *slabs; /* NULL: ABSENT */
	bool up;
	struct gpu_memory memory;
	uint32_t n_slabs, given;
	uint64_t *space; /* by slab */
};

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
	return u->given < u->n_slabs ? u->given++ : SLABS_NONE;
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
	*u = (struct gpu_unit){ 0 };
	count_capacity(g);
}

int gpu_gain(struct tier *t, uint32_t unit, const struct gpu_memory *memory)
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
	int r = -ENOMEM;

	assert(!u->slabs && memory->generation > 0 && memory->base % 4096 == 0);
	if (conf.n_slabs == 0)
		return 0;
	*u = (struct gpu_unit){ .memory = *memory, .n_slabs = conf.n_slabs };
	u->space = calloc(conf.n_slabs, sizeof(*u->space));
	if (u->space)
		r = slabs_open(&conf, &u->slabs);
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
	gpu_settle(t, unit);
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
	slabs_free(unit_of(t, where->unit)->slabs, where);
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
