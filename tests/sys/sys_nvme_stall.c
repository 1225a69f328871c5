/* SPDX-License-Identifier: Apache-2.0 */
/* make: seconds=95 lane=wait no=thread (the daemon's threads run in others) needs=kvtierd_faulty */
/*
 * sys_nvme_stall.c - goal: a disk that does not answer makes nobody wait for longer than he wanted
 * to, nobody's memory is written to when it answers after all, and nothing is left behind of it: no
 * slot, no lease, no op. Method: a real kvtierd whose disk stalls on command (kvtierd_faulty.c), a
 * real engine whose pages are poisoned, kvtierctl; stops, kills and deaths in the midst of it. On
 * both I/O engines.
 */
#include "tests/lib/lib_faulty.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N = 16, SHORT_MS = 200, CHAINS = 6, EXIT_MS = 20000, LONG = 128, PAUSE_MS = 1200 };

static void answers_again(struct disk_world *w)
{
	io_hold(0);
	disk_state_becomes(&w->d, "up", 30000);
}

static void all_are_there(struct disk_world *w)
{
	assert_int_equal(chain_load(&w->e, w->keys, DISK_BLOCKS, DISK_BLOCKS), DISK_BLOCKS);
}

/* --- loads --- */

static void loads_end_by_their_deadline(void **state)
{
	struct disk_world *w = faulty_away(state, faulty_patient, false);
	uint64_t op;

	io_hold(READS);
	op = faulty_load_begin(w, 0, N, SHORT_MS);
	assert_int_equal(faulty_load_end(w, op, 0, N, -ETIMEDOUT), 0);
	faulty_none(w, "leases"); /* though the disk still has their slots */
	answers_again(w);
	faulty_end(w);
}

/* The engine has used its pages for something else meanwhile. */
static void a_read_that_ends_late_touches_no_page(void **state)
{
	struct disk_world *w = faulty_away(state, faulty_patient, false);
	uint64_t op;

	io_hold(READS);
	op = faulty_load_begin(w, 0, N, SHORT_MS);
	faulty_held(1);
	assert_int_equal(faulty_load_end(w, op, 0, N, -ETIMEDOUT), 0);
	answers_again(w);
	all_are_there(w);
	faulty_untouched(w, 0, N);
	faulty_end(w);
}

static void a_load_within_its_deadline_waits(void **state)
{
	struct disk_world *w = faulty_away(state, faulty_patient, false);
	uint64_t op;

	io_hold(READS);
	op = faulty_load_begin(w, 0, N, 0);
	faulty_held(1);
	nap_ms(100);
	io_hold(0);
	assert_int_equal(faulty_load_end(w, op, 0, N, -ENOENT), N);
	faulty_end(w);
}

static void a_cancelled_load_ends(void **state)
{
	struct disk_world *w = faulty_away(state, faulty_patient, false);
	uint64_t op;

	io_hold(READS);
	op = faulty_load_begin(w, 0, N, 0);
	faulty_held(1);
	assert_int_equal(kvtier_cancel(w->e.client, op, 5000), 0);
	assert_int_equal(faulty_load_end(w, op, 0, N, -ECANCELED), 0);
	answers_again(w);
	all_are_there(w);
	faulty_untouched(w, 0, N);
	faulty_end(w);
}

/* Its pages are its own again when that returned, and that does not wait for the disk. */
static void an_engine_that_closes_is_let_go(void **state)
{
	struct disk_world *w = faulty_away(state, faulty_patient, false);

	io_hold(READS);
	(void)faulty_load_begin(w, 0, N, 0);
	faulty_held(1);
	kvtier_space_close(w->e.space);
	faulty_untouched(w, 0, N);
	assert_true(io_held() > 0);
	faulty_none(w, "leases");
	answers_again(w);
	faulty_untouched(w, 0, N);
	engine_close(&w->e);
	disk_join(w);
	all_are_there(w);
	faulty_end(w);
}

static void memory_serves_during_a_stall(void **state)
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
	answers_again(w);
	assert_int_equal(faulty_load_end(w, op, 0, N, -ENOENT), N);
	faulty_end(w);
}

/* More blocks are wanted from the disk than the daemon has parts: 64. */
static void memory_serves_however_many_loads_stall(void **state)
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
	answers_again(w);
	assert_int_equal(faulty_load_end(w, op, 0, DISK_BLOCKS, -ENOENT), DISK_BLOCKS);
	faulty_end(w);
}

/* Those that are passed over meanwhile end by their deadline as the others do. */
static void a_load_that_is_passed_over_ends_by_its_deadline(void **state)
{
	struct disk_world *w = faulty_away(state, faulty_patient, false);
	uint64_t op, next;

	io_hold(READS);
	op = faulty_load_begin(w, 0, DISK_BLOCKS, 0);
	faulty_held(1);
	next = faulty_load_begin(w, 0, N, SHORT_MS);
	assert_int_equal(faulty_load_end(w, next, 0, N, -ETIMEDOUT), 0);
	assert_true(io_held() > 0);
	answers_again(w);
	assert_int_equal(faulty_load_end(w, op, 0, DISK_BLOCKS, -ENOENT), DISK_BLOCKS);
	faulty_end(w);
}

/* --- the disk --- */

static void a_stall_takes_the_disk_offline_until_it_answers(void **state)
{
	struct disk_world *w = faulty_away(state, faulty_quick, false);
	const uint64_t stalls = daemon_stat(&w->d, "tiers.nvme.stalls_total");
	uint64_t op;

	io_hold(READS);
	op = faulty_load_begin(w, 0, DISK_BLOCKS, 0);
	assert_int_equal(faulty_load_end(w, op, 0, DISK_BLOCKS, -ENOENT), 0);
	disk_state_becomes(&w->d, "offline", 5000);
	assert_int_equal(disk_status_says(&w->d, "takes longer", w->text, sizeof(w->text)), 2);
	/* A slow machine may have had a stall before this one. */
	assert_true(daemon_stat(&w->d, "tiers.nvme.stalls_total") > stalls);
	answers_again(w);
	all_are_there(w);
	faulty_untouched(w, 0, DISK_BLOCKS);
	faulty_end(w);
}

/* What the disk may still write to is nobody else's: all of memory is used while it has some. */
static void slots_of_a_stalled_read_are_not_used(void **state)
{
	struct disk_world *w = faulty_away(state, faulty_quick, false);
	struct kvtier_key others[CHAINS][DISK_BLOCKS];
	uint64_t op;

	io_hold(READS);
	op = faulty_load_begin(w, 0, DISK_BLOCKS, 0);
	assert_int_equal(faulty_load_end(w, op, 0, DISK_BLOCKS, -ENOENT), 0);
	disk_state_becomes(&w->d, "offline", 5000); /* else it may be told as up from before */
	for (uint32_t i = 0; i < CHAINS; i++) {
		chain_keys(&w->e, 2 + i, DISK_BLOCKS, others[i]);
		assert_int_equal(chain_store(&w->e, others[i], 0, DISK_BLOCKS), 0);
	}
	answers_again(w);
	for (uint32_t i = 0; i < CHAINS; i++)
		assert_int_equal(chain_load(&w->e, others[i], 0, DISK_BLOCKS), DISK_BLOCKS);
	all_are_there(w);
	assert_true(daemon_stat(&w->d, "tiers.host.corrupt_blocks_total") == 0);
	assert_true(daemon_stat(&w->d, "tiers.nvme.corrupt_blocks_total") == 0);
	faulty_end(w);
}

static void stalled_writes_end_when_it_answers(void **state)
{
	struct disk_world *w = faulty_place(state, faulty_quick);

	disk_live(w);
	io_hold(WRITES);
	assert_int_equal(chain_store(&w->e, w->keys, 0, DISK_BLOCKS), 0);
	disk_state_becomes(&w->d, "offline", 5000);
	all_are_there(w); /* in memory */
	answers_again(w);
	disk_flush(&w->d);
	faulty_evict(w);
	all_are_there(w);
	faulty_end(w);
}

/* One chain of twice what memory holds waits for its own blocks to be written, also on a disk that
 * pauses for longer than disks do, but not for stall_us. */
static void a_store_longer_than_memory_waits_for_a_slow_disk(void **state)
{
	struct disk_world *w =
		faulty_place(state, "[host]\nbytes = 8M\nslab_bytes = 2M\nhuge_pages = no\n"
				    "[nvme]\nbytes = 64M\nsegment_bytes = 4M\nstall_us = 60s\n");
	const struct kvtier_geometry g = large_geometry(KVTIER_CODEC_RAW);
	struct kvtier_result result = { .size = sizeof(result) };
	struct kvtier_key keys[LONG];
	uint32_t pages[LONG];
	uint64_t op;

	disk_restart(&w->d);
	engine_open(&w->e, w->d.socket, "engine", &g, LONG);
	chain_keys(&w->e, 1, LONG, keys);
	pages_from(0, pages, LONG);
	for (uint32_t i = 0; i < LONG; i++)
		page_fill(&w->e, pages[i], &keys[i], 0);
	io_hold(WRITES);
	assert_int_equal(kvtier_store(w->e.space, keys, pages, LONG, NULL, &op), 0);
	faulty_held(1);
	nap_ms(PAUSE_MS);
	io_hold(0);
	assert_int_equal(kvtier_wait(w->e.client, op, -1, &result), 0);
	assert_int_equal(result.status, 0);
	assert_int_equal(chain_load(&w->e, keys, 0, LONG), LONG);
	disk_die(w, SIGTERM);
	disk_end(w);
}

static void the_other_path_serves(void **state)
{
	struct disk_world *w = faulty_away(state, faulty_quick, true);
	uint32_t n;

	io_hold_file(READS);
	n = disk_load_each(w);
	assert_true(n > DISK_BLOCKS / 8 && n < DISK_BLOCKS - DISK_BLOCKS / 8);
	disk_state_becomes(&w->d, "degraded", 5000);
	assert_int_equal(disk_status_says(&w->d, "takes longer", w->text, sizeof(w->text)), 1);
	answers_again(w);
	all_are_there(w);
	faulty_end(w);
}

/* Of one load, those of the other path; the deadline ends the rest. */
static void the_other_path_serves_within_one_load(void **state)
{
	struct disk_world *w = faulty_away(state, faulty_patient, true);
	uint64_t op;
	uint32_t n;

	io_hold_file(READS);
	op = faulty_load_begin(w, 0, DISK_BLOCKS, 1000);
	n = faulty_load_end(w, op, 0, DISK_BLOCKS, -ETIMEDOUT);
	assert_true(n > DISK_BLOCKS / 8 && n < DISK_BLOCKS - DISK_BLOCKS / 8);
	answers_again(w);
	all_are_there(w);
	faulty_end(w);
}

/* --- ends --- */

/* Whatever its exit status: it ends, and the next one has what was flushed. */
static void ends_and_the_next_one_serves(struct disk_world *w, int signal)
{
	if (kill(w->d.pid, signal))
		fail_msg("kill: %s", strerror(errno));
	(void)daemon_wait(&w->d, EXIT_MS);
	engine_close(&w->e);
	io_hold(0);
	disk_live(w);
	all_are_there(w);
	faulty_end(w);
}

static void stop_while_reads_stall(void **state)
{
	struct disk_world *w = faulty_away(state, faulty_patient_stop, false);

	io_hold(READS);
	(void)faulty_load_begin(w, 0, N, 0);
	faulty_held(1);
	ends_and_the_next_one_serves(w, SIGTERM);
}

static void kill_while_reads_stall(void **state)
{
	struct disk_world *w = faulty_away(state, faulty_patient, false);

	io_hold(READS);
	(void)faulty_load_begin(w, 0, N, 0);
	faulty_held(1);
	ends_and_the_next_one_serves(w, SIGKILL);
}

static void writes_stall(struct disk_world *w)
{
	struct kvtier_key others[N];

	io_hold(WRITES | SYNCS);
	chain_keys(&w->e, 2, N, others);
	assert_int_equal(chain_store(&w->e, others, 0, N), 0);
	faulty_held(1);
}

static void stop_while_writes_stall(void **state)
{
	struct disk_world *w = faulty_away(state, faulty_patient_stop, false);

	writes_stall(w);
	ends_and_the_next_one_serves(w, SIGTERM);
}

static void kill_while_writes_stall(void **state)
{
	struct disk_world *w = faulty_away(state, faulty_patient, false);

	writes_stall(w);
	ends_and_the_next_one_serves(w, SIGKILL);
}

static void stop_while_offline(void **state)
{
	struct disk_world *w = faulty_away(state, faulty_quick_stop, false);

	writes_stall(w);
	disk_state_becomes(&w->d, "offline", 5000);
	ends_and_the_next_one_serves(w, SIGTERM);
}

/* It serves without what is on the disk, and with it when that answers. */
static void a_start_while_writes_stall(void **state)
{
	struct disk_world *w = faulty_away(state, faulty_quick, false);
	struct kvtier_key others[N];

	disk_die(w, SIGTERM);
	io_hold(WRITES | SYNCS);
	daemon_restart(&w->d);
	disk_join(w);
	chain_keys(&w->e, 2, N, others);
	assert_int_equal(chain_store(&w->e, others, 0, N), 0);
	assert_int_equal(chain_load(&w->e, others, 0, N), N);
	disk_state_becomes(&w->d, "offline", 5000);
	assert_int_equal(disk_status_says(&w->d, "takes longer", w->text, sizeof(w->text)), 2);
	answers_again(w);
	all_are_there(w);
	disk_flush(&w->d);
	faulty_end(w);
}

/* Another process loads, and is killed when the disk has its reads. */
static void a_client_that_dies_meanwhile_leaves_nothing(void **state)
{
	struct disk_world *w = faulty_away(state, faulty_patient, false);
	pid_t pid;

	io_hold(READS);
	pid = fork();
	if (pid == 0) {
		struct disk_world *its = w;

		disk_join(its);
		(void)faulty_load_begin(its, 0, N, 0);
		(void)pause();
		_exit(0);
	}
	assert_true(pid > 0);
	faulty_held(N);
	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	daemon_stat_becomes(&w->d, "clients", 1, 5000);
	faulty_none(w, "leases");
	answers_again(w);
	all_are_there(w);
	faulty_end(w);
}

/* --- kvtierctl: 124 is what timeout(1) says of one that hangs --- */

static void verify_ends_while_the_disk_stalls(void **state)
{
	struct disk_world *w = faulty_away(state, faulty_quick, false);

	io_hold(READS);
	assert_int_not_equal(daemon_ctl(&w->d, "verify", w->text, sizeof(w->text)), 124);
	disk_state_becomes(&w->d, "offline", 5000);
	answers_again(w);
	assert_int_equal(daemon_ctl(&w->d, "verify", w->text, sizeof(w->text)), 0);
	all_are_there(w);
	faulty_end(w);
}

/* Its asker goes: so does it, but for the buffers that the disk has. */
static void a_verify_that_nobody_waits_for_ends(void **state)
{
	struct disk_world *w = faulty_away(state, faulty_patient, false);
	char command[400];

	io_hold(READS);
	(void)snprintf(command, sizeof(command), "timeout 1 %s/kvtierctl --socket %s verify",
		       build_dir(), w->d.socket);
	assert_int_not_equal(shell(command, w->text, sizeof(w->text)), 0);
	answers_again(w);
	faulty_none(w, "leases");
	assert_int_equal(daemon_ctl(&w->d, "verify", w->text, sizeof(w->text)), 0);
	faulty_end(w);
}

/* Runs kvtierctl beside the test; its exit code. */
static pid_t ctl_begin(struct disk_world *w, const char *arguments)
{
	const pid_t pid = fork();

	if (pid == 0)
		_exit(daemon_ctl(&w->d, arguments, w->text, sizeof(w->text)));
	assert_true(pid > 0);
	return pid;
}

static int ctl_end(pid_t pid)
{
	int status;

	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

/* The daemon asks for another purge while one is under way, and when the disk was away for a part
 * of one. */
static void purge_at_last(struct disk_world *w)
{
	const uint64_t until = now_ns() + 30000 * 1000000ull;

	while (daemon_ctl(&w->d, "purge --tenant default", w->text, sizeof(w->text)) != 0) {
		if (now_ns() > until || !strstr(w->text, "again"))
			fail_msg("kvtierctl purge: %s", w->text);
		nap_ms(50);
	}
}

/* Both at once: each of them waits ten seconds before it gives up. */
static void flush_and_purge_end_while_the_disk_stalls(void **state)
{
	struct disk_world *w = faulty_away(state, faulty_quick, false);
	pid_t flush, purge;

	writes_stall(w);
	flush = ctl_begin(w, "flush");
	purge = ctl_begin(w, "purge --tenant default");
	assert_int_equal(ctl_end(flush), 1);
	assert_int_equal(ctl_end(purge), 1);
	answers_again(w);
	disk_flush(&w->d);
	purge_at_last(w);
	faulty_end(w);
}

static void a_flush_goes_on_when_the_disk_answers(void **state)
{
	struct disk_world *w = faulty_away(state, faulty_quick, false);
	pid_t flush;

	writes_stall(w);
	flush = ctl_begin(w, "flush");
	disk_state_becomes(&w->d, "offline", 5000);
	io_hold(0);
	assert_int_equal(ctl_end(flush), 0);
	faulty_end(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		ON_BOTH_ENGINES(loads_end_by_their_deadline),
		ON_BOTH_ENGINES(a_read_that_ends_late_touches_no_page),
		ON_BOTH_ENGINES(a_load_within_its_deadline_waits),
		ON_BOTH_ENGINES(a_cancelled_load_ends),
		ON_BOTH_ENGINES(an_engine_that_closes_is_let_go),
		ON_BOTH_ENGINES(memory_serves_during_a_stall),
		ON_BOTH_ENGINES(memory_serves_however_many_loads_stall),
		ON_BOTH_ENGINES(a_load_that_is_passed_over_ends_by_its_deadline),
		ON_BOTH_ENGINES(a_stall_takes_the_disk_offline_until_it_answers),
		ON_BOTH_ENGINES(slots_of_a_stalled_read_are_not_used),
		ON_BOTH_ENGINES(stalled_writes_end_when_it_answers),
		ON_BOTH_ENGINES(a_store_longer_than_memory_waits_for_a_slow_disk),
		ON_BOTH_ENGINES(the_other_path_serves),
		ON_BOTH_ENGINES(the_other_path_serves_within_one_load),
		ON_BOTH_ENGINES(stop_while_reads_stall),
		ON_BOTH_ENGINES(kill_while_reads_stall),
		ON_BOTH_ENGINES(stop_while_writes_stall),
		ON_BOTH_ENGINES(kill_while_writes_stall),
		ON_BOTH_ENGINES(stop_while_offline),
		ON_BOTH_ENGINES(a_start_while_writes_stall),
		ON_BOTH_ENGINES(a_client_that_dies_meanwhile_leaves_nothing),
		ON_BOTH_ENGINES(verify_ends_while_the_disk_stalls),
		ON_BOTH_ENGINES(a_verify_that_nobody_waits_for_ends),
		ON_BOTH_ENGINES(flush_and_purge_end_while_the_disk_stalls),
		ON_BOTH_ENGINES(a_flush_goes_on_when_the_disk_answers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
