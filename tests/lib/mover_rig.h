/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mover_rig.h - a real host tier of 64 KiB slabs under a real table of blocks; each image carries
 * its number.
 */
#ifndef KVTIER_TESTS_MOVER_RIG_H
#define KVTIER_TESTS_MOVER_RIG_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "copier.h"
#include "daemon/store/mover.h"
#include "tiers/slabs.h"
#include "tiers/slabs.h"
#include "fault.h"

enum { KIB = 1024, SLAB = 64 * KIB, BIG = 16 * KIB /* 4 a slab */, SMALL = 8 * KIB /* 8 a slab */ };

/* Those of the one world that a test has: they outlive its being copied. */
static struct copier copier;
static uint64_t moved_blocks, moved_bytes;

struct world {
	struct index *index;
	struct blocks *blocks;
	struct tier *host;
	struct mover_counts counts;
	uint64_t tick;
};

static inline struct world world_of(uint32_t slabs, uint32_t slab_bytes)
{
	const struct tier_conf conf = { .bytes = (uint64_t)slabs * slab_bytes,
					.slab_bytes = slab_bytes,
					.numa_node = -1 };
	const struct blocks_conf blocks = { .max_blocks = 1000, .classes = TIER_MAX_CLASSES };
	char text[TIER_TEXT_BYTES];
	struct world w = { .tick = 1 };

	assert_int_equal(index_open(1000, &w.index), 0);
	assert_int_equal(blocks_open(&blocks, w.index, &w.blocks), 0);
	assert_int_equal(tier_open(TIER_HOST, &conf, NULL, &w.host, text, sizeof(text)), 0);
	while (tier_state(w.host) == TIER_STARTING)
		(void)nanosleep(&(struct timespec){ .tv_nsec = 100000 }, NULL);
	copier = (struct copier){ 0 };
	moved_blocks = moved_bytes = 0;
	assert_int_equal(emptier_open(&(struct emptier_conf){ .host = w.host,
							      .blocks = w.blocks,
							      .submit = copier_submit,
							      .arg = &copier,
							      .moved_blocks = &moved_blocks,
							      .moved_bytes = &moved_bytes },
				      &w.counts.emptier),
			 0);
	return w;
}

static inline void world_end(struct world *w)
{
	copier_run(&copier);
	emptier_close(w->counts.emptier);
	tier_close(w->host);
	blocks_close(w->blocks);
	index_close(w->index);
}

static inline void key_of(uint32_t name, uint8_t ret[32])
{
	for (uint32_t i = 0; i < 8; i++) {
		const uint32_t word = name * 2654435761u + i * 40503u;

		memcpy(ret + 4 * i, &word, 4);
	}
}

static inline struct world world(uint32_t slabs)
{
	return world_of(slabs, SLAB);
}

/* As one who waits for what is being emptied. */
static inline int make_room(struct world *w, uint32_t bytes, uint32_t steps, struct extent *ret)
{
	int r;

	while ((r = mover_make_room(w->host, w->blocks, w->tick, bytes, steps, &w->counts, ret)) ==
		       -EAGAIN &&
	       copier.n)
		copier_run(&copier);
	w->counts.moved_blocks = moved_blocks;
	w->counts.moved_bytes = moved_bytes;
	return r;
}

/* As store.c does: room, bytes, commit, owner. Returns the block. */
static inline uint32_t store(struct world *w, uint32_t name, uint32_t bytes, uint32_t parent)
{
	struct extent where;
	uint8_t key[32];
	uint32_t block;

	w->tick++;
	assert_int_equal(make_room(w, bytes, MOVER_STEPS, &where), 0);
	memset(tier_address(w->host, &where), (int)(name & 0xff), bytes);
	key_of(name, key);
	assert_int_equal(blocks_commit(w->blocks, key, 0, parent, 0, &where, &block), 0);
	tier_set_owner(w->host, &where, block);
	blocks_touch(w->blocks, block, w->tick);
	return block;
}

#endif
