/* SPDX-License-Identifier: Apache-2.0 */
/*
 * share.c - the shares of processes; a process may have many connections. Core thread only.
 *
 *	thing			share of a process					heeded by
 *	parts			all / processes with ops, and five for each free one	pump.c
 *	slots in flight		a quarter of host memory / processes with ops		pump.c
 * 	blocks kept		a quarter of host memory / active processes / spaces	mover.c
 *	numbers of blocks	the same part of the table, where it is full		copies.c
 *
 * Invariants
 *   S1 a process without a part always gets one, unless all parts are in use. No process has more
 *      than five times as many parts as are free. So a new process finds some, more of them after
 *      few processes than after many; and parts that end go to the processes that have least.
 *   S2 in flight are the slots (or pins) of a process's parts, and the leased end of the chain of
 *      each store that has begun. A store that has begun may always have one part, so an op waits
 *      for nothing but the end of parts. Several processes together have at most half of host
 *      memory in flight, and a block each; the rest can be evicted, or is guaranteed. A process
 *      that is alone begins stores up to half of host memory, and their blocks without limit. When
 *      another one comes, this excess ends, or is refused room before the other one is (room.c).
 *   S3 the guarantees of all processes together are a quarter of host memory. A connection without
 *      a request in RECENT_NS has no guarantee, so the blocks that it left go by age.
 *   S4 a guarantee begins with the first op: the guarantees are made anew for a client that comes,
 *      or comes back, and for a space that it opens. So a client that fills memory does not take a
 *      new client's first blocks.
 */
#include "share.h"

#include <errno.h>
#include <stdlib.h>

#include "daemon/base/container_of.h"
#include "daemon/base/loop.h"
#include "daemon/config/config.h"
#include "daemon/shared/client.h"
#include "daemon/store/space.h"
#include "daemon/store/store.h"
#include "part.h"

enum {
	/* parts that a process may have, for each one that is free. Alone it has five sixths of
	 * all: more than loads that wait for a tier may have (load_must_wait()) */
	PARTS_A_FREE = 5,
	FRESH_MS = 100,   /* the guarantees are made anew so often, at least */
	GIVEN_MAX = 4096, /* spaces open on active clients that get one */
};

#define RECENT_NS (600 * 1000000000ull)

struct shares {
	uint64_t made_ns;   /* 0: never */
	struct list asking; /* clients that began an op; client.asking */
	uint32_t peers;     /* with ops outstanding */
	uint32_t n_given;
	uint32_t given[GIVEN_MAX]; /* spaces that have one */
	uint64_t guaranteed[TIER_MAX_SPACES];
};

int shares_open(struct shares **ret)
{
	*ret = calloc(1, sizeof(**ret));
	if (!*ret)
		return -ENOMEM;
	list_open(&(*ret)->asking);
	return 0;
}

void shares_close(struct shares *shares)
{
	free(shares);
}

/* --- in flight --- */

static uint32_t share_of_parts(const struct ops *all)
{
	return all->n_parts / (all->shares->peers > 0 ? all->shares->peers : 1);
}

bool share_of_parts_is_used(const struct ops *all, const struct peer *peer)
{
	if (peer->n_parts == 0)
		return false;
	return peer->n_parts >= share_of_parts(all) ||
	       peer->n_parts >= PARTS_A_FREE * all->n_free_parts;
}

static bool waits_for_layers(const struct op *q)
{
	return q->sqe.flags & WIRE_SQE_GIVEN;
}

bool share_of_waiting_is_used(const struct op *q)
{
	const uint32_t depth = q->mount->device->depth, share = share_of_parts(q->all),
		       waiting = q->client->peer->n_waiting;

	return waiting > 0 && waiting >= (share < depth ? share : depth) / 2;
}

/* The bytes that a block of the op takes: a slab holds few large images, and their shares include
 * the slab's rest. */
static uint64_t block_bytes(const struct ops *all, const struct op *q)
{
	const uint64_t slab = all->config->host_slab_bytes,
		       image = q->mount->space->shape.image_bytes;

	return image > 0 && image <= slab ? slab / (slab / image) : image;
}

bool share_of_memory_is_used(const struct ops *all, const struct op *q)
{
	const uint64_t half = store_host(all->store)->capacity_bytes / 2,
		       bytes = block_bytes(all, q);
	const bool opens = q->sqe.op == WIRE_OP_STORE && !q->begun, alone = all->shares->peers <= 1;
	const uint64_t in_flight = q->client->peer->in_flight_bytes;

	if (in_flight == 0 || (q->begun && q->n_parts == 0) || (alone && !opens))
		return false;
	return in_flight + bytes + (opens ? bytes : 0) >
	       (alone ? half : half / 2 / all->shares->peers);
}

void share_op_started(struct ops *all, const struct op *q)
{
	struct client *client = q->client;
	const uint64_t now = loop_now(all->loop);

	all->shares->peers += client->peer->n_ops++ == 0;
	if (!q->mount->asked || now - client->asked_ns >= RECENT_NS)
		all->shares->made_ns = 0; /* S4 */
	q->mount->asked = true;
	client->asked_ns = now;
	if (!list_has(&client->asking))
		list_add(&all->shares->asking, &client->asking);
}

void share_client_cut(struct client *client)
{
	list_remove(&client->asking);
}

void share_op_ended(struct ops *all, struct op *q)
{
	struct peer *peer = q->client->peer;

	all->shares->peers -= --peer->n_ops == 0;
	peer->in_flight_bytes -= q->in_flight_bytes;
	q->in_flight_bytes = 0;
}

void share_part_begun(struct ops *all, struct part *part)
{
	struct op *q = part->op;
	struct peer *peer = q->client->peer;

	part->in_flight_bytes = block_bytes(all, q);
	if (q->sqe.op == WIRE_OP_STORE && !q->begun) {
		q->in_flight_bytes = part->in_flight_bytes; /* the chain's end */
		peer->in_flight_bytes += q->in_flight_bytes;
	}
	q->begun = true;
	q->n_parts++;
	peer->n_parts++;
	peer->n_waiting += waits_for_layers(q);
	peer->in_flight_bytes += part->in_flight_bytes;
	all->n_free_parts--;
}

void share_part_ended(struct ops *all, struct part *part)
{
	struct op *q = part->op;
	struct peer *peer = q->client->peer;

	q->n_parts--;
	peer->n_parts--;
	peer->n_waiting -= waits_for_layers(q);
	peer->in_flight_bytes -= part->in_flight_bytes;
	all->n_free_parts++;
}

/* --- guarantees --- */

static struct client *client_of(const struct list *link)
{
	return container_of(link, struct client, asking);
}

static uint32_t mounts_of(const struct client *client)
{
	uint32_t ret = 0;

	for (uint32_t i = 0; i < WIRE_MAX_SPACES; i++)
		ret += client->mounts[i] != NULL;
	return ret;
}

static bool is_active(const struct ops *all, const struct client *client)
{
	return loop_now(all->loop) - client->asked_ns < RECENT_NS && mounts_of(client) > 0;
}

static void give(struct shares *s, uint32_t space, uint64_t bytes)
{
	if (s->guaranteed[space] == 0) {
		if (s->n_given == GIVEN_MAX)
			return;
		s->given[s->n_given++] = space;
	}
	s->guaranteed[space] += bytes;
}

static void guarantee(struct ops *all, const struct client *client, uint32_t n_active)
{
	const uint64_t quarter = store_host(all->store)->capacity_bytes / 4;

	for (uint32_t i = 0; i < WIRE_MAX_SPACES; i++)
		if (client->mounts[i])
			give(all->shares, client->mounts[i]->space->number,
			     quarter / n_active / client->peer->n_mounts);
}

/* How many processes are active; n_mounts of each. */
static uint32_t count_active(const struct ops *all)
{
	const struct list *asking = &all->shares->asking;
	uint32_t ret = 0;

	for (const struct list *at = asking->next; at != asking; at = at->next)
		client_of(at)->peer->n_mounts = 0;
	for (const struct list *at = asking->next; at != asking; at = at->next) {
		struct peer *peer = client_of(at)->peer;

		if (!is_active(all, client_of(at)))
			continue;
		ret += peer->n_mounts == 0;
		peer->n_mounts += mounts_of(client_of(at));
	}
	return ret;
}

const uint64_t *share_guaranteed(struct ops *all)
{
	struct shares *s = all->shares;
	uint32_t n_active;

	if (s->made_ns && loop_now(all->loop) - s->made_ns < FRESH_MS * 1000000ull)
		return s->guaranteed;
	s->made_ns = loop_now(all->loop);
	while (s->n_given > 0)
		s->guaranteed[s->given[--s->n_given]] = 0;
	n_active = count_active(all);
	for (const struct list *at = s->asking.next; at != &s->asking; at = at->next)
		if (is_active(all, client_of(at)))
			guarantee(all, client_of(at), n_active);
	return s->guaranteed;
}
