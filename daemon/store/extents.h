/* SPDX-License-Identifier: Apache-2.0 */
/*
 * extents.h - calls on an image by where it lies: tier_*() (tier.h) of the tier that the extent
 * names. So the holder of an extent need not know its tier. Core thread only.
 */
#ifndef KVTIER_EXTENTS_H
#define KVTIER_EXTENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "tiers/tier.h"

struct store;

/* Addressable tiers. */
void extents_free(const struct store *store, const struct extent *where);
uint8_t *extents_address(const struct store *store, const struct extent *where);
uint32_t extents_bytes(const struct store *store, const struct extent *where);
void extents_set_owner(const struct store *store, const struct extent *where, uint32_t block);
/* Any tier, also a tier that is not configured. */
bool extents_readable(const struct store *store, const struct extent *where);
void extents_forget(const struct store *store, const struct extent *where, uint64_t tick);
void extents_touch(const struct store *store, const struct extent *where, uint64_t tick,
		   uint64_t now_tick);

/* Where the block lies in host memory; false: it is away. */
bool extents_in_host(const struct store *store, uint32_t block, struct extent *ret);
/* Where the copy of this number on a device lies (copy_table.h), which is there. */
struct extent extents_beside(const struct store *store, uint32_t unit, uint32_t copy);
/* Whether a block that is away could be read now, and where from (ret may be NULL). */
bool extents_away(const struct store *store, uint32_t block, struct extent *ret);
/* A tier that keeps its images over a restart would take this block now. */
bool extents_durable(const struct store *store, const uint8_t key[32]);

#endif
