/* SPDX-License-Identifier: Apache-2.0 */
/*
 * flight.h - a block is brought into host memory, once, for all parts that want it. Core thread
 * only.
 */
#ifndef KVTIER_FLIGHT_H
#define KVTIER_FLIGHT_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/list.h"
#include "daemon/device/device.h"
#include "daemon/store/lease.h"
#include "ready.h"
#include "room.h"
#include "step.h"
#include "tiers/tier.h"

struct ops;
struct part;
struct source_ops;
struct space;

struct flight {
	struct task task;
	/* in the bucket of its key: parts may join; or in the pool */
	struct list link;
	struct list full; /* among those that wait for a tier or the device */
	struct ops *all;
	const struct space *space;
	enum source source;
	const struct source_ops *from;
	enum step step;
	enum wait wait;
	struct list parts; /* at least one; the first pays (F5) */
	bool given_up;     /* the last part waits for the end, nobody joins */
	/* the image is there, and verified: its parts use it until they leave */
	bool landed;
	bool credited;       /* a part counted its bytes as read from the source */
	bool asked;          /* room may be made for it */
	bool reread;         /* from_nvme.c: it was read before, and was bad */
	bool placed;         /* owns `where` */
	struct extent where; /* of the image */
	uint32_t bytes;      /* of the image, as far as is known; 0: nobody knows */
	/* the block: from NVMe at once, from Redis when it was kept */
	struct lease lease;
	struct room_waiter waiter;
	struct xfer xfer;
	struct device_job job; /* VERIFY; identity is the block's */
};

/* What differs by source. Each returns at once; a step is the flight's next one. */
struct source_ops {
	/* for a tier that takes no more now; else that is an error */
	bool waits;
	void (*begin)(struct flight *f, const struct part *first, uint32_t block);
	enum step (*look)(struct flight *f); /* before ROOM and READ: FLIGHT_ROOM: go on */
	/* a transfer is about to be submitted: where from */
	void (*aim)(struct flight *f);
	enum step (*failed)(struct flight *f); /* xfer.status says why */
	enum step (*bad)(struct flight *f);    /* what was read is no image of the block */
	void (*landed)(struct flight *f);
};

extern const struct source_ops from_nvme, from_redis; /* from_nvme.c, from_redis.c */

struct flights {
	struct list free, full; /* full: a tier or the device had no room for them */
	uint32_t n_parts;       /* that have joined one */
	uint32_t mask;
	struct list *buckets; /* by key */
	struct flight *pool;
};

int flights_open(struct ops *ops, uint32_t max); /* -ENOMEM; flights_close() copes with half-open */
void flights_close(struct flights *flights);     /* none is under way */
/* Those that a tier or the device had no room for try again, the first of them. Returns whether it
 * had. */
bool flights_retry(struct flights *flights);

/* The part joins the flight that brings its block: one under way, or else a new one from this
 * source. block: its number where a local tier has it, else BLOCK_NONE. The part is woken when the
 * flight has landed (part->flight is still set) or has let go of the part (part->flight is NULL,
 * and part->brought says why). */
void flight_join(struct ops *ops, struct part *part, enum source source, uint32_t block);
/* The part leaves. False: it is the last one, and a tier or the device still has the slot. The part
 * stays, and is woken when the slot is back. */
bool flight_leave(struct ops *ops, struct part *part);

#endif
