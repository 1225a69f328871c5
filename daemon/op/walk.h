/* SPDX-License-Identifier: Apache-2.0 */
/*
 * walk.h - a walker through the steps (step.h), a part or a flight: the event that it waits for,
 * and the things that it holds on its way. Core thread only.
 *
 * Waking is a push on the run queue and never a call. So a waker changes nothing but that queue,
 * and a walker runs with no other one half done below it on the stack. pump.c empties the queue, in
 * the same turn of the loop.
 */
#ifndef KVTIER_WALK_H
#define KVTIER_WALK_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/list.h"
#include "daemon/device/device.h"
#include "daemon/store/lease.h"
#include "step.h"
#include "tiers/tier.h"

struct ops;
struct part;
struct space;

/* Embedded in its owner. */
struct walker {
	struct list ready; /* in the run queue: it can go on */
	struct list room;  /* among the walkers that wait for a slot (room.h) */
	struct list full;  /* among the walkers that the device, or a tier, had no room for */
	struct ops *all;
	struct part *part; /* itself; a flight's first one, in whose name the flight walks */
	enum step step;
	enum step wait; /* the event that it waits for; 0: nothing */
	enum source source;
	bool placed;         /* owns `where` */
	struct extent where; /* of the image */
	struct lease lease;
	struct device_job job; /* its block's key, too (identity), and the slot (image) */
};

/* Into a run queue, once: a walker that is ready keeps its place. */
void walk_push(struct list *ready, struct walker *w);
/* Runs the first `max` of a run queue, also walkers that the first ones wake. Returns whether there
 * was one. */
bool walk_run(struct list *ready, uint32_t max, void (*run)(struct walker *w));

/* It can go on: its step runs in this turn of the loop. */
void walk_wake(struct walker *w);
/* For devices_on_room(): walkers that a device had no room for try again. */
void walk_wake_full(void *ops, struct device *device);
/* Lends the job to the device, which goes on with step `next`: returns the event that it waits for.
 * Where the device takes no more jobs now, the same step runs again when it does. Of the job the
 * fields that its kind needs are set, and done: to walk_job_done(), or to a function that ends with
 * walk_wake(). */
enum step walk_job(struct walker *w, struct device *device, enum device_job_kind kind,
		   enum step next);
void walk_job_done(struct device_job *job);

/* Of its block. */
struct space *walk_space(const struct walker *w);
/* The sizes of an image of the space with this codec. */
uint32_t walk_image_bytes(const struct walker *w, uint8_t codec);
/* The image in its slot becomes a block: copies_enter(). Of the job: identity.key, codec_k. */
int walk_enter(struct walker *w, uint32_t parent, uint32_t *ret);
/* Gives its slot back, if it has one. */
void walk_unplace(struct walker *w);

/* Of a part: the parts of its op before it have ended, so its turn has come. */
bool walk_is_first(const struct walker *w);
/* Of a prefetch, which ends at the first block that Redis does not have: it is behind that
 * block. */
bool walk_is_useless(const struct walker *w);
/* The device ended the part's job between two pieces, or failed: the status for the client. 0:
 * neither. */
int walk_stopped(const struct walker *w);

#endif
