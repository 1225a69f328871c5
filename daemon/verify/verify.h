/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verify.h - reads every copy of every block back and verifies it, for `kvtierctl verify`: in host
 * memory, on NVMe, in the memory of GPUs. It takes a few blocks at a time, so engines hardly notice
 * it. Core thread only.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "tiers/tier.h"

struct devices;
struct loop;
struct verify;
struct tables;

/* copies in hand at once; bad ones kept until they are asked for */
enum { VERIFY_JOBS = 4, VERIFY_BAD = 256 };

struct verify_report {
	uint64_t checked_blocks, checked_bytes; /* copies */
	/* copies that are gone or moved meanwhile, whose disk is away, whose space is not known, or
	 * that are on a GPU while no other copy is good */
	uint64_t skipped_blocks;
	uint64_t walked_blocks, total_blocks; /* how far it is */
	uint64_t bad_blocks, dropped_blocks;  /* copies that are bad; that were dropped */
	bool done;
};

struct verify_bad {
	uint8_t key[32];
	uint32_t space;
	enum tier_id tier;
	uint32_t disk, segment; /* host: slab; GPU: which, slab */
	bool dropped;
};

struct verify_conf {
	struct tables *tables;
	struct loop *loop;
	/* the CPU verifies, and takes VERIFY_JOBS of the daemon's own; GPUs read back */
	const struct devices *devices;
	uint64_t image_bytes; /* no image is larger */
	/* the running verify, from verify_begin() until it has freed itself; NULL: no verify
	 * runs */
	struct verify **running;
};

/* A bad copy on a GPU is dropped, and with `drop` any bad copy is; a block is dropped with its last
 * copy. -EBUSY: one runs; -ENOMEM. */
int verify_begin(const struct verify_conf *conf, bool drop, struct verify **ret);
void verify_report(const struct verify *verify, struct verify_report *ret);
/* Takes the next bad copy; each one comes once. VERIFY_BAD of them are kept. When so many wait, the
 * verify pauses until one is taken. */
bool verify_next_bad(struct verify *verify, struct verify_bad *ret);
/* At any time. It frees itself when no disk and no worker has anything of it. */
void verify_cancel(struct verify *verify);
/* The buffer of a read that was given up is free again: from the NVMe tier, through copies.c. */
void verify_release(struct verify *verify, const struct extent *home);
