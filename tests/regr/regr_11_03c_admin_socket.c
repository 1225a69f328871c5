/* SPDX-License-Identifier: Apache-2.0 */
/* make: needs=kvtierd_old_kernel lane=wait */
/*
 * regr_11_03c_admin_socket.c - goal: a descriptor that a peer sends to the admin socket, whatever
 * it is, holds up nobody, whether the peer may ask or is refused. The core thread received and
 * dropped it. Method: while the daemon is stopped, peers send TCP sockets that linger, and keep no
 * reference. Then an engine works, a new one comes, and kvtierctl is answered. All of it with a
 * kvtierd that has this machine's kernel, and with one on a kernel that cannot keep descriptors
 * out of a socket: there, helpers must be seen to close all of them meanwhile.
 */
#include "tests/lib/lib_raw.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/lib_linger.h"

/* MANY: more than helpers close before the admin socket is left alone, fewer than its backlog. */
enum { PEERS = 26, MANY = 60, BLOCKS = 4, STRANGER = 20001 };

static const char config[] = "[host]\nbytes = 4M\nslab_bytes = 256K\nhuge_pages = no\n"
			     "[admin]\nmode = 0666\n";
static const char old_kernel[] = "tests/kvtierd_old_kernel";

static struct {
	struct daemon d;
	struct engine e;
	struct kvtier_key keys[BLOCKS];
	struct lingers lingers;
	int fds[LINGER_MAX];
} w;

static int begin(void **state)
{
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_RAW);

	memset(&w, 0, sizeof(w));
	lingers_begin(&w.lingers);
	daemon_place(&w.d, false);
	w.d.program = *state;
	daemon_configure(&w.d, config);
	daemon_restart(&w.d);
	assert_int_equal(chmod(w.d.dir, 0755), 0); /* for the stranger */
	engine_open(&w.e, w.d.socket, "honest", &g, 2 * BLOCKS);
	chain_keys(&w.e, 1, BLOCKS, w.keys);
	assert_int_equal(chain_store(&w.e, w.keys, 0, BLOCKS), 0);
	return 0;
}

static int end(void **state)
{
	(void)state;
	engine_close(&w.e);
	daemon_remove(&w.d); /* a clean exit, with all that blocks */
	lingers_end(&w.lingers);
	return 0;
}

/* --- peers --- */

static int dial(void)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	(void)snprintf(a.sun_path, sizeof(a.sun_path), "%s/admin.sock", w.d.dir);
	return fd >= 0 && connect(fd, (const struct sockaddr *)&a, sizeof(a)) == 0 ? fd : -1;
}

/* A peer that asks, sends fd, and dies. Whether the kernel let fd through; -1: it could not ask. */
static int ask_with(int fd, bool asks_before)
{
	static const char request[] = "clients";
	struct raw r = { .fd = dial() };
	int s = 0;

	if (r.fd < 0)
		return -1;
	if (asks_before)
		s = raw_send(&r, request, sizeof(request) - 1, NULL, 0);
	if (s == 0)
		s = raw_send(&r, request, sizeof(request) - 1, &fd, 1);
	(void)close(r.fd);
	return s == 0 ? 1 : s == -EPERM ? 0 : -1;
}

/* Runs in a process of its own. */
static void ask_as(uid_t uid, uint32_t n, bool asks_before)
{
	uint32_t through = 0;

	if (uid && (setgid(uid) || setuid(uid)))
		_exit(255);
	for (uint32_t i = 0; i < n; i++) {
		const int one = ask_with(w.fds[i], asks_before);

		if (one < 0)
			_exit(255);
		through += (uint32_t)one;
	}
	_exit((int)through);
}

/* The references in the packets are the last ones when the daemon goes on. */
static void peers_ask(uid_t uid, uint32_t n, bool asks_before)
{
	uint32_t through;
	int status;
	pid_t pid;

	daemon_signal(&w.d, SIGSTOP);
	for (uint32_t i = 0; i < n; i++)
		w.fds[i] = lingers_add(&w.lingers);
	pid = fork();
	if (pid == 0)
		ask_as(uid, n, asks_before);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	through = (uint32_t)WEXITSTATUS(status);
	print_message("%u of %u descriptors got through\n", through, n);
	if (w.d.program)
		assert_int_equal(through, n);
	else
		assert_true(through == 0 || through == n);
	if (through == 0) /* ours are the last ones */
		lingers_reset(&w.lingers);
	for (uint32_t i = 0; i < n; i++)
		(void)close(w.fds[i]);
	daemon_signal(&w.d, SIGCONT);
}

/* --- others --- */

static uint32_t threads(void)
{
	char command[64], text[32];

	(void)snprintf(command, sizeof(command), "ls /proc/%d/task | wc -l", w.d.pid);
	assert_int_equal(shell(command, text, sizeof(text)), 0);
	return (uint32_t)strtoul(text, NULL, 10);
}

/* Each that blocks has a thread of its own. */
static void helpers_have(uint32_t n)
{
	for (struct look look = look_at(&w.d, PATIENT_MS); threads() < n;)
		if (!look_again(&look))
			fail_msg("the daemon has %u threads, not %u that close", threads(), n);
}

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
	if (w.d.program)
		helpers_have(PEERS);
	engines_are_served();
	asking_is_answered();
}

/* --- cases --- */

static void with_a_request(void **state)
{
	(void)state;
	peers_ask(0, PEERS, false);
	all_are_served();
}

static void behind_a_request(void **state)
{
	(void)state;
	peers_ask(0, PEERS, true);
	all_are_served();
}

static void from_a_stranger(void **state)
{
	(void)state;
	if (geteuid() != 0)
		skip();
	peers_ask(STRANGER, PEERS, false);
	all_are_served();
}

static void more_than_helpers_take(void **state)
{
	(void)state;
	peers_ask(0, MANY, false);
	engines_are_served();
	lingers_reset(&w.lingers);
	asking_is_answered();
}

#define CASE(function, program)                                               \
	{                                                                     \
#function, function, begin, end, (void *)(uintptr_t)(program) \
	}

int main(void)
{
	const struct CMUnitTest here[] = {
		CASE(with_a_request, NULL),
		CASE(behind_a_request, NULL),
		CASE(from_a_stranger, NULL),
		CASE(more_than_helpers_take, NULL),
	};
	const struct CMUnitTest old[] = {
		CASE(with_a_request, old_kernel),
		CASE(behind_a_request, old_kernel),
		CASE(from_a_stranger, old_kernel),
		CASE(more_than_helpers_take, old_kernel),
	};

	/* A daemon that leaves what blocks leaves threads. */
	(void)setenv("TSAN_OPTIONS", "report_thread_leaks=0", 1);
	return cmocka_run_group_tests_name("this kernel", here, NULL, NULL) +
	       cmocka_run_group_tests_name("an old kernel", old, NULL, NULL);
}
