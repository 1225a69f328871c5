/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_topology.c - which server has a key: by rendezvous over the endpoints, or by a Cluster's slot map, which is
 * asked for at the start, and again, at most once a second, when a server said MOVED or went away, or as long as there
 * are slots that nobody has. I/O thread only.
 *
 *	cluster = no:    SPREAD
 *	cluster = auto:  UNKNOWN ──CLUSTER SLOTS: an error──> SPREAD ──MOVED: asked again after 30 s──> CLUSTER
 *	                    └──────a map──> CLUSTER
 *	cluster = yes:   UNKNOWN ──a map──> CLUSTER;  an error: misconfigured, asked again every 30 s
 *
 * In a Cluster the endpoints are seeds: asked while no server of the map is usable, else left alone unless they are in
 * the map themselves. Servers that have no slots any more are closed when nothing is on its way to them.
 *
 * A redirect is followed if it names a server of the map, replicas included, or an endpoint: then it is taken at
 * its word, for this job and, if it is a MOVED, for its slot, until the next map corrects it. Of any other it is
 * not followed: the map is asked for again, and the job waits for it a little. And of the map's servers none is
 * connected that redis_hosts.h keeps out (redis_link.c): else one server that lies could have the password sent to
 * whom it likes.
 */
#include <errno.h>
#include <hiredis/hiredis.h>
#include <stdio.h>
#include <string.h>

#include "daemon/base/log.h"
#include "redis_inner.h"

enum { NAMED_MS = 5000, HOPS = 5, ASK_MS = 1000, ASK_REFUSED_MS = 30000, REFUSED_MS = 60000 };

static uint8_t number_of(const struct redis_node *node)
{
	return (uint8_t)(node - node->io->nodes);
}

/* --- servers --- */

static bool disposable(const struct redis_node *node)
{
	return node->used && !node->seed && !node->listed && redis_node_idle(node) &&
	       loop_now(node->io->loop) >= node->named_ns + NAMED_MS * 1000000ull;	/* a map will tell by then */
}

static struct redis_node *find(struct redis_io *io, const char *address)
{
	for (uint32_t i = 0; i < REDIS_ALL_NODES; i++)
		if (io->nodes[i].used && strcmp(io->nodes[i].address, address) == 0)
			return &io->nodes[i];
	return NULL;
}

/* NULL: it is no address, or there are too many. Closes nothing: this may run inside a connection's callback. */
static struct redis_node *find_or_open(struct redis_io *io, const char *address)
{
	struct redis_node *node = find(io, address);

	for (uint32_t i = 0; !node && i < REDIS_ALL_NODES && redis_address_valid(address); i++)
		if (!io->nodes[i].used) {
			node = &io->nodes[i];
			redis_node_open(node, io, address);
		}
	return node;
}

/* --- the map --- */

static void take_over(struct redis_io *io, const struct redis_map *map)
{
	uint8_t number[REDIS_NODES];

	memset(number, REDIS_NO_NODE, sizeof number);
	for (uint32_t i = 0; i < REDIS_ALL_NODES; i++) {
		io->nodes[i].listed = false;
		io->nodes[i].slots = 0;
	}
	for (uint32_t i = 0; i < map->n_nodes; i++) {
		struct redis_node *node = find_or_open(io, map->address[i]);

		number[i] = node ? number_of(node) : REDIS_NO_NODE;
		if (node) {
			node->listed = true;
			node->slots = map->slots[i];
			redis_node_kick(node);
		}
	}
	memcpy(io->topology.replica, map->replica, sizeof map->replica);
	io->topology.n_replicas = map->n_replicas;
	io->topology.holes = false;
	for (uint32_t i = 0; i < REDIS_SLOTS; i++) {
		io->topology.slot[i] = map->node[i] == REDIS_NO_NODE ? REDIS_NO_NODE : number[map->node[i]];
		io->topology.holes |= io->topology.slot[i] == REDIS_NO_NODE;
	}
	io->topology.wanted = io->topology.refused = false;
	io->topology.text[0] = 0;
	io->mode = REDIS_MODE_CLUSTER;
	io->gone.topology_total++;
	redis_view_slots(io);
	redis_view_flags(io);
}

/* The first who was asked says that there is no Cluster. */
static void no_cluster(struct redis_io *io, const char *words)
{
	char shown[REDIS_TEXT_BYTES];

	io->topology.wanted = false;
	if (io->mode == REDIS_MODE_CLUSTER)
		return;	/* there was: this one has left it */
	if (io->tier->cluster == REDIS_CLUSTER_YES) {
		redis_words(io->tier, words, shown, sizeof shown);
		(void)snprintf(io->topology.text, sizeof io->topology.text,
			       "[redis] cluster = yes, but there is none: %.160s", shown);
		if (!io->topology.refused)
			log_warning("%s", io->topology.text);
		io->topology.refused = true;
	} else {
		io->mode = REDIS_MODE_SPREAD;
	}
	redis_view_flags(io);
}

static const char *why_no_map(int error)
{
	if (error == -ENOENT)
		return "no slot of the Cluster has a server";
	return error == -E2BIG ? "the Cluster has too many servers" : "the answer to CLUSTER SLOTS makes no sense";
}

static void take_map(struct redis_io *io, const struct redis_node *node, const struct redisReply *reply)
{
	const int r = redis_map_parse(reply, redis_node_itself(node), &io->topology.scratch);

	if (!r)
		take_over(io, &io->topology.scratch);
	else
		(void)snprintf(io->topology.text, sizeof io->topology.text, "%s: %s", node->address, why_no_map(r));
}

static void map_refused(struct redis_io *io, struct redis_node *node, const char *words)
{
	const enum redis_verdict verdict = redis_verdict(words, strlen(words));

	/* A user who may not CLUSTER SLOTS is one of a server alone, as far as can be known. */
	if (verdict == REDIS_SAYS_NOT_NOW || (verdict == REDIS_SAYS_NOT_YOU && strncmp(words, "NOPERM", 6) != 0))
		redis_node_verdict(node, verdict, false, words);
	else
		no_cluster(io, words);
}

static void map_came(struct redis_chore *chore)
{
	const struct redis_command *c = &chore->command;
	struct redis_node *node = chore->node;
	struct redis_io *io = node->io;

	io->topology.asking = false;
	if (c->status == -EREMOTEIO)
		map_refused(io, node, c->error);
	else if (c->status)
		redis_node_failed(node, redis_why(c));
	else if (c->reply && c->reply->type == REDIS_REPLY_ARRAY)
		take_map(io, node, c->reply);
	else
		no_cluster(io, "CLUSTER SLOTS is not answered by a list");
	redis_chore_give(io, chore);
}

static bool due(const struct redis_io *io)
{
	const struct redis_topology *t = &io->topology;
	const bool asked_in_vain = t->refused || io->mode == REDIS_MODE_SPREAD;
	const uint64_t wait_ns = (asked_in_vain ? ASK_REFUSED_MS : ASK_MS) * 1000000ull;

	if (t->asking || io->tier->cluster == REDIS_CLUSTER_NO)
		return false;
	if (io->mode != REDIS_MODE_UNKNOWN && !t->wanted)
		return false;
	return t->asked_ns == 0 || loop_now(io->loop) >= t->asked_ns + wait_ns;
}

static bool ask(struct redis_io *io, struct redis_node *node)
{
	static const char *const words[] = { "CLUSTER", "SLOTS" };
	struct redis_chore *chore = redis_node_usable(node) ? redis_chore_take(io) : NULL;

	if (!chore)
		return false;
	redis_command_words(&chore->command, words, 2);
	chore->done = map_came;
	if (redis_node_chore(node, chore)) {
		redis_chore_give(io, chore);
		return false;
	}
	return true;
}

void redis_topology_ask(struct redis_io *io)
{
	struct redis_topology *t = &io->topology;

	for (uint32_t i = 0; i < REDIS_ALL_NODES && due(io); i++) {
		t->next = (t->next + 1) % REDIS_ALL_NODES;
		t->asking = io->nodes[t->next].used && ask(io, &io->nodes[t->next]);
		if (t->asking)
			t->asked_ns = loop_now(io->loop);
	}
}

/* --- time --- */

void redis_topology_tick(struct redis_io *io)
{
	for (uint32_t i = 0; i < REDIS_ALL_NODES; i++) {
		struct redis_node *node = &io->nodes[i];

		if (disposable(node))
			redis_node_close(node);
		else if (node->used)
			redis_node_turn(node);
		if (node->used && node->listed && !redis_node_usable(node) && io->mode == REDIS_MODE_CLUSTER)
			io->topology.wanted = true;	/* its replica may have taken over */
	}
	/* Of a key whose slot nobody has no job ever comes here, and so no -MOVED. */
	io->topology.wanted |= io->mode == REDIS_MODE_CLUSTER && io->topology.holes;
	redis_topology_ask(io);
}

/* What is known of them before any name is looked up; redis_link_lookup() adds the rest. */
static void let_in_endpoints(struct redis_io *io)
{
	const struct redis *r = io->tier;

	if (r->cluster_hosts)
		(void)redis_hosts_parse(r->cluster_hosts, &io->hosts);	/* the configuration was checked */
	for (uint32_t i = 0; i < r->n_endpoints; i++) {
		char host[REDIS_ADDRESS_BYTES];

		redis_address_host(r->endpoint[i], host);
		redis_hosts_add_name(&io->hosts, host);
		if (r->cluster_hosts)
			continue;
		redis_hosts_add_near(&io->hosts, host[0] ? host : "127.0.0.1");
		if (!host[0])	/* a Unix socket */
			redis_hosts_add_near(&io->hosts, "::1");
	}
}

void redis_topology_start(struct redis_io *io)
{
	let_in_endpoints(io);
	memset(io->topology.slot, REDIS_NO_NODE, sizeof io->topology.slot);
	redis_view_slots(io);
	io->mode = io->tier->cluster == REDIS_CLUSTER_NO ? REDIS_MODE_SPREAD : REDIS_MODE_UNKNOWN;
	for (uint32_t i = 0; i < io->tier->n_endpoints; i++) {
		redis_node_open(&io->nodes[i], io, io->tier->endpoint[i]);
		io->nodes[i].seed = io->nodes[i].listed = true;
	}
}

bool redis_node_wanted(const struct redis_node *node)
{
	if (node->listed)
		return true;
	if (!node->seed)
		return false;
	for (uint32_t i = 0; i < REDIS_ALL_NODES; i++)
		if (node->io->nodes[i].used && node->io->nodes[i].listed && redis_node_usable(&node->io->nodes[i]))
			return false;
	return true;
}

/* --- a job's way --- */

struct redis_node *redis_node_of(struct redis_io *io, const struct redis_name *name)
{
	uint32_t number = name->endpoint;

	if (io->mode == REDIS_MODE_UNKNOWN)
		return NULL;
	if (io->mode == REDIS_MODE_CLUSTER)
		number = io->topology.slot[name->slot];
	return number < REDIS_ALL_NODES && io->nodes[number].used ? &io->nodes[number] : NULL;
}

void redis_route(struct redis_io *io, struct redis_job *job)
{
	struct redis_node *node = redis_node_of(io, &job->name);

	if (node) {
		redis_node_submit(node, job);
		return;
	}
	io->topology.wanted = true;
	redis_job_end(io, job, -ENODEV);
}

/* NULL: a redirect may not name it, or there is no place for one more. */
static struct redis_node *of_the_map(struct redis_io *io, const char *address)
{
	struct redis_node *node = find(io, address);

	if (node && (node->listed || node->seed))
		return node;
	for (uint32_t i = 0; i < io->topology.n_replicas && io->mode == REDIS_MODE_CLUSTER; i++)
		if (strcmp(io->topology.replica[i], address) == 0)
			return find_or_open(io, address);
	return NULL;
}

/* It names a server that no map has. */
static void not_followed(struct redis_io *io, struct redis_job *job, const char *address)
{
	job->node->counters.refused_hosts_total++;
	io->topology.wanted = true;
	if (!io->refused_ns || loop_now(io->loop) >= io->refused_ns + REFUSED_MS * 1000000ull) {
		io->refused_ns = loop_now(io->loop);
		log_warning("Redis at %s redirects to %s, which is neither in the slot map nor in [redis] endpoints: not followed",
			    job->node->address, address);
	}
	if (io->mode == REDIS_MODE_CLUSTER && job->hops <= HOPS && loop_now(io->loop) < job->deadline_ns) {
		redis_topology_ask(io);
		redis_job_delay(io, job);
		return;
	}
	job->node->counters.errors_total++;
	redis_job_end(io, job, -EREMOTEIO);
}

bool redis_redirected(struct redis_io *io, struct redis_job *job, const char *words)
{
	char address[REDIS_ADDRESS_BYTES];
	struct redis_node *node;
	enum redis_redirect kind;
	uint32_t slot;

	if (io->tier->cluster == REDIS_CLUSTER_NO)
		return false;
	kind = redis_redirect_parse(words, strlen(words), redis_node_itself(job->node), &slot, address);
	if (kind == REDIS_REDIRECT_NONE || slot != job->name.slot)
		return false;
	job->node->counters.redirects_total++;
	redis_node_answered(job->node);
	job->hops++;
	node = of_the_map(io, address);
	if (!node) {
		not_followed(io, job, address);
		return true;
	}
	if (job->hops > HOPS) {
		job->node->counters.errors_total++;
		redis_job_end(io, job, -EREMOTEIO);
		return true;
	}
	if (kind == REDIS_REDIRECT_MOVED) {
		io->topology.wanted = true;
		io->topology.slot[slot] = number_of(node);
		atomic_store_explicit(&io->tier->view->slot[slot], number_of(node), memory_order_relaxed);
	}
	node->named_ns = loop_now(io->loop);
	job->asking = kind == REDIS_REDIRECT_ASK;
	redis_node_submit(node, job);
	return true;
}
