/* SPDX-License-Identifier: Apache-2.0 */
/*
 * foresee.c - see foresee.h. Core thread only.
 *
 *	expected ──lead_s before its return, if it is away──> due ──> READ ~> VERIFY ~> in memory
 *
 * Returns are in no order: the list is looked through every LOOK_NS, LOOK_ROWS at a time. The row
 * of a block that was used, or is expected at another time by now, is void, and is removed when it
 * is due.
 *
 * Invariants
 *   Y1 a block is brought into a free slot, or into that of a block whose worth (evict.h) is less
 *      than its own. So it displaces no block that is expected sooner, nor one that was used more
 *      recently than it will be.
 *   Y2 its image is verified before the block has it, and has a codec that the block's space and
 *      the configuration allow.
 *   Y3 all trouble leaves the block on NVMe: the load that comes brings it, or says what is wrong.
 */
#include "foresee.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/list.h"
#include "base/loop.h"
#include "base/reserve.h"
#include "daemon/device/device.h"
#include "daemon/move/copies.h"
#include "daemon/move/lesser.h"
#include "daemon/move/tables.h"
#include "daemon/policy/victim.h"
#include "daemon/stats/stats.h"
#include "daemon/table/evict.h"
#include "daemon/table/space.h"
#include "tiers/slabs.h"

enum { ROWS = 1 << 18, DUE = 1024, LOOK_ROWS = 16384, LOOK_NS = 100000000 };

struct awaited {
	uint64_t back, said; /* ticks */
	uint32_t block;
};

struct bringing {
	struct device_job job;          /* first: done() gets back to us */
	struct image_geometry geometry; /* of the job: the block's space may go meanwhile */
	struct xfer x;
	struct foresee *f;
	struct lease lease;
	struct extent slot;
	bool busy, placed;
};

struct foresee {
	struct tables *tables;
	struct loop *loop;
	const struct devices *devices;
	const uint32_t *lead_s;
	struct loop_timer timer;
	bool stopped;
	uint32_t n, cursor, head, n_due, n_busy;
	struct awaited *row;
	struct awaited due[DUE];
	struct bringing bringing[FORESEE_JOBS];
};

static bool still_expected(const struct foresee *f, const struct awaited *row)
{
	const struct blocks *blocks = f->tables->blocks;

	return blocks_live(blocks, row->block) &&
	       evict_expected(blocks_order(blocks), row->block) == row->back &&
	       blocks_tick(blocks, row->block) <= row->said && row->back > f->tables->tick;
}

/* --- one block --- */

static void begin_due(struct foresee *f);

static void end(struct bringing *b)
{
	struct foresee *f = b->f;

	if (b->placed)
		extents_free(f->tables, &b->slot);
	b->placed = b->busy = false;
	f->n_busy--;
	lease_drop(f->tables, &b->lease);
}

/* It is still away, and its space is known: else NULL. */
static const struct space *space_of(const struct bringing *b)
{
	const struct tables *tables = b->f->tables;
	const struct blocks *blocks = tables->blocks;
	const uint32_t block = b->lease.block;
	const struct space *space;

	if (!blocks_live(blocks, block) || blocks_host_slot(blocks, block) != BLOCK_NONE)
		return NULL;
	space = space_at(tables->spaces, blocks_space(blocks, block));
	return space && space->known ? space : NULL;
}

static void verified(struct device_job *job)
{
	static const uint8_t none[32];
	struct bringing *b = (struct bringing *)(void *)job;
	struct tables *tables = b->f->tables;
	const struct image_header *header = (const void *)job->image;
	const struct space *space = space_of(b);
	uint32_t parent = BLOCK_NONE;

	if (job->status == 0 && space &&
	    (!lesser_is(space, header) ||
	     lesser_takes(tables->spaces, space, header->codec_k, header->codec_v))) {
		if (memcmp(b->x.record.parent, none, sizeof(none)) != 0)
			parent = blocks_find(tables->blocks, b->x.record.parent, space->number);
		copies_promote(tables, b->lease.block, &b->slot, parent);
		b->placed = false;
		stats_add(&tables->stats->v.tiers_host_promoted_blocks_total, 1);
		stats_add(&tables->stats->v.hints_foreseen_blocks_total, 1);
	}
	end(b);
	begin_due(b->f);
}

static void read_done(struct xfer *x)
{
	struct bringing *b = container_of(x, struct bringing, x);
	const struct space *space = space_of(b);

	if (x->kept)
		b->placed = false;
	if (x->status || !space) {
		end(b);
		begin_due(b->f);
		return;
	}
	b->geometry = space->geometry;
	b->job = (struct device_job){
		.kind = DEVICE_VERIFY,
		.image = x->buffer,
		.image_bytes = x->bytes,
		.geometry = &b->geometry,
		.done = verified,
	};
	memcpy(b->job.identity.key, blocks_key(b->f->tables->blocks, b->lease.block), 32);
	memcpy(b->job.identity.space_id, space->id, sizeof(space->id));
	if (device_submit(devices_cpu(b->f->devices), &b->job))
		end(b); /* verify and the emptier took the daemon's own jobs */
}

/* Y1 */
static bool find_room(struct foresee *f, uint32_t block, uint32_t bytes, struct extent *ret)
{
	struct tables *tables = f->tables;
	struct tier *host = tables_host(tables);
	const int class = slabs_class_of(tier_slabs(host), bytes);
	const struct mover_for whom = { .space = blocks_space(tables->blocks, block),
					.near = TIER_ANY_UNIT };
	uint64_t least;

	if (tier_alloc(host, bytes, ret) == 0)
		return true;
	return class >= 0 &&
	       victim_of(tables->blocks, (uint32_t) class, NULL, &least) != BLOCK_NONE &&
	       least < victim_worth(tables->blocks, block) &&
	       mover_find_room(host, tables->blocks, tables->tick, bytes, &whom, &tables->mover,
			       ret) == 0;
}

/* False: it stays on NVMe. */
static bool begin(struct bringing *b, uint32_t block)
{
	struct tables *tables = b->f->tables;
	const uint32_t bytes = copies_image_bytes(tables, block);
	struct extent where;

	if (blocks_host_slot(tables->blocks, block) != BLOCK_NONE || !bytes ||
	    !extents_away(tables, block, &where))
		return false;
	lease_take(tables, &b->lease, block);
	b->busy = true;
	b->f->n_busy++;
	b->placed = find_room(b->f, block, bytes, &b->slot);
	if (b->placed && blocks_nvme(tables->blocks, block, &where)) {
		b->x = (struct xfer){ .op = XFER_READ,
				      .where = where,
				      .home = b->slot,
				      .buffer = extents_address(tables, &b->slot),
				      .bytes = bytes,
				      .done = read_done };
		if (tier_submit(tables->tiers[where.tier], &b->x) == 0)
			return true;
	}
	end(b);
	return false;
}

static void begin_due(struct foresee *f)
{
	/* worths are of this moment, also where no op came for a while */
	blocks_later(f->tables->blocks, tables_tick(f->tables, loop_now(f->loop)));
	for (uint32_t i = 0; i < FORESEE_JOBS && !f->stopped; i++) {
		while (!f->bringing[i].busy && f->n_due > 0) {
			const struct awaited row = f->due[f->head];

			f->head = (f->head + 1) % DUE;
			f->n_due--;
			if (still_expected(f, &row))
				(void)begin(&f->bringing[i], row.block);
		}
	}
}

/* --- the list --- */

static void look(struct loop_timer *timer)
{
	struct foresee *f = container_of(timer, struct foresee, timer);
	const uint64_t until = tables_tick(f->tables, loop_now(f->loop)) + *f->lead_s * 1000000ull;
	const uint32_t from = f->cursor, left = f->n - from,
		       to = from + (left < LOOK_ROWS ? left : LOOK_ROWS);
	uint32_t kept = from;

	for (uint32_t i = from; i < to; i++) { /* a chain stays in order */
		if (f->row[i].back > until || f->n_due == DUE)
			f->row[kept++] = f->row[i];
		else
			f->due[(f->head + f->n_due++) % DUE] = f->row[i];
	}
	if (kept < to)
		memmove(&f->row[kept], &f->row[to], (f->n - to) * sizeof(*f->row));
	f->n -= to - kept;
	f->cursor = kept < f->n ? kept : 0;
	begin_due(f);
	if (f->n > 0)
		loop_timer_set(f->loop, timer, loop_now(f->loop) + LOOK_NS);
}

void foresee_expect(struct foresee *f, uint32_t block, uint64_t back)
{
	if (!f || f->stopped || *f->lead_s == 0 || back == EVICT_NEVER || f->n == ROWS)
		return;
	if (f->n == 0)
		loop_timer_set(f->loop, &f->timer, loop_now(f->loop) + LOOK_NS);
	f->row[f->n++] = (struct awaited){ .back = back, .said = f->tables->tick, .block = block };
}

/* --- life --- */

int foresee_open(struct tables *tables, struct loop *loop, const struct devices *devices,
		 const uint32_t *lead_s)
{
	struct foresee *f = calloc(1, sizeof(*f));

	if (!f)
		return -ENOMEM;
	*f = (struct foresee){ .tables = tables,
			       .loop = loop,
			       .devices = devices,
			       .lead_s = lead_s,
			       .timer.fire = look,
			       .row = reserve(ROWS * sizeof(*f->row)) };
	for (uint32_t i = 0; i < FORESEE_JOBS; i++)
		f->bringing[i].f = f;
	if (!f->row) {
		free(f);
		return -ENOMEM;
	}
	tables->foresee = f;
	tables->expect = foresee_expect;
	return 0;
}

void foresee_stop(struct foresee *f)
{
	if (f)
		f->stopped = true;
}

bool foresee_idle(const struct foresee *f)
{
	return !f || f->n_busy == 0;
}

void foresee_close(struct foresee *f)
{
	if (!f)
		return;
	assert(f->n_busy == 0);
	loop_timer_unset(f->loop, &f->timer);
	unreserve(f->row, ROWS * sizeof(*f->row));
	f->tables->foresee = NULL;
	free(f);
}
