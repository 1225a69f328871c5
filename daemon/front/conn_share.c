/* SPDX-License-Identifier: Apache-2.0 */
/* conn_share.c - what a connection has of the daemon and of its devices. See conn.h. */
#include "conn.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/config/config.h"
#include "daemon/kvtierd.h"
#include "daemon/op/op.h"
#include "server.h"

static void count_regions(const struct mount *mount, struct intake_share *ret)
{
	ret->bytes += mount->region_bytes;
	ret->regions += mount->n_regions;
}

void conn_share(const struct conn *c, struct intake_share *ret)
{
	const uint32_t clients = server_daemon(c->server)->config->socket_max_clients;

	*ret = (struct intake_share){
		.max_bytes = INTAKE_MAX_BYTES / clients,
		.max_regions = INTAKE_MAX_REGIONS / clients,
		.clients = clients,
		.waits = c->unwanted || c->leaving.list,
	};
	for (uint32_t i = 0; i < WIRE_MAX_SPACES; i++)
		if (c->client.mounts[i])
			count_regions(c->client.mounts[i], ret);
	for (const struct mount *mount = c->unwanted; mount; mount = mount->next)
		count_regions(mount, ret);
	for (const struct mount *mount = c->leaving.list; mount; mount = mount->next)
		count_regions(mount, ret);
}

bool conn_uses(const struct conn *c, const struct device *device)
{
	for (uint32_t i = 0; i < WIRE_MAX_SPACES; i++)
		if (c->client.mounts[i] && c->client.mounts[i]->device == device)
			return true;
	return order_find(c->client.orders, device) != NULL;
}

bool conn_uses_gpu(const struct conn *c)
{
	const struct devices *devices = &server_daemon(c->server)->devices;

	for (uint32_t i = 1; i < devices->n; i++)
		if (conn_uses(c, devices->all[i]))
			return true;
	return false;
}

int conn_take_order(struct conn *c, struct order *order, char *text, size_t n)
{
	if (order_find(c->client.orders, order->device)) {
		snprintf(text, n, "order.device: this connection has an ORDER for it already");
		return -EEXIST;
	}
	order->next = c->client.orders;
	c->client.orders = order;
	return 0;
}

bool conn_has_room(const struct conn *c, const struct wire_sqe *sqe, uint32_t completions)
{
	const struct ops *all = server_daemon(c->server)->ops;

	return sqe->op == WIRE_OP_CANCEL ||
	       (completions > 0 && ops_room(all) &&
		c->client.n_ops < ops_share(all, server_connections(c->server)));
}

void conn_fill_ok(const struct conn *c, const struct mount *mount, struct wire_space_ok *ret)
{
	ret->space = mount->handle;
	ret->codec = (uint32_t)mount->space->codec;
	ret->pages = mount->pages;
	ret->image_bytes = mount->space->shape.image_bytes;
	ret->logical_bytes = mount->space->shape.logical_bytes;
	memcpy(ret->space_id, mount->space->id, sizeof(ret->space_id));
	space_salt(server_daemon(c->server)->store.spaces, mount->space, ret->salt);
	memcpy(ret->index_key, mount->space->index_key, sizeof(ret->index_key));
}

void conn_give_up_orders(struct conn *c)
{
	while (c->client.orders) {
		struct order *order = c->client.orders;

		c->client.orders = order->next;
		order->next = c->unwanted_orders;
		c->unwanted_orders = order;
	}
}
