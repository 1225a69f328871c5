/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme_victim.h - the policy of carry-over: which segment is emptied, and which of its records are
 * written again. Pure: no I/O, clock or log, so traces replay by the million
 * (tests/sim/sim_nvme_trace.c). One thread.
 *
 * Ages: time is cut into epochs, each as long as it takes to write a 32nd of the records that live.
 * A segment counts its live records by the epoch of their last access. The oldest epoch of the ring
 * stands for all time before it, too.
 *
 * Credit: carry-over may write 3 % of what callers write. The more of that is saved up, the older
 * the records that are worth carrying over: with nothing saved the newest tenth of all records,
 * with full savings all but the oldest tenth.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { NVME_AGES = 32, NVME_NO_VICTIM = 0xffffffff };

/* The records of a segment. Zeroed, there are none. */
struct nvme_heat {
	uint64_t tick_sum; /* last accesses of its live records */
	uint32_t blocks;   /* live ones */
	uint32_t records;  /* and those that lived */
	uint32_t epoch;    /* as of which ages are counted */
	bool eligible;     /* sealed, and not held */
	uint16_t age[NVME_AGES];
};

/* All live records. Zeroed, there are none. Rings: of epoch e at e % NVME_AGES. */
struct nvme_ages {
	uint64_t begin[NVME_AGES]; /* tick; 0: the epoch was before the first */
	uint32_t blocks[NVME_AGES];
	uint32_t epoch;         /* the present one */
	uint32_t back;          /* nvme_ages_older(): how far */
	uint64_t all, added;    /* records; in this epoch */
	uint64_t least, latest; /* ticks; least: 0 when there was none */
};

/* A record is written now, and will be put: an epoch may begin. */
void nvme_ages_grow(struct nvme_ages *ages);
/* A live record was written, or is found at a start. */
void nvme_ages_put(struct nvme_ages *ages, struct nvme_heat *heat, uint64_t tick);
/* A live record does not live any more, or was accessed at `now`. `tick`: as it was counted. */
void nvme_ages_take(struct nvme_ages *ages, struct nvme_heat *heat, uint64_t tick);
void nvme_ages_touch(struct nvme_ages *ages, struct nvme_heat *heat, uint64_t tick, uint64_t now);
/* No record of the segment lives any more, and others will be written there. */
void nvme_ages_clear(struct nvme_ages *ages, struct nvme_heat *heat);
/* At a start, when records are put newest first: the records from now on are of an older epoch. */
void nvme_ages_older(struct nvme_ages *ages);
/* About this share (0 to 1) of all live records was last accessed before this tick. */
uint64_t nvme_ages_tick(const struct nvme_ages *ages, double share);

/* Bytes that carry-over may write. */
struct nvme_credit {
	double bytes, most;
};

void nvme_credit_open(struct nvme_credit *credit, uint64_t capacity_bytes, uint32_t segment_bytes);
/* Callers wrote so many bytes. */
void nvme_credit_earn(struct nvme_credit *credit, uint64_t bytes);
/* Records that were used after this tick are worth carrying over. */
uint64_t nvme_credit_tick(const struct nvme_credit *credit, const struct nvme_ages *ages);

/* The segment with which the least is lost, or NVME_NO_VICTIM: none is eligible. It looks at a
 * sample where there are more than 512 segments; *seed moves on. */
uint32_t nvme_victim_pick(const struct nvme_ages *ages, struct nvme_heat *heat, uint32_t n,
			  uint64_t carry_tick, uint32_t *seed);

/* A record of the victim. */
struct nvme_candidate {
	uint64_t tick;
	uint32_t bytes; /* its record's */
	uint32_t entry; /* the caller's */
	bool live;
	bool wanted; /* carried over at any age, before the others */
};

/* The candidates are a heap, so that no call takes long: one more joins the `n` that are there. */
void nvme_victim_add(struct nvme_candidate *heap, uint32_t n, const struct nvme_candidate *c);
/* Whether the best of `n`, at least 1, is to be carried over. Then it is at [n - 1], the heap has
 * one less, and its bytes are among *taken. wanted ones: up to room_bytes; others: up to
 * credit_bytes of these. */
bool nvme_victim_take(struct nvme_candidate *heap, uint32_t n, uint64_t carry_tick,
		      uint64_t room_bytes, double credit_bytes, uint64_t *taken);
