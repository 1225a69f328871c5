/* SPDX-License-Identifier: Apache-2.0 */
/*
 * room.h - slots of host memory for what is stored or brought, and the queue of those that wait for
 * one. Core thread only.
 */
#ifndef KVTIER_ROOM_H
#define KVTIER_ROOM_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/list.h"
#include "tiers/tier.h"

struct client;
struct ops;
struct op;
struct task;

struct room {
	struct list waiters; /* in order of need */
	uint32_t n;
	uint64_t progress;    /* when room was last looked for in vain... */
	uint64_t progress_ns; /* ...and when that was last another than before */
	uint32_t round;       /* of room_retry(): each client is tried once in it */
	bool in_round;
};

/* Embedded in its owner. Zeroed: it waits for nothing. */
struct room_waiter {
	struct list link;
	struct task *task;   /* woken when it is worth to try again */
	const struct op *op; /* in whose client's name room is looked for */
	bool first;          /* others of its op wait for it: it goes to the front */
};

/* A slot for `bytes`, which the caller owns: 0. -EAGAIN: the waiter waits, and its task will be
 * woken; it keeps its place when it tries again. -ENOSPC: nothing is under way that would make
 * room, and it no longer waits. Of the waiter task, op and first are set. */
int room_take(struct ops *ops, struct room_waiter *waiter, uint32_t bytes, struct extent *ret);
/* Likewise, but only a slot that is free as it is: nothing is evicted, nobody is overtaken, and
 * there is no waiting. */
bool room_take_free(struct ops *ops, const struct op *op, uint32_t bytes, struct extent *ret);
/* it does not wait: nothing happens */
void room_leave(struct ops *ops, struct room_waiter *waiter);
/* Wakes the waiter whose turn it is to try again, if room may have come, or if nothing is under way
 * that would bring it. It wakes one waiter, so that nothing else is ready when that one runs.
 * False: each client was tried, or there is no reason to try. */
bool room_retry(struct ops *ops);

#endif
