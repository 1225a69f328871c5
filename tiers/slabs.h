/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slabs.h - an allocator of equal slots in slabs, over any memory: it knows numbers of slabs and
 * offsets, never an address. The host tier is this and main memory; the GPU cache has one for the
 * memory of each GPU.
 *
 * A slab has slots of one size (its class). Each slot has a generation, so that a stale extent
 * never matches, and an owner: the number of the block whose image lies there. Core thread only;
 * no memory is allocated after slabs_open().
 *
 * Emptying a slab: the caller closes the slab first, takes a slot outside for each slot that is in
 * use, and frees the old one when the bytes are there. A closed slab gives no slot to any other
 * caller, and as many slots of its class as it still has in use are kept for the move. So an
 * emptying that was possible when it began stays possible, however many blocks are stored
 * meanwhile. The slab is free when its last slot is.
 */
#pragma once

#include "tier.h"

enum { SLABS_NONE = 0xffffffff, SLABS_NO_OWNER = 0xffffffff };
enum { SLABS_SLOT_LEAST = 4096 }; /* bytes of a slot: a multiple of this */

struct slabs_conf {
	/* whose extents these are; its capacity, used bytes and extents are counted here */
	struct tier *tier;
	uint8_t unit; /* of the extents... */
	/* ...where all are of one; else by slab, each below n_units, the caller's until
	 * slabs_close(); NULL: `unit` */
	const uint8_t *units;
	uint32_t n_units;    /* at most TIER_MAX_NODES */
	uint64_t slab_bytes; /* a multiple of 4096 */
	uint32_t n_slabs;    /* at most TIER_MAX_SLABS */
	/* The number of a slab that became usable since, each once, in any order; SLABS_NONE: no
	 * now. hurry: no slab is free, so a slab that is not quite ready may be given. */
	uint32_t (*more)(void *arg, bool hurry);
	uint32_t (*lost)(void *arg); /* how many slabs will never be usable */
	void *arg;
};

/* 0, -ENOMEM. */
int slabs_open(const struct slabs_conf *conf, struct slabs **ret);
void slabs_close(struct slabs *s); /* may be NULL */

/* A slot of this unit while there is one, then of any; TIER_ANY_UNIT: whichever slab is fullest.
 * -ENOSPC: something must be freed first; -E2BIG: larger than a slab. The slot has no owner. */
int slabs_alloc(struct slabs *s, uint32_t bytes, uint32_t unit, struct extent *ret);
void slabs_free(struct slabs *s, const struct extent *where); /* a live extent */
/* Where the slot lies, from the beginning of the memory; UINT64_MAX: the extent is stale, or not of
 * these slabs. */
uint64_t slabs_offset(const struct slabs *s, const struct extent *where);

/* The extent of a slot in use; -ESTALE: it is not. */
int slabs_extent(const struct slabs *s, uint32_t slot, struct extent *ret);
/* Slots by number, for a side table of the caller's. Where all slots are of one size and in use,
 * their numbers have no gaps, so such a table takes memory as slots are used. The slot is in use
 * (-ESTALE: it is not). */
uint32_t slabs_number(const struct slabs *s, const struct extent *where);
int slabs_numbered(const struct slabs *s, uint32_t number, struct extent *ret);
/* The class an image of `bytes` goes to; -1: a new one, which needs a free slab. */
int slabs_class_of(const struct slabs *s, uint32_t bytes);
/* The bytes that a slot for `bytes` takes; 0: larger than a slab. */
uint32_t slabs_slot_bytes(const struct slabs *s, uint32_t bytes);
uint64_t slabs_slab_bytes(const struct slabs *s); /* no image may be larger */
/* The bytes that the slot of a live extent holds; 0: stale. */
uint32_t slabs_extent_bytes(const struct slabs *s, const struct extent *where);
uint32_t slabs_classes(const struct slabs *s); /* class indices in use are below this */
/* Counts the slots that a request of this class could be given: without the slots of a closed slab,
 * and without slots kept for its move. */
void slabs_class_view(const struct slabs *s, uint32_t class, struct tier_class_view *ret);
uint32_t slabs_free_slabs(struct slabs *s);
/* The slabs of a class, sparsest first (to a sixteenth of a slab): SLABS_NONE starts, and ends.
 * No slot may be allocated or freed in between. A closed slab is not among them. */
uint32_t slabs_next(const struct slabs *s, uint32_t class, uint32_t slab);
uint32_t slabs_slab(const struct extent *where); /* the slab that a live extent lies in */
/* Calls fn for each slot in use of one slab, until it says false. fn may free the extent it is
 * given and allocate outside the slab. Returns whether fn never said false. */
bool slabs_walk(struct slabs *s, uint32_t slab, bool (*fn)(void *arg, const struct extent *where),
		void *arg);
/* The owner (block number) that a slot was tagged with; SLABS_NO_OWNER since alloc: being
 * written. */
void slabs_set_owner(struct slabs *s, const struct extent *where, uint32_t owner);
uint32_t slabs_owner(const struct slabs *s, const struct extent *where);
uint32_t slabs_owner_numbered(const struct slabs *s, uint32_t number); /* a slot in use */

/* --- emptying --- */

/* Closes a slab that is in use; at most one is closed. Its class has a free slot outside for each
 * that is in use. */
void slabs_close_slab(struct slabs *s, uint32_t slab);
/* The next slot in use of the closed slab from slot *cursor (0 to start) on; false: there is
 * none. */
bool slabs_closed_next(const struct slabs *s, uint32_t *cursor, struct extent *ret);
/* A slot outside the closed slab, for one of its slots. Later the old slot is freed, or else the
 * new one. -ENOSPC: the class lost a slab meanwhile, so a slab is free. */
int slabs_move_begin(struct slabs *s, struct extent *to);
/* Frees one of the two slots of such a move. */
void slabs_move_end(struct slabs *s, const struct extent *where);
/* slots in use of the closed slab; 0: no slab is closed */
uint32_t slabs_closed_used(const struct slabs *s);
/* it is not emptied after all; no move is under way */
void slabs_reopen(struct slabs *s);
