/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_view.c - what the I/O thread shows the core thread. Flags, slots and the tier's state are atomics, written at
 * each change, read before each submit. Rows and counters are copied under a lock, ten times a second.
 *
 * I/O thread only; the readers are in redis.c.
 */
#include <stdio.h>
#include <string.h>

#include "redis_inner.h"

struct tally {
	uint32_t all, usable, stores, starting, refused;
};

/* Whether it is one of those that have a share of the keys. */
static bool counts(const struct redis_node *node)
{
	return node->used && node->listed;
}

static bool takes_stores(const struct redis_node *node)
{
	return redis_node_usable(node) && redis_breaker_takes_stores(&node->breaker, loop_now(node->io->loop));
}

static enum tier_state node_state(const struct redis_node *node)
{
	if (node->breaker.state != REDIS_CLOSED)
		return node->breaker.misconfigured ? TIER_MISCONFIGURED : TIER_OFFLINE;
	if (!node->proven)
		return node->failed_ns ? TIER_OFFLINE : TIER_STARTING;
	return takes_stores(node) ? TIER_UP : TIER_READONLY;
}

static struct tally tally(const struct redis_io *io)
{
	struct tally t = { 0 };

	for (uint32_t i = 0; i < REDIS_ALL_NODES; i++) {
		const struct redis_node *node = &io->nodes[i];

		if (!counts(node))
			continue;
		t.all++;
		t.usable += redis_node_usable(node);
		t.stores += takes_stores(node);
		t.starting += node_state(node) == TIER_STARTING;
		t.refused += node_state(node) == TIER_MISCONFIGURED;
	}
	return t;
}

static enum tier_state tier_state_of(const struct redis_io *io)
{
	const struct tally t = tally(io);

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

	(void)pthread_mutex_lock(&mail->lock);
	mail->changed = true;
	(void)pthread_mutex_unlock(&mail->lock);
	redis_wake(mail->answered_fd);
}

void redis_view_flags(struct redis_io *io)
{
	struct redis_view *view = io->tier->view;
	const int state = (int)tier_state_of(io);
	bool changed = atomic_exchange(&view->state, state) != state;

	for (uint32_t i = 0; i < REDIS_ALL_NODES; i++) {
		const struct redis_node *node = &io->nodes[i];
		unsigned int flags = 0;

		if (node->used && redis_node_usable(node))
			flags = REDIS_TAKES_READS | (takes_stores(node) ? REDIS_TAKES_STORES : 0);
		changed |= atomic_exchange(&view->flags[i], flags) != flags;
	}
	changed |= atomic_exchange(&view->mode, (int)io->mode) != (int)io->mode;
	if (changed)
		tell_changed(io);
}

void redis_view_slots(struct redis_io *io)
{
	for (uint32_t i = 0; i < REDIS_SLOTS; i++)
		atomic_store_explicit(&io->tier->view->slot[i], io->topology.slot[i], memory_order_relaxed);
}

/* --- rows --- */

void redis_counters_add(struct redis_counters *sum, const struct redis_counters *c)
{
	sum->gets_total += c->gets_total;
	sum->hits_total += c->hits_total;
	sum->sets_total += c->sets_total;
	sum->probes_total += c->probes_total;
	sum->received_bytes_total += c->received_bytes_total;
	sum->sent_bytes_total += c->sent_bytes_total;
	sum->corrupt_total += c->corrupt_total;
	sum->forged_total += c->forged_total;
	sum->other_forms_total += c->other_forms_total;
	sum->deleted_total += c->deleted_total;
	sum->timeouts_total += c->timeouts_total;
	sum->resets_total += c->resets_total;
	sum->errors_total += c->errors_total;
	sum->refused_stores_total += c->refused_stores_total;
	sum->redirects_total += c->redirects_total;
	sum->refused_hosts_total += c->refused_hosts_total;
	sum->late_total += c->late_total;
	sum->protocol_errors_total += c->protocol_errors_total;
	sum->breaker_opens_total += c->breaker_opens_total;
	sum->reconnects_total += c->reconnects_total;
	sum->topology_total += c->topology_total;
}

/* When it will be tried again, or take stores again. */
static uint64_t retry_in_ms(const struct redis_node *node, enum tier_state state)
{
	const uint64_t now = loop_now(node->io->loop);
	uint64_t at = 0;

	if (state == TIER_READONLY)
		at = node->breaker.no_stores_until_ns;
	else if (node->breaker.state == REDIS_OPEN)
		at = node->breaker.until_ns;
	return at > now ? (at - now) / 1000000 : 0;
}

static void fill_row(const struct redis_node *node, struct redis_endpoint_row *row)
{
	memcpy(row->address, node->address, sizeof row->address);
	row->state = node_state(node);
	row->text[0] = 0;
	if (row->state != TIER_UP && row->state != TIER_STARTING)
		memcpy(row->text, node->text, sizeof row->text);
	row->slots = node->slots;
	row->connections = 0;
	row->tls[0] = 0;
	for (uint32_t i = 0; i < node->n_links; i++) {
		if (!redis_link_is_up(&node->links[i]))
			continue;
		row->connections++;
		(void)snprintf(row->tls, sizeof row->tls, "%s", redis_conn_tls(node->links[i].conn));
	}
	row->in_flight = node->in_flight + node->waiting.n;
	row->retry_in_ms = retry_in_ms(node, row->state);
	redis_node_counters(node, &row->counters);
}

static void fill_status(const struct redis_io *io, const struct redis_view *view, struct redis_tier_status *ret)
{
	const struct tally t = tally(io);

	*ret = (struct redis_tier_status){ .cluster = io->mode == REDIS_MODE_CLUSTER, .endpoints = t.all,
					   .usable = t.usable, .counters = io->gone };
	for (uint32_t i = 0; i < REDIS_ALL_NODES; i++) {
		struct redis_counters counters;

		if (!io->nodes[i].used)
			continue;
		redis_node_counters(&io->nodes[i], &counters);
		redis_counters_add(&ret->counters, &counters);
	}
	for (uint32_t i = 0; i < view->n_rows && !ret->text[0]; i++)
		if (view->rows[i].text[0])
			(void)snprintf(ret->text, sizeof ret->text, "%s: %s", view->rows[i].address,
				       view->rows[i].text);
	if (io->mode == REDIS_MODE_UNKNOWN && !ret->text[0])
		(void)snprintf(ret->text, sizeof ret->text, "%s", io->topology.text);
}

void redis_view_rows(struct redis_io *io)
{
	struct redis_view *view = io->tier->view;

	(void)pthread_mutex_lock(&view->lock);
	view->n_rows = 0;
	for (uint32_t i = 0; i < REDIS_ALL_NODES; i++)
		if (counts(&io->nodes[i]))
			fill_row(&io->nodes[i], &view->rows[view->n_rows++]);
	fill_status(io, view, &view->status);
	(void)pthread_mutex_unlock(&view->lock);
}
