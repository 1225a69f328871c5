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

static uint32_t two(uint32_t block)
{
	(void)block;
	return 2;
}

/* Records of two pages: in a segment, and as many as make no other one go. */
enum { EACH = 7, ALL = (SEGMENTS - 2) * EACH };

TEST(a_full_log_goes_on_and_keeps_the_newest)
{
	kit_pages = two;
	kit_store_range(&kit, 0, 4 * ALL);
	kit_run(&kit);
	assert_true(kit.dropped > 0);
	for (uint32_t i = 4 * ALL - ALL * 9 / 10; i < 4 * ALL; i++)
		assert_int_equal(kit_load(&kit, i), 0);
	assert_int_equal(kit_load_all(&kit), kit.blocks);
	kit_check(&kit);
}

TEST(what_is_used_is_kept)
{
	for (uint32_t i = 0; i < 300; i++) {
		assert_int_equal(kit_store(&kit, i), 0);
		if (i >= 5)
			kit_touch(&kit, 5);
	}
	kit_run(&kit);
	assert_true(kit.moved > 0 && counters()->segments_refilled > 0);
	assert_int_equal(kit_load(&kit, 5), 0);
	kit_check(&kit);
	const uint64_t tick = kit.block[5].tick;
	restart();
	/* the disk knows when it was kept last, not when it was used */
	assert_true(kit.block[5].found);
	assert_true(kit.block[5].tick <= tick);
}

/* --- a segment that is filled again among the records that it keeps --- */

/* The store is full, and all was used but every n-th block. */
static void fill_and_use(uint32_t n)
{
	kit_pages = two;
	kit_store_range(&kit, 0, ALL);
	for (uint32_t i = 0; i < ALL; i++)
		if (i % n)
			kit_touch(&kit, i);
	kit_run(&kit);
}

/* Each block of the table, which may have dropped some meanwhile. */
static void all_load(void)
{
	for (uint32_t i = 0; i < KIT_BLOCKS; i++)
		if (kit.block[i].location != NVME_NOWHERE)
			assert_int_equal(kit_load(&kit, i), 0);
}

/* But for its generation. */
static uint64_t place(uint32_t block)
{
	return kit.block[block].location & ~(uint64_t)(NVME_GENERATIONS - 1);
}

TEST(warm_records_stay_in_their_places_and_others_get_those_of_cold_ones)
{
	const uint32_t filled = ALL + 2 * EACH, end = filled + ALL / 3;
	uint64_t places[ALL];

	fill_and_use(2);
	for (uint32_t i = 0; i < ALL; i++)
		places[i] = place(i);
	kit_store_range(&kit, ALL, end);
	for (uint32_t i = 1; i < ALL; i += 2)
		assert_int_equal(place(i), places[i]);
	for (uint32_t i = filled; i < end; i++) {
		bool cold = false;

		for (uint32_t j = 0; j < ALL; j += 2)
			cold = cold || place(i) == places[j];
		assert_true(cold);
	}
	all_load();
	/* two footers and a header for each time */
	assert_true(counters()->written_bytes <=
		    counters()->appended_bytes +
			    (2 + SEGMENTS + counters()->segments_reclaimed) * 3 * NVME_PAGE +
			    2 * NVME_PAGE);
	kit_check(&kit);
}

TEST(records_that_died_while_their_segment_was_filled_make_room)
{
	kit_pages = two;
	kit_store_range(&kit, 0, 3);
	for (uint32_t i = 0; i < 3; i++)
		kit_forget(&kit, i);
	kit_store_range(&kit, 3, (SEGMENTS - 1) * EACH + 1); /* the last segment is open */
	kit_run(&kit);
	assert_int_equal(counters()->segments_reclaimed, 1);
	assert_int_equal(kit.dropped, 0);
	kit_check(&kit);
}

/* The footer of a segment on the disk, and the sequence of its header. */
static bool footer_of(uint32_t segment, struct nvme_footer *ret, uint64_t *ret_sequence)
{
	const uint8_t *at = kit.sim.now + nvme_segment_offset(segment, KIT_SEGMENT);
	struct nvme_identity who;
	struct nvme_budget budget;

	nvme_identify(kit.log, segment, &who);
	if (nvme_header_check(at, &who, ret_sequence, &budget))
		return false;
	who.sequence = 0;
	return !nvme_footer_check(at + KIT_SEGMENT - NVME_PAGE, NVME_PAGE, &who, ret);
}

/* nvme_footer_check() looks at the order of the entries. */
TEST(a_footer_lists_all_records_in_the_order_of_their_places)
{
	struct nvme_footer footer;
	uint64_t sequence;

	fill_and_use(3);
	for (uint32_t i = ALL; i < 3 * ALL; i++) {
		assert_int_equal(kit_store(&kit, i), 0);
		kit_run(&kit);
		for (uint32_t s = 0; s < SEGMENTS; s++) {
			if (kit.log->segments[s].state != SEGMENT_SEALED)
				continue;
			assert_true(footer_of(s, &footer, &sequence));
			assert_int_equal(footer.sequence, sequence);
			assert_int_equal(footer.count, kit.log->segments[s].entries);
			assert_in_range(footer.count, kit.log->heat[s].blocks, EACH);
			assert_false(footer.open);
		}
	}
}

/* Stores until this is so; the number of the next block. */
static uint32_t store_until(bool (*so)(void))
{
	uint32_t next = ALL;

	while (!so()) {
		assert_true(next < KIT_BLOCKS);
		if (!kit_append(&kit, next))
			next++;
		(void)kit_step(&kit);
	}
	return next;
}

static bool had[KIT_BLOCKS];

static void remember(void)
{
	for (uint32_t i = 0; i < KIT_BLOCKS; i++)
		had[i] = kit.block[i].location != NVME_NOWHERE;
}

static void all_are_there(void)
{
	for (uint32_t i = 0; i < KIT_BLOCKS; i++)
		if (had[i])
			assert_true(kit.block[i].found);
	all_load();
}

static bool footer_is_before_header(void)
{
	struct nvme_footer footer;
	uint64_t sequence;

	return kit.log->drain.state == DRAIN_KEPT &&
	       footer_of(kit.log->drain.segment, &footer, &sequence) && footer.open &&
	       footer.sequence > sequence;
}

TEST(a_kill_between_footer_and_header_costs_nothing)
{
	fill_and_use(2);
	(void)store_until(footer_is_before_header);
	remember();
	restart();
	all_are_there();
}

static bool half_filled(void)
{
	const struct nvme_fill *open = kit.log->open;

	return open && open->holes.ahead > 1 && open->holes.count > 2;
}

TEST(a_kill_among_half_filled_holes_costs_nothing)
{
	fill_and_use(2);
	(void)store_until(half_filled);
	kit_run(&kit);
	assert_true(half_filled());
	remember();
	restart();
	all_are_there();
	remember();
	restart(); /* by the footers that the walk wrote */
	all_are_there();
}

static bool asks(void)
{
	const struct nvme_drain *drain = &kit.log->drain;

	return drain->state == DRAIN_ASK && drain->kept > 0 && drain->asked < drain->records;
}

TEST(a_stop_among_the_questions_leaves_the_disk_as_it_was)
{
	fill_and_use(2);
	(void)store_until(asks);
	assert_int_equal(kit_flush(&kit, true), 0);
	assert_true(kit.log->drain.kept > 0);
	remember();
	all_load();
	restart();
	assert_int_equal(counters()->walked_segments, 0);
	all_are_there();
}

TEST(a_purge_overtakes_what_is_kept)
{
	uint32_t next, tenant;

	fill_and_use(2);
	next = store_until(asks);
	tenant = nvme_entries(kit.log->drain.footer)[0].owner[0] - 0x40u;
	assert_int_equal(kit_purge(&kit, tenant), 0);
	for (uint32_t i = next; i < next + ALL; i++)
		if (i % KIT_TENANTS != tenant)
			assert_int_equal(kit_store(&kit, i), 0);
	kit_run(&kit);
	restart();
	for (uint32_t i = tenant; i < KIT_BLOCKS; i += KIT_TENANTS)
		assert_false(kit.block[i].found);
}

/* Records of a half to all of the largest one's size, some used more than others: how much of the
 * store is of use? */
static uint32_t three_to_six(uint32_t block)
{
	return 3 + block * 2654435761u / 7 % 4;
}

TEST(records_of_many_sizes_fill_the_store)
{
	enum { BLOCKS = 3000, STEPS = 12000, LATE = 6000 };
	struct random random = random_seeded("unit_nvme_log");
	const uint32_t segment_bytes = 1 << 20;
	uint64_t sum = 0;

	kit_close(&kit);
	kit_open(&kit, 8 * segment_bytes / KIT_SEGMENT, random.state);
	kit_pages = three_to_six;
	kit.conf.segment_bytes = segment_bytes;
	assert_int_equal(kit_format(&kit), 0);
	for (uint32_t i = 0; i < STEPS; i++) {
		const uint32_t below = 1 + random_below(&random, BLOCKS),
			       block = random_below(&random, below);

		if (kit.block[block].location != NVME_NOWHERE)
			kit_touch(&kit, block);
		else
			assert_int_equal(kit_store(&kit, block), 0);
		if (i % 1000 == 0)
			assert_int_equal(kit_flush(&kit, false), 0);
		sum += i < LATE ? 0 : nvme_log_facts(kit.log)->live_bytes;
	}
	sum /= STEPS - LATE;
	printf("%u %% of the store live, %u stored, %u dropped\n",
	       (uint32_t)(sum * 100 / nvme_log_facts(kit.log)->capacity_bytes), kit.stored,
	       kit.dropped);
	assert_true(sum * 100 >= nvme_log_facts(kit.log)->capacity_bytes * 75);
	kit_run(&kit);
	kit_check(&kit);
}

static uint32_t two_or_six(uint32_t block)
{
	return block % 1000 < 3 ? 6 : 2;
}

/* Each of three that is among holes of two pages takes no more than a segment. */
TEST(a_large_image_among_small_holes_gets_room)
{
	fill_and_use(4);
	kit_pages = two_or_six;
	kit_store_range(&kit, ALL, ALL + 20);
	for (uint32_t i = 1000; i < 1003; i++) {
		const uint32_t dropped = kit.dropped;

		assert_int_equal(kit_store(&kit, i), 0);
		kit_run(&kit);
		assert_in_range(kit.dropped - dropped, 0, 2 * EACH);
		kit_store_range(&kit, i + 10 * (i - 990), i + 10 * (i - 990) + 5);
	}
	assert_int_equal(kit_load(&kit, 1002), 0);
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

TEST(a_place_is_not_overwritten_while_it_is_read)
{
	struct nvme_read read = { .done = read_ended };
	uint8_t *buffer = kit.slot[7].image;
	uint32_t next = ALL;

	fill_and_use(EACH); /* the first record of each segment is cold */
	read.location = kit.block[0].location;
	read.bytes = kit_image(0, kit.expected);
	read.buffer = buffer;
	kit.sim.stall_nth = kit.sim.submits + 1;
	assert_int_equal(nvme_log_read(kit.log, &read), 0);
	while (!kit_store(&kit, next))
		assert_true(++next < KIT_BLOCKS);
	assert_int_equal(kit.block[0].location, NVME_NOWHERE);
	assert_true(read.bytes > 0); /* still out */
	disk_sim_unstall(&kit.sim);
	kit_run(&kit);
	assert_int_equal(read.bytes, 0);
	kit_image(0, kit.expected);
	assert_memory_equal(buffer, kit.expected, NVME_PAGE - sizeof(struct nvme_tag));
	assert_memory_equal(buffer + NVME_PAGE, kit.expected + NVME_PAGE, NVME_PAGE);
	assert_int_equal(kit_store(&kit, next), 0);
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

	while (i < 100 && kit_store(&kit, from + i) == 0)
		i++;
	kit_run(&kit);
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
	assert_in_range(budget_takes(100), 7, 18);
	nvme_log_set_budget(kit.log, 24 * 400000); /* fills faster, from where it was */
	assert_in_range(budget_takes(200), 0, 1);
	kit.sim.time_ns += 3600ull * 1000000000;
	assert_in_range(budget_takes(300), 14, 36);
	nvme_log_set_budget(kit.log, 0);
	assert_int_equal(kit_store(&kit, 400), 0);
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

TEST(what_is_kept_does_not_revive_what_was_purged)
{
	kit.keep = true;
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
	kit_pages = two;
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
