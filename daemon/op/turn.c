/* SPDX-License-Identifier: Apache-2.0 */
/*
 * turn.c - whose turn it is to begin a block. See turn.h.
 */
#include "turn.h"

#include "daemon/base/container_of.h"
#include "daemon/shared/client.h"
#include "part.h"

void turn_open(struct ops *all)
{
	list_open(&all->queue);
	all->round = 1;
}

void turn_look_again(struct ops *all)
{
	all->n_passed = 0;
	all->round++;
}

void turn_add(struct op *op)
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

void turn_remove(struct op *op)
{
	struct peer *p = op->client->peer;

	if (!list_has(&op->queue))
		return;
	list_remove(&op->queue);
	op->all->n_queued--;
	if (--p->n_queued == 0)
		list_remove(&p->queued);
}

bool turn_any(const struct ops *all)
{
	return all->n_passed < all->n_queued;
}

struct peer *turn_peer(const struct ops *all)
{
	return container_of(all->queue.next, struct peer, queued);
}

struct op *turn_op(const struct ops *all)
{
	return container_of(turn_peer(all)->queue.next, struct op, queue);
}

static void last(struct ops *all, struct peer *p)
{
	list_remove(&p->queued);
	list_add(&all->queue, &p->queued);
}

struct op *turn_take(struct ops *all)
{
	struct peer *p = turn_peer(all);
	struct op *op = turn_op(all);

	last(all, p);
	turn_remove(op);
	return op;
}

/* All its ops were passed over, unless they were in this round. */
void turn_pass_peer(struct ops *all)
{
	struct peer *p = turn_peer(all);

	if (p->passed_round != all->round)
		all->n_passed += p->n_queued;
	p->passed_round = all->round;
	last(all, p);
}

void turn_pass(struct op *op)
{
	struct ops *all = op->all;

	turn_add(op);
	all->n_passed += op->passed_round != all->round;
	op->passed_round = all->round;
}
