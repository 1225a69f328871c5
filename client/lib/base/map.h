/* SPDX-License-Identifier: Apache-2.0 */
/*
 * map.h - reads from the daemon's index which keys are present, without a system call and without a
 * lock. Any number of threads may read at once. The answers are hints, because only an op pins
 * blocks. client/abi/wire.h has the layout.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "client/abi/fingerprint.h"
#include "client/kvtier.h"
#include "client/abi/wire.h"

struct map;

/* Maps the index read-only. index_fd remains the caller's, who may close it. -EPROTO: it does not
 * have `bytes` bytes, is not sealed against changes of its size (a read could then fault), or is no
 * index of this layout. */
int map_open(int index_fd, uint64_t bytes, struct map **ret);
void map_close(struct map *map); /* may be NULL */
/* Read its words with __atomic_load_n. */
const struct wire_index *map_head(const struct map *map);

/* For wire_tiers(): the places of the first and the last present key of a prefix; 0 if no key
 * is present. */
struct map_ends {
	uint32_t first, last;
};

/* How many leading keys of a chain are present, in the space with this index key. A parent outlives
 * its children, so a few probes decide. If a damaged block left a gap, the answer is the end of one
 * of the stretches that are present. ret_ends may be NULL. */
size_t map_prefix(const struct map *map, const struct fingerprint_key *index_key,
		  const struct kvtier_key *keys, size_t n, struct map_ends *ret_ends);

enum { MAP_TIERS = 4 };

/* How many of the n leading keys, which map_prefix() has found just now, are served from each tier,
 * the nearest one of several: ret[i] is for the tier with the value 1 << i. gpus is for
 * wire_tiers(). Tiers follow each other along a chain, since its end is demoted first. So a few
 * probes look for the keys at which the tier changes, and no probe is made if both ends are in the
 * same tier. The sum of ret is n. */
void map_spread(const struct map *map, const struct fingerprint_key *index_key,
		const struct kvtier_key *keys, size_t n, const struct map_ends *ends, uint32_t gpus,
		uint32_t ret[MAP_TIERS]);

/* Looks each key up by itself: its tiers (enum kvtier_tier, or'ed; GPU means any GPU), or 0 if it
 * is absent. */
void map_probe(const struct map *map, const struct fingerprint_key *index_key,
	       const struct kvtier_key *keys, size_t n, uint8_t *ret_tiers);
