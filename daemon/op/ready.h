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

#include "daemon/base/list.h"

/* Embedded in its owner. Zeroed but for run: it is not ready. */
struct task {
	struct list link;
	void (*run)(struct task *task);
};

struct ready {
	struct list tasks;
};

void ready_open(struct ready *ready);
/* once: a task that is ready keeps its place */
void ready_push(struct ready *ready, struct task *task);
/* its owner goes away. A task that is not ready: nothing happens */
void ready_remove(struct task *task);
bool ready_any(const struct ready *ready);
/* Runs the first `max` tasks, also those that the first ones wake. Returns whether there was
 * one. */
bool ready_run(struct ready *ready, uint32_t max);

#endif
