/* SPDX-License-Identifier: Apache-2.0 */
/* make: needs=kvtierd_halfway seconds=10 */
/*
 * fault_start.c - goal: a start that is refused any call after the NVMe disks were opened ends with
 * exit status 1 and a sentence, and leaves no socket and no stats page; until a start is over,
 * status says that kvtierd starts. Method: kvtierd_halfway.c, in which one call after the other
 * fails until a start needs fewer. A start without NVMe that failed closes all that it has, which
 * the sanitizers see. Keys whose fault only the start finds: sys_config.kvt.
 */
#include "tests/lib/lib.h"
#include "tests/lib/lib_scratch.h"

enum { MOST_CALLS = 400 };

static const char common[] =
	HOST("1M", "256K") "[device]\nworkers = 1\n[socket]\nmax_clients = 4\n";
static const char nvme[] = "[nvme]\nbytes = 1M\nsegment_bytes = 64K\n";

static bool there(const struct daemon *d, const char *name)
{
	char path[160];

	(void)snprintf(path, sizeof(path), "%s/%s", d->dir, name);
	return access(path, F_OK) == 0;
}

/* Runs it in the foreground until it ends; the exit status, what it said in ret. */
static int run(const struct daemon *d, int call, char *ret, size_t n)
{
	char command[512];
	int status;

	(void)snprintf(
		command, sizeof(command),
		"KVTIER_TEST_CALL=%d timeout -s KILL 60 %s/tests/kvtierd_halfway --config %s "
		"2>&1",
		call, build_dir(), d->config);
	status = shell(command, ret, n);
	if (there(d, "kvtier.sock") || there(d, "admin.sock") || there(d, "stats"))
		fail_msg("call %d: a socket or the stats page is left behind", call);
	return status;
}

/* --- calls --- */

static void each_call_fails(const char *tier)
{
	char config[1024], text[8192];
	struct daemon d;
	int call = 1, refused = 0, status;

	(void)snprintf(config, sizeof(config), "%s%s[redis]\nendpoints = 127.0.0.1:1\n", common,
		       tier);
	daemon_place(&d, tier[0]);
	daemon_configure(&d, config);
	for (; call < MOST_CALLS; call++) {
		status = run(&d, call, text, sizeof(text));
		if (status == 0 && strstr(text, "no such call"))
			break;
		if (status != 0 && (status != 1 || !strstr(text, "kvtierd: ")))
			fail_msg("call %d: exit status %d, and it said: %s", call, status, text);
		refused += status;
	}
	printf("%d calls, %d starts failed\n", call - 1, refused);
	assert_true(refused > 5 && call < MOST_CALLS);
	daemon_remove(&d);
}

TEST_DO(each_call_fails_after_nvme_was_opened, each_call_fails(nvme));
TEST_DO(each_call_fails_without_nvme, each_call_fails(""));

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
	(void)setenv("KVTIER_TEST_HOLD", hold, 1);
	d.program = "tests/kvtierd_halfway";
	daemon_spawn(&d);
	(void)unsetenv("KVTIER_TEST_HOLD");
	AWAIT(there(&d, "stats"));
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
