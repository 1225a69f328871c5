/* SPDX-License-Identifier: Apache-2.0 */
/* make: wrap=clock_gettime,epoll_wait (the test holds the clock) */
/*
 * Goal: a flipped bit anywhere on the disk costs at most the record or structure that it lies in:
 * every load gives the block's whole right bytes or is a miss. Method: a store is filled and
 * stopped, by a flush or as by a kill; bits are flipped in its file, in each kind of structure and
 * then anywhere ($SEED); it starts again, and all is loaded through the checks that a reader makes
 * (lib_nvme.c asserts that bytes that pass are right). Both I/O engines.
 */
#include "tests/lib/lib_nvme_tier.h"

enum { BLOCKS = 24 };

static struct site site;

static void open_site(void **state, bool flush)
{
	site_open(&site, *(enum io_engine_choice *)*state, 1);
	site_start(&site);
	site_store_range(&site, 0, BLOCKS);
	site_stop(&site, flush);
}

static void flip(uint64_t offset, uint32_t bit)
{
	uint8_t byte;

	site_peek(site.path[0], offset, &byte, 1);
	byte = (uint8_t)(byte ^ 1u << bit);
	site_poke(site.path[0], offset, &byte, 1);
}

static uint64_t place_of(uint32_t block)
{
	site_start(&site);
	assert_true(site.block[block].there);
	const uint64_t place = site_place(&site, block);
	site_stop(&site, true);
	return place;
}

/* All but `block` are whole; `block` is a miss, however often. */
static void only_it_is_lost(uint32_t block)
{
	site_start(&site);
	assert_int_equal(tier_state(site.tier), TIER_UP);
	for (uint32_t i = 0; i < BLOCKS; i++)
		if (i != block)
			assert_int_equal(site_load(&site, i), 0);
	assert_int_not_equal(site_load(&site, block), 0);
	assert_int_equal(site_load(&site, block), -ENOENT);
	assert_int_equal(site_store(&site, block), 0); /* and can be had again */
	assert_int_equal(site_load(&site, block), 0);
}

#define IN_A_STORE(fn) ON_BOTH_BETWEEN(fn, open_site(state, true), site_close(&site))

IN_A_STORE(in_a_header)
{
	flip(place_of(5) + 70, 3); /* its key */
	only_it_is_lost(5);
}

IN_A_STORE(in_the_scales)
{
	flip(place_of(4) + 128, 0);
	only_it_is_lost(4);
}

IN_A_STORE(in_the_payload)
{
	flip(place_of(3) + NVME_PAGE + 4999, 7);
	only_it_is_lost(3);
}

/* A tag is for restarts alone, and for the parent: the block is served. */
IN_A_STORE(in_a_tag)
{
	flip(place_of(3) + NVME_PAGE - 60, 1);
	site_start(&site);
	assert_int_equal(site_load_all(&site), BLOCKS);
}

static void flip_footers(void)
{
	for (uint32_t s = 0; s < SITE_SEGMENTS; s++)
		flip(nvme_segment_offset(s + 1, KIT_SEGMENT) - 20, 2);
}

/* Then the records are found one by one. */
IN_A_STORE(in_every_footer)
{
	flip_footers();
	site_start(&site);
	assert_true(site_status(&site).log.walked_segments > 1);
	assert_int_equal(site_load_all(&site), BLOCKS);
}

IN_A_STORE(in_a_segment_header)
{
	uint64_t place;
	uint32_t segment;

	place = place_of(7);
	segment = (uint32_t)((place - NVME_DATA_OFFSET) / KIT_SEGMENT);
	flip(nvme_segment_offset(segment, KIT_SEGMENT) + 30, 1);
	site_start(&site);
	/* the whole segment is lost, and no other */
	assert_false(site.block[7].there);
	assert_in_range(site.found, BLOCKS - 6, BLOCKS - 1);
	assert_int_equal(site_load_all(&site), site.found);
}

IN_A_STORE(in_one_superblock)
{
	for (uint32_t copy = 0; copy < NVME_SUPER_COPIES; copy++) {
		flip(nvme_super_offset(copy) + 100, 4); /* made good by the next start */
		site_start(&site);
		assert_int_equal(site_load_all(&site), BLOCKS);
		site_stop(&site, true);
	}
}

/* Purged blocks stay purged with one copy of the superblock. */
IN_A_STORE(in_one_superblock_after_a_purge)
{
	for (uint32_t copy = 0; copy < NVME_SUPER_COPIES; copy++) {
		site_start(&site);
		assert_int_equal(site_purge(&site, copy), 0);
		site_stop(&site, false);
		flip(nvme_super_offset(copy) + 100, 4);
		site_start(&site);
		for (uint32_t i = 0; i < BLOCKS; i++)
			assert_int_equal(site.block[i].there, i % KIT_TENANTS > copy);
		site_stop(&site, true);
	}
}

/* Never wrong bytes for any flipped bit; the store itself stands while a superblock does. */
ON_BOTH(anywhere)
{
	struct random random = random_seeded("anywhere");

	for (uint32_t round = 0; round < 12; round++) {
		open_site(state, round % 2);
		for (uint32_t i = 0; i < 1 + round * round; i++)
			flip(NVME_DATA_OFFSET + random_below(&random, SITE_SEGMENTS * KIT_SEGMENT),
			     random_below(&random, 8));
		site_start(&site);
		assert_int_equal(tier_state(site.tier), TIER_UP);
		(void)site_load_all(&site);
		site_store_range(&site, 100, 180); /* reclaims the damaged segments */
		(void)site_load_all(&site);
		site_close(&site);
	}
}

TEST_FIRST(io_rig_needed());
