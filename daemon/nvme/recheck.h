/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recheck.h - images in GPUs' memory that outlived the daemon (store/parked.h) are compared with
 * their blocks' sealed images on NVMe, in the background, and serve again or go. Core thread only.
 * For each GPU one at a time:
 *
 *	claim ─> HEAD, the record's, from NVMe ─> BYTES, from the GPU ─> VERIFY ─> a copy
 *	  └──────────┴─────────────────────────────────┴───────────────────┴─> its slot is free
 *
 * The header of the record on NVMe has the checksum, which a worker makes of the GPU's bytes. So 4
 * KiB are read from NVMe for each image, and the image crosses the wire once.
 */
#ifndef KVTIER_RECHECK_H
#define KVTIER_RECHECK_H

#include <stdbool.h>
#include <stdint.h>

struct devices;
struct extent;
struct loop;
struct recheck;
struct store;

enum { RECHECK_JOBS = 16 }; /* of the CPU at once: one a GPU */

struct recheck_conf {
	struct store *store;
	struct loop *loop;
	/* the CPU verifies, and takes RECHECK_JOBS of the daemon's own; GPUs read back, and take
	 * one */
	const struct devices *devices;
	uint64_t image_bytes; /* no image is larger */
};

/* 0, -ENOMEM. There is an NVMe tier. */
int recheck_open(const struct recheck_conf *conf, struct recheck **ret);
/* Nothing is in flight. NULL is fine */
void recheck_close(struct recheck *recheck);
/* Takes no further image: images that were not checked wait for the next daemon. NULL is fine */
void recheck_end(struct recheck *recheck);
bool recheck_busy(const struct recheck *recheck); /* NULL: no */
/* The buffer of a read that was given up is free again: from the NVMe tier, through nvme_up.c. */
void recheck_release(struct recheck *recheck, const struct extent *home);
/* Such a read's home. */
bool recheck_is_home(const struct extent *home);

#endif
