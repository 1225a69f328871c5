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
#include "daemon/base/loop.h"
#include "daemon/redis/outbox.h"
#include "herd.h"
#include "space.h"
#include "store.h"
#include "tally.h"

enum {
	PURGE_SLICE = 4096,   /* numbers a turn: under a millisecond */
	DOOMED_SLICE = 16384, /* likewise, most of them only looked at */
	DOOMED_BLOCKS = 256,  /* of these, dropped in a turn */
};

#define PURGE_PATIENCE_NS \
	10000000000ull /* for the disks: one that stalls must not keep the asker for ever */

enum purge_stage { PURGE_IDLE, PURGE_TABLE, PURGE_DISKS };

struct purge {
	struct store *store;
	struct loop *loop;
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
	const struct space *space =
		space_at(p->store->spaces, blocks_space(p->store->blocks, block));

	if (!space || memcmp(space->owner, p->tenant, sizeof(p->tenant)) != 0)
		return;
	copies_condemn(p->store, block);
	p->purged++;
}

static bool purge_poll(struct purge *p)
{
	struct store *store = p->store;
	int r = 0;

	if (p->stage == PURGE_DISKS && loop_now(p->loop) >= p->disks_until_ns)
		end(p, -EIO);
	if (p->stage != PURGE_TABLE)
		return false;
	if (herd_walk(store->blocks, &p->cursor, PURGE_SLICE, purge_block, p))
		return true;
	p->stage = PURGE_DISKS;
	p->disks_until_ns = loop_now(p->loop) + PURGE_PATIENCE_NS;
	r = tier_purge(store->tiers[TIER_NVME], p->tenant, disks_done, p);
	if (r)
		end(p, r == -ENOTSUP ? 0 : r); /* without an NVMe tier nothing is left anywhere */
	return true;
}

int purge_begin(struct purge *p, const char *tenant,
		void (*done)(void *arg, int status, uint64_t blocks), void *arg)
{
	if (p->stage != PURGE_IDLE)
		return -EBUSY;
	spaces_tenant_owner(p->store->spaces, tenant, p->tenant);
	outbox_drop_held(p->store->outbox);
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
	struct store *store = p->store;

	if (tally_doomed(blocks_tally(store->blocks)) == 0) {
		spaces_sweep(store->spaces); /* what is left there had pins */
		return false;
	}
	herd_walk_doomed(store->blocks, &p->doomed_cursor, DOOMED_SLICE, DOOMED_BLOCKS,
			 doomed_block, store);
	return true;
}

static bool poll(struct loop_poller *poller)
{
	struct purge *p = container_of(poller, struct purge, poller);
	const bool doomed = doomed_poll(p), purged = purge_poll(p);

	return doomed || purged;
}

/* --- life --- */

int purge_open(struct store *store, struct loop *loop, struct purge **ret)
{
	struct purge *p = calloc(1, sizeof(*p));

	if (!p)
		return -ENOMEM;
	p->store = store;
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
