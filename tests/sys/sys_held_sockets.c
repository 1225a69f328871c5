/* SPDX-License-Identifier: Apache-2.0 */
/*
 * make: lane=wait
 * sys_held_sockets.c - goal: a kvtierd whose socket the service manager holds serves it as it is,
 * clients that connect while there is no kvtierd wait for the next one, and a socket that is not of
 * [socket] is refused with a reason. Method: this test listens, and hands its socket to each
 * kvtierd as systemd does: descriptor 3, LISTEN_FDS, LISTEN_PID.
 */
#include "tests/lib/lib_packet.h"
#include "tests/lib/lib.h"

enum { BLOCKS = 8, FIRST = 3, MODE = 0620, BAD_CONFIGURATION = 78 };

static struct daemon d;
static int held, passed;

/* In the process that becomes kvtierd. */
static void hand_over(void)
{
	char pid[16];

	(void)snprintf(pid, sizeof(pid), "%d", (int)getpid());
	if (dup2(passed, FIRST) != FIRST || setenv("LISTEN_FDS", "1", 1) ||
	    setenv("LISTEN_PID", pid, 1))
		_exit(126);
	(void)fcntl(FIRST, F_SETFD, 0); /* also where it was descriptor 3 already */
}

FIXTURE(begin)
{
	daemon_place(&d, false);
	d.enter = hand_over;
	daemon_configure(&d, SMALL_HOST "[socket]\nmode = 0600\n");
	held = passed = packet_listen(d.socket);
	return chmod(d.socket, MODE);
}

FIXTURE_DO(end, (void)close(held); daemon_remove(&d));

TEST_EACH(begin, end);

static ino_t inode(void)
{
	struct stat st;

	assert_int_equal(stat(d.socket, &st), 0);
	assert_int_equal(st.st_mode & 0777, MODE);
	return st.st_ino;
}

TEST(its_file_stays_as_it_is)
{
	const ino_t before = inode();

	daemon_restart(&d);
	assert_int_equal(inode(), before);
	daemon_signal(&d, SIGTERM);
	assert_int_equal(inode(), before);
}

/* Not the manager, which listened first. */
TEST(clients_see_kvtierd_as_their_peer)
{
	struct ucred peer = { 0 };
	socklen_t n = sizeof(peer);
	int fd;

	daemon_restart(&d);
	fd = packet_dial(d.socket, PATIENT_MS);
	assert_int_equal(getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &n), 0);
	assert_int_equal(peer.pid, d.pid);
	(void)close(fd);
}

static void a_client_waits_through(int end_of_daemon)
{
	const struct wire_hello hello = packet_hello(1, 64, "waits");
	struct wire_hello_ok ok = { 0 };
	int fds[PACKET_FDS], fd;
	size_t n_fds;

	daemon_restart(&d);
	daemon_signal(&d, end_of_daemon);
	fd = packet_dial(d.socket, PATIENT_MS);
	assert_true(fd >= 0);
	assert_int_equal(packet_with_fds(fd, &hello, sizeof(hello), NULL, 0), 0);
	daemon_restart(&d);
	assert_int_equal(packet_receive(fd, 0, &ok, sizeof(ok), fds, &n_fds), sizeof(ok));
	assert_int_equal(ok.head.type, WIRE_HELLO_OK);
	while (n_fds > 0)
		(void)close(fds[--n_fds]);
	(void)close(fd);
}

TEST_DO(a_client_waits_through_a_crash, a_client_waits_through(SIGKILL));
TEST_DO(a_client_waits_through_a_stop, a_client_waits_through(SIGTERM));

/* The library's, too: its blocks are gone, as there is no NVMe, and its next store is served. */
TEST(an_engine_goes_on_with_the_next_kvtierd)
{
	struct kvtier_key keys[BLOCKS];
	struct engine e;

	daemon_restart(&d);
	engine_open(&e, d.socket, "engine", &tiny_raw, BLOCKS);
	chain_keys(&e, 1, BLOCKS, keys);
	assert_int_equal(chain_store(&e, keys, 0, BLOCKS), 0);
	daemon_signal(&d, SIGKILL);
	daemon_restart(&d);
	engine_lookup_becomes(&e, keys, BLOCKS, 0);
	AWAIT(chain_store(&e, keys, 0, BLOCKS) == 0);
	engine_lookup_becomes(&e, keys, BLOCKS, BLOCKS);
	engine_close(&e);
}

static void is_refused(int fd, const char *words, int exit_status)
{
	int status;

	passed = fd;
	daemon_spawn(&d);
	status = daemon_wait(&d, PATIENT_MS);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == exit_status);
	assert_int_equal(daemon_log_lines(&d, words), 1);
}

TEST(a_socket_of_no_section_is_refused)
{
	char path[128];
	int fd;

	(void)snprintf(path, sizeof(path), "%s/other.sock", d.dir);
	fd = packet_listen(path);
	is_refused(fd, "other.sock for kvtierd, and no [socket] has this path", BAD_CONFIGURATION);
	(void)close(fd);
}

TEST(a_socket_that_does_not_listen_is_refused)
{
	const int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);

	is_refused(fd, "ListenSequentialPacket=", BAD_CONFIGURATION);
	(void)close(fd);
}

TEST_DO(a_descriptor_of_another_kind_is_refused,
	is_refused(STDOUT_FILENO, "ListenSequentialPacket=", BAD_CONFIGURATION));

/* A process that inherited the variables and not the sockets is another one. */
TEST(another_process_is_not_meant)
{
	d.enter = NULL;
	assert_int_equal(setenv("LISTEN_FDS", "1", 1) || setenv("LISTEN_PID", "1", 1), 0);
	is_refused(STDOUT_FILENO, "another daemon's: it answers there", EXIT_FAILURE);
	assert_int_equal(unsetenv("LISTEN_FDS") || unsetenv("LISTEN_PID"), 0);
}
