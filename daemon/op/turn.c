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
	struct client *c = op->client;

	if (c->n_queued == 0) {
		list_open(&c->queue);
		list_add(&all->queue, &c->queued);
	}
	list_add(&c->queue, &op->queue);
	c->n_queued++;
	all->n_queued++;
}

void turn_remove(struct op *op)
{
	struct client *c = op->client;

	if (!list_has(&op->queue))
		return;
	list_remove(&op->queue);
	op->all->n_queued--;
	if (--c->n_queued == 0)
		list_remove(&c->queued);
}

bool turn_any(const struct ops *all)
{
	return all->n_passed < all->n_queued;
}

struct client *turn_client(const struct ops *all)
{
	return container_of(all->queue.next, struct client, queued);
}

struct op *turn_op(const struct ops *all)
{
	return container_of(turn_client(all)->queue.next, struct op, queue);
}

static void last(struct ops *all, struct client *c)
{
	list_remove(&c->queued);
	list_add(&all->queue, &c->queued);
}

struct op *turn_take(struct ops *all)
{
	struct client *c = turn_client(all);
	struct op *op = turn_op(all);

	last(all, c);
	turn_remove(op);
	return op;
}

/* All its ops were passed over, unless they were in this round. */
void turn_pass_client(struct ops *all)
{
	struct client *c = turn_client(all);

	if (c->passed_round != all->round)
		all->n_passed += c->n_queued;
	c->passed_round = all->round;
	last(all, c);
}

void turn_pass(struct op *op)
{
	struct ops *all = op->all;

	turn_add(op);
	all->n_passed += op->passed_round != all->round;
	op->passed_round = all->round;
}
