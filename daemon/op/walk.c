/* SPDX-License-Identifier: Apache-2.0 */
/*
 * walk.c - the run queue, and the code that several steps share. See walk.h.
 */
#include "walk.h"

#include <assert.h>
#include <errno.h>

#include "daemon/stats/stats.h"
#include "daemon/base/container_of.h"
#include "daemon/base/loop.h"
#include "daemon/shared/client.h"
#include "daemon/store/copies.h"
#include "daemon/store/extents.h"
#include "daemon/store/space.h"
#include "daemon/store/store.h"
#include "part.h"
#include "share.h"

/* --- the run queue --- */

void walk_push(struct list *ready, struct walker *w)
{
	if (!list_has(&w->ready))
		list_add(ready, &w->ready);
}

bool walk_run(struct list *ready, uint32_t max, void (*run)(struct walker *w))
{
	const bool any = !list_empty(ready);

	for (; max > 0 && !list_empty(ready); max--) {
		struct walker *w = container_of(ready->next, struct walker, ready);

		list_remove(&w->ready);
		run(w);
	}
	return any;
}

void walk_wake(struct walker *w)
{
	w->wait = 0;
	list_remove(&w->full);
	walk_push(&w->all->ready, w);
}

/* --- the device --- */

void walk_wake_full(void *arg, struct device *device)
{
	struct ops *all = arg;

	(void)device; /* walkers that wait for another device are refused again */
	while (!list_empty(&all->full))
		walk_wake(container_of(all->full.next, struct walker, full));
}

enum step walk_job(struct walker *w, struct device *device, enum device_job_kind kind,
		   enum step next)
{
	int r;

	w->job.kind = kind;
	w->job.client = w->part->op->client->peer->number;
	r = device_submit(device, &w->job);
	if (r == -EAGAIN) {
		list_add(&w->all->full, &w->full);
		return WAIT_JOBS_FULL;
	}
	assert(r == 0);
	w->step = next;
	return WAIT_JOB;
}

void walk_job_done(struct device_job *job)
{
	walk_wake(container_of(job, struct walker, job));
}

/* --- its image --- */

struct space *walk_space(const struct walker *w)
{
	return w->part->op->mount->space;
}

uint32_t walk_image_bytes(const struct walker *w, uint8_t codec)
{
	const struct space *space = walk_space(w);

	return space->variant_bytes[space_variant(space, (enum image_codec)codec)];
}

int walk_enter(struct walker *w, uint32_t parent, uint32_t *ret)
{
	const int r = copies_enter(w->all->store, walk_space(w), w->job.identity.key,
				   (enum image_codec)w->job.codec_k, &w->where, parent,
				   share_guaranteed(w->all), ret);

	w->placed = r != 0;
	return r;
}

void walk_unplace(struct walker *w)
{
	if (w->placed)
		extents_free(w->all->store, &w->where);
	w->placed = false;
}

/* --- a part's --- */

bool walk_is_first(const struct walker *w)
{
	return w->part->op->parts.next == &w->part->link;
}

bool walk_is_useless(const struct walker *w)
{
	const struct part *part = w->part;

	return w->source == SOURCE_REDIS && part->op->sqe.op == WIRE_OP_PREFETCH &&
	       part->at > part->op->remote_end;
}

/* The client has not allocated all of the page. */
static void note_sparse(const struct walker *w)
{
	const struct op *op = w->part->op;
	struct stats_values *v = &w->all->store->stats->v;

	op->client->sparse_blocks++;
	stats_add(op->sqe.op == WIRE_OP_STORE ? &v->store_sparse_blocks_total :
						&v->load_sparse_blocks_total,
		  1);
	log_limited(
		&w->all->log, loop_now(w->all->loop), LOG_LEVEL_WARNING,
		"client %u (pid %ld, \"%s\"): page %llu is not allocated, and the daemon does not "
		"do that for it: libkvtier touches pages before it lends them, another client must,"
		" and may punch no hole into them",
		op->client->id, (long)op->client->pid, op->client->name,
		(unsigned long long)w->job.page);
}

int walk_stopped(const struct walker *w)
{
	const int error = w->job.status, early = w->part->op->early;

	if (error == -EFAULT)
		note_sparse(w);
	if (error == -ECANCELED)
		return early ? early : -ECONNRESET; /* cancelled by us, or given up */
	return error == -EFAULT || error == -ETIMEDOUT || error == -EIO ? error : 0;
}
