/* SPDX-License-Identifier: Apache-2.0 */
/*
 * room.h - slots of host memory for blocks that are stored or brought, and the queue of the parts
 * that wait for one. Core thread only.
 */
#ifndef KVTIER_ROOM_H
#define KVTIER_ROOM_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/list.h"

struct ops;
struct walker;

struct room {
	struct list waiters; /* in order of need */
	uint32_t n;
	uint64_t progress;    /* when room was last looked for in vain... */
	uint64_t progress_ns; /* ...and when that was last another than before */
	uint32_t round;       /* of room_retry(): each process is tried once in it */
	bool in_round;
};

/* A slot for `bytes`, which is the walker's: 0. -EAGAIN: the walker waits, and will be woken; it
 * keeps its place when it tries again. first: other parts of its op wait for it, so it goes to the
 * front. -ENOSPC: nothing is under way that would make room, and the walker no longer waits. */
int room_take(struct walker *w, uint32_t bytes, bool first);
/* Likewise, but only a slot that is free as it is: it evicts nothing, overtakes no waiter, and does
 * not wait. */
bool room_take_free(struct walker *w, uint32_t bytes);
/* it does not wait: nothing happens */
void room_leave(struct walker *w);
/* Wakes the waiter whose turn it is to try again, if room may have come, or if nothing is under way
 * that would bring it. It wakes one waiter, so that nothing else is ready when this waiter runs.
 * False: each process was tried, or there is no reason to try. */
bool room_retry(struct ops *ops);

#endif
