/* SPDX-License-Identifier: Apache-2.0 */
/* make: seconds=8 lane=wait no=thread (the daemon's threads run in others) needs=kvtierd_faulty */
/* make: wrap=clock_gettime,epoll_wait (the test holds the clock) */
/*
 * sys_nvme_stall_ends.c - goal: while a disk does not answer, everything that shall end does: the
 * daemon, its start, a client, a command of kvtierctl. Afterwards nothing is left behind, and
 * flushed blocks are there. Method: a real kvtierd whose disk stalls on command (kvtierd_faulty.c),
 * a real engine, kvtierctl; signals in the midst of it. On both I/O engines.
 */
#include "tests/lib/lib_clock.h"
#include "tests/lib/lib_faulty.h"
#include "tests/lib/test.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N = 16, PAUSE_MS = 20000, STEP_MS = 500, EXIT_MS = 20000 };

/* The daemon ends, and the next one has the flushed blocks. */
static void the_next_one_serves(struct disk_world *w)
{
	w->d.pid = 0;
	engine_close(&w->e);
	io_hold(0);
	faulty_live(w);
	faulty_all_there(w);
	faulty_end(w);
}

static void told_to_stop(const struct disk_world *w)
{
	assert_int_equal(kill(w->d.pid, SIGTERM), 0);
}

/* Its exit code. */
static int stopped(const struct disk_world *w)
{
	const int status = faulty_wait(w->d.pid);

	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

/* Likewise. Its I/O comes, and no time passes: that would be a slower disk. */
static int stopped_by_itself(struct disk_world *w)
{
	const int status = daemon_wait(&w->d, PATIENT_MS);

	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

static void killed(struct disk_world *w)
{
	assert_int_equal(kill(w->d.pid, SIGKILL), 0);
	(void)daemon_wait(&w->d, EXIT_MS);
	the_next_one_serves(w);
}

static void goes_on(const struct disk_world *w)
{
	for (int ms = 0; ms < PAUSE_MS; ms += STEP_MS) {
		clock_pass_ms(STEP_MS);
		assert_int_equal(waitpid(w->d.pid, NULL, WNOHANG), 0);
	}
}

static void reads_stall(struct disk_world *w)
{
	io_hold(READS);
	(void)faulty_load_begin(w, 0, N, 0);
	faulty_held(1);
}

/* More blocks than the tier has in its hands at once. */
static void writes_stall(struct disk_world *w)
{
	struct kvtier_key others[DISK_BLOCKS];

	io_hold(WRITES | SYNCS);
	chain_keys(&w->e, 2, DISK_BLOCKS, others);
	assert_int_equal(chain_store(&w->e, others, 0, DISK_BLOCKS), 0);
	faulty_held(1);
}

/* The disk never answers: its I/O is left to it, and the stop is not clean. */
ON_BOTH_ENGINES(stop_while_reads_stall)
{
	struct disk_world *w = faulty_away(state, faulty_patient, false);

	reads_stall(w);
	told_to_stop(w);
	assert_int_equal(stopped(w), 1);
	the_next_one_serves(w);
}

ON_BOTH_ENGINES(stop_while_writes_stall)
{
	struct disk_world *w = faulty_away(state, faulty_patient, false);

	writes_stall(w);
	told_to_stop(w);
	assert_int_equal(stopped(w), 1);
	the_next_one_serves(w);
}

ON_BOTH_ENGINES(stop_while_offline)
{
	struct disk_world *w = faulty_away(state, faulty_quick, false);

	writes_stall(w);
	faulty_stall();
	faulty_becomes(w, "offline");
	told_to_stop(w);
	assert_int_equal(stopped(w), 1);
	the_next_one_serves(w);
}

/* It pauses for longer than disks do, but not for stall_us. */
ON_BOTH_ENGINES(a_stop_waits_for_slow_reads)
{
	struct disk_world *w = faulty_away(state, faulty_patient, false);

	reads_stall(w);
	told_to_stop(w);
	goes_on(w);
	io_hold(0);
	assert_int_equal(stopped_by_itself(w), 0);
	the_next_one_serves(w);
}

/* Writes that the disk had when drain_us was over: no other one is begun then. */
ON_BOTH_ENGINES(a_stop_waits_for_slow_writes)
{
	struct disk_world *w = faulty_away(state, faulty_patient, false);

	writes_stall(w);
	told_to_stop(w);
	while (!faulty_log_says(w, "drain_us is over"))
		clock_pass_ms(STEP_MS);
	goes_on(w);
	io_plan_none(); /* counts from here */
	assert_int_equal(stopped_by_itself(w), 0);
	assert_in_range(io_transfers(), 0, DISK_BLOCKS - 1);
	the_next_one_serves(w);
}

ON_BOTH_ENGINES(kill_while_reads_stall)
{
	struct disk_world *w = faulty_away(state, faulty_patient, false);

	reads_stall(w);
	killed(w);
}

ON_BOTH_ENGINES(kill_while_writes_stall)
{
	struct disk_world *w = faulty_away(state, faulty_patient, false);

	writes_stall(w);
	killed(w);
}

/* It serves without the disk's blocks, and with them when the disk answers. */
ON_BOTH_ENGINES(a_start_while_writes_stall)
{
	struct disk_world *w = faulty_away(state, faulty_quick, false);
	struct kvtier_key others[N];
	pid_t pid;

	disk_die(w, SIGTERM);
	io_hold(WRITES | SYNCS);
	pid = fork(); /* time passes while it starts */
	if (pid == 0) {
		faulty_held(1);
		faulty_stall();
		_exit(0);
	}
	assert_true(pid > 0);
	daemon_restart(&w->d);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	disk_join(w);
	chain_keys(&w->e, 2, N, others);
	assert_int_equal(chain_store(&w->e, others, 0, N), 0);
	assert_int_equal(chain_load(&w->e, others, 0, N), N);
	faulty_becomes(w, "offline");
	assert_int_equal(disk_status_says(&w->d, "takes longer", w->text, sizeof(w->text)), 2);
	faulty_answers(w);
	faulty_all_there(w);
	disk_flush(&w->d);
	faulty_end(w);
}

/* Another process loads, and is killed when the disk has its reads. */
ON_BOTH_ENGINES(a_client_that_dies_meanwhile_leaves_nothing)
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
	faulty_gauge(w, "clients", 1);
	faulty_none(w, "leases");
	faulty_answers(w);
	faulty_all_there(w);
	faulty_end(w);
}

/* --- kvtierctl --- */

/* Runs beside the test. */
static pid_t verify_begin(const struct disk_world *w)
{
	char program[600];
	const pid_t pid = fork();

	if (pid == 0) {
		(void)snprintf(program, sizeof(program), "%s/kvtierctl", build_dir());
		(void)freopen("/dev/null", "w", stdout);
		(void)execl(program, program, "--socket", w->d.socket, "verify", (char *)NULL);
		_exit(127);
	}
	assert_true(pid > 0);
	return pid;
}

ON_BOTH_ENGINES(verify_ends_while_the_disk_stalls)
{
	struct disk_world *w = faulty_away(state, faulty_quick, false);
	pid_t verify;

	io_hold(READS);
	verify = verify_begin(w);
	faulty_held(1);
	assert_true(WIFEXITED(faulty_wait(verify)));
	faulty_becomes(w, "offline");
	faulty_answers(w);
	assert_int_equal(daemon_ctl(&w->d, "verify", w->text, sizeof(w->text)), 0);
	faulty_all_there(w);
	faulty_end(w);
}

/* Its asker goes: so does it, but for the buffers that the disk has. */
ON_BOTH_ENGINES(a_verify_that_nobody_waits_for_ends)
{
	struct disk_world *w = faulty_away(state, faulty_patient, false);
	pid_t verify;

	io_hold(READS);
	verify = verify_begin(w);
	faulty_held(1);
	assert_int_equal(kill(verify, SIGKILL), 0);
	assert_int_equal(waitpid(verify, NULL, 0), verify);
	faulty_answers(w);
	faulty_none(w, "leases");
	assert_int_equal(daemon_ctl(&w->d, "verify", w->text, sizeof(w->text)), 0);
	faulty_end(w);
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

/* Asks as kvtierctl does, so that the daemon has the command before any time passes. */
static int ask(const struct disk_world *w, const char *words, size_t n)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	(void)snprintf(address.sun_path, sizeof(address.sun_path), "%s/admin.sock", w->d.dir);
	assert_int_equal(connect(fd, (const struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(send(fd, words, n, MSG_NOSIGNAL), n);
	return fd;
}

#define ASK(w, words) ask(w, words, sizeof(words) - 1)

/* While time passes by steps of so much: the first byte of the last packet of its answer. */
static char answer(int fd, uint32_t step_ms)
{
	const uint64_t until = now_ns() + 4 * PATIENT_MS * 1000000ull;
	char packet[4096];

	while (now_ns() < until) {
		const ssize_t n = recv(fd, packet, sizeof(packet), MSG_DONTWAIT);

		if (n == 0)
			fail_msg("the daemon has closed the connection");
		if (n > 0 && (packet[0] == '.' || packet[0] == '!')) {
			(void)close(fd);
			return packet[0];
		}
		if (n < 0 && step_ms)
			clock_pass_ms(step_ms);
		nap_ms(2);
	}
	fail_msg("no answer");
	return 0;
}

/* Both at once: each of them waits ten seconds before it gives up. */
ON_BOTH_ENGINES(flush_and_purge_end_while_the_disk_stalls)
{
	struct disk_world *w = faulty_away(state, faulty_quick, false);
	int flush, purge;

	writes_stall(w);
	flush = ASK(w, "flush");
	purge = ASK(w, "purge\0--tenant\0default");
	assert_int_equal(answer(flush, STEP_MS), '!');
	assert_int_equal(answer(purge, STEP_MS), '!');
	faulty_answers(w);
	disk_flush(&w->d);
	purge_at_last(w);
	faulty_end(w);
}

ON_BOTH_ENGINES(a_flush_goes_on_when_the_disk_answers)
{
	struct disk_world *w = faulty_away(state, faulty_quick, false);
	int flush;

	writes_stall(w);
	flush = ASK(w, "flush");
	faulty_stall();
	faulty_becomes(w, "offline");
	io_hold(0);
	assert_int_equal(answer(flush, 0), '.'); /* a disk that is busy has its time */
	faulty_end(w);
}
