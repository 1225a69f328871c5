/* SPDX-License-Identifier: Apache-2.0 */
/*
 * emptier.c - see emptier.h. Core thread only. An image:
 *
 *  in the slab ─unpinned: leased, a slot taken─> copied ──job ended─> settling ─our lease─> moved
 *       ^                                          │ device said no      │ given up, or its
 *       └──────────────────────────────────────────┴─────────────────────┘ block went
 *
 * Invariants
 *   E1 the slab is closed (slabs.h) from emptier_begin() until it is empty or was given up, so
 *      nothing new comes in.
 *   E2 a block has one slot at any time. Until it moved that is the old one, which keeps its bytes.
 *   E3 an image that is copied is leased: it is neither evicted nor moved. It may be condemned;
 *      then its old slot is freed as that of any condemned block, when the lease goes.
 *   E4 a part that holds a lease and waits for room here would wait for ever, so a caller that
 *      finds that nothing else is under way gives a stuck emptying up (mover.c).
 */
#include "emptier.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "daemon/base/container_of.h"
#include "daemon/base/loop.h"
#include "daemon/device/device.h"
#include "tiers/slabs.h"
#include "herd.h"

/* waiters are tried in the turn after the slab is empty, or the next */
enum { OWED_TURNS = 64 };

struct moving {
	struct extent from, to;
	uint32_t block; /* leased; BLOCK_NONE: moved, or given back */
};

struct emptier_job {
	struct device_job job;
	struct emptier *emptier;
	bool in_flight;
	uint32_t n, left; /* images; images that have not moved */
	struct device_copy copies[EMPTIER_JOB_COPIES];
	struct moving moving[EMPTIER_JOB_COPIES];
};

struct emptier {
	struct emptier_conf conf;
	struct slabs *slabs;
	struct loop_poller poller;
	bool busy, giving_up;
	uint32_t bytes;     /* of the image for whose sake */
	uint32_t cursor;    /* in the closed slab */
	uint32_t in_flight; /* jobs */
	bool owed;          /* `gift` is kept for an image of its class */
	uint32_t owed_turns;
	struct extent gift;
	struct emptier_job jobs[EMPTIER_JOBS];
};

/* --- one image --- */

static void unlease(struct emptier *e, struct moving *m)
{
	blocks_unpin(e->conf.blocks, m->block);
	m->block = BLOCK_NONE;
	herd_free_condemned(e->conf.blocks, e->conf.host);
}

/* It stays where it is. */
static void give_back(struct emptier *e, struct moving *m)
{
	slabs_move_end(e->slabs, &m->to);
	unlease(e, m);
}

static void move(struct emptier *e, struct moving *m)
{
	const uint32_t block = m->block;

	unlease(e, m);
	blocks_move(e->conf.blocks, block, &m->to);
	slabs_set_owner(e->slabs, &m->to, block);
	++*e->conf.moved_blocks;
	*e->conf.moved_bytes += slabs_extent_bytes(e->slabs, &m->to);
	slabs_move_end(e->slabs, &m->from);
}

/* False: others have a lease on it. */
static bool settle(struct emptier *e, struct moving *m)
{
	if (e->giving_up || !blocks_live(e->conf.blocks, m->block))
		give_back(e, m);
	else if (blocks_pins(e->conf.blocks, m->block) == 1)
		move(e, m);
	else
		return false;
	return true;
}

/* Of a job that ended. Whether any image left it. */
static bool settle_job(struct emptier *e, struct emptier_job *j)
{
	const uint32_t before = j->left;

	for (uint32_t i = 0; i < j->n && j->left; i++)
		if (j->moving[i].block != BLOCK_NONE)
			j->left -= settle(e, &j->moving[i]);
	return j->left != before;
}

/* --- a job --- */

static void done(struct device_job *job)
{
	struct emptier_job *j = container_of(job, struct emptier_job, job);
	struct emptier *e = j->emptier;

	j->in_flight = false;
	e->in_flight--;
	for (uint32_t i = 0; job->status && i < j->n; i++)
		give_back(e, &j->moving[i]);
	if (job->status)
		j->left = 0;
	(void)emptier_turn(e);
}

/* Gathers images that can move now. False: the remaining images cannot, or none remain. */
static bool gather(struct emptier *e, struct emptier_job *j)
{
	struct extent from, to;
	uint32_t bytes = 0;

	j->n = 0;
	while (j->n < EMPTIER_JOB_COPIES && bytes < EMPTIER_JOB_BYTES &&
	       slabs_closed_next(e->slabs, &e->cursor, &from)) {
		const uint32_t block = slabs_owner(e->slabs, &from);

		if (block == SLABS_NO_OWNER || blocks_pins(e->conf.blocks, block))
			continue;
		/* a slab of the class is free: emptying this one is needless now */
		if (slabs_move_begin(e->slabs, &to)) {
			e->giving_up = true;
			break;
		}
		blocks_pin(e->conf.blocks, block);
		j->moving[j->n] = (struct moving){ .from = from, .to = to, .block = block };
		j->copies[j->n] =
			(struct device_copy){ .to = tier_address(e->conf.host, &to),
					      .from = tier_address(e->conf.host, &from),
					      .bytes = slabs_extent_bytes(e->slabs, &from) };
		bytes += j->copies[j->n++].bytes;
	}
	j->left = j->n;
	return j->n > 0;
}

static bool start(struct emptier *e, struct emptier_job *j)
{
	if (!gather(e, j))
		return false;
	j->job = (struct device_job){
		.kind = DEVICE_COPY,
		.image = j->copies[0].to,
		.image_bytes = j->copies[0].bytes,
		.copies = j->copies,
		.n_copies = j->n,
		.done = done,
	};
	if (e->conf.submit(e->conf.arg, &j->job)) {
		for (uint32_t i = 0; i < j->n; i++)
			give_back(e, &j->moving[i]);
		j->left = 0;
		e->cursor = 0;
		return false;
	}
	j->in_flight = true;
	e->in_flight++;
	return true;
}

/* --- the slab --- */

static bool jobs_left(const struct emptier *e)
{
	for (int i = 0; i < EMPTIER_JOBS; i++)
		if (e->jobs[i].left)
			return true;
	return false;
}

/* The slab is empty, or is not to be emptied any more. */
static void end(struct emptier *e)
{
	const bool empty = slabs_closed_used(e->slabs) == 0;

	assert(!jobs_left(e));
	if (!empty)
		slabs_reopen(e->slabs);
	e->busy = e->giving_up = false;
	emptier_let_go(e);
	if (empty && !tier_alloc(e->conf.host, e->bytes, &e->gift)) {
		e->owed = true;
		e->owed_turns = 0;
	}
}

bool emptier_turn(struct emptier *e)
{
	bool worked = false;

	if (e->owed && e->owed_turns++ == OWED_TURNS)
		emptier_let_go(e);
	if (!e->busy)
		return e->owed;
	for (int i = 0; i < EMPTIER_JOBS; i++)
		worked |= e->jobs[i].left && !e->jobs[i].in_flight && settle_job(e, &e->jobs[i]);
	if (!jobs_left(e))
		e->cursor = 0; /* images that were leased before may be free now */
	for (int i = 0; i < EMPTIER_JOBS && !e->giving_up; i++)
		worked |= !e->jobs[i].left && start(e, &e->jobs[i]);
	if (!jobs_left(e) && (e->giving_up || slabs_closed_used(e->slabs) == 0)) {
		end(e);
		worked = true;
	}
	return worked;
}

void emptier_begin(struct emptier *e, uint32_t slab, uint32_t bytes)
{
	assert(!e->busy);
	slabs_close_slab(e->slabs, slab);
	e->busy = true;
	e->giving_up = false;
	e->bytes = bytes;
	e->cursor = 0;
	(void)emptier_turn(e);
}

bool emptier_busy(const struct emptier *e)
{
	return e && e->busy;
}

bool emptier_stuck(const struct emptier *e)
{
	return e->busy && e->in_flight == 0;
}

void emptier_give_up(struct emptier *e)
{
	if (!e->busy)
		return;
	e->giving_up = true;
	(void)emptier_turn(e);
}

bool emptier_take(struct emptier *e, uint32_t bytes, struct extent *ret)
{
	if (!e->owed || slabs_class_of(e->slabs, bytes) != e->gift.class)
		return false;
	e->owed = false;
	*ret = e->gift;
	return true;
}

void emptier_let_go(struct emptier *e)
{
	if (e->owed)
		tier_free(e->conf.host, &e->gift);
	e->owed = false;
}

/* --- life --- */

static bool poll(struct loop_poller *poller)
{
	return emptier_turn(container_of(poller, struct emptier, poller));
}

int emptier_open(const struct emptier_conf *conf, struct emptier **ret)
{
	struct emptier *e = calloc(1, sizeof(*e));

	if (!e)
		return -ENOMEM;
	e->conf = *conf;
	e->slabs = tier_slabs(conf->host);
	e->poller.poll = poll;
	for (int i = 0; i < EMPTIER_JOBS; i++)
		e->jobs[i].emptier = e;
	if (conf->loop)
		loop_poller_add(conf->loop, &e->poller);
	*ret = e;
	return 0;
}

void emptier_close(struct emptier *e)
{
	if (!e)
		return;
	assert(e->in_flight == 0);
	emptier_give_up(e);
	emptier_let_go(e);
	if (e->conf.loop)
		loop_poller_remove(e->conf.loop, &e->poller);
	free(e);
}
