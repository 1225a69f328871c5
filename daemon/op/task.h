/* SPDX-License-Identifier: Apache-2.0 */
/*
 * task.h - tasks. A task is a part (one block of an op) or a flight (one block that is brought into
 * host memory). It goes from step to step, and waits for one event at a time. Each step has a rule
 * that says what a task may hold when the step begins. The table of steps is in task.c, and op.c
 * runs the steps. Core thread only.
 *
 *	store:	ADMIT -> PLACE -> ENCODE ~> COMMIT
 *		  |        ^        | FP8 cannot hold it: PLACE again, raw
 *		  |        `--------'
 *		  `-> COMMIT	it is here already, or it failed; its place in the chain still comes
 *
 *	load:	LOOKUP -> SERVE ~> CHECK -> END			it is in host memory, or on the GPU
 *		  `-> BRING ~> SERVE ~> CHECK [-> KEEP] -> END	a flight brings it
 *
 *	prefetch: LOOKUP -> END, or LOOKUP -> BRING ~> [KEEP ->] END
 *
 *	hint:	APPLY (of keys; or of the next block of a session; or of a revision)
 *
 * ~> waits for something that ends by itself. [] are steps of blocks that come from Redis. flight.c
 * shows the steps of a flight.
 *
 * An op that is told to end (deadline, cancel, a closed space, a dead client) sends its parts from
 * any step before CHECK or COMMIT straight to END or COMMIT: step_rule.early says which.
 *
 * To wake a task is to push it on the run queue, never to call it. So a waker changes that queue
 * alone, and no other task is half done on the stack while a task runs. op.c empties the queue in
 * the same iteration of the loop.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "daemon/device/device.h"
#include "daemon/move/copies.h"
#include "tiers/tier.h"

struct ops;
struct part;
struct space;
struct task;

/* A step returns the next step, DONE, or the event that the task waits for. When that event has
 * come, the same step runs again, unless another step was set meanwhile. */
enum step {
	STORE_ADMIT,
	STORE_PLACE,
	STORE_ENCODE,
	STORE_COMMIT,
	LOAD_LOOKUP,
	LOAD_BRING,
	LOAD_SERVE,
	LOAD_CHECK,
	LOAD_KEEP,
	LOAD_END,
	HINT_APPLY,
	FLIGHT_PROBE,
	FLIGHT_ROOM,
	FLIGHT_READ,
	FLIGHT_FAIL,
	FLIGHT_VERIFY,
	FLIGHT_LAND,
	FLIGHT_MISS,
	FLIGHT_AGAIN,
	STEPS,
	DONE = STEPS,
	WAIT_JOB,       /* the device works on its page or image */
	WAIT_READ,      /* a tier has its transfer */
	WAIT_ROOM,      /* no slot of host memory can be had now */
	WAIT_TIER_FULL, /* the tier takes no more transfers now */
	WAIT_JOBS_FULL, /* the device takes no more jobs now */
	WAIT_PREVIOUS,  /* the block before it, of the same op */
	WAIT_OTHER,     /* a flight brings the block */
	WAIT_PARTS,     /* a flight that has landed: its parts use the image */
	WAITS
};

/* Where the bytes of a block come from. */
enum source { SOURCE_HOST, SOURCE_NVME, SOURCE_REDIS, SOURCE_GPU, SOURCES };

/* The things that a part or a flight may hold, as bits. */
enum held {
	HELD_SLOT = 1,   /* a slot of host memory that is no block's */
	HELD_LEASE = 2,  /* a block, pinned */
	HELD_FLIGHT = 4, /* a part: it has joined one */
	HELD_PLACE = 8,  /* a place in the queue for room, or for the tier */
	HELD_LENT = 16,  /* the device or a tier has its job or transfer */
	HELD_GPU = 32,   /* a part: a pin or a slot in the memory of a GPU (gpu_cache.h) */
};

struct step_rule {
	enum step (*run)(struct task *task);
	const char *name;   /* as `kvtierctl trace` and the log say it */
	uint32_t must, may; /* must or may be held when the step begins; to hold more is a bug */
	uint32_t either;    /* exactly one of these must be held, too */
	/* the step that follows instead when the op is to end; this step: the part continues */
	enum step early;
};

extern const struct step_rule step_rules[STEPS];
extern const char *const wait_names[WAITS], *const source_names[SOURCES];
extern const enum tier_id source_tiers[SOURCES];

/* Whether a step may begin with this held. */
static inline bool step_allows(enum step step, uint32_t held)
{
	const struct step_rule *rule = &step_rules[step];
	const uint32_t one = held & rule->either;

	return (held & rule->must) == rule->must &&
	       (held & ~(rule->must | rule->may | rule->either)) == 0 &&
	       (rule->either == 0 || (one != 0 && (one & (one - 1)) == 0));
}

/* Embedded in its owner. */
struct task {
	struct list ready; /* in the run queue: it can go on */
	struct list room;  /* among the tasks that wait for a slot (room.h) */
	struct list full;  /* among the tasks that the device, or a tier, had no room for */
	struct ops *all;
	/* the part itself; of a flight: its first part, in whose name it asks for room */
	struct part *part;
	enum step step;
	enum step wait; /* the event that it waits for, or 0 */
	enum source source;
	bool placed;         /* owns `where` */
	struct extent where; /* of the image */
	struct lease lease;
	struct device_job job; /* has the block's key (identity) and the slot (image), too */
};

/* Adds a task to a run queue. A task that is in it already keeps its place. */
void task_push(struct list *ready, struct task *task);
/* Runs the first `max` of a run queue, also tasks that the first ones wake. Returns whether there
 * was one. */
bool task_run(struct list *ready, uint32_t max, void (*run)(struct task *task));

/* The task can go on: its step runs in this iteration of the loop. */
void task_wake(struct task *task);
/* For device_hooks: wakes the tasks that a device had no room for. */
void task_wake_full(void *ops, struct device *device);
/* Lends the job to the device, which goes on with step `next`: returns the event that it waits for.
 * Where the device takes no more jobs now, the same step runs again when it does. The fields
 * of the job that its kind needs are set, and done: to task_job_done(), or to a function that ends
 * with task_wake(). */
enum step task_job(struct task *task, struct device *device, enum device_job_kind kind,
		   enum step next);
void task_job_done(struct device_job *job);

/* The space of its block. */
struct space *task_space(const struct task *task);
/* The sizes of an image of the space with this codec. */
uint32_t task_image_bytes(const struct task *task, uint8_t codec);
/* Makes a block of the image in the task's slot: copies_enter() with identity.key and codec_k of
 * its job. */
int task_enter(struct task *task, uint32_t parent, uint32_t *ret);
/* Gives its slot back, if it has one. */
void task_unplace(struct task *task);

/* The parts of its op before this part have ended, so it may go on. */
bool task_is_first(const struct task *task);
/* The part is of no use any more: it would ask Redis for a block behind the first one of its op
 * that Redis does not have. */
bool task_is_useless(const struct task *task);
/* The status for the client if the device ended the part's job between two pieces, or failed; else
 * 0. */
int task_stopped(const struct task *task);
