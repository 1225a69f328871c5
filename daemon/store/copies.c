/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copies.c - see copies.h. Core thread only.
 *
 * Order: where the daemon takes a block's NVMe copy away, it tells the tier first (tier_forget()
 * with the tick that the tier knows), and the table second. Where the tier itself drops a record,
 * the extent is stale when its callback returns, so there is nothing to tell.
 */
#include "copies.h"

#include <assert.h>
#include <errno.h>

#include "daemon/stats/stats.h"
#include "tiers/nvme/nvme.h"
#include "tiers/slabs.h"
#include "copy_table.h"
#include "evict.h"
#include "extents.h"
#include "herd.h"
#include "place.h"
#include "space.h"
#include "store.h"
#include "tally.h"

enum { SAMPLE = 64 }; /* away blocks looked at for an old one */

/* What evict.c can count up to, and room above it: a disk could say anything. */
#define MAX_FOUND_TICK (1ull << 47)

/* --- one block --- */

static void slot_free(struct store *store, uint32_t slot)
{
	struct extent where;

	if (slot != BLOCK_NONE && tier_extent(store_host(store), slot, &where) == 0)
		extents_free(store, &where);
}

static void forget_nvme(struct store *store, uint32_t block)
{
	struct extent where;

	if (blocks_nvme(store->blocks, block, &where))
		extents_forget(store, &where, blocks_tick(store->blocks, block));
}

void copies_touch(struct store *store, uint32_t block, uint64_t tick)
{
	const uint64_t before = blocks_tick(store->blocks, block);
	struct extent where;

	blocks_touch(store->blocks, block, tick);
	if (blocks_nvme(store->blocks, block, &where))
		extents_touch(store, &where, before, blocks_tick(store->blocks, block));
}

void copies_age(struct store *store, uint32_t block)
{
	const uint64_t before = blocks_tick(store->blocks, block);
	struct extent where;

	evict_age(blocks_order(store->blocks), block);
	if (blocks_nvme(store->blocks, block, &where))
		extents_touch(store, &where, before, 0);
}

void copies_drop(struct store *store, uint32_t block)
{
	forget_nvme(store, block);
	slot_free(store, blocks_drop(store->blocks, block));
}

void copies_condemn(struct store *store, uint32_t block)
{
	forget_nvme(store, block);
	blocks_condemn(store->blocks, block);
	copies_free_condemned(store);
}

void copies_drop_nvme(struct store *store, uint32_t block)
{
	if (blocks_host_slot(store->blocks, block) == BLOCK_NONE) {
		copies_condemn(store, block);
		return;
	}
	forget_nvme(store, block);
	blocks_set_nvme(store->blocks, block, NULL);
}

int copies_add_beside(struct store *store, uint32_t block, const struct extent *where)
{
	const uint32_t copy = tier_slot_number(store->tiers[TIER_GPU], where);
	int r;

	extents_set_owner(store, where, block); /* the table asks for it */
	r = copy_table_add(blocks_beside(store->blocks), block, where->unit, copy, where->class);
	if (r == 0)
		blocks_look_beside(store->blocks, block);
	else
		extents_set_owner(store, where, SLABS_NO_OWNER);
	return r;
}

void copies_drop_beside(struct store *store, uint32_t block, uint32_t unit)
{
	const uint32_t copy = copy_table_remove(blocks_beside(store->blocks), block, unit);
	const struct extent where = extents_beside(store, unit, copy);

	blocks_look_beside(store->blocks, block);
	extents_free(store, &where);
}

void copies_condemn_beside(struct store *store, uint32_t block, uint32_t unit)
{
	copy_table_forget_on(blocks_beside(store->blocks), block, unit);
	blocks_look_beside(store->blocks, block);
	copies_free_condemned(store);
}

void copies_free_condemned(struct store *store)
{
	uint32_t unit, copy;

	herd_free_condemned(store->blocks, store_host(store));
	while (copy_table_loose(blocks_beside(store->blocks), &unit, &copy)) {
		const struct extent where = extents_beside(store, unit, copy);

		extents_free(store, &where);
	}
}

uint32_t copies_image_bytes(const struct store *store, uint32_t block)
{
	const struct space *space = space_at(store->spaces, blocks_space(store->blocks, block));

	return space ? space->variant_bytes[blocks_variant(store->blocks, block)] : 0;
}

/* --- the table is full --- */

/* A number for a block of this space. */
struct need {
	struct store *store;
	const uint64_t *guaranteed; /* bytes, by space */
	uint32_t space;
	struct place_account own; /* the space's */
	enum place_from from;
};

/* Nothing is guaranteed to a space whose revision a hint has lowered. All numbers are in use. */
static struct place_account holding(const struct need *n, uint32_t space)
{
	const struct blocks *blocks = n->store->blocks;
	const double part =
		(double)n->guaranteed[space] / (double)store_host(n->store)->capacity_bytes;
	struct place_account ret = { .held = tally_held(blocks_tally(blocks), space) };

	if (tally_standing(blocks_tally(blocks), space) == HINT_USUAL)
		ret.guaranteed = (uint64_t)(part * blocks_used(blocks));
	return ret;
}

static bool may_drop(void *arg, uint32_t space)
{
	const struct need *n = arg;
	const struct place_account its = holding(n, space);

	return place_may_drop(space == n->space ? &n->own : &its, &n->own, n->from);
}

/* The account that many spaces share is nobody's. */
static bool may_drop_of(void *arg, uint32_t account)
{
	const struct need *n = arg;
	const uint32_t space = tally_account_space(blocks_tally(n->store->blocks), account);

	return space == TALLY_NO_SPACE || may_drop(arg, space);
}

/* The least recent leaf of all slab classes that may go, or BLOCK_NONE. */
static uint32_t oldest_leaf(struct need *n)
{
	const uint32_t classes = slabs_classes(tier_slabs(store_host(n->store)));
	bool spared = false; /* not asked for */
	const struct herd_filter filter = { may_drop_of, n, &spared };
	uint64_t oldest = UINT64_MAX;
	uint32_t ret = BLOCK_NONE;

	for (uint32_t i = 0; i < classes; i++) {
		uint64_t tick;
		const uint32_t block = herd_victim_of(n->store->blocks, i, &filter, &tick);

		if (block != BLOCK_NONE && tick < oldest) {
			oldest = tick;
			ret = block;
		}
	}
	return ret;
}

/* An away block that is old, or else a leaf of the host tier, goes. False: there is none that
 * may. */
static bool drop_one(struct need *n)
{
	struct store *store = n->store;
	uint32_t block = herd_sample_away(store->blocks, &store->away_hand, SAMPLE, may_drop, n);
	const bool away = block != BLOCK_NONE;

	if (!away)
		block = oldest_leaf(n);
	if (block == BLOCK_NONE)
		return false;
	stats_add(&store->stats->v.tiers_nvme_evicted_blocks_total,
		  blocks_nvme(store->blocks, block, NULL));
	store->mover.counts.evicted_blocks += !away;
	copies_drop(store, block);
	return true;
}

static bool make_room(struct store *store, uint32_t space, const uint64_t *guaranteed)
{
	struct need n = { .store = store, .guaranteed = guaranteed, .space = space };

	n.own = holding(&n, space);
	for (n.from = PLACE_FROM_RICH; n.from <= PLACE_FROM_ANY; n.from++)
		if (drop_one(&n))
			return true;
	return false;
}

/* --- a slot becomes a block's --- */

void copies_promote(struct store *store, uint32_t block, const struct extent *where,
		    uint32_t parent)
{
	blocks_promote(store->blocks, block, parent == block ? BLOCK_NONE : parent, where);
	extents_set_owner(store, where, block);
}

/* A full table makes room as a full tier does: an old block goes. A crowded neighbourhood (-EXFULL)
 * is another case: only the new block is refused, or keys made to collide would empty the table. */
static int commit(struct store *store, const struct space *space, const uint8_t key[32],
		  enum image_codec codec, const struct extent *where, uint32_t parent,
		  const uint64_t *guaranteed, uint32_t *ret)
{
	const uint32_t variant = space_variant(space, codec);
	int r = blocks_commit(store->blocks, key, space->number, parent, variant, where, ret);

	if (r == -ENOSPC && make_room(store, space->number, guaranteed))
		r = blocks_commit(store->blocks, key, space->number, parent, variant, where, ret);
	if (r == 0)
		extents_set_owner(store, where, *ret);
	return r;
}

int copies_enter(struct store *store, const struct space *space, const uint8_t key[32],
		 enum image_codec codec, const struct extent *where, uint32_t parent,
		 const uint64_t *guaranteed, uint32_t *ret)
{
	const int r = commit(store, space, key, codec, where, parent, guaranteed, ret);

	if (r != -EEXIST)
		return r;
	*ret = blocks_find(store->blocks, key, space->number);
	assert(*ret != BLOCK_NONE);
	if (blocks_host_slot(store->blocks, *ret) != BLOCK_NONE)
		return 1; /* the same block was stored meanwhile */
	copies_promote(store, *ret, where, parent);
	/* Its disk is away. If another takes writes, it gets a copy there. */
	if (!extents_away(store, *ret, NULL) && extents_durable(store, key))
		copies_drop_nvme(store, *ret);
	return 0;
}

/* --- what the NVMe tier tells --- */

/* The block whose NVMe copy is at `where`, or BLOCK_NONE: it is not there any more. */
static uint32_t block_there(struct store *store, const struct nvme_entry *entry,
			    const struct extent *where)
{
	struct extent there;
	uint32_t space, block;

	if (!space_of_owner(store->spaces, entry->owner, &space))
		return BLOCK_NONE;
	block = blocks_find(store->blocks, entry->key, space);
	if (block == BLOCK_NONE || !blocks_nvme(store->blocks, block, &there) ||
	    !extent_equal(&there, where))
		return BLOCK_NONE;
	return block;
}

static bool on_found(void *arg, const struct nvme_entry *entry, const struct extent *where)
{
	struct store *store = arg;
	uint32_t space, variant, block;

	if (entry->tick > MAX_FOUND_TICK ||
	    space_found(store->spaces, entry->owner, entry->image_bytes, entry->tick, &space,
			&variant))
		return false;
	block = blocks_find(store->blocks, entry->key, space);
	if (block != BLOCK_NONE) {
		/* An older copy, or one of a block that was stored again since the daemon started;
		 * in another codec, then. */
		if (blocks_nvme(store->blocks, block, NULL) ||
		    blocks_variant(store->blocks, block) != variant)
			return false;
		blocks_set_nvme(store->blocks, block, where);
		extents_touch(store, where, entry->tick, blocks_tick(store->blocks, block));
		return true;
	}
	if (blocks_commit_away(store->blocks, entry->key, space, variant, where, entry->tick,
			       &block))
		return false;
	if (entry->tick > store->tick)
		store->tick = entry->tick;
	return true;
}

static enum nvme_answer on_ask(void *arg, const struct nvme_entry *entry,
			       const struct extent *where, uint64_t *ret_tick)
{
	struct store *store = arg;
	const uint32_t block = block_there(store, entry, where);

	if (block == BLOCK_NONE)
		return NVME_GONE;
	*ret_tick = herd_worth(store->blocks, block);
	if (*ret_tick > store->tick)
		*ret_tick = store->tick;
	return NVME_LIVE;
}

static bool on_moved(void *arg, const struct nvme_entry *entry, const struct extent *from,
		     const struct extent *to, uint64_t *ret_tick)
{
	struct store *store = arg;
	const uint32_t block = block_there(store, entry, from);

	if (block == BLOCK_NONE)
		return false;
	blocks_set_nvme(store->blocks, block, to);
	*ret_tick = blocks_tick(store->blocks, block);
	return true;
}

static void on_dropped(void *arg, const struct nvme_entry *entry, const struct extent *where)
{
	struct store *store = arg;
	const uint32_t block = block_there(store, entry, where);

	if (block == BLOCK_NONE)
		return;
	stats_add(&store->stats->v.tiers_nvme_evicted_blocks_total, 1);
	if (blocks_host_slot(store->blocks, block) != BLOCK_NONE) {
		blocks_set_nvme(store->blocks, block, NULL);
	} else if (blocks_evictable(store->blocks, block)) {
		(void)blocks_drop(store->blocks, block);
	} else {
		/* It has children in memory; or a load is about to read it, or just did: what it
		 * got is right or fails its checks. */
		blocks_condemn(store->blocks, block);
	}
}

void copies_events(struct store *store, struct nvme_events *ret)
{
	*ret = (struct nvme_events){
		.arg = store,
		.found = on_found,
		.ask = on_ask,
		.moved = on_moved,
		.dropped = on_dropped,
	};
}
