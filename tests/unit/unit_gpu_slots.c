/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unit_gpu_slots - the GPU tier's slots: addresses in the memory of their unit, memory that comes,
 * goes and comes again while slots are in use, which slots have to be scrubbed, and images that a
 * book brings back. Method: the tier alone, with addresses of no memory at all.
 */
#include "tests/lib/lib.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tiers/gpu/gpu.h"
#include "tiers/slabs.h"

enum { SLAB = 1 << 20, IMAGE = 300000, SPACE = 77, OTHER = 78 };

static const struct gpu_memory memory[2] = {
	{ .base = 0x7f0000000000, .bytes = 2 * SLAB, .generation = 1 },
	{ .base = 0x7f8000000000, .bytes = 4 * SLAB + 4096, .generation = 5 },
};

static struct tier *t;

static int set_up(void **state)
{
	const struct tier_conf conf = { .units = 2, .slab_bytes = SLAB };
	char text[TIER_TEXT_BYTES];

	(void)state;
	return tier_open(TIER_GPU, &conf, NULL, &t, text, sizeof(text));
}

static int tear_down(void **state)
{
	(void)state;
	tier_close(t);
	return 0;
}

static struct gpu_slot take(uint32_t unit, uint64_t space)
{
	struct gpu_slot slot;

	assert_int_equal(gpu_alloc(t, unit, IMAGE, space, &slot), 0);
	return slot;
}

static void a_unit_without_memory_has_no_slot(void **state)
{
	struct gpu_slot slot;

	(void)state;
	assert_int_equal(gpu_alloc(t, 0, IMAGE, SPACE, &slot), -ENODEV);
	assert_int_equal(tier_state(t), TIER_STARTING);
	/* less than a slab is none */
	assert_int_equal(gpu_gain(t, 0,
				  &(struct gpu_memory){
					  .base = 4096, .bytes = SLAB - 1, .generation = 1 },
				  NULL),
			 0);
	assert_false(gpu_up(t, 0));
	assert_int_equal(t->capacity_bytes, 0);
}

static void slots_lie_in_the_memory_of_their_unit(void **state)
{
	(void)state;
	for (uint32_t unit = 0; unit < 2; unit++) {
		const struct gpu_memory *m = &memory[unit];
		uint64_t last = 0;
		struct gpu_slot slot;
		uint32_t n = 0;

		assert_int_equal(gpu_gain(t, unit, m, NULL), 0);
		while (gpu_alloc(t, unit, IMAGE, SPACE, &slot) == 0) {
			assert_int_equal(slot.where.unit, unit);
			assert_int_equal(slot.generation, m->generation);
			assert_int_equal(slot.address % 4096, 0);
			assert_true(slot.address >= m->base && slot.bytes >= IMAGE &&
				    slot.address + slot.bytes <= m->base + m->bytes);
			assert_true(slot.address != last);
			last = slot.address;
			n++;
		}
		assert_int_equal(n, m->bytes / SLAB * (SLAB / slot.bytes));
	}
	assert_int_equal(t->capacity_bytes, 6 * SLAB);
	assert_int_equal(tier_state(t), TIER_UP);
}

static void memory_that_goes_takes_no_slot_away(void **state)
{
	struct gpu_slot slot, again;

	(void)state;
	assert_int_equal(gpu_gain(t, 0, &memory[0], NULL), 0);
	slot = take(0, SPACE);
	gpu_lose(t, 0);
	assert_true(gpu_leaving(t, 0));
	assert_false(gpu_slot_of(t, &slot.where, &again));
	assert_null(tier_address(t, &slot.where));
	assert_int_equal(gpu_alloc(t, 0, IMAGE, SPACE, &again), -ENODEV);
	gpu_settle(t, 0);
	assert_true(gpu_leaving(t, 0));
	tier_free(t, &slot.where);
	gpu_settle(t, 0);
	assert_false(gpu_leaving(t, 0));
	assert_int_equal(t->used_bytes, 0);
	assert_int_equal(t->capacity_bytes, 0);
	/* other memory: the old extent is no slot of it */
	assert_int_equal(gpu_gain(t, 0, &memory[1], NULL), 0);
	assert_int_equal(gpu_generation(t, 0), memory[1].generation);
	assert_false(gpu_slot_of(t, &slot.where, &again));
}

/* A slab that one space has to itself needs no zeroes; a slab that two spaces have had does. */
static void what_another_space_wrote_is_scrubbed(void **state)
{
	struct gpu_slot slots[2 * SLAB / IMAGE], slot;
	uint32_t n = 0;

	(void)state;
	assert_int_equal(gpu_gain(t, 0, &memory[0], NULL), 0);
	while (gpu_alloc(t, 0, IMAGE, SPACE, &slots[n]) == 0)
		assert_false(slots[n++].scrub);
	tier_free(t, &slots[0].where);
	slot = take(0, SPACE);
	assert_false(slot.scrub);
	tier_free(t, &slot.where);
	slot = take(0, OTHER);
	assert_true(slot.scrub);
	tier_free(t, &slot.where);
	slot = take(0, SPACE); /* back again: the other one's bytes are there */
	assert_true(slot.scrub);
	/* also after the slab was free in between */
	tier_free(t, &slot.where);
	for (uint32_t i = 1; i < n; i++)
		tier_free(t, &slots[i].where);
	for (n = 0; gpu_alloc(t, 0, IMAGE, OTHER, &slots[n]) == 0; n++)
		assert_true(slots[n].scrub);
}

/* --- memory that outlived a process --- */

static struct gpu_book *new_book(uint64_t bytes)
{
	const struct gpu_book_shape shape = { .slab_bytes = SLAB, .bytes = bytes };
	struct gpu_book *ret;

	assert_int_equal(gpu_book_make(&shape, &ret), 0);
	return ret;
}

static void hold(const struct gpu_slot *slot, uint8_t name)
{
	uint8_t owner[32], key[32];

	memset(owner, name, sizeof(owner));
	memset(key, name + 1, sizeof(key));
	gpu_holds(t, &slot->where, owner, key, IMAGE);
}

/* The book as another process finds it. */
static struct gpu_book *reopen(struct gpu_book *book, uint64_t bytes)
{
	struct gpu_book_shape shape = { .slab_bytes = SLAB };
	struct gpu_book *ret = NULL;

	assert_int_equal(gpu_book_open(dup(gpu_book_fd(book)), &shape, &ret), 0);
	assert_int_equal(shape.bytes, bytes);
	gpu_book_close(book);
	return ret;
}

/* Four slots are taken; one is freed, one holds no image yet. The other two are told of, where they
 * were. All other room is there, and must be scrubbed. */
static void what_the_book_says_is_taken_again(void **state)
{
	const struct gpu_memory parked = {
		.base = memory[1].base, .bytes = memory[0].bytes, .generation = 3, .parked = true
	};
	struct gpu_book *book = new_book(memory[0].bytes);
	struct gpu_slot slots[4], slot;
	struct gpu_claim claims[8];
	uint32_t n = 0, found;

	(void)state;
	assert_int_equal(gpu_gain(t, 0, &memory[0], book), 0);
	for (uint8_t i = 0; i < 4; i++) {
		slots[i] = take(0, SPACE);
		if (i < 3)
			hold(&slots[i], i);
	}
	tier_free(t, &slots[1].where);
	gpu_lose(t, 0);
	for (int i = 0; i < 4; i++)
		if (i != 1)
			tier_free(t, &slots[i].where);
	gpu_settle(t, 0);
	book = reopen(book, memory[0].bytes);
	assert_int_equal(gpu_gain(t, 0, &parked, book), 0);
	found = 0;
	for (uint32_t slab = 0; slab < 3; slab++)
		found += gpu_reclaim(t, 0, slab, claims + found, 8 - found);
	assert_int_equal(found, 2);
	for (uint32_t i = 0; i < 2; i++) {
		assert_int_equal(claims[i].where.slot, slots[2 * i].where.slot);
		assert_true(gpu_slot_of(t, &claims[i].where, &slot));
		assert_int_equal(slot.address - parked.base, slots[2 * i].address - memory[0].base);
		assert_int_equal(claims[i].entry.key[0], 2 * i + 1);
		assert_int_equal(claims[i].entry.image_bytes, IMAGE);
	}
	for (uint32_t slab = 0; slab < 3; slab++) /* once */
		assert_int_equal(gpu_reclaim(t, 0, slab, claims, 8), 0);
	while (gpu_alloc(t, 0, IMAGE, SPACE, &slot) == 0) {
		assert_true(slot.scrub);
		assert_int_not_equal(slot.where.slot, slots[0].where.slot);
		assert_int_not_equal(slot.where.slot, slots[2].where.slot);
		n++;
	}
	assert_int_equal(n, 2 * (SLAB / slots[0].bytes) - 2);
	gpu_lose(t, 0);
	gpu_book_close(book);
}

/* Nobody is given a slab of which the book says something, before that was looked at. */
static void slabs_of_the_book_are_held_back(void **state)
{
	const struct gpu_memory parked = {
		.base = 4096, .bytes = 2 * SLAB, .generation = 3, .parked = true
	};
	struct gpu_book *book = new_book(2 * SLAB);
	struct gpu_claim claims[8];
	struct gpu_slot slot;
	uint32_t n = 0;

	(void)state;
	gpu_book_set(book, 1, 0, 65536, &(struct gpu_book_entry){ .image_bytes = 65537 });
	assert_int_equal(gpu_gain(t, 0, &parked, book), 0);
	for (; gpu_alloc(t, 0, IMAGE, SPACE, &slot) == 0; n++)
		assert_int_equal(slot.where.slot >> 16, 0);
	assert_int_equal(gpu_reclaim(t, 0, 1, claims, 8), 0); /* larger than its slot */
	for (; gpu_alloc(t, 0, IMAGE, SPACE, &slot) == 0; n--)
		assert_int_equal(slot.where.slot >> 16, 1);
	assert_int_equal(n, 0);
	gpu_lose(t, 0);
	gpu_book_close(book);
}

static void a_book_that_could_change_its_size_is_none(void **state)
{
	struct gpu_book_shape shape = { .slab_bytes = SLAB };
	struct gpu_book *book = new_book(SLAB), *other = NULL;
	uint8_t head[4096];
	struct stat st;
	int fd;

	(void)state;
	assert_int_equal(fstat(gpu_book_fd(book), &st), 0);
	assert_int_equal(pread(gpu_book_fd(book), head, sizeof(head), 0), sizeof(head));
	fd = memfd_make((size_t)st.st_size, 0);
	assert_int_equal(pwrite(fd, head, sizeof(head), 0), sizeof(head));
	assert_int_equal(gpu_book_open(fd, &shape, &other), -EINVAL);
	assert_null(other);
	(void)close(fd);
	gpu_book_close(book);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		CASE(a_unit_without_memory_has_no_slot),
		CASE(slots_lie_in_the_memory_of_their_unit),
		CASE(memory_that_goes_takes_no_slot_away),
		CASE(what_another_space_wrote_is_scrubbed),
		CASE(what_the_book_says_is_taken_again),
		CASE(slabs_of_the_book_are_held_back),
		CASE(a_book_that_could_change_its_size_is_none),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
