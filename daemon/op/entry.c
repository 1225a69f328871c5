/* SPDX-License-Identifier: Apache-2.0 */
/*
 * entry.c - an entry of a client's ring is compared with its client's state: open spaces,
 * outstanding ops, free arena slots, layers, devices, events. Core thread only.
 *
 *	ring_peek() copies ─> proto_sqe() knows no state ─> entry_check() ─> op_start() acts
 *
 * Invariants
 *   E1 nothing is changed here, and nothing is read of shared memory: the entry is a copy.
 *   E2 an entry that passes can be started: any lack after that shows as statuses of its blocks.
 *   E3 each refusal names the field, its value and the reason.
 */
#include "entry.h"

#include <errno.h>
#include <stdio.h>

#include "daemon/device/device.h"
#include "daemon/shared/client.h"
#include "daemon/store/space.h"
#include "part.h"

static int violation(char *text, size_t n, const char *field, unsigned long long value,
		     const char *why)
{
	snprintf(text, n, "sqe.%s %llu %s", field, value, why);
	return -EPROTO;
}

static struct op *find(const struct client *client, uint64_t op_id)
{
	for (struct op *op = client->ops; op; op = op->next)
		if (op->sqe.op_id == op_id)
			return op;
	return NULL;
}

static int check_layers(const struct wire_sqe *sqe, const struct op *target, char *text, size_t n)
{
	if (target && (target->sqe.op != WIRE_OP_STORE || sqe->n > target->sqe.groups))
		return violation(text, n, "n", sqe->n, "is more than the groups of its target");
	return 0;
}

static int check_order(const struct client *client, const struct wire_sqe *sqe,
		       const struct device *device, char *text, size_t n)
{
	const struct order *order = order_find(client->orders, device);

	if ((sqe->flags & WIRE_SQE_GIVEN) && !device->layered)
		return violation(text, n, "flags", sqe->flags,
				 "says GIVEN, but the device of this space waits for no word");
	if ((sqe->event || sqe->word) && !order)
		return violation(text, n, sqe->event ? "event" : "word",
				 sqe->event ? sqe->event : sqe->word,
				 "is of no ORDER for the device of this space");
	if (sqe->event && sqe->event > order->events.n)
		return violation(text, n, "event", sqe->event,
				 "is more than the events of this space's device");
	return 0;
}

static int check_blocks(const struct client *client, const struct wire_sqe *sqe, char *text,
			size_t n)
{
	const struct mount *mount = client->mounts[sqe->space];

	if (!mount || mount->closing)
		return violation(text, n, "space", sqe->space, "is not open on this connection");
	if (find(client, sqe->op_id))
		return violation(text, n, "op_id", sqe->op_id, "is in use by an outstanding op");
	/* Slots that overlap would be work without limit: each op walks all of its own when it ends
	 * early. */
	if (wire_arena_slots(sqe) > client->ring.arena_blocks - client->arena_claimed)
		return violation(text, n, "n", sqe->n,
				 "is more than the arena slots that no outstanding op uses");
	if (sqe->groups > mount->space->geometry.layers)
		return violation(text, n, "groups", sqe->groups,
				 "is more than the layers of its space");
	return check_order(client, sqe, mount->device, text, n);
}

int entry_check(const struct client *client, const struct wire_sqe *sqe, struct op **ret_target,
		char *text, size_t n)
{
	*ret_target = NULL;
	if (sqe->op == WIRE_OP_NOP)
		return 0;
	if (sqe->op != WIRE_OP_CANCEL && sqe->op != WIRE_OP_LAYERS)
		return check_blocks(client, sqe, text, n);
	*ret_target = find(client, sqe->target);
	return sqe->op == WIRE_OP_LAYERS ? check_layers(sqe, *ret_target, text, n) : 0;
}
