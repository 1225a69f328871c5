/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait no=thread (the daemon's threads run in others) */
/*
 * sys_signals.c - goal: no signal that other daemons take for an order ends this one with its
 * blocks unwritten; SIGQUIT stops it as SIGTERM does; and a file of its own that is a FIFO, or is
 * truncated, neither hangs nor ends it. Method: a real kvtierd and an engine; what was stored
 * before the signal is loaded after it, and after the next start from NVMe.
 */
#include "tests/lib/lib.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BLOCKS = 8 };

static char out[1 << 14];

static uint32_t log_lines(const struct daemon *d, const char *words)
{
	char path[200], line[2048];
	uint32_t n = 0;
	FILE *f;

	(void)snprintf(path, sizeof(path), "%s/log", d->dir);
	f = fopen(path, "re");
	assert_non_null(f);
	while (fgets(line, sizeof(line), f))
		n += strstr(line, words) != NULL;
	(void)fclose(f);
	return n;
}

static void log_gets(const struct daemon *d, const char *words)
{
	const uint64_t until = now_ns() + PATIENT_MS * 1000000ull;

	while (log_lines(d, words) == 0) {
		if (now_ns() > until)
			fail_msg("the log has no \"%s\"", words);
		nap_ms(5);
	}
}

static void open_engine(struct daemon *d, struct engine *e, struct kvtier_key *keys)
{
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_RAW);

	engine_open(e, d->socket, "engine", &g, BLOCKS);
	chain_keys(e, 1, BLOCKS, keys);
}

TEST(signals_that_are_no_order_are_ignored)
{
	static const int signals[] = { SIGHUP, SIGUSR1, SIGUSR2 };
	struct kvtier_key keys[BLOCKS];
	struct daemon d;
	struct engine e;
	char words[64];

	daemon_start(&d, "[host]\nbytes = 1M\nslab_bytes = 256K\nhuge_pages = no\n");
	open_engine(&d, &e, keys);
	assert_int_equal(chain_store(&e, keys, 0, BLOCKS), 0);
	for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++) {
		assert_int_equal(kill(d.pid, signals[i]), 0);
		(void)snprintf(words, sizeof(words), "signal %d (", signals[i]);
		log_gets(&d, words);
	}
	assert_int_equal(chain_load(&e, keys, 0, BLOCKS), BLOCKS);
	for (int i = 0; i < 1000; i++)
		assert_int_equal(kill(d.pid, SIGHUP), 0);
	assert_int_equal(chain_load(&e, keys, 0, BLOCKS), BLOCKS);
	assert_true(log_lines(&d, "signal 1 (") <= 10);
	assert_int_equal(log_lines(&d, "stopping"), 0);
	engine_close(&e);
	daemon_remove(&d);
}

TEST(sigquit_stops_it_as_sigterm_does)
{
	struct kvtier_key keys[BLOCKS];
	struct daemon d;
	struct engine e;
	int status;

	if (!disk_dir())
		skip();
	daemon_place(&d, true);
	daemon_configure(&d, "[host]\nbytes = 1M\nslab_bytes = 256K\nhuge_pages = no\n"
			     "[nvme]\nbytes = 64M\nsegment_bytes = 1M\n");
	daemon_restart(&d);
	open_engine(&d, &e, keys);
	assert_int_equal(chain_store(&e, keys, 0, BLOCKS), 0);
	assert_int_equal(kill(d.pid, SIGQUIT), 0);
	status = daemon_wait(&d, PATIENT_MS);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	engine_close(&e);
	daemon_restart(&d);
	open_engine(&d, &e, keys);
	assert_int_equal(chain_load(&e, keys, 0, BLOCKS), BLOCKS);
	engine_close(&e);
	daemon_remove(&d);
}

TEST(a_stats_page_that_is_truncated_is_whole_again)
{
	struct kvtier_key keys[BLOCKS];
	char path[200];
	struct daemon d;
	struct engine e;

	daemon_start(&d, "[host]\nbytes = 1M\nslab_bytes = 256K\nhuge_pages = no\n");
	open_engine(&d, &e, keys);
	assert_int_equal(chain_store(&e, keys, 0, BLOCKS), 0);
	(void)snprintf(path, sizeof(path), "%s/stats", d.dir);
	daemon_stat_becomes(&d, "index.entries", BLOCKS, PATIENT_MS); /* with a heartbeat */
	for (uint32_t round = 1; round <= 3; round++) {
		const uint64_t until = now_ns() + PATIENT_MS * 1000000ull;

		assert_int_equal(truncate(path, round == 1 ? 0 : 4096), 0);
		assert_int_equal(chain_load(&e, keys, 0, BLOCKS), BLOCKS);
		while (log_lines(&d, "is whole again") < round) {
			assert_true(now_ns() < until);
			nap_ms(5);
		}
		assert_int_equal(daemon_ctl(&d, "stats", out, sizeof(out)), 0);
		assert_int_equal(daemon_stat(&d, "store.blocks_total"), BLOCKS);
	}
	assert_null(strstr(out, "own_files_gone")); /* it is the same file */
	engine_close(&e);
	daemon_remove(&d);
}

/* Nobody writes to it. */
static void does_not_start(struct daemon *d, const char *words)
{
	int status;

	d->pid = fork();
	if (d->pid == 0) {
		char program[600], log[200];

		(void)snprintf(program, sizeof(program), "%s/kvtierd", build_dir());
		(void)snprintf(log, sizeof(log), "%s/log", d->dir);
		(void)dup2(open(log, O_WRONLY | O_CREAT | O_TRUNC, 0600), STDERR_FILENO);
		execl(program, "kvtierd", "--config", d->config, (char *)NULL);
		_exit(127);
	}
	status = daemon_wait(d, PATIENT_MS);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 1);
	assert_int_equal(log_lines(d, words), 1);
}

TEST(a_fifo_as_secret_is_refused)
{
	struct daemon d;
	char path[200];

	daemon_start(&d, "[host]\nbytes = 1M\nslab_bytes = 256K\nhuge_pages = no\n");
	daemon_signal(&d, SIGTERM);
	(void)snprintf(path, sizeof(path), "%s/secret-default", d.dir);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(mkfifo(path, 0600), 0);
	does_not_start(&d, "must be a regular file");
	assert_int_equal(unlink(path), 0);
	daemon_remove(&d);
}

TEST(a_fifo_as_configuration_is_refused)
{
	struct daemon d;

	daemon_place(&d, false);
	daemon_configure(&d, "");
	assert_int_equal(unlink(d.config), 0);
	assert_int_equal(mkfifo(d.config, 0600), 0);
	does_not_start(&d, "is no regular file");
	daemon_remove(&d);
}
