/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Goal: a slab is emptied by jobs of bounded size while the core thread copies nothing; a block in
 * it is served from its old slot until all of it is elsewhere; leases are respected; the request
 * that waited for the slab gets it. Method: a real host tier under a real table of blocks, with
 * workers whose jobs end when the test says so (tests/lib/lib_copier.h); then the same with the CPU
 * device's threads, beside readers.
 */
#include "tests/lib/lib_mover.h"
#include "tests/lib/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/container_of.h"
#include "daemon/base/loop.h"
#include "tests/lib/random.h"
#include "daemon/store/herd.h"

enum { MIB = 1 << 20, A_SLAB = SLAB / SMALL };

static int ask(struct world *w, uint32_t bytes, struct extent *ret)
{
	mover_turn(&w->mover);
	return mover_make_room(w->host, w->blocks, w->tick, bytes, MOVER_STEPS, &w->mover, ret);
}

/* Three slabs of small images, of each of which a third was condemned: an emptying moves the rest
 * of one. */
static struct world sparse_world(void)
{
	struct world w = world_open(3);

	for (uint32_t i = 0; i < 3 * A_SLAB; i++)
		(void)world_store(&w, i, SMALL, BLOCK_NONE);
	for (uint32_t i = 0; i < 3 * A_SLAB; i += 3)
		blocks_condemn(w.blocks, world_find(&w, i));
	herd_free_condemned(w.blocks, w.host);
	return w;
}

/* Begins one. */
static void begin(struct world *w)
{
	struct extent where;

	assert_int_equal(ask(w, BIG, &where), -EAGAIN);
	assert_true(emptier_busy(w->mover.emptier));
	assert_int_equal(world_copier.n, 1);
}

/* The block of the i-th copy of a job, and its name. */
static uint32_t copied_block(struct world *w, uint32_t i, uint32_t *ret_name)
{
	*ret_name = world_copier.jobs[0]->copies[i].from[0];
	return world_find(w, *ret_name);
}

TEST(all_stays_where_it_was_until_it_is_copied)
{
	struct world w = sparse_world();
	uint32_t slots[3 * A_SLAB];
	struct extent where;

	for (uint32_t i = 0; i < 3 * A_SLAB; i++)
		slots[i] = i % 3 ? blocks_host_slot(w.blocks, world_find(&w, i)) : 0;
	begin(&w);
	for (uint32_t i = 0; i < 3 * A_SLAB; i++)
		if (i % 3)
			assert_int_equal(blocks_host_slot(w.blocks, world_find(&w, i)), slots[i]);
	assert_int_equal(world_moved_blocks, 0);
	assert_int_equal(ask(&w, BIG, &where), -EAGAIN); /* one at a time */
	assert_int_equal(world_copier.n, 1);
	copier_run(&world_copier);
	assert_false(emptier_busy(w.mover.emptier));
	assert_in_range(world_moved_blocks, 1, A_SLAB);
	assert_int_equal(world_moved_bytes, world_moved_blocks * SMALL);
	assert_int_equal(world_copier.bytes_total, world_moved_bytes);
	for (uint32_t i = 0; i < 3 * A_SLAB; i++)
		if (i % 3)
			world_bytes_are(&w, i, SMALL);
	assert_int_equal(ask(&w, BIG, &where), 0);
	world_close(&w);
}

/* 8 MiB of 64 KiB images: not time bounds the copies, but the size of a job. */
TEST(what_one_job_and_one_turn_take_is_bounded)
{
	enum { IMAGE = 64 * KIB, LARGE = 8 * MIB, N = LARGE / IMAGE };
	struct world w = world_open_of(2, LARGE);
	uint64_t turns = 0;
	struct extent where;

	for (uint32_t i = 0; i < 2 * N; i++)
		(void)world_store(&w, i, IMAGE, BLOCK_NONE);
	for (uint32_t i = 0; i < N; i++) /* half of each slab */
		blocks_condemn(w.blocks, world_find(&w, 2 * i));
	herd_free_condemned(w.blocks, w.host);
	assert_int_equal(ask(&w, LARGE, &where), -EAGAIN);
	while (world_copier.n) {
		const uint64_t before = world_copier.bytes_total;

		copier_end(&world_copier, 0, 0);
		assert_true(world_copier.bytes_total - before <= EMPTIER_JOBS * EMPTIER_JOB_BYTES);
		turns++;
	}
	assert_int_equal(world_moved_bytes, LARGE / 2);
	assert_int_equal(world_copier.bytes_total, LARGE / 2);
	assert_true(turns >= LARGE / 2 / EMPTIER_JOB_BYTES);
	assert_in_range(world_copier.most_bytes, 1, EMPTIER_JOB_BYTES);
	assert_in_range(world_copier.most_copies, 1, EMPTIER_JOB_COPIES);
	assert_in_range(world_copier.most_jobs, 1, EMPTIER_JOBS);
	assert_int_equal(ask(&w, LARGE, &where), 0);
	world_close(&w);
}

TEST(a_block_that_is_leased_meanwhile_moves_when_it_is_not)
{
	struct world w = sparse_world();
	struct extent before, after, where;
	uint32_t block, name;

	begin(&w);
	block = copied_block(&w, 0, &name);
	world_where(&w, block, &before);
	blocks_pin(w.blocks, block);
	copier_run(&world_copier);
	world_where(&w, block, &after);
	assert_true(extent_equal(&before, &after));
	assert_true(emptier_stuck(w.mover.emptier));
	world_bytes_are(&w, name, SMALL);
	blocks_unpin(w.blocks, block);
	assert_true(emptier_turn(w.mover.emptier));
	world_where(&w, block, &after);
	assert_false(extent_equal(&before, &after));
	world_bytes_are(&w, name, SMALL);
	assert_int_equal(blocks_pins(w.blocks, block), 0);
	assert_int_equal(slabs_owner(tier_slabs(w.host), &after), block);
	assert_null(tier_address(w.host, &before));
	assert_int_equal(ask(&w, BIG, &where), 0);
	world_close(&w);
}

TEST(a_block_that_is_condemned_meanwhile_is_gone_at_once)
{
	struct world w = sparse_world();
	const uint64_t extents = w.host->extents;
	uint32_t block, name;
	struct extent where;

	begin(&w);
	block = copied_block(&w, 1, &name);
	blocks_condemn(w.blocks, block);
	assert_int_equal(world_find(&w, name), BLOCK_NONE);
	copier_run(&world_copier);
	assert_false(emptier_busy(w.mover.emptier));
	emptier_let_go(w.mover.emptier);
	assert_int_equal(w.host->extents, extents - 1);
	assert_int_equal(ask(&w, BIG, &where), 0);
	world_close(&w);
}

TEST(one_who_waits_with_a_lease_ends_a_stuck_emptying)
{
	struct world w = sparse_world();
	const uint64_t extents = w.host->extents;
	const uint64_t none[TIER_MAX_SPACES] = { 0 };
	const struct mover_for patient = { .guaranteed = none };
	struct extent where, before, after;
	uint32_t block, name;

	begin(&w);
	block = copied_block(&w, 0, &name);
	world_where(&w, block, &before);
	blocks_pin(w.blocks, block);
	copier_run(&world_copier);
	assert_int_equal(mover_find_room_for(w.host, w.blocks, w.tick, BIG, &patient, &w.mover,
					     &where),
			 -EAGAIN);
	assert_true(emptier_stuck(w.mover.emptier));
	/* another slab than the slab with the lease */
	assert_int_equal(ask(&w, BIG, &where), -EAGAIN);
	assert_int_equal(world_copier.n, 1);
	copier_run(&world_copier);
	assert_int_equal(ask(&w, BIG, &where), 0);
	world_where(&w, block, &after);
	assert_true(extent_equal(&before, &after));
	world_bytes_are(&w, name, SMALL);
	assert_int_equal(w.host->extents, extents + 1);
	blocks_unpin(w.blocks, block);
	world_close(&w);
}

TEST(a_job_that_fails_leaves_all_and_is_tried_again)
{
	struct world w = sparse_world();
	struct extent where;

	begin(&w);
	copier_end(&world_copier, 0, -ECANCELED);
	assert_int_equal(world_moved_blocks, 0);
	assert_true(emptier_busy(w.mover.emptier));
	assert_int_equal(world_copier.n, 1);
	world_copier.full = true;
	copier_end(&world_copier, 0, -EIO);
	assert_int_equal(world_copier.n, 0);
	assert_false(emptier_turn(w.mover.emptier));
	world_copier.full = false;
	assert_true(emptier_turn(w.mover.emptier));
	copier_run(&world_copier);
	assert_int_equal(ask(&w, BIG, &where), 0);
	for (uint32_t i = 0; i < 3 * A_SLAB; i++)
		if (i % 3)
			world_bytes_are(&w, i, SMALL);
	world_close(&w);
}

TEST(stores_of_its_class_do_not_take_the_room_it_needs)
{
	struct world w = sparse_world();
	struct extent where;

	begin(&w);
	for (uint32_t i = 0; i < 2 * A_SLAB; i++) {
		assert_int_equal(ask(&w, SMALL, &where), 0); /* the oldest go */
		tier_free(w.host, &where);
		(void)world_store(&w, 100 + i, SMALL, BLOCK_NONE);
	}
	copier_run(&world_copier);
	assert_false(emptier_busy(w.mover.emptier));
	assert_int_equal(ask(&w, BIG, &where), 0);
	world_close(&w);
}

TEST(the_slab_is_for_who_waited)
{
	struct world w = sparse_world();
	struct extent where, big;
	uint64_t evicted;

	begin(&w);
	copier_run(&world_copier);
	while (!tier_alloc(w.host, SMALL, &where))
		; /* any slots that are free now: no class's slab */
	evicted = w.mover.counts.evicted_blocks;
	assert_int_equal(ask(&w, BIG, &big), 0);
	assert_int_equal(w.mover.counts.evicted_blocks, evicted);
	assert_int_equal(tier_extent_bytes(w.host, &big), BIG);
	world_close(&w);
}

TEST(a_slab_that_nobody_comes_for_is_free)
{
	struct world w = sparse_world();

	begin(&w);
	copier_run(&world_copier);
	assert_int_equal(slabs_free_slabs(tier_slabs(w.host)), 0);
	while (emptier_turn(w.mover.emptier))
		;
	assert_int_equal(slabs_free_slabs(tier_slabs(w.host)), 1);
	world_close(&w);
}

/* --- with threads --- */

enum { NAMES = 1 << 12, READERS = 8, ROUNDS = 40 };

struct reader {
	struct device_job job;
	struct device_copy copy;
	struct bed *bed;
	uint32_t block, name;
	bool busy;
	uint8_t *buffer;
};

struct bed {
	struct world w;
	struct loop *loop;
	struct device *device;
	struct loop_poller poller;
	struct random random;
	uint32_t rounds, next_name;
	uint64_t reads, reads_of_moving;
	struct reader readers[READERS];
};

static int submit(void *arg, struct device_job *job)
{
	return device_submit(((struct bed *)arg)->device, job);
}

static void was_read(struct device_job *job)
{
	struct reader *r = container_of(job, struct reader, job);
	struct bed *b = r->bed;

	assert_int_equal(job->status, 0);
	for (uint32_t i = 0; i < SMALL; i++)
		assert_int_equal(r->buffer[i], (uint8_t)r->name);
	b->reads++;
	b->reads_of_moving += emptier_busy(b->w.mover.emptier);
	blocks_unpin(b->w.blocks, r->block);
	herd_free_condemned(b->w.blocks, b->w.host);
	r->busy = false;
}

/* A block that is there is leased and read by a worker, as a load does. */
static void read_some(struct bed *b, struct reader *r)
{
	struct extent where;

	r->name = b->next_name - 1 - random_below(&b->random, 5 * A_SLAB);
	r->block = world_find(&b->w, r->name);
	if (r->block == BLOCK_NONE)
		return;
	world_where(&b->w, r->block, &where);
	blocks_pin(b->w.blocks, r->block);
	r->copy = (struct device_copy){ .to = r->buffer,
					.from = tier_address(b->w.host, &where),
					.bytes = SMALL };
	r->job = (struct device_job){ .kind = DEVICE_COPY,
				      .image = r->buffer,
				      .copies = &r->copy,
				      .n_copies = 1,
				      .client = 1 + random_below(&b->random, 3),
				      .done = was_read };
	r->busy = true;
	assert_int_equal(device_submit(b->device, &r->job), 0);
}

/* Small images until all is full, then one of another class, which needs a slab. */
static bool work(struct loop_poller *poller)
{
	struct bed *b = container_of(poller, struct bed, poller);
	bool busy = false;
	struct extent where;
	uint32_t block;

	for (int i = 0; i < READERS; i++) {
		if (!b->readers[i].busy && b->rounds < ROUNDS)
			read_some(b, &b->readers[i]);
		busy |= b->readers[i].busy;
	}
	if (b->rounds == ROUNDS) {
		if (!busy && !emptier_busy(b->w.mover.emptier))
			loop_stop(b->loop);
		return true;
	}
	if (!emptier_busy(b->w.mover.emptier)) {
		block = world_find(&b->w, b->next_name - 1 - random_below(&b->random, 5 * A_SLAB));
		if (block != BLOCK_NONE && random_below(&b->random, 4) == 0)
			blocks_condemn(b->w.blocks, block);
		else if (ask(&b->w, SMALL, &where) == 0) {
			uint8_t key[32];

			memset(tier_address(b->w.host, &where), (int)(b->next_name & 0xff), SMALL);
			world_key(b->next_name++, key);
			assert_int_equal(blocks_commit(b->w.blocks, key, 0, BLOCK_NONE, 0, &where,
						       &block),
					 0);
			tier_set_owner(b->w.host, &where, block);
			blocks_touch(b->w.blocks, block, ++b->w.tick);
		}
		herd_free_condemned(b->w.blocks, b->w.host);
		if (random_below(&b->random, 32) != 0)
			return true;
	}
	if (ask(&b->w, BIG, &where) == 0) {
		tier_free(b->w.host, &where);
		b->rounds++;
	}
	return true;
}

TEST(what_is_moved_is_read_right_by_others)
{
	const struct device_conf conf = { .workers = 3,
					  .depth = READERS,
					  .own_depth = EMPTIER_JOBS };
	static struct bed b;

	b = (struct bed){ .w = world_open(6),
			  .poller.poll = work,
			  .random = random_seeded("unit_emptier") };
	emptier_close(b.w.mover.emptier);
	assert_int_equal(loop_open(0, &b.loop), 0);
	assert_int_equal(device_open("cpu", &conf, b.loop, &b.device), 0);
	assert_int_equal(emptier_open(&(struct emptier_conf){ .host = b.w.host,
							      .blocks = b.w.blocks,
							      .loop = b.loop,
							      .submit = submit,
							      .arg = &b,
							      .moved_blocks = &world_moved_blocks,
							      .moved_bytes = &world_moved_bytes },
				      &b.w.mover.emptier),
			 0);
	for (int i = 0; i < READERS; i++) {
		b.readers[i] = (struct reader){ .bed = &b, .buffer = aligned_alloc(4096, SMALL) };
		assert_non_null(b.readers[i].buffer);
	}
	for (b.next_name = 0; b.next_name < 6 * A_SLAB; b.next_name++)
		(void)world_store(&b.w, b.next_name, SMALL, BLOCK_NONE);
	loop_poller_add(b.loop, &b.poller);
	assert_int_equal(loop_run(b.loop), 0);
	loop_poller_remove(b.loop, &b.poller);
	printf("%llu reads, %llu of them while a slab was emptied; %llu blocks moved\n",
	       (unsigned long long)b.reads, (unsigned long long)b.reads_of_moving,
	       (unsigned long long)world_moved_blocks);
	assert_true(world_moved_blocks > 0 && b.reads_of_moving > 0);
	device_close(b.device);
	world_close(&b.w);
	loop_close(b.loop);
	for (int i = 0; i < READERS; i++)
		free(b.readers[i].buffer);
}
