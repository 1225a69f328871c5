/* SPDX-License-Identifier: Apache-2.0 */
/* make: seconds=20 lane=wait no=thread (the daemon's threads run in others) needs=kvtierd_faulty */
/* make: wrap=clock_gettime,epoll_wait (the test holds the clock) */
/*
 * regr_11_14_readonly_ends.c - goal: a disk that refused writes for a while takes them again when
 * it can, with a full log as well, and a clean stop does not wait for writes that cannot come.
 * Reclaiming paused while the tier was readonly, and the probe was the next write of data, for
 * which a full log had no room: readonly for good. Method: a store is filled several times over,
 * and some old blocks are loaded, so that reclaiming has records to write again. Then reads are
 * held until stores have used up the last segment. Then writes fail and reads are let go: the first
 * write that fails is reclaim's. When writes succeed again the tier must come up without a store,
 * keep blocks that are stored then, and be up after a clean stop. Both errors, both I/O engines.
 */
#include "tests/lib/lib_clock.h"
#include "tests/lib/lib_faulty.h"
#include "tests/lib/test.h"

#include <errno.h>
#include <signal.h>
#include <string.h>

enum { FILL_CHAINS = 48, LAST_CHAINS = 4, STILL_MS = 600, PROBES = 2, WAIT_MS = 20000 };

static const char config[] =
	"[host]\nbytes = 8M\nslab_bytes = 1M\nhuge_pages = no\n"
	"[nvme]\nbytes = 16M\nsegment_bytes = 256K\nstall_us = 60s\ndrain_us = 5s\n";

static void store(struct disk_world *w, uint64_t chain)
{
	struct kvtier_key keys[DISK_BLOCKS];

	chain_keys(&w->e, chain, DISK_BLOCKS, keys);
	assert_int_equal(chain_store(&w->e, keys, 0, DISK_BLOCKS), 0);
}

/* Right bytes or a miss; how many are there. */
static uint32_t load(struct disk_world *w, uint64_t chain)
{
	struct kvtier_key keys[DISK_BLOCKS];
	uint32_t n = 0;

	chain_keys(&w->e, chain, DISK_BLOCKS, keys);
	for (uint32_t i = 0; i < DISK_BLOCKS; i += 3)
		n += chain_load(&w->e, &keys[i], 0, 1);
	return n;
}

static void fill(struct disk_world *w)
{
	for (uint64_t chain = 1; chain <= FILL_CHAINS; chain++) {
		store(w, chain);
		disk_flush(&w->d);
	}
	for (uint64_t chain = 1; chain <= FILL_CHAINS; chain++)
		(void)load(w, chain); /* every third block is recent now, wherever it lies */
	assert_true(daemon_stat(&w->d, "tiers.nvme.residency.up_to_1m_blocks_total") +
			    daemon_stat(&w->d, "tiers.nvme.residency.up_to_10m_blocks_total") >
		    DISK_BLOCKS);
}

/* No block is being written, and none is tried that waits. */
static void nothing_moves(struct disk_world *w)
{
	uint64_t before = 0, now = 1;

	while (now != before) {
		before = now;
		faulty_none(w, "leases");
		clock_pass_ms(STILL_MS);
		faulty_none(w, "leases");
		now = daemon_stat(&w->d, "tiers.nvme.queued_blocks");
	}
	assert_true(now > 0);
}

/* Readonly, with a log that has no room and blocks queued for it. */
static struct disk_world *full_and_readonly(void **state, int error)
{
	struct disk_world *w = faulty_place(state, config);

	faulty_live(w);
	fill(w);
	io_hold(READS);
	for (uint64_t chain = 101; chain <= 100 + LAST_CHAINS; chain++)
		store(w, chain);
	faulty_held(1); /* reclaim asks for the next segment's records */
	nothing_moves(w);
	faulty_is(w, "up");
	faulty_plan(WRITES, 0, ALWAYS, error);
	io_hold(0);
	faulty_becomes(w, "readonly");
	return w;
}

static void failed_probes(struct disk_world *w, uint32_t n)
{
	/* counts from here: reclaiming is paused, nobody loads */
	faulty_plan(WRITES, 0, ALWAYS, -ENOSPC);
	for (uint32_t i = 0; i < n; i++) {
		const uint64_t until = now_ns() + (FAULTY_PROBE_MS + WAIT_MS) * 1000000ull;

		clock_pass_ms(FAULTY_PROBE_MS);
		while (io_transfers() <= i && now_ns() < until)
			nap_ms(1);
	}
	assert_int_equal(io_transfers(), n);
	faulty_is(w, "readonly");
}

static void stop(struct disk_world *w)
{
	disk_die(w, SIGTERM);
	assert_false(faulty_log_says(w, "drain_us is over"));
}

static void comes_up(void **state, int error)
{
	struct disk_world *w = full_and_readonly(state, error);

	faulty_heal(w);
	assert_int_equal(disk_status_says(&w->d, "", w->text, sizeof(w->text)), 0);
	store(w, 200);
	disk_flush(&w->d);
	stop(w);
	faulty_live(w);
	assert_int_equal(load(w, 200), (DISK_BLOCKS + 2) / 3);
	for (uint64_t chain = 1; chain <= FILL_CHAINS; chain++)
		(void)load(w, chain);
	faulty_end(w);
}

ON_BOTH_ENGINES(no_room_for_a_while)
{
	comes_up(state, -ENOSPC);
}

ON_BOTH_ENGINES(errors_for_a_while)
{
	comes_up(state, -EIO);
}

/* Also when nothing ever becomes of it: the stop says so at once. */
ON_BOTH_ENGINES(a_stop_does_not_wait_for_room)
{
	struct disk_world *w = full_and_readonly(state, -ENOSPC);

	failed_probes(w, PROBES);
	stop(w);
	assert_true(faulty_log_says(w, "could not take all"));
	io_plan_none();
	faulty_live(w);
	for (uint64_t chain = 1; chain <= FILL_CHAINS; chain++)
		(void)load(w, chain);
	faulty_end(w);
}
