/* SPDX-License-Identifier: Apache-2.0 */
/*
 * from_nvme.c - the steps of a block that comes from NVMe: it is in the table already (away),
 * leased by its flight, and at landing the slot becomes the block's. An image that is bad is read
 * once more, since its segment may have been used again meanwhile; then the copy is dropped.
 */
#include "from_nvme.h"

#include <errno.h>
#include <string.h>

#include "daemon/stats/stats.h"
#include "daemon/base/loop.h"
#include "daemon/store/block.h"
#include "daemon/store/copies.h"
#include "daemon/store/extents.h"
#include "daemon/store/space.h"
#include "daemon/store/store.h"
#include "part.h"

static void begin(struct flight *f, uint32_t block)
{
	lease_take(f->w.all->store, &f->w.lease, block);
	f->bytes = copies_image_bytes(f->w.all->store, block);
	f->asked = true;
}

/* The block is gone, or it came back another way. */
static bool moved_on(const struct flight *f)
{
	const struct blocks *blocks = f->w.all->store->blocks;

	return !blocks_live(blocks, f->w.lease.block) ||
	       blocks_host_slot(blocks, f->w.lease.block) != BLOCK_NONE;
}

static enum step look(struct flight *f)
{
	return moved_on(f) ? FLIGHT_AGAIN : FLIGHT_ROOM;
}

/* READ: once more; MISS: for good, the copy was dropped. */
static enum step once_more(struct flight *f)
{
	struct store *store = f->w.all->store;
	const uint32_t block = f->w.lease.block;
	struct extent now;

	if (!blocks_live(store->blocks, block))
		return FLIGHT_MISS;
	/* Its segment was used again while we read: another block came. The next read is from the
	 * block's present place. */
	if (blocks_nvme(store->blocks, block, &now) && !extent_equal(&now, &f->xfer.where))
		return FLIGHT_READ;
	if (!f->reread) {
		f->reread = true;
		return FLIGHT_READ;
	}
	copies_drop_nvme(store, block);
	return FLIGHT_MISS;
}

static enum step failed(struct flight *f)
{
	const int error = f->xfer.status;

	if (error == -ESTALE) { /* its segment was lost without a footer to tell of it */
		copies_condemn(f->w.all->store, f->w.lease.block);
		return FLIGHT_MISS;
	}
	/* Given up, or the disk is away: the block may be read another time. */
	if (error == -ECANCELED || error == -ETIMEDOUT ||
	    !extents_readable(f->w.all->store, &f->xfer.where))
		return FLIGHT_MISS;
	return once_more(f);
}

static enum step bad(struct flight *f)
{
	struct ops *all = f->w.all;

	if (once_more(f) == FLIGHT_READ)
		return FLIGHT_READ;
	log_limited(
		&all->log, loop_now(all->loop), LOG_LEVEL_ERROR,
		"an image read from NVMe failed its checks and was dropped (segment %u): a miss, "
		"not data; if this repeats, test the device",
		f->xfer.where.slot >> 16);
	stats_add(&all->store->stats->v.tiers_nvme_corrupt_blocks_total, 1);
	stats_health_set(all->store->stats, STATS_HEALTH_NVME_CORRUPT, true);
	return FLIGHT_MISS;
}

/* The block may have gone meanwhile, or been stored again. Then its bytes are right all the same,
 * but they are not kept. */
static void landed(struct flight *f)
{
	static const uint8_t none[32];
	struct store *store = f->w.all->store;
	const uint8_t *key = f->xfer.record.parent;
	uint32_t parent = BLOCK_NONE;

	if (moved_on(f))
		return;
	if (memcmp(key, none, sizeof(none)) != 0)
		parent = blocks_find(store->blocks, key, walk_space(&f->w)->number);
	copies_promote(store, f->w.lease.block, &f->w.where, parent);
	f->w.placed = false;
	stats_add(&store->stats->v.tiers_host_promoted_blocks_total, 1);
}

const struct source_ops from_nvme = {
	.waits = true,
	.begin = begin,
	.look = look,
	.failed = failed,
	.bad = bad,
	.landed = landed,
};
