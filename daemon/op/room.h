/* SPDX-License-Identifier: Apache-2.0 */
/*
 * room.h - finds slots of host memory for blocks that are stored or brought, and has the queue of
 * the tasks that wait for a slot. Core thread only.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"

struct ops;
struct task;

struct room {
	struct list waiters; /* in order of need */
	uint32_t n;
	uint64_t progress;    /* when room was last looked for in vain... */
	uint64_t progress_ns; /* ...and when that was last another than before */
	uint32_t round;       /* of room_retry(): each process is tried once in it */
	bool in_round;
};

/* Gives the task a slot for `bytes`: 0. -EAGAIN: the task waits in the queue and will be woken; it
 * keeps its place when it tries again. first: other parts of its op wait for this one, so it is put
 * first. -ENOSPC: no work is under way that would make room, and the task no longer waits. */
int room_take(struct task *task, uint32_t bytes, bool first);
/* The same for a slot that is free already. It evicts no block, overtakes no waiter, and does not
 * wait. */
bool room_take_free(struct task *task, uint32_t bytes);
/* takes the task out of the queue; it may be in none */
void room_leave(struct task *task);
static inline bool room_is_waited_for(const struct room *room)
{
	return room->n > 0 || room->in_round;
}
/* Wakes the waiter whose turn it is to try again, if room may have come, or if no work is under way
 * that would bring it. It wakes one waiter, so that no other task is ready when this waiter runs.
 * False: each process was tried, or there is no reason to try. */
bool room_retry(struct ops *ops);
