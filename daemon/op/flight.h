/* SPDX-License-Identifier: Apache-2.0 */
/*
 * flight.h - a flight brings a block into host memory, once for all parts that want it. Core thread
 * only.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "task.h"
#include "tiers/tier.h"

struct source_ops; /* flight.c: the parts that differ by source */

struct flight {
	/* its job is a VERIFY; it has a lease from the start if NVMe is the source, and once the
	 * block was kept if it is Redis */
	struct task task;
	struct list link;  /* in the bucket of its key: parts may join; or in the pool */
	struct list parts; /* at least one; room is looked for in the name of the first (F5) */
	const struct source_ops *from;
	/* what it tells its parts at its end: see part.h */
	int brought;
	bool given_up; /* the last part waits for its end, and no part joins it any more */
	/* the image is there, and verified: its parts use it until they leave */
	bool landed;
	bool credited;  /* a part counted its bytes as read from the source */
	bool asked;     /* room may be made for it */
	bool reread;    /* NVMe: it was read before, and was bad */
	uint32_t bytes; /* size of the image, as far as it is known; 0: not known */
	struct xfer xfer;
};

struct flights {
	struct list free, full; /* full: a tier had no room for them */
	uint32_t n_parts;       /* that have joined one */
	uint32_t mask;
	struct list *buckets; /* by key */
	struct flight *pool;
};

/* 0 or -ENOMEM; after a failure flights_close() may be called */
int flights_open(struct flights *flights, uint32_t max);
void flights_close(struct flights *flights); /* no flight is under way */

/* For task.c. */
enum step flight_probe(struct task *task);
enum step flight_room(struct task *task);
enum step flight_read(struct task *task);
enum step flight_fail(struct task *task);
enum step flight_verify(struct task *task);
enum step flight_land(struct task *task);
enum step flight_miss(struct task *task);
enum step flight_again(struct task *task);

/* Whose task this is; NULL: a part's. */
static inline struct flight *flight_of(struct task *task)
{
	return task->step < FLIGHT_PROBE ? NULL : container_of(task, struct flight, task);
}
/* For op.c: the flight lets its parts leave, and returns to the pool. */
void flight_over(struct flight *f);

/* The part joins the flight that brings its block: one under way, or else a new one from this
 * source. block: its number where a local tier has it, else BLOCK_NONE. The part is woken when the
 * flight has landed (part->flight is still set) or has sent the part away (part->flight is NULL,
 * and part->brought says why). */
void flight_join(struct part *part, enum source source, uint32_t block);
/* The part leaves. False: it is the last one, and a tier or the device still has the slot. The part
 * stays, and is woken when the slot is back. */
bool flight_leave(struct part *part);
