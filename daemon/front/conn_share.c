/* SPDX-License-Identifier: Apache-2.0 */
/* conn_share.c - see conn_share.h. */
#include "conn_share.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "daemon/base/socket.h"
#include "daemon/config/config.h"
#include "daemon/kvtierd.h"
#include "packet.h"

static void count_regions(const struct mount *mount, struct intake_share *ret)
{
	ret->bytes += mount->region_bytes;
	ret->regions += mount->n_regions;
	ret->parts += mount->n_parts;
}

void conn_share(const struct conn *c, struct intake_share *ret)
{
	const uint32_t clients = c->front->d->config->socket_max_clients;

	*ret = (struct intake_share){
		.max_bytes = INTAKE_MAX_BYTES / clients,
		.max_regions = INTAKE_MAX_REGIONS / clients,
		.max_parts = INTAKE_MAX_PARTS / clients,
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

bool conn_has_void(const struct conn *c, const struct device *device)
{
	const struct order *order = order_find(c->client.orders, device);

	for (uint32_t i = 0; i < WIRE_MAX_SPACES; i++)
		if (c->client.mounts[i] && c->client.mounts[i]->device == device &&
		    mount_is_void(c->client.mounts[i]))
			return true;
	return order && device_events_void(&order->events);
}

bool conn_uses_gpu(const struct conn *c)
{
	const struct devices *devices = &c->front->d->devices;

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
	if (device_events_void(&order->events)) {
		snprintf(text, n, "order.device: the GPU failed meanwhile, and comes back");
		return -EBUSY;
	}
	order->next = c->client.orders;
	c->client.orders = order;
	return 0;
}

/* Not the loop's: that one may be older than the client's HELLO. */
static uint64_t clock_now(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

int conn_answer_hello(struct conn *c, uint32_t seq)
{
	const struct kvtierd *d = c->front->d;
	struct ring *ring = &c->client.ring;
	struct wire_hello_ok ok = {
		.head = packet_head(WIRE_HELLO_OK, sizeof(ok), seq),
		.version = c->version,
		.connection = c->client.id,
		.sq_entries = ring->entries,
		.cq_entries = ring->entries,
		.arena_blocks = ring->arena_blocks,
		.spin_us = (uint32_t)d->config->daemon_spin_us,
		.submit_bytes = ring->submit_bytes,
		.complete_bytes = ring->complete_bytes,
		.index_bytes = index_bytes(d->store.index),
		.now_ns = clock_now(),
	};
	const int fds[4] = { ring->submit_fd, ring->complete_fd, index_fd(d->store.index),
			     c->front->self };
	int r;

	ok.gpu_mode =
		d->config->gpu_mode == CONFIG_GPU_MODE_ENGINE ? WIRE_GPU_ENGINE : WIRE_GPU_DAEMON;
	for (int t = 0; t < TIER_COUNT; t++)
		ok.tiers |= d->store.tiers[t] ? 1u << t : 0;
	snprintf(ok.daemon_version, sizeof(ok.daemon_version), "%s", KVTIER_VERSION);
	snprintf(ok.tenant, sizeof(ok.tenant), "%.31s", front_tenant(c->front));
	(void)socket_pass_fds(c->socket.fd, true);
	r = packet_send(c->socket.fd, &ok, sizeof(ok), fds, fds[3] >= 0 ? 4 : 3);
	if (r == 0)
		ring_close_fds(ring);
	return r;
}

/* --- spaces ---
 *
 * Half of [index] max_spaces is divided among [socket] max_clients, at least one for each. A
 * connection with less than this share open always gets one more. The other half goes to whichever
 * connection asks first.
 */

static uint32_t spaces_for_all(const struct conn *c)
{
	return c->front->d->config->index_max_spaces / 2;
}

static uint32_t space_share(const struct conn *c)
{
	const uint32_t share = spaces_for_all(c) / c->front->d->config->socket_max_clients;

	return share > 0 ? share : 1;
}

static uint32_t spaces_open_on(const struct conn *c)
{
	uint32_t ret = 0;

	for (uint32_t i = 0; i < WIRE_MAX_SPACES; i++)
		ret += c->client.mounts[i] != NULL;
	return ret;
}

void conn_put_mount(struct conn *c, struct mount *mount)
{
	assert(!c->client.mounts[mount->handle]);
	c->client.mounts[mount->handle] = mount;
	c->front->n_beyond += spaces_open_on(c) > space_share(c);
}

struct mount *conn_take_mount(struct conn *c, uint32_t handle)
{
	struct mount *mount = c->client.mounts[handle];

	if (!mount)
		return NULL;
	c->front->n_beyond -= spaces_open_on(c) > space_share(c);
	c->client.mounts[handle] = NULL;
	return mount;
}

static int check_share(const struct conn *c, char *text, size_t n)
{
	const struct config *config = c->front->d->config;
	const uint32_t open = spaces_open_on(c);

	if (open < space_share(c) || c->front->n_beyond < spaces_for_all(c))
		return 0;
	snprintf(text, n,
		 "%u spaces are open on this connection; with [index] max_spaces = %u and [socket] "
		 "max_clients = %u it can be sure of %u, and the rest is in use",
		 open, config->index_max_spaces, config->socket_max_clients, space_share(c));
	return -ENOSPC;
}

int conn_free_handle(const struct conn *c, uint32_t *ret, char *text, size_t n)
{
	if (check_share(c, text, n))
		return -ENOSPC;
	for (uint32_t i = 0; i < WIRE_MAX_SPACES; i++)
		if (!c->client.mounts[i]) {
			*ret = i;
			return 0;
		}
	snprintf(text, n, "%d spaces are open on this connection, the most there can be",
		 WIRE_MAX_SPACES);
	return -ENOSPC;
}

void conn_fill_ok(const struct conn *c, const struct mount *mount, struct wire_space_ok *ret)
{
	ret->space = mount->handle;
	ret->codec = (uint32_t)mount->space->codec;
	ret->pages = mount->pages;
	ret->image_bytes = mount->space->shape.image_bytes;
	ret->logical_bytes = mount->space->shape.logical_bytes;
	memcpy(ret->space_id, mount->space->id, sizeof(ret->space_id));
	space_salt(c->front->d->store.spaces, mount->space, ret->salt);
	memcpy(ret->index_key, mount->space->index_key, sizeof(ret->index_key));
	ret->gpus = mount->device->unit == DEVICE_NO_UNIT ? 0 : wire_gpu_bit(mount->device->unit);
	if (mount->layout.image_stride > 0) {
		ret->max_ctas = c->front->d->config->gpu_max_ctas;
		if (ret->max_ctas == CONFIG_COUNT_AUTO)
			ret->max_ctas = DEVICE_CTAS_SHARED;
		ret->engine_bytes = mount->regions[0].made_bytes;
	}
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

void conn_count_lookups(struct conn *c)
{
	struct stats_values *v = &c->front->d->stats->v;
	uint64_t blocks, hits;

	ring_sample_lookups(&c->client.ring, &blocks, &hits);
	stats_add(&v->lookup_requested_blocks_total, blocks);
	stats_add(&v->lookup_hit_blocks_total, hits);
}

void conn_refused(struct conn *c, const char *why)
{
	struct refusal refusal = {
		.at_ns = loop_now(c->front->d->loop),
		.pid = c->client.pid,
		.uid = c->uid,
		.version_min = c->version_min,
		.version_max = c->version_max,
	};

	snprintf(refusal.name, sizeof(refusal.name), "%s", c->client.name);
	snprintf(refusal.why, sizeof(refusal.why), "%s", why);
	refusals_add(&c->front->refusals, &refusal);
}

void conn_send_wake(struct conn *c)
{
	const struct wire_head wake = packet_head(WIRE_WAKE, sizeof(wake), 0);

	/* When it does not fit, unread packets lie there already, and the client's descriptor is
	 * readable. */
	c->client.wake = false;
	(void)packet_send(c->socket.fd, &wake, sizeof(wake), NULL, 0);
}
