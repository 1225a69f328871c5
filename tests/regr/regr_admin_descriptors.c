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

#include "base/own.h"
#include "tests/lib/lib_linger.h"

enum { PEERS = 26, STRANGER = 20001 };

static struct {
	struct honest honest;
	struct lingers lingers;
	int fds[LINGER_MAX];
	char admin[sizeof(((struct daemon *)0)->dir) + 16]; /* its socket */
} w;

static void begin_with(const char *program)
{
	const char *dir = w.honest.d.dir;

	memset(&w, 0, sizeof(w));
	lingers_begin(&w.lingers);
	honest_begin(&w.honest, program);
	(void)snprintf(w.admin, sizeof(w.admin), "%s/admin.sock", dir);
	assert_int_equal(chmod(dir, 0755), 0); /* for the stranger */
	if (!program)
		assert_int_equal(chmod(w.admin, 0666), 0);
}

FIXTURE_DO(begin_here, begin_with(NULL));
FIXTURE_DO(begin_old, begin_with("tests/kvtierd_old_kernel"));
/* A clean exit, with all that blocks. */
FIXTURE_DO(end, honest_end(&w.honest); lingers_end(&w.lingers));

/* --- peers --- */

/* A peer that asks, sends fd, and dies. False: the kernel let fd through, or it could not ask. */
static bool is_kept_out(int fd, bool asks_before)
{
	static const char request[] = "clients";
	struct raw r = { .fd = packet_dial(w.admin, 0) };
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

/* In a process of its own. */
static void expect_of(uid_t uid, bool (*what)(bool asks_before), bool asks_before)
{
	const pid_t pid = fork();
	int status;

	if (pid == 0) {
		if (uid && (setgid(uid) || setuid(uid)))
			_exit(255);
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
	return packet_dial(w.admin, 0) == -EACCES;
}

/* While the daemon is stopped: what got through would be the last references when it goes on. */
static void peers_ask(uid_t uid, bool asks_before)
{
	const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	const bool keeps_out = socket_pass_fds(fd, false);

	(void)close(fd);
	if (!keeps_out) /* before 6.16: then only root and the daemon's own user get so far */
		skip();
	daemon_signal(&w.honest.d, SIGSTOP);
	for (uint32_t i = 0; i < PEERS; i++)
		w.fds[i] = lingers_add(&w.lingers);
	expect_of(uid, all_are_kept_out, asks_before);
	lingers_reset(&w.lingers);
	for (uint32_t i = 0; i < PEERS; i++)
		(void)close(w.fds[i]);
	daemon_signal(&w.honest.d, SIGCONT);
}

/* --- cases --- */

static void all_are_served(void)
{
	honest_is_served(&w.honest);
	assert_non_null(strstr(daemon_told(&w.honest.d, "clients"), "honest"));
}

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
	struct stat st;

	assert_int_equal(stat(w.admin, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0600);
	if (geteuid() == 0)
		expect_of(STRANGER, cannot_connect, false);
	all_are_served();
}
