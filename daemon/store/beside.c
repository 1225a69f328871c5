/* SPDX-License-Identifier: Apache-2.0 */
/*
 * beside.c - see beside.h. Core thread only.
 *
 * Room in a unit: a slot of the image's own class whose copy is the least recent; or, where another
 * class has a copy whose block is more than twice as old, or the own class has none, the slab that
 * this copy lies in, whose copies all go. Nothing is moved: copying images that can be had from
 * host memory would cost more than it is worth.
 *
 * A block is as old as its last access anywhere, be it through another GPU or the CPU: a copy has
 * no tick of its own. Only which class loses a slab depends on it.
 */
#include "beside.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "daemon/base/container_of.h"
#include "daemon/base/log.h"
#include "daemon/base/loop.h"
#include "daemon/device/devices.h"
#include "daemon/stats/stats.h"
#include "tiers/slabs.h"
#include "copies.h"
#include "copy_table.h"
#include "extents.h"
#include "space.h"
#include "store.h"

enum { STEPS = 256 /* copies evicted for one image, or in one turn of a unit that leaves */ };

struct beside {
	struct store *store;
	struct loop *loop;
	struct devices *devices;
	struct loop_poller poller;
	struct copy_table *copies;
	/* what the unit has, or will have once it is ABSENT; generation 0: nothing */
	struct gpu_memory memory[GPU_UNITS_MAX];
	uint32_t units;
};

static struct tier *tier_of(const struct store *store)
{
	return store->tiers[TIER_GPU];
}

static bool is_unit(const struct store *store, uint32_t unit)
{
	return store->beside && unit < store->beside->units;
}

uint32_t beside_units(const struct store *store)
{
	return store->beside ? store->beside->units : 0;
}

static struct copy_table *table(const struct store *store)
{
	return blocks_beside(store->blocks);
}

/* Where its copy on this unit lies; false: it has none there. */
static bool find(const struct store *store, uint32_t block, uint32_t unit, struct extent *ret)
{
	uint32_t copy;

	if (!copy_table_find(table(store), block, unit, &copy))
		return false;
	*ret = extents_beside(store, unit, copy);
	return true;
}

/* Of the least recent copies without pins of all classes of a unit that of the oldest block, or
 * COPY_NONE. */
static uint32_t oldest(const struct store *store, uint32_t unit, uint32_t *ret_class,
		       uint64_t *ret_tick)
{
	const struct slabs *slabs = gpu_slabs(tier_of(store), unit);
	uint32_t ret = COPY_NONE;

	for (uint32_t i = 0; slabs && i < slabs_classes(slabs); i++) {
		const uint32_t block = copy_table_victim(table(store), unit, i);
		uint64_t tick;

		if (block == COPY_NONE)
			continue;
		tick = blocks_tick(store->blocks, block);
		if (ret != COPY_NONE && tick >= *ret_tick)
			continue;
		ret = block;
		*ret_class = i;
		*ret_tick = tick;
	}
	return ret;
}

static void evict(struct store *store, uint32_t block, uint32_t unit)
{
	copies_drop_beside(store, block, unit);
	stats_add(&store->stats->v.tiers_gpu_evicted_blocks_total, 1);
}

/* --- memory comes and goes --- */

/* A unit whose memory is gone gives up its copies, some a turn, and then has what came since. */
static bool settle(struct beside *b, uint32_t unit)
{
	struct store *store = b->store;
	struct tier *t = tier_of(store);
	uint32_t class, block, steps = STEPS;
	uint64_t tick;
	int r;

	while (gpu_leaving(t, unit) && steps > 0 &&
	       (block = oldest(store, unit, &class, &tick)) != COPY_NONE) {
		copies_drop_beside(store, block, unit);
		steps--;
	}
	gpu_settle(t, unit);
	if (gpu_slabs(t, unit) || b->memory[unit].generation == 0)
		return steps < STEPS;
	r = gpu_gain(t, unit, &b->memory[unit]);
	if (r)
		log_warning("GPU %u: its memory is not used for images: %s", unit, strerror(-r));
	if (!gpu_up(t, unit))
		b->memory[unit].generation = 0;
	return true;
}

static bool poll(struct loop_poller *poller)
{
	struct beside *b = container_of(poller, struct beside, poller);
	bool worked = false;

	copies_free_condemned(b->store);
	for (uint32_t i = 0; i < b->units; i++)
		if (!gpu_up(tier_of(b->store), i))
			worked |= settle(b, i);
	return worked;
}

static void on_memory(void *arg, struct device *device, const struct device_memory *memory)
{
	struct beside *b = arg;
	const uint32_t unit = device->unit;
	struct tier *t = tier_of(b->store);

	assert(unit < b->units);
	if (memory->generation && memory->generation == gpu_generation(t, unit))
		return;
	b->memory[unit] = (struct gpu_memory){ .base = memory->base,
					       .bytes = memory->bytes,
					       .generation = memory->generation };
	gpu_lose(t, unit);
	/* The slots are made at once, and not by poll(): an op of the client whose region brought
	 * the memory may come before poll() does, and blocks that the op stores are to be kept. */
	if (!gpu_leaving(t, unit))
		(void)settle(b, unit);
}

/* --- room --- */

struct clearing {
	struct store *store;
	uint32_t unit, steps;
};

/* A slot that is pinned, or has no owner yet, stays. */
static bool clear_slot(void *arg, const struct extent *where)
{
	struct clearing *c = arg;
	const uint32_t block = slabs_owner(gpu_slabs(tier_of(c->store), c->unit), where);
	struct extent there;

	if (block != SLABS_NO_OWNER && find(c->store, block, c->unit, &there) &&
	    extent_equal(&there, where) && !copy_table_pinned(table(c->store), block, c->unit)) {
		evict(c->store, block, c->unit);
		c->steps--;
	}
	return c->steps > 0;
}

/* The slab of this copy loses all that it can. */
static void clear_slab(struct store *store, uint32_t unit, uint32_t block)
{
	struct clearing c = { .store = store, .unit = unit, .steps = STEPS };
	struct extent where;

	(void)find(store, block, unit, &where);
	(void)slabs_walk(gpu_slabs(tier_of(store), unit), slabs_slab(&where), clear_slot, &c);
}

/* Something was evicted, so there may be room now. */
static bool make_room(struct store *store, uint32_t unit, uint32_t bytes)
{
	const int class = slabs_class_of(gpu_slabs(tier_of(store), unit), bytes);
	const uint64_t now = store->tick;
	uint64_t old_tick = 0;
	uint32_t old_class = 0, own = COPY_NONE;
	const uint32_t old = oldest(store, unit, &old_class, &old_tick);

	if (class >= 0)
		own = copy_table_victim(table(store), unit, (uint32_t) class);
	if (old == COPY_NONE)
		return false;
	if (own != COPY_NONE && now - old_tick <= 2 * (now - blocks_tick(store->blocks, own)))
		evict(store, own, unit);
	else
		clear_slab(store, unit, old);
	return true;
}

/* A space's own number, that no other one has after it. */
static uint64_t tag_of(const struct space *space)
{
	uint64_t tag[2];

	memcpy(&tag[0], space->owner, sizeof(tag[0]));
	memcpy(&tag[1], space->owner + 16, sizeof(tag[1]));
	tag[0] ^= tag[1];
	return tag[0] == 0 || tag[0] == UINT64_MAX ? 1 : tag[0];
}

int beside_take(struct store *store, uint32_t unit, const struct space *space, uint32_t bytes,
		struct gpu_slot *ret)
{
	int r;

	if (!is_unit(store, unit))
		return -ENODEV;
	r = gpu_alloc(tier_of(store), unit, bytes, tag_of(space), ret);
	if (r != -ENOSPC)
		return r;
	copies_free_condemned(store);
	r = gpu_alloc(tier_of(store), unit, bytes, tag_of(space), ret);
	/* the second time an own slot, if a slab could not be cleared */
	for (int i = 0; i < 2 && r == -ENOSPC && make_room(store, unit, bytes); i++)
		r = gpu_alloc(tier_of(store), unit, bytes, tag_of(space), ret);
	return r;
}

void beside_give_back(struct store *store, const struct extent *where)
{
	extents_free(store, where);
}

/* --- copies --- */

void beside_keep(struct store *store, uint32_t block, const struct extent *where)
{
	if (!gpu_up(tier_of(store), where->unit) || !blocks_live(store->blocks, block) ||
	    copies_add_beside(store, block, where)) {
		beside_give_back(store, where);
		return;
	}
	stats_add(&store->stats->v.tiers_gpu_written_bytes_total, copies_image_bytes(store, block));
}

bool beside_find(const struct store *store, uint32_t block, uint32_t unit, struct gpu_slot *ret)
{
	struct extent where;

	return is_unit(store, unit) && gpu_up(tier_of(store), unit) &&
	       find(store, block, unit, &where) && gpu_slot_of(tier_of(store), &where, ret);
}

void beside_pin(struct store *store, uint32_t block, uint32_t unit, struct beside_pin *ret)
{
	copy_table_touch(table(store), block, unit);
	beside_hold(store, block, unit, ret);
}

void beside_hold(struct store *store, uint32_t block, uint32_t unit, struct beside_pin *ret)
{
	assert(!ret->held);
	*ret = (struct beside_pin){ .unit = unit,
				    .copy = copy_table_pin(table(store), block, unit),
				    .held = true };
}

void beside_unpin(struct store *store, struct beside_pin *pin)
{
	if (!pin->held)
		return;
	pin->held = false;
	copy_table_unpin(table(store), pin->unit, pin->copy);
	copies_free_condemned(store);
}

uint64_t beside_evict(struct store *store, uint64_t bytes, uint32_t steps, uint64_t *ret_blocks)
{
	uint64_t freed = 0, tick;
	uint32_t class, block;

	*ret_blocks = 0;
	for (uint32_t unit = 0; store->beside && unit < store->beside->units; unit++) {
		while (freed < bytes && steps > 0 &&
		       (block = oldest(store, unit, &class, &tick)) != COPY_NONE) {
			struct extent where;

			(void)find(store, block, unit, &where);
			freed += extents_bytes(store, &where);
			evict(store, block, unit);
			*ret_blocks += 1;
			steps--;
		}
	}
	return freed;
}

/* --- life --- */

static uint32_t owner_of(void *arg, uint32_t unit, uint32_t copy)
{
	const struct beside *b = arg;

	return slabs_owner_numbered(gpu_slabs(tier_of(b->store), unit), copy);
}

static int open_table(struct beside *b, const struct beside_conf *conf, char *text, size_t n)
{
	const uint64_t slots = conf->unit_bytes / SLABS_SLOT_LEAST;
	struct copy_table_conf table = {
		.units = b->units,
		.copies = slots < COPY_NUMBERS ? (uint32_t)slots + 1 : COPY_NUMBERS,
		.classes = TIER_MAX_CLASSES,
		.block_of = owner_of,
		.arg = b,
	};
	int r = -EIO;

	if (getrandom(&table.seed, sizeof(table.seed), 0) == sizeof(table.seed))
		r = copy_table_open(&table, &b->copies);
	if (r)
		snprintf(text, n, "[gpu] bytes: cannot reserve for %u images a GPU: %s",
			 table.copies, strerror(-r));
	return r;
}

int beside_open(const struct beside_conf *conf, struct beside **ret, char *text, size_t n)
{
	const struct tier_conf tier = { .units = conf->devices->n - 1,
					.slab_bytes = conf->slab_bytes };
	struct beside *b;
	int r;

	if (tier.units == 0 || conf->unit_bytes == 0)
		return 0;
	b = calloc(1, sizeof(*b));
	if (!b) {
		snprintf(text, n, "[gpu] bytes: out of memory");
		return -ENOMEM;
	}
	b->store = conf->store;
	b->loop = conf->loop;
	b->devices = conf->devices;
	b->units = tier.units;
	r = open_table(b, conf, text, n);
	if (r == 0)
		r = tier_open(TIER_GPU, &tier, b->loop, &b->store->tiers[TIER_GPU], text, n);
	if (r) {
		copy_table_close(b->copies);
		free(b);
		return r;
	}
	b->poller.poll = poll;
	loop_poller_add(b->loop, &b->poller);
	devices_on_memory(b->devices, on_memory, b);
	*ret = b;
	return 0;
}

void beside_close(struct beside *b)
{
	if (!b)
		return;
	devices_on_memory(b->devices, NULL, NULL);
	loop_poller_remove(b->loop, &b->poller);
	tier_close(tier_of(b->store));
	b->store->tiers[TIER_GPU] = NULL;
	b->store->beside = NULL;
	copy_table_close(b->copies);
	free(b);
}

struct copy_table *beside_copies(const struct beside *b)
{
	return b ? b->copies : NULL;
}
