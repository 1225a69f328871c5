/* SPDX-License-Identifier: Apache-2.0 */
/* make: needs=kvtierd_halfway seconds=10 */
/*
 * fault_start.c - goal: a start that fails after the NVMe disks were opened ends with exit status 1
 * and a sentence, and leaves neither socket nor stats page; a later start finds the store well; and
 * status tells a start as such until it is over. Method: keys whose fault only the start finds; and
 * kvtierd_halfway.c, which is refused one call after the other until a start needs fewer. Without
 * NVMe a start that failed closes all that it has, and the sanitizers look.
 */
#include "tests/lib/lib.h"
#include "tests/lib/lib_scratch.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_CALLS = 400 };

static const char common[] = "[host]\nbytes = 1M\nslab_bytes = 256K\nhuge_pages = no\n"
			     "[device]\nworkers = 1\n[socket]\nmax_clients = 4\n";
static const char nvme[] = "[nvme]\nbytes = 1M\nsegment_bytes = 64K\n";

static bool there(const struct daemon *d, const char *name)
{
	char path[160];

	(void)snprintf(path, sizeof(path), "%s/%s", d->dir, name);
	return access(path, F_OK) == 0;
}

/* Runs `program` in front until it ends; the exit status, what it said in ret. */
static int run(const struct daemon *d, const char *program, int call, char *ret, size_t n)
{
	char command[512];
	int status;

	(void)snprintf(command, sizeof(command),
		       "KVTIER_TEST_CALL=%d timeout -s KILL 60 %s/%s --config %s 2>&1", call,
		       build_dir(), program, d->config);
	status = shell(command, ret, n);
	if (there(d, "kvtier.sock") || there(d, "admin.sock") || there(d, "stats"))
		fail_msg("call %d: a socket or the stats page is left behind", call);
	return status;
}

/* --- keys --- */

static void wrong_key_is_named(const char *lines, const char *words)
{
	char config[1024], text[4096];
	struct daemon d;

	daemon_place(&d, true);
	for (int life = 0; life < 2; life++) { /* the store is made; it is found */
		(void)snprintf(config, sizeof(config), "%s%s%s", common, nvme, lines);
		daemon_configure(&d, config);
		assert_int_equal(run(&d, "kvtierd", 0, text, sizeof(text)), 1);
		if (!strstr(text, words))
			fail_msg("said \"%s\"; expected \"%s\"", text, words);
	}
	daemon_configure(&d, "[host]\nbytes = 1M\nslab_bytes = 256K\nhuge_pages = no\n"
			     "[nvme]\nbytes = 1M\nsegment_bytes = 64K\n");
	daemon_restart(&d);
	for (struct look look = look_at(&d, PATIENT_MS); strcmp(text, "up") != 0;
	     daemon_word(&d, "tiers.nvme.state", text, sizeof(text)))
		if (!look_again(&look))
			fail_msg("the store is %s", text);
	daemon_remove(&d);
}

TEST(admin_path_that_is_no_socket)
{
	wrong_key_is_named("[admin]\npath = /dev/null\n", "[admin] path");
}

TEST(socket_path_that_is_no_socket)
{
	wrong_key_is_named("[socket]\npath = /dev/null\n", "[socket] path");
}

TEST(redis_ca_file_that_is_not_there)
{
	wrong_key_is_named("[redis]\nendpoints = 127.0.0.1:1\ntls = yes\ntls_ca_file = /none\n",
			   "/none");
}

/* --- calls --- */

static void each_call_fails(struct daemon *d, const char *tier)
{
	char config[1024], text[8192];
	int call = 1, refused = 0, status;

	(void)snprintf(config, sizeof(config), "%s%s[redis]\nendpoints = 127.0.0.1:1\n", common,
		       tier);
	daemon_configure(d, config);
	for (; call < MOST_CALLS; call++) {
		status = run(d, "tests/kvtierd_halfway", call, text, sizeof(text));
		if (status == 0 && strstr(text, "no such call"))
			break;
		if (status != 0 && (status != 1 || !strstr(text, "kvtierd: ")))
			fail_msg("call %d: exit status %d, and it said: %s", call, status, text);
		refused += status;
	}
	printf("%d calls, %d starts failed\n", call - 1, refused);
	assert_true(refused > 5 && call < MOST_CALLS);
}

TEST(each_call_fails_after_nvme_was_opened)
{
	struct daemon d;

	daemon_place(&d, true);
	each_call_fails(&d, nvme);
	daemon_remove(&d);
}

TEST(each_call_fails_without_nvme)
{
	struct daemon d;

	daemon_place(&d, false);
	each_call_fails(&d, "");
	daemon_remove(&d);
}

/* --- what is told meanwhile --- */

TEST(a_start_is_told_until_engines_can_connect)
{
	char hold[160], text[4096];
	struct daemon d;
	int status;

	daemon_place(&d, false);
	daemon_configure(&d, common);
	(void)snprintf(hold, sizeof(hold), "%s/hold", d.dir);
	assert_int_equal(mkdir(hold, 0700), 0);
	d.pid = fork();
	if (d.pid == 0) {
		char program[512];

		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		(void)setenv("KVTIER_TEST_HOLD", hold, 1);
		(void)snprintf(program, sizeof(program), "%s/tests/kvtierd_halfway", build_dir());
		execl(program, "kvtierd", "--config", d.config, (char *)NULL);
		_exit(127);
	}
	for (struct look look = look_at(&d, PATIENT_MS); !there(&d, "stats");)
		if (!look_again(&look))
			fail_msg("no stats page");
	assert_int_equal(daemon_ctl(&d, "status", text, sizeof(text)), 4);
	assert_memory_equal(text, "STARTING: ", 10);
	assert_false(there(&d, "kvtier.sock"));
	assert_int_equal(rmdir(hold), 0);
	status = daemon_wait(&d, PATIENT_MS); /* it serves, and ends */
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	daemon_remove(&d);
}

TEST_BEGIN
{
	if (!disk_dir()) {
		printf("no directory for O_DIRECT: set TMPDIR to one on a disk\n");
		exit(77);
	}
}
