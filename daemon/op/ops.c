/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ops.c - see ops.h. The memory reserved here is all that ops, parts and flights ever use (O3 of
 * op.c): a pool is a list of the free ones, and of ops the first one that never was used.
 */
#include "ops.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "daemon/config/config.h"
#include "daemon/device/devices.h"
#include "daemon/shared/client.h"
#include "part.h"
#include "share.h"
#include "trace.h"
#include "turn.h"

int ops_open(struct store *store, struct loop *loop, struct devices *devices,
	     const struct config *config, struct ops **ret)
{
	const uint32_t max_ops = config->socket_max_clients * config->socket_ring_entries,
		       parts = devices_depth(devices);
	struct ops *all = calloc(1, sizeof(*all));

	if (!all)
		return -ENOMEM;
	*all = (struct ops){
		.store = store,
		.loop = loop,
		.devices = devices,
		.config = config,
		.max_ops = max_ops,
		.n_parts = parts,
		.n_free_parts = parts,
		.op_pool = calloc(max_ops, sizeof(*all->op_pool)),
		.landed_pool = calloc(max_ops, sizeof(*all->landed_pool)),
		.part_pool = calloc(parts, sizeof(*all->part_pool)),
	};
	list_open(&all->ready);
	list_open(&all->full);
	list_open(&all->free_parts);
	list_open(&all->room.waiters);
	turn_open(all);
	if (!all->op_pool || !all->landed_pool || !all->part_pool || shares_open(&all->shares) ||
	    flights_open(&all->flights, parts) || grow_open(&all->grow) ||
	    traces_open(max_ops, &all->traces)) {
		ops_close(all);
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < parts; i++)
		list_add(&all->free_parts, &all->part_pool[i].link);
	devices_on_room(devices, walk_wake_full, all);
	*ret = all;
	return 0;
}

void ops_close(struct ops *all)
{
	if (!all)
		return;
	assert(all->outstanding == 0);
	traces_close(all->traces);
	flights_close(&all->flights);
	grow_close(&all->grow);
	shares_close(all->shares);
	free(all->op_pool);
	free(all->landed_pool);
	free(all->part_pool);
	free(all);
}

uint32_t ops_outstanding(const struct ops *all)
{
	return all ? all->outstanding : 0;
}

uint64_t ops_pages(const struct client *client)
{
	uint64_t pages = 0;

	for (const struct op *op = client->ops; op; op = op->next)
		if (op->sqe.op == WIRE_OP_STORE || op->sqe.op == WIRE_OP_LOAD)
			pages += op->abandoned && op->total - op->settled < op->sqe.n ?
					 op->total - op->settled :
					 op->sqe.n;
	return pages;
}
