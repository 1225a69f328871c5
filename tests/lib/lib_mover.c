/* SPDX-License-Identifier: Apache-2.0 */

#include "lib_mover.h"

#include "random.h"

struct copier world_copier;
struct quota *world_quota;
uint64_t world_moved_blocks, world_moved_bytes;

struct world world_open_of(uint32_t slabs, uint32_t slab_bytes)
{
	const struct tier_conf conf = { .bytes = (uint64_t)slabs * slab_bytes,
					.slab_bytes = slab_bytes };
	const struct blocks_conf blocks = { .max_blocks = WORLD_BLOCKS, .quota = world_quota };
	char text[TIER_TEXT_BYTES];
	struct world w = { .tick = 1 };

	assert_int_equal(index_open(WORLD_BLOCKS, &w.index), 0);
	assert_int_equal(blocks_open(&blocks, w.index, &w.blocks), 0);
	assert_int_equal(tier_open(TIER_HOST, &conf, NULL, &w.host, text, sizeof(text)), 0);
	AWAIT(tier_state(w.host) != TIER_STARTING);
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

struct world world_open(uint32_t slabs)
{
	return world_open_of(slabs, SLAB);
}

int world_try(struct world *w, uint32_t bytes, bool desperate, struct extent *ret)
{
	const struct mover_for whom = { .desperate = desperate, .near = TIER_ANY_UNIT };

	return mover_find_room(w->host, w->blocks, w->tick, bytes, &whom, &w->mover, ret);
}

void world_count_moves(struct world *w)
{
	w->mover.counts.moved_blocks = world_moved_blocks;
	w->mover.counts.moved_bytes = world_moved_bytes;
}

int world_make_room(struct world *w, uint32_t bytes, struct extent *ret)
{
	int r;

	mover_iteration(&w->mover);
	while ((r = world_try(w, bytes, true, ret)) == -EAGAIN &&
	       (world_copier.n || w->mover.clearing_bytes)) {
		copier_run(&world_copier);
		mover_iteration(&w->mover);
	}
	world_count_moves(w);
	return r;
}

uint32_t world_commit(struct world *w, uint32_t space, uint32_t name, uint32_t parent,
		      const struct extent *where)
{
	uint32_t block;

	w->tick++;
	assert_int_equal(blocks_commit(w->blocks, random_key_of(name).bytes, space, parent, 0,
				       where, &block),
			 0);
	tier_set_owner(w->host, where, block);
	blocks_touch(w->blocks, block, w->tick);
	return block;
}

uint32_t world_store(struct world *w, uint32_t name, uint32_t bytes, uint32_t parent)
{
	struct extent where;

	assert_int_equal(world_make_room(w, bytes, &where), 0);
	memset(tier_address(w->host, &where), (int)(name & 0xff), bytes);
	return world_commit(w, 0, name, parent, &where);
}

uint32_t world_find(const struct world *w, uint32_t name)
{
	return blocks_find(w->blocks, random_key_of(name).bytes, 0);
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

/* --- workers --- */

int copier_submit(void *arg, struct device_job *job)
{
	struct copier *c = arg;
	uint64_t bytes = 0;

	if (c->full || c->n == EMPTIER_JOBS)
		return -EAGAIN;
	for (uint32_t i = 0; i < job->n_copies; i++)
		bytes += job->copies[i].bytes;
	c->jobs[c->n++] = job;
	c->jobs_total++;
	c->bytes_total += bytes;
	c->most_bytes = bytes > c->most_bytes ? bytes : c->most_bytes;
	c->most_copies = job->n_copies > c->most_copies ? job->n_copies : c->most_copies;
	c->most_jobs = c->n > c->most_jobs ? c->n : c->most_jobs;
	return 0;
}

void copier_end(struct copier *c, uint32_t which, int status)
{
	struct device_job *job = c->jobs[which];

	for (uint32_t i = 0; !status && i < job->n_copies; i++)
		memcpy(job->copies[i].to, job->copies[i].from, job->copies[i].bytes);
	c->jobs[which] = c->jobs[--c->n];
	job->status = status;
	job->done(job);
}

void copier_run(struct copier *c)
{
	while (c->n)
		copier_end(c, 0, 0);
}
