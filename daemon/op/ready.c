/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ready.c - the run queue. See ready.h.
 */
#include "ready.h"

#include "daemon/base/container_of.h"

void ready_open(struct ready *ready)
{
	list_open(&ready->tasks);
}

void ready_push(struct ready *ready, struct task *task)
{
	if (!list_has(&task->link))
		list_add(&ready->tasks, &task->link);
}

void ready_remove(struct task *task)
{
	list_remove(&task->link);
}

bool ready_any(const struct ready *ready)
{
	return !list_empty(&ready->tasks);
}

bool ready_run(struct ready *ready, uint32_t max)
{
	const bool any = ready_any(ready);

	for (; max > 0 && ready_any(ready); max--) {
		struct task *task = container_of(ready->tasks.next, struct task, link);

		list_remove(&task->link);
		task->run(task);
	}
	return any;
}
