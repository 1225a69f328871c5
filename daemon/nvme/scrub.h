/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scrub.h - reads every copy of every block back and verifies it, for `kvtierctl verify`: in host
 * memory, on NVMe, in the memory of GPUs. Core thread only. A few blocks at a time, so that engines
 * hardly notice.
 */
#ifndef KVTIER_SCRUB_H
#define KVTIER_SCRUB_H

#include <stdbool.h>
#include <stdint.h>

#include "tiers/tier.h"

struct devices;
struct loop;
struct scrub;
struct store;

/* copies in hand at once; bad ones kept until they are asked for */
enum { SCRUB_JOBS = 4, SCRUB_BAD = 256 };

struct scrub_report {
	uint64_t checked_blocks, checked_bytes; /* copies */
	/* gone or moved meanwhile; disk away; unknown space; on a GPU, and no other copy is good */
	uint64_t skipped_blocks;
	uint64_t walked_blocks, total_blocks; /* how far it is */
	uint64_t bad_blocks, dropped_blocks;  /* copies that are bad; that went */
	bool done;
};

struct scrub_bad {
	uint8_t key[32];
	uint32_t space;
	enum tier_id tier;
	uint32_t disk, segment; /* host: slab; GPU: which, slab */
	bool dropped;
};

struct scrub_conf {
	struct store *store;
	struct loop *loop;
	/* the CPU verifies, and takes SCRUB_JOBS of the daemon's own; GPUs read back */
	const struct devices *devices;
	uint64_t image_bytes; /* no image is larger */
	/* the running scrub, from scrub_start() until it has freed itself; NULL: none */
	struct scrub **running;
};

/* A bad copy on a GPU is dropped. repair: likewise any other; with its last copy goes the block.
 * -EBUSY: one runs; -ENOMEM. */
int scrub_start(const struct scrub_conf *conf, bool repair, struct scrub **ret);
void scrub_report(const struct scrub *scrub, struct scrub_report *ret);
/* The next bad copy, each one once. SCRUB_BAD of them are kept: then the scrub pauses until one is
 * taken. */
bool scrub_next_bad(struct scrub *scrub, struct scrub_bad *ret);
/* At any time. The scrub frees itself when no disk and no worker has anything of it. */
void scrub_end(struct scrub *scrub);
/* The buffer of a read that was given up is free again: from the NVMe tier, through copies.c. */
void scrub_release(struct scrub *scrub, const struct extent *home);

#endif
