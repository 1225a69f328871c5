/* SPDX-License-Identifier: Apache-2.0 */
/*
 * schedule.c - see schedule.h. A process may have many connections; on sockets of two tenants it
 * counts as two processes. The guarantees of tbl_quota.h are by tenant, then by process of the
 * tenant.
 *
 * Invariants
 *   S1 a process without a part always gets one, unless all parts are in use. No process has more
 *      than five times as many parts as are free. So a new process finds some, more of them after
 *      few processes than after many; and parts that end go to the processes that have least.
 *   S2 in flight are the slots (or pins) of a process's parts, and the leased end of the chain of
 *      each store that has begun. A store that has begun may always have one part, so an op waits
 *      for the end of parts alone. Several processes together have at most a quarter of host
 *      memory in flight, and a block each; the rest can be evicted, or is guaranteed, or is the
 *      chain of a store under way, which its leased end holds (room.c, R1). A process
 *      that is alone begins stores up to half of host memory, and their blocks without limit. When
 *      another one comes, this excess ends, or is refused room before the other one is (room.c).
 *   S3 a tenant's processes divide its guarantee of host memory, and a process's spaces divide the
 *      process's. A connection without a request in RECENT_NS has no guarantee, so the blocks that
 *      it left are evicted by age, down to the tenant's share.
 *   S4 a guarantee begins with the first op: guarantees are made anew for a client that comes, or
 *      comes back, and for a space that it opens. So a client that fills memory does not take a new
 *      client's first blocks.
 */
#include "schedule.h"

#include "base/list.h"
#include "base/loop.h"
#include "daemon/config/config.h"
#include "daemon/quota/quota.h"
#include "daemon/session/peer.h"
#include "daemon/table/space.h"
#include "daemon/table/space_counts.h"
#include "daemon/move/tables.h"
#include "part.h"

#define FRESH_NS  100000000ull /* the guarantees of spaces are made anew so often, at least */
#define RECENT_NS (600 * 1000000000ull)

/* --- who is next --- */

void schedule_look_again(struct ops *all)
{
	all->n_passed = 0;
	all->round++;
}

void schedule_add(struct op *op)
{
	struct ops *all = op->all;
	struct peer *p = op->client->peer;

	if (p->n_queued == 0) {
		list_open(&p->queue);
		list_add(&all->queue, &p->queued);
	}
	list_add(&p->queue, &op->queue);
	p->n_queued++;
	all->n_queued++;
}

void schedule_remove(struct op *op)
{
	struct peer *p = op->client->peer;

	if (!list_has(&op->queue))
		return;
	list_remove(&op->queue);
	op->all->n_queued--;
	if (--p->n_queued == 0)
		list_remove(&p->queued);
}

bool schedule_may_begin(const struct ops *all)
{
	return all->n_passed < all->n_queued && all->n_free_parts > 0;
}

/* If the process may have no further part, all its ops are passed over, unless they were in this
 * round. */
struct op *schedule_take(struct ops *all)
{
	struct peer *p = container_of(all->queue.next, struct peer, queued);
	struct op *op = container_of(p->queue.next, struct op, queue);

	list_remove(&p->queued);
	list_add(&all->queue, &p->queued);
	if (!schedule_parts_used(all, p)) {
		schedule_remove(op);
		return op;
	}
	if (p->passed_round != all->round)
		all->n_passed += p->n_queued;
	p->passed_round = all->round;
	return NULL;
}

void schedule_pass(struct op *op)
{
	struct ops *all = op->all;

	schedule_add(op);
	all->n_passed += op->passed_round != all->round;
	op->passed_round = all->round;
}

/* --- how much a process may have --- */

bool schedule_parts_used(const struct ops *all, const struct peer *peer)
{
	if (peer->n_parts == 0)
		return false;
	return peer->n_parts >= quota_of_process(all->quota, QUOTA_parts, peer->tenant) ||
	       !quota_of_free(peer->n_parts, (uint32_t)quota_lines[QUOTA_parts].times,
			      all->n_free_parts);
}

static bool waits_for_layers(const struct op *q)
{
	return q->sqe.flags & WIRE_SQE_GIVEN;
}

bool schedule_waiting_used(const struct op *q)
{
	const uint64_t depth = q->mount->device->depth,
		       guarantee = quota_of_process(q->all->quota, QUOTA_parts, q->client->tenant);
	const uint32_t waiting = q->client->peer->n_waiting;

	return waiting > 0 && waiting >= (guarantee < depth ? guarantee : depth) / 2;
}

/* The bytes that a block of the op takes: a slab holds few large images, and their bytes include
 * the slab's rest. */
static uint64_t block_bytes(const struct ops *all, const struct op *q)
{
	const uint64_t slab = all->config->host_slab_bytes,
		       image = q->mount->space->shape.image_bytes;

	return image > 0 && image <= slab ? slab / (slab / image) : image;
}

bool schedule_memory_used(const struct ops *all, const struct op *q)
{
	const uint64_t bytes = block_bytes(all, q);
	const bool begun = q->next_block > 0, opens = q->sqe.op == WIRE_OP_STORE && !begun,
		   alone = all->n_peers <= 1;
	const uint64_t in_flight = q->client->peer->in_flight_bytes;
	uint64_t guarantee;

	if (in_flight == 0 || (begun && list_empty(&q->parts)) || (alone && !opens))
		return false;
	guarantee = quota_of_process(all->quota, QUOTA_in_flight_bytes, q->client->tenant);
	return in_flight + bytes + (opens ? bytes : 0) > (alone ? 2 * guarantee : guarantee);
}

void schedule_op_started(struct ops *all, const struct op *q)
{
	struct client *client = q->client;
	const uint64_t now = loop_now(all->loop);

	if (client->peer->n_ops++ == 0) {
		all->n_peers++;
		quota_peer_works(all->quota, client->tenant);
	}
	if (!q->mount->asked || now - client->asked_ns >= RECENT_NS)
		all->guaranteed_ns = 0; /* S4 */
	q->mount->asked = true;
	client->asked_ns = now;
	if (!list_has(&client->asking))
		list_add(&all->asking, &client->asking);
}

void schedule_client_cut(struct client *client)
{
	list_remove(&client->asking);
}

static void charge(struct ops *all, struct peer *peer, uint64_t bytes)
{
	peer->in_flight_bytes += bytes;
	quota_take(all->quota, QUOTA_in_flight_bytes, peer->tenant, bytes);
}

void schedule_op_ended(struct ops *all, struct op *q)
{
	struct peer *peer = q->client->peer;

	if (--peer->n_ops == 0) {
		all->n_peers--;
		quota_peer_rests(all->quota, peer->tenant);
	}
	charge(all, peer, -q->in_flight_bytes);
	q->in_flight_bytes = 0;
	schedule_look_again(all);
}

void schedule_part_begun(struct ops *all, struct part *part)
{
	struct op *q = part->op;
	struct peer *peer = q->client->peer;

	part->in_flight_bytes = block_bytes(all, q);
	if (q->sqe.op == WIRE_OP_STORE && q->next_block == 1) {
		q->in_flight_bytes = part->in_flight_bytes; /* the chain's end */
		charge(all, peer, q->in_flight_bytes);
	}
	peer->n_parts++;
	peer->n_waiting += waits_for_layers(q);
	charge(all, peer, part->in_flight_bytes);
	quota_take(all->quota, QUOTA_parts, peer->tenant, 1);
	all->n_free_parts--;
}

void schedule_part_ended(struct ops *all, struct part *part)
{
	struct op *q = part->op;
	struct peer *peer = q->client->peer;

	peer->n_parts--;
	peer->n_waiting -= waits_for_layers(q);
	charge(all, peer, -part->in_flight_bytes);
	quota_give(all->quota, QUOTA_parts, peer->tenant, 1);
	all->n_free_parts++;
	schedule_look_again(all);
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

static void guarantee(struct ops *all, const struct client *client)
{
	const uint64_t guarantee = quota_of_tenant(all->quota, QUOTA_host_bytes, client->tenant) /
				   all->quota->tenant[client->tenant].active;

	for (uint32_t i = 0; i < WIRE_MAX_SPACES; i++)
		if (client->mounts[i])
			counts_guarantee(blocks_counts(all->tables->blocks),
					 client->mounts[i]->space->number,
					 guarantee / client->peer->n_mounts);
}

/* How many processes of each tenant are active; n_mounts of each. */
static void count_active(const struct ops *all)
{
	const struct list *asking = &all->asking;

	for (uint32_t i = 0; i < all->quota->n; i++)
		all->quota->tenant[i].active = 0;
	for (const struct list *at = asking->next; at != asking; at = at->next)
		client_of(at)->peer->n_mounts = 0;
	for (const struct list *at = asking->next; at != asking; at = at->next) {
		struct peer *peer = client_of(at)->peer;

		if (!is_active(all, client_of(at)))
			continue;
		all->quota->tenant[peer->tenant].active += peer->n_mounts == 0;
		peer->n_mounts += mounts_of(client_of(at));
	}
}

void schedule_guarantee(struct ops *all)
{
	if (all->guaranteed_ns && loop_now(all->loop) - all->guaranteed_ns < FRESH_NS)
		return;
	all->guaranteed_ns = loop_now(all->loop);
	counts_guarantee_anew(blocks_counts(all->tables->blocks));
	count_active(all);
	for (const struct list *at = all->asking.next; at != &all->asking; at = at->next)
		if (is_active(all, client_of(at)))
			guarantee(all, client_of(at));
}

void schedule_open(struct ops *all)
{
	list_open(&all->queue);
	list_open(&all->asking);
	all->round = 1;
}
