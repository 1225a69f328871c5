/* SPDX-License-Identifier: Apache-2.0 */
/*
 * purge.c - see purge.h. Core thread only.
 *
 *	IDLE ──purge_begin──> TABLE ──all numbers walked──> DISKS ──tier_purge done──> IDLE
 *
 * The table is walked a slice a turn. Blocks of the tenant that are committed meanwhile are younger
 * than the purge was asked for; they may go or stay.
 *
 * Spaces that went for others (space_table.h) lose their blocks likewise, some a turn, round and
 * round the table while there are any.
 */
#include "purge.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "copies.h"
#include "daemon/base/container_of.h"
#include "daemon/base/log.h"
#include "daemon/kvtierd.h"
#include "daemon/redis/outbox.h"
#include "tally.h"
#include "herd.h"

enum {
	PURGE_SLICE = 4096,   /* numbers a turn: under a millisecond */
	DOOMED_SLICE = 16384, /* likewise, most of them only looked at */
	DOOMED_BLOCKS = 256,  /* of these, dropped in a turn */
};

#define PURGE_PATIENCE_NS \
	10000000000ull /* for the disks: one that stalls must not keep the asker for ever */

enum purge_stage { PURGE_IDLE, PURGE_TABLE, PURGE_DISKS };

struct purge {
	struct kvtierd *d;
	struct loop_poller poller;
	enum purge_stage stage;
	uint8_t tenant[16];
	uint32_t cursor, doomed_cursor;
	uint64_t purged, disks_until_ns;
	void (*done)(void *arg, int status, uint64_t blocks);
	void *arg;
};

/* --- a tenant --- */

static void end(struct purge *p, int status)
{
	void (*done)(void *arg, int status, uint64_t blocks) = p->done;

	p->stage = PURGE_IDLE;
	p->done = NULL;
	log_info("purge: %llu blocks dropped%s%s", (unsigned long long)p->purged,
		 status ? "; on a disk they may come back after a restart: " : "",
		 status ? strerror(-status) : "");
	if (done)
		done(p->arg, status, p->purged);
}

/* Nobody waits for it any more if it took too long. */
static void disks_done(void *arg, int status)
{
	struct purge *p = arg;

	if (p->stage == PURGE_DISKS)
		end(p, status);
}

static void purge_block(void *arg, uint32_t block)
{
	struct purge *p = arg;
	const struct space *space = space_at(p->d->spaces, blocks_space(p->d->blocks, block));

	if (!space || memcmp(space->owner, p->tenant, sizeof(p->tenant)) != 0)
		return;
	copies_condemn(p->d, block);
	p->purged++;
}

static bool purge_poll(struct purge *p)
{
	struct kvtierd *d = p->d;
	int r = 0;

	if (p->stage == PURGE_DISKS && loop_now(d->loop) >= p->disks_until_ns)
		end(p, -EIO);
	if (p->stage != PURGE_TABLE)
		return false;
	if (herd_walk(d->blocks, &p->cursor, PURGE_SLICE, purge_block, p))
		return true;
	p->stage = PURGE_DISKS;
	p->disks_until_ns = loop_now(d->loop) + PURGE_PATIENCE_NS;
	r = tier_purge(d->tiers[TIER_NVME], p->tenant, disks_done, p);
	if (r)
		end(p, r == -ENOTSUP ? 0 : r); /* without an NVMe tier nothing is left anywhere */
	return true;
}

int purge_begin(struct kvtierd *d, const char *tenant,
		void (*done)(void *arg, int status, uint64_t blocks), void *arg)
{
	struct purge *p = d->purge;

	if (p->stage != PURGE_IDLE)
		return -EBUSY;
	spaces_tenant_owner(d->spaces, tenant, p->tenant);
	outbox_drop_held(d->outbox);
	p->stage = PURGE_TABLE;
	p->cursor = 0;
	p->purged = 0;
	p->done = done;
	p->arg = arg;
	return 0;
}

void purge_cancel(struct kvtierd *d, void *arg)
{
	if (d->purge->done && d->purge->arg == arg)
		d->purge->done = NULL;
}

/* --- spaces that go --- */

static void doomed_block(void *arg, uint32_t block)
{
	copies_condemn(arg, block);
}

static bool doomed_poll(struct kvtierd *d)
{
	if (tally_doomed(blocks_tally(d->blocks)) == 0) {
		spaces_sweep(d->spaces); /* what is left there had pins */
		return false;
	}
	herd_walk_doomed(d->blocks, &d->purge->doomed_cursor, DOOMED_SLICE, DOOMED_BLOCKS,
			 doomed_block, d);
	return true;
}

static bool poll(struct loop_poller *poller)
{
	struct purge *p = container_of(poller, struct purge, poller);
	const bool doomed = doomed_poll(p->d), purged = purge_poll(p);

	return doomed || purged;
}

/* --- life --- */

int purge_open(struct kvtierd *d, struct purge **ret)
{
	struct purge *p = calloc(1, sizeof(*p));

	if (!p)
		return -ENOMEM;
	p->d = d;
	p->poller.poll = poll;
	loop_poller_add(d->loop, &p->poller);
	*ret = p;
	return 0;
}

void purge_close(struct purge *p)
{
	if (!p)
		return;
	loop_poller_remove(p->d->loop, &p->poller);
	free(p);
}
