/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copies.c - see copies.h. Core thread only.
 *
 * Order: where the daemon takes a block's NVMe copy away, it tells the tier first (tier_forget()
 * with the tick that the tier knows), and the table second. Where the tier itself drops a record,
 * the extent is stale when its callback returns, so the tier need not be told.
 */
#include "copies.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "daemon/stats/stats.h"
#include "tiers/nvme/nvme.h"
#include "tiers/slabs.h"
#include "daemon/table/evict.h"
#include "daemon/policy/reuse.h"
#include "daemon/policy/victim.h"
#include "daemon/policy/place.h"
#include "daemon/table/space.h"
#include "lesser.h"
#include "tables.h"
#include "daemon/table/space_counts.h"

enum { SAMPLE = 64 }; /* away blocks looked at for an old one */

/* A disk could claim any tick. evict.c can count up to this one, and some way beyond. */
#define MAX_FOUND_TICK (1ull << 47)

/* --- images by where they lie --- */

static struct tier *tier_of(const struct tables *tables, const struct extent *where)
{
	return where->tier < TIER_COUNT ? tables->tiers[where->tier] : NULL;
}

void extents_free(const struct tables *tables, const struct extent *where)
{
	tier_free(tier_of(tables, where), where);
}

uint8_t *extents_address(const struct tables *tables, const struct extent *where)
{
	return tier_address(tier_of(tables, where), where);
}

uint32_t extents_bytes(const struct tables *tables, const struct extent *where)
{
	return tier_extent_bytes(tier_of(tables, where), where);
}

static void set_owner(const struct tables *tables, const struct extent *where, uint32_t block)
{
	tier_set_owner(tier_of(tables, where), where, block);
}

bool extents_readable(const struct tables *tables, const struct extent *where)
{
	return tier_readable(tier_of(tables, where), &(struct tier_name){ .where = where });
}

void extents_forget(const struct tables *tables, const struct extent *where, uint64_t tick)
{
	tier_forget(tier_of(tables, where), where, tick);
}

void extents_touch(const struct tables *tables, const struct extent *where, uint64_t tick,
		   uint64_t now_tick)
{
	tier_touch(tier_of(tables, where), where, tick, now_tick);
}

bool extents_in_host(const struct tables *tables, uint32_t block, struct extent *ret)
{
	const uint32_t slot = blocks_host_slot(tables->blocks, block);

	return slot != BLOCK_NONE && tier_extent(tables_host(tables), slot, ret) == 0;
}

bool extents_away(const struct tables *tables, uint32_t block, struct extent *ret)
{
	struct extent where;

	if (!blocks_nvme(tables->blocks, block, &where) || !extents_readable(tables, &where))
		return false;
	if (ret)
		*ret = where;
	return true;
}

bool extents_durable(const struct tables *tables, const uint8_t key[32])
{
	const struct tier_name name = { .key = key };

	for (int i = 0; i < TIER_COUNT; i++) {
		const struct tier *t = tables->tiers[i];

		if (t && (t->ops->caps & TIER_CAP_DURABLE) && tier_writable(t, &name))
			return true;
	}
	return false;
}

/* --- one block --- */

static void slot_free(struct tables *tables, uint32_t slot)
{
	struct extent where;

	if (slot != BLOCK_NONE && tier_extent(tables_host(tables), slot, &where) == 0)
		extents_free(tables, &where);
}

static void forget_nvme(struct tables *tables, uint32_t block)
{
	struct extent where;

	if (blocks_nvme(tables->blocks, block, &where))
		extents_forget(tables, &where, blocks_tick(tables->blocks, block));
}

void copies_touch(struct tables *tables, uint32_t block, uint64_t tick, uint32_t depth)
{
	const uint64_t before = blocks_tick(tables->blocks, block);
	struct extent where;

	blocks_touch(tables->blocks, block, tick > depth ? tick - depth : 1);
	if (blocks_nvme(tables->blocks, block, &where))
		extents_touch(tables, &where, before, blocks_tick(tables->blocks, block));
}

uint64_t copies_touch_chain(struct tables *tables, uint32_t block, uint64_t tick)
{
	enum {
		MOMENT_US = 1000000, /* since a block was used: it is not touched again */
		MOST = 2048          /* blocks: a turn of the core thread has a bound */
	};
	const struct blocks *blocks = tables->blocks;
	uint32_t above = block, depth = 0, next;

	while (above != BLOCK_NONE && depth < MOST &&
	       blocks_tick(blocks, above) + MOMENT_US < tick) {
		above = blocks_before(blocks, above);
		depth++;
	}
	if (above != BLOCK_NONE && depth < MOST)
		tick = blocks_tick(blocks, above);
	for (above = block; depth > 0 && above != BLOCK_NONE; above = next) {
		next = blocks_before(blocks, above); /* by the ticks as they were */
		copies_touch(tables, above, tick, depth--);
	}
	return blocks_tick(blocks, block);
}

void copies_age(struct tables *tables, uint32_t block)
{
	const uint64_t before = blocks_tick(tables->blocks, block);
	struct extent where;

	evict_age(blocks_order(tables->blocks), block);
	if (blocks_nvme(tables->blocks, block, &where))
		extents_touch(tables, &where, before, 0);
}

static void drop(struct tables *tables, uint32_t block)
{
	forget_nvme(tables, block);
	slot_free(tables, blocks_drop(tables->blocks, block));
}

void copies_condemn(struct tables *tables, uint32_t block)
{
	forget_nvme(tables, block);
	blocks_condemn(tables->blocks, block);
	mover_free_condemned(tables_host(tables), tables->blocks);
}

void copies_drop_nvme(struct tables *tables, uint32_t block)
{
	if (blocks_host_slot(tables->blocks, block) == BLOCK_NONE) {
		copies_condemn(tables, block);
		return;
	}
	forget_nvme(tables, block);
	blocks_set_nvme(tables->blocks, block, NULL);
}

/* `stats.leases` counts the leases held, so a leak shows. */

void lease_take(struct tables *tables, struct lease *lease, uint32_t block)
{
	assert(!lease->held);
	blocks_pin(tables->blocks, block);
	lease->block = block;
	lease->held = true;
	stats_add(&tables->stats->v.leases, 1);
}

void lease_drop(struct tables *tables, struct lease *lease)
{
	if (!lease->held)
		return;
	lease->held = false;
	stats_set(&tables->stats->v.leases, stats_get(&tables->stats->v.leases) - 1);
	if (blocks_unpin(tables->blocks, lease->block))
		mover_free_condemned(tables_host(tables), tables->blocks);
}

uint32_t copies_image_bytes(const struct tables *tables, uint32_t block)
{
	const struct space *space = space_at(tables->spaces, blocks_space(tables->blocks, block));

	return space ? space->variant_bytes[blocks_variant(tables->blocks, block)] : 0;
}

/* --- the table is full --- */

/* The search for a block number that a block of this space needs. */
struct need {
	struct tables *tables;
	uint32_t space;
	struct quota_account own; /* the space's */
	unsigned from;            /* enum quota_from */
};

/* All numbers are in use, so a space is guaranteed the same fraction of them as of host memory. */
static struct quota_account holding(const struct need *n, uint32_t space)
{
	const struct space_counts *counts = blocks_counts(n->tables->blocks);
	const double fraction = (double)counts_guaranteed(counts, space) /
				(double)tables_host(n->tables)->capacity_bytes;

	return (struct quota_account){ .held = counts_held(counts, space),
				       .guaranteed = (uint64_t)(fraction *
								blocks_used(n->tables->blocks)) };
}

/* All spaces of a tenant together. */
static struct quota_account tenant_holding(const struct need *n, uint32_t tenant)
{
	const struct quota *quota = counts_quota(blocks_counts(n->tables->blocks));

	return (struct quota_account){ .held = quota->tenant[tenant].used[QUOTA_blocks],
				       .guaranteed = quota_of_tenant(quota, QUOTA_blocks, tenant) };
}

static bool may_drop_of_tenant(const struct need *n, uint32_t tenant)
{
	const uint32_t own = counts_tenant(blocks_counts(n->tables->blocks), n->space);
	const struct quota_account its = tenant_holding(n, tenant), ours = tenant_holding(n, own);

	return tenant == own || quota_may_take(&its, &ours, 1, QUOTA_RICH | (n->from & QUOTA_ANY));
}

static bool may_drop(void *arg, uint32_t space)
{
	const struct need *n = arg;
	const struct quota_account its = holding(n, space);

	return quota_may_take(space == n->space ? &n->own : &its, &n->own, 1, n->from) &&
	       may_drop_of_tenant(n, counts_tenant(blocks_counts(n->tables->blocks), space));
}

/* No space has a guarantee in the account that several share. */
static bool may_drop_of(void *arg, uint32_t account)
{
	const struct need *n = arg;
	const struct space_counts *counts = blocks_counts(n->tables->blocks);
	const uint32_t space = counts_account_space(counts, account);

	return space == COUNTS_NO_SPACE ?
		       may_drop_of_tenant(n, counts_account_tenant(counts, account)) :
		       may_drop(arg, space);
}

/* The least recent leaf of all slab classes that may go, or BLOCK_NONE. */
static uint32_t oldest_leaf(struct need *n)
{
	const uint32_t classes = slabs_classes(tier_slabs(tables_host(n->tables)));
	bool spared = false; /* not asked for */
	const struct victim_filter filter = { may_drop_of, n, &spared };
	const struct blocks *blocks = n->tables->blocks;
	uint64_t oldest = UINT64_MAX, tick;
	uint32_t ret = BLOCK_NONE, least = UINT32_MAX, priority;

	for (uint32_t i = 0; i < classes; i++) {
		const uint32_t block = victim_of(blocks, i, &filter, &tick);

		if (block == BLOCK_NONE)
			continue;
		priority = counts_priority(blocks_counts(blocks), blocks_space(blocks, block));
		if (priority < least || (priority == least && tick < oldest)) {
			least = priority;
			oldest = tick;
			ret = block;
		}
	}
	return ret;
}

/* Drops an away block that is old, or else a leaf of the host tier. False: there is no block that
 * may. */
static bool drop_one(struct need *n)
{
	struct tables *tables = n->tables;
	struct stats_values *v = &tables->stats->v;
	uint32_t block = victim_away(tables->blocks, &tables->away_hand, SAMPLE, may_drop, n);
	bool away = block != BLOCK_NONE, on_nvme;

	if (away) /* without heirs its number is free at once */
		block = blocks_last_heir(tables->blocks, block);
	away = away && blocks_evictable(tables->blocks, block);
	if (!away)
		block = oldest_leaf(n);
	if (block == BLOCK_NONE)
		return false;
	on_nvme = blocks_nvme(tables->blocks, block, NULL);
	stats_add(&v->tiers_nvme_evicted_blocks_total, on_nvme);
	stats_add(&v->evicted_nvme_index_blocks_total, on_nvme);
	stats_add(&v->evicted_host_index_blocks_total, !away);
	tables->mover.counts.evicted_blocks += !away;
	if (!away && tables->reuse)
		reuse_leave(tables->reuse, blocks_key(tables->blocks, block));
	drop(tables, block);
	return true;
}

static bool make_room(struct tables *tables, uint32_t space)
{
	struct need n = { .tables = tables, .space = space };

	n.own = holding(&n, space);
	for (n.from = QUOTA_RICH; n.from <= QUOTA_ANY; n.from *= 2)
		if (drop_one(&n))
			return true;
	return false;
}

/* --- a slot becomes a block's --- */

void copies_promote(struct tables *tables, uint32_t block, const struct extent *where,
		    uint32_t parent)
{
	blocks_promote(tables->blocks, block, parent == block ? BLOCK_NONE : parent, where);
	set_owner(tables, where, block);
}

/* A full table makes room as a full tier does: an old block is dropped. A crowded neighbourhood
 * (-EXFULL) is another case: only the new block is refused, or keys made to collide would empty the
 * table. */
static int commit(struct tables *tables, const struct space *space, const uint8_t key[32],
		  enum image_codec codec, const struct extent *where, uint32_t parent,
		  uint32_t *ret)
{
	const uint32_t variant = space_variant(space, codec);
	int r = blocks_commit(tables->blocks, key, space->number, parent, variant, where, ret);

	if (r == -ENOSPC && make_room(tables, space->number))
		r = blocks_commit(tables->blocks, key, space->number, parent, variant, where, ret);
	if (r == 0)
		set_owner(tables, where, *ret);
	return r;
}

/* The block's copy on NVMe has the values of the lesser image. It is dropped, and so written anew,
 * unless [nvme] codec would give the new copy the same values. */
static bool replace_lesser(struct tables *tables, const struct space *space, enum image_codec codec,
			   const struct extent *where, uint32_t block)
{
	struct extent old;

	if (blocks_pins(tables->blocks, block) > 0 || !extents_in_host(tables, block, &old) ||
	    !lesser_at(tables, space, &old) || lesser_at(tables, space, where) ||
	    blocks_variant(tables->blocks, block) != space_variant(space, codec))
		return false;
	blocks_move(tables->blocks, block, where);
	set_owner(tables, where, block);
	extents_free(tables, &old);
	if (!lesser_codec(tables, block, TIER_NVME))
		copies_drop_nvme(tables, block);
	return true;
}

int copies_enter(struct tables *tables, const struct space *space, const uint8_t key[32],
		 enum image_codec codec, const struct extent *where, uint32_t parent, uint32_t *ret)
{
	const int r = commit(tables, space, key, codec, where, parent, ret);

	if (r != -EEXIST)
		return r;
	*ret = blocks_find(tables->blocks, key, space->number);
	assert(*ret != BLOCK_NONE);
	if (blocks_host_slot(tables->blocks, *ret) != BLOCK_NONE)
		/* 1: another engine stored the block meanwhile */
		return replace_lesser(tables, space, codec, where, *ret) ? 0 : 1;
	copies_promote(tables, *ret, where, parent);
	/* The block's disk is out of reach. If another one takes writes, the block gets a copy
	 * there. */
	if (!extents_away(tables, *ret, NULL) && extents_durable(tables, key))
		copies_drop_nvme(tables, *ret);
	return 0;
}

/* --- what the NVMe tier tells --- */

/* The block whose NVMe copy is at `where`, or BLOCK_NONE: it is not there any more. */
static uint32_t block_there(struct tables *tables, const struct nvme_entry *entry,
			    const struct extent *where)
{
	struct extent there;
	uint32_t space, block;

	if (!space_of_owner(tables->spaces, entry->owner, &space))
		return BLOCK_NONE;
	block = blocks_find(tables->blocks, entry->key, space);
	if (block == BLOCK_NONE || !blocks_nvme(tables->blocks, block, &there) ||
	    !extent_equal(&there, where))
		return BLOCK_NONE;
	return block;
}

static void on_expect(void *arg, uint64_t records)
{
	const struct tables *tables = arg;

	blocks_expect(tables->blocks, records);
}

static void on_soon(void *arg, const struct nvme_entry *entry)
{
	const struct tables *tables = arg;
	uint32_t space;

	if (space_of_owner(tables->spaces, entry->owner, &space))
		blocks_soon_key(tables->blocks, entry->key, space);
}

static bool on_found(void *arg, const struct nvme_entry *entry, const struct extent *where)
{
	struct tables *tables = arg;
	uint32_t space, variant, block;
	int r;

	if (entry->tick > MAX_FOUND_TICK ||
	    space_found(tables->spaces, entry->owner, entry->image_bytes, entry->tick, &space,
			&variant))
		return false;
	r = blocks_commit_away(tables->blocks, entry->key, space, variant, where, entry->tick,
			       &block);
	if (r == -EEXIST) {
		/* An older copy, or one of a block that was stored again since the daemon started;
		 * in another codec, then. */
		if (blocks_nvme(tables->blocks, block, NULL) ||
		    blocks_variant(tables->blocks, block) != variant)
			return false;
		blocks_set_nvme(tables->blocks, block, where);
		extents_touch(tables, where, entry->tick, blocks_tick(tables->blocks, block));
		return true;
	}
	if (r == 0 && entry->tick > tables->tick)
		tables->tick = entry->tick;
	return r == 0;
}

bool copies_drop_lost(struct tables *tables)
{
	const uint32_t block = blocks_lost(tables->blocks);

	if (block == BLOCK_NONE)
		return false;
	stats_add(&tables->stats->v.tiers_nvme_evicted_blocks_total, 1);
	if (blocks_evictable(tables->blocks, block))
		drop(tables, block);
	else
		copies_condemn(tables, block);
	return true;
}

/* No load can find it by its chain: its parent is gone, and no shared tier could have that. */
static bool is_orphan(struct tables *tables, const struct nvme_entry *entry, uint32_t block)
{
	static const uint8_t no_parent[32];

	return !tables->tiers[TIER_REDIS] &&
	       blocks_host_slot(tables->blocks, block) == BLOCK_NONE &&
	       memcmp(entry->parent, no_parent, sizeof(no_parent)) != 0 &&
	       blocks_find(tables->blocks, entry->parent, blocks_space(tables->blocks, block)) ==
		       BLOCK_NONE;
}

static bool on_ask(void *arg, const struct nvme_entry *entry, const struct extent *where,
		   uint64_t *ret_tick)
{
	struct tables *tables = arg;
	const uint32_t block = block_there(tables, entry, where);

	if (block == BLOCK_NONE)
		return false;
	*ret_tick = is_orphan(tables, entry, block) ? 0 : victim_worth(tables->blocks, block);
	if (*ret_tick > tables->tick)
		*ret_tick = tables->tick;
	return true;
}

static bool on_moved(void *arg, const struct nvme_entry *entry, const struct extent *from,
		     const struct extent *to, uint64_t *ret_tick)
{
	struct tables *tables = arg;
	const uint32_t block = block_there(tables, entry, from);

	if (block == BLOCK_NONE)
		return false;
	blocks_set_nvme(tables->blocks, block, to);
	*ret_tick = blocks_tick(tables->blocks, block);
	return true;
}

static void on_dropped(void *arg, const struct nvme_entry *entry, const struct extent *where)
{
	struct tables *tables = arg;
	const uint32_t block = block_there(tables, entry, where);

	if (block == BLOCK_NONE)
		return;
	stats_add(&tables->stats->v.tiers_nvme_evicted_blocks_total, 1);
	if (blocks_host_slot(tables->blocks, block) != BLOCK_NONE) {
		blocks_set_nvme(tables->blocks, block, NULL);
	} else if (blocks_evictable(tables->blocks, block)) {
		(void)blocks_drop(tables->blocks, block);
	} else {
		/* The block has children in memory, or a load is about to read it or just did. What
		 * such a load got is right, or fails its checks. */
		blocks_condemn(tables->blocks, block);
	}
}

void copies_events(struct tables *tables, struct nvme_events *ret)
{
	*ret = (struct nvme_events){
		.arg = tables,
		.expect = on_expect,
		.soon = on_soon,
		.found = on_found,
		.ask = on_ask,
		.moved = on_moved,
		.dropped = on_dropped,
	};
}
