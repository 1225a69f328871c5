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
#include "step.h"
#include "tiers/tier.h"
#include "walk.h"

struct source_ops;

struct flight {
	struct walker w;   /* job: VERIFY. lease: from NVMe at once, from Redis when it was kept */
	struct list link;  /* in the bucket of its key: parts may join; or in the pool */
	struct list parts; /* at least one; the first pays (F5) */
	const struct source_ops *from;
	/* its word to its parts at its end: see part.h */
	int brought;
	bool given_up; /* the last part waits for the end, nobody joins */
	/* the image is there, and verified: its parts use it until they leave */
	bool landed;
	bool credited;  /* a part counted its bytes as read from the source */
	bool asked;     /* room may be made for it */
	bool reread;    /* from_nvme.c: it was read before, and was bad */
	uint32_t bytes; /* of the image, as far as is known; 0: nobody knows */
	struct xfer xfer;
};

/* The parts that differ by source. Each returns at once; a step is the flight's next one. */
struct source_ops {
	/* for a tier that takes no more now; else that is an error */
	bool waits;
	void (*begin)(struct flight *f, uint32_t block);
	enum step (*look)(struct flight *f);   /* before ROOM and READ: FLIGHT_ROOM: go on */
	enum step (*failed)(struct flight *f); /* xfer.status says why */
	enum step (*bad)(struct flight *f);    /* the bytes read are no image of the block */
	void (*landed)(struct flight *f);      /* NULL: nothing more to do */
};

struct flights {
	struct list free, full; /* full: a tier had no room for them */
	uint32_t n_parts;       /* that have joined one */
	uint32_t mask;
	struct list *buckets; /* by key */
	struct flight *pool;
};

int flights_open(struct flights *flights, uint32_t max); /* -ENOMEM: flights_close() copes */
void flights_close(struct flights *flights);             /* none is under way */

/* For step.c. */
enum step flight_probe(struct walker *w);
enum step flight_room(struct walker *w);
enum step flight_read(struct walker *w);
enum step flight_fail(struct walker *w);
enum step flight_verify(struct walker *w);
enum step flight_land(struct walker *w);
enum step flight_miss(struct walker *w);
enum step flight_again(struct walker *w);

/* Whose walker this is; NULL: a part's. */
struct flight *flight_of(struct walker *w);
/* For pump.c: it lets go of its parts, and is in the pool again. */
void flight_over(struct flight *f);

/* The part joins the flight that brings its block: one under way, or else a new one from this
 * source. block: its number where a local tier has it, else BLOCK_NONE. The part is woken when the
 * flight has landed (part->flight is still set) or has let go of the part (part->flight is NULL,
 * and part->brought says why). */
void flight_join(struct part *part, enum source source, uint32_t block);
/* The part leaves. False: it is the last one, and a tier or the device still has the slot. The part
 * stays, and is woken when the slot is back. */
bool flight_leave(struct part *part);

#endif
