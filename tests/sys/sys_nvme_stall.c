/* SPDX-License-Identifier: Apache-2.0 */
/* make: seconds=8 lane=wait no=thread (the daemon's threads run in others) needs=kvtierd_faulty */
/* make: wrap=clock_gettime,epoll_wait (the test holds the clock) */
/*
 * sys_nvme_stall.c - goal: while a disk does not answer, no client waits past its own deadline.
 * When the disk answers after all, it writes to no other's memory. Nothing is left behind: no slot,
 * no lease, no op. Method: a real kvtierd whose disk stalls on command (kvtierd_faulty.c), a real
 * engine whose pages are poisoned. On both I/O engines. Stops, deaths and kvtierctl in the midst of
 * it: sys_nvme_stall_ends.c.
 */
#include "tests/lib/lib_clock.h"
#include "tests/lib/lib_faulty.h"
#include "tests/lib/test.h"

#include <errno.h>
#include <signal.h>

enum { N = 16, SHORT_MS = 2000, PAUSE_MS = 15000, CHAINS = 6, LONG = 128 };

/* --- loads --- */

ON_BOTH_ENGINES(loads_end_by_their_deadline)
{
	struct disk_world *w = faulty_away(state, faulty_patient, false);
	uint64_t op;

	io_hold(READS);
	op = faulty_load_begin(w, 0, N, SHORT_MS);
	faulty_held(1);
	clock_pass_ms(SHORT_MS);
	assert_int_equal(faulty_load_end(w, op, 0, N, -ETIMEDOUT), 0);
	faulty_none(w, "ops.outstanding"); /* though the disk still has their slots */
	faulty_none(w, "leases");
	faulty_answers(w);
	faulty_end(w);
}

/* The engine has used its pages for something else meanwhile. */
ON_BOTH_ENGINES(a_read_that_ends_late_touches_no_page)
{
	struct disk_world *w = faulty_away(state, faulty_patient, false);
	uint64_t op;

	io_hold(READS);
	op = faulty_load_begin(w, 0, N, SHORT_MS);
	faulty_held(1);
	clock_pass_ms(SHORT_MS);
	assert_int_equal(faulty_load_end(w, op, 0, N, -ETIMEDOUT), 0);
	faulty_answers(w);
	faulty_all_there(w);
	faulty_untouched(w, 0, N);
	faulty_end(w);
}

ON_BOTH_ENGINES(a_load_within_its_deadline_waits)
{
	struct disk_world *w = faulty_away(state, faulty_patient, false);
	uint64_t op;

	io_hold(READS);
	op = faulty_load_begin(w, 0, N, 0);
	faulty_held(1);
	clock_pass_ms(PAUSE_MS);
	io_hold(0);
	assert_int_equal(faulty_load_end(w, op, 0, N, -ENOENT), N);
	faulty_end(w);
}

ON_BOTH_ENGINES(a_cancelled_load_ends)
{
	struct disk_world *w = faulty_away(state, faulty_patient, false);
	uint64_t op;

	io_hold(READS);
	op = faulty_load_begin(w, 0, N, 0);
	faulty_held(1);
	assert_int_equal(kvtier_cancel(w->e.client, op, PATIENT_MS), 0);
	faulty_none(w, "ops.outstanding");
	assert_int_equal(faulty_load_end(w, op, 0, N, -ECANCELED), 0);
	faulty_answers(w);
	faulty_all_there(w);
	faulty_untouched(w, 0, N);
	faulty_end(w);
}

/* Its pages are its own again when that returned, and that does not wait for the disk. */
ON_BOTH_ENGINES(an_engine_that_closes_is_let_go)
{
	struct disk_world *w = faulty_away(state, faulty_patient, false);

	io_hold(READS);
	(void)faulty_load_begin(w, 0, N, 0);
	faulty_held(1);
	kvtier_space_close(w->e.space);
	faulty_untouched(w, 0, N);
	assert_true(io_held() > 0);
	faulty_none(w, "leases");
	faulty_answers(w);
	faulty_untouched(w, 0, N);
	engine_close(&w->e);
	disk_join(w);
	faulty_all_there(w);
	faulty_end(w);
}

ON_BOTH_ENGINES(memory_serves_during_a_stall)
{
	struct disk_world *w = faulty_away(state, faulty_patient, false);
	struct kvtier_key others[N];
	uint64_t op;

	io_hold(READS | WRITES);
	op = faulty_load_begin(w, 0, N, 0);
	faulty_held(1);
	chain_keys(&w->e, 2, N, others);
	assert_int_equal(chain_store(&w->e, others, DISK_BLOCKS, N), 0);
	assert_int_equal(chain_load(&w->e, others, DISK_BLOCKS, N), N);
	assert_int_equal(engine_lookup(&w->e, others, N), N);
	assert_int_equal(engine_lookup(&w->e, w->keys, DISK_BLOCKS), DISK_BLOCKS);
	faulty_untouched(w, 0, N);
	faulty_answers(w);
	assert_int_equal(faulty_load_end(w, op, 0, N, -ENOENT), N);
	faulty_end(w);
}

/* More blocks are wanted from the disk than the daemon has parts: 64. */
ON_BOTH_ENGINES(memory_serves_however_many_loads_stall)
{
	struct disk_world *w = faulty_away(state, faulty_patient, false);
	struct kvtier_key others[N];
	uint64_t op;

	chain_keys(&w->e, 2, N, others);
	assert_int_equal(chain_store(&w->e, others, DISK_BLOCKS, N), 0);
	io_hold(READS);
	op = faulty_load_begin(w, 0, DISK_BLOCKS, 0);
	faulty_held(1);
	assert_int_equal(chain_load(&w->e, others, DISK_BLOCKS, N), N);
	assert_true(io_held() > 0);
	faulty_answers(w);
	assert_int_equal(faulty_load_end(w, op, 0, DISK_BLOCKS, -ENOENT), DISK_BLOCKS);
	faulty_end(w);
}

/* Ops that are passed over meanwhile end by their deadline as the others do. */
ON_BOTH_ENGINES(a_load_that_is_passed_over_ends_by_its_deadline)
{
	struct disk_world *w = faulty_away(state, faulty_patient, false);
	uint64_t op, next;

	io_hold(READS);
	op = faulty_load_begin(w, 0, DISK_BLOCKS, 0);
	faulty_held(1);
	next = faulty_load_begin(w, 0, N, SHORT_MS);
	clock_pass_ms(SHORT_MS);
	assert_int_equal(faulty_load_end(w, next, 0, N, -ETIMEDOUT), 0);
	assert_true(io_held() > 0);
	faulty_answers(w);
	assert_int_equal(faulty_load_end(w, op, 0, DISK_BLOCKS, -ENOENT), DISK_BLOCKS);
	faulty_end(w);
}

/* --- the disk --- */

ON_BOTH_ENGINES(a_stall_takes_the_disk_offline_until_it_answers)
{
	struct disk_world *w = faulty_away(state, faulty_quick, false);
	const uint64_t stalls = daemon_stat(&w->d, "tiers.nvme.stalls_total");
	uint64_t op;

	io_hold(READS);
	op = faulty_load_begin(w, 0, DISK_BLOCKS, 0);
	faulty_held(1);
	faulty_stall();
	assert_int_equal(faulty_load_end(w, op, 0, DISK_BLOCKS, -ENOENT), 0);
	faulty_becomes(w, "offline");
	assert_int_equal(disk_status_says(&w->d, "takes longer", w->text, sizeof(w->text)), 2);
	assert_int_equal(daemon_stat(&w->d, "tiers.nvme.stalls_total"), stalls + 1);
	faulty_answers(w);
	faulty_all_there(w);
	faulty_untouched(w, 0, DISK_BLOCKS);
	faulty_end(w);
}

/* Slots that the disk may still write to are given to no other: all of memory is used while the
 * disk has some. */
ON_BOTH_ENGINES(slots_of_a_stalled_read_are_not_used)
{
	struct disk_world *w = faulty_away(state, faulty_quick, false);
	struct kvtier_key others[CHAINS][DISK_BLOCKS];
	uint64_t op;

	io_hold(READS);
	op = faulty_load_begin(w, 0, DISK_BLOCKS, 0);
	faulty_held(1);
	faulty_stall();
	assert_int_equal(faulty_load_end(w, op, 0, DISK_BLOCKS, -ENOENT), 0);
	faulty_becomes(w, "offline"); /* else it may be told as up from before */
	for (uint32_t i = 0; i < CHAINS; i++) {
		chain_keys(&w->e, 2 + i, DISK_BLOCKS, others[i]);
		assert_int_equal(chain_store(&w->e, others[i], 0, DISK_BLOCKS), 0);
	}
	faulty_answers(w);
	for (uint32_t i = 0; i < CHAINS; i++)
		assert_int_equal(chain_load(&w->e, others[i], 0, DISK_BLOCKS), DISK_BLOCKS);
	faulty_all_there(w);
	assert_true(daemon_stat(&w->d, "tiers.host.corrupt_blocks_total") == 0);
	assert_true(daemon_stat(&w->d, "tiers.nvme.corrupt_blocks_total") == 0);
	faulty_end(w);
}

ON_BOTH_ENGINES(stalled_writes_end_when_it_answers)
{
	struct disk_world *w = faulty_place(state, faulty_quick);

	faulty_live(w);
	io_hold(WRITES);
	assert_int_equal(chain_store(&w->e, w->keys, 0, DISK_BLOCKS), 0);
	faulty_held(1);
	faulty_stall();
	faulty_becomes(w, "offline");
	faulty_all_there(w); /* in memory */
	faulty_answers(w);
	disk_flush(&w->d);
	faulty_evict(w);
	faulty_all_there(w);
	faulty_end(w);
}

/* One chain of twice memory's size waits for its own blocks to be written, also on a disk that
 * pauses for longer than disks do, but not for stall_us. */
ON_BOTH_ENGINES(a_store_longer_than_memory_waits_for_a_slow_disk)
{
	struct disk_world *w =
		faulty_place(state, "[host]\nbytes = 8M\nslab_bytes = 2M\nhuge_pages = no\n"
				    "[nvme]\nbytes = 64M\nsegment_bytes = 4M\nstall_us = 60s\n");
	const struct kvtier_geometry g = large_geometry(KVTIER_CODEC_RAW);
	struct kvtier_result result = { .size = sizeof(result) };
	struct kvtier_key keys[LONG];
	uint32_t pages[LONG];
	uint64_t op;

	daemon_restart(&w->d);
	faulty_becomes(w, "up");
	engine_open(&w->e, w->d.socket, "engine", &g, LONG);
	chain_keys(&w->e, 1, LONG, keys);
	pages_from(0, pages, LONG);
	for (uint32_t i = 0; i < LONG; i++)
		page_fill(&w->e, pages[i], &keys[i], 0);
	io_hold(WRITES);
	assert_int_equal(kvtier_store(w->e.space, keys, pages, LONG, NULL, &op), 0);
	faulty_held(1);
	clock_pass_ms(PAUSE_MS);
	io_hold(0);
	assert_int_equal(kvtier_wait(w->e.client, op, -1, &result), 0);
	assert_int_equal(result.status, 0);
	assert_int_equal(chain_load(&w->e, keys, 0, LONG), LONG);
	disk_die(w, SIGTERM);
	disk_end(w);
}

/* Of one load, more blocks than memory has slots, which reads hold while the disk pauses for longer
 * than disks do, but not for stall_us. */
ON_BOTH_ENGINES(a_load_longer_than_memory_waits_for_a_slow_disk)
{
	struct disk_world *w =
		faulty_place(state, "[host]\nbytes = 4M\nslab_bytes = 2M\nhuge_pages = no\n"
				    "[nvme]\nbytes = 64M\nsegment_bytes = 4M\nstall_us = 60s\n");
	const struct kvtier_geometry g = large_geometry(KVTIER_CODEC_RAW);
	uint64_t op;

	daemon_restart(&w->d);
	faulty_becomes(w, "up");
	engine_open(&w->e, w->d.socket, "engine", &g, DISK_BLOCKS);
	chain_keys(&w->e, 1, DISK_BLOCKS, w->keys);
	disk_fill(w);
	faulty_evict(w);
	faulty_none(w, "tiers.host.used_bytes");
	io_hold(READS);
	op = faulty_load_begin(w, 0, DISK_BLOCKS, 0);
	faulty_held(N);
	for (uint32_t ms = 0; ms < PAUSE_MS; ms += PAUSE_MS / 4)
		clock_pass_ms(PAUSE_MS / 4);
	io_hold(0);
	assert_int_equal(faulty_load_end(w, op, 0, DISK_BLOCKS, -ENOSPC), DISK_BLOCKS);
	disk_die(w, SIGTERM);
	disk_end(w);
}

/* Of ops with one block each, the ops of the other path end, and the stalled disk has a read of
 * each of the rest. Returns how many have ended. */
static uint32_t load_each_beside(struct disk_world *w, uint64_t *ops, bool *ended)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < DISK_BLOCKS; i++) {
		const uint64_t until = now_ns() + FAULTY_OP_MS * 1000000ull;

		ops[i] = faulty_load_begin(w, i, 1, 0);
		ended[i] = false;
		while (!ended[i] && io_held() < i + 1 - n) {
			const int r = kvtier_wait(w->e.client, ops[i], 1, NULL);

			assert_true((r == 0 || r == -ETIMEDOUT) && now_ns() < until);
			ended[i] = r == 0;
		}
		n += ended[i];
		if (ended[i])
			assert_true(page_is(&w->e, i, &w->keys[i], 0));
	}
	return n;
}

ON_BOTH_ENGINES(the_other_path_serves)
{
	struct disk_world *w = faulty_away(state, faulty_quick, true);
	uint64_t ops[DISK_BLOCKS];
	bool ended[DISK_BLOCKS];
	uint32_t n;

	io_hold_file(READS);
	n = load_each_beside(w, ops, ended);
	assert_true(n > DISK_BLOCKS / 8 && n < DISK_BLOCKS - DISK_BLOCKS / 8);
	faulty_stall();
	for (uint32_t i = 0; i < DISK_BLOCKS; i++)
		if (!ended[i])
			assert_int_equal(faulty_load_end(w, ops[i], i, 1, -ENOENT), 0);
	faulty_becomes(w, "degraded");
	assert_int_equal(disk_status_says(&w->d, "takes longer", w->text, sizeof(w->text)), 1);
	faulty_evict(w);
	assert_int_equal(disk_load_each(w), n); /* the rest at once: nobody asks that disk */
	faulty_answers(w);
	faulty_all_there(w);
	faulty_end(w);
}

/* Of one load, the blocks of the other path; the deadline ends the rest. */
ON_BOTH_ENGINES(the_other_path_serves_within_one_load)
{
	struct disk_world *w = faulty_away(state, faulty_patient, true);
	const uint64_t until = now_ns() + FAULTY_OP_MS * 1000000ull;
	uint64_t op;
	uint32_t n;

	io_hold_file(READS);
	op = faulty_load_begin(w, 0, DISK_BLOCKS, 0);
	for (n = 0; n <= DISK_BLOCKS / 8 && now_ns() < until; nap_ms(1)) {
		n = 0;
		for (uint32_t i = 0; i < DISK_BLOCKS; i++)
			n += page_is(&w->e, i, &w->keys[i], 0);
	}
	clock_pass_ms(FAULTY_OP_MS);
	n = faulty_load_end(w, op, 0, DISK_BLOCKS, -ETIMEDOUT);
	assert_true(n > DISK_BLOCKS / 8 && n < DISK_BLOCKS - DISK_BLOCKS / 8);
	faulty_answers(w);
	faulty_all_there(w);
	faulty_end(w);
}
