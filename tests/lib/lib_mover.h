/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_mover.h - a real host tier of 64 KiB slabs under a real table of blocks; each image carries
 * its number. An emptier (daemon/store/emptier.h) whose jobs end when the test says so.
 */
#ifndef KVTIER_TESTS_LIB_MOVER_H
#define KVTIER_TESTS_LIB_MOVER_H

#include <stdbool.h>

#include "daemon/store/mover.h"
#include "fault.h"
#include "lib_copier.h"
#include "test.h"
#include "tiers/slabs.h"

enum { KIB = 1024, SLAB = 64 * KIB, BIG = 16 * KIB /* 4 a slab */, SMALL = 8 * KIB /* 8 a slab */ };

/* Of the test's only world; not in it, since a test copies its world. */
extern struct copier world_copier;
extern uint64_t world_moved_blocks, world_moved_bytes;

struct world {
	struct index *index;
	struct blocks *blocks;
	struct tier *host;
	struct mover mover;
	uint64_t tick;
};

struct world world_open(uint32_t slabs);
struct world world_open_of(uint32_t slabs, uint32_t slab_bytes);
void world_close(struct world *w);
void world_key(uint32_t name, uint8_t ret[32]);
/* As a request does that waits while slabs are emptied. */
int world_make_room(struct world *w, uint32_t bytes, uint32_t steps, struct extent *ret);
/* As store.c does: room, bytes, commit, owner. Returns the block. */
uint32_t world_store(struct world *w, uint32_t name, uint32_t bytes, uint32_t parent);
uint32_t world_find(const struct world *w, uint32_t name); /* BLOCK_NONE: it is gone */
void world_where(const struct world *w, uint32_t block, struct extent *ret);
/* Asserts that the image in host memory carries its number in its first `bytes`. */
void world_bytes_are(const struct world *w, uint32_t name, uint32_t bytes);

#endif
