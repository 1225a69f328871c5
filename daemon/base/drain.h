/* SPDX-License-Identifier: Apache-2.0 */
/*
 * drain.h - a time limit on the writes of a write-behind queue at a clean stop. The queue's owner
 * begins a drain and ends it when the queue is empty; when the time is over before that, late()
 * runs, and the owner ends the drain there. Core thread only.
 */
#ifndef KVTIER_DRAIN_H
#define KVTIER_DRAIN_H

#include <stdbool.h>
#include <stdint.h>

#include "loop.h"

/* Embedded in the queue's owner; all zeros: no drain is under way. */
struct drain {
	struct loop *loop;
	struct loop_timer limit;
	void (*late)(struct drain *drain);
	void (*done)(void *arg);
	void *arg;
};

/* late() runs from the loop, `limit_us` from now, unless drain_end() was called before. */
void drain_begin(struct drain *drain, struct loop *loop, uint64_t limit_us,
		 void (*late)(struct drain *drain), void (*done)(void *arg), void *arg);
bool drain_is_on(const struct drain *drain);
/* The drain is over, for any reason: done() runs inside this call. The owner may be closed by
 * done(). */
void drain_end(struct drain *drain);

#endif
