/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verify.c - reads every copy of every block back and verifies it. Contract: verify.h. Core thread
 * only. A checker takes a block and looks at its copies one after the other:
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
#include "verify.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "daemon/stats/stats.h"
#include "base/list.h"
#include "daemon/move/copies.h"
#include "base/loop.h"
#include "daemon/device/device.h"
#include "daemon/move/gpu_cache.h"
#include "daemon/table/space.h"
#include "daemon/move/tables.h"
#include "base/vault.h"

enum verify_stage { STAGE_HOST, STAGE_NVME, STAGE_GPU };

static_assert((int)VERIFY_JOBS <= (int)DEVICE_FETCHES, "each checker may have one");

struct checker {
	struct device_job job;          /* first: done() gets back to us */
	struct image_geometry geometry; /* of the job: the block's space may go meanwhile */
	struct xfer x;
	struct verify *verify;
	bool busy;
	/* a disk that stalled has its buffer: it looks at host copies only */
	bool lost;
	bool again; /* the copy was looked at before */
	enum verify_stage stage;
	struct lease lease;
	struct extent where;
	uint8_t *buffer;
	/* of a good copy of this block, once `is_sealed` */
	struct image_header sealed;
	bool is_sealed;
	struct gpu_use gpu; /* the unit that is looked at */
	struct device_copy copy;
};

struct verify {
	struct tables *tables;
	struct loop *loop;
	const struct devices *devices;
	struct verify **running; /* verify_conf */
	struct loop_poller poller;
	bool drop, ended, walked;
	uint32_t cursor, in_flight, lost;
	uint64_t buffer_bytes;
	struct verify_report report;
	uint32_t bad_head, bad_count;
	struct verify_bad bad[VERIFY_BAD];
	struct checker checkers[VERIFY_JOBS];
};

static void look(struct checker *c);

static void checker_free(struct checker *c)
{
	lease_drop(c->verify->tables, &c->lease);
	c->busy = false;
	c->verify->in_flight--;
}

/* Another copy, or the next block. */
static void next_copy(struct checker *c)
{
	struct verify *s = c->verify;

	if (c->stage == STAGE_GPU)
		gpu_cache_unpin(s->tables->gpu_cache, &c->gpu);
	c->again = false;
	if (s->ended || !blocks_live(s->tables->blocks, c->lease.block)) {
		checker_free(c);
		return;
	}
	if (c->stage == STAGE_GPU)
		c->gpu.unit++;
	else
		c->stage++;
	look(c);
}

static void skip(struct checker *c)
{
	c->verify->report.skipped_blocks++;
	next_copy(c);
}

static void drop_copy(struct tables *tables, const struct checker *c)
{
	const uint32_t block = c->lease.block;

	if (!blocks_live(tables->blocks, block))
		return;
	if (c->stage == STAGE_GPU)
		gpu_cache_condemn(tables->gpu_cache, block, c->gpu.unit);
	else if (c->stage == STAGE_NVME)
		copies_drop_nvme(tables, block);
	else
		/* a good copy on NVMe, if there is one, goes with it: rare enough */
		copies_condemn(tables, block);
}

static bool copy_moved(const struct tables *tables, const struct checker *c)
{
	struct extent now;

	return !blocks_nvme(tables->blocks, c->lease.block, &now) || !extent_equal(&now, &c->where);
}

static void tell(const struct checker *c)
{
	static const enum stats_health_bit health[] = {
		[STAGE_HOST] = STATS_HEALTH_CORRUPT,
		[STAGE_NVME] = STATS_HEALTH_NVME_CORRUPT,
		[STAGE_GPU] = STATS_HEALTH_GPU_CORRUPT,
	};
	struct stats *stats = c->verify->tables->stats;

	stats_add(&stats_tier(stats, c->where.tier)->corrupt_blocks_total, 1);
	stats_health_set(stats, health[c->stage], true);
}

/* A bad copy on a GPU is dropped in any case: it is a cache, and there is a good one. */
static void is_bad(struct checker *c)
{
	struct verify *s = c->verify;
	struct tables *tables = s->tables;
	struct verify_bad *bad = &s->bad[(s->bad_head + s->bad_count) % VERIFY_BAD];
	const bool nvme = c->stage == STAGE_NVME;
	const bool drop = s->drop || c->stage == STAGE_GPU;

	/* The block was dropped meanwhile, or its segment was used again: these were other
	 * bytes. */
	if (!blocks_live(tables->blocks, c->lease.block) || (nvme && copy_moved(tables, c))) {
		skip(c);
		return;
	}
	assert(s->bad_count < VERIFY_BAD); /* poll() leaves room for all checkers */
	s->bad_count++;
	s->report.bad_blocks++;
	tell(c);
	*bad = (struct verify_bad){ .space = blocks_space(tables->blocks, c->lease.block),
				    .disk = c->where.unit,
				    .tier = (enum tier_id)c->where.tier,
				    .segment = c->where.slot >> 16,
				    .dropped = drop };
	memcpy(bad->key, blocks_key(tables->blocks, c->lease.block), sizeof(bad->key));
	s->report.dropped_blocks += drop;
	if (drop)
		drop_copy(tables, c);
	next_copy(c);
}

static void verified(struct device_job *job)
{
	struct checker *c = (struct checker *)(void *)job;
	struct verify *s = c->verify;

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

static void compare(struct checker *c, uint8_t *image, uint32_t bytes)
{
	struct tables *tables = c->verify->tables;
	const struct space *space =
		space_at(tables->spaces, blocks_space(tables->blocks, c->lease.block));
	int r;

	memset(&c->job, 0, sizeof(c->job));
	memcpy(c->job.identity.key, blocks_key(tables->blocks, c->lease.block),
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
	r = device_submit(devices_cpu(c->verify->devices), &c->job);
	assert(r == 0); /* the CPU takes VERIFY_JOBS of the daemon's own */
}

static void read_done(struct xfer *x)
{
	struct checker *c = container_of(x, struct checker, x);
	struct verify *s = c->verify;

	if (x->kept) {
		c->lost = true; /* until verify_release() */
		s->lost++;
	}
	if (x->status == 0 && !s->ended) {
		compare(c, c->buffer, x->bytes);
		return;
	}
	/* A sector that cannot be read is a bad copy. A copy on a disk that is away is not known to
	 * be bad. */
	if (s->ended || x->kept || x->status == -ECANCELED ||
	    !extents_readable(s->tables, &c->where)) {
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
	struct tables *tables = c->verify->tables;
	const uint32_t bytes = copies_image_bytes(tables, c->lease.block);

	if (!blocks_nvme(tables->blocks, c->lease.block, &c->where)) {
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
		(struct extent){ .tier = TIER_COUNT, .slot = (uint32_t)(c - c->verify->checkers) };
	if (!bytes || bytes > c->verify->buffer_bytes ||
	    tier_submit(tables->tiers[c->where.tier], &c->x))
		skip(c);
}

static void fetched(struct device_job *job)
{
	struct checker *c = (struct checker *)(void *)job;

	if (job->status || c->verify->ended) { /* the GPU's memory is gone */
		skip(c);
		return;
	}
	memcpy(c->buffer, &c->sealed, sizeof(c->sealed));
	compare(c, c->buffer, c->copy.bytes);
}

/* The next GPU that has a copy reads it back, if there is one. */
static void look_gpu(struct checker *c)
{
	struct tables *tables = c->verify->tables;
	const uint32_t bytes = copies_image_bytes(tables, c->lease.block);
	struct gpu_cache *cache = tables->gpu_cache;
	struct gpu_slot slot;
	int r;

	while (cache && c->gpu.unit < gpu_cache_units(cache) &&
	       !gpu_cache_find(cache, c->lease.block, c->gpu.unit, &slot))
		c->gpu.unit++;
	if (!cache || c->gpu.unit >= gpu_cache_units(cache)) {
		checker_free(c);
		return;
	}
	if (c->lost || !c->is_sealed || !bytes || bytes > c->verify->buffer_bytes ||
	    bytes > slot.bytes) {
		skip(c);
		return;
	}
	c->where = slot.where;
	gpu_cache_hold(cache, &c->gpu, c->lease.block);
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
	r = device_submit(devices_gpu(c->verify->devices, c->gpu.unit), &c->job);
	assert(r == 0); /* it takes DEVICE_FETCHES */
}

static void look(struct checker *c)
{
	struct tables *tables = c->verify->tables;

	if (c->stage == STAGE_GPU) {
		look_gpu(c);
		return;
	}
	if (c->stage == STAGE_NVME) {
		look_nvme(c);
		return;
	}
	if (!extents_in_host(tables, c->lease.block, &c->where)) {
		next_copy(c);
		return;
	}
	compare(c, extents_address(tables, &c->where), extents_bytes(tables, &c->where));
}

/* A free checker that has its buffer, else any free one: poll() made sure that there is one. */
static struct checker *free_checker(struct verify *s)
{
	struct checker *ret = NULL;

	for (int i = 0; i < VERIFY_JOBS; i++)
		if (!s->checkers[i].busy && (!ret || ret->lost))
			ret = &s->checkers[i];
	return ret;
}

static void take(void *arg, uint32_t block)
{
	struct verify *s = arg;
	struct checker *c = free_checker(s);

	c->busy = true;
	c->again = false;
	c->stage = STAGE_HOST;
	c->is_sealed = false;
	c->gpu.unit = 0;
	s->in_flight++;
	s->report.walked_blocks++;
	lease_take(s->tables, &c->lease, block);
	look(c);
}

static void buffers_free(struct verify *s)
{
	for (int i = 0; i < VERIFY_JOBS; i++)
		if (s->checkers[i].buffer)
			(void)munmap(s->checkers[i].buffer, s->buffer_bytes);
}

/* Gives blocks to free checkers. No other place frees one that was cancelled. */
static bool poll(struct loop_poller *poller)
{
	struct verify *s = container_of(poller, struct verify, poller);
	bool worked = false;

	if (s->ended && s->in_flight == 0 && s->lost == 0) {
		loop_poller_remove(s->loop, &s->poller);
		*s->running = NULL;
		buffers_free(s);
		free(s);
		return true;
	}
	while (!s->ended && !s->walked && s->in_flight < VERIFY_JOBS &&
	       s->bad_count + VERIFY_JOBS < VERIFY_BAD && !(worked && loop_tired(s->loop))) {
		s->walked = !blocks_walk(s->tables->blocks, &s->cursor, 1, take, s);
		worked = true;
	}
	s->report.done = s->walked && s->in_flight == 0;
	return worked;
}

int verify_begin(const struct verify_conf *conf, bool drop, struct verify **ret)
{
	struct verify *s;

	if (*conf->running)
		return -EBUSY;
	s = calloc(1, sizeof(*s));
	if (!s)
		return -ENOMEM;
	s->tables = conf->tables;
	s->loop = conf->loop;
	s->devices = conf->devices;
	s->running = conf->running;
	s->drop = drop;
	s->buffer_bytes = conf->image_bytes;
	s->report.total_blocks = blocks_count(conf->tables->blocks);
	for (int i = 0; i < VERIFY_JOBS; i++) {
		void *at = mmap(NULL, s->buffer_bytes, PROT_READ | PROT_WRITE,
				MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

		if (at == MAP_FAILED) {
			buffers_free(s);
			free(s);
			return -ENOMEM;
		}
		vault_hide(at, s->buffer_bytes);
		s->checkers[i].verify = s;
		s->checkers[i].buffer = at;
	}
	s->poller.poll = poll;
	loop_poller_add(s->loop, &s->poller);
	*s->running = *ret = s;
	return 0;
}

void verify_report(const struct verify *s, struct verify_report *ret)
{
	*ret = s->report;
}

bool verify_next_bad(struct verify *s, struct verify_bad *ret)
{
	if (s->bad_count == 0)
		return false;
	*ret = s->bad[s->bad_head];
	s->bad_head = (s->bad_head + 1) % VERIFY_BAD;
	s->bad_count--;
	return true;
}

void verify_cancel(struct verify *s)
{
	s->ended = true; /* poll() frees it when no check is in flight */
}

void verify_release(struct verify *s, const struct extent *home)
{
	assert(s && home->slot < VERIFY_JOBS && s->checkers[home->slot].lost);
	s->checkers[home->slot].lost = false;
	s->lost--;
}
