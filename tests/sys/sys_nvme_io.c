/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait no=thread (the daemon's threads run in others) needs=kvtierd_faulty */
/* make: wrap=clock_gettime,epoll_wait (the test holds the clock) */
/*
 * sys_nvme_io.c - goal: a disk whose reads or writes fail, are cut or lie costs the blocks on it
 * for that time and nothing else. The trouble is named, and the disk is back when it works again.
 * Method: a real kvtierd whose disk fails on command (kvtierd_faulty.c), a real engine, kvtierctl.
 * On both I/O engines. Stalls: sys_nvme_stall.c.
 */
#include "tests/lib/lib_clock.h"
#include "tests/lib/lib_faulty.h"
#include "tests/lib/test.h"

#include <errno.h>
#include <signal.h>
#include <string.h>

/* The tests about a disk that is out need blocks that only memory has: a chain of their own. */
enum { OTHERS = 8 };

struct others {
	struct kvtier_key keys[OTHERS];
};

static void others_store(struct disk_world *w, struct others *o, uint64_t chain)
{
	chain_keys(&w->e, chain, OTHERS, o->keys);
	assert_int_equal(chain_store(&w->e, o->keys, 0, OTHERS), 0);
}

static void others_load(struct disk_world *w, const struct others *o)
{
	assert_int_equal(chain_load(&w->e, o->keys, DISK_BLOCKS, OTHERS), OTHERS);
}

/* --- reads --- */

ON_BOTH_ENGINES(a_read_that_fails_once_is_tried_again)
{
	struct disk_world *w = faulty_away(state, faulty_quick, false);

	for (uint32_t i = 0; i < 4; i++) {
		faulty_plan(READS, 0, 1, -EIO);
		assert_int_equal(chain_load(&w->e, &w->keys[i], 0, 1), 1);
	}
	faulty_gauge(w, "tiers.nvme.read_errors_total", 4);
	faulty_is(w, "up");
	faulty_end(w);
}

/* Of many at once, too: a read in the midst of a chain. */
ON_BOTH_ENGINES(a_read_in_a_long_load_fails_once)
{
	struct disk_world *w = faulty_away(state, faulty_quick, false);

	faulty_plan(READS, DISK_BLOCKS / 2, 2, -EIO);
	assert_int_equal(chain_load(&w->e, w->keys, 0, DISK_BLOCKS), DISK_BLOCKS);
	faulty_end(w);
}

/* Twice the same block: this block is lost, and can be stored again; the disk is none the worse. */
ON_BOTH_ENGINES(a_block_that_cannot_be_read_is_a_miss)
{
	struct disk_world *w = faulty_away(state, faulty_quick, false);

	faulty_plan(READS, 0, 2, -EIO);
	assert_int_equal(chain_load(&w->e, &w->keys[DISK_BLOCKS - 1], 0, 1), 0);
	assert_int_equal(chain_load(&w->e, w->keys, 0, DISK_BLOCKS - 1), DISK_BLOCKS - 1);
	assert_int_equal(chain_store(&w->e, w->keys, 0, DISK_BLOCKS), 0);
	assert_int_equal(chain_load(&w->e, w->keys, 0, DISK_BLOCKS), DISK_BLOCKS);
	faulty_is(w, "up");
	faulty_end(w);
}

static void until_offline(struct disk_world *w)
{
	faulty_plan(READS, 0, ALWAYS, -EIO);
	for (uint32_t i = 0; i < 3; i++)
		assert_int_equal(chain_load(&w->e, &w->keys[i], 0, 1), 0);
	faulty_becomes(w, "offline");
}

ON_BOTH_ENGINES(reads_that_always_fail_take_the_disk_offline)
{
	struct disk_world *w = faulty_away(state, faulty_quick, false);

	until_offline(w);
	assert_int_equal(disk_status_says(&w->d, "reads fail", w->text, sizeof(w->text)), 2);
	assert_non_null(strstr(w->text, "nvme_offline"));
	assert_non_null(strstr(w->text, w->path));
	/* at once, without asking it */
	assert_int_equal(chain_load(&w->e, &w->keys[8], 0, DISK_BLOCKS - 8), 0);
	io_plan_none();
	faulty_end(w);
}

ON_BOTH_ENGINES(memory_serves_while_the_disk_is_offline)
{
	struct disk_world *w = faulty_away(state, faulty_quick, false);
	struct others o;

	until_offline(w);
	others_store(w, &o, 2);
	others_load(w, &o);
	assert_int_equal(engine_lookup(&w->e, o.keys, OTHERS), OTHERS);
	faulty_heal(w);
	others_load(w, &o);
	faulty_end(w);
}

/* All but the blocks that were asked for while it failed, at most. */
ON_BOTH_ENGINES(a_disk_that_heals_is_back)
{
	struct disk_world *w = faulty_away(state, faulty_quick, false);

	until_offline(w);
	faulty_heal(w);
	assert_int_equal(chain_load(&w->e, &w->keys[3], 0, DISK_BLOCKS - 3), DISK_BLOCKS - 3);
	assert_int_equal(disk_status_says(&w->d, "", w->text, sizeof(w->text)), 0);
	faulty_end(w);
}

/* A block away on a disk that is away, too, is stored again. */
ON_BOTH_ENGINES(what_the_disk_took_along_can_be_stored_again)
{
	struct disk_world *w = faulty_away(state, faulty_quick, false);

	until_offline(w);
	assert_int_equal(chain_store(&w->e, w->keys, 0, DISK_BLOCKS), 0);
	assert_int_equal(chain_load(&w->e, w->keys, 0, DISK_BLOCKS), DISK_BLOCKS);
	faulty_heal(w);
	disk_flush(&w->d);
	faulty_evict(w);
	assert_int_equal(chain_load(&w->e, w->keys, 0, DISK_BLOCKS), DISK_BLOCKS);
	faulty_end(w);
}

/* The daemon was never told to write in this life: it still knows whose fault it is. */
ON_BOTH_ENGINES(a_restarted_daemon_says_offline)
{
	struct disk_world *w = faulty_away(state, faulty_quick, false);

	disk_die(w, SIGTERM);
	faulty_live(w);
	until_offline(w);
	assert_int_equal(disk_status_says(&w->d, "nvme_offline", w->text, sizeof(w->text)), 2);
	io_plan_none();
	disk_die(w, SIGTERM);
	disk_end(w);
}

/* It serves without the disk, and has the disk's blocks when they can be read: of a block stored
 * meanwhile, one of both copies. */
ON_BOTH_ENGINES(a_start_that_cannot_read_is_tried_again)
{
	struct disk_world *w = faulty_away(state, faulty_quick, false);

	disk_die(w, SIGTERM);
	faulty_plan(READS, 1, ALWAYS, -EIO); /* but for the look at the present blocks */
	daemon_restart(&w->d);
	faulty_becomes(w, "offline");
	assert_int_equal(disk_status_says(&w->d, "tried again", w->text, sizeof(w->text)), 2);
	assert_non_null(strstr(w->text, "nvme_offline"));
	disk_join(w);
	assert_int_equal(engine_lookup(&w->e, w->keys, DISK_BLOCKS), 0);
	assert_int_equal(chain_store(&w->e, w->keys, 0, OTHERS), 0);
	faulty_heal(w);
	assert_int_equal(chain_load(&w->e, w->keys, 0, DISK_BLOCKS), DISK_BLOCKS);
	disk_flush(&w->d);
	faulty_evict(w);
	assert_int_equal(chain_load(&w->e, w->keys, 0, DISK_BLOCKS), DISK_BLOCKS);
	faulty_end(w);
}

/* --- writes --- */

static void readonly_and_back(void **state, int error, const char *reason)
{
	struct disk_world *w = faulty_away(state, faulty_quick, false);
	struct others o;

	faulty_plan(WRITES, 0, ALWAYS, error);
	/* where a parent's write fails, its children's may not be tried */
	for (uint32_t chain = 10; chain < 16; chain++)
		others_store(w, &o, chain);
	faulty_becomes(w, "readonly");
	assert_int_equal(disk_status_says(&w->d, reason, w->text, sizeof(w->text)), 1);
	assert_non_null(strstr(w->text, "nvme_degraded"));
	others_store(w, &o, 3);
	others_load(w, &o);
	/* reads go on */
	assert_int_equal(chain_load(&w->e, w->keys, 0, DISK_BLOCKS), DISK_BLOCKS);
	faulty_heal(w);
	disk_flush(&w->d);
	faulty_evict(w);
	others_load(w, &o); /* from NVMe */
	faulty_end(w);
}

ON_BOTH_ENGINES(writes_that_fail_make_it_readonly)
{
	readonly_and_back(state, -EIO, "look at the disk");
}

ON_BOTH_ENGINES(a_full_file_system_makes_it_readonly)
{
	readonly_and_back(state, -ENOSPC, "make room");
}

ON_BOTH_ENGINES(a_flush_that_cannot_write_says_so)
{
	struct disk_world *w = faulty_away(state, faulty_quick, false);
	struct others o;

	faulty_plan(SYNCS, 0, 1, -EIO);
	others_store(w, &o, 2);
	assert_int_equal(daemon_ctl(&w->d, "flush", w->text, sizeof(w->text)), 1);
	assert_non_null(strstr(w->text, "not all could be written"));
	disk_flush(&w->d);
	faulty_end(w);
}

/* Written is not synced: writes that a vanished disk still owes are not acknowledged. */
ON_BOTH_ENGINES(a_flush_without_the_disk_is_no_flush)
{
	struct disk_world *w = faulty_place(state, faulty_quick);

	faulty_live(w);
	assert_int_equal(chain_store(&w->e, w->keys, 0, DISK_BLOCKS), 0);
	faulty_gauge(w, "tiers.nvme.queued_blocks", 0);
	faulty_gauge(w, "leases", 0);
	faulty_evict(w);
	until_offline(w);
	clock_hurry(true); /* it waits ten seconds for a write that ends */
	assert_int_equal(daemon_ctl(&w->d, "flush", w->text, sizeof(w->text)), 1);
	clock_hurry(false);
	faulty_heal(w);
	disk_flush(&w->d);
	faulty_end(w);
}

/* --- short transfers --- */

ON_BOTH_ENGINES(short_transfers_are_continued)
{
	struct disk_world *w = faulty_place(state, faulty_quick);

	faulty_live(w);
	faulty_plan(READS | WRITES, 0, ALWAYS, IO_ALIGN);
	disk_fill(w);
	faulty_evict(w);
	assert_int_equal(chain_load(&w->e, w->keys, 0, DISK_BLOCKS), DISK_BLOCKS);
	assert_true(io_transfers() > 4 * DISK_BLOCKS); /* each in pieces, both ways */
	faulty_is(w, "up");
	assert_true(daemon_stat(&w->d, "tiers.nvme.read_errors_total") == 0);
	io_plan_none();
	disk_die(w, SIGKILL);
	faulty_live(w);
	assert_int_equal(chain_load(&w->e, w->keys, 0, DISK_BLOCKS), DISK_BLOCKS);
	faulty_end(w);
}

/* --- lies --- */

ON_BOTH_ENGINES(a_bit_flipped_on_the_way_is_read_again)
{
	struct disk_world *w = faulty_away(state, faulty_quick, false);

	for (uint32_t i = 0; i < 4; i++) {
		faulty_flip(1);
		assert_int_equal(chain_load(&w->e, &w->keys[i], 0, 1), 1);
		assert_int_equal(io_transfers(), 2);
	}
	assert_true(daemon_stat(&w->d, "tiers.nvme.corrupt_blocks_total") == 0);
	faulty_end(w);
}

ON_BOTH_ENGINES(a_bit_that_is_always_flipped_is_a_miss)
{
	struct disk_world *w = faulty_away(state, faulty_quick, false);

	faulty_flip(ALWAYS);
	assert_int_equal(chain_load(&w->e, &w->keys[8], 0, DISK_BLOCKS - 8), 0);
	faulty_gauge(w, "tiers.nvme.corrupt_blocks_total", DISK_BLOCKS - 8);
	assert_int_equal(disk_status_says(&w->d, "nvme_corrupt", w->text, sizeof(w->text)), 1);
	io_plan_none();
	assert_int_equal(chain_load(&w->e, w->keys, 0, 8), 8);
	/* dropped: no second opinion */
	assert_int_equal(chain_load(&w->e, &w->keys[8], 0, DISK_BLOCKS - 8), 0);
	faulty_end(w);
}
