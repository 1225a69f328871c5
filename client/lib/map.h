/* SPDX-License-Identifier: Apache-2.0 */
/*
 * map.h - reading the daemon's index: which keys are present, with no syscall and no lock. Any
 * thread, any number of them. Answers are hints: only an op pins blocks. Layout: client/wire.h.
 */
#ifndef KVTIER_MAP_H
#define KVTIER_MAP_H

#include <stddef.h>
#include <stdint.h>

#include "client/fingerprint.h"
#include "client/kvtier.h"
#include "client/wire.h"

struct map;

/* Maps the index read-only; index_fd stays the caller's and may be closed. -EPROTO: not of `bytes`
 * bytes, not sealed against change of size (a read could then fault), or not an index of this
 * layout. */
int map_open(int index_fd, uint64_t bytes, struct map **ret);
void map_close(struct map *map); /* NULL is fine */
/* read its words with __atomic_load_n */
const struct wire_index *map_head(const struct map *map);

/* How many leading keys of a chain are present, in the space with this index key. Presence is
 * monotone along a chain (a parent outlives its children), so a few probes decide; where a damaged
 * block left a gap, the answer is the end of some present stretch. Outputs (may be NULL) are of the
 * last present key, 0 when there is none; places: for wire_tiers(). */
size_t map_prefix(const struct map *map, const struct fingerprint_key *index_key,
		  const struct kvtier_key *keys, size_t n, uint32_t *ret_places,
		  uint32_t *ret_generation);

/* Each key on its own: enum kvtier_tier bits, also for copies on any GPU; 0 = absent. */
void map_probe(const struct map *map, const struct fingerprint_key *index_key,
	       const struct kvtier_key *keys, size_t n, uint8_t *ret_tiers);

#endif
