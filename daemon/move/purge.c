/* SPDX-License-Identifier: Apache-2.0 */
/*
 * purge.c - see purge.h. Core thread only.
 *
 *	IDLE ──purge_begin──> TABLE ──all numbers walked──> TIERS ──tier_purge done──> IDLE
 *
 * The table is walked until the loop is tired: in a large table a block takes several times as long
 * as in a small one. Blocks of the tenant that are committed meanwhile are younger
 * than the purge was asked for; they may go or stay.
 *
 * Spaces that gave way to others (space.c) lose their blocks in the same way, some per iteration,
 * round and round the table while there are any. So do blocks that were dropped lose their heirs.
 */
#include "purge.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "copies.h"
#include "base/list.h"
#include "base/log.h"
#include "base/loop.h"
#include "daemon/policy/victim.h"
#include "daemon/table/space.h"
#include "tables.h"
#include "daemon/table/space_counts.h"

enum {
	/* between two looks at the clock */
	PURGE_SLICE = 64,    /* numbers */
	SOON = 8,            /* numbers ahead of the walk */
	DOOMED_SLICE = 1024, /* numbers, most of them only looked at */
	DOOMED_BLOCKS = 64,  /* of these, dropped */
};

#define PURGE_PATIENCE_NS \
	10000000000ull /* for the tiers: a disk that stalls must not keep the asker for ever */

enum purge_stage { PURGE_IDLE, PURGE_TABLE, PURGE_TIERS };

struct purge {
	struct tables *tables;
	struct loop *loop;
	struct loop_poller poller;
	enum purge_stage stage;
	uint8_t tenant[16];
	uint32_t cursor, doomed_cursor;
	uint64_t purged, tiers_until_ns;
	uint32_t asked; /* tiers that have not answered yet */
	int status;     /* the first error of a tier, or 0 */
	void (*done)(void *arg, int status, uint64_t blocks);
	void *arg;
};

/* --- a tenant --- */

static void end(struct purge *p, int status)
{
	void (*done)(void *arg, int status, uint64_t blocks) = p->done;

	p->stage = PURGE_IDLE;
	p->done = NULL;
	log_info("purge", "purge: %llu blocks dropped%s%s", (unsigned long long)p->purged,
		 status ? "; on a disk they may come back after a restart: " : "",
		 status ? strerror(-status) : "");
	if (done)
		done(p->arg, status, p->purged);
}

static void tier_done(void *arg, int status)
{
	struct purge *p = arg;

	if (p->asked == 0) /* it took too long: its answer is not waited for any more */
		return;
	if (!p->status)
		p->status = status;
	if (--p->asked == 0)
		end(p, p->status);
}

static void give_up(struct purge *p)
{
	p->asked = 0;
	end(p, -EIO);
}

/* Without a tier that keeps blocks over a restart no copy is left anywhere. */
static void ask_tiers(struct purge *p)
{
	p->stage = PURGE_TIERS;
	p->tiers_until_ns = loop_now(p->loop) + PURGE_PATIENCE_NS;
	p->status = 0;
	for (int i = 0; i < TIER_COUNT; i++) {
		const int r = tier_purge(p->tables->tiers[i], p->tenant, tier_done, p);

		p->asked += r == 0;
		if (r && r != -ENOTSUP && !p->status)
			p->status = r;
	}
	if (p->asked == 0)
		end(p, p->status);
}

static void purge_block(void *arg, uint32_t block)
{
	struct purge *p = arg;
	const struct space *space =
		space_at(p->tables->spaces, blocks_space(p->tables->blocks, block));

	blocks_soon(p->tables->blocks, block + SOON);
	if (!space || memcmp(space->owner, p->tenant, sizeof(p->tenant)) != 0)
		return;
	copies_condemn(p->tables, block);
	p->purged++;
}

static bool purge_poll(struct purge *p)
{
	if (p->stage == PURGE_TIERS && loop_now(p->loop) >= p->tiers_until_ns)
		give_up(p);
	if (p->stage != PURGE_TABLE)
		return false;
	while (blocks_walk(p->tables->blocks, &p->cursor, PURGE_SLICE, purge_block, p))
		if (loop_tired(p->loop))
			return true;
	ask_tiers(p);
	return true;
}

/* Whether the tenant that p->tenant stands for has a socket, or a space here. */
static bool exists(const struct purge *p, const char *tenant)
{
	const struct quota *quota = p->tables->quota;

	for (uint32_t i = 0; i < quota->n; i++)
		if (strcmp(quota->tenant[i].name, tenant) == 0)
			return true;
	for (uint32_t i = 0; i < spaces_numbers(p->tables->spaces); i++) {
		const struct space *space = space_at(p->tables->spaces, i);

		if (space && memcmp(space->owner, p->tenant, sizeof(p->tenant)) == 0)
			return true;
	}
	return false;
}

int purge_begin(struct purge *p, const char *tenant,
		void (*done)(void *arg, int status, uint64_t blocks), void *arg)
{
	if (p->stage != PURGE_IDLE)
		return -EBUSY;
	spaces_tenant_owner(p->tables->spaces, tenant, p->tenant);
	if (!exists(p, tenant))
		return -ENOENT;
	if (p->tables->mover.disinherit)
		p->tables->mover.disinherit(p->tables->mover.heir);
	p->stage = PURGE_TABLE;
	p->cursor = 0;
	p->purged = 0;
	p->done = done;
	p->arg = arg;
	return 0;
}

void purge_cancel(struct purge *p, void *arg)
{
	if (p->done && p->arg == arg)
		p->done = NULL;
}

/* --- spaces that go --- */

static void doomed_block(void *arg, uint32_t block)
{
	copies_condemn(arg, block);
}

static bool doomed_poll(struct purge *p)
{
	struct tables *tables = p->tables;

	if (counts_doomed(blocks_counts(tables->blocks)) == 0) {
		spaces_sweep(tables->spaces); /* spaces left there had pinned blocks */
		return false;
	}
	do
		blocks_walk_doomed(tables->blocks, &p->doomed_cursor, DOOMED_SLICE, DOOMED_BLOCKS,
				   doomed_block, tables);
	while (counts_doomed(blocks_counts(tables->blocks)) > 0 && !loop_tired(p->loop));
	return true;
}

static bool lost_poll(struct purge *p)
{
	if (!copies_drop_lost(p->tables))
		return false;
	while (copies_drop_lost(p->tables))
		if (loop_tired(p->loop))
			return true;
	return false;
}

static bool poll(struct loop_poller *poller)
{
	struct purge *p = container_of(poller, struct purge, poller);
	const bool doomed = doomed_poll(p), lost = lost_poll(p), purged = purge_poll(p);

	return doomed || lost || purged;
}

/* --- life --- */

int purge_open(struct tables *tables, struct loop *loop, struct purge **ret)
{
	struct purge *p = calloc(1, sizeof(*p));

	if (!p)
		return -ENOMEM;
	p->tables = tables;
	p->loop = loop;
	p->poller.poll = poll;
	loop_poller_add(loop, &p->poller);
	*ret = p;
	return 0;
}

void purge_close(struct purge *p)
{
	if (!p)
		return;
	loop_poller_remove(p->loop, &p->poller);
	free(p);
}
