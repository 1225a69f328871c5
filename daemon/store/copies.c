/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copies.c - see copies.h. Core thread only.
 *
 * Order: where the daemon takes a block's NVMe copy away, it tells the tier first (nvme_forget with
 * the tick that the tier knows), and the table second. Where the tier itself drops a record, the
 * extent is stale when its callback returns, so there is nothing to tell.
 *
 * Purge:	IDLE ──copies_purge──> TABLE ──all numbers walked──> DISKS ──nvme_purge done──> IDLE
 * The table is walked a slice a turn. Blocks of the tenant that are committed meanwhile are younger than the purge
 * was asked for; they may go or stay.
 *
 * Spaces that had to go for others (space_table.h) lose their blocks in the same way: some a turn,
 * round and round the table while there are any.
 */
#include "copies.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/container_of.h"
#include "daemon/kvtierd.h"
#include "daemon/base/log.h"
#include "daemon/redis/outbox.h"
#include "daemon/nvme/scrub.h"
#include "daemon/nvme/writeback.h"
#include "tiers/slabs.h"

enum {
	PURGE_SLICE = 4096,		/* numbers a turn: under a millisecond */
	DOOMED_SLICE = 16384,		/* likewise, most of them only looked at */
	DOOMED_BLOCKS = 256,		/* of these, dropped in a turn */
	SAMPLE = 64,			/* away blocks looked at for an old one */
};

#define PURGE_PATIENCE_NS 10000000000ull	/* for the disks: one that stalls must not keep the asker for ever */

/* What evict.c can count up to, and room above it: a disk could say anything. */
#define MAX_FOUND_TICK (1ull << 47)

enum purge_stage { PURGE_IDLE, PURGE_TABLE, PURGE_DISKS };

struct copies {
	struct kvtierd *d;
	uint32_t doomed_cursor;
	enum purge_stage purge;
	uint8_t tenant[16];
	uint32_t cursor;
	uint64_t purged, disks_until_ns;
	void (*done)(void *arg, int status, uint64_t blocks);
	void *arg;
	struct loop_poller poller;
};

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
		nvme_forget(d->tiers[TIER_NVME], &where, blocks_tick(d->blocks, block));
}

void copies_touch(struct kvtierd *d, uint32_t block, uint64_t tick)
{
	const uint64_t before = blocks_tick(d->blocks, block);
	struct extent where;

	blocks_touch(d->blocks, block, tick);
	if (blocks_nvme(d->blocks, block, &where))
		nvme_touch(d->tiers[TIER_NVME], &where, before, blocks_tick(d->blocks, block));
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
	blocks_free_condemned(d->blocks, d->tiers[TIER_HOST]);
}

/* The least recent leaf of all slab classes, or BLOCK_NONE. */
static uint32_t oldest_leaf(const struct kvtierd *d)
{
	const uint32_t classes = slabs_classes(tier_slabs(d->tiers[TIER_HOST]));
	uint64_t oldest = UINT64_MAX;
	uint32_t ret = BLOCK_NONE;

	for (uint32_t i = 0; i < classes; i++) {
		uint64_t tick;
		const uint32_t block = blocks_victim(d->blocks, i, &tick);

		if (block != BLOCK_NONE && tick < oldest) {
			oldest = tick;
			ret = block;
		}
	}
	return ret;
}

bool copies_make_room(struct kvtierd *d)
{
	uint32_t block = blocks_sample_away(d->blocks, SAMPLE);
	const bool away = block != BLOCK_NONE;

	if (!away)
		block = oldest_leaf(d);
	if (block == BLOCK_NONE)
		return false;
	stats_add(&d->stats->v.tiers_nvme_evicted_blocks_total, blocks_nvme(d->blocks, block, NULL));
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

static bool same_place(const struct extent *a, const struct extent *b)
{
	return a->unit == b->unit && a->slot == b->slot && a->generation == b->generation;
}

/* The block whose NVMe copy is at `where`, or BLOCK_NONE: it is not there any more. */
static uint32_t block_there(struct kvtierd *d, const struct nvme_entry *entry, const struct extent *where)
{
	struct extent there;
	uint32_t space, block;

	if (!space_of_owner(d->spaces, entry->owner, &space))
		return BLOCK_NONE;
	block = blocks_find(d->blocks, entry->key, space);
	if (block == BLOCK_NONE || !blocks_nvme(d->blocks, block, &there) || !same_place(&there, where))
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
		/* An older copy, or one of a block that was stored again since the daemon started; in another codec, then. */
		if (blocks_nvme(d->blocks, block, NULL) || blocks_variant(d->blocks, block) != variant)
			return false;
		blocks_set_nvme(d->blocks, block, where);
		nvme_touch(d->tiers[TIER_NVME], where, entry->tick, blocks_tick(d->blocks, block));
		return true;
	}
	if (blocks_commit_away(d->blocks, entry->key, space, variant, where, entry->tick, &block))
		return false;
	if (entry->tick > d->tick)
		d->tick = entry->tick;
	return true;
}

static enum nvme_answer on_ask(void *arg, const struct nvme_entry *entry, const struct extent *where,
			       uint64_t *ret_tick)
{
	struct kvtierd *d = arg;
	const uint32_t block = block_there(d, entry, where);

	if (block == BLOCK_NONE)
		return NVME_GONE;
	*ret_tick = blocks_tick(d->blocks, block);
	return NVME_LIVE;
}

static bool on_moved(void *arg, const struct nvme_entry *entry, const struct extent *from, const struct extent *to,
		     uint64_t *ret_tick)
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
		/* It has children in memory; or a load is about to read it, or just did: what it got is right or
		 * fails its checks. */
		blocks_condemn(d->blocks, block);
	}
}

static void on_release(void *arg, const struct extent *home)
{
	struct kvtierd *d = arg;

	if (home->tier == TIER_HOST)
		tier_free(d->tiers[TIER_HOST], home);
	else
		scrub_release(d, home);
}

static void on_changed(void *arg)
{
	struct kvtierd *d = arg;

	if (d->writeback)
		writeback_kick(d->writeback);
}

void copies_events(struct kvtierd *d, struct nvme_events *ret)
{
	*ret = (struct nvme_events){
		.arg = d, .found = on_found, .ask = on_ask, .moved = on_moved, .dropped = on_dropped,
		.release = on_release, .changed = on_changed,
	};
}

/* --- purge --- */

static void purge_end(struct copies *c, int status)
{
	void (*done)(void *arg, int status, uint64_t blocks) = c->done;

	c->purge = PURGE_IDLE;
	c->done = NULL;
	log_info("purge: %llu blocks dropped%s%s", (unsigned long long)c->purged,
		 status ? "; on a disk they may come back after a restart: " : "", status ? strerror(-status) : "");
	if (done)
		done(c->arg, status, c->purged);
}

/* Nobody waits for it any more if it took too long. */
static void purge_disks_done(void *arg, int status)
{
	struct copies *c = arg;

	if (c->purge == PURGE_DISKS)
		purge_end(c, status);
}

static void purge_block(void *arg, uint32_t block)
{
	struct copies *c = arg;
	const struct space *space = space_at(c->d->spaces, blocks_space(c->d->blocks, block));

	if (!space || memcmp(space->owner, c->tenant, sizeof c->tenant) != 0)
		return;
	copies_condemn(c->d, block);
	c->purged++;
}

static bool purge_poll(struct copies *c)
{
	struct kvtierd *d = c->d;
	int r = 0;

	if (c->purge == PURGE_DISKS && loop_now(d->loop) >= c->disks_until_ns)
		purge_end(c, -EIO);
	if (c->purge != PURGE_TABLE)
		return false;
	if (blocks_walk(d->blocks, &c->cursor, PURGE_SLICE, purge_block, c))
		return true;
	c->purge = PURGE_DISKS;
	c->disks_until_ns = loop_now(d->loop) + PURGE_PATIENCE_NS;
	if (d->tiers[TIER_NVME])
		r = nvme_purge(d->tiers[TIER_NVME], c->tenant, purge_disks_done, c);
	if (r || !d->tiers[TIER_NVME])
		purge_end(c, r);
	return true;
}

int copies_purge(struct kvtierd *d, const char *tenant, void (*done)(void *arg, int status, uint64_t blocks), void *arg)
{
	struct copies *c = d->copies;

	if (c->purge != PURGE_IDLE)
		return -EBUSY;
	spaces_tenant_owner(d->spaces, tenant, c->tenant);
	outbox_drop_held(d->outbox);
	c->purge = PURGE_TABLE;
	c->cursor = 0;
	c->purged = 0;
	c->done = done;
	c->arg = arg;
	return 0;
}

void copies_purge_cancel(struct kvtierd *d, void *arg)
{
	if (d->copies->done && d->copies->arg == arg)
		d->copies->done = NULL;
}

/* --- spaces that go --- */

static void doomed_block(void *arg, uint32_t block)
{
	copies_condemn(arg, block);
}

static bool doomed_poll(struct kvtierd *d)
{
	if (blocks_doomed(d->blocks) == 0) {
		spaces_sweep(d->spaces);	/* what is left there had pins */
		return false;
	}
	blocks_walk_doomed(d->blocks, &d->copies->doomed_cursor, DOOMED_SLICE, DOOMED_BLOCKS, doomed_block, d);
	return true;
}

static bool copies_poll(struct loop_poller *poller)
{
	struct copies *c = container_of(poller, struct copies, poller);
	const bool doomed = doomed_poll(c->d), purged = purge_poll(c);

	return doomed || purged;
}

/* --- life --- */

static int submit_copy(void *arg, struct device_job *job)
{
	const struct kvtierd *d = arg;

	return device_submit(devices_cpu(&d->devices), job);
}

int copies_open(struct kvtierd *d, struct copies **ret)
{
	const struct emptier_conf emptier = {
		.host = d->tiers[TIER_HOST], .blocks = d->blocks, .loop = d->loop, .submit = submit_copy, .arg = d,
		.moved_blocks = &d->moved.moved_blocks, .moved_bytes = &d->moved.moved_bytes,
	};
	struct copies *c = calloc(1, sizeof *c);

	if (!c || emptier_open(&emptier, &d->moved.emptier)) {
		free(c);
		return -ENOMEM;
	}
	c->d = d;
	c->poller.poll = copies_poll;
	loop_poller_add(d->loop, &c->poller);
	*ret = c;
	return 0;
}

void copies_close(struct copies *c)
{
	if (!c)
		return;
	loop_poller_remove(c->d->loop, &c->poller);
	emptier_close(c->d->moved.emptier);
	c->d->moved.emptier = NULL;
	free(c);
}
