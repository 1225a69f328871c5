/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_inner.h - the host tier's tables, for host.c (allocation) and host_view.c (what is known of slots and slabs)
 * and nobody else. What they mean and what always holds: host.c. Core thread only.
 */
#ifndef KVTIER_HOST_INNER_H
#define KVTIER_HOST_INNER_H

#include "host_memory.h"

enum { HOST_FILLS = 17 /* the last: full */ };

struct slot {
	uint32_t generation;
	uint32_t owner;
};

struct slab {
	uint32_t next, prev;		/* in its list; HOST_NO_SLAB ends */
	uint32_t used;
	uint32_t fresh;			/* slots from here on were not used since the slab got its class */
	int32_t  free_slot;		/* of those below: first free one, or -1 */
	uint8_t  class;			/* TIER_MAX_CLASSES: none */
	uint8_t  fill;
};

struct class {
	uint32_t slot_bytes;
	uint32_t slots;			/* a slab */
	uint32_t slabs;
	uint32_t used;
	uint32_t head[HOST_FILLS];
};

struct host {
	struct tier base;
	struct host_memory *memory;
	uint8_t *bytes;
	uint64_t slab_bytes;
	uint32_t n_slabs;
	uint32_t n_classes;		/* indices that were ever in use are below */
	uint32_t free_slabs, free_head;
	struct slab *slabs;
	struct slot *slots;
	uint64_t slots_bytes;
	struct class classes[TIER_MAX_CLASSES];
};

/* host_view.c */
struct host *host_of(const struct tier *t);
struct slot *host_slot_at(const struct host *h, uint32_t slab, uint32_t slot);
/* The slot of an extent; NULL when it is stale or never was one. */
struct slot *host_slot_live(const struct host *h, const struct extent *where);

#endif
