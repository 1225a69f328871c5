/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme_victim.h - which segment is used again, and which of its blocks are carried over. Pure: no
 * I/O, clock, log or state, so traces replay by the million (tests/sim/sim_nvme_trace.c).
 *
 * The victim is the segment whose live blocks have the lowest mean recency; a segment without live
 * blocks costs nothing and goes first. The victim's live blocks of the newer half of the whole log
 * are carried over, the newest first, up to 75 % of the victim's bytes. So every reclaim gains at
 * least a quarter. (libc sorts, and may take scratch memory for it: a few times for each segment
 * that is used again.) The middle of the log is estimated as the median of the segments' means,
 * each with the weight of its blocks.
 */
#ifndef KVTIER_NVME_VICTIM_H
#define KVTIER_NVME_VICTIM_H

#include <stdbool.h>
#include <stdint.h>

enum { NVME_NO_VICTIM = 0xffffffff, NVME_CARRY_PERCENT = 75 };

/* A segment as the policy sees it. */
struct nvme_heat {
	uint64_t tick_sum; /* last accesses of its live blocks */
	uint32_t blocks;   /* live ones */
	bool eligible;     /* sealed; nothing holds it */
};

/* A block of the victim. */
struct nvme_candidate {
	uint64_t tick;
	uint32_t bytes; /* its record's */
	uint32_t entry; /* the caller's */
	bool live;
	bool wanted; /* carried over at any age, before the others */
	bool carry;  /* the answer */
};

/* The victim, or NVME_NO_VICTIM: none is eligible. O(n). */
uint32_t nvme_victim_pick(const struct nvme_heat *heat, uint32_t n);
/* Mean recency below which a block belongs to the older half. scratch: n numbers. O(n log n). */
uint64_t nvme_victim_middle(const struct nvme_heat *heat, uint32_t n, uint32_t *scratch);
/* Sorts the candidates, first the ones that are carried over, and marks these. Returns how many. */
uint32_t nvme_victim_carry(struct nvme_candidate *candidates, uint32_t n, uint64_t middle,
			   uint64_t room_bytes);

#endif
