/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * Goal: the log starts as it should on a disk that is not as it left it: another's, of another
 * format, damaged, cut short, with segments of earlier lives. Refused stores are left untouched;
 * damage costs the damaged records only. Method: a store is made on a simulated disk, changed byte
 * by byte, and opened again.
 */

#include "tests/lib/test.h"
#include "tiers/nvme/log/nvme_log_inner.h"
#include "tests/lib/lib_nvme.h"

enum { SEGMENTS = 6, BLOCKS = 7 };

static struct kit kit;

FIXTURE(setup)
{
	kit_open(&kit, SEGMENTS, 1);
	assert_int_equal(kit_format(&kit), 0);
	kit_store_range(&kit, 0, BLOCKS);
	assert_int_equal(kit_flush(&kit, true), 0);
	kit_crash(&kit, SIM_KEEP_ALL);
	return 0;
}

FIXTURE_DO(teardown, kit_close(&kit));

TEST_EACH(setup, teardown);

/* It does not start, says why, and not a byte of the disk is other than before. */
static void refused(int why, const char *word)
{
	uint8_t *before = malloc(kit.sim.bytes);

	assert_non_null(before);
	memcpy(before, kit.sim.now, kit.sim.bytes);
	assert_int_equal(kit_recover(&kit), why);
	assert_int_equal(nvme_log_facts(kit.log)->state, NVME_FAILED);
	assert_non_null(strstr(nvme_log_facts(kit.log)->text, word));
	assert_memory_equal(before, kit.sim.now, kit.sim.bytes);
	free(before);
}

static void set_super(uint32_t copy, const struct nvme_super *super)
{
	memcpy(kit.sim.now + nvme_super_offset(copy), super, sizeof(*super));
	memcpy(kit.sim.durable + nvme_super_offset(copy), super, sizeof(*super));
}

static struct nvme_super get_super(uint32_t copy)
{
	struct nvme_super super;

	assert_int_equal(nvme_super_check(kit.sim.now + nvme_super_offset(copy), &super), 0);
	return super;
}

TEST(a_good_store_starts)
{
	assert_int_equal(kit_recover(&kit), 0);
	assert_int_equal(kit_load_all(&kit), BLOCKS);
}

TEST_DO(a_blank_disk_is_refused, memset(kit.sim.now, 0, kit.sim.bytes);
	refused(-ENODATA, "format"));

TEST_DO(something_else_is_refused, memset(kit.sim.now, 'x', kit.sim.bytes);
	refused(-EMEDIUMTYPE, "no kvtier store"));

TEST(a_newer_format_is_refused_even_if_the_other_copy_is_ours)
{
	struct nvme_super super = get_super(1);

	super.format = NVME_FORMAT + 1;
	super.crc = image_crc32c(&super, offsetof(struct nvme_super, crc));
	set_super(1, &super);
	refused(-EPROTONOSUPPORT, "format");
}

TEST(a_truncated_file_is_refused)
{
	kit.conf.disk_bytes -= 4096;
	kit.conf.bytes = 0;
	refused(-EUCLEAN, "truncated");
}

TEST_DO(a_file_without_room_for_anything_is_refused, kit.conf.disk_bytes = 0;
	refused(-EUCLEAN, "too short"));

TEST(a_store_smaller_than_configured_is_refused)
{
	kit.conf.bytes += KIT_SEGMENT;
	kit.conf.disk_bytes += KIT_SEGMENT;
	refused(-ENOSPC, "configuration");
}

TEST(two_damaged_superblocks_are_refused)
{
	disk_sim_flip(&kit.sim, 100, 1);
	disk_sim_flip(&kit.sim, NVME_SUPER_GAP + 100, 1);
	refused(-EBADMSG, "damaged");
}

TEST(a_flip_anywhere_in_one_superblock_costs_nothing)
{
	for (uint32_t copy = 0; copy < 2; copy++) {
		for (uint32_t at = 0; at < NVME_PAGE; at += at < 80 || at > 4080 ? 1 : 97) {
			disk_sim_flip(&kit.sim, nvme_super_offset(copy) + at,
				      (uint8_t)(1u << at % 8));
			assert_int_equal(kit_recover(&kit), 0);
			assert_int_equal(kit.blocks, BLOCKS);
			kit_crash(&kit, SIM_KEEP_ALL);
		}
	}
}

TEST(the_newest_good_superblock_wins)
{
	struct nvme_super super = get_super(0);
	uint8_t owner[32] = { 0 };

	memset(owner, 0x41, sizeof(owner));
	super.generation += 5;
	nvme_super_purge(&super, owner, (super.life + 1) << 32);
	nvme_super_seal(&super);
	set_super(1, &super);
	assert_int_equal(kit_recover(&kit), 0);
	assert_int_equal(kit_load(&kit, 1), -ENOENT);
	assert_int_equal(kit_load(&kit, 0), 0);
	assert_true(get_super(0).generation == super.generation + 1);
	assert_true(get_super(1).generation == super.generation + 1);
}

/* Every byte of everything in the first segment in turn (payloads sampled): its record right or a
 * miss, others unharmed, the checks in kit_load() hold. */
TEST(a_flip_anywhere_in_a_segment_costs_that_record_at_most)
{
	const uint64_t base = nvme_segment_offset(0, KIT_SEGMENT);

	for (uint32_t at = 0; at < KIT_SEGMENT;
	     at += at % NVME_PAGE < 160 || at % NVME_PAGE > 3950 ? 7 : 211) {
		uint32_t whole;

		disk_sim_flip(&kit.sim, base + at, (uint8_t)(1u << at % 8));
		assert_int_equal(kit_recover(&kit), 0);
		whole = kit_load_all(&kit);
		if (at >= 64 && at < NVME_PAGE)
			assert_int_equal(whole, BLOCKS); /* behind the header */
		else if (at < NVME_PAGE)
			/* the header: the segment is not there */
			assert_true(whole >= BLOCKS - 4);
		else
			assert_true(whole >= BLOCKS - 1);
		kit_check(&kit);
		kit_crash(&kit, SIM_KEEP_ALL);
		memset(kit.sim.now, 0, kit.sim.bytes);
		teardown(NULL);
		setup(NULL);
	}
}

TEST(a_store_formatted_again_forgets_the_one_before)
{
	memset(kit.conf.uuid, 0x55, sizeof(kit.conf.uuid));
	assert_int_equal(kit_format(&kit), 0);
	kit_run(&kit);
	kit_crash(&kit, SIM_KEEP_ALL);
	assert_int_equal(kit_recover(&kit), 0);
	assert_int_equal(kit.blocks, 0);
}

TEST(records_of_a_segments_earlier_use_do_not_resurface)
{
	uint32_t i;

	assert_int_equal(kit_recover(&kit), 0);
	for (i = 0; i < BLOCKS; i++)
		kit_forget(&kit, i);
	for (i = 100; i < 200; i++) {
		assert_int_equal(kit_store(&kit, i), 0);
		if (nvme_location_segment(kit.block[i].location) == 0)
			break;
		kit_forget(&kit, i);
	}
	kit_run(&kit);
	kit_crash(&kit, SIM_KEEP_ALL);
	assert_int_equal(kit_recover(&kit), 0);
	assert_int_equal(kit_load(&kit, i), 0); /* one record, where there were four */
	for (i = 0; i < 4; i++)
		assert_int_equal(kit.block[i].location, NVME_NOWHERE);
}

TEST(a_header_of_an_earlier_use_does_not_bring_back_what_lies_there_now)
{
	uint8_t header[NVME_PAGE], *at = kit.sim.now + nvme_segment_offset(0, KIT_SEGMENT);

	memcpy(header, at, sizeof(header));
	assert_int_equal(kit_recover(&kit), 0);
	for (uint32_t i = 0; i < BLOCKS; i++)
		kit_forget(&kit, i);
	kit_store_range(&kit, 100, 130);
	assert_int_equal(kit_flush(&kit, true), 0);
	kit_crash(&kit, SIM_KEEP_ALL);
	memcpy(at, header, sizeof(header));
	assert_int_equal(kit_recover(&kit), 0);
	for (uint32_t i = 0; i < 4; i++)
		assert_int_equal(kit.block[i].location, NVME_NOWHERE);
	assert_int_equal(kit_load_all(&kit), kit.blocks);
}

TEST(recovery_reads_a_header_and_a_footer_a_segment)
{
	assert_int_equal(kit_recover(&kit), 0);
	/* two superblocks; headers; the footers of three segments, of which one is empty */
	assert_int_equal(nvme_log_facts(kit.log)->counters.recovery_bytes,
			 2 * 4096 + SEGMENTS * 4096 + 3 * 4096);
	assert_int_equal(nvme_log_facts(kit.log)->counters.walked_segments, 0);
}

TEST(a_table_that_takes_nothing_leaves_an_empty_log)
{
	kit.refuse_found = true;
	assert_int_equal(kit_recover(&kit), 0);
	assert_int_equal(nvme_log_facts(kit.log)->live_bytes, 0);
	kit.refuse_found = false;
	kit_store_range(&kit, 100, 100 + 20);
}

TEST(shapes_out_of_limits_are_not_formatted)
{
	kit.conf.segment_bytes = 65536 + 1;
	assert_int_equal(kit_format(&kit), -EINVAL);
	kit_crash(&kit, SIM_KEEP_ALL);
	kit.conf.segment_bytes = 32768;
	assert_int_equal(kit_format(&kit), -EINVAL);
	kit_crash(&kit, SIM_KEEP_ALL);
	kit.conf.segment_bytes = 65536;
	kit.conf.bytes = NVME_DATA_OFFSET + 3 * 65536;
	assert_int_equal(kit_format(&kit), -EINVAL);
	kit_crash(&kit, SIM_KEEP_ALL);
	kit.conf.bytes = kit.conf.disk_bytes + 1;
	assert_int_equal(kit_format(&kit), -EINVAL);
}
