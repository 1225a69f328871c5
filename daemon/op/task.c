/* SPDX-License-Identifier: Apache-2.0 */
/*
 * task.c - the table of steps, the run queue, and the code that several steps share. See task.h.
 */
#include "task.h"

#include <assert.h>
#include <errno.h>

#include "daemon/stats/stats.h"
#include "base/list.h"
#include "base/loop.h"
#include "daemon/session/peer.h"
#include "daemon/move/copies.h"
#include "daemon/table/space.h"
#include "daemon/move/tables.h"
#include "flight.h"
#include "hint.h"
#include "load.h"
#include "part.h"
#include "store.h"
#include "schedule.h"

/* --- the table of steps --- */

const struct step_rule step_rules[STEPS] = {
	[STORE_ADMIT] = { store_admit, "admit", 0, 0, 0, STORE_COMMIT },
	[STORE_PLACE] = { store_place, "place", 0, HELD_PLACE, 0, STORE_COMMIT },
	[STORE_ENCODE] = { store_encode, "encode", HELD_SLOT, HELD_GPU, 0, STORE_COMMIT },
	[STORE_COMMIT] = { store_commit, "commit", 0,
			   HELD_SLOT | HELD_LEASE | HELD_PLACE | HELD_GPU, 0, STORE_COMMIT },
	[LOAD_LOOKUP] = { load_lookup, "lookup", 0, 0, 0, LOAD_END },
	[LOAD_BRING] = { load_bring, "bring", 0, HELD_FLIGHT, 0, LOAD_END },
	[LOAD_SERVE] = { load_serve, "serve", 0, HELD_GPU, HELD_LEASE | HELD_FLIGHT, LOAD_END },
	[LOAD_CHECK] = { load_check, "check", 0, HELD_GPU, HELD_LEASE | HELD_FLIGHT, LOAD_CHECK },
	[LOAD_KEEP] = { load_keep, "keep", HELD_FLIGHT, HELD_GPU, 0, LOAD_KEEP },
	[LOAD_END] = { load_end, "end", 0, HELD_LEASE | HELD_FLIGHT | HELD_GPU, 0, LOAD_END },
	[HINT_APPLY] = { hint_apply, "hint", 0, 0, 0, HINT_APPLY },
	[FLIGHT_PROBE] = { flight_probe, "flight.probe", 0, 0, 0, FLIGHT_PROBE },
	[FLIGHT_ROOM] = { flight_room, "flight.room", 0, HELD_LEASE | HELD_PLACE, 0, FLIGHT_ROOM },
	[FLIGHT_READ] = { flight_read, "flight.read", HELD_SLOT, HELD_LEASE | HELD_PLACE, 0,
			  FLIGHT_READ },
	[FLIGHT_FAIL] = { flight_fail, "flight.fail", 0, HELD_SLOT | HELD_LEASE, 0, FLIGHT_FAIL },
	[FLIGHT_VERIFY] = { flight_verify, "flight.verify", HELD_SLOT, HELD_LEASE | HELD_PLACE, 0,
			    FLIGHT_VERIFY },
	[FLIGHT_LAND] = { flight_land, "flight.land", HELD_SLOT, HELD_LEASE, 0, FLIGHT_LAND },
	[FLIGHT_MISS] = { flight_miss, "flight.miss", 0, HELD_LEASE | HELD_PLACE, 0, FLIGHT_MISS },
	[FLIGHT_AGAIN] = { flight_again, "flight.again", 0, HELD_LEASE | HELD_PLACE, 0,
			   FLIGHT_AGAIN },
};

const char *const wait_names[WAITS] = {
	[WAIT_JOB] = "job",
	[WAIT_READ] = "read",
	[WAIT_ROOM] = "room",
	[WAIT_TIER_FULL] = "tier-full",
	[WAIT_JOBS_FULL] = "device-full",
	[WAIT_PREVIOUS] = "previous",
	[WAIT_OTHER] = "flight",
	[WAIT_PARTS] = "", /* no event is under way */
};

const char *const source_names[SOURCES] = {
	[SOURCE_HOST] = "host",
	[SOURCE_NVME] = "nvme",
	[SOURCE_REDIS] = "redis",
	[SOURCE_GPU] = "gpu",
};

const enum tier_id source_tiers[SOURCES] = {
	[SOURCE_HOST] = TIER_HOST,
	[SOURCE_NVME] = TIER_NVME,
	[SOURCE_REDIS] = TIER_REDIS,
	[SOURCE_GPU] = TIER_GPU,
};

/* --- the run queue --- */

void task_push(struct list *ready, struct task *task)
{
	if (!list_has(&task->ready))
		list_add(ready, &task->ready);
}

bool task_run(struct list *ready, uint32_t max, void (*run)(struct task *task))
{
	const bool any = !list_empty(ready);

	for (; max > 0 && !list_empty(ready); max--) {
		struct task *task = container_of(ready->next, struct task, ready);

		list_remove(&task->ready);
		run(task);
	}
	return any;
}

void task_wake(struct task *task)
{
	task->wait = 0;
	list_remove(&task->full);
	task_push(&task->all->ready, task);
}

/* --- the device --- */

void task_wake_full(void *arg, struct device *device)
{
	struct ops *all = arg;

	(void)device; /* tasks that wait for another device are refused again */
	while (!list_empty(&all->full))
		task_wake(container_of(all->full.next, struct task, full));
}

enum step task_job(struct task *task, struct device *device, enum device_job_kind kind,
		   enum step next)
{
	int r;

	task->job.kind = kind;
	task->job.client = task->part->op->client->peer->number;
	r = device_submit(device, &task->job);
	if (r == -EAGAIN) {
		list_add(&task->all->full, &task->full);
		return WAIT_JOBS_FULL;
	}
	assert(r == 0);
	task->step = next;
	return WAIT_JOB;
}

void task_job_done(struct device_job *job)
{
	task_wake(container_of(job, struct task, job));
}

/* --- its image --- */

struct space *task_space(const struct task *task)
{
	return task->part->op->mount->space;
}

uint32_t task_image_bytes(const struct task *task, uint8_t codec)
{
	const struct space *space = task_space(task);

	return codec == CODEC_RAW ? space->raw_shape.image_bytes : space->shape.image_bytes;
}

int task_enter(struct task *task, uint32_t parent, uint32_t *ret)
{
	int r;

	schedule_guarantee(task->all);
	r = copies_enter(task->all->tables, task_space(task), task->job.identity.key,
			 (enum image_codec)task->job.codec_k, &task->where, parent, ret);

	task->placed = r != 0;
	if (r == -ENOSPC)
		quota_refused(task->all->quota, QUOTA_blocks, task_space(task)->tenant_number);
	return r;
}

void task_unplace(struct task *task)
{
	if (task->placed)
		extents_free(task->all->tables, &task->where);
	task->placed = false;
}

/* --- a part's --- */

bool task_is_first(const struct task *task)
{
	return task->part->op->parts.next == &task->part->link;
}

bool task_is_useless(const struct task *task)
{
	const struct part *part = task->part;

	return task->source == SOURCE_REDIS && part->at > part->op->remote_end;
}

/* The client has not allocated all of the page. */
static void note_sparse(const struct task *task)
{
	const struct op *op = task->part->op;
	struct stats_values *v = &task->all->tables->stats->v;
	char about[LOG_ABOUT_BYTES];

	op->client->sparse_blocks++;
	stats_add(op->sqe.op == WIRE_OP_STORE ? &v->store_sparse_blocks_total :
						&v->load_sparse_blocks_total,
		  1);
	log_warning(
		log_about(about, "page_not_allocated", (long)op->client->pid, op->client->id,
			  op->client->name),
		"page %llu is not allocated, and the daemon does not allocate it. libkvtier "
		"touches pages before it lends them; another client must do the same, and must not "
		"punch holes into them",
		(unsigned long long)task->job.page);
}

int task_stopped(const struct task *task)
{
	const int error = task->job.status, early = task->part->op->early;

	if (error == -EFAULT)
		note_sparse(task);
	if (error == -ECANCELED)
		return early ? early : -ECONNRESET; /* cancelled by us, or given up */
	return error == -EFAULT || error == -ETIMEDOUT || error == -EIO ? error : 0;
}
