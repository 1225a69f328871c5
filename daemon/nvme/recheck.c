/* SPDX-License-Identifier: Apache-2.0 */
/* recheck.c - see recheck.h. Core thread only. */
#include "recheck.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "daemon/base/container_of.h"
#include "daemon/base/log.h"
#include "daemon/base/loop.h"
#include "daemon/base/vault.h"
#include "daemon/device/devices.h"
#include "daemon/stats/stats.h"
#include "daemon/store/beside.h"
#include "daemon/store/block.h"
#include "daemon/store/copies.h"
#include "daemon/store/lease.h"
#include "daemon/store/space.h"
#include "daemon/store/store.h"

enum {
	HEAD = 4096,   /* of a record: its header, and the begin of its scales */
	TURN = 64,     /* claims of nothing that is known, in one turn of the loop */
	HOME_UNIT = 1, /* of xfer.home; scrub.c's is 0 */
};

/* Of one GPU. */
struct rechecker {
	struct device_job job; /* first: its done() gets back to us */
	struct xfer x;
	struct recheck *all;
	uint32_t unit;
	bool busy;  /* it has a claim, and the block's lease; something is in flight, or waits */
	bool waits; /* the disk's queue was full */
	bool lost;  /* a disk that stalled has the buffer */
	bool began;
	struct gpu_claim claim;
	struct lease lease;
	struct image_geometry geometry;
	struct image_header sealed; /* the record's */
	struct device_copy copy;
	uint8_t *buffer; /* NULL: there was no claim yet */
	uint64_t right, wrong, unknown;
};

struct recheck {
	struct recheck_conf conf;
	struct loop_poller poller;
	bool ended;
	uint32_t n;
	struct rechecker checkers[RECHECK_JOBS];
};

static struct store *store_of(const struct rechecker *c)
{
	return c->all->conf.store;
}

/* --- the end of a claim --- */

static void done_with(struct rechecker *c)
{
	lease_drop(store_of(c), &c->lease);
	c->busy = c->waits = false;
}

/* At a stop the slot and its entry stay as they are, for the next daemon. */
static void refuse(struct rechecker *c, uint64_t *count)
{
	if (!c->all->ended) {
		*count += 1;
		stats_add(&store_of(c)->stats->v.tiers_gpu_unreturned_blocks_total, 1);
		beside_give_back(store_of(c), &c->claim.where);
	}
	done_with(c);
}

static void unknown(struct rechecker *c)
{
	refuse(c, &c->unknown);
}

static void wrong(struct rechecker *c)
{
	if (!c->all->ended)
		stats_add(&store_of(c)->stats->v.tiers_gpu_corrupt_blocks_total, 1);
	refuse(c, &c->wrong);
}

static void right(struct rechecker *c)
{
	struct stats *stats = store_of(c)->stats;

	if (beside_return(store_of(c), c->lease.block, &c->claim.where)) {
		c->right++;
		stats_add(&stats->v.tiers_gpu_returned_blocks_total, 1);
	} else {
		c->unknown++;
		stats_add(&stats->v.tiers_gpu_unreturned_blocks_total, 1);
	}
	done_with(c);
}

/* --- its steps, from the last to the first --- */

static void verified(struct device_job *job)
{
	struct rechecker *c = (struct rechecker *)(void *)job;

	if (job->status == 0)
		right(c);
	else
		wrong(c);
}

static void fetched(struct device_job *job)
{
	struct rechecker *c = (struct rechecker *)(void *)job;
	const struct gpu_book_entry *entry = &c->claim.entry;
	struct store *store = store_of(c);
	const struct space *space =
		space_at(store->spaces, blocks_space(store->blocks, c->lease.block));
	int r;

	if (job->status || c->all->ended) {
		unknown(c);
		return;
	}
	memcpy(c->buffer, &c->sealed, sizeof(c->sealed)); /* the GPU's is unsealed */
	memset(&c->job, 0, sizeof(c->job));
	memcpy(c->job.identity.key, entry->key, sizeof(entry->key));
	if (space && space->known) {
		memcpy(c->job.identity.space_id, space->id, sizeof(space->id));
		c->geometry = space->geometry;
		c->job.geometry = &c->geometry;
	}
	c->job.kind = DEVICE_VERIFY;
	c->job.image = c->buffer;
	c->job.image_bytes = entry->image_bytes;
	c->job.done = verified;
	r = device_submit(devices_cpu(c->all->conf.devices), &c->job);
	assert(r == 0); /* the CPU takes RECHECK_JOBS of the daemon's own */
}

/* The record's header is that of this image, whole, and its sizes are the claim's. */
static bool head_fits(const struct rechecker *c)
{
	const struct image_header *h = (const void *)c->buffer;
	const struct gpu_book_entry *entry = &c->claim.entry;
	const uint64_t before = (uint64_t)sizeof(*h) + h->scale_bytes;
	const uint64_t offset = (before + IMAGE_ALIGN - 1) / IMAGE_ALIGN * IMAGE_ALIGN;

	return h->header_crc == image_crc32c(h, offsetof(struct image_header, header_crc)) &&
	       memcmp(h->key, entry->key, sizeof(h->key)) == 0 &&
	       memcmp(h->space_id, entry->owner + 16, 16) == 0 &&
	       offset + h->payload_bytes == entry->image_bytes;
}

static void head_done(struct xfer *x)
{
	struct rechecker *c = container_of(x, struct rechecker, x);
	struct gpu_slot slot;
	int r;

	c->lost = x->kept;
	if (x->status || c->all->ended || !head_fits(c) ||
	    !blocks_live(store_of(c)->blocks, c->lease.block) ||
	    !gpu_slot_of(store_of(c)->tiers[TIER_GPU], &c->claim.where, &slot)) {
		unknown(c);
		return;
	}
	memcpy(&c->sealed, c->buffer, sizeof(c->sealed));
	c->copy = (struct device_copy){ .to = c->buffer, .bytes = c->claim.entry.image_bytes };
	beside_fetch(&slot, &c->copy, &c->job);
	c->job.done = fetched;
	r = device_submit(devices_gpu(c->all->conf.devices, c->unit), &c->job);
	assert(r == 0); /* it takes DEVICE_FETCHES, of which scrub.c has SCRUB_JOBS */
}

static void read_head(struct rechecker *c)
{
	struct store *store = store_of(c);
	struct extent where;
	int r;

	c->waits = false;
	if (!blocks_live(store->blocks, c->lease.block) ||
	    !blocks_nvme(store->blocks, c->lease.block, &where)) {
		unknown(c);
		return;
	}
	c->x = (struct xfer){
		.op = XFER_READ,
		.where = where,
		.buffer = c->buffer,
		.bytes = HEAD,
		.home = { .tier = TIER_COUNT, .unit = HOME_UNIT, .slot = c->unit },
		.done = head_done,
	};
	r = tier_submit(store->tiers[TIER_NVME], &c->x);
	c->waits = r == -EAGAIN;
	if (r && !c->waits)
		unknown(c);
}

/* The block that the entry names, if it is there, with such an image, and without a copy there;
 * or BLOCK_NONE. */
static uint32_t block_of(const struct rechecker *c)
{
	const struct gpu_book_entry *entry = &c->claim.entry;
	struct store *store = store_of(c);
	uint32_t space, block = BLOCK_NONE;
	struct gpu_slot slot;

	if (entry->image_bytes > HEAD && entry->image_bytes <= c->all->conf.image_bytes &&
	    space_of_owner(store->spaces, entry->owner, &space))
		block = blocks_find(store->blocks, entry->key, space);
	if (block != BLOCK_NONE && (copies_image_bytes(store, block) != entry->image_bytes ||
				    beside_find(store, block, c->unit, &slot)))
		block = BLOCK_NONE;
	return block;
}

/* --- the turns --- */

static bool has_buffer(struct rechecker *c)
{
	const uint64_t bytes = c->all->conf.image_bytes;
	void *at;

	if (c->buffer)
		return !c->lost;
	at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
		  -1, 0);
	if (at == MAP_FAILED)
		return false;
	vault_hide(at, bytes);
	c->buffer = at;
	return true;
}

static void say(struct rechecker *c)
{
	if (c->began)
		log_info("GPU %u: of its parked memory %llu images serve again, %llu failed their "
			 "check, %llu are of no block",
			 c->unit, (unsigned long long)c->right, (unsigned long long)c->wrong,
			 (unsigned long long)c->unknown);
	c->began = false;
}

/* The next claims of a GPU, until one has something in flight. */
static bool turn(struct rechecker *c)
{
	struct store *store = store_of(c);
	uint32_t block;

	for (int i = 0; i < TURN && !c->busy; i++) {
		if (!has_buffer(c) || !beside_claim(store, c->unit, &c->claim)) {
			if (!c->lost)
				say(c);
			return i > 0;
		}
		c->busy = c->began = true;
		block = block_of(c);
		if (block == BLOCK_NONE) {
			unknown(c);
			continue;
		}
		lease_take(store, &c->lease, block);
		read_head(c);
	}
	return true;
}

static bool poll(struct loop_poller *poller)
{
	struct recheck *all = container_of(poller, struct recheck, poller);
	bool worked = false;

	if (all->ended || tier_state(all->conf.store->tiers[TIER_NVME]) == TIER_STARTING)
		return false;
	for (uint32_t i = 0; i < all->n; i++) {
		struct rechecker *c = &all->checkers[i];

		if (c->waits)
			read_head(c);
		else if (!c->busy)
			worked |= turn(c);
	}
	return worked;
}

/* --- life --- */

int recheck_open(const struct recheck_conf *conf, struct recheck **ret)
{
	const uint32_t units = beside_units(conf->store);
	struct recheck *all = calloc(1, sizeof(*all));

	if (!all)
		return -ENOMEM;
	all->conf = *conf;
	all->n = units < RECHECK_JOBS ? units : RECHECK_JOBS;
	for (uint32_t i = 0; i < all->n; i++) {
		all->checkers[i].all = all;
		all->checkers[i].unit = i;
	}
	all->poller.poll = poll;
	loop_poller_add(conf->loop, &all->poller);
	*ret = all;
	return 0;
}

void recheck_close(struct recheck *all)
{
	if (!all)
		return;
	loop_poller_remove(all->conf.loop, &all->poller);
	for (uint32_t i = 0; i < all->n; i++)
		if (all->checkers[i].buffer)
			(void)munmap(all->checkers[i].buffer, all->conf.image_bytes);
	free(all);
}

void recheck_end(struct recheck *all)
{
	if (!all)
		return;
	all->ended = true;
	for (uint32_t i = 0; i < all->n; i++)
		if (all->checkers[i].waits)
			unknown(&all->checkers[i]);
}

bool recheck_busy(const struct recheck *all)
{
	bool ret = false;

	for (uint32_t i = 0; all && i < all->n; i++)
		ret |= all->checkers[i].busy || all->checkers[i].lost;
	return ret;
}

bool recheck_is_home(const struct extent *home)
{
	return home->tier == TIER_COUNT && home->unit == HOME_UNIT;
}

void recheck_release(struct recheck *all, const struct extent *home)
{
	assert(all && home->slot < all->n && all->checkers[home->slot].lost);
	all->checkers[home->slot].lost = false;
}
