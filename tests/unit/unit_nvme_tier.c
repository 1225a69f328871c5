/* SPDX-License-Identifier: Apache-2.0 */
/* make: wrap=clock_gettime,epoll_wait (the test holds the clock) */
/*
 * Goal: the NVMe tier on good disks acts as nvme.h says: stored blocks are found, by the same
 * daemon and the next one; several paths share the blocks; cancelled reads keep their buffers;
 * purge, flush, budget and status. Method: real files with O_DIRECT, a table that checks every byte
 * (lib_nvme_tier.h). Each case on both I/O engines.
 */
#include "tests/lib/lib_nvme_tier.h"

#include "tests/lib/fault.h"

static struct site site;

static void open_site(void **state, uint32_t n_paths)
{
	site_open(&site, *(enum io_engine_choice *)*state, n_paths);
	site_start(&site);
	assert_int_equal(tier_state(site.tier), TIER_UP);
}

#define ON_A_SITE(name, n_paths) ON_BOTH_BETWEEN(name, open_site(state, n_paths), site_close(&site))

static void restart(bool flush)
{
	site_stop(&site, flush);
	site_start(&site);
}

/* --- one path --- */

/* The sums are the timer's. */
static bool has_30_extents(struct site *s)
{
	return s->tier->extents == 30;
}

ON_A_SITE(what_is_stored_is_loaded, 1)
{
	site_store_range(&site, 0, 30);
	assert_int_equal(site_load_all(&site), 30);
	assert_true(site_settle(&site, has_30_extents));
	assert_true(site.tier->used_bytes > 30 * NVME_PAGE &&
		    site.tier->used_bytes < site.tier->capacity_bytes);
}

/* Block 0 has room for it in its padding, block 1 has not, block 2 has in a later page. */
ON_A_SITE(a_read_tells_the_parent_where_it_can, 1)
{
	static const uint8_t none[32];
	uint8_t key[32];

	site_store_range(&site, 1, 6);
	for (uint32_t i = 1; i < 6; i++) {
		struct site_slot *slot = site_begin(&site, XFER_READ, i);

		(void)site_wait(&site, slot);
		kit_key(i - 1, key);
		assert_memory_equal(slot->x.record.parent, i % 3 == 1 ? none : key, 32);
	}
}

ON_A_SITE(a_restart_finds_all, 1)
{
	site_store_range(&site, 0, 25);
	restart(true);
	assert_int_equal(site.found, 25);
	assert_int_equal(site_load_all(&site), 25);
	site_store_range(&site, 25, 30);
	restart(false); /* the open segment is walked */
	assert_int_equal(site.found, 30);
	assert_int_equal(site_load_all(&site), 30);
}

ON_A_SITE(a_purge_survives_a_restart, 2)
{
	site_store_range(&site, 0, 30);
	assert_int_equal(site_purge(&site, 1), 0);
	assert_int_equal(site_store(&site, 31), 0); /* the same tenant, later */
	restart(false);
	assert_int_equal(site.found, 21);
	assert_false(site.block[1].there);
	assert_int_equal(site_load(&site, 31), 0);
}

ON_A_SITE(a_store_that_is_larger_than_said_is_told, 1)
{
	assert_false(site_status(&site).larger);
	site.conf.bytes /= 2;
	restart(true);
	assert_true(site_status(&site).larger);
}

ON_A_SITE(a_full_store_goes_on_and_tells_what_it_dropped, 1)
{
	struct nvme_tier_status status;

	site_store_range(&site, 0, 200);
	status = site_status(&site);
	assert_true(site.dropped > 0);
	assert_int_equal(status.log.dropped_records, site.dropped);
	assert_true(status.log.lived_s < 60 * site.dropped);
	assert_int_equal(site_load_all(&site), site.blocks);
}

ON_A_SITE(a_stale_place_is_refused, 1)
{
	struct extent first;

	site_store_range(&site, 0, 1);
	first = site.block[0].where;
	site_store_range(&site, 1, 200);
	assert_false(site.block[0].there);
	site.block[0].there = true;
	site.block[0].where = first;
	assert_int_equal(site_refused(&site, XFER_READ, 0), -ESTALE);
	site.block[0].where.unit = 7;
	assert_int_equal(site_refused(&site, XFER_READ, 0), -ESTALE);
}

/* However far the read is: it ends once, with the bytes or without them, and the slot comes
 * back. */
ON_A_SITE(a_cancelled_read_ends_once_and_gives_its_slot_back, 1)
{
	site_store_range(&site, 0, 8);
	for (uint32_t i = 0; i < 8; i++) {
		struct site_slot *slot = site_begin(&site, XFER_READ, i);

		tier_cancel(site.tier, &slot->x);
		assert_int_equal(slot->dones, 0); /* not inside the call */
		tier_cancel(site.tier, &slot->x);
		(void)site_wait(&site, slot);
		assert_true(slot->x.status == 0 || (slot->x.status == -ECANCELED && slot->x.kept));
	}
	assert_true(site_settle(&site, site_is_idle));
	for (uint32_t i = 0; i < SITE_SLOTS; i++)
		assert_int_equal(site.slot[i].dones, i < 1 || site.slot[i].dones ? 1 : 0);
	for (uint32_t i = 0; i < SITE_SLOTS; i++)
		assert_false(site.slot[i].busy);
}

ON_A_SITE(a_write_is_not_cancelled, 1)
{
	struct site_slot *slot;

	site_store_range(&site, 0, 1);
	slot = site_begin(&site, XFER_WRITE, 1);
	tier_cancel(site.tier, &slot->x);
	assert_int_equal(site_wait(&site, slot), 0);
	assert_int_equal(site_load(&site, 1), 0);
}

ON_A_SITE(more_than_it_takes_is_refused_for_now, 1)
{
	uint32_t lent = 0, refused = 0;
	int r;

	site.conf.read_depth = 1;
	site.conf.write_depth = 1;
	restart(true);
	site_store_range(&site, 0, 1);
	for (uint32_t i = 0; i < SITE_SLOTS; i++) {
		if (site_try(&site, XFER_READ, 0, &r)) {
			lent++;
			continue;
		}
		assert_int_equal(r, -EAGAIN);
		refused++;
	}
	assert_true(lent >= 4 && refused > 0);
	assert_true(site_settle(&site, site_is_idle));
}

static bool has_changed(struct site *s)
{
	return s->changed > 0;
}

ON_BOTH(the_budget_refuses_and_shows)
{
	struct nvme_tier_status status = { 0 };
	int r = 0;

	site_open(&site, *(enum io_engine_choice *)*state, 1);
	site.conf.write_budget_bytes_per_day = 1000;
	site_start(&site);
	assert_true(site_status(&site).budget_percent > 90);
	/* -EAGAIN is also: no header yet */
	for (uint32_t i = 0; i < 100 && !status.log.refused_budget; i++) {
		if (site_try(&site, XFER_WRITE, i, &r))
			assert_true(site_settle(&site, site_is_idle));
		status = site_status(&site);
		site.changed = 0;
		if (r && !status.log.refused_budget)
			site_iterate(&site);
	}
	assert_int_equal(r, -EAGAIN);
	assert_in_range(status.budget_percent, 0, 12); /* less than a record */
	assert_int_equal(status.log.refused_budget, 1);
	assert_true(site_settle(&site, has_changed)); /* refused callers are told to try again */
	site_close(&site);
}

/* --- several paths --- */

static uint32_t on_disk(uint32_t disk, uint32_t n)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < n; i++)
		count += site.block[i].there && site.block[i].where.unit == disk;
	return count;
}

ON_A_SITE(paths_share_the_blocks, 3)
{
	struct nvme_tier_status status;

	site_store_range(&site, 0, 90);
	for (uint32_t d = 0; d < 3; d++)
		assert_in_range(on_disk(d, 90), 12, 55);
	assert_int_equal(site_load_all(&site), 90);
	restart(true);
	assert_int_equal(site_load_all(&site), 90);
	status = site_status(&site);
	assert_int_equal(status.disks, 3);
	assert_int_equal(status.usable, 3);
	assert_string_equal(status.text, "");
}

/* The second of three is something else after a restart: its share is lost, and only that moves. */
ON_A_SITE(losing_one_path_loses_its_share_only, 3)
{
	static uint8_t junk[NVME_DATA_OFFSET];
	uint8_t disk[60];
	struct nvme_tier_status status;

	site_store_range(&site, 0, 60);
	for (uint32_t i = 0; i < 60; i++)
		disk[i] = site.block[i].where.unit;
	site_stop(&site, true);
	memset(junk, 0x55, sizeof(junk));
	site_poke(site.path[1], 0, junk, sizeof(junk));
	site_start(&site);
	assert_int_equal(tier_state(site.tier), TIER_DEGRADED);
	status = site_status(&site);
	assert_true(status.quarantined);
	assert_int_equal(status.usable, 2);
	assert_non_null(strstr(status.text, site.path[1]));
	assert_true(site_disk(&site, 1).for_good && site_disk(&site, 1).state == TIER_OFFLINE);
	for (uint32_t i = 0; i < 60; i++) {
		assert_int_equal(site.block[i].there, disk[i] != 1);
		if (disk[i] != 1)
			assert_int_equal(site_load(&site, i), 0);
		site_forget(&site, i);
		assert_int_equal(site_store(&site, i), 0);
		assert_true(disk[i] == 1 || site.block[i].where.unit == disk[i]);
		assert_int_not_equal(site.block[i].where.unit, 1);
	}
	assert_int_equal(site_purge(&site, 0), -EIO); /* its records could come back with it */
}

ON_BOTH(without_any_path_it_opens_all_the_same)
{
	uint8_t key[32] = { 1 };

	site_open(&site, *(enum io_engine_choice *)*state, 1);
	assert_int_equal(mkdir(site.path[0], 0700), 0);
	site_start(&site);
	assert_int_equal(tier_state(site.tier), TIER_OFFLINE);
	assert_false(tier_writable(site.tier, &(struct tier_name){ .key = key }));
	assert_int_equal(site_refused(&site, XFER_WRITE, 0), -EROFS);
	site.block[0].there = true;
	site.block[0].where = (struct extent){ .tier = TIER_NVME, .generation = 1 };
	assert_false(
		tier_readable(site.tier, &(struct tier_name){ .where = &site.block[0].where }));
	assert_int_equal(site_refused(&site, XFER_READ, 0), -ENODEV);
	assert_int_equal(site_flush(&site, true), 0);
	site_close(&site);
}

/* --- other --- */

ON_THREADS(a_bad_configuration_names_its_key)
{
	struct tier_conf conf = { .nvme = &site.conf };
	struct nvme_tier_conf good;

	site_open(&site, *(enum io_engine_choice *)*state, 2);
	good = site.conf;
	for (int i = 0; i < 6; i++) {
		static const char *const keys[] = { "path",  "path",        "segment_bytes",
						    "bytes", "queue_depth", "path" };

		site.conf = good;
		site.conf.n_paths = i == 0 ? 0 : 2;
		site.conf.paths[1] = i == 1 ? site.conf.paths[0] : i == 5 ? "" : good.paths[1];
		site.conf.segment_bytes = i == 2 ? 4095 : good.segment_bytes;
		site.conf.bytes = i == 3 ? 1000 : good.bytes;
		site.conf.read_depth = i == 4 ? 0 : 4;
		assert_int_equal(tier_open(TIER_NVME, &conf, site.loop, &site.tier, site.text,
					   sizeof(site.text)),
				 -EINVAL);
		assert_non_null(strstr(site.text, "[nvme]"));
		assert_non_null(strstr(site.text, keys[i]));
	}
	assert_int_equal(access(site.path[0], F_OK), -1); /* nothing was made */
	site_close(&site);
}

ON_THREADS(the_fault_tier_wraps_it)
{
	struct tier *wrapped;
	struct site_slot *slot;

	open_site(state, 1);
	assert_int_equal(fault_wrap(site.tier, &wrapped), 0);
	site.tier = wrapped;
	assert_int_equal(site_store(&site, 2), 0);
	assert_int_equal(site_load(&site, 2), 0);
	fault_set(wrapped, &(struct fault_plan){ .submit_nth = 1, .submit_errno = -EIO });
	assert_int_equal(site_store(&site, 3), -EIO);
	fault_set(wrapped, &(struct fault_plan){ .done_nth = 1, .done_errno = -EBADMSG });
	slot = site_begin(&site, XFER_READ, 2);
	assert_int_equal(site_wait(&site, slot), -EBADMSG);
	fault_set(wrapped, &(struct fault_plan){ .hold = true });
	slot = site_begin(&site, XFER_WRITE, 3);
	while (!fault_release(wrapped, 1))
		site_iterate(&site);
	assert_int_equal(slot->x.status, 0);
	fault_set(wrapped, &(struct fault_plan){ 0 });
	assert_int_equal(site_load(&site, 3), 0);
	tier_touch(wrapped, &site.block[3].where, site.block[3].tick, site.block[3].tick);
	site_close(&site);
}

ON_THREADS(misuse_is_refused)
{
	static struct site_slot *slot;

	open_site(state, 1);
	site_store_range(&site, 0, 1);
	slot = site_begin(&site, XFER_READ, 0);
	assert_true(site_settle(&site, site_is_idle));
	site.ended = 1;
	slot->x.op = XFER_WRITE; /* no image of so many bytes */
	memset(slot->bytes, 0, NVME_PAGE);
	assert_int_equal(tier_submit(site.tier, &slot->x), -EINVAL);
	slot->x.bytes = 1u << 30;
	assert_int_equal(tier_submit(site.tier, &slot->x), -E2BIG);
	assert_int_equal(tier_alloc(site.tier, 1, &slot->x.where), -ENOTSUP);
	site_close(&site);
}

TEST_FIRST(io_rig_needed());
