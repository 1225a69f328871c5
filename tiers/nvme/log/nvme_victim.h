/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme_victim.h - the policy of the log: which segment takes new records next, and which of its own
 * records make room. Pure: no I/O, clock or log, so traces replay by the million
 * (tests/sim/sim_nvme_trace.c). One thread.
 *
 * The victim is the segment whose coldest quarter is colder than that of all others. Places that
 * are free count as the coldest, and the more of the log is free, the less than a quarter is
 * asked for: else many segments would keep some free places each. So few records are dropped that
 * an exact LRU order would have kept.
 *
 * Ages: time is cut into spans. A span that has a 64th of all records gets no more at its ends:
 * another span begins there, and two neighbours with few records join. A segment counts its
 * records by span; it joins spans when it is looked at next.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { NVME_SPANS = 64, NVME_JOINS = 256, NVME_NO_VICTIM = 0xffffffff };

/* The records of a segment. Zeroed, there are none. */
struct nvme_heat {
	uint64_t bytes;          /* of its live records */
	uint64_t full;           /* bytes that its records could have; of a sealed one */
	uint32_t blocks;         /* live records */
	uint32_t joins;          /* of `ages`, that are counted in here */
	bool sealed;             /* it may be a victim */
	uint16_t in[NVME_SPANS]; /* live records, by span */
};

/* All live records. */
struct nvme_ages {
	struct nvme_heat *heat; /* of each segment */
	uint32_t segments;
	uint32_t spans;            /* in use, at least 1 */
	uint8_t order[NVME_SPANS]; /* spans, the oldest first; then those that are free */
	/* of a span: its first tick, but the oldest span has all time before, too; the lowest and
	 * the highest tick that it was given; live records */
	uint64_t begin[NVME_SPANS], low[NVME_SPANS], high[NVME_SPANS];
	uint32_t in[NVME_SPANS];
	uint64_t all, bytes, free; /* live records; their bytes; free ones of sealed segments */
	uint8_t from[NVME_JOINS], into[NVME_JOINS]; /* a ring: the last joins */
	uint32_t joins, swept;                      /* that were; the next segment to join spans */
	uint32_t seed;
};

/* No record of these segments lives. `heat` is zeroed, and the caller's. */
void nvme_ages_open(struct nvme_ages *ages, struct nvme_heat *heat, uint32_t segments);
/* A live record was written, or is found at a start. */
void nvme_ages_put(struct nvme_ages *ages, uint32_t segment, uint64_t tick, uint32_t bytes);
/* A live record does not live any more. `tick`: as it was counted. */
void nvme_ages_take(struct nvme_ages *ages, uint32_t segment, uint64_t tick, uint32_t bytes);
/* A live record was used at `now`. */
void nvme_ages_touch(struct nvme_ages *ages, uint32_t segment, uint64_t tick, uint64_t now);
/* The segment may be a victim; beside its records it has so many bytes, which count where
 * they are enough for a record like these. */
void nvme_ages_seal(struct nvme_ages *ages, uint32_t segment, uint64_t free_bytes);
/* No record of the segment lives any more, and it is no victim. */
void nvme_ages_clear(struct nvme_ages *ages, uint32_t segment);

/* The segment that makes room, or NVME_NO_VICTIM; it is not sealed any more. Its records that were
 * last used before *ret_tick are to be dropped. Looks at a sample where there are more than 512
 * segments. */
uint32_t nvme_victim_pick(struct nvme_ages *ages, uint32_t segment_bytes, uint64_t *ret_tick);
