/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_view.c - facts that the I/O thread shows the core thread. Flags, slots and the tier's state
 * are atomics, written at each change, read before each submit. Rows and counters are copied under
 * a lock, ten times a second.
 *
 * I/O thread only; the readers are in redis.c.
 */
#include "redis_view.h"

#include <stdio.h>
#include <string.h>

#include "redis_endpoint.h"
#include "redis_health.h"
#include "redis_io.h"

struct redis_tally {
	uint32_t all, usable, stores, starting, refused;
};

/* Whether the endpoint has a share of the keys. */
static bool counts(const struct redis_endpoint *endpoint)
{
	return endpoint->used && endpoint->listed;
}

static bool may_store(const struct redis_endpoint *endpoint)
{
	return redis_health_usable(endpoint) &&
	       redis_breaker_may_store(&endpoint->breaker, loop_now(endpoint->io->loop));
}

static bool takes_stores(const struct redis_endpoint *endpoint)
{
	return redis_health_usable(endpoint) && redis_breaker_takes_stores(&endpoint->breaker);
}

static enum tier_state endpoint_state(const struct redis_endpoint *endpoint)
{
	if (endpoint->breaker.state != REDIS_CLOSED)
		return endpoint->breaker.misconfigured ? TIER_MISCONFIGURED : TIER_OFFLINE;
	if (!endpoint->proven)
		return endpoint->failed_ns ? TIER_OFFLINE : TIER_STARTING;
	return takes_stores(endpoint) ? TIER_UP : TIER_READONLY;
}

static struct redis_tally tally(const struct redis_io *io)
{
	struct redis_tally t = { 0 };

	for (uint32_t i = 0; i < REDIS_ALL_ENDPOINTS; i++) {
		const struct redis_endpoint *endpoint = &io->endpoints[i];

		if (!counts(endpoint))
			continue;
		t.all++;
		t.usable += redis_health_usable(endpoint);
		t.stores += takes_stores(endpoint);
		t.starting += endpoint_state(endpoint) == TIER_STARTING;
		t.refused += endpoint_state(endpoint) == TIER_MISCONFIGURED;
	}
	return t;
}

static enum tier_state tier_state_of(const struct redis_io *io)
{
	const struct redis_tally t = tally(io);

	if (io->topology.refused && io->mode == REDIS_MODE_UNKNOWN)
		return TIER_MISCONFIGURED;
	if (t.usable == 0 && t.refused > 0)
		return TIER_MISCONFIGURED;
	if (t.usable == 0)
		return t.starting == t.all ? TIER_STARTING : TIER_OFFLINE;
	if (io->mode == REDIS_MODE_UNKNOWN)
		return TIER_STARTING;
	if (t.stores == 0)
		return TIER_READONLY;
	return t.stores < t.all ? TIER_DEGRADED : TIER_UP;
}

static void tell_changed(struct redis_io *io)
{
	struct redis_mail *mail = &io->tier->mail;

	atomic_store(&mail->changed, true);
	mailbox_ring(&mail->answered);
}

void redis_view_flags(struct redis_io *io)
{
	struct redis_view *view = io->tier->view;
	const int state = (int)tier_state_of(io);
	bool changed = false;

	io->changed = false;
	for (uint32_t i = 0; i < REDIS_ALL_ENDPOINTS; i++) {
		const struct redis_endpoint *endpoint = &io->endpoints[i];
		unsigned int flags = 0;

		if (endpoint->used && redis_health_usable(endpoint))
			flags = REDIS_TAKES_READS | (may_store(endpoint) ? REDIS_MAY_STORE : 0);
		changed |= atomic_exchange(&view->flags[i], flags) != flags;
	}
	changed |= atomic_exchange(&view->mode, (int)io->mode) != (int)io->mode;
	/* Last: a reader of "up" finds an endpoint that takes its job. */
	changed |= atomic_exchange(&view->state, state) != state;
	if (changed)
		tell_changed(io);
}

void redis_view_slots(struct redis_io *io)
{
	for (uint32_t i = 0; i < REDIS_SLOTS; i++)
		atomic_store_explicit(&io->tier->view->slot[i], io->topology.slot[i],
				      memory_order_relaxed);
}

/* --- rows --- */

/* When it will be tried again, or take stores again. */
static uint64_t retry_in_ms(const struct redis_endpoint *endpoint, enum tier_state state)
{
	const uint64_t now = loop_now(endpoint->io->loop);
	uint64_t at = 0;

	if (state == TIER_READONLY)
		at = endpoint->breaker.no_stores_until_ns;
	else if (endpoint->breaker.state == REDIS_OPEN)
		at = endpoint->breaker.until_ns;
	return at > now ? (at - now) / 1000000 : 0;
}

static void fill_row(const struct redis_endpoint *endpoint, struct redis_endpoint_row *row)
{
	memcpy(row->address, endpoint->address, sizeof(row->address));
	row->state = endpoint_state(endpoint);
	row->text[0] = 0;
	if (row->state == TIER_READONLY)
		memcpy(row->text, endpoint->stores_text, sizeof(row->text));
	else if (row->state != TIER_UP && row->state != TIER_STARTING)
		memcpy(row->text, endpoint->text, sizeof(row->text));
	row->slots = endpoint->slots;
	row->connections = 0;
	row->tls[0] = 0;
	for (uint32_t i = 0; i < endpoint->n_links; i++) {
		if (!redis_link_is_up(&endpoint->links[i]))
			continue;
		row->connections++;
		(void)snprintf(row->tls, sizeof(row->tls), "%s",
			       redis_conn_tls(endpoint->links[i].conn));
	}
	row->in_flight = endpoint->in_flight + endpoint->waiting.n;
	row->retry_in_ms = retry_in_ms(endpoint, row->state);
	redis_endpoint_counters(endpoint, &row->counters);
}

static void fill_status(const struct redis_io *io, const struct redis_view *view,
			struct redis_tier_status *ret)
{
	const struct redis_tally t = tally(io);

	*ret = (struct redis_tier_status){
		.cluster = io->mode == REDIS_MODE_CLUSTER,
		.endpoints = t.all,
		.usable = t.usable,
		.counters = io->gone,
		.views = ret->views + 1,
	};
	for (uint32_t i = 0; i < REDIS_ALL_ENDPOINTS; i++) {
		struct redis_counters counters;

		if (!io->endpoints[i].used)
			continue;
		redis_endpoint_counters(&io->endpoints[i], &counters);
		redis_counters_add(&ret->counters, &counters);
	}
	for (uint32_t i = 0; i < view->n_rows && !ret->text[0]; i++)
		if (view->rows[i].text[0])
			(void)snprintf(ret->text, sizeof(ret->text), "%s: %s",
				       view->rows[i].address, view->rows[i].text);
	if (io->mode == REDIS_MODE_UNKNOWN && !ret->text[0])
		(void)snprintf(ret->text, sizeof(ret->text), "%s", io->topology.text);
}

void redis_view_rows(struct redis_io *io)
{
	struct redis_view *view = io->tier->view;

	(void)pthread_mutex_lock(&view->lock);
	view->n_rows = 0;
	for (uint32_t i = 0; i < REDIS_ALL_ENDPOINTS; i++)
		if (counts(&io->endpoints[i]))
			fill_row(&io->endpoints[i], &view->rows[view->n_rows++]);
	fill_status(io, view, &view->status);
	(void)pthread_mutex_unlock(&view->lock);
}
