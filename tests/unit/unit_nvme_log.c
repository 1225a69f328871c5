/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * Goal: the log on a good disk: stored records are read back, after restarts too, and reuse,
 * budget, purge and flush act as nvme_log.h says. Method: a simulated disk of 64 KiB segments, a
 * table that checks every byte.
 */

#include "tests/lib/test.h"
#include "tiers/nvme/log/nvme_log_inner.h"
#include "tests/lib/lib_nvme.h"

enum { SEGMENTS = 16 };

static struct kit kit;

FIXTURE_DO(setup, kit_open(&kit, SEGMENTS, 1); assert_int_equal(kit_format(&kit), 0));

FIXTURE_DO(teardown, kit_close(&kit));

TEST_EACH(setup, teardown);

static const struct nvme_counters *counters(void)
{
	return &nvme_log_facts(kit.log)->counters;
}

static void restart(void)
{
	kit_crash(&kit, SIM_KEEP_ALL);
	assert_int_equal(kit_recover(&kit), 0);
}

TEST(what_is_stored_is_read_back)
{
	kit_store_range(&kit, 0, 12);
	assert_int_equal(kit_load_all(&kit), 12);
	kit_check(&kit);
	assert_int_equal(nvme_log_facts(kit.log)->live_bytes, kit_table_bytes(&kit));
}

TEST(a_clean_stop_loses_nothing_and_needs_no_walk)
{
	kit_store_range(&kit, 0, 10);
	assert_int_equal(kit_flush(&kit, true), 0);
	assert_int_equal(nvme_log_facts(kit.log)->state, NVME_STOPPED);
	restart();
	assert_int_equal(counters()->walked_segments, 0);
	assert_int_equal(kit_load_all(&kit), 10);
}

TEST(a_kill_loses_nothing_that_was_written)
{
	kit_store_range(&kit, 0, 10);
	kit_run(&kit);
	restart();
	/* the open segment, and the segment that was READY */
	assert_int_equal(counters()->walked_segments, 2);
	assert_int_equal(kit_load_all(&kit), 10);
	kit_check(&kit);
	/* the walked segment is sealed now; only the segment that was READY is looked through
	 * again */
	restart();
	assert_int_equal(counters()->walked_segments, 1);
	assert_int_equal(kit_load_all(&kit), 10);
}

TEST(the_walk_gets_past_a_hole)
{
	uint64_t offset;

	kit_store_range(&kit, 0, 4);
	kit_run(&kit);
	offset = nvme_segment_offset(nvme_location_segment(kit.block[1].location), KIT_SEGMENT);
	offset += nvme_location_page(kit.block[1].location) * NVME_PAGE;
	disk_sim_crash(&kit.sim, SIM_KEEP_ALL);
	disk_sim_flip(&kit.sim, offset - NVME_PAGE, 1); /* its tag page */
	disk_sim_flip(&kit.sim, offset, 1);
	restart();
	assert_int_equal(kit_load(&kit, 0), 0);
	assert_int_equal(kit_load(&kit, 1), -ENOENT);
	assert_int_equal(kit_load(&kit, 2), 0);
	assert_int_equal(kit_load(&kit, 3), 0);
}

TEST(recovery_tells_the_newest_first_with_parents_and_ticks)
{
	kit_store_range(&kit, 0, 10);
	kit_run(&kit);
	const uint64_t tick = kit.block[7].tick;
	restart();
	assert_int_equal(kit.block[7].tick, tick);
	assert_int_equal(kit.tick, 10);
}

TEST(a_full_log_goes_on_and_keeps_the_newest)
{
	kit_store_range(&kit, 0, 200);
	kit_run(&kit);
	assert_true(kit.dropped > 0);
	for (uint32_t i = 180; i < 200; i++)
		assert_int_equal(kit_load(&kit, i), 0);
	assert_int_equal(kit_load_all(&kit), kit.blocks);
	assert_true(kit.blocks > 30);
	kit_check(&kit);
}

TEST(what_is_used_is_carried_over)
{
	for (uint32_t i = 0; i < 300; i++) {
		assert_int_equal(kit_store(&kit, i), 0);
		if (i >= 5)
			kit_touch(&kit, 5);
	}
	kit_run(&kit);
	assert_true(kit.moved > 0 && counters()->carried_bytes > 0);
	assert_int_equal(kit_load(&kit, 5), 0);
	kit_check(&kit);
	const uint64_t tick = kit.block[5].tick;
	restart();
	/* it may be the victim's now: the disk knows when it was written, not when it was used */
	assert_true(kit.block[5].found);
	assert_true(kit.block[5].tick <= tick);
}

TEST(what_others_need_is_carried_over_whatever_its_age)
{
	kit.answer = NVME_WANTED;
	kit_store_range(&kit, 0, 30);
	kit.answer = NVME_WANTED;
	kit_store_range(&kit, 30, 60);
	kit_run(&kit);
	assert_true(kit.moved > kit.dropped);
	kit_check(&kit);
}

TEST(a_location_is_stale_once_its_segment_was_used_again)
{
	struct nvme_read read = { 0 };

	kit_store_range(&kit, 0, 1);
	read.location = kit.block[0].location;
	kit_store_range(&kit, 1, 200);
	kit_run(&kit);
	assert_int_equal(kit.block[0].location, NVME_NOWHERE);
	read.buffer = kit.buffer;
	read.bytes = 8192;
	assert_int_equal(nvme_log_read(kit.log, &read), -ESTALE);
	nvme_log_forget(kit.log, read.location, 1); /* no effect */
	kit_check(&kit);
}

static void read_ended(struct nvme_read *read)
{
	read->status = 0;
	read->bytes = 0;
}

TEST(a_segment_is_not_overwritten_while_it_is_read)
{
	struct nvme_read read = { .done = read_ended };
	uint8_t *buffer = kit.slot[7].image;

	kit_store_range(&kit, 0, 1);
	kit_run(&kit);
	read.location = kit.block[0].location;
	read.bytes = kit_image(0, kit.expected);
	read.buffer = buffer;
	kit.sim.stall_nth = kit.sim.submits + 1;
	assert_int_equal(nvme_log_read(kit.log, &read), 0);
	kit_store_range(&kit, 1, 200);
	kit_run(&kit);
	assert_true(read.bytes > 0); /* still out */
	disk_sim_unstall(&kit.sim);
	kit_run(&kit);
	assert_int_equal(read.bytes, 0);
	assert_memory_equal(buffer, kit.expected, 128);
}

TEST(an_empty_segment_costs_no_reads)
{
	for (uint32_t i = 0; i < 200; i++) {
		assert_int_equal(kit_store(&kit, i), 0);
		kit_forget(&kit, i);
	}
	kit_run(&kit);
	assert_int_equal(counters()->read_bytes, 0);
	assert_int_equal(nvme_log_facts(kit.log)->live_bytes, 0);
}

TEST(the_budget_refuses_and_fills_again_with_time)
{
	int r = 0;
	uint32_t i;

	kit_forget_log(&kit);
	kit.conf.write_budget_bytes_per_day = 24 * 200000;
	assert_int_equal(kit_format(&kit), 0);
	for (i = 0; i < 100 && !r; i++) {
		r = kit_append(&kit, i);
		kit_run(&kit);
	}
	assert_int_equal(r, -EAGAIN);
	/* an hour's worth, less headers and footers */
	assert_in_range(i, 10, 18);
	assert_int_equal(counters()->refused_budget, 1);
	kit.sim.time_ns += 3600ull * 1000000000;
	assert_int_equal(kit_append(&kit, 200), 0);
	kit_run(&kit);
	assert_true(counters()->written_bytes > counters()->appended_bytes);
}

/* How many records the budget takes now. */
static uint32_t budget_takes(uint32_t from)
{
	uint32_t i = 0;

	while (i < 100 && kit_append(&kit, from + i) == 0) {
		kit_run(&kit);
		i++;
	}
	return i;
}

TEST(the_budget_goes_on_behind_a_restart)
{
	kit_forget_log(&kit);
	kit.conf.write_budget_bytes_per_day = 24 * 200000;
	assert_int_equal(kit_format(&kit), 0);
	assert_in_range(budget_takes(0), 10, 18);
	for (uint32_t life = 1; life < 8; life++) {
		if (life % 2) /* a clean stop, or a kill */
			assert_int_equal(kit_flush(&kit, true), 0);
		restart();
		assert_in_range(nvme_log_budget_percent(kit.log), 0, 20);
		assert_in_range(budget_takes(100 * life), 0, 1);
	}
	kit_forget_log(&kit);
	kit.sim.time_ns += 3600ull * 1000000000;
	disk_sim_crash(&kit.sim, SIM_KEEP_ALL);
	assert_int_equal(kit_recover(&kit), 0);
	assert_in_range(budget_takes(1000), 10, 18);
}

TEST(a_budget_that_changes_goes_on_with_what_was_left)
{
	kit_forget_log(&kit);
	assert_int_equal(kit_format(&kit), 0);
	assert_int_equal(budget_takes(0), 100); /* without one */
	nvme_log_set_budget(kit.log, 24 * 200000);
	assert_int_equal(nvme_log_budget_percent(kit.log), 100);
	assert_in_range(budget_takes(100), 10, 18);
	nvme_log_set_budget(kit.log, 24 * 400000); /* fills faster, from where it was */
	assert_in_range(budget_takes(200), 0, 1);
	kit.sim.time_ns += 3600ull * 1000000000;
	assert_in_range(budget_takes(300), 20, 36);
	nvme_log_set_budget(kit.log, 0);
	assert_int_equal(kit_append(&kit, 400), 0);
}

TEST(purged_records_do_not_come_back)
{
	kit_store_range(&kit, 0, 12);
	assert_int_equal(kit_purge(&kit, 1), 0);
	assert_int_equal(kit_store(&kit, 13), 0); /* the same tenant, later */
	kit_run(&kit);
	restart();
	assert_int_equal(kit_load(&kit, 1), -ENOENT);
	assert_int_equal(kit_load(&kit, 10), -ENOENT);
	assert_int_equal(kit_load(&kit, 0), 0);
	assert_int_equal(kit_load(&kit, 13), 0);
	assert_int_equal(kit.blocks, 9);
}

TEST(carrying_over_does_not_revive_what_was_purged)
{
	kit.answer = NVME_WANTED;
	kit_store_range(&kit, 0, 20);
	assert_int_equal(kit_purge(&kit, 2), 0);
	for (uint32_t i = 20; i < 120; i++)
		if (i % KIT_TENANTS != 2)
			assert_int_equal(kit_store(&kit, i), 0);
	kit_run(&kit);
	restart();
	for (uint32_t i = 2; i < 120; i += KIT_TENANTS)
		assert_int_equal(kit_load(&kit, i), -ENOENT);
}

/* The record is already read for carrying over when its tenant is purged. */
TEST(a_purge_overtakes_the_carry_over)
{
	const struct nvme_carry *carry = &kit.log->carry;
	uint32_t next = 0, tenant;

	kit.answer = NVME_WANTED;
	while (carry->state != CARRY_READ) {
		if (next < 200 && !kit_append(&kit, next))
			next++;
		(void)kit_step(&kit);
	}
	tenant = carry->entries[carry->candidates[carry->next - 1].entry].owner[0] - 0x40u;
	assert_int_equal(kit_purge(&kit, tenant), 0);
	kit_run(&kit);
	restart();
	for (uint32_t i = tenant; i < next; i += KIT_TENANTS)
		assert_false(kit.block[i].found);
}

TEST(a_flush_syncs_and_the_log_goes_on)
{
	kit_store_range(&kit, 0, 2);
	assert_int_equal(kit_flush(&kit, false), 0);
	disk_sim_crash(&kit.sim, SIM_DROP_ALL); /* synced: nothing may be lost */
	restart();
	assert_int_equal(kit_load_all(&kit), 2);
	kit_store_range(&kit, 2, 4);
	assert_int_equal(kit_load_all(&kit), 4);
}

TEST(a_stopped_log_takes_nothing)
{
	struct nvme_append append = { 0 };

	assert_int_equal(kit_flush(&kit, true), 0);
	append.image = kit.buffer;
	append.bytes = kit_image(0, kit.buffer);
	assert_int_equal(nvme_log_append(kit.log, &append), -ESHUTDOWN);
	assert_int_equal(kit_flush(&kit, true), -ESHUTDOWN);
	assert_int_equal(kit_purge(&kit, 0), -ESHUTDOWN);
}

TEST(bad_appends_are_refused)
{
	struct nvme_append append = { 0 };

	append.image = kit.buffer;
	append.bytes = kit_image(0, kit.buffer);
	append.bytes--;
	assert_int_equal(nvme_log_append(kit.log, &append), -EINVAL);
	append.bytes = KIT_SEGMENT;
	assert_int_equal(nvme_log_append(kit.log, &append), -E2BIG);
	append.bytes = kit_image(0, kit.buffer);
	kit.buffer[20] ^= 1;
	assert_int_equal(nvme_log_append(kit.log, &append), -EINVAL);
	assert_int_equal(kit.sim.n_lent, 0);
}

/* However small they are: more than 4,095 of them, as many as a segment once had at most. */
TEST(bytes_bound_a_segment_and_not_the_number_of_its_records)
{
	const uint32_t segment_bytes = 40 << 20;
	uint32_t n = 0, i;

	kit_close(&kit);
	kit_open(&kit, 4 * segment_bytes / KIT_SEGMENT, 1);
	kit_small = true;
	kit.conf.segment_bytes = segment_bytes;
	assert_int_equal(kit_format(&kit), 0);
	do {
		i = n++ % KIT_BLOCKS;
		kit_forget(&kit, i);
		assert_int_equal(kit_store(&kit, i), 0);
		if (n % 1000 == 0)
			assert_int_equal(kit_flush(&kit, false), 0);
	} while (nvme_location_segment(kit.block[i].location) == 0);
	assert_int_equal(n - 1, 5040);
	assert_int_equal(kit_flush(&kit, true), 0);
	restart();
	assert_int_equal(counters()->walked_segments, 0);
	assert_int_equal(kit.found, KIT_BLOCKS);
	assert_int_equal(kit_load_all(&kit), KIT_BLOCKS);
}

/* A record has the size of its slot; an image of codec 4 ends where it does. */
TEST(only_a_lossless_image_may_be_shorter_than_its_record)
{
	const struct {
		enum image_codec codec;
		int32_t more; /* bytes of the record than of the image */
		int r;
	} cases[] = {
		{ CODEC_FP8, 0, 0 },
		{ CODEC_FP8, 1, -EBADMSG },
		{ CODEC_FP8, -1, -EBADMSG },
		{ CODEC_LOSSLESS, 0, 0 },
		{ CODEC_LOSSLESS, 5000, 0 },
		{ CODEC_LOSSLESS, -1, -EBADMSG },
		{ CODEC_LOSSLESS, IMAGE_MAX_BYTES, -EBADMSG },
	};
	struct image_header *header = (void *)kit.buffer;
	const struct nvme_identity who = { .segment_bytes = 1 << 20 };
	const uint32_t bytes = kit_image(1, kit.buffer);

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		struct nvme_entry in = { .page = 2 }, out;
		uint8_t tag[sizeof(struct nvme_tag)];

		header->codec_k = (uint8_t)cases[i].codec;
		image_seal(header, header->checksum);
		in.image_bytes = bytes + (uint32_t)cases[i].more;
		in.header_crc = header->header_crc;
		in.tag_page = !nvme_tag_fits(header);
		nvme_tag_encode(&who, &in, tag);
		assert_int_equal(nvme_tag_check(tag, &who, header, in.page, &out), cases[i].r);
		if (cases[i].r == 0)
			assert_int_equal(out.image_bytes, in.image_bytes);
	}
}

TEST(a_full_queue_refuses_and_changes_nothing)
{
	kit_run(&kit);
	kit.sim.depth = 1;
	assert_int_equal(kit_append(&kit, 0), 0);
	assert_int_equal(kit_append(&kit, 3), -EAGAIN);
	kit_run(&kit);
	kit_check(&kit);
	assert_int_equal(kit_store(&kit, 3), 0);
	assert_int_equal(kit_store(&kit, 1), 0); /* two writes through a queue of one */
	kit_store_range(&kit, 4, 100);
	kit_run(&kit);
	kit_check(&kit);
	assert_true(kit_load_all(&kit) > 30);
}
