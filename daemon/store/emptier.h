/* SPDX-License-Identifier: Apache-2.0 */
/*
 * emptier.h - empties a slab of the host tier, so that another class can have it: the images in it
 * move into free slots of their class. Workers copy them, by jobs of bounded size; the core thread
 * copies nothing. Core thread only; nothing is allocated after emptier_open().
 *
 * While an image is copied its block is leased and served from the old slot. An image never
 * changes, so the copy is right even if others read it meanwhile. The block moves when the copy is
 * there and nobody else has a lease on it. One slab is emptied at a time; a caller that wants
 * another one waits (mover.h).
 */
#ifndef KVTIER_EMPTIER_H
#define KVTIER_EMPTIER_H

#include <stdbool.h>
#include <stdint.h>

#include "block.h"

struct device_job;
struct emptier;
struct loop;

enum {
	EMPTIER_JOBS = 4,        /* in flight at once: a device must have room for so many */
	EMPTIER_JOB_COPIES = 32, /* images of one job at most... */
	/* ...and begun only while the others are smaller together */
	EMPTIER_JOB_BYTES = 1 << 20,
};

struct emptier_conf {
	struct tier *host;
	struct blocks *blocks;
	/* NULL: somebody else calls emptier_turn(). Else it is called in every turn, and as jobs
	 * end. */
	struct loop *loop;
	/* As device_submit(). A job of kind DEVICE_COPY: 0, or -EAGAIN. `done` runs later, on the
	 * core thread. */
	int (*submit)(void *arg, struct device_job *job);
	void *arg;
	uint64_t *moved_blocks, *moved_bytes; /* counted up by the images that have moved */
};

/* 0, -ENOMEM. */
int emptier_open(const struct emptier_conf *conf, struct emptier **ret);
void emptier_close(struct emptier *e); /* no job is in flight. NULL is fine */

/* Empties a slab in whose class there is room for all that is in it, for the sake of an image of
 * `bytes`. None is being emptied. */
void emptier_begin(struct emptier *e, uint32_t slab, uint32_t bytes);
bool emptier_busy(const struct emptier *e); /* a slab is being emptied; NULL: no */
/* No job is in flight: images left in the slab wait for leases of others. */
bool emptier_stuck(const struct emptier *e);
/* Images that have not moved stay; the slab is as it was, as soon as no job is in flight. */
void emptier_give_up(struct emptier *e);
/* The slot that an image of this size is owed, since a slab was emptied for one; false: none. A
 * slab that is free would be anybody's, before the parts that waited for it are told. A slab that
 * no part comes for within a few turns is free. */
bool emptier_take(struct emptier *e, uint32_t bytes, struct extent *ret);
void emptier_let_go(struct emptier *e); /* of such a slot, now */
/* Starts jobs, and moves images that are copied. Whether there was anything to do. */
bool emptier_turn(struct emptier *e);

#endif
