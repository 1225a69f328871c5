/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scrub.c - see scrub.h. Core thread only. A checker takes a block and looks at its copies one
 * after the other:
 *
 *	free ──next block, leased──> HOST ──worker verified──> NVME ──read──> worker verified
 *	 ^                                                                          │
 *	 └──worker verified <──fetched── GPU 0, GPU 1, ... <────────────────────────┘
 *
 * The host copy is verified where it lies: the lease keeps it there. A copy on NVMe or on a GPU is
 * read into a buffer of the checker's. A GPU's is unsealed (daemon/IMAGE.md): it is verified under
 * the header of a copy before it, which was good. A copy that looks bad is read and verified once
 * more before it counts as bad.
 */
#include "scrub.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "daemon/stats/stats.h"
#include "daemon/base/container_of.h"
#include "daemon/store/copies.h"
#include "daemon/base/loop.h"
#include "daemon/device/devices.h"
#include "daemon/store/beside.h"
#include "daemon/store/extents.h"
#include "daemon/store/space.h"
#include "daemon/store/store.h"
#include "daemon/store/lease.h"
#include "daemon/base/vault.h"
#include "daemon/store/herd.h"

enum { TURN = 1024 }; /* block numbers in one turn of the loop */

enum scrub_stage { STAGE_HOST, STAGE_NVME, STAGE_GPU };

static_assert((int)SCRUB_JOBS <= (int)DEVICE_FETCHES, "each checker may have one");

struct checker {
	struct device_job job;          /* first: done() gets back to us */
	struct image_geometry geometry; /* of the job: the block's space may go meanwhile */
	struct xfer x;
	struct scrub *scrub;
	bool busy;
	/* a disk that stalled has its buffer: it looks at host copies only */
	bool lost;
	bool again; /* the copy was looked at before */
	enum scrub_stage stage;
	struct lease lease;
	struct extent where;
	uint8_t *buffer;
	/* of a good copy of this block, once `is_sealed` */
	struct image_header sealed;
	bool is_sealed;
	uint32_t unit; /* GPU: which */
	struct beside_pin pin;
	struct device_copy copy;
};

struct scrub {
	struct store *store;
	struct loop *loop;
	const struct devices *devices;
	struct scrub **running; /* scrub_conf */
	struct loop_poller poller;
	bool repair, ended, walked;
	uint32_t cursor, in_flight, lost;
	uint64_t buffer_bytes;
	struct scrub_report report;
	uint32_t bad_head, bad_count;
	struct scrub_bad bad[SCRUB_BAD];
	struct checker checkers[SCRUB_JOBS];
};

static void look(struct checker *c);

static void checker_free(struct checker *c)
{
	lease_drop(c->scrub->store, &c->lease);
	c->busy = false;
	c->scrub->in_flight--;
}

/* Another copy, or the next block. */
static void next_copy(struct checker *c)
{
	struct scrub *s = c->scrub;

	beside_unpin(s->store, &c->pin);
	c->again = false;
	if (s->ended || !blocks_live(s->store->blocks, c->lease.block)) {
		checker_free(c);
		return;
	}
	if (c->stage == STAGE_GPU)
		c->unit++;
	else
		c->stage++;
	look(c);
}

static void skip(struct checker *c)
{
	c->scrub->report.skipped_blocks++;
	next_copy(c);
}

static void drop_copy(struct store *store, const struct checker *c)
{
	const uint32_t block = c->lease.block;

	if (!blocks_live(store->blocks, block))
		return;
	if (c->stage == STAGE_GPU)
		copies_condemn_beside(store, block, c->unit);
	else if (c->stage == STAGE_NVME)
		copies_drop_nvme(store, block);
	else
		/* a good copy on NVMe, if there is one, goes with it: rare enough */
		copies_condemn(store, block);
}

static bool copy_moved(const struct store *store, const struct checker *c)
{
	struct extent now;

	return !blocks_nvme(store->blocks, c->lease.block, &now) || !extent_equal(&now, &c->where);
}

static void tell(const struct checker *c)
{
	static const enum stats_health_bit health[] = {
		[STAGE_HOST] = STATS_HEALTH_CORRUPT,
		[STAGE_NVME] = STATS_HEALTH_NVME_CORRUPT,
		[STAGE_GPU] = STATS_HEALTH_GPU_CORRUPT,
	};
	struct stats *stats = c->scrub->store->stats;

	stats_add(&stats_tier(stats, c->where.tier)->corrupt_blocks_total, 1);
	stats_health_set(stats, health[c->stage], true);
}

/* A bad copy on a GPU is dropped in any case: it is a cache, and there is a good one. */
static void is_bad(struct checker *c)
{
	struct scrub *s = c->scrub;
	struct store *store = s->store;
	struct scrub_bad *bad = &s->bad[(s->bad_head + s->bad_count) % SCRUB_BAD];
	const bool nvme = c->stage == STAGE_NVME;
	const bool drop = s->repair || c->stage == STAGE_GPU;

	/* The block was dropped meanwhile, or its segment was used again: these were other
	 * bytes. */
	if (!blocks_live(store->blocks, c->lease.block) || (nvme && copy_moved(store, c))) {
		skip(c);
		return;
	}
	assert(s->bad_count < SCRUB_BAD); /* poll() leaves room for all checkers */
	s->bad_count++;
	s->report.bad_blocks++;
	tell(c);
	*bad = (struct scrub_bad){ .space = blocks_space(store->blocks, c->lease.block),
				   .disk = c->where.unit,
				   .tier = (enum tier_id)c->where.tier,
				   .segment = c->where.slot >> 16,
				   .dropped = drop };
	memcpy(bad->key, blocks_key(store->blocks, c->lease.block), sizeof(bad->key));
	s->report.dropped_blocks += drop;
	if (drop)
		drop_copy(store, c);
	next_copy(c);
}

static void verified(struct device_job *job)
{
	struct checker *c = (struct checker *)(void *)job;
	struct scrub *s = c->scrub;

	if (job->status == 0) {
		memcpy(&c->sealed, job->image, sizeof(c->sealed));
		c->is_sealed = true;
		s->report.checked_blocks++;
		s->report.checked_bytes += job->image_bytes;
		next_copy(c);
	} else if (!c->again && !s->ended) {
		c->again = true;
		look(c);
	} else if (s->ended) {
		next_copy(c);
	} else {
		is_bad(c);
	}
}

static void verify(struct checker *c, uint8_t *image, uint32_t bytes)
{
	struct store *store = c->scrub->store;
	const struct space *space =
		space_at(store->spaces, blocks_space(store->blocks, c->lease.block));
	int r;

	memset(&c->job, 0, sizeof(c->job));
	memcpy(c->job.identity.key, blocks_key(store->blocks, c->lease.block),
	       sizeof(c->job.identity.key));
	if (space && space->known) {
		memcpy(c->job.identity.space_id, space->id, sizeof(space->id));
		c->geometry = space->geometry;
		c->job.geometry = &c->geometry;
	}
	c->job.kind = DEVICE_VERIFY;
	c->job.image = image;
	c->job.image_bytes = bytes;
	c->job.done = verified;
	r = device_submit(devices_cpu(c->scrub->devices), &c->job);
	assert(r == 0); /* the CPU takes SCRUB_JOBS of the daemon's own */
}

static void read_done(struct xfer *x)
{
	struct checker *c = container_of(x, struct checker, x);
	struct scrub *s = c->scrub;

	if (x->kept) {
		c->lost = true; /* until scrub_release() */
		s->lost++;
	}
	if (x->status == 0 && !s->ended) {
		verify(c, c->buffer, x->bytes);
		return;
	}
	/* A sector that cannot be read is a bad copy. A copy on a disk that is away is not known to
	 * be bad. */
	if (s->ended || x->kept || x->status == -ECANCELED ||
	    !extents_readable(s->store, &c->where)) {
		skip(c);
	} else if (!c->again) {
		c->again = true;
		look(c);
	} else {
		is_bad(c);
	}
}

/* Starts the read of the NVMe copy, if there is a readable one. */
static void look_nvme(struct checker *c)
{
	struct store *store = c->scrub->store;
	const uint32_t bytes = copies_image_bytes(store, c->lease.block);

	if (!blocks_nvme(store->blocks, c->lease.block, &c->where)) {
		next_copy(c);
		return;
	}
	if (c->lost) {
		skip(c);
		return;
	}
	memset(&c->x, 0, sizeof(c->x));
	c->x.op = XFER_READ;
	c->x.where = c->where;
	c->x.buffer = c->buffer;
	c->x.bytes = bytes;
	c->x.done = read_done;
	c->x.home =
		(struct extent){ .tier = TIER_COUNT, .slot = (uint32_t)(c - c->scrub->checkers) };
	if (!bytes || bytes > c->scrub->buffer_bytes ||
	    tier_submit(store->tiers[c->where.tier], &c->x))
		skip(c);
}

static void fetched(struct device_job *job)
{
	struct checker *c = (struct checker *)(void *)job;

	if (job->status || c->scrub->ended) { /* the GPU's memory is gone */
		skip(c);
		return;
	}
	memcpy(c->buffer, &c->sealed, sizeof(c->sealed));
	verify(c, c->buffer, c->copy.bytes);
}

/* The next GPU that has a copy reads it back, if there is one. */
static void look_gpu(struct checker *c)
{
	struct store *store = c->scrub->store;
	const uint32_t bytes = copies_image_bytes(store, c->lease.block);
	struct gpu_slot slot;
	int r;

	while (c->unit < beside_units(store) && !beside_find(store, c->lease.block, c->unit, &slot))
		c->unit++;
	if (c->unit >= beside_units(store)) {
		checker_free(c);
		return;
	}
	if (c->lost || !c->is_sealed || !bytes || bytes > c->scrub->buffer_bytes ||
	    bytes > slot.bytes) {
		skip(c);
		return;
	}
	c->where = slot.where;
	if (!c->pin.held)
		beside_hold(store, c->lease.block, c->unit, &c->pin);
	c->copy = (struct device_copy){ .to = c->buffer, .bytes = bytes };
	c->job = (struct device_job){
		.kind = DEVICE_FETCH,
		.image_memory = IMAGE_OF_DEVICE,
		.image = (uint8_t *)(uintptr_t)slot.address,
		.image_bytes = slot.bytes,
		.generation = slot.generation,
		.copies = &c->copy,
		.n_copies = 1,
		.done = fetched,
	};
	r = device_submit(devices_gpu(c->scrub->devices, c->unit), &c->job);
	assert(r == 0); /* it takes DEVICE_FETCHES */
}

static void look(struct checker *c)
{
	struct store *store = c->scrub->store;

	if (c->stage == STAGE_GPU) {
		look_gpu(c);
		return;
	}
	if (c->stage == STAGE_NVME) {
		look_nvme(c);
		return;
	}
	if (!extents_in_host(store, c->lease.block, &c->where)) {
		next_copy(c);
		return;
	}
	verify(c, extents_address(store, &c->where), extents_bytes(store, &c->where));
}

/* A free checker that has its buffer, else any free one: poll() made sure that there is one. */
static struct checker *free_checker(struct scrub *s)
{
	struct checker *ret = NULL;

	for (int i = 0; i < SCRUB_JOBS; i++)
		if (!s->checkers[i].busy && (!ret || ret->lost))
			ret = &s->checkers[i];
	return ret;
}

static void take(void *arg, uint32_t block)
{
	struct scrub *s = arg;
	struct checker *c = free_checker(s);

	c->busy = true;
	c->again = false;
	c->stage = STAGE_HOST;
	c->is_sealed = false;
	c->unit = 0;
	s->in_flight++;
	s->report.walked_blocks++;
	lease_take(s->store, &c->lease, block);
	look(c);
}

static void buffers_free(struct scrub *s)
{
	for (int i = 0; i < SCRUB_JOBS; i++)
		if (s->checkers[i].buffer)
			(void)munmap(s->checkers[i].buffer, s->buffer_bytes);
}

/* Gives blocks to free checkers. No other place frees an ended scrub. */
static bool poll(struct loop_poller *poller)
{
	struct scrub *s = container_of(poller, struct scrub, poller);
	bool worked = false;

	if (s->ended && s->in_flight == 0 && s->lost == 0) {
		loop_poller_remove(s->loop, &s->poller);
		*s->running = NULL;
		buffers_free(s);
		free(s);
		return true;
	}
	for (int i = 0; i < TURN && !s->ended && !s->walked && s->in_flight < SCRUB_JOBS &&
			s->bad_count + SCRUB_JOBS < SCRUB_BAD;
	     i++) {
		s->walked = !herd_walk(s->store->blocks, &s->cursor, 1, take, s);
		worked = true;
	}
	s->report.done = s->walked && s->in_flight == 0;
	return worked;
}

int scrub_start(const struct scrub_conf *conf, bool repair, struct scrub **ret)
{
	struct scrub *s;

	if (*conf->running)
		return -EBUSY;
	s = calloc(1, sizeof(*s));
	if (!s)
		return -ENOMEM;
	s->store = conf->store;
	s->loop = conf->loop;
	s->devices = conf->devices;
	s->running = conf->running;
	s->repair = repair;
	s->buffer_bytes = conf->image_bytes;
	s->report.total_blocks = blocks_count(conf->store->blocks);
	for (int i = 0; i < SCRUB_JOBS; i++) {
		void *at = mmap(NULL, s->buffer_bytes, PROT_READ | PROT_WRITE,
				MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

		if (at == MAP_FAILED) {
			buffers_free(s);
			free(s);
			return -ENOMEM;
		}
		vault_hide(at, s->buffer_bytes);
		s->checkers[i].scrub = s;
		s->checkers[i].buffer = at;
	}
	s->poller.poll = poll;
	loop_poller_add(s->loop, &s->poller);
	*s->running = *ret = s;
	return 0;
}

void scrub_report(const struct scrub *s, struct scrub_report *ret)
{
	*ret = s->report;
}

bool scrub_next_bad(struct scrub *s, struct scrub_bad *ret)
{
	if (s->bad_count == 0)
		return false;
	*ret = s->bad[s->bad_head];
	s->bad_head = (s->bad_head + 1) % SCRUB_BAD;
	s->bad_count--;
	return true;
}

void scrub_end(struct scrub *s)
{
	s->ended = true; /* poll() frees it when nothing is in flight */
}

void scrub_release(struct scrub *s, const struct extent *home)
{
	assert(s && home->slot < SCRUB_JOBS && s->checkers[home->slot].lost);
	s->checkers[home->slot].lost = false;
	s->lost--;
}
