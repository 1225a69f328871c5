/* SPDX-License-Identifier: Apache-2.0 */
/* make: wrap=pread,pwrite,fdatasync,io_uring_peek_batch_cqe lane=wait */
/* make: wrap=clock_gettime,epoll_wait (the test holds the clock) */
/*
 * Goal: a disk that fails, is full, vanishes or stalls costs the blocks on it for that time, and
 * nothing else. The state has a name, errors come at once, buffers are kept until the disk lets go
 * of them, and the disk comes back by itself. Method: real files, transfers that fail or stall by
 * plan (lib_io_faults.h). Both I/O engines.
 */
#include "tests/lib/lib_clock.h"
#include "tests/lib/lib_nvme_tier.h"

#include "tests/lib/lib_io_faults.h"

enum { BLOCKS = 12, ALWAYS = 1 << 30 };

static struct site site;

FIXTURE_DO(open_site, io_plan_none();
	   site_open_filled(&site, *(enum io_engine_choice *)*state, BLOCKS));

FIXTURE_DO(close_site, io_plan_none(); site_close(&site));

static void spoil(uint32_t kinds, uint32_t skip, uint32_t times, int32_t result)
{
	io_plan_set(
		(struct io_plan){ .kinds = kinds, .skip = skip, .times = times, .result = result });
}

static const char *text(void)
{
	static struct nvme_tier_status status;

	status = site_status(&site);
	return status.text;
}

/* --- errors --- */

static enum io_engine_choice on_auto = IO_ENGINE_AUTO;

#define CASE(fn)                                                                  \
	TEST_ROWS(fn, { #fn " (io_uring)", fn, open_site, close_site, &on_auto }, \
		  { #fn " (threads)", fn, open_site, close_site, &on_threads })

CASE(one_read_error_is_one_miss)
{
	spoil(1 << IO_READ, 0, 1, -EIO);
	assert_int_equal(site_load(&site, 3), -EIO);
	assert_int_equal(tier_state(site.tier), TIER_UP);
	assert_int_equal(site_load(&site, 3), 0);
}

CASE(short_reads_are_no_errors)
{
	spoil(1 << IO_READ, 0, ALWAYS, NVME_PAGE);
	assert_int_equal(site_load_all(&site), BLOCKS);
	spoil(1 << IO_WRITE, 0, ALWAYS, NVME_PAGE);
	assert_int_equal(site_store(&site, 20), 0);
	assert_int_equal(site_load(&site, 20), 0);
}

/* Nobody waits for a disk that is out; it comes back when a probe reads again. */
CASE(reads_that_fail_take_it_offline_and_a_probe_brings_it_back)
{
	spoil(1 << IO_READ, 0, ALWAYS, -EIO);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(tier_state(site.tier), TIER_UP);
		assert_int_equal(site_load(&site, 3), -EIO);
	}
	assert_int_equal(tier_state(site.tier), TIER_OFFLINE);
	assert_non_null(strstr(text(), "reads fail"));
	assert_false(
		tier_readable(site.tier, &(struct tier_name){ .where = &site.block[4].where }));
	assert_int_equal(site_refused(&site, XFER_READ, 4), -ENODEV);
	assert_int_equal(site_store(&site, 30), -EROFS);
	for (int i = 0; i < 20; i++)
		site_iterate(&site);
	assert_true(site.changed > 0);
	assert_int_equal(tier_state(site.tier), TIER_OFFLINE);
	io_plan_none();
	assert_true(site_until_state(&site, TIER_UP));
	assert_string_equal(text(), "");
	assert_int_equal(site_load_all(&site), BLOCKS);
	assert_int_equal(site_store(&site, 30), 0);
}

CASE(a_disk_that_is_gone_is_offline_at_once)
{
	spoil(1 << IO_READ, 0, 1, -ENODEV);
	assert_int_equal(site_load(&site, 3), -ENODEV);
	assert_int_equal(tier_state(site.tier), TIER_OFFLINE);
	assert_true(site_until_state(&site, TIER_UP));
	spoil(1 << IO_WRITE, 0, 1, -ENXIO);
	assert_int_equal(site_store(&site, 30), -ENXIO);
	assert_int_equal(tier_state(site.tier), TIER_OFFLINE);
	assert_true(site_until_state(&site, TIER_UP));
	assert_int_equal(site_load_all(&site), BLOCKS);
}

static bool was_probed(struct site *s)
{
	return io_transfers() > 0 && tier_idle(s->tier);
}

static void all_acknowledged_are_there(void)
{
	for (uint32_t i = 0; i < BLOCKS; i++)
		assert_int_equal(site_load(&site, i), 0);
	assert_int_equal(site_load(&site, 33), 0);
}

CASE(a_full_file_system_is_readonly_until_there_is_room)
{
	spoil(1 << IO_WRITE, 0, ALWAYS, -ENOSPC);
	assert_int_equal(site_store(&site, 30), -ENOSPC);
	assert_int_equal(tier_state(site.tier), TIER_READONLY);
	assert_non_null(strstr(text(), "make room"));
	assert_int_equal(site_store(&site, 31), -EROFS);
	assert_int_equal(site_load_all(&site), BLOCKS); /* reads go on */
	assert_true(site_settle(&site, site_is_idle));
	spoil(1 << IO_WRITE, 0, ALWAYS, -ENOSPC); /* counts from here */
	assert_true(site_settle(&site, was_probed));
	assert_int_equal(tier_state(site.tier), TIER_READONLY); /* still full */
	assert_int_equal(site_store(&site, 32), -EROFS);
	io_plan_none();
	assert_true(site_until_state(&site, TIER_UP)); /* by its own probe */
	assert_int_equal(site_store(&site, 33), 0);
	all_acknowledged_are_there();
	site_stop(&site, true);
	site_start(&site);
	/* and blocks that got to the disk though it said otherwise */
	all_acknowledged_are_there();
}

CASE(three_failed_writes_make_it_readonly)
{
	assert_true(site_settle(&site, site_is_idle));
	spoil(1 << IO_WRITE, 0, ALWAYS, -EIO);
	assert_int_equal(site_store(&site, 30), -EIO);
	assert_int_equal(tier_state(site.tier), TIER_UP);
	/* a header may be one of the three */
	for (uint32_t i = 1; i < 3 && tier_state(site.tier) == TIER_UP; i++)
		assert_int_equal(site_store(&site, 30 + i), -EIO);
	assert_int_equal(tier_state(site.tier), TIER_READONLY);
	io_plan_none();
	assert_true(site_until_state(&site, TIER_UP)); /* by its own probe */
	assert_int_equal(site_store(&site, 40), 0);
}

/* Reclaim may take a block meanwhile, and without a word where a footer could not be written:
 * -ESTALE. */
static void all_are_whole(void)
{
	for (uint32_t i = 0; i < SITE_BLOCKS; i++) {
		const int r = site_load(&site, i);

		assert_true(r == 0 || r == -ENOENT || r == -ESTALE);
	}
}

/* Each write of a busy store fails once: every acknowledged block is right, and the store does not
 * fill up. */
CASE(any_write_may_fail)
{
	uint32_t stored = 0;

	for (uint32_t i = 0; i < 150; i++) {
		spoil(IO_ALL_KINDS, i % 4, 1, -EIO);
		stored += !site_store(&site, 100 + i);
	}
	io_plan_none();
	assert_true(stored > 10); /* how many depends on when the probes come */
	assert_true(site_until_state(&site, TIER_UP)); /* by its own probe */
	assert_true(site_settle(&site, site_is_idle));
	all_are_whole();
	site_stop(&site, true);
	site_start(&site);
	assert_true(site.found > 10);
	all_are_whole();
}

CASE(a_start_that_cannot_read_is_tried_again)
{
	site_stop(&site, true);
	/* the look at the file succeeds where that is a pread */
	spoil(1 << IO_READ, 1, ALWAYS, -EIO);
	site_start(&site);
	assert_int_equal(tier_state(site.tier), TIER_OFFLINE);
	io_plan_none();
	assert_true(site_until_state(&site, TIER_UP));
	assert_int_equal(site_load_all(&site), BLOCKS);
}

CASE(a_purge_that_cannot_be_written_says_so)
{
	assert_true(site_settle(&site, site_is_idle));
	spoil(1 << IO_WRITE, 0, 2, -EIO); /* two: the first may meet a segment's header */
	assert_int_equal(site_purge(&site, 1), -EIO);
	io_plan_none();
	assert_int_equal(site_purge(&site, 1), 0);
	site_stop(&site, true);
	site_start(&site);
	assert_false(site.block[1].there);
}

/* --- stalls --- */

/* Both or one of them are in the disk, which does not answer for longer than it may. */
static void stall(uint32_t n)
{
	while (io_held() < n)
		site_iterate(&site);
	clock_pass_ms(SITE_STALL_MS);
}

CASE(a_stalled_read_ends_and_its_buffer_is_kept)
{
	struct site_slot *slot, *other;

	io_hold(1 << IO_READ);
	slot = site_begin(&site, XFER_READ, 3);
	other = site_begin(&site, XFER_READ, 5);
	stall(2);
	assert_true(site_until_state(&site, TIER_OFFLINE));
	assert_int_equal(slot->dones, 1);
	assert_int_equal(slot->x.status, -ETIMEDOUT);
	assert_true(slot->x.kept && slot->busy && other->x.kept);
	assert_int_equal(site.released, 0);
	assert_false(tier_idle(site.tier));
	assert_int_equal(site_load(&site, 4), -ENODEV);
	for (int i = 0; i < 100; i++)
		site_iterate(&site);
	assert_int_equal(site.released, 0); /* as long as it takes */
	assert_int_equal(tier_state(site.tier), TIER_OFFLINE);
	assert_int_equal(site_status(&site).stalls_total, 1);
	assert_true(site_disk(&site, 0).io.oldest_ns > 0);
	io_hold(0);
	assert_true(site_until_state(&site, TIER_UP));
	assert_int_equal(site.released, 2);
	assert_false(slot->busy);
	assert_int_equal(slot->dones, 1);
	assert_int_equal(site_load_all(&site), BLOCKS);
}

CASE(a_stalled_write_stays_lent)
{
	struct site_slot *slot;

	site_store_range(&site, 20, 21); /* a segment is open */
	io_hold(1 << IO_WRITE);
	slot = site_begin(&site, XFER_WRITE, 30);
	stall(1);
	assert_true(site_until_state(&site, TIER_OFFLINE));
	assert_int_equal(slot->dones, 0);
	assert_true(slot->x.in_flight);
	io_hold(0);
	assert_true(site_until_state(&site, TIER_UP));
	assert_true(site_settle(&site, site_is_idle));
	assert_int_equal(slot->dones, 1);
	assert_int_equal(slot->x.status, 0);
	assert_int_equal(site_load(&site, 30), 0);
}

CASE(a_read_cancelled_in_the_disk_keeps_its_buffer)
{
	struct site_slot *slot;

	io_hold(1 << IO_READ);
	slot = site_begin(&site, XFER_READ, 3);
	for (int i = 0; i < 5; i++)
		site_iterate(&site);
	tier_cancel(site.tier, &slot->x);
	assert_int_equal(slot->dones, 0);
	while (!slot->dones)
		site_iterate(&site);
	assert_int_equal(slot->x.status, -ECANCELED);
	assert_true(slot->x.kept);
	assert_int_equal(site.tier->in_flight, 0);
	assert_false(tier_idle(site.tier));
	assert_int_equal(tier_state(site.tier), TIER_UP);
	io_hold(0);
	assert_true(site_settle(&site, site_is_idle));
	assert_int_equal(site.released, 1);
	assert_int_equal(slot->dones, 1);
	assert_int_equal(site_load(&site, 3), 0);
}

/* A flush cannot hurry a disk; when that answers, it ends. */
CASE(a_flush_waits_for_a_stalled_disk)
{
	site_store_range(&site, 20, 21);
	io_hold(1 << IO_WRITE | 1 << IO_FDATASYNC);
	site.ended = 1;
	assert_int_equal(tier_flush(site.tier, true, site_ended, &site), 0);
	assert_int_equal(tier_flush(site.tier, true, site_ended, &site), -EBUSY);
	stall(1);
	assert_true(site_until_state(&site, TIER_OFFLINE));
	assert_int_equal(site.ended, 1);
	io_hold(0);
	assert_true(site_settle(&site, site_has_ended));
}

TEST_FIRST(io_rig_needed());
