/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait */
/*
 * sys_own_files.c - goal: a daemon whose lock, stats page, socket or store was removed or replaced
 * says so while it lasts, serves on, and takes nothing of another daemon's down; a second start is
 * refused and leaves the first daemon's files alone. Method: files are moved away, replaced and put
 * back, as what cleans /tmp and a second daemon do.
 */
#include "tests/lib/lib.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char config[] = "[host]\nbytes = 1M\nslab_bytes = 256K\nhuge_pages = no\n"
			     "[nvme]\nbytes = 1M\nsegment_bytes = 64K\n";

static char text[8192];

static const char *at(const char *dir, const char *name, const char *more)
{
	static char paths[2][200];
	static int turn;
	char *path = paths[turn++ & 1];

	(void)snprintf(path, sizeof(paths[0]), "%.150s/%s%s", dir, name, more);
	return path;
}

static void status_becomes(const struct daemon *d, int status, const char *words)
{
	struct look look = look_at(d, PATIENT_MS);

	while (daemon_ctl(d, "status", text, sizeof(text)) != status || !strstr(text, words))
		if (!look_again(&look))
			fail_msg("status never said \"%s\" with %d: %s", words, status, text);
}

static void engine_is_served(const struct daemon *d)
{
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_RAW);
	struct engine e;

	engine_open(&e, d->socket, "engine", &g, 4);
	engine_close(&e);
}

static void is_told(const struct daemon *d, const char *dir, const char *name, const char *what)
{
	char gone[200], replaced[200];

	(void)snprintf(gone, sizeof(gone), "files: %s is gone", what);
	(void)snprintf(replaced, sizeof(replaced), "files: %s was replaced", what);
	assert_int_equal(rename(at(dir, name, ""), at(dir, name, ".away")), 0);
	status_becomes(d, 1, gone);
	assert_non_null(strstr(text, "WARN own_files_gone"));
	assert_int_equal(mknod(at(dir, name, ""), S_IFREG | 0600, 0), 0);
	status_becomes(d, 1, replaced);
	assert_int_equal(rename(at(dir, name, ".away"), at(dir, name, "")), 0);
	status_becomes(d, 0, "OK: kvtierd");
}

TEST(each_file_that_is_gone_or_replaced_is_told)
{
	struct daemon *d = *state;

	status_becomes(d, 0, "OK: kvtierd");
	is_told(d, d->dir, "lock", "the lock");
	is_told(d, d->dir, "admin.sock", "[admin] path");
	is_told(d, d->dir, "kvtier.sock", "[socket] path");
	is_told(d, d->disk, "nvme.store", "[nvme] path");
	engine_is_served(d);
}

TEST(a_stats_page_that_is_gone_is_no_daemon_that_is_gone)
{
	struct daemon *d = *state;

	assert_int_equal(rename(at(d->dir, "stats", ""), at(d->dir, "stats", ".away")), 0);
	assert_int_equal(daemon_ctl(d, "status", text, sizeof(text)), 3);
	assert_non_null(strstr(text, "kvtierctl: kvtierd runs at "));
	assert_int_equal(rename(at(d->dir, "stats", ".away"), at(d->dir, "stats", "")), 0);
	status_becomes(d, 0, "OK: kvtierd");
}

TEST(a_second_start_without_the_lock_is_refused_and_takes_nothing)
{
	struct daemon *d = *state;
	struct stat before, after;
	char command[512];

	assert_int_equal(stat(at(d->dir, "stats", ""), &before), 0);
	assert_int_equal(unlink(at(d->dir, "lock", "")), 0);
	(void)snprintf(command, sizeof(command), "timeout -s KILL 60 %s/kvtierd --config %s 2>&1",
		       build_dir(), d->config);
	assert_int_equal(shell(command, text, sizeof(text)), 1);
	assert_non_null(strstr(text, "is another daemon's: it answers there"));
	assert_int_equal(stat(at(d->dir, "stats", ""), &after), 0);
	assert_int_equal(before.st_ino, after.st_ino);
	status_becomes(d, 1, "files: the lock ");
	engine_is_served(d);
}

TEST(a_stop_leaves_the_socket_of_another_daemon)
{
	char more[512];
	struct daemon *first = *state, second;

	assert_int_equal(unlink(first->socket), 0); /* so that a second one can be there */
	daemon_place(&second, false);
	(void)snprintf(
		more, sizeof(more),
		"[host]\nbytes = 1M\nslab_bytes = 256K\nhuge_pages = no\n[socket]\npath = %s\n",
		first->socket);
	daemon_configure(&second, more);
	(void)snprintf(second.socket, sizeof(second.socket), "%s", first->socket);
	daemon_restart(&second);
	daemon_signal(first, SIGTERM);
	engine_is_served(&second);
	daemon_signal(&second, SIGTERM);
	assert_int_not_equal(access(second.socket, F_OK), 0);
	daemon_remove(&second);
}

TEST(a_file_that_grows_old_is_touched)
{
	const struct timespec old[2] = { { .tv_sec = 1000 }, { .tv_sec = 1000 } };
	struct daemon *d = *state;
	struct stat st = { 0 };

	assert_int_equal(utimensat(AT_FDCWD, at(d->dir, "lock", ""), old, 0), 0);
	for (struct look look = look_at(d, PATIENT_MS); st.st_mtim.tv_sec <= 1000;) {
		if (!look_again(&look))
			fail_msg("the lock is as old as it was");
		assert_int_equal(stat(at(d->dir, "lock", ""), &st), 0);
	}
}

FIXTURE(begin)
{
	static struct daemon d;

	daemon_start(&d, config);
	*state = &d;
	return 0;
}

FIXTURE(end)
{
	daemon_remove(*state);
	return 0;
}

TEST_EACH(begin, end);

TEST_BEGIN
{
	if (!disk_dir()) {
		printf("no directory for O_DIRECT: set TMPDIR to one on a disk\n");
		exit(77);
	}
}
