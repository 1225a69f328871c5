/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Goal: a slab is emptied by jobs of bounded size while the core thread copies nothing; a block in
 * it is served from its old slot until all of it is elsewhere; leases are respected; the request
 * that waited for the slab gets it. Method: a real host tier under a real table of blocks, with
 * workers whose jobs end when the test says so (tests/lib/lib_mover.h); then the same with the CPU
 * device's threads, beside readers.
 */
#include "tests/lib/lib_mover.h"

#include "base/list.h"
#include "base/loop.h"
#include "daemon/device/device_cpu.h"
#include "daemon/policy/victim.h"

enum { MIB = 1 << 20, A_SLAB = SLAB / SMALL };

static struct world w;
static struct extent where; /* the room that was asked for */
static uint64_t extents;    /* of the sparse world */

FIXTURE_DO(end, world_close(&w));

static int ask(uint32_t bytes, struct extent *ret)
{
	mover_iteration(&w.mover);
	return world_try(&w, bytes, true, ret);
}

/* Three slabs of small images, of each of which a third was condemned: an emptying moves the rest
 * of one. */
FIXTURE(sparse_world)
{
	w = world_open(3);
	for (uint32_t i = 0; i < 3 * A_SLAB; i++)
		(void)world_store(&w, i, SMALL, BLOCK_NONE);
	for (uint32_t i = 0; i < 3 * A_SLAB; i += 3)
		blocks_condemn(w.blocks, world_find(&w, i));
	mover_free_condemned(w.host, w.blocks);
	extents = w.host->extents;
	return 0;
}

/* Begins one. */
static void begin(void)
{
	assert_int_equal(ask(BIG, &where), -EAGAIN);
	assert_true(emptier_busy(w.mover.emptier));
	assert_int_equal(world_copier.n, 1);
}

FIXTURE_DO(begun_world, (void)sparse_world(state); begin());
#define BEGUN(name) TEST_WITH(name, begun_world, end)

/* One of the blocks that are copied, its name, and where it lay. */
static uint32_t block, name;
static struct extent before, after;

static void copied_block(uint32_t i)
{
	name = world_copier.jobs[0]->copies[i].from[0];
	block = world_find(&w, name);
	world_where(&w, block, &before);
}

/* The first of them is leased when the copies end. */
static void lease_the_first(void)
{
	copied_block(0);
	blocks_pin(w.blocks, block);
	copier_run(&world_copier);
}

TEST_WITH(all_stays_where_it_was_until_it_is_copied, sparse_world, end)
{
	uint32_t slots[3 * A_SLAB];

	for (uint32_t i = 0; i < 3 * A_SLAB; i++)
		slots[i] = i % 3 ? blocks_host_slot(w.blocks, world_find(&w, i)) : 0;
	begin();
	for (uint32_t i = 0; i < 3 * A_SLAB; i++)
		if (i % 3)
			assert_int_equal(blocks_host_slot(w.blocks, world_find(&w, i)), slots[i]);
	assert_int_equal(world_moved_blocks, 0);
	assert_int_equal(ask(BIG, &where), -EAGAIN); /* one at a time */
	assert_int_equal(world_copier.n, 1);
	copier_run(&world_copier);
	assert_false(emptier_busy(w.mover.emptier));
	assert_in_range(world_moved_blocks, 1, A_SLAB);
	assert_int_equal(world_moved_bytes, world_moved_blocks * SMALL);
	assert_int_equal(world_copier.bytes_total, world_moved_bytes);
	for (uint32_t i = 0; i < 3 * A_SLAB; i++)
		if (i % 3)
			world_bytes_are(&w, i, SMALL);
	assert_int_equal(ask(BIG, &where), 0);
}

/* 8 MiB of 64 KiB images: not time bounds the copies, but the size of a job. */
TEST_WITH(what_one_job_and_one_iteration_take_is_bounded, NULL, end)
{
	enum { IMAGE = 64 * KIB, LARGE = 8 * MIB, N = LARGE / IMAGE };
	uint64_t iterations = 0;

	w = world_open_of(2, LARGE);
	for (uint32_t i = 0; i < 2 * N; i++)
		(void)world_store(&w, i, IMAGE, BLOCK_NONE);
	for (uint32_t i = 0; i < N; i++) /* half of each slab */
		blocks_condemn(w.blocks, world_find(&w, 2 * i));
	mover_free_condemned(w.host, w.blocks);
	assert_int_equal(ask(LARGE, &where), -EAGAIN);
	while (world_copier.n) {
		const uint64_t bytes = world_copier.bytes_total;

		copier_end(&world_copier, 0, 0);
		assert_true(world_copier.bytes_total - bytes <= EMPTIER_JOBS * EMPTIER_JOB_BYTES);
		iterations++;
	}
	assert_int_equal(world_moved_bytes, LARGE / 2);
	assert_int_equal(world_copier.bytes_total, LARGE / 2);
	assert_true(iterations >= LARGE / 2 / EMPTIER_JOB_BYTES);
	assert_in_range(world_copier.most_bytes, 1, EMPTIER_JOB_BYTES);
	assert_in_range(world_copier.most_copies, 1, EMPTIER_JOB_COPIES);
	assert_in_range(world_copier.most_jobs, 1, EMPTIER_JOBS);
	assert_int_equal(ask(LARGE, &where), 0);
}

BEGUN(a_block_that_is_leased_meanwhile_moves_when_it_is_not)
{
	lease_the_first();
	world_where(&w, block, &after);
	assert_true(extent_equal(&before, &after));
	assert_true(emptier_busy(w.mover.emptier));
	assert_int_equal(world_copier.n, 0);
	world_bytes_are(&w, name, SMALL);
	blocks_unpin(w.blocks, block);
	assert_true(emptier_poll(w.mover.emptier));
	world_where(&w, block, &after);
	assert_false(extent_equal(&before, &after));
	world_bytes_are(&w, name, SMALL);
	assert_int_equal(blocks_pins(w.blocks, block), 0);
	assert_int_equal(slabs_owner(tier_slabs(w.host), &after), block);
	assert_null(tier_address(w.host, &before));
	assert_int_equal(ask(BIG, &where), 0);
}

BEGUN(a_block_that_is_condemned_meanwhile_is_gone_at_once)
{
	copied_block(1);
	blocks_condemn(w.blocks, block);
	assert_int_equal(world_find(&w, name), BLOCK_NONE);
	copier_run(&world_copier);
	assert_false(emptier_busy(w.mover.emptier));
	while (emptier_poll(w.mover.emptier)) /* until the slot is owed no more */
		;
	assert_int_equal(w.host->extents, extents - 1);
	assert_int_equal(ask(BIG, &where), 0);
}

BEGUN(one_who_waits_with_a_lease_ends_a_stuck_emptying)
{
	const struct mover_for patient = { 0 };

	lease_the_first();
	assert_int_equal(mover_find_room(w.host, w.blocks, w.tick, BIG, &patient, &w.mover, &where),
			 -EAGAIN);
	assert_true(emptier_busy(w.mover.emptier));
	assert_int_equal(world_copier.n, 0);
	/* another slab than the slab with the lease */
	assert_int_equal(ask(BIG, &where), -EAGAIN);
	assert_int_equal(world_copier.n, 1);
	copier_run(&world_copier);
	assert_int_equal(ask(BIG, &where), 0);
	world_where(&w, block, &after);
	assert_true(extent_equal(&before, &after));
	world_bytes_are(&w, name, SMALL);
	assert_int_equal(w.host->extents, extents + 1);
	blocks_unpin(w.blocks, block);
}

BEGUN(a_job_that_fails_leaves_all_and_is_tried_again)
{
	copier_end(&world_copier, 0, -ECANCELED);
	assert_int_equal(world_moved_blocks, 0);
	assert_true(emptier_busy(w.mover.emptier));
	assert_int_equal(world_copier.n, 1);
	world_copier.full = true;
	copier_end(&world_copier, 0, -EIO);
	assert_int_equal(world_copier.n, 0);
	assert_false(emptier_poll(w.mover.emptier));
	world_copier.full = false;
	assert_true(emptier_poll(w.mover.emptier));
	copier_run(&world_copier);
	assert_int_equal(ask(BIG, &where), 0);
	for (uint32_t i = 0; i < 3 * A_SLAB; i++)
		if (i % 3)
			world_bytes_are(&w, i, SMALL);
}

BEGUN(stores_of_its_class_do_not_take_the_room_it_needs)
{
	for (uint32_t i = 0; i < 2 * A_SLAB; i++) {
		assert_int_equal(ask(SMALL, &where), 0); /* the oldest go */
		tier_free(w.host, &where);
		(void)world_store(&w, 100 + i, SMALL, BLOCK_NONE);
	}
	copier_run(&world_copier);
	assert_false(emptier_busy(w.mover.emptier));
	assert_int_equal(ask(BIG, &where), 0);
}

BEGUN(the_slab_is_for_who_waited)
{
	struct extent big;
	uint64_t evicted;

	copier_run(&world_copier);
	while (!tier_alloc(w.host, SMALL, &where))
		; /* any slots that are free now: no class's slab */
	evicted = w.mover.counts.evicted_blocks;
	assert_int_equal(ask(BIG, &big), 0);
	assert_int_equal(w.mover.counts.evicted_blocks, evicted);
	assert_int_equal(tier_extent_bytes(w.host, &big), BIG);
}

BEGUN(a_slab_that_nobody_comes_for_is_free)
{
	copier_run(&world_copier);
	assert_int_equal(slabs_free_slabs(tier_slabs(w.host)), 0);
	while (emptier_poll(w.mover.emptier))
		;
	assert_int_equal(slabs_free_slabs(tier_slabs(w.host)), 1);
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
	struct device *device = ((struct bed *)arg)->device;
	const int r = device_submit(device, job);

	device_kick(device);
	return r;
}

static void was_read(struct device_job *job)
{
	struct reader *r = container_of(job, struct reader, job);
	struct bed *b = r->bed;

	assert_int_equal(job->status, 0);
	for (uint32_t i = 0; i < SMALL; i++)
		assert_int_equal(r->buffer[i], (uint8_t)r->name);
	b->reads++;
	b->reads_of_moving += emptier_busy(w.mover.emptier);
	blocks_unpin(w.blocks, r->block);
	mover_free_condemned(w.host, w.blocks);
	r->busy = false;
}

/* A block that is there is leased and read by a worker, as a load does. */
static void read_some(struct bed *b, struct reader *r)
{
	r->name = b->next_name - 1 - random_below(&b->random, 5 * A_SLAB);
	r->block = world_find(&w, r->name);
	if (r->block == BLOCK_NONE)
		return;
	world_where(&w, r->block, &where);
	blocks_pin(w.blocks, r->block);
	r->copy = (struct device_copy){ .to = r->buffer,
					.from = tier_address(w.host, &where),
					.bytes = SMALL };
	r->job = (struct device_job){ .kind = DEVICE_COPY,
				      .image = r->buffer,
				      .copies = &r->copy,
				      .n_copies = 1,
				      .client = 1 + random_below(&b->random, 3),
				      .done = was_read };
	r->busy = true;
	assert_int_equal(device_submit(b->device, &r->job), 0);
	device_kick(b->device);
}

/* Small images until all is full, then one of another class, which needs a slab. */
static bool work(struct loop_poller *poller)
{
	struct bed *b = container_of(poller, struct bed, poller);
	bool busy = false;
	uint32_t old;

	for (int i = 0; i < READERS; i++) {
		if (!b->readers[i].busy && b->rounds < ROUNDS)
			read_some(b, &b->readers[i]);
		busy |= b->readers[i].busy;
	}
	if (b->rounds == ROUNDS) {
		if (!busy && !emptier_busy(w.mover.emptier))
			loop_stop(b->loop);
		return true;
	}
	if (!emptier_busy(w.mover.emptier)) {
		old = world_find(&w, b->next_name - 1 - random_below(&b->random, 5 * A_SLAB));
		if (old != BLOCK_NONE && random_below(&b->random, 4) == 0)
			blocks_condemn(w.blocks, old);
		else if (ask(SMALL, &where) == 0) {
			memset(tier_address(w.host, &where), (int)(b->next_name & 0xff), SMALL);
			(void)world_commit(&w, 0, b->next_name++, BLOCK_NONE, &where);
		}
		mover_free_condemned(w.host, w.blocks);
		if (random_below(&b->random, 32) != 0)
			return true;
	}
	if (ask(BIG, &where) == 0) {
		tier_free(w.host, &where);
		b->rounds++;
	}
	return true;
}

TEST(what_is_moved_is_read_right_by_others)
{
	static struct bed b;

	b = (struct bed){ .poller.poll = work, .random = random_seeded("unit_emptier") };
	w = world_open(6);
	emptier_close(w.mover.emptier);
	assert_int_equal(loop_open(0, &b.loop), 0);
	assert_int_equal(device_cpu_open(3, READERS, EMPTIER_JOBS, b.loop, &b.device), 0);
	assert_int_equal(emptier_open(&(struct emptier_conf){ .host = w.host,
							      .blocks = w.blocks,
							      .loop = b.loop,
							      .submit = submit,
							      .arg = &b,
							      .moved_blocks = &world_moved_blocks,
							      .moved_bytes = &world_moved_bytes },
				      &w.mover.emptier),
			 0);
	for (int i = 0; i < READERS; i++) {
		b.readers[i] = (struct reader){ .bed = &b, .buffer = aligned_alloc(4096, SMALL) };
		assert_non_null(b.readers[i].buffer);
	}
	for (b.next_name = 0; b.next_name < 6 * A_SLAB; b.next_name++)
		(void)world_store(&w, b.next_name, SMALL, BLOCK_NONE);
	loop_poller_add(b.loop, &b.poller);
	assert_int_equal(loop_run(b.loop), 0);
	loop_poller_remove(b.loop, &b.poller);
	printf("%llu reads, %llu of them while a slab was emptied; %llu blocks moved\n",
	       (unsigned long long)b.reads, (unsigned long long)b.reads_of_moving,
	       (unsigned long long)world_moved_blocks);
	assert_true(world_moved_blocks > 0 && b.reads_of_moving > 0);
	device_close(b.device);
	world_close(&w);
	loop_close(b.loop);
	for (int i = 0; i < READERS; i++)
		free(b.readers[i].buffer);
}
