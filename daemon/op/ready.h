/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ready.h - the run queue: what can go on now, in the order in which it was woken. Core thread
 * only.
 *
 * Waking is a push and never a call. So whoever wakes a task changes nothing but this queue, and a
 * task runs with no other one half done below it on the stack. pump.c empties the queue, in the
 * same turn of the loop.
 */
#ifndef KVTIER_READY_H
#define KVTIER_READY_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/container_of.h"
#include "daemon/base/list.h"

/* Embedded in its owner. Zeroed but for run: it is not ready. */
struct task {
	struct list link;
	void (*run)(struct task *task);
};

struct ready {
	struct list tasks;
};

static inline void ready_open(struct ready *ready)
{
	list_open(&ready->tasks);
}

/* once: a task that is ready keeps its place */
static inline void ready_push(struct ready *ready, struct task *task)
{
	if (!list_has(&task->link))
		list_add(&ready->tasks, &task->link);
}

/* its owner goes away. A task that is not ready: nothing happens */
static inline void ready_remove(struct task *task)
{
	list_remove(&task->link);
}

static inline bool ready_any(const struct ready *ready)
{
	return !list_empty(&ready->tasks);
}

/* Runs the first `max` tasks, also those that the first ones wake. Returns whether there was
 * one. */
static inline bool ready_run(struct ready *ready, uint32_t max)
{
	const bool any = ready_any(ready);

	for (; max > 0 && ready_any(ready); max--) {
		struct task *task = container_of(ready->tasks.next, struct task, link);

		list_remove(&task->link);
		task->run(task);
	}
	return any;
}

#endif
