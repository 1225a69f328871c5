/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait no=thread (the daemon's threads run in others) */
/* make: wrap=clock_gettime,epoll_wait needs=kvtierd_clock (the test holds the clock) */
/*
 * sys_nvme_budget.c - goal: a write budget holds, nothing but the copy on disk is lost by it, and
 * the operator can see it. Method: a budget whose reserve is two segments, and six times as much to
 * write.
 */
#include "tests/lib/lib_clock.h"
#include "tests/lib/lib_disk.h"
#include "tests/lib/test.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

enum {
	CHAINS = 4,
	HEARTBEATS_MS = 600,
	RESERVE = 512 << 10,
	SLACK = 64 << 10, /* superblocks; header and footer of a segment are paid for later */
};

/* The reserve is the budget of an hour, here as much as two segments, its minimum. A raw tiny block
 * takes 12 KiB. */
static const char config[] =
	"[host]\nbytes = 8M\nslab_bytes = 1M\nhuge_pages = no\n"
	"[nvme]\nbytes = 16M\nsegment_bytes = 256K\nwrite_budget_bytes_per_day = 12M\n";

static void store_all(struct disk_world *w)
{
	for (uint32_t i = 0; i < CHAINS; i++) {
		chain_keys(&w->e, i, DISK_BLOCKS, w->keys);
		assert_int_equal(chain_store(&w->e, w->keys, 0, DISK_BLOCKS), 0);
	}
}

static uint32_t load_all(struct disk_world *w)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < CHAINS; i++) {
		chain_keys(&w->e, i, DISK_BLOCKS, w->keys);
		n += chain_load(&w->e, w->keys, 0, DISK_BLOCKS);
	}
	return n;
}

static void uses_the_budget_up(struct disk_world *w)
{
	daemon_stat_reaches(&w->d, "tiers.nvme.skipped_budget_blocks_total", 1);
	daemon_stat_reaches(&w->d, "tiers.nvme.device_written_bytes_total", RESERVE / 2);
	daemon_stat_becomes(&w->d, "tiers.nvme.queued_blocks", 0, PATIENT_MS);
	clock_pass_ms(HEARTBEATS_MS); /* the counters have all that was written */
}

ON_BOTH_ENGINES(the_budget_bounds_what_is_written)
{
	struct disk_world *w = disk_place(state, config);
	uint64_t written;

	disk_live(w);
	store_all(w);
	uses_the_budget_up(w);
	written = daemon_stat(&w->d, "tiers.nvme.device_written_bytes_total");
	assert_true(written <= RESERVE + SLACK);
	assert_true(daemon_stat(&w->d, "tiers.nvme.budget_percent") < 50);
	assert_int_equal(load_all(w), CHAINS * DISK_BLOCKS); /* from memory */
	disk_die(w, SIGKILL);
	disk_end(w);
}

ON_BOTH_ENGINES(what_it_allowed_survives)
{
	struct disk_world *w = disk_place(state, config);
	uint32_t n;

	disk_live(w);
	store_all(w);
	uses_the_budget_up(w);
	disk_die(w, SIGKILL);
	disk_live(w);
	n = load_all(w);
	assert_true(n > 0 && n <= (RESERVE + SLACK) / (12 << 10));
	disk_die(w, SIGKILL);
	disk_end(w);
}

ON_BOTH_ENGINES(a_restart_gives_no_budget_anew)
{
	struct disk_world *w = disk_place(state, config);

	for (int life = 0; life < 4; life++) {
		uint64_t written;

		disk_live(w);
		store_all(w);
		if (life == 0)
			uses_the_budget_up(w);
		else
			daemon_stat_reaches(&w->d, "tiers.nvme.skipped_budget_blocks_total", 1);
		daemon_stat_becomes(&w->d, "tiers.nvme.queued_blocks", 0, PATIENT_MS);
		clock_pass_ms(HEARTBEATS_MS);
		written = daemon_stat(&w->d, "tiers.nvme.device_written_bytes_total");
		if (written > (life == 0 ? RESERVE + SLACK : 2 * SLACK))
			fail_msg("life %d wrote %" PRIu64 " bytes", life, written);
		disk_die(w, life % 2 ? SIGTERM : SIGKILL);
	}
	disk_end(w);
}

ON_BOTH_ENGINES(a_flush_beyond_the_budget_says_so)
{
	struct disk_world *w = disk_place(state, config);

	disk_live(w);
	store_all(w);
	assert_int_equal(daemon_ctl(&w->d, "flush", w->text, sizeof(w->text)), 1);
	assert_non_null(strstr(w->text, "write budget"));
	disk_die(w, SIGKILL);
	disk_end(w);
}

ON_BOTH_ENGINES(without_a_budget_all_is_written)
{
	struct disk_world *w =
		disk_place(state, "[host]\nbytes = 8M\nslab_bytes = 1M\nhuge_pages = no\n"
				  "[nvme]\nbytes = 16M\nsegment_bytes = 256K\n");

	disk_live(w);
	store_all(w);
	disk_flush(&w->d);
	daemon_stat_becomes(&w->d, "tiers.nvme.budget_percent", 100, PATIENT_MS);
	daemon_stat_becomes(&w->d, "tiers.nvme.blocks", CHAINS * DISK_BLOCKS, PATIENT_MS);
	daemon_stat_becomes(&w->d, "tiers.nvme.skipped_budget_blocks_total", 0, PATIENT_MS);
	disk_die(w, SIGKILL);
	disk_live(w);
	assert_int_equal(load_all(w), CHAINS * DISK_BLOCKS);
	disk_die(w, SIGKILL);
	disk_end(w);
}
