/* SPDX-License-Identifier: Apache-2.0 */
/* grow.c - see grow.h. Core thread only. */
#include "grow.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "daemon/base/container_of.h"
#include "daemon/device/device.h"
#include "daemon/shared/mount.h"
#include "daemon/store/space.h"
#include "part.h"

/* Blocks whose copies grow at once, of all ops: of more blocks no copy is left. */
enum { GROWING = 4096, BUCKETS = 1024 };

struct growing {
	struct list same; /* its bucket's; or the free ones */
	struct list link; /* its op's */
	const struct op *op;
	uint32_t at; /* position in the op */
	uint32_t layers_missing;
	uint32_t users; /* parts whose jobs write it */
	bool failed;    /* it goes with its last user */
	uint64_t checksum;
	struct gpu_slot slot;
};

int grow_open(struct grow *g)
{
	list_open(&g->free);
	g->pool = calloc(GROWING, sizeof(*g->pool));
	g->buckets = calloc(BUCKETS, sizeof(*g->buckets));
	if (!g->pool || !g->buckets)
		return -ENOMEM;
	for (uint32_t i = 0; i < BUCKETS; i++)
		list_open(&g->buckets[i]);
	for (uint32_t i = 0; i < GROWING; i++)
		list_add(&g->free, &g->pool[i].same);
	return 0;
}

void grow_close(struct grow *g)
{
	free(g->pool);
	free(g->buckets);
}

static struct list *bucket_of(const struct op *op, uint32_t at)
{
	const uint32_t number = (uint32_t)(op - op->all->op_pool);

	return &op->all->grow.buckets[(number * 61 + at) % BUCKETS];
}

static struct growing *find(const struct op *op, uint32_t at)
{
	struct list *bucket = bucket_of(op, at);

	for (struct list *i = bucket->next; i != bucket; i = i->next) {
		struct growing *g = container_of(i, struct growing, same);

		if (g->op == op && g->at == at)
			return g;
	}
	return NULL;
}

/* Its slot is not its own any more. */
static void put_back(struct growing *g)
{
	assert(g->users == 0);
	list_remove(&g->link);
	list_remove(&g->same);
	list_add(&g->op->all->grow.free, &g->same);
}

static void drop(struct growing *g)
{
	beside_give_back(g->op->all->store, &g->slot.where);
	put_back(g);
}

static void fail(struct growing *g)
{
	g->failed = true;
	if (g->users == 0)
		drop(g);
}

static uint64_t checksum_of(const struct device_job *job)
{
	return ((const struct image_header *)(const void *)job->image)->checksum;
}

/* NULL: there is no room, or the GPU has the block. */
static struct growing *begin(struct part *part, uint32_t bytes)
{
	struct op *op = part->op;
	struct grow *all = &op->all->grow;
	const struct device_job *job = &part->w.job;
	struct growing *g = container_of(all->free.next, struct growing, same);
	struct gpu_slot slot;

	if (list_empty(&all->free) ||
	    !near_take(op->all->store, op->mount, &part->near, bytes, job, &slot))
		return NULL;
	list_remove(&g->same);
	*g = (struct growing){ .op = op,
			       .at = part->at,
			       .layers_missing = op->mount->space->geometry.layers,
			       .checksum = checksum_of(job),
			       .slot = slot };
	list_add(bucket_of(op, part->at), &g->same);
	list_add(&op->growing, &g->link);
	return g;
}

void grow_join(struct part *part, uint32_t bytes)
{
	struct device_job *job = &part->w.job;
	struct growing *g;

	if (part->growing)
		return;
	job->image_memory = IMAGE_OF_HOST;
	job->keep = (struct device_keep){ 0 };
	job->kept = false;
	g = find(part->op, part->at);
	if (!g && part->group == 0)
		g = begin(part, bytes);
	if (!g || g->failed)
		return;
	if (g->checksum != checksum_of(job)) {
		fail(g);
		return;
	}
	part->growing = g;
	g->users++;
	job->keep = (struct device_keep){ .address = g->slot.address,
					  .generation = g->slot.generation,
					  .bytes = g->slot.bytes,
					  .scrub = g->slot.scrub };
}

void grow_leave(struct part *part)
{
	const struct device_job *job = &part->w.job;
	struct growing *g = part->growing;

	if (!g)
		return;
	assert(!job->in_flight);
	part->growing = NULL;
	g->users--;
	if (!job->kept || g->failed) {
		fail(g);
		return;
	}
	g->layers_missing -= (uint32_t)job->end_layer - job->first_layer;
	if (g->layers_missing > 0)
		return;
	near_give(part->op->all->store, part->op->mount->space, &g->slot.where, job);
	put_back(g);
}

void grow_end(struct op *op)
{
	while (!list_empty(&op->growing))
		drop(container_of(op->growing.next, struct growing, link));
}
