/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slab_lists.h - the lists that an allocator (slabs.h) keeps its slabs in, by number: of each unit
 * the slabs that are free; and of each class, by unit and by how full they are. It knows nothing of
 * slots. Core thread only.
 *
 * A slab is in one list at most. Its unit is given and never changes. A fill is in sixteenths of a
 * slab, rounded down, so that all here is O(SLAB_FILLS) a unit, for any capacity.
 */
#ifndef KVTIER_SLAB_LISTS_H
#define KVTIER_SLAB_LISTS_H

#include <stdint.h>

#include "tier.h"

enum { SLAB_FILLS = 17 /* the last: full */, SLAB_NONE = 0xffffffff };

struct slab_lists {
	const uint8_t *units; /* by slab, the caller's; NULL: all are of unit 0 */
	uint32_t n_units;     /* > 0, at most TIER_MAX_NODES */
	struct slab_link {
		uint32_t next, prev; /* SLAB_NONE ends */
	} * links;
	uint32_t *heads;
	uint32_t n_free, free_of[TIER_MAX_NODES]; /* free slabs: all, by unit */
};

/* Where a slab of a class is. */
struct slab_place {
	uint32_t class;
	uint8_t fill;
};

/* 0, -ENOMEM. */
int slab_lists_open(struct slab_lists *l, uint32_t n_slabs, const uint8_t *units, uint32_t n_units);
void slab_lists_close(struct slab_lists *l); /* zeroed, or half-open: fine */
uint32_t slab_unit(const struct slab_lists *l, uint32_t slab);

/* place NULL: free. The slab must be in no list (add), in the list of `place` (remove). */
void slab_lists_add(struct slab_lists *l, uint32_t slab, const struct slab_place *place);
void slab_lists_remove(struct slab_lists *l, uint32_t slab, const struct slab_place *place);

/* For an image of this class (SLAB_NONE: its slots are no choice): of this unit the fullest slab
 * that is not full, or a free one. Where that unit has neither, or is none (>= n_units): of all
 * units the fullest, or a free one of the unit that has most. SLAB_NONE: there is none. */
uint32_t slab_lists_pick(const struct slab_lists *l, uint32_t class, uint32_t unit);
/* The fullest of a class that is not full: of this unit; of any. SLAB_NONE: there is none. */
uint32_t slab_lists_fullest_of(const struct slab_lists *l, uint32_t class, uint32_t unit);
uint32_t slab_lists_fullest(const struct slab_lists *l, uint32_t class);
/* The slabs of a class, sparsest first: the first of them; the next after this slab, which is at
 * `place`. */
uint32_t slab_lists_sparsest(const struct slab_lists *l, uint32_t class);
uint32_t slab_lists_after(const struct slab_lists *l, uint32_t slab,
			  const struct slab_place *place);

#endif
