/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sys_config.c - goal: a daemon that cannot run as configured says why and exits 1, and a daemon
 * that runs is as private as configured. Method: kvtierd and its --check-config on small files;
 * modes of the files that it makes; restarts.
 */
#include "tests/lib/lib.h"
#include "tests/lib/lib_scratch.h"

#include <errno.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static const char good[] = "[host]\nbytes = 1M\nslab_bytes = 256K\nhuge_pages = no\n";

struct scratch {
	char dir[64];
	char out[8192];
};

FIXTURE(set_up)
{
	static struct scratch s;

	s = (struct scratch){ 0 };
	scratch_make("/tmp", s.dir, sizeof(s.dir));
	*state = &s;
	return 0;
}

FIXTURE(tear_down)
{
	const struct scratch *s = *state;

	scratch_remove(s->dir);
	return 0;
}

static int run_daemon(struct scratch *s, const char *config, const char *argument)
{
	char path[128], command[1024];
	FILE *f;

	snprintf(path, sizeof(path), "%s/c.conf", s->dir);
	f = fopen(path, "w");
	assert_non_null(f);
	(void)fputs(config, f);
	(void)fclose(f);
	snprintf(command, sizeof(command), "timeout 20 %s/kvtierd --config %s %s 2>&1", build_dir(),
		 path, argument);
	return shell(command, s->out, sizeof(s->out));
}

/* Exit 1, and a sentence with file, line and these words. */
static void refused(void **state, const char *config, int line, const char *words)
{
	struct scratch *s = *state;
	char where[128];

	assert_int_equal(run_daemon(s, config, "--check-config"), 1);
	snprintf(where, sizeof(where), "%s/c.conf:%d: ", s->dir, line);
	if (!strstr(s->out, where) || !strstr(s->out, words))
		fail_msg("said \"%s\"; expected %s and \"%s\"", s->out, where, words);
}

TEST_WITH(unknown_key, set_up, tear_down)
{
	refused(state, "[host]\nbytez = 1G\n", 2, "[host] bytez: no such key");
}

TEST_WITH(unknown_section, set_up, tear_down)
{
	refused(state, "[hosts]\nbytes = 1G\n", 1, "[hosts]: no such section");
}

TEST_WITH(unknown_unit, set_up, tear_down)
{
	refused(state, "[host]\n\nbytes = 12Q\n", 3, "[host] bytes: \"12Q\" has an unknown unit");
}

TEST_WITH(value_out_of_range, set_up, tear_down)
{
	refused(state, "[host]\nbytes = 1K\n", 2,
		"[host] bytes: \"1K\" is out of range; allowed: 64K to 64T");
}

TEST_WITH(unknown_choice, set_up, tear_down)
{
	refused(state, "[host]\nverify = maybe\n", 2, "allowed: once|always");
}

TEST_WITH(slab_that_is_no_multiple, set_up, tear_down)
{
	refused(state, "[host]\nbytes = 1M\nslab_bytes = 70001\n", 3, "[host] slab_bytes");
}

TEST_WITH(slab_larger_than_all, set_up, tear_down)
{
	refused(state, "[host]\nbytes = 1M\nslab_bytes = 2M\n", 3,
		"[host] slab_bytes: \"2M\" is more than [host] bytes");
}

TEST_WITH(ring_that_is_no_power_of_two, set_up, tear_down)
{
	refused(state, "[socket]\nring_entries = 100\n", 2,
		"[socket] ring_entries: \"100\" is not a power of two");
}

TEST_WITH(tenant_that_is_a_path, set_up, tear_down)
{
	refused(state, "[socket]\ntenant = ../x\n", 2, "[socket] tenant");
}

TEST_WITH(missing_file, set_up, tear_down)
{
	struct scratch *s = *state;
	char command[1024];

	snprintf(command, sizeof(command), "%s/kvtierd --config %s/none 2>&1", build_dir(), s->dir);
	assert_int_equal(shell(command, s->out, sizeof(s->out)), 1);
	assert_non_null(strstr(s->out, "/none: No such file"));
}

TEST_WITH(good_file_is_said_to_be_good, set_up, tear_down)
{
	struct scratch *s = *state;

	assert_int_equal(run_daemon(s, good, "--check-config"), 0);
	assert_non_null(strstr(s->out, "ok"));
}

TEST_WITH(comment_behind_a_value, set_up, tear_down)
{
	struct scratch *s = *state;

	assert_int_equal(run_daemon(s,
				    "[nvme] # disks\npath = /a/b#1 # the first\npath = /c ; more\n"
				    "bytes = 1T   # of each\nio = threads\t# slow\n[socket]\n"
				    "group = # our own\n",
				    "--print-config"),
			 0);
	assert_non_null(strstr(s->out, "path = /a/b#1\npath = /c\n"));
	assert_non_null(strstr(s->out, "bytes = 1T\n"));
	assert_non_null(strstr(s->out, "io = threads\n"));
	assert_non_null(strstr(s->out, "group = \n"));
}

TEST_WITH(endpoint_that_is_a_url, set_up, tear_down)
{
	refused(state, "[redis]\nendpoints = redis://a:6379\n", 2,
		"has a URL in it: give host:port alone");
}

TEST_WITH(endpoints_with_commas, set_up, tear_down)
{
	refused(state, "[redis]\nendpoints = a:6379, b:6379\n", 2,
		"has a comma in it: put blanks between endpoints");
}

TEST_WITH(group_that_there_is_not, set_up, tear_down)
{
	struct scratch *s = *state;

	assert_int_equal(run_daemon(s, "[socket]\ngroup = no-such-group\n", "--check-config"), 1);
	assert_non_null(strstr(s->out, "[socket] group: there is no group \"no-such-group\""));
}

TEST_WITH(store_of_another_size, set_up, tear_down)
{
	char config[512], command[1024], store[300];
	struct scratch *s = *state;

	if (!disk_dir())
		skip();
	(void)snprintf(store, sizeof(store), "%.200s/kvtier-size-%d", disk_dir(), (int)getpid());
	(void)snprintf(command, sizeof(command),
		       "%s/kvtierctl format %s --bytes 4M --segment-bytes 64K --yes 2>&1",
		       build_dir(), store);
	assert_int_equal(shell(command, s->out, sizeof(s->out)), 0);
	for (int i = 0; i < 3; i++) {
		static const char *const sizes[] = { "4M", "2M", "8M" };
		static const char *const said[] = { ": ok", "it stays as large as it is",
						    "kvtierd will not use it" };

		(void)snprintf(config, sizeof(config),
			       "[nvme]\npath = %s\nbytes = %s\nsegment_bytes = 64K\n", store,
			       sizes[i]);
		assert_int_equal(run_daemon(s, config, "--check-config"), 0);
		assert_non_null(strstr(s->out, said[i]));
		assert_int_equal(strstr(s->out, "[nvme] bytes: ") != NULL, i != 0);
	}
	(void)unlink(store);
}

/* --- faults that only the start can find --- */

static void started_in_vain(struct scratch *s, const char *more, const char *words)
{
	char config[1024];

	snprintf(config, sizeof(config),
		 "[daemon]\nruntime_dir = %s\nstate_dir = %s\n[nvme]\nbytes = 0\n%s%s", s->dir,
		 s->dir, good, more);
	assert_int_equal(run_daemon(s, config, ""), 1);
	if (!strstr(s->out, words))
		fail_msg("said \"%s\"; expected \"%s\"", s->out, words);
}

TEST_WITH(group_that_is_not_there, set_up, tear_down)
{
	struct scratch *s = *state;
	char path[128];

	started_in_vain(s, "[socket]\ngroup = no-such-group\n",
			"[socket] group: there is no group \"no-such-group\"");
	snprintf(path, sizeof(path), "%s/kvtier.sock", s->dir);
	assert_int_equal(access(path, F_OK), -1); /* nothing stays behind that looks alive */
}

TEST_WITH(secret_open_to_others, set_up, tear_down)
{
	struct scratch *s = *state;
	char path[128];
	FILE *f;

	snprintf(path, sizeof(path), "%s/secret-default", s->dir);
	f = fopen(path, "w");
	assert_non_null(f);
	(void)fputs("0123456789abcdef0123456789abcdef", f);
	(void)fclose(f);
	assert_int_equal(chmod(path, 0640), 0);
	started_in_vain(s, "", "secret-default must be a regular file with mode 0600 (it is 0640)");
}

TEST_WITH(secret_cut_short, set_up, tear_down)
{
	struct scratch *s = *state;
	char path[128];
	FILE *f;

	snprintf(path, sizeof(path), "%s/secret-default", s->dir);
	f = fopen(path, "w");
	assert_non_null(f);
	(void)fputs("short", f);
	(void)fclose(f);
	assert_int_equal(chmod(path, 0600), 0);
	started_in_vain(s, "", "secret-default must hold exactly 32 bytes (it has 5)");
}

TEST(second_daemon_in_the_same_directory)
{
	char command[1024], out[4096];
	struct daemon d;

	daemon_start(&d, good);
	snprintf(command, sizeof(command), "timeout 20 %s/kvtierd --config %s 2>&1", build_dir(),
		 d.config);
	assert_int_equal(shell(command, out, sizeof(out)), 1);
	assert_non_null(strstr(out, "another kvtierd runs in"));
	/* the first one is unharmed */
	assert_int_equal(daemon_ctl(&d, "status", out, sizeof(out)), 0);
	daemon_remove(&d);
}

/* --- files that it leaves and finds --- */

static unsigned mode_of(const struct daemon *d, const char *name)
{
	char path[192];
	struct stat st;

	snprintf(path, sizeof(path), "%s/%s", d->dir, name);
	assert_int_equal(stat(path, &st), 0);
	return st.st_mode & 07777;
}

TEST(private_unless_said)
{
	struct daemon d;

	daemon_start(&d, good);
	assert_int_equal(mode_of(&d, "kvtier.sock"), 0600);
	assert_int_equal(mode_of(&d, "admin.sock"), 0600);
	assert_int_equal(mode_of(&d, "secret-default"), 0600);
	daemon_remove(&d);
}

TEST(mode_and_group_as_said)
{
	char config[512], path[192];
	struct stat st;
	struct daemon d;

	snprintf(config, sizeof(config), "%s[socket]\nmode = 0660\ngroup = %u\n", good,
		 (unsigned)getgid());
	daemon_start(&d, config);
	assert_int_equal(mode_of(&d, "kvtier.sock"), 0660);
	snprintf(path, sizeof(path), "%s/kvtier.sock", d.dir);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_gid, getgid());
	daemon_remove(&d);
}

TEST(stale_socket_is_replaced)
{
	struct daemon d;

	daemon_start(&d, good);
	daemon_signal(&d, SIGKILL); /* leaves its sockets lying about */
	assert_int_equal(access(d.socket, F_OK), 0);
	daemon_restart(&d); /* asserts that it serves */
	daemon_signal(&d, SIGTERM);
	assert_int_equal(access(d.socket, F_OK), -1); /* a clean stop leaves none */
	daemon_remove(&d);
}

TEST(keys_survive_a_restart)
{
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_RAW);
	struct kvtier_key before[4], after[4];
	struct engine e;
	struct daemon d;

	daemon_start(&d, good);
	engine_open(&e, d.socket, "engine", &g, 4);
	chain_keys(&e, 1, 4, before);
	engine_close(&e);
	daemon_signal(&d, SIGTERM);
	daemon_restart(&d);
	engine_open(&e, d.socket, "engine", &g, 4);
	chain_keys(&e, 1, 4, after);
	engine_close(&e);
	assert_memory_equal(before, after, sizeof(before));
	daemon_remove(&d);
}

TEST(one_client_more_than_allowed)
{
	struct kvtier_client *clients[2], *extra;
	char config[512];
	struct daemon d;

	snprintf(config, sizeof(config), "%s[socket]\nmax_clients = 2\n", good);
	daemon_start(&d, config);
	daemon_stat_becomes(&d, "clients", 0, PATIENT_MS);
	for (int i = 0; i < 2; i++)
		assert_int_equal(
			kvtier_connect(&(struct kvtier_options){ .size = sizeof(
									 struct kvtier_options),
								 .socket_path = d.socket },
				       &clients[i]),
			0);
	assert_int_equal(kvtier_connect(&(struct kvtier_options){ .size = sizeof(
									  struct kvtier_options),
								  .socket_path = d.socket,
								  .timeout_ms = 1000 },
					&extra),
			 -EBUSY);
	assert_non_null(strstr(kvtier_last_error(),
			       "2 clients are connected, as many as [socket] max_clients allows"));
	kvtier_close(clients[0]);
	daemon_stat_becomes(&d, "clients", 1, PATIENT_MS);
	assert_int_equal(kvtier_connect(&(struct kvtier_options){ .size = sizeof(
									  struct kvtier_options),
								  .socket_path = d.socket },
					&clients[0]),
			 0);
	kvtier_close(clients[0]);
	kvtier_close(clients[1]);
	assert_true(daemon_stat(&d, "clients_refused_total") >= 1);
	daemon_remove(&d);
}
