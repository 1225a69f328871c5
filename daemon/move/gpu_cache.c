/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_cache.c - see gpu_cache.h. Core thread only.
 *
 * Slots: an allocator (slabs.h) for each unit. Each slab has a tag: the one space that all bytes in
 * it are of, or clean at first, as the memory comes zeroed. A slab that has had images of two
 * spaces is mixed, and each slot taken there is scrubbed. A tag a slot would cost memory, and would
 * have to follow slabs that change their slot size.
 *
 * Copies: a unit has an array of them, by the number of the slot (slabs_number()), and a hash from
 * a block's number to its copy. The hash is lists that run through the copies, two copies long on
 * average, and grows by linear hashing: a list is divided for every second copy that comes. So no
 * copy pays for a rehash, and the array of heads is touched as far as there were copies. It does
 * not shrink. A copy has not the number of its block, which its slot has as its owner.
 *
 * Orders: the order of a class is a list, at whose end a copy is put when it comes or is hit. A
 * copy has no tick: an op that began long ago may touch it late, and to look for the place of a
 * tick would take long. A copy whose block is expected back later than the first one of its order
 * comes before it, and among the first few that of least worth (table/evict.h) is evicted.
 *
 * Room in a unit: a slot of the image's own class whose copy is the least recent; or, where another
 * class has a copy whose block is more than twice as old, or the own class has none, the slab that
 * this copy lies in, whose copies are all evicted. No image is moved: copying images that can be
 * had from host memory would cost more than it is worth. A block is as old as its last access
 * anywhere, be it through another GPU or the CPU. Only which class loses a slab depends on it.
 */
#include "gpu_cache.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/list.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/reserve.h"
#include "daemon/device/device.h"
#include "daemon/stats/stats.h"
#include "daemon/policy/victim.h"
#include "daemon/table/block.h"
#include "daemon/table/evict.h"
#include "daemon/table/space.h"
#include "tiers/slabs.h"
#include "gpu_list.h"
#include "tables.h"

enum {
	COPY_NONE = 0xffffffff, /* no block; no copy */
	CHAIN = 2,              /* copies a list of the hash, on average */
	LOOKED_AT = 8,          /* copies, for the one of least worth */
	STEPS = 256, /* copies evicted for one image, or in one iteration of a unit that leaves */
	/* how many copies may grow at once, for all ops together; further blocks get no copy */
	GROWING = 4096,
	BUCKETS = 1024,
};
static_assert((uint32_t)COPY_NONE == (uint32_t)SLABS_NO_OWNER &&
		      (uint32_t)COPY_NONE == (uint32_t)BLOCK_NONE,
	      "a slot without owner has no block's copy");

/* Tags of a slab that has only zeroes, and of a slab that has bytes of several spaces. */
#define TAG_CLEAN 0
#define TAG_MIXED UINT64_MAX

struct gpu_unit {
	struct slabs *slabs; /* NULL: ABSENT */
	bool up;
	struct device_memory memory, next; /* next: it has that once it is ABSENT */
	uint32_t n_slabs, given;
	uint64_t *tag; /* by slab: the space that its bytes are of */
	struct copy *copies;
	uint32_t *heads;      /* the hash */
	uint32_t lists, mask; /* lists in use; the bits that number them */
	uint32_t count;       /* KEPT */
	struct class_order order[TIER_MAX_CLASSES];
};

struct growing {
	struct list same; /* its bucket's; or the free ones */
	struct list link; /* its op's */
	struct list *of_op;
	uint32_t at; /* position in the op */
	uint32_t layers_missing;
	uint32_t users; /* parts whose jobs write it */
	bool failed;    /* it is free with its last user */
	uint64_t checksum;
	struct gpu_slot slot;
};

struct gpu_cache {
	struct tier base; /* the store's: its state and its bytes are asked there */
	struct tables *tables;
	struct loop *loop;
	struct devices *devices;
	struct loop_poller poller;
	struct blocks_gpu blocks;
	uint64_t slab_bytes, seed;
	uint32_t copies, heads; /* of each unit, at most */
	struct growing *pool;
	struct list free, *buckets; /* by op, and by position in it */
	uint32_t n_units;
	struct gpu_unit units[];
};

static struct gpu_unit *unit_at(const struct gpu_cache *c, uint32_t unit)
{
	assert(unit < c->n_units);
	return (struct gpu_unit *)(uintptr_t)&c->units[unit];
}

/* --- memory and slots --- */

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
static void count_capacity(struct gpu_cache *c)
{
	c->base.capacity_bytes = 0;
	for (uint32_t i = 0; i < c->n_units; i++)
		if (c->units[i].slabs)
			c->base.capacity_bytes += c->units[i].n_slabs * c->slab_bytes;
}

/* It is ABSENT. */
static void memory_close(struct gpu_cache *c, struct gpu_unit *u)
{
	slabs_close(u->slabs);
	free(u->tag);
	u->slabs = NULL;
	u->tag = NULL;
	u->up = false;
	u->n_slabs = u->given = 0;
	count_capacity(c);
}

/* The unit is ABSENT; memory of less than a slab is not used. 0, -ENOMEM. */
static int memory_open(struct gpu_cache *c, struct gpu_unit *u, const struct device_memory *memory)
{
	const uint64_t n = memory->bytes / c->slab_bytes;
	struct slabs_conf conf = {
		.tier = &c->base,
		.unit = (uint8_t)(u - c->units),
		.slab_bytes = c->slab_bytes,
		.n_slabs = n < TIER_MAX_SLABS ? (uint32_t)n : TIER_MAX_SLABS,
		.more = more,
		.lost = none_lost,
		.arg = u,
	};
	int r = -ENOMEM;

	assert(!u->slabs && memory->generation > 0 && memory->base % 4096 == 0);
	if (conf.n_slabs == 0)
		return 0;
	u->memory = *memory;
	u->n_slabs = conf.n_slabs;
	u->tag = calloc(conf.n_slabs, sizeof(*u->tag));
	if (u->tag)
		r = slabs_open(&conf, &u->slabs);
	if (r) {
		memory_close(c, u);
		return r;
	}
	u->up = true;
	count_capacity(c);
	return 0;
}

static bool slots_in_use(const struct gpu_unit *u)
{
	struct tier_class_view view;

	for (uint32_t i = 0; i < slabs_classes(u->slabs); i++) {
		slabs_class_view(u->slabs, i, &view);
		if (view.slabs)
			return true;
	}
	return false;
}

/* False: the slot's bytes cannot be had any more. */
static bool slot_of(const struct gpu_unit *u, const struct extent *where, struct gpu_slot *ret)
{
	const uint64_t offset = u->up ? slabs_offset(u->slabs, where) : UINT64_MAX;

	if (offset == UINT64_MAX)
		return false;
	*ret = (struct gpu_slot){ .where = *where,
				  .address = u->memory.base + offset,
				  .generation = u->memory.generation,
				  .bytes = slabs_extent_bytes(u->slabs, where) };
	return true;
}

/* A space's own number, that no other one has after it. */
static uint64_t tag_of(const struct space *space)
{
	uint64_t tag[2];

	memcpy(&tag[0], space->owner, sizeof(tag[0]));
	memcpy(&tag[1], space->owner + 16, sizeof(tag[1]));
	tag[0] ^= tag[1];
	return tag[0] == TAG_CLEAN || tag[0] == TAG_MIXED ? 1 : tag[0];
}

/* -ENOSPC: something must be freed first; -E2BIG: larger than a slab. */
static int slot_alloc(struct gpu_cache *c, struct gpu_unit *u, uint32_t bytes, uint64_t space,
		      struct gpu_slot *ret)
{
	struct extent where;
	uint64_t *tag;
	const int r = slabs_alloc(u->slabs, bytes, TIER_ANY_UNIT, &where);

	count_capacity(c); /* slabs.c wrote its own there */
	if (r)
		return r;
	(void)slot_of(u, &where, ret);
	tag = &u->tag[slabs_slab(&where)];
	if (*tag == TAG_CLEAN)
		*tag = space;
	if (*tag != space)
		*tag = TAG_MIXED;
	ret->scrub = *tag == TAG_MIXED;
	return 0;
}

static void slot_free(struct gpu_cache *c, const struct extent *where)
{
	slabs_free(unit_at(c, where->unit)->slabs, where);
}

/* --- the hash --- */

/* KEPT. */
static uint32_t block_of(const struct gpu_unit *u, uint32_t at)
{
	return slabs_owner_numbered(u->slabs, at);
}

/* The head of the list that the block's copy would be on. */
static uint32_t *head_of(const struct gpu_cache *c, const struct gpu_unit *u, uint32_t block)
{
	const uint64_t hash = ((block + 1) * (c->seed | 1) * 0x9e3779b97f4a7c15u) >> 32;
	const uint32_t list = (uint32_t)hash & u->mask;

	/* those that were not divided yet have a bit less */
	return &u->heads[list < u->lists ? list : list & u->mask >> 1];
}

/* COPY_NONE: the block has no copy there. */
static uint32_t copy_of(const struct gpu_cache *c, const struct gpu_unit *u, uint32_t block)
{
	uint32_t at = *head_of(c, u, block);

	while (at != COPY_END && block_of(u, at) != block)
		at = u->copies[at].chain;
	return at != COPY_END ? at : COPY_NONE;
}

static void chain_add(const struct gpu_cache *c, struct gpu_unit *u, uint32_t at)
{
	uint32_t *head = head_of(c, u, block_of(u, at));

	u->copies[at].chain = *head & COPY_END;
	*head = at;
}

static void chain_remove(const struct gpu_cache *c, struct gpu_unit *u, uint32_t at)
{
	uint32_t *head = head_of(c, u, block_of(u, at)), before = *head;

	if (before == at) {
		*head = u->copies[at].chain;
		return;
	}
	while (u->copies[before].chain != at)
		before = u->copies[before].chain;
	u->copies[before].chain = u->copies[at].chain;
}

/* Divides the next list in turn with a new one behind the last. */
static void divide(const struct gpu_cache *c, struct gpu_unit *u)
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

		chain_add(c, u, at);
		at = next;
	}
}

/* --- orders --- */

static struct class_order *order_of(struct gpu_unit *u, uint32_t at)
{
	return &u->order[u->copies[at].class];
}

static void order_hit(struct gpu_unit *u, uint32_t at)
{
	gpu_list_remove(order_of(u, at), u->copies, at);
	gpu_list_add(order_of(u, at), u->copies, at, false);
}

static uint64_t worth_of(const struct gpu_cache *c, const struct gpu_unit *u, uint32_t at)
{
	const uint64_t worth = victim_worth(c->tables->blocks, block_of(u, at));

	return worth < EVICT_NEVER ? worth : c->tables->tick; /* held: it has no age */
}

/* The copy in a slot of this class that is evicted next, or COPY_NONE: the first one; if there are
 * hints, the one of least worth among the first ones. O(1 + pinned copies of the class): there are
 * no more of these than jobs of a device. */
static uint32_t next_copy(const struct gpu_cache *c, const struct gpu_unit *u, uint32_t class)
{
	uint32_t seen = evict_banded(blocks_order(c->tables->blocks)) ? LOOKED_AT : 1;
	uint32_t ret = COPY_NONE;

	for (uint32_t at = u->order[class].first; at != COPY_END && seen > 0;
	     at = u->copies[at].next) {
		if (u->copies[at].pins)
			continue;
		seen--;
		if (ret == COPY_NONE || worth_of(c, u, at) < worth_of(c, u, ret))
			ret = at;
	}
	return ret;
}

void gpu_cache_expected(struct gpu_cache *c, uint32_t block)
{
	for (uint32_t i = 0; i < c->n_units; i++) {
		struct gpu_unit *u = &c->units[i];
		const uint32_t at = copy_of(c, u, block);

		if (at == COPY_NONE || worth_of(c, u, at) >= worth_of(c, u, order_of(u, at)->first))
			continue;
		gpu_list_remove(order_of(u, at), u->copies, at);
		gpu_list_add(order_of(u, at), u->copies, at, true);
	}
}

/* --- copies --- */

static void copy_add(struct gpu_cache *c, struct gpu_unit *u, uint32_t at, uint32_t block,
		     const struct extent *where)
{
	assert(u->copies[at].state == COPY_FREE);
	slabs_set_owner(u->slabs, where, block);
	u->copies[at] = (struct copy){ .class = where->class & (TIER_MAX_CLASSES - 1u),
				       .state = COPY_KEPT };
	if (u->count++ >= CHAIN * u->lists && u->lists < c->heads)
		divide(c, u);
	chain_add(c, u, at);
	gpu_list_add(order_of(u, at), u->copies, at, false);
	blocks_gpu_changed(c->tables->blocks, block);
}

static void copy_free(struct gpu_cache *c, struct gpu_unit *u, uint32_t at)
{
	struct extent where;
	const int r = slabs_numbered(u->slabs, at, &where);

	assert(r == 0);
	u->copies[at].state = COPY_FREE;
	slot_free(c, &where);
}

/* The copy is no block's any more. Its slot is freed now, or with the last pin. */
static void copy_remove(struct gpu_cache *c, struct gpu_unit *u, uint32_t at)
{
	gpu_list_remove(order_of(u, at), u->copies, at);
	chain_remove(c, u, at);
	u->count--;
	u->copies[at].state = COPY_LOOSE;
	if (u->copies[at].pins == 0)
		copy_free(c, u, at);
}

/* Drops a copy without pins of a block that stays. Returns the freed bytes. */
static uint32_t drop(struct gpu_cache *c, struct gpu_unit *u, uint32_t at)
{
	const uint32_t block = block_of(u, at);
	struct extent where;
	uint32_t bytes;

	(void)slabs_numbered(u->slabs, at, &where);
	bytes = slabs_extent_bytes(u->slabs, &where);
	assert(u->copies[at].pins == 0);
	copy_remove(c, u, at);
	blocks_gpu_changed(c->tables->blocks, block);
	return bytes;
}

static uint32_t evict(struct gpu_cache *c, struct gpu_unit *u, uint32_t at)
{
	stats_add(&c->tables->stats->v.tiers_gpu_evicted_blocks_total, 1);
	return drop(c, u, at);
}

static void forget(void *arg, uint32_t block)
{
	struct gpu_cache *c = arg;

	for (uint32_t i = 0; i < c->n_units; i++) {
		const uint32_t at = copy_of(c, &c->units[i], block);

		if (at != COPY_NONE)
			copy_remove(c, &c->units[i], at);
	}
}

/* The units that have a copy, as bits 1 << unit. */
static uint64_t units_of(void *arg, uint32_t block)
{
	const struct gpu_cache *c = arg;
	uint64_t ret = 0;

	for (uint32_t i = 0; i < c->n_units; i++)
		ret |= (uint64_t)(copy_of(c, &c->units[i], block) != COPY_NONE) << i;
	return ret;
}

/* --- memory comes and is lost --- */

/* The copy of the oldest block among the least recent copies without pins of each class, or
 * COPY_NONE. */
static uint32_t oldest(const struct gpu_cache *c, const struct gpu_unit *u, uint64_t *ret_tick)
{
	uint32_t ret = COPY_NONE;

	for (uint32_t i = 0; u->slabs && i < slabs_classes(u->slabs); i++) {
		const uint32_t at = next_copy(c, u, i);
		uint64_t tick;

		if (at == COPY_NONE)
			continue;
		tick = worth_of(c, u, at);
		if (ret != COPY_NONE && tick >= *ret_tick)
			continue;
		ret = at;
		*ret_tick = tick;
	}
	return ret;
}

/* A unit whose memory is gone gives up its copies, some per iteration, and then has the memory that
 * came since. */
static bool settle_unit(struct gpu_cache *c, struct gpu_unit *u)
{
	uint32_t at, steps = STEPS;
	uint64_t tick;
	int r;

	while (u->slabs && steps > 0 && (at = oldest(c, u, &tick)) != COPY_NONE) {
		(void)drop(c, u, at);
		steps--;
	}
	if (u->slabs && !slots_in_use(u))
		memory_close(c, u);
	if (u->slabs || u->next.generation == 0)
		return steps < STEPS;
	r = memory_open(c, u, &u->next);
	if (r)
		log_warning("gpu_memory", "GPU %u: its memory is not used for images: %s",
			    (uint32_t)(u - c->units), strerror(-r));
	if (!u->up)
		u->next.generation = 0;
	return true;
}

static bool poll(struct loop_poller *poller)
{
	struct gpu_cache *c = container_of(poller, struct gpu_cache, poller);
	bool worked = false;

	for (uint32_t i = 0; i < c->n_units; i++)
		if (!c->units[i].up)
			worked |= settle_unit(c, &c->units[i]);
	return worked;
}

static void on_memory(void *arg, struct device *device, const struct device_memory *memory)
{
	struct gpu_cache *c = arg;
	struct gpu_unit *u = unit_at(c, device->unit);

	if (memory->generation && u->up && memory->generation == u->memory.generation)
		return;
	u->next = *memory;
	u->up = false;
	if (u->slabs && !slots_in_use(u))
		memory_close(c, u);
	/* The slots are made at once, and not by poll(): an op of the client whose region brought
	 * the memory may come before poll() does, and blocks that the op stores are to be kept. */
	if (!u->slabs)
		(void)settle_unit(c, u);
}

/* --- room --- */

struct clearing {
	struct gpu_cache *c;
	struct gpu_unit *u;
	uint32_t steps;
};

/* Slots that are pinned, or are not a block's copy, stay. */
static bool clear_slot(void *arg, const struct extent *where)
{
	struct clearing *x = arg;
	const uint32_t at = slabs_number(x->u->slabs, where);

	if (at < x->c->copies && x->u->copies[at].state == COPY_KEPT &&
	    x->u->copies[at].pins == 0) {
		(void)evict(x->c, x->u, at);
		x->steps--;
	}
	return x->steps > 0;
}

/* Evicts all copies that can be evicted from the slab of this copy. */
static void clear_slab(struct gpu_cache *c, struct gpu_unit *u, uint32_t at)
{
	struct clearing x = { .c = c, .u = u, .steps = STEPS };
	struct extent where;

	(void)slabs_numbered(u->slabs, at, &where);
	(void)slabs_walk(u->slabs, slabs_slab(&where), clear_slot, &x);
}

/* Evicts something. True: something was, so there may be room now. */
static bool make_room(struct gpu_cache *c, struct gpu_unit *u, uint32_t bytes)
{
	const int class = slabs_class_of(u->slabs, bytes);
	const uint64_t now = c->tables->tick;
	uint64_t old_tick = 0;
	const uint32_t old = oldest(c, u, &old_tick),
		       own = class >= 0 ? next_copy(c, u, (uint32_t) class) : COPY_NONE;

	if (old == COPY_NONE)
		return false;
	if (own != COPY_NONE && now - old_tick <= 2 * (now - worth_of(c, u, own)))
		(void)evict(c, u, own);
	else
		clear_slab(c, u, old);
	return true;
}

/* The block that the job is about, if it is in the table; BLOCK_NONE: it is not. */
static uint32_t block_of_job(const struct gpu_cache *c, const struct gpu_use *use,
			     const struct device_job *job)
{
	return blocks_find(c->tables->blocks, job->identity.key, use->space->number);
}

/* A slot for the image of so many bytes that the job is about. False: the GPU has no memory now, or
 * has the image, or has no room for it. */
static bool take(struct gpu_cache *c, const struct gpu_use *use, uint32_t bytes,
		 const struct device_job *job, struct gpu_slot *ret)
{
	struct gpu_unit *u = unit_at(c, use->unit);
	const uint32_t block = block_of_job(c, use, job);
	const uint64_t tag = tag_of(use->space);
	int r;

	if (use->refused || !u->up || (block != BLOCK_NONE && copy_of(c, u, block) != COPY_NONE))
		return false;
	r = slot_alloc(c, u, bytes, tag, ret);
	/* the second time for a slot of the own class, if a slab could not be cleared */
	for (int i = 0; i < 2 && r == -ENOSPC && make_room(c, u, bytes); i++)
		r = slot_alloc(c, u, bytes, tag, ret);
	return r == 0;
}

/* The slot has the image that the job was about: it becomes the block's copy, if the block is in
 * the table with this codec, as its copies are of one size, and has no copy there; else it is free.
 */
static void give(struct gpu_cache *c, const struct gpu_use *use, const struct extent *where,
		 const struct device_job *job)
{
	struct gpu_unit *u = unit_at(c, where->unit);
	const uint32_t block = block_of_job(c, use, job), at = slabs_number(u->slabs, where),
		       variant = space_variant(use->space, (enum image_codec)job->out_codec_k);

	if (block == BLOCK_NONE || !u->up || at >= c->copies ||
	    blocks_variant(c->tables->blocks, block) != variant ||
	    copy_of(c, u, block) != COPY_NONE) {
		slot_free(c, where);
		return;
	}
	copy_add(c, u, at, block, where);
	stats_add(&c->tables->stats->v.tiers_gpu_written_bytes_total,
		  use->space->variant_bytes[variant]);
}

/* --- jobs --- */

bool gpu_cache_find(const struct gpu_cache *c, uint32_t block, uint32_t unit, struct gpu_slot *ret)
{
	const struct gpu_unit *u = unit_at(c, unit);
	const uint32_t at = u->up ? copy_of(c, u, block) : COPY_NONE;
	struct extent where;

	if (at == COPY_NONE || !ret)
		return at != COPY_NONE;
	return slabs_numbered(u->slabs, at, &where) == 0 && slot_of(u, &where, ret);
}

void gpu_cache_unpin(struct gpu_cache *c, struct gpu_use *use)
{
	struct gpu_unit *u;
	struct copy *copy;

	if (!use->pinned)
		return;
	u = unit_at(c, use->unit);
	copy = &u->copies[use->copy];
	assert(copy->state != COPY_FREE && copy->pins > 0);
	use->pinned = false;
	copy->pins--;
	if (copy->state == COPY_LOOSE && copy->pins == 0)
		copy_free(c, u, use->copy);
}

void gpu_cache_hold(struct gpu_cache *c, struct gpu_use *use, uint32_t block)
{
	struct gpu_unit *u = unit_at(c, use->unit);

	if (use->pinned)
		return;
	use->pinned = true;
	use->copy = copy_of(c, u, block);
	u->copies[use->copy].pins++;
	assert(u->copies[use->copy].pins > 0);
}

bool gpu_cache_pin(struct gpu_cache *c, struct gpu_use *use, uint32_t block, struct device_job *job)
{
	const bool raw =
		blocks_variant(c->tables->blocks, block) == space_variant(use->space, CODEC_RAW);
	struct gpu_slot slot;

	if (use->refused || !gpu_cache_find(c, block, use->unit, &slot))
		return false;
	if (!use->pinned) {
		gpu_cache_hold(c, use, block);
		order_hit(unit_at(c, use->unit), use->copy);
	}
	job->image_memory = IMAGE_OF_DEVICE;
	job->image = (uint8_t *)(uintptr_t)slot.address;
	job->image_bytes = slot.bytes;
	job->generation = slot.generation;
	job->codec_k = (uint8_t)(raw ? CODEC_RAW : use->space->codecs.k);
	job->codec_v = (uint8_t)(raw ? CODEC_RAW : use->space->codecs.v);
	job->keep = (struct device_keep){ 0 };
	return true;
}

static void keep_nowhere(struct device_job *job)
{
	job->image_memory = IMAGE_OF_HOST;
	job->keep = (struct device_keep){ 0 };
	job->kept = false;
}

static void keep_in(struct device_job *job, const struct gpu_slot *slot)
{
	job->keep = (struct device_keep){ .address = slot->address,
					  .generation = slot->generation,
					  .bytes = slot->bytes,
					  .scrub = slot->scrub };
}

void gpu_cache_reserve(struct gpu_cache *c, struct gpu_use *use, uint32_t bytes,
		       struct device_job *job)
{
	struct gpu_slot slot;

	if (use->reserved)
		return;
	keep_nowhere(job);
	if (!take(c, use, bytes, job, &slot))
		return;
	use->reserved = true;
	use->where = slot.where;
	keep_in(job, &slot);
}

/* --- copies that grow --- */

static struct list *bucket_of(const struct gpu_cache *c, const struct list *of_op, uint32_t at)
{
	return &c->buckets[(((uintptr_t)of_op >> 6) * 61 + at) % BUCKETS];
}

static struct growing *find_growing(const struct gpu_cache *c, const struct list *of_op,
				    uint32_t at)
{
	struct list *bucket = bucket_of(c, of_op, at);

	for (struct list *i = bucket->next; i != bucket; i = i->next) {
		struct growing *g = container_of(i, struct growing, same);

		if (g->of_op == of_op && g->at == at)
			return g;
	}
	return NULL;
}

/* The growing copy ends, after its slot was given away or freed. */
static void growing_end(struct gpu_cache *c, struct growing *g)
{
	assert(g->users == 0);
	list_remove(&g->link);
	list_remove(&g->same);
	list_add(&c->free, &g->same);
}

static void growing_fail(struct gpu_cache *c, struct growing *g)
{
	g->failed = true;
	if (g->users > 0)
		return;
	slot_free(c, &g->slot.where);
	growing_end(c, g);
}

static uint64_t checksum_of(const struct device_job *job)
{
	return ((const struct image_header *)(const void *)job->image)->checksum;
}

/* NULL: there is no room, or the GPU has the block. */
static struct growing *growing_begin(struct gpu_cache *c, const struct gpu_use *use, uint32_t bytes,
				     const struct device_job *job, struct list *of_op, uint32_t at)
{
	struct growing *g = container_of(c->free.next, struct growing, same);
	struct gpu_slot slot;

	if (list_empty(&c->free) || !take(c, use, bytes, job, &slot))
		return NULL;
	list_remove(&g->same);
	*g = (struct growing){ .of_op = of_op,
			       .at = at,
			       .layers_missing = use->space->geometry.layers,
			       .checksum = checksum_of(job),
			       .slot = slot };
	list_add(bucket_of(c, of_op, at), &g->same);
	list_add(of_op, &g->link);
	return g;
}

void gpu_cache_grow(struct gpu_cache *c, struct gpu_use *use, uint32_t bytes,
		    struct device_job *job, struct list *of_op, uint32_t at)
{
	struct growing *g;

	if (use->growing)
		return;
	keep_nowhere(job);
	g = find_growing(c, of_op, at);
	if (!g && job->first_layer == 0)
		g = growing_begin(c, use, bytes, job, of_op, at);
	if (!g || g->failed)
		return;
	if (g->checksum != checksum_of(job)) {
		growing_fail(c, g);
		return;
	}
	use->growing = g;
	g->users++;
	keep_in(job, &g->slot);
}

static void growing_leave(struct gpu_cache *c, struct gpu_use *use, const struct device_job *job)
{
	struct growing *g = use->growing;

	use->growing = NULL;
	g->users--;
	if (!job->kept || g->failed) {
		growing_fail(c, g);
		return;
	}
	g->layers_missing -= (uint32_t)job->end_layer - job->first_layer;
	if (g->layers_missing > 0)
		return;
	give(c, use, &g->slot.where, job);
	growing_end(c, g);
}

void gpu_cache_end_op(struct gpu_cache *c, struct list *of_op)
{
	while (!list_empty(of_op)) {
		struct growing *g = container_of(of_op->next, struct growing, link);

		assert(g->users == 0);
		growing_fail(c, g);
	}
}

void gpu_cache_settle(struct gpu_cache *c, struct gpu_use *use, const struct device_job *job)
{
	assert(!job->in_flight);
	gpu_cache_unpin(c, use);
	if (use->growing)
		growing_leave(c, use, job);
	if (!use->reserved)
		return;
	use->reserved = false;
	if (job->kept)
		give(c, use, &use->where, job);
	else
		slot_free(c, &use->where);
}

/* --- for all copies --- */

uint32_t gpu_cache_units(const struct gpu_cache *c)
{
	return c->n_units;
}

void gpu_cache_condemn(struct gpu_cache *c, uint32_t block, uint32_t unit)
{
	struct gpu_unit *u = unit_at(c, unit);

	copy_remove(c, u, copy_of(c, u, block));
	blocks_gpu_changed(c->tables->blocks, block);
}

uint64_t gpu_cache_evict(struct gpu_cache *c, uint64_t bytes, uint32_t steps, uint64_t *ret_blocks)
{
	uint64_t freed = 0, tick;
	uint32_t at;

	*ret_blocks = 0;
	for (uint32_t i = 0; i < c->n_units; i++) {
		struct gpu_unit *u = &c->units[i];

		while (freed < bytes && *ret_blocks < steps &&
		       (at = oldest(c, u, &tick)) != COPY_NONE) {
			freed += evict(c, u, at);
			*ret_blocks += 1;
		}
	}
	return freed;
}

/* --- life --- */

/* It is a struct tier for its state and its bytes alone: no image is moved by tier_*(). */
static enum tier_state state(const struct tier *t)
{
	const struct gpu_cache *c = (const struct gpu_cache *)(const void *)t;

	for (uint32_t i = 0; i < c->n_units; i++)
		if (c->units[i].up)
			return TIER_UP;
	return TIER_STARTING;
}

static const struct tier_ops gpu_ops = { .id = TIER_GPU, .state = state };

static bool open_unit(const struct gpu_cache *c, struct gpu_unit *u)
{
	for (uint32_t i = 0; i < TIER_MAX_CLASSES; i++)
		u->order[i] = (struct class_order){ COPY_END, COPY_END };
	u->copies = reserve(c->copies * sizeof(struct copy));
	u->heads = reserve(c->heads * sizeof(uint32_t));
	if (!u->copies || !u->heads)
		return false;
	u->heads[0] = COPY_END;
	u->lists = 1;
	return true;
}

static int open_all(struct gpu_cache *c)
{
	if (getrandom(&c->seed, sizeof(c->seed), 0) != sizeof(c->seed))
		return -EIO;
	list_open(&c->free);
	c->pool = calloc(GROWING, sizeof(*c->pool));
	c->buckets = calloc(BUCKETS, sizeof(*c->buckets));
	if (!c->pool || !c->buckets)
		return -ENOMEM;
	for (uint32_t i = 0; i < BUCKETS; i++)
		list_open(&c->buckets[i]);
	for (uint32_t i = 0; i < GROWING; i++)
		list_add(&c->free, &c->pool[i].same);
	for (uint32_t i = 0; i < c->n_units; i++)
		if (!open_unit(c, &c->units[i]))
			return -ENOMEM;
	return 0;
}

static void close_all(struct gpu_cache *c)
{
	for (uint32_t i = 0; i < c->n_units; i++) {
		memory_close(c, &c->units[i]);
		unreserve(c->units[i].copies, c->copies * sizeof(struct copy));
		unreserve(c->units[i].heads, c->heads * sizeof(uint32_t));
	}
	free(c->pool);
	free(c->buckets);
	free(c);
}

int gpu_cache_open(const struct gpu_cache_conf *conf, struct gpu_cache **ret, char *text, size_t n)
{
	const uint32_t units = conf->devices->n - 1;
	const uint64_t slots = conf->unit_bytes / SLABS_SLOT_LEAST;
	struct gpu_cache *c;
	int r;

	if (units == 0 || conf->unit_bytes == 0)
		return 0;
	assert(units <= GPU_UNITS_MAX);
	c = calloc(1, sizeof(*c) + units * sizeof(c->units[0]));
	if (!c) {
		snprintf(text, n, "[gpu] bytes: out of memory");
		return -ENOMEM;
	}
	c->base.ops = &gpu_ops;
	c->tables = conf->tables;
	c->loop = conf->loop;
	c->devices = conf->devices;
	c->slab_bytes = conf->slab_bytes;
	c->copies = slots < COPY_NUMBERS ? (uint32_t)slots + 1 : COPY_NUMBERS;
	c->heads = c->copies / CHAIN + 1;
	c->n_units = units;
	c->blocks = (struct blocks_gpu){ .arg = c, .forget = forget, .units = units_of };
	r = open_all(c);
	if (r) {
		snprintf(text, n, "[gpu] bytes: cannot reserve for %u images a GPU: %s", c->copies,
			 strerror(-r));
		close_all(c);
		return r;
	}
	c->poller.poll = poll;
	loop_poller_add(c->loop, &c->poller);
	c->devices->hooks.memory = on_memory;
	c->devices->hooks.memory_arg = c;
	c->tables->tiers[TIER_GPU] = &c->base;
	*ret = c;
	return 0;
}

void gpu_cache_close(struct gpu_cache *c)
{
	if (!c)
		return;
	c->devices->hooks.memory = NULL;
	loop_poller_remove(c->loop, &c->poller);
	c->tables->tiers[TIER_GPU] = NULL;
	c->tables->gpu_cache = NULL;
	close_all(c);
}

const struct blocks_gpu *gpu_cache_blocks(const struct gpu_cache *c)
{
	return c ? &c->blocks : NULL;
}
