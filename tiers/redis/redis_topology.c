/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_topology.c - which endpoint has a key: by rendezvous over the configured endpoints, or by a
 * Cluster's slot map. Contract: redis_topology.h. I/O thread only.
 *
 *	UNKNOWN ──a map──> CLUSTER
 *	   └──an error──> SPREAD ──MOVED, a map (asked for after 30 s)──> CLUSTER
 *
 * The map is asked for at the start, and again when an endpoint said MOVED or went away, or as long
 * as slots have no endpoint; at most once a second.
 *
 * In a Cluster the configured endpoints are seeds: they are asked while no endpoint of the map is
 * usable, and else left alone unless they are in the map. Endpoints that have no slots any more are
 * closed when all that was on its way to them has ended.
 *
 * A redirect is followed if it names an endpoint of the map, replicas included, or a configured
 * one. Then it is believed: for this job and, if it is a MOVED, for its slot until the next map.
 * Any other redirect is not followed: the map is asked for again, and the job waits for it a
 * little. An endpoint of the map that redis_hosts.h keeps out is not connected to
 * (redis_endpoint.c). Otherwise one endpoint that lies could have the password sent to any host.
 */
#include "redis_topology.h"

#include <assert.h>
#include <errno.h>
#include <hiredis/hiredis.h>
#include <stdio.h>
#include <string.h>

#include "base/list.h"
#include "base/log.h"
#include "redis_endpoint.h"
#include "redis_io.h"
#include "tiers/redis/conn/redis_address.h"

enum {
	NAMED_MS = 5000,
	HOPS = 5,
	DELAY_MS = 50,
	ASK_MS = 1000,
	ASK_REFUSED_MS = 30000,
	REFUSED_MS = 60000
};

static uint8_t number_of(const struct redis_endpoint *endpoint)
{
	return (uint8_t)(endpoint - endpoint->io->endpoints);
}

/* --- endpoints --- */

static bool disposable(const struct redis_endpoint *endpoint)
{
	return endpoint->used && !endpoint->seed && !endpoint->listed &&
	       redis_endpoint_idle(endpoint) &&
	       loop_now(endpoint->io->loop) >=
		       endpoint->named_ns + NAMED_MS * 1000000ull; /* a map will tell by then */
}

static struct redis_endpoint *find(struct redis_io *io, const char *address)
{
	for (uint32_t i = 0; i < REDIS_ALL_ENDPOINTS; i++)
		if (io->endpoints[i].used && strcmp(io->endpoints[i].address, address) == 0)
			return &io->endpoints[i];
	return NULL;
}

/* NULL: it is no address, or there are too many. No endpoint is closed: this may run inside a
 * callback of a connection. */
static struct redis_endpoint *find_or_open(struct redis_io *io, const char *address)
{
	struct redis_endpoint *endpoint = find(io, address);

	for (uint32_t i = 0; !endpoint && i < REDIS_ALL_ENDPOINTS && redis_address_valid(address);
	     i++)
		if (!io->endpoints[i].used) {
			endpoint = &io->endpoints[i];
			redis_endpoint_open(endpoint, io, address);
		}
	return endpoint;
}

/* --- the map --- */

static void take_over(struct redis_io *io, const struct redis_map *map)
{
	uint8_t number[REDIS_MAP_ENDPOINTS];

	memset(number, REDIS_NO_ENDPOINT, sizeof(number));
	for (uint32_t i = 0; i < REDIS_ALL_ENDPOINTS; i++) {
		io->endpoints[i].listed = false;
		io->endpoints[i].slots = 0;
	}
	for (uint32_t i = 0; i < map->n_endpoints; i++) {
		struct redis_endpoint *endpoint = find_or_open(io, map->address[i]);

		number[i] = endpoint ? number_of(endpoint) : REDIS_NO_ENDPOINT;
		if (endpoint) {
			endpoint->listed = true;
			endpoint->slots = map->slots[i];
			redis_io_kick(endpoint);
		}
	}
	memcpy(io->topology.replica, map->replica, sizeof(map->replica));
	io->topology.n_replicas = map->n_replicas;
	io->topology.holes = false;
	for (uint32_t i = 0; i < REDIS_SLOTS; i++) {
		io->topology.slot[i] = map->endpoint[i] == REDIS_NO_ENDPOINT ?
					       REDIS_NO_ENDPOINT :
					       number[map->endpoint[i]];
		io->topology.holes |= io->topology.slot[i] == REDIS_NO_ENDPOINT;
	}
	io->topology.wanted = false;
	io->topology.text[0] = 0;
	io->mode = REDIS_MODE_CLUSTER;
	io->gone.topology_total++;
	io->changed = io->slots_changed = true;
}

/* An endpoint that was asked says that there is no Cluster. */
static void no_cluster(struct redis_io *io)
{
	io->topology.wanted = false;
	if (io->mode == REDIS_MODE_CLUSTER)
		return; /* there is one: this endpoint has left it */
	io->mode = REDIS_MODE_SPREAD;
	io->changed = true;
}

static const char *why_no_map(int error)
{
	if (error == -ENOENT)
		return "no slot of the Cluster has an endpoint";
	return error == -E2BIG ? "the Cluster has too many endpoints" :
				 "the answer to CLUSTER SLOTS makes no sense";
}

static void take_map(struct redis_io *io, const struct redis_endpoint *endpoint,
		     const struct redisReply *reply)
{
	const int r =
		redis_map_parse(reply, redis_endpoint_itself(endpoint), &io->topology.scratch);

	if (!r)
		take_over(io, &io->topology.scratch);
	else
		(void)snprintf(io->topology.text, sizeof(io->topology.text), "%s: %s",
			       endpoint->address, why_no_map(r));
}

static void map_refused(struct redis_io *io, struct redis_endpoint *endpoint, const char *words)
{
	const enum redis_verdict verdict = redis_verdict(words);

	/* A user without the right to CLUSTER SLOTS: kvtierd assumes that there is no Cluster. */
	if (verdict == REDIS_SAYS_NOT_NOW ||
	    (verdict == REDIS_SAYS_NOT_YOU && strncmp(words, "NOPERM", 6) != 0))
		redis_endpoint_verdict(endpoint, verdict, false, words);
	else
		no_cluster(io);
}

static void map_came(struct redis_command *c)
{
	struct redis_endpoint *endpoint = redis_chore_of(c)->endpoint;
	struct redis_io *io = endpoint->io;

	io->topology.asking = false;
	if (c->status == -EREMOTEIO)
		map_refused(io, endpoint, c->error);
	else if (c->status)
		redis_endpoint_failed(endpoint, redis_endpoint_why(c));
	else if (c->reply && c->reply->type == REDIS_REPLY_ARRAY)
		take_map(io, endpoint, c->reply);
	else
		no_cluster(io);
	redis_chore_give(redis_chore_of(c));
}

static bool due(const struct redis_io *io)
{
	const struct redis_topology *t = &io->topology;
	const uint32_t wait_ms = io->mode == REDIS_MODE_SPREAD ? ASK_REFUSED_MS : ASK_MS;

	if (t->asking || (io->mode != REDIS_MODE_UNKNOWN && !t->wanted))
		return false;
	return t->asked_ns == 0 || loop_now(io->loop) >= t->asked_ns + wait_ms * 1000000ull;
}

static bool ask(struct redis_endpoint *endpoint)
{
	struct redis_chore *chore =
		redis_endpoint_usable(endpoint) ? redis_chore_take(endpoint, map_came) : NULL;

	if (!chore)
		return false;
	redis_command_make(&chore->command, (const char *const[]){ "CLUSTER", "SLOTS", NULL });
	return redis_endpoint_send(endpoint, chore) == 0;
}

static void ask_next(struct redis_io *io)
{
	struct redis_topology *t = &io->topology;

	for (uint32_t i = 0; i < REDIS_ALL_ENDPOINTS && due(io); i++) {
		t->next = (t->next + 1) % REDIS_ALL_ENDPOINTS;
		t->asking = io->endpoints[t->next].used && ask(&io->endpoints[t->next]);
		if (t->asking)
			t->asked_ns = loop_now(io->loop);
	}
}

/* --- time --- */

void redis_topology_tick(struct redis_io *io)
{
	for (uint32_t i = 0; i < REDIS_ALL_ENDPOINTS; i++) {
		struct redis_endpoint *endpoint = &io->endpoints[i];

		if (disposable(endpoint))
			redis_endpoint_close(endpoint);
		else if (endpoint->used)
			redis_endpoint_poll(endpoint);
		if (endpoint->used && endpoint->listed && !redis_endpoint_usable(endpoint) &&
		    io->mode == REDIS_MODE_CLUSTER)
			io->topology.wanted = true; /* its replica may have taken over */
	}
	/* A key whose slot has no endpoint brings no job here, and so no -MOVED. */
	io->topology.wanted |= io->mode == REDIS_MODE_CLUSTER && io->topology.holes;
	ask_next(io);
}

static void on_due(struct loop_timer *timer)
{
	ask_next(container_of(timer, struct redis_io, topology.due));
}

/* The hosts that are known before any name is looked up; redis_endpoint.c adds addresses. */
static void let_in_endpoints(struct redis_io *io)
{
	const struct redis_setup *setup = io->setup;

	memset(&io->hosts, 0, sizeof(io->hosts));
	if (setup->cluster_hosts)
		/* the configuration was checked */
		(void)redis_hosts_parse(setup->cluster_hosts, &io->hosts);
	for (uint32_t i = 0; i < setup->n_endpoints; i++) {
		char host[REDIS_ADDRESS_BYTES];

		redis_address_host(setup->endpoint[i], host);
		redis_hosts_add_name(&io->hosts, host);
		if (setup->cluster_hosts)
			continue;
		redis_hosts_add_near(&io->hosts, host[0] ? host : "127.0.0.1");
		if (!host[0]) /* a Unix socket */
			redis_hosts_add_near(&io->hosts, "::1");
	}
}

void redis_topology_close(struct redis_io *io)
{
	for (uint32_t i = 0; i < REDIS_ALL_ENDPOINTS; i++)
		if (io->endpoints[i].used)
			redis_endpoint_close(&io->endpoints[i]);
	loop_timer_unset(io->loop, &io->topology.due);
}

void redis_topology_start(struct redis_io *io)
{
	let_in_endpoints(io);
	memset(&io->topology, 0, sizeof(io->topology));
	io->topology.due.fire = on_due;
	memset(io->topology.slot, REDIS_NO_ENDPOINT, sizeof(io->topology.slot));
	io->mode = REDIS_MODE_UNKNOWN;
	io->changed = io->slots_changed = true;
	for (uint32_t i = 0; i < io->setup->n_endpoints; i++) {
		redis_endpoint_open(&io->endpoints[i], io, io->setup->endpoint[i]);
		io->endpoints[i].seed = io->endpoints[i].listed = true;
	}
}

/* --- a job's way --- */

struct redis_endpoint *redis_topology_find(struct redis_io *io, const struct redis_name *name)
{
	uint32_t number;

	if (io->mode == REDIS_MODE_UNKNOWN)
		return NULL;
	if (io->mode == REDIS_MODE_CLUSTER)
		number = io->topology.slot[name->slot];
	else
		number = redis_setup_endpoint(io->setup, name->key);
	return number < REDIS_ALL_ENDPOINTS && io->endpoints[number].used ? &io->endpoints[number] :
									    NULL;
}

void redis_topology_route(struct redis_io *io, struct redis_job *job)
{
	struct redis_endpoint *endpoint = redis_topology_find(io, &job->name);

	if (endpoint) {
		redis_endpoint_submit(endpoint, job);
		return;
	}
	io->topology.wanted = true;
	redis_job_end(io, job, -ENODEV);
}

/* DELAYED, and its deadline has come. */
static void gave_up(struct redis_job *job)
{
	const char *words = job->command.error;

	/* The Cluster is down for longer than a job lasts: the next jobs need not wait for it. */
	if (job->endpoint->used && redis_slots_pass(words))
		redis_endpoint_verdict(job->endpoint, redis_verdict(words), false, words);
	if (job->op == XFER_WRITE)
		redis_endpoint_untaken(job->endpoint, true, words);
	redis_job_end(job->endpoint->io, job, -ETIMEDOUT);
}

static void on_delay_over(struct loop_timer *timer)
{
	struct redis_job *job = container_of(timer, struct redis_job, timer);
	struct redis_io *io = job->endpoint->io;

	assert(job->phase == REDIS_DELAYED);
	if (loop_now(io->loop) >= job->deadline_ns)
		gave_up(job);
	else
		redis_topology_route(io, job);
}

void redis_topology_delay(struct redis_io *io, struct redis_job *job)
{
	uint64_t due = loop_now(io->loop) + (uint64_t)DELAY_MS * 1000000;

	assert(job->endpoint);
	if (due > job->deadline_ns)
		due = job->deadline_ns;
	job->phase = REDIS_DELAYED;
	job->timer.fire = on_delay_over;
	loop_timer_set(io->loop, &job->timer, due);
}

/* NULL: a redirect may not name it, or there is no place for one more. */
static struct redis_endpoint *of_the_map(struct redis_io *io, const char *address)
{
	struct redis_endpoint *endpoint = find(io, address);

	if (endpoint && (endpoint->listed || endpoint->seed))
		return endpoint;
	for (uint32_t i = 0; i < io->topology.n_replicas && io->mode == REDIS_MODE_CLUSTER; i++)
		if (strcmp(io->topology.replica[i], address) == 0)
			return find_or_open(io, address);
	return NULL;
}

static void redirected_in_vain(struct redis_io *io, struct redis_job *job)
{
	job->endpoint->counters.errors_total++;
	if (job->op == XFER_WRITE)
		redis_endpoint_untaken(job->endpoint, true, job->command.error);
	redis_job_end(io, job, -EREMOTEIO);
}

/* It names an endpoint that no map has. */
static void not_followed(struct redis_io *io, struct redis_job *job, const char *address)
{
	job->endpoint->counters.refused_hosts_total++;
	io->topology.wanted = true;
	if (!io->refused_ns || loop_now(io->loop) >= io->refused_ns + REFUSED_MS * 1000000ull) {
		io->refused_ns = loop_now(io->loop);
		log_warning("redis_redirect",
			    "Redis at %s redirects to %s, which is neither in the slot map nor in "
			    "[redis] endpoints: not followed",
			    job->endpoint->address, address);
	}
	if (io->mode == REDIS_MODE_CLUSTER && job->hops <= HOPS &&
	    loop_now(io->loop) < job->deadline_ns) {
		ask_next(io);
		redis_topology_delay(io, job);
		return;
	}
	redirected_in_vain(io, job);
}

bool redis_topology_redirected(struct redis_io *io, struct redis_job *job, const char *words)
{
	char address[REDIS_ADDRESS_BYTES];
	struct redis_endpoint *endpoint;
	enum redis_redirect kind;
	uint32_t slot;

	kind = redis_redirect_parse(words, redis_endpoint_itself(job->endpoint), &slot, address);
	if (kind == REDIS_REDIRECT_NONE || slot != job->name.slot)
		return false;
	job->endpoint->counters.redirects_total++;
	redis_endpoint_answered(job->endpoint);
	job->hops++;
	endpoint = of_the_map(io, address);
	if (!endpoint) {
		not_followed(io, job, address);
		return true;
	}
	if (job->hops > HOPS) {
		redirected_in_vain(io, job);
		return true;
	}
	if (kind == REDIS_REDIRECT_MOVED) {
		io->topology.wanted = true;
		io->topology.slot[slot] = number_of(endpoint);
		atomic_store_explicit(&io->tier->view->slot[slot], number_of(endpoint),
				      memory_order_relaxed);
	}
	endpoint->named_ns = loop_now(io->loop);
	job->asking = kind == REDIS_REDIRECT_ASK;
	redis_endpoint_submit(endpoint, job);
	return true;
}
