/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>
#include <time.h>

#include "lib_mover.h"

struct copier world_copier;
uint64_t world_moved_blocks, world_moved_bytes;

struct world world_open_of(uint32_t slabs, uint32_t slab_bytes)
{
	const struct tier_conf conf = { .bytes = (uint64_t)slabs * slab_bytes,
					.slab_bytes = slab_bytes };
	const struct blocks_conf blocks = { .max_blocks = 1000, .classes = TIER_MAX_CLASSES };
	char text[TIER_TEXT_BYTES];
	struct world w = { .tick = 1 };

	assert_int_equal(index_open(1000, &w.index), 0);
	assert_int_equal(blocks_open(&blocks, w.index, &w.blocks), 0);
	assert_int_equal(tier_open(TIER_HOST, &conf, NULL, &w.host, text, sizeof(text)), 0);
	while (tier_state(w.host) == TIER_STARTING)
		(void)nanosleep(&(struct timespec){ .tv_nsec = 100000 }, NULL);
	world_copier = (struct copier){ 0 };
	world_moved_blocks = world_moved_bytes = 0;
	assert_int_equal(emptier_open(&(struct emptier_conf){ .host = w.host,
							      .blocks = w.blocks,
							      .submit = copier_submit,
							      .arg = &world_copier,
							      .moved_blocks = &world_moved_blocks,
							      .moved_bytes = &world_moved_bytes },
				      &w.mover.emptier),
			 0);
	return w;
}

void world_close(struct world *w)
{
	copier_run(&world_copier);
	emptier_close(w->mover.emptier);
	tier_close(w->host);
	blocks_close(w->blocks);
	index_close(w->index);
}

void world_key(uint32_t name, uint8_t ret[32])
{
	for (uint32_t i = 0; i < 8; i++) {
		const uint32_t word = name * 2654435761u + i * 40503u;

		memcpy(ret + 4 * i, &word, 4);
	}
}

struct world world_open(uint32_t slabs)
{
	return world_open_of(slabs, SLAB);
}

int world_make_room(struct world *w, uint32_t bytes, uint32_t steps, struct extent *ret)
{
	int r;

	mover_turn(&w->mover);
	while ((r = mover_make_room(w->host, w->blocks, w->tick, bytes, steps, &w->mover, ret)) ==
		       -EAGAIN &&
	       (world_copier.n || w->mover.clearing_bytes)) {
		copier_run(&world_copier);
		mover_turn(&w->mover);
	}
	w->mover.counts.moved_blocks = world_moved_blocks;
	w->mover.counts.moved_bytes = world_moved_bytes;
	return r;
}

uint32_t world_store(struct world *w, uint32_t name, uint32_t bytes, uint32_t parent)
{
	struct extent where;
	uint8_t key[32];
	uint32_t block;

	w->tick++;
	assert_int_equal(world_make_room(w, bytes, MOVER_STEPS, &where), 0);
	memset(tier_address(w->host, &where), (int)(name & 0xff), bytes);
	world_key(name, key);
	assert_int_equal(blocks_commit(w->blocks, key, 0, parent, 0, &where, &block), 0);
	tier_set_owner(w->host, &where, block);
	blocks_touch(w->blocks, block, w->tick);
	return block;
}

uint32_t world_find(const struct world *w, uint32_t name)
{
	uint8_t key[32];

	world_key(name, key);
	return blocks_find(w->blocks, key, 0);
}

void world_where(const struct world *w, uint32_t block, struct extent *ret)
{
	assert_int_equal(tier_extent(w->host, blocks_host_slot(w->blocks, block), ret), 0);
}

void world_bytes_are(const struct world *w, uint32_t name, uint32_t bytes)
{
	struct extent where;
	const uint8_t *at;

	world_where(w, world_find(w, name), &where);
	at = tier_address(w->host, &where);
	assert_non_null(at);
	for (uint32_t i = 0; i < bytes; i++)
		assert_int_equal(at[i], (uint8_t)name);
}
