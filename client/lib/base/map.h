/* SPDX-License-Identifier: Apache-2.0 */
/*
 * map.h - reads from the daemon's index which keys are present, without a system call and without a
 * lock. Any number of threads may read at once. The answers are hints, because only an op pins
 * blocks. client/abi/wire.h has the layout.
 */
#ifndef KVTIER_MAP_H
#define KVTIER_MAP_H

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

/* How many leading keys of a chain are present, in the space with this index key. A parent outlives
 * its children, so a few probes decide. If a damaged block left a gap, the answer is the end of one
 * of the stretches that are present. *ret_places, which may be NULL, is for wire_tiers(): the
 * places of the last present key, or 0 if no key is present. */
size_t map_prefix(const struct map *map, const struct fingerprint_key *index_key,
		  const struct kvtier_key *keys, size_t n, uint32_t *ret_places);

/* Looks each key up by itself: its tiers (enum kvtier_tier, or'ed; GPU means any GPU), or 0 if it
 * is absent. */
void map_probe(const struct map *map, const struct fingerprint_key *index_key,
	       const struct kvtier_key *keys, size_t n, uint8_t *ret_tiers);

#endif
