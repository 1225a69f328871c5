/* SPDX-License-Identifier: Apache-2.0 */
/*
 * near.h - a part and the memory of the GPU that has its pages: a copy that is read there, or a
 * slot that is to become one. Core thread only.
 *
 *	a hit:   near_aim ──pinned──> the job reads it ──> near_settle
 *	a keep:  near_keep ──slot──> the job writes the image there, too ──> near_settle: the
 *	         block's copy, or free
 *
 * A keep is never worth a failure: without room, or where the job did not keep the image, the part
 * goes on as on a GPU without memory for images.
 */
#ifndef KVTIER_NEAR_H
#define KVTIER_NEAR_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/store/beside.h"

struct device_job;
struct mount;
struct space;
struct store;

/* Embedded in its part; zeroed: it has nothing there. */
struct near {
	struct beside_pin pin;
	bool placed; /* owns `where` */
	struct extent where;
	/* the GPU did not have the image that the tables named: this part is served from
	 * elsewhere */
	bool refused;
};

/* The GPU that has the pages has a copy of the block, which a load may be served from. */
bool near_has(const struct store *store, const struct mount *mount, const struct near *near,
	      uint32_t block);
/* The job is to read that copy. False: the copy went meanwhile. At most one pin is taken. */
bool near_aim(struct store *store, const struct mount *mount, struct near *near, uint32_t block,
	      struct device_job *job);
/* The job, which reads or writes an image of so many bytes in host memory, is to keep it on the
 * GPU, too, if there is room and the GPU does not have it yet. At most one slot is taken. */
void near_keep(struct store *store, const struct mount *mount, struct near *near, uint32_t bytes,
	       struct device_job *job);
/* The job has ended, or was not begun. The image that it kept becomes the block's copy if the block
 * is in the table by now; else the slot is free. Twice is fine. */
void near_settle(struct store *store, const struct space *space, struct near *near,
		 const struct device_job *job);
static inline bool near_held(const struct near *near)
{
	return near->placed || near->pin.held;
}

/* A slot on that GPU, the caller's, for the image of so many bytes that the job is about. False:
 * the GPU has the image, or no room for it. */
bool near_take(struct store *store, const struct mount *mount, const struct near *near,
	       uint32_t bytes, const struct device_job *job, struct gpu_slot *ret);
/* The slot has the image that the job was about: it becomes the block's copy if the block is in the
 * table by now; else it is free. */
void near_give(struct store *store, const struct space *space, const struct extent *where,
	       const struct device_job *job);

#endif
