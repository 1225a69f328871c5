/* SPDX-License-Identifier: Apache-2.0 */
/*
 * groups.c - a load with layer groups. See groups.h, and wire.h for the words.
 *
 *	begun:	block 0, 1, 2 ... n-1 for group 0, then block 0, 1, 2 ... for group 1, and so on
 *
 * Each time a block is looked up, pinned and served as in any load, but only one group's layers go
 * into its page. So a load of any length needs no more parts, pins and jobs at once than another,
 * and its first group is there when a share of all bytes has moved. A block that is evicted between
 * two groups is brought again, or missed; after its first error nothing more is done for it.
 *
 * Invariants
 *   G1 a word says that a group is there when the device has completed the jobs of all blocks for
 *      it and for the groups before it. It is raised with release.
 *   G2 words are 0 again (in the ring), or let go of everybody (on a device), before the op's cqe.
 */
#include "groups.h"

#include <string.h>

#include "daemon/device/device.h"
#include "daemon/shared/client.h"
#include "daemon/store/space.h"
#include "part.h"

static bool grouped(const struct op *op)
{
	return op->sqe.op == WIRE_OP_LOAD && op->sqe.groups > 0;
}

/* Nobody knows which layers typed and opaque bytes belong to: with them it is all or nothing. */
static bool has_more_than_planes(const struct op *op)
{
	const struct image_geometry *g = &op->mount->space->geometry;

	return g->typed_segments > 0 || g->opaque_bytes > 0;
}

uint32_t groups_start(struct op *op)
{
	if (!grouped(op))
		return op->sqe.n;
	op->groups.landed = op->all->landed_pool[op - op->all->op_pool];
	memset(op->groups.landed, 0, op->sqe.groups * sizeof(*op->groups.landed));
	for (uint32_t i = 0; i < op->sqe.n; i++)
		ring_set_status(&op->client->ring, op->sqe.first + i, 0);
	return op->sqe.n * op->sqe.groups;
}

bool groups_are_last(const struct op *op, uint32_t group)
{
	return !grouped(op) || group + 1u == op->sqe.groups;
}

void groups_begin(const struct op *op, uint32_t group, struct device_job *job)
{
	const uint32_t layers = op->mount->space->geometry.layers, n = op->sqe.groups;

	if (!grouped(op))
		return;
	job->first_layer = (uint16_t)wire_group_layer(layers, n, group);
	job->end_layer = (uint16_t)wire_group_layer(layers, n, group + 1);
}

void groups_landed(struct op *op, uint32_t group)
{
	struct groups *g = &op->groups;
	const uint32_t before = g->there;

	if (!grouped(op))
		return;
	g->landed[group]++;
	while (g->there < op->sqe.groups && g->landed[g->there] == op->sqe.n)
		g->there++;
	if (g->there == before || op->abandoned)
		return;
	if (g->there < op->sqe.groups && has_more_than_planes(op))
		return;
	ring_set_layers(&op->client->ring, op->sqe.first, g->there);
	order_layers(op->order, &op->sqe, g->there);
}

int groups_status(const struct op *op, uint32_t at)
{
	return grouped(op) ? ring_status(&op->client->ring, op->sqe.first + at) : 0;
}

void groups_end(struct op *op)
{
	if (grouped(op))
		ring_set_layers(&op->client->ring, op->sqe.first, 0);
}
