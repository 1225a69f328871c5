/* SPDX-License-Identifier: Apache-2.0 */
/* make: wrap=clock_gettime,epoll_wait (the test holds the clock) */
/*
 * Goal: with [nvme] compress a record may be the coded form of its image: it is shorter, comes back
 * with every byte, is found by a restart, kept where it is, and read by a tier that codes nothing;
 * one that is damaged, or whose tag lies, is a miss. Method: real files with O_DIRECT, a table that
 * checks every byte (lib_nvme_tier.h), records changed from outside. Each case on both I/O engines.
 */
#include "kernels/form.h"
#include "tests/lib/lib_nvme_tier.h"

static struct site site;

static void open_coded(void **state, bool soft)
{
	kit_soft = soft;
	site_open(&site, *(enum io_engine_choice *)*state, 1);
	site.conf.compress = true;
	site_start(&site);
	assert_int_equal(tier_state(site.tier), TIER_UP);
}

static void close_coded(void)
{
	site_close(&site);
	kit_soft = false;
}

#define CODED(name) ON_BOTH_BETWEEN(name, open_coded(state, true), close_coded())

static void restart(bool flush, bool compress)
{
	site_stop(&site, flush);
	site.conf.compress = compress;
	site_start(&site);
}

static struct nvme_counters counters(void)
{
	return site_disk(&site, 0).log;
}

CODED(records_are_shorter_and_come_back)
{
	uint64_t plain = 0;

	site_store_range(&site, 0, 30);
	for (uint32_t i = 0; i < 30; i++)
		plain += nvme_round_page(kit_image(i, site.expected));
	assert_true(counters().coded_records >= 20);
	assert_true(counters().saved_bytes >= counters().coded_records * NVME_PAGE);
	assert_true(counters().saved_bytes + counters().appended_bytes >= plain);
	assert_int_equal(site_load_all(&site), 30);
}

ON_BOTH_BETWEEN(noise_is_appended_as_it_is, open_coded(state, false), close_coded())
{
	site_store_range(&site, 0, 30);
	assert_int_equal(counters().coded_records, 0);
	assert_int_equal(counters().saved_bytes, 0);
	assert_int_equal(site_load_all(&site), 30);
}

/* By footers, and by a walk of the open segment; whatever the tier's own setting. */
CODED(a_restart_finds_them)
{
	site_store_range(&site, 0, 25);
	restart(true, false);
	assert_int_equal(site.found, 25);
	assert_int_equal(site_load_all(&site), 25);
	site_store_range(&site, 25, 30);
	assert_int_equal(counters().coded_records, 0);
	restart(false, true);
	assert_int_equal(site.found, 30);
	site_store_range(&site, 30, 40);
	restart(false, true);
	assert_int_equal(site.found, 40);
	assert_int_equal(site_load_all(&site), 40);
}

/* Blocks are dropped meanwhile; those that are there come back. */
static void load_each(void)
{
	for (uint32_t i = 0; i < SITE_BLOCKS; i++) {
		const int r = site_load(&site, i);

		assert_true(r == 0 || r == -ENOENT || r == -ESTALE);
	}
}

static bool is_coded(uint32_t block, struct nvme_tag *ret)
{
	site_peek(site.path[0], site_place(&site, block) + NVME_PAGE - sizeof(*ret), ret,
		  sizeof(*ret));
	return ret->magic == NVME_CODED_MAGIC;
}

/* Coded blocks of the first three quarters that are still there: the store is not large enough for
 * so many, so they were kept. Image and record have their tags in different pages. */
static uint32_t old_ones(void)
{
	struct nvme_tag tag;
	uint32_t n = 0;

	for (uint32_t i = 2; i < SITE_BLOCKS / 4 * 3; i += 3)
		n += site.block[i].there && is_coded(i, &tag);
	return n;
}

/* Its segment is as old as before, and the block is not. */
static void touch(uint32_t block)
{
	if (!site.block[block].there)
		return;
	tier_touch(site.tier, &site.block[block].where, site.block[block].tick, ++site.tick);
	site.block[block].tick = site.tick;
}

CODED(they_are_kept)
{
	for (uint32_t from = 0; from < SITE_BLOCKS; from += SITE_BLOCKS / 16) {
		site_store_range(&site, from, from + SITE_BLOCKS / 16);
		load_each();
		for (uint32_t i = 2; i < from; i += 12) /* some of the coded ones */
			touch(i);
	}
	assert_true(site.moved > 0 && site.dropped > 0);
	assert_true(old_ones() > 0);
	restart(false, true);
	assert_true(site.found > 0);
	load_each();
	assert_int_equal(site.blocks + site.dropped, site.found);
}

/* A coded record has its tag in its first page. */
CODED(a_read_tells_the_parent)
{
	struct nvme_tag tag;
	uint8_t key[32];
	uint32_t told = 0;

	site_store_range(&site, 1, 10);
	for (uint32_t i = 1; i < 10; i++) {
		struct site_slot *slot = site_begin(&site, XFER_READ, i);

		assert_int_equal(site_wait(&site, slot), 0);
		kit_key(i - 1, key);
		if (!is_coded(i, &tag))
			continue;
		assert_memory_equal(slot->x.record.parent, key, 32);
		told++;
	}
	assert_true(told > 0);
}

/* Any byte of header and form. A bit that fills up a word of the form is heeded by nobody: then the
 * bytes are right all the same, which site_load() sees to. */
CODED(damage_is_a_miss)
{
	struct random random = random_seeded("unit_nvme_coded");
	struct nvme_tag tag;
	uint32_t tried = 0, missed = 0;

	site_store_range(&site, 0, 60);
	for (uint32_t i = 0; i < 60; i++) {
		uint64_t at = site_place(&site, i);
		uint8_t byte;

		if (!is_coded(i, &tag))
			continue;
		at += i % 4 ? NVME_PAGE + random_below(&random, tag.coded_bytes - NVME_PAGE) :
			      random_below(&random, sizeof(struct image_header));
		site_peek(site.path[0], at, &byte, 1);
		byte ^= (uint8_t)(1 << random_below(&random, 8));
		site_poke(site.path[0], at, &byte, 1);
		missed += site_load(&site, i) == -EBADMSG;
		tried++;
	}
	assert_true(tried > 20 && missed > tried / 2);
	assert_int_equal(site_load_all(&site), site.blocks);
}

/* Its CRC is right: only somebody who knows the store's uuid could write it. */
static void lie(uint32_t block, struct nvme_tag tag, uint32_t coded_bytes, uint32_t magic)
{
	tag.coded_bytes = coded_bytes;
	tag.magic = magic;
	tag.crc = image_crc32c(&tag, offsetof(struct nvme_tag, crc));
	site_poke(site.path[0], site_place(&site, block) + NVME_PAGE - sizeof(tag), &tag,
		  sizeof(tag));
}

CODED(a_tag_that_lies_is_a_miss)
{
	const uint32_t lies[] = { 0, 1, NVME_PAGE, NVME_PAGE + 1, 1u << 31, UINT32_MAX };
	struct nvme_tag tag;
	uint32_t tried = 0;

	site_store_range(&site, 0, 60);
	for (uint32_t i = 0; i < 60; i++) {
		const uint32_t way = tried % 9;

		if (!is_coded(i, &tag))
			continue;
		tried++;
		if (way < 6)
			lie(i, tag, lies[way], tag.magic);
		else if (way < 8)
			lie(i, tag, tag.coded_bytes + way * 2 - 13, tag.magic); /* one off */
		else
			lie(i, tag, tag.coded_bytes, NVME_TAG_MAGIC);
		assert_int_equal(site_load(&site, i), -EBADMSG);
	}
	assert_true(tried >= 18);
	assert_int_equal(site_load_all(&site), site.blocks);
}

/* Many at once: more than the coders' threads, in both directions. */
CODED(many_at_once)
{
	struct site_slot *slots[SITE_SLOTS];

	site_store_range(&site, 0, SITE_SLOTS);
	for (uint32_t i = 0; i < SITE_SLOTS; i++)
		slots[i] = site_begin(&site, XFER_READ, i);
	for (uint32_t i = 0; i < SITE_SLOTS; i += 2)
		tier_cancel(site.tier, &slots[i]->x);
	for (uint32_t i = 0; i < SITE_SLOTS; i++) {
		const int r = site_wait(&site, slots[i]);

		assert_true(r == 0 || (i % 2 == 0 && r == -ECANCELED));
	}
	assert_true(site_settle(&site, site_is_idle));
	assert_int_equal(site_load_all(&site), SITE_SLOTS);
}
