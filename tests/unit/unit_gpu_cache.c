/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * unit_gpu_cache - images on GPUs, one rule a case: slots and memory that comes and goes, copies as
 * clients see them, their fate when the block is demoted, promoted, dropped or condemned, the order
 * in which they are evicted, and copies that grow. sim_gpu_cache has the order and the pins at
 * random. Method: tests/lib/lib_gpu_cache.h, where no byte of a GPU's memory is touched; slots in
 * use are counted after each step.
 */
#include "daemon/table/evict.h"
#include "daemon/table/space_counts.h"
#include "tests/lib/lib_gpu_cache.h"
#include "tiers/slabs.h"

enum { SLAB = 1 << 20, IMAGE = 300000, LARGE = 400000, SLOTS = SLAB / IMAGE, FIRST = 10 };
enum { GPU = 1 << TIER_GPU, HOST = 1 << TIER_HOST, NVME = 1 << TIER_NVME };
/* Spaces: two with images of one size, one with larger ones. */
enum { SPACE, OTHER, LARGER };

static struct gpu_rig r;
static struct gpu_use use; /* that a case has of the cache, and the job that it is for */
static struct device_job job;
static uint32_t block; /* of number 1, which is on NVMe */

static const struct gpu_rig_conf conf = {
	.units = 2,
	.blocks = 64,
	.unit_bytes = 8 * SLAB,
	.slab_bytes = SLAB,
	.image_bytes = { IMAGE, IMAGE, LARGE },
};

FIXTURE_DO(open_empty, gpu_rig_open(&r, &conf));
/* With that block, and a slab on unit 0. */
FIXTURE_DO(set_up, gpu_rig_open(&r, &conf); block = gpu_rig_block(&r, 1, SPACE);
	   gpu_rig_memory(&r, 0, SLAB, 1));
FIXTURE_DO(tear_down, gpu_rig_close(&r));

TEST_EACH(set_up, tear_down);
#define EMPTY(name)  TEST_WITH(name, open_empty, tear_down)
#define FILLED(name) TEST_WITH(name, open_filled, tear_down)

static const struct tier *tier(void)
{
	return r.tables.tiers[TIER_GPU];
}

/* Asserts the client's view, and how many slots of GPUs are in use. */
static void is(uint32_t number, uint32_t tiers, uint32_t slots)
{
	const struct fingerprint_key *index_key =
		counts_index_key(blocks_counts(r.tables.blocks), SPACE);
	struct kvtier_key key;
	struct map *map;
	uint8_t seen;

	random_key(number, key.bytes);
	assert_int_equal(map_open(index_fd(r.tables.index), index_bytes(r.tables.index), &map), 0);
	map_probe(map, index_key, &key, 1, &seen);
	map_close(map);
	assert_int_equal(seen, tiers);
	assert_int_equal(tier()->extents, slots);
}

static void kept(uint32_t unit, uint32_t number)
{
	assert_true(gpu_rig_keep(&r, unit, number, SPACE));
	assert_true(gpu_rig_has(&r, unit, number, SPACE));
}

/* Blocks of numbers FIRST and up fill unit 0, in this order. */
FIXTURE(open_filled)
{
	(void)set_up(state);
	for (uint32_t i = 0; i < SLOTS; i++) {
		(void)gpu_rig_block(&r, FIRST + i, SPACE);
		kept(0, FIRST + i);
	}
	return 0;
}

static void pin(struct gpu_use *of, uint32_t unit, uint32_t number, struct device_job *with)
{
	*of = gpu_rig_use(&r, unit, SPACE);
	*with = gpu_rig_job(number);
	assert_true(gpu_cache_pin(r.cache, of, gpu_rig_find(&r, number, SPACE), with));
	assert_int_equal(with->image_memory, IMAGE_OF_DEVICE);
}

static void settle(struct gpu_use *of, struct device_job *with)
{
	gpu_cache_settle(r.cache, of, with);
	gpu_cache_settle(r.cache, of, with);
	assert_false(gpu_use_any(of));
}

/* --- slots and memory --- */

EMPTY(without_gpus_or_bytes_there_is_no_cache)
{
	struct devices cpu_alone = { .all = { &r.cpu }, .n = 1 };
	struct gpu_cache *cache = NULL;
	char text[TIER_TEXT_BYTES];

	assert_int_equal(gpu_cache_open(&(struct gpu_cache_conf){ .tables = &r.tables,
								  .loop = r.loop,
								  .devices = &cpu_alone,
								  .unit_bytes = SLAB,
								  .slab_bytes = SLAB },
					&cache, text, sizeof(text)),
			 0);
	assert_null(cache);
	assert_int_equal(gpu_cache_open(&(struct gpu_cache_conf){ .tables = &r.tables,
								  .loop = r.loop,
								  .devices = &r.devices,
								  .slab_bytes = SLAB },
					&cache, text, sizeof(text)),
			 0);
	assert_null(cache);
	assert_null(gpu_cache_blocks(NULL));
	gpu_cache_close(NULL);
}

EMPTY(a_unit_without_memory_has_no_slot)
{
	assert_false(gpu_rig_keep(&r, 0, 1, SPACE));
	assert_int_equal(tier_state(tier()), TIER_STARTING);
	gpu_rig_memory(&r, 0, SLAB - 1, 1); /* less than a slab is none */
	assert_false(gpu_rig_keep(&r, 0, 1, SPACE));
	assert_int_equal(tier()->capacity_bytes, 0);
	assert_int_equal(tier_state(tier()), TIER_STARTING);
}

EMPTY(slots_lie_in_the_memory_of_their_unit)
{
	const uint64_t bytes[2] = { 2 * SLAB, 4 * SLAB + 4096 };

	for (uint32_t unit = 0; unit < 2; unit++) {
		struct gpu_use uses[4 * SLOTS + 1];
		struct device_job jobs[4 * SLOTS + 1];
		uint64_t last = 0;
		uint32_t n = 0;

		gpu_rig_memory(&r, unit, bytes[unit], 5);
		for (;; n++) {
			uses[n] = gpu_rig_use(&r, unit, SPACE);
			jobs[n] = gpu_rig_job(n);
			gpu_rig_reserve(&r, &uses[n], &jobs[n]);
			if (!uses[n].reserved)
				break;
			const struct device_keep *keep = &jobs[n].keep;
			const uint64_t base = (5ull << 40) + ((uint64_t)unit << 36);

			assert_int_equal(keep->generation, 5);
			assert_int_equal(keep->address % 4096, 0);
			assert_true(keep->address >= base && keep->bytes >= IMAGE &&
				    keep->address + keep->bytes <= base + bytes[unit]);
			assert_true(keep->address != last);
			last = keep->address;
		}
		assert_int_equal(n, bytes[unit] / SLAB * SLOTS);
		while (n-- > 0)
			settle(&uses[n], &jobs[n]);
	}
	assert_int_equal(tier()->capacity_bytes, 6 * SLAB);
	assert_int_equal(tier()->extents, 0);
	assert_int_equal(tier_state(tier()), TIER_UP);
}

EMPTY(memory_that_goes_takes_no_slot_away)
{
	use = gpu_rig_use(&r, 0, SPACE);
	job = gpu_rig_job(1);
	(void)gpu_rig_block(&r, 1, SPACE);
	gpu_rig_memory(&r, 0, 2 * SLAB, 1);
	gpu_rig_reserve(&r, &use, &job);
	assert_true(use.reserved);
	gpu_rig_memory(&r, 0, 0, 0);
	gpu_rig_memory(&r, 0, 4 * SLAB, 5); /* at once other memory */
	gpu_rig_iterate(&r);
	assert_false(gpu_rig_keep(&r, 0, 2, SPACE)); /* which waits for the slot */
	assert_int_equal(tier()->extents, 1);
	job.kept = true;
	settle(&use, &job);
	is(1, NVME, 0); /* nobody can read it there any more */
	gpu_rig_iterate(&r);
	assert_int_equal(tier()->capacity_bytes, 4 * SLAB);
	kept(0, 1);
	pin(&use, 0, 1, &job);
	assert_int_equal(job.generation, 5);
	settle(&use, &job);
}

FILLED(memory_that_goes_takes_all_copies_along)
{
	pin(&use, 0, FIRST, &job);
	gpu_rig_memory(&r, 0, 0, 0);
	assert_false(gpu_rig_has(&r, 0, FIRST, SPACE)); /* though a job reads it */
	gpu_rig_iterate(&r);
	assert_int_equal(tier()->extents, 1);
	settle(&use, &job);
	gpu_rig_iterate(&r);
	is(FIRST, NVME, 0);
	assert_int_equal(tier()->capacity_bytes, 0);
}

/* A slab that one space has to itself needs no zeroes; a slab that two spaces have had does. */
TEST(what_another_space_wrote_is_scrubbed)
{
	const uint32_t spaces[] = { SPACE, SPACE, OTHER, SPACE };

	for (uint32_t i = 0; i < 4; i++) {
		use = gpu_rig_use(&r, 0, spaces[i]);
		job = gpu_rig_job(i);
		gpu_rig_reserve(&r, &use, &job);
		/* also after the slab was free in between */
		assert_int_equal(job.keep.scrub, i >= 2);
		settle(&use, &job);
	}
}

/* --- copies and their blocks --- */

TEST(clients_see_the_copy_come_and_go)
{
	uint64_t evicted;

	is(1, NVME, 0);
	kept(0, 1);
	is(1, NVME | GPU, 1);
	assert_true(gpu_cache_evict(r.cache, 1, 10, &evicted) >= IMAGE);
	assert_int_equal(evicted, 1);
	is(1, NVME, 0);
}

TEST(what_was_not_kept_is_no_copy)
{
	use = gpu_rig_use(&r, 0, SPACE);
	job = gpu_rig_job(1);
	gpu_rig_reserve(&r, &use, &job);
	settle(&use, &job);
	is(1, NVME, 0);
	assert_true(gpu_rig_keep(&r, 0, 2, SPACE)); /* no block has its key */
	assert_int_equal(tier()->extents, 0);
}

TEST(a_second_copy_on_a_unit_is_refused)
{
	struct gpu_use uses[2] = { gpu_rig_use(&r, 0, SPACE), gpu_rig_use(&r, 0, SPACE) };
	struct device_job jobs[2] = { gpu_rig_job(1), gpu_rig_job(1) };

	for (int i = 0; i < 2; i++) /* neither is there yet */
		gpu_rig_reserve(&r, &uses[i], &jobs[i]);
	assert_int_equal(tier()->extents, 2);
	for (int i = 0; i < 2; i++) {
		jobs[i].kept = true;
		settle(&uses[i], &jobs[i]);
		is(1, NVME | GPU, 2 - (uint32_t)i);
	}
	assert_false(gpu_rig_keep(&r, 0, 1, SPACE));
}

TEST(a_copy_is_found_on_its_own_unit)
{
	gpu_rig_memory(&r, 1, SLAB, 1);
	kept(1, 1);
	assert_false(gpu_rig_has(&r, 0, 1, SPACE));
	kept(0, 1);
	is(1, NVME | GPU, 2);
}

TEST(promoted_and_demoted_it_stays)
{
	const struct extent where = { .tier = TIER_HOST, .slot = 3 };

	kept(0, 1);
	blocks_promote(r.tables.blocks, block, BLOCK_NONE, &where);
	is(1, HOST | NVME | GPU, 1);
	assert_int_equal(blocks_demote(r.tables.blocks, block), 3);
	is(1, NVME | GPU, 1);
}

/* It is a cache of blocks in host memory or on NVMe, so it does not keep a block alive. */
TEST(the_last_copy_is_never_a_gpus)
{
	kept(0, 1);
	copies_drop_nvme(&r.tables, block);
	is(1, 0, 0);
	assert_int_equal(blocks_count(r.tables.blocks), 0);
	/* the number is another block's, which has none */
	assert_int_equal(gpu_rig_block(&r, 2, SPACE), block);
	is(2, NVME, 0);
	assert_false(gpu_rig_has(&r, 0, 2, SPACE));
}

TEST(condemned_with_its_block_pinned_or_not)
{
	struct lease lease = { 0 };

	kept(0, 1);
	lease_take(&r.tables, &lease, block);
	copies_condemn(&r.tables, block);
	is(1, 0, 0); /* nobody reads its slot on the GPU */
	lease_drop(&r.tables, &lease);
}

/* Its number is another block's meanwhile. */
TEST(a_pinned_copy_outlives_its_block)
{
	struct gpu_use again;

	kept(0, 1);
	pin(&use, 0, 1, &job);
	copies_condemn(&r.tables, block);
	is(1, 0, 1);
	assert_int_equal(gpu_rig_block(&r, 2, SPACE), block);
	kept(0, 2);
	is(2, NVME | GPU, 2);
	pin(&again, 0, 2, &job);
	settle(&use, &job);
	is(2, NVME | GPU, 1);
	settle(&again, &job);
	is(2, NVME | GPU, 1);
}

TEST(a_bad_copy_goes_alone_and_when_its_last_pin_does)
{
	gpu_rig_memory(&r, 1, SLAB, 1);
	kept(0, 1);
	kept(1, 1);
	pin(&use, 0, 1, &job);
	gpu_cache_condemn(r.cache, block, 0);
	assert_false(gpu_rig_has(&r, 0, 1, SPACE));
	is(1, NVME | GPU, 2);
	settle(&use, &job);
	is(1, NVME | GPU, 1);
	assert_true(gpu_rig_has(&r, 1, 1, SPACE));
}

/* --- the order --- */

FILLED(the_least_recent_goes_first)
{
	pin(&use, 0, FIRST, &job); /* a hit: it is the most recent */
	settle(&use, &job);
	kept(0, 1);
	assert_false(gpu_rig_has(&r, 0, FIRST + 1, SPACE));
	use = gpu_rig_use(&r, 0, SPACE); /* a check counts as no hit */
	gpu_cache_hold(r.cache, &use, gpu_rig_find(&r, FIRST + 2, SPACE));
	gpu_cache_unpin(r.cache, &use);
	(void)gpu_rig_block(&r, 2, SPACE);
	kept(0, 2);
	assert_false(gpu_rig_has(&r, 0, FIRST + 2, SPACE));
	assert_true(gpu_rig_has(&r, 0, FIRST, SPACE));
	assert_int_equal(tier()->extents, SLOTS);
}

FILLED(what_is_expected_last_goes_first)
{
	const uint32_t soon = gpu_rig_find(&r, FIRST, SPACE),
		       late = gpu_rig_find(&r, FIRST + SLOTS - 1, SPACE);

	for (uint32_t i = 0; i < SLOTS; i++)
		blocks_touch(r.tables.blocks, gpu_rig_find(&r, FIRST + i, SPACE), 100 * (i + 1));
	evict_expect(blocks_order(r.tables.blocks), soon, 350);
	evict_expect(blocks_order(r.tables.blocks), late, EVICT_NEVER);
	gpu_cache_expected(r.cache, soon);
	gpu_cache_expected(r.cache, late);
	kept(0, 1);
	assert_false(gpu_rig_has(&r, 0, FIRST + SLOTS - 1, SPACE));
	assert_true(gpu_rig_has(&r, 0, FIRST, SPACE));
}

FILLED(what_is_pinned_does_not_go)
{
	struct gpu_use uses[SLOTS];
	struct device_job jobs[SLOTS];
	uint64_t evicted;

	for (uint32_t i = 0; i < SLOTS; i++)
		pin(&uses[i], 0, FIRST + i, &jobs[i]);
	assert_false(gpu_rig_keep(&r, 0, 1, SPACE));
	assert_int_equal(gpu_cache_evict(r.cache, UINT64_MAX, 10, &evicted), 0);
	settle(&uses[1], &jobs[1]);
	kept(0, 1);
	assert_false(gpu_rig_has(&r, 0, FIRST + 1, SPACE));
	for (uint32_t i = 0; i < SLOTS; i++)
		settle(&uses[i], &jobs[i]);
	assert_int_equal(tier()->extents, SLOTS);
}

/* For a larger image a slab of older ones is cleared, but for what a job reads. */
FILLED(another_size_takes_a_whole_slab)
{
	pin(&use, 0, FIRST, &job);
	r.tables.tick += 100;
	(void)gpu_rig_block(&r, 1, LARGER);
	assert_false(gpu_rig_keep(&r, 0, 1, LARGER));
	assert_int_equal(tier()->extents, 1);
	settle(&use, &job);
	assert_true(gpu_rig_keep(&r, 0, 1, LARGER));
	assert_true(gpu_rig_has(&r, 0, 1, LARGER));
	assert_int_equal(tier()->extents, 1);
}

/* Numbers of slots follow from [gpu] bytes; a GPU that has more keeps no images there. */
TEST_WITH(memory_beyond_its_bytes_keeps_nothing, NULL, tear_down)
{
	struct gpu_rig_conf narrow = conf;
	uint32_t n = 0;

	narrow.unit_bytes = SLABS_SLOT_LEAST; /* two numbers */
	gpu_rig_open(&r, &narrow);
	gpu_rig_memory(&r, 0, SLAB, 1);
	for (uint32_t i = 0; i < SLOTS; i++) {
		(void)gpu_rig_block(&r, i, SPACE);
		(void)gpu_rig_keep(&r, 0, i, SPACE);
		n += gpu_rig_has(&r, 0, i, SPACE);
	}
	assert_int_equal(n, 2);
	assert_int_equal(tier()->extents, 2);
}

/* --- copies that grow --- */

enum { LAYERS = 4 };

static struct list of_op;

/* A job of one layer of an image with this checksum is to leave it there. */
static void grow(struct gpu_use *of, struct device_job *with, uint16_t layer, uint64_t checksum)
{
	static struct image_header header[LAYERS];

	header[layer].checksum = checksum;
	*of = gpu_rig_use(&r, 0, SPACE);
	*with = gpu_rig_job(1);
	with->image = (uint8_t *)&header[layer];
	with->first_layer = layer;
	with->end_layer = layer + 1u;
	gpu_cache_grow(r.cache, of, IMAGE, with, &of_op, 7);
}

TEST(a_copy_grows_by_groups_of_layers_in_any_order)
{
	struct gpu_use uses[LAYERS];
	struct device_job jobs[LAYERS];

	list_open(&of_op);
	for (uint16_t i = 0; i < LAYERS; i++) {
		grow(&uses[i], &jobs[i], i, 99);
		assert_non_null(uses[i].growing);
		assert_int_equal(jobs[i].keep.address, jobs[0].keep.address);
		jobs[i].kept = true;
	}
	for (uint16_t i = LAYERS; i-- > 0;) {
		is(1, NVME, 1);
		settle(&uses[i], &jobs[i]);
	}
	is(1, NVME | GPU, 1);
	gpu_cache_end_op(r.cache, &of_op);
	is(1, NVME | GPU, 1);
}

TEST(what_has_not_grown_or_is_of_two_images_is_no_copy)
{
	struct gpu_use second;
	struct device_job late;

	list_open(&of_op);
	grow(&use, &job, 1, 99); /* not the first layers: nothing begins */
	assert_null(use.growing);
	grow(&use, &job, 0, 99);
	job.kept = true;
	settle(&use, &job);
	assert_int_equal(tier()->extents, 1);
	gpu_cache_end_op(r.cache, &of_op);
	is(1, NVME, 0);

	grow(&use, &job, 0, 99);
	grow(&second, &late, 1, 98); /* another image */
	assert_null(second.growing);
	assert_int_equal(late.keep.address, 0);
	assert_int_equal(tier()->extents, 1); /* a job still writes there */
	job.kept = true;
	settle(&use, &job);
	is(1, NVME, 0);

	grow(&use, &job, 0, 99);
	settle(&use, &job); /* the GPU did not keep it */
	is(1, NVME, 0);
	gpu_cache_end_op(r.cache, &of_op);
}
