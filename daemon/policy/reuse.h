/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reuse.h - how blocks are used again: what the hit rate would be with less or more memory, how
 * much is in use, and how long blocks stay. It is a sample of keys (SHARDS of a fixed size,
 * Waldspurger et al., FAST 2015): a keyed hash picks the same part of all keys each time, so the
 * order of their uses is that of all keys, on a smaller scale. The sample has REUSE_SAMPLES keys at
 * most, and takes 200 KB, whatever the daemon keeps. All keys are in it until it is full. Then keys
 * leave, and each one that is left counts for more. More of the keys that were used long ago leave:
 * there are many of these, and they are used seldom. So the hit rates of half to four times the
 * memory are at most two percentage points off, with each seed (tests/sim/sim_reuse.c).
 *
 * A use is a load of a block that is there, or a store of one that is absent: that is the miss of
 * which only the store is seen. A use that finds b bytes of other blocks used since is a hit in
 * every memory that holds these and the block, if the least recently used block is evicted.
 *
 * It does no I/O, reads no clock and allocates memory only at open: tests replay traces
 * (tests/sim/sim_reuse.c). Core thread only.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/histogram.h"

enum { REUSE_SAMPLES = 5000 };

/* They stay the caller's, and count in us, at most 1 ms off, for all blocks: a time of a sampled
 * block counts as often as the block stands for others. */
struct reuse_times {
	struct histogram *gap;  /* from a use of a block to its next one */
	struct histogram *age;  /* of an evicted block: since its first use in memory */
	struct histogram *idle; /* and since its last one */
};

struct reuse;

/* The seed keeps clients from choosing which keys are sampled. -ENOMEM */
int reuse_open(uint64_t seed, const struct reuse_times *times, uint64_t now_ns, struct reuse **ret);
void reuse_close(struct reuse *reuse); /* may be NULL */
/* The time that all other calls go by; it never goes back. */
void reuse_now(struct reuse *reuse, uint64_t now_ns);

/* Blocks of a chain, of so many bytes each, were used and are in memory. key() brings the key of
 * the block at a position below n; false: this block was not used. */
void reuse_chain(struct reuse *reuse, uint32_t n, uint32_t bytes,
		 bool (*key)(void *arg, uint32_t at, uint8_t ret[32]), void *arg);
/* A block was evicted from memory. */
void reuse_leave(struct reuse *reuse, const uint8_t key[32]);

/* How many of a million uses would not be found in a memory of so many bytes. It is about the last
 * days: counts are halved every 12 hours. 0 if there was no use. */
uint32_t reuse_miss_ppm(const struct reuse *reuse, uint64_t bytes);
/* The bytes of all blocks that were used in each of the last n windows, up to a month; five times
 * the memory stand for more, too. */
void reuse_working_set(const struct reuse *reuse, const uint32_t *window_s, uint32_t n,
		       uint64_t *ret_bytes);
/* The memory has so many bytes. A full sample forgets blocks if those used since take five times as
 * many: no answer needs them, and the more of the other keys it has. Call it before the first use,
 * and with each heartbeat. */
void reuse_tick(struct reuse *reuse, uint64_t memory_bytes);
/* One of how many keys is sampled, of those that were used longest ago; and how many keys are in
 * the sample. */
uint64_t reuse_scale(const struct reuse *reuse);
uint32_t reuse_samples(const struct reuse *reuse);
