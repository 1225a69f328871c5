/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_nvme_kill.h - the kill -9 loop over the NVMe tier, for sys_nvme_kill.c and soak_nvme_kill.c.
 *
 * A life: the daemon starts, blocks that must be there are loaded and compared. Then stores, loads,
 * prefetches and flushes go on, several at a time, until the daemon is killed with them under way.
 * The model knows the acknowledged flushes: a block is *kept* when it was present before a flush
 * began that was acknowledged (`kvtierctl flush` exited 0, even if that was seen after the kill).
 * Rule: every block is its own bytes or a miss, in any life; and a kept block is there, as long as
 * its store took nothing back and was not damaged.
 */
#pragma once

#include "lib_disk.h"

enum kill_kind {
	KILL_ROOMY, /* nothing is reclaimed: kept blocks must hit */
	KILL_TIGHT, /* a few segments, reclaimed all the time */
	KILL_HURT,  /* tight, and the file is damaged between lives */
};

struct kill_counts {
	uint32_t kills;
	/* blocks: had to be there, were there, were not (and need not) */
	uint64_t kept, whole, missed;
	uint32_t flushes;        /* acknowledged */
	uint32_t cut;            /* ops that the kill caught under way */
	uint32_t hurts, refused; /* refused: lives that the store was not opened in */
};

/* Ends the test when the rule is broken. Prints the events. */
void kill_loop(const char *engine, enum kill_kind kind, uint32_t kills, uint64_t seed,
	       struct kill_counts *ret);
