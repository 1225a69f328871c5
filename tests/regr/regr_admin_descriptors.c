/* SPDX-License-Identifier: Apache-2.0 */
/* make: needs=kvtierd_old_kernel lane=wait */
/*
 * regr_admin_descriptors.c - goal: a descriptor that a peer sends to the admin socket, whatever
 * it is, holds up nobody, whether the peer may ask or is refused. The core thread received and
 * dropped it. Method: while the daemon is stopped, peers send TCP sockets that linger, and keep no
 * reference. Then an engine works, a new one comes, and kvtierctl is answered. And with a kvtierd
 * on a kernel that cannot keep descriptors out of a socket, a stranger cannot connect.
 */
#include "tests/lib/lib_packet.h"
#include "tests/lib/lib_raw.h"

#include <limits.h>

#include "base/own.h"
#include "tests/lib/lib_linger.h"

enum { PEERS = 26, BLOCKS = 4, STRANGER = 20001 };

static const char config[] = "[host]\nbytes = 4M\nslab_bytes = 256K\nhuge_pages = no\n";
static struct {
	struct daemon d;
	struct engine e;
	struct kvtier_key keys[BLOCKS];
	struct lingers lingers;
	int fds[LINGER_MAX];
} w;

static int begin_with(const char *program)
{
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_RAW);
	char admin[sizeof(w.d.dir) + 16];

	memset(&w, 0, sizeof(w));
	lingers_begin(&w.lingers);
	daemon_place(&w.d, false);
	w.d.program = program;
	daemon_configure(&w.d, config);
	daemon_restart(&w.d);
	(void)snprintf(admin, sizeof(admin), "%s/admin.sock", w.d.dir);
	assert_int_equal(chmod(w.d.dir, 0755), 0); /* for the stranger */
	if (!program)
		assert_int_equal(chmod(admin, 0666), 0);
	engine_open(&w.e, w.d.socket, "honest", &g, 2 * BLOCKS);
	chain_keys(&w.e, 1, BLOCKS, w.keys);
	assert_int_equal(chain_store(&w.e, w.keys, 0, BLOCKS), 0);
	return 0;
}

FIXTURE(begin_here)
{
	return begin_with(NULL);
}

FIXTURE(begin_old)
{
	return begin_with("tests/kvtierd_old_kernel");
}

FIXTURE(end)
{
	engine_close(&w.e);
	daemon_remove(&w.d); /* a clean exit, with all that blocks */
	lingers_end(&w.lingers);
	return 0;
}

/* --- peers --- */

static int dial(void)
{
	char path[128];

	(void)snprintf(path, sizeof(path), "%s/admin.sock", w.d.dir);
	return packet_dial(path, 0);
}

/* A peer that asks, sends fd, and dies. False: the kernel let fd through, or it could not ask. */
static bool is_kept_out(int fd, bool asks_before)
{
	static const char request[] = "clients";
	struct raw r = { .fd = dial() };
	int s = 0;

	if (r.fd < 0)
		return false;
	if (asks_before)
		s = raw_send(&r, request, sizeof(request) - 1, NULL, 0);
	if (s == 0)
		s = raw_send(&r, request, sizeof(request) - 1, &fd, 1);
	(void)close(r.fd);
	return s == -EPERM;
}

static void be(uid_t uid)
{
	if (uid && (setgid(uid) || setuid(uid)))
		_exit(255);
}

/* In a process of its own. */
static void expect_of(uid_t uid, bool (*what)(bool asks_before), bool asks_before)
{
	const pid_t pid = fork();
	int status;

	if (pid == 0) {
		be(uid);
		_exit(what(asks_before) ? 0 : 1);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
}

static bool all_are_kept_out(bool asks_before)
{
	for (uint32_t i = 0; i < PEERS; i++)
		if (!is_kept_out(w.fds[i], asks_before))
			return false;
	return true;
}

static bool cannot_connect(TEST_UNUSED bool unused)
{
	return dial() == -EACCES;
}

/* While the daemon is stopped: what got through would be the last references when it goes on. */
static void peers_ask(uid_t uid, bool asks_before)
{
	const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	const bool keeps_out = socket_pass_fds(fd, false);

	(void)close(fd);
	if (!keeps_out) /* before 6.16: then only root and the daemon's own user get so far */
		skip();
	daemon_signal(&w.d, SIGSTOP);
	for (uint32_t i = 0; i < PEERS; i++)
		w.fds[i] = lingers_add(&w.lingers);
	expect_of(uid, all_are_kept_out, asks_before);
	lingers_reset(&w.lingers);
	for (uint32_t i = 0; i < PEERS; i++)
		(void)close(w.fds[i]);
	daemon_signal(&w.d, SIGCONT);
}

/* --- others --- */

static void engines_are_served(void)
{
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_RAW);
	struct engine late;

	engine_lookup_becomes(&w.e, w.keys, BLOCKS, BLOCKS);
	for (int i = 0; i < 50; i++)
		assert_int_equal(chain_load(&w.e, w.keys, BLOCKS, BLOCKS), BLOCKS);
	engine_open(&late, w.d.socket, "late", &g, 2 * BLOCKS);
	assert_int_equal(chain_load(&late, w.keys, 0, BLOCKS), BLOCKS);
	engine_close(&late);
}

static void asking_is_answered(void)
{
	char text[4096];

	assert_int_equal(daemon_ctl(&w.d, "clients", text, sizeof(text)), 0);
	assert_non_null(strstr(text, "honest"));
}

static void all_are_served(void)
{
	engines_are_served();
	asking_is_answered();
}

/* --- cases --- */

TEST_WITH(with_a_request, begin_here, end)
{
	peers_ask(0, false);
	all_are_served();
}

TEST_WITH(behind_a_request, begin_here, end)
{
	peers_ask(0, true);
	all_are_served();
}

TEST_WITH(from_a_stranger, begin_here, end)
{
	if (geteuid() != 0)
		skip();
	peers_ask(STRANGER, false);
	all_are_served();
}

TEST_WITH(a_stranger_cannot_connect_where_the_kernel_is_old, begin_old, end)
{
	char path[PATH_MAX];
	struct stat st;

	(void)snprintf(path, sizeof(path), "%s/admin.sock", w.d.dir);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0600);
	if (geteuid() == 0)
		expect_of(STRANGER, cannot_connect, false);
	all_are_served();
}
