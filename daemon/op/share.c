/* SPDX-License-Identifier: Apache-2.0 */
/*
 * share.c - the shares of clients. Core thread only.
 *
 *	thing			share of a client					heeded by
 *	parts			all / clients with ops, and five for each free one	pump.c
 *	slots in flight		a quarter of host memory / clients with ops		pump.c
 * 	blocks kept		a quarter of host memory / active clients / its spaces	mover.c
 *	numbers of blocks	the same part of the table, where it is full		copies.c
 *
 * Invariants
 *   S1 a client without a part always gets one, unless all parts are in use. No client has more
 *      than five times as many parts as are free. So a new client finds some, more of them after
 *      few clients than after many; and parts that end go to the clients that have least.
 *   S2 in flight are the slots (or pins) of a client's parts, and the leased end of the chain of
 *      each store that has begun. A store that has begun may always have one part, so an op waits
 *      for nothing but the end of parts. Several clients together have at most half of host memory
 *      in flight, and a block each; the rest can be evicted, or is guaranteed. A client that is
 *      alone begins stores up to half of host memory, and their blocks without limit. When another
 *      client comes, this excess ends, or is refused room before the other client is (room.c).
 *   S3 the guarantees of all clients together are a quarter of host memory. A client without a
 *      request in RECENT_NS has no guarantee, so the blocks that it left go by age.
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
	/* parts that a client may have, for each one that is free. Alone it has five sixths of all:
	 * more than loads that wait for a tier may have (load_must_wait()) */
	PARTS_A_FREE = 5,
	FRESH_MS = 100,   /* the guarantees are made anew so often, at least */
	GIVEN_MAX = 4096, /* spaces open on active clients that get one */
};

#define RECENT_NS (600 * 1000000000ull)

struct shares {
	uint64_t made_ns;   /* 0: never */
	struct list asking; /* clients that began an op; client.asking */
	uint32_t clients;   /* with ops outstanding */
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

bool share_of_parts_is_used(const struct ops *all, const struct client *client)
{
	const uint32_t clients = all->shares->clients > 0 ? all->shares->clients : 1,
		       share = all->n_parts / clients;

	if (client->n_parts == 0)
		return false;
	return client->n_parts >= share || client->n_parts >= PARTS_A_FREE * all->n_free_parts;
}

static bool waits_for_layers(const struct op *q)
{
	return q->sqe.flags & WIRE_SQE_GIVEN;
}

bool share_of_waiting_is_used(const struct op *q)
{
	const struct ops *all = q->all;
	const uint32_t depth = q->mount->device->depth,
		       clients = all->shares->clients > 0 ? all->shares->clients : 1,
		       share = all->n_parts / clients;

	return q->client->n_waiting > 0 &&
	       q->client->n_waiting >= (share < depth ? share : depth) / 2;
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
	const bool opens = q->sqe.op == WIRE_OP_STORE && !q->begun,
		   alone = all->shares->clients <= 1;

	if (q->client->in_flight_bytes == 0 || (q->begun && q->n_parts == 0) || (alone && !opens))
		return false;
	return q->client->in_flight_bytes + bytes + (opens ? bytes : 0) >
	       (alone ? half : half / 2 / all->shares->clients);
}

void share_op_started(struct ops *all, const struct op *q)
{
	struct client *client = q->client;
	const uint64_t now = loop_now(all->loop);

	all->shares->clients += client->n_ops == 1;
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
	all->shares->clients -= q->client->n_ops == 0;
	q->client->in_flight_bytes -= q->in_flight_bytes;
	q->in_flight_bytes = 0;
}

void share_part_begun(struct ops *all, struct part *part)
{
	struct op *q = part->op;

	part->in_flight_bytes = block_bytes(all, q);
	if (q->sqe.op == WIRE_OP_STORE && !q->begun) {
		q->in_flight_bytes = part->in_flight_bytes; /* the chain's end */
		q->client->in_flight_bytes += q->in_flight_bytes;
	}
	q->begun = true;
	q->n_parts++;
	q->client->n_parts++;
	q->client->n_waiting += waits_for_layers(q);
	q->client->in_flight_bytes += part->in_flight_bytes;
	all->n_free_parts--;
}

void share_part_ended(struct ops *all, struct part *part)
{
	struct op *q = part->op;

	q->n_parts--;
	q->client->n_parts--;
	q->client->n_waiting -= waits_for_layers(q);
	q->client->in_flight_bytes -= part->in_flight_bytes;
	all->n_free_parts++;
}

/* --- guarantees --- */

static const struct client *client_of(const struct list *link)
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
	const uint32_t mounts = mounts_of(client);

	for (uint32_t i = 0; i < WIRE_MAX_SPACES; i++)
		if (client->mounts[i])
			give(all->shares, client->mounts[i]->space->number,
			     quarter / n_active / mounts);
}

const uint64_t *share_guaranteed(struct ops *all)
{
	struct shares *s = all->shares;
	uint32_t n_active = 0;

	if (s->made_ns && loop_now(all->loop) - s->made_ns < FRESH_MS * 1000000ull)
		return s->guaranteed;
	s->made_ns = loop_now(all->loop);
	while (s->n_given > 0)
		s->guaranteed[s->given[--s->n_given]] = 0;
	for (const struct list *at = s->asking.next; at != &s->asking; at = at->next)
		n_active += is_active(all, client_of(at));
	for (const struct list *at = s->asking.next; at != &s->asking; at = at->next)
		if (is_active(all, client_of(at)))
			guarantee(all, client_of(at), n_active);
	return s->guaranteed;
}
