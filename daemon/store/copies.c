/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copies.c - see copies.h. Core thread only.
 *
 * Order: where the daemon takes a block's NVMe copy away, it tells the tier first (tier_forget()
 * with the tick that the tier knows), and the table second. Where the tier itself drops a record,
 * the extent is stale when its callback returns, so there is nothing to tell.
 */
#include "copies.h"

#include "daemon/kvtierd.h"
#include "tiers/nvme/nvme.h"
#include "tiers/slabs.h"
#include "herd.h"

enum { SAMPLE = 64 }; /* away blocks looked at for an old one */

/* What evict.c can count up to, and room above it: a disk could say anything. */
#define MAX_FOUND_TICK (1ull << 47)

/* --- one block --- */

static void slot_free(struct kvtierd *d, uint32_t slot)
{
	struct extent where;

	if (slot == BLOCK_NONE || tier_extent(d->tiers[TIER_HOST], slot, &where))
		return;
	tier_free(d->tiers[TIER_HOST], &where);
}

static void forget_nvme(struct kvtierd *d, uint32_t block)
{
	struct extent where;

	if (blocks_nvme(d->blocks, block, &where))
		tier_forget(d->tiers[TIER_NVME], &where, blocks_tick(d->blocks, block));
}

void copies_touch(struct kvtierd *d, uint32_t block, uint64_t tick)
{
	const uint64_t before = blocks_tick(d->blocks, block);
	struct extent where;

	blocks_touch(d->blocks, block, tick);
	if (blocks_nvme(d->blocks, block, &where))
		tier_touch(d->tiers[TIER_NVME], &where, before, blocks_tick(d->blocks, block));
}

void copies_drop(struct kvtierd *d, uint32_t block)
{
	forget_nvme(d, block);
	slot_free(d, blocks_drop(d->blocks, block));
}

void copies_condemn(struct kvtierd *d, uint32_t block)
{
	forget_nvme(d, block);
	blocks_condemn(d->blocks, block);
	copies_free_condemned(d);
}

void copies_drop_nvme(struct kvtierd *d, uint32_t block)
{
	if (blocks_host_slot(d->blocks, block) == BLOCK_NONE) {
		copies_condemn(d, block);
		return;
	}
	forget_nvme(d, block);
	blocks_set_nvme(d->blocks, block, NULL);
}

void copies_free_condemned(struct kvtierd *d)
{
	herd_free_condemned(d->blocks, d->tiers[TIER_HOST]);
}

/* The least recent leaf of all slab classes, or BLOCK_NONE. */
static uint32_t oldest_leaf(const struct kvtierd *d)
{
	const uint32_t classes = slabs_classes(tier_slabs(d->tiers[TIER_HOST]));
	uint64_t oldest = UINT64_MAX;
	uint32_t ret = BLOCK_NONE;

	for (uint32_t i = 0; i < classes; i++) {
		uint64_t tick;
		const uint32_t block = herd_victim(d->blocks, i, &tick);

		if (block != BLOCK_NONE && tick < oldest) {
			oldest = tick;
			ret = block;
		}
	}
	return ret;
}

bool copies_make_room(struct kvtierd *d)
{
	uint32_t block = herd_sample_away(d->blocks, SAMPLE);
	const bool away = block != BLOCK_NONE;

	if (!away)
		block = oldest_leaf(d);
	if (block == BLOCK_NONE)
		return false;
	stats_add(&d->stats->v.tiers_nvme_evicted_blocks_total,
		  blocks_nvme(d->blocks, block, NULL));
	d->moved.evicted_blocks += !away;
	copies_drop(d, block);
	return true;
}

uint32_t copies_image_bytes(const struct kvtierd *d, uint32_t block)
{
	const struct space *space = space_at(d->spaces, blocks_space(d->blocks, block));

	return space ? space->variant_bytes[blocks_variant(d->blocks, block)] : 0;
}

/* --- what the NVMe tier tells --- */

/* The block whose NVMe copy is at `where`, or BLOCK_NONE: it is not there any more. */
static uint32_t block_there(struct kvtierd *d, const struct nvme_entry *entry,
			    const struct extent *where)
{
	struct extent there;
	uint32_t space, block;

	if (!space_of_owner(d->spaces, entry->owner, &space))
		return BLOCK_NONE;
	block = blocks_find(d->blocks, entry->key, space);
	if (block == BLOCK_NONE || !blocks_nvme(d->blocks, block, &there) ||
	    !extent_equal(&there, where))
		return BLOCK_NONE;
	return block;
}

static bool on_found(void *arg, const struct nvme_entry *entry, const struct extent *where)
{
	struct kvtierd *d = arg;
	uint32_t space, variant, block;

	if (entry->tick > MAX_FOUND_TICK ||
	    space_found(d->spaces, entry->owner, entry->image_bytes, entry->tick, &space, &variant))
		return false;
	block = blocks_find(d->blocks, entry->key, space);
	if (block != BLOCK_NONE) {
		/* An older copy, or one of a block that was stored again since the daemon started;
		 * in another codec, then. */
		if (blocks_nvme(d->blocks, block, NULL) ||
		    blocks_variant(d->blocks, block) != variant)
			return false;
		blocks_set_nvme(d->blocks, block, where);
		tier_touch(d->tiers[TIER_NVME], where, entry->tick, blocks_tick(d->blocks, block));
		return true;
	}
	if (blocks_commit_away(d->blocks, entry->key, space, variant, where, entry->tick, &block))
		return false;
	if (entry->tick > d->tick)
		d->tick = entry->tick;
	return true;
}

static enum nvme_answer on_ask(void *arg, const struct nvme_entry *entry,
			       const struct extent *where, uint64_t *ret_tick)
{
	struct kvtierd *d = arg;
	const uint32_t block = block_there(d, entry, where);

	if (block == BLOCK_NONE)
		return NVME_GONE;
	*ret_tick = blocks_tick(d->blocks, block);
	return NVME_LIVE;
}

static bool on_moved(void *arg, const struct nvme_entry *entry, const struct extent *from,
		     const struct extent *to, uint64_t *ret_tick)
{
	struct kvtierd *d = arg;
	const uint32_t block = block_there(d, entry, from);

	if (block == BLOCK_NONE)
		return false;
	blocks_set_nvme(d->blocks, block, to);
	*ret_tick = blocks_tick(d->blocks, block);
	return true;
}

static void on_dropped(void *arg, const struct nvme_entry *entry, const struct extent *where)
{
	struct kvtierd *d = arg;
	const uint32_t block = block_there(d, entry, where);

	if (block == BLOCK_NONE)
		return;
	stats_add(&d->stats->v.tiers_nvme_evicted_blocks_total, 1);
	if (blocks_host_slot(d->blocks, block) != BLOCK_NONE) {
		blocks_set_nvme(d->blocks, block, NULL);
	} else if (blocks_evictable(d->blocks, block)) {
		(void)blocks_drop(d->blocks, block);
	} else {
		/* It has children in memory; or a load is about to read it, or just did: what it
		 * got is right or fails its checks. */
		blocks_condemn(d->blocks, block);
	}
}

void copies_events(struct kvtierd *d, struct nvme_events *ret)
{
	*ret = (struct nvme_events){
		.arg = d,
		.found = on_found,
		.ask = on_ask,
		.moved = on_moved,
		.dropped = on_dropped,
	};
}
