/* SPDX-License-Identifier: Apache-2.0 */
/*
 * regr_4_socket_path.c - goal: a daemon that is told to listen at a path where something else lies
 * says so and leaves it alone. It used to unlink anything there: a file named by mistake, or the
 * socket of another daemon, whose engines then found no daemon. Method: start one at a regular
 * file, and one at the socket of a running daemon.
 */
#include "tests/lib/lib.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Runs a second daemon in its own directory below d's, told to listen at `path`; its exit code,
 * output in ret. */
static int second_daemon(const struct daemon *d, const char *path, char *ret, size_t n)
{
	char file[128], command[1024];
	FILE *f;

	snprintf(file, sizeof(file), "%s/second.conf", d->dir);
	f = fopen(file, "we");
	assert_non_null(f);
	fprintf(f,
		"[daemon]\nruntime_dir = %s/second\nstate_dir = %s/second\n[socket]\npath = %s\n"
		"[host]\nbytes = 1M\nslab_bytes = 256K\nhuge_pages = no\n[nvme]\nbytes = 0\n",
		d->dir, d->dir, path);
	(void)fclose(f);
	snprintf(command, sizeof(command), "timeout -s KILL 20 %s/kvtierd --config %s 2>&1",
		 build_dir(), file);
	return shell(command, ret, n);
}

TEST(a_file_that_is_no_socket_stays)
{
	char path[96], text[1024];
	struct daemon *d = *state;
	struct stat st;
	FILE *f;

	snprintf(path, sizeof(path), "%s/precious", d->dir);
	f = fopen(path, "we");
	assert_non_null(f);
	(void)fclose(f);
	assert_int_equal(second_daemon(d, path, text, sizeof(text)), 1);
	assert_non_null(strstr(text, "[socket] path"));
	assert_int_equal(stat(path, &st), 0);
	assert_true(S_ISREG(st.st_mode));
}

TEST(the_socket_of_a_running_daemon_stays)
{
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_RAW);
	struct daemon *d = *state;
	struct engine e;
	char text[1024];

	assert_int_equal(second_daemon(d, d->socket, text, sizeof(text)), 1);
	assert_non_null(strstr(text, "another daemon"));
	engine_open(&e, d->socket, "after", &g, 1);
	engine_close(&e);
}

FIXTURE(begin)
{
	static struct daemon d;

	daemon_start(&d, "[host]\nbytes = 1M\nslab_bytes = 256K\nhuge_pages = no\n");
	*state = &d;
	return 0;
}

FIXTURE(end)
{
	daemon_remove(*state);
	return 0;
}

TEST_EACH(begin, end);
