/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grow.h - copies that grow: the images that a load with layer groups leaves in the memory of its
 * GPU, a group at a time. A load without groups leaves them by near.h. Core thread only.
 *
 *	            grow_join, of group 0            the last layer came
 *	nothing ──────────────────────────> growing ─────────────────────> the block's copy
 *	                                       │
 *	                                       └──> free: a group's job did not leave its layers, or
 *	                                            left them of another image; or the op has ended
 *
 * Invariants
 *   W1 a copy is of one image: each group was of an image with the same checksum.
 *   W2 its slot is free only when no job of its groups is in flight.
 *   W3 it has no bytes of another space: all layers are put over what was there, and of what is no
 *      layer's, the first group's job makes zeroes (device_keep.scrub).
 */
#ifndef KVTIER_GROW_H
#define KVTIER_GROW_H

#include <stdint.h>

#include "daemon/base/list.h"

struct growing;
struct op;
struct part;

struct grow {
	struct growing *pool;
	struct list free, *buckets; /* by op, and by position in it */
};

int grow_open(struct grow *g);   /* 0; -ENOMEM: grow_close() copes */
void grow_close(struct grow *g); /* nothing grows */

/* A group of a block, whose image has so many bytes in host memory, is about to be served: its job
 * is to leave the group's layers on the GPU, too, if the copy grows or can begin to. Never a
 * failure. Twice is fine. */
void grow_join(struct part *part, uint32_t bytes);
/* Its job has ended, or was not begun. Twice is fine. */
void grow_leave(struct part *part);
/* The op has no part any more. */
void grow_end(struct op *op);

#endif
