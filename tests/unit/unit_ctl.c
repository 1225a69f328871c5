/* SPDX-License-Identifier: Apache-2.0 */
/* make: wrap=server_row,space_at,spaces_numbers,blocks_counts,counts_variant,counts_blocks */
/* make: wrap=mover_evict_bytes */
/*
 * unit_ctl - goal: the admin socket answers users who may ask, whole and as JSON; a user who asks
 * badly, slowly or too often costs the others nothing. Method: the real ctl.c and loop.c, all else
 * faked (lib_ctl.h); the asker is a second thread.
 */
#include "tests/lib/lib_ctl.h"
#include "tests/lib/lib_packet.h"

#include "daemon/admin/ctl.h"

/* --- cases --- */

static void ask_clients(int fd)
{
	assert_int_equal(ASK(fd, "clients"), '.');
	assert_int_equal(admin_rows("clients"), 3);
	assert_null(strpbrk(heard.text, "\033\xff\x9b")); /* nothing that talks to a terminal */
	admin_says("a\\\"b\\\\c\\u000a\\u001b[31m\\ufffd");
	admin_says("\"state\":\"open\",\"wire\":\"\",\"path\":\"shared\"");
	admin_says("\"state\":\"ending\",\"wire\":\"\",\"path\":\"shared\"");
	admin_says("\"pages\":2,");
}

ADMIN_CASE(long_lists_come_in_packets, fake.clients = 4096)
{
	assert_int_equal(ASK(fd, "clients"), '.');
	assert_int_equal(admin_rows("clients"), 4096);
	assert_true(heard.packets > 1);
}

ADMIN_CASE(spaces_are_json, fake.spaces = 300)
{
	assert_int_equal(ASK(fd, "spaces"), '.');
	assert_int_equal(admin_rows("spaces"), 300);
	admin_says("\"dtype\":\"bf16\",\"codec\":\"fp8\"");
	admin_says("\"blocks\":5990");
}

ADMIN_CASE(empty_lists_are_lists, fake.clients = fake.spaces = 0)
{
	assert_int_equal(ASK(fd, "clients"), '.');
	assert_int_equal(admin_rows("clients"), 0);
	assert_int_equal(ASK(fd, "spaces"), '.');
	assert_int_equal(admin_rows("spaces"), 0);
}

ADMIN_CASE(evicting_all_goes_in_slices, fake.blocks = 10000)
{
	assert_int_equal(ASK(fd, "evict\0--all"), '.');
	assert_true(fake.slices > 10);
	assert_string_equal(
		heard.text,
		"{\"evicted_blocks\":10000,\"demoted_blocks\":5000,\"freed_bytes\":10000000,"
		"\"complete\":true}\n");
}

ADMIN_CASE(evicting_some_stops_there, fake.blocks = 10)
{
	assert_int_equal(ASK(fd, "evict\0--bytes\0"
				 "5500"),
			 '.');
	assert_string_equal(heard.text,
			    "{\"evicted_blocks\":6,\"demoted_blocks\":3,\"freed_bytes\":6000,"
			    "\"complete\":true}\n");
	assert_int_equal(ASK(fd, "evict\0--bytes\0"
				 "900000"),
			 '.');
	assert_string_equal(heard.text,
			    "{\"evicted_blocks\":4,\"demoted_blocks\":2,\"freed_bytes\":4000,"
			    "\"complete\":false}\n");
}

static void ask_badly(int fd)
{
	char large[CTL_MAX_REQUEST + 1];

	memset(large, 'x', sizeof(large));
	assert_int_equal(ASK(fd, "reboot\033"), '?');
	admin_says("reboot\\x1b: no such command; this daemon knows clients, ");
	assert_int_equal(ASK(fd, "clients\0now"), '?');
	assert_int_equal(ASK(fd, "evict"), '?');
	assert_int_equal(ASK(fd, "evict\0--bytes\0-5"), '?');
	assert_int_equal(ASK(fd, "evict\0--bytes\0"
				 "99999999999999999999"),
			 '?');
	assert_int_equal(ASK(fd, "evict\0--bytes\0"
				 "5x"),
			 '?');
	assert_int_equal(ASK(fd, "a\0a\0a\0a\0a\0a\0a\0a\0a\0a\0a\0a\0a\0a\0a\0a\0a\0a\0a"), '?');
	admin_says("one to 18 words");
	assert_int_equal(ASK(fd, "evict\0--all\0--bytes\0"
				 "5"),
			 '?');
	admin_says("evict takes either --all, or --bytes and a number above 0");
	assert_int_equal(ASK(fd, "evict\0--bytes\0--all"), '?'); /* a value, and no number */
	admin_says("evict takes either --all, or --bytes and a number above 0");
	assert_int_equal(ASK(fd, "evict\0--bytes"), '?');
	admin_says("evict: --bytes needs a value");
	assert_int_equal(ASK(fd, "evict\0--all\0--tier\0nvme"), '?');
	assert_int_equal(ASK(fd, "evict\0--al"), '?');
	admin_says("evict takes no \"--al\"; it takes --all | --bytes N");
	assert_int_equal(admin_ask(fd, large, sizeof(large)), '?');
	admin_says("at most 512 bytes");
	assert_int_equal(admin_ask(fd, large, sizeof(large) - 1), '?');
	admin_says("no such command");
	assert_int_equal(ASK(fd, "clients"), '.'); /* and the connection still serves */
	assert_int_equal(fake.slices, 0);
}

/* Eight that ask for much and do not read; a ninth waits its turn; then the eight are gone. */
static void ask_and_not_read(void)
{
	int fds[CTL_MAX_CONNECTIONS], ninth;
	char rest[16];

	for (int i = 0; i < CTL_MAX_CONNECTIONS; i++) {
		fds[i] = admin_dial();
		assert_int_equal(send(fds[i], "clients", 7, 0), 7);
	}
	ninth = admin_dial();
	assert_int_equal(send(ninth, "spaces", 6, 0), 6);
	/* served only when the deadline cut somebody off */
	assert_int_equal(admin_hear(ninth), '.');
	assert_int_equal(admin_rows("spaces"), 2);
	for (int i = 0; i < CTL_MAX_CONNECTIONS; i++) {
		while (recv(fds[i], rest, sizeof(rest), 0) > 0)
			;
		(void)close(fds[i]);
	}
	(void)close(ninth);
}

/* One that does not read has no say over the others. */
ADMIN_CASE(others_are_served_meanwhile, fake.clients = 20000)
{
	const int deaf = admin_dial();

	assert_int_equal(send(deaf, "clients", 7, 0), 7);
	for (int i = 0; i < 100; i++)
		assert_int_equal(ASK(fd, "spaces"), '.');
	assert_int_equal(poll(&(struct pollfd){ .fd = deaf, .events = POLLIN }, 1, 0), 1);
	(void)close(deaf);
}

static void ask_and_hang_up(void)
{
	int fd;

	for (int i = 0; i < 500; i++) {
		fd = admin_dial();

		assert_int_equal(send(fd, "clients", 7, 0), 7);
		(void)close(fd);
	}
	fd = admin_dial();
	ask_clients(fd);
	(void)close(fd);
}

static void ask_as_nobody(void)
{
	const pid_t child = fork();
	int status;

	if (child == 0) {
		int fd;

		if (setgid(65534) < 0 || setuid(65534) < 0)
			_exit(1);
		fd = admin_dial();
		_exit(admin_hear(fd) == '!' && strstr(heard.text, "only root") != NULL &&
				      admin_hear(fd) == 0 ?
			      0 :
			      2);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
}

TEST(other_users_are_refused)
{
	if (geteuid() != 0)
		skip();
	assert_int_equal(chmod(admin_config.admin_path, 0666), 0);
	admin_with_loop(ask_as_nobody);
}

TEST(the_socket_has_the_mode_asked_for)
{
	struct stat st;

	assert_int_equal(stat(admin_config.admin_path, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0600);
}

TEST(an_answered_socket_is_not_taken)
{
	struct ctl *second = NULL;
	char text[256];

	assert_int_equal(ctl_open(&admin_daemon, &second, text, sizeof(text)), -EADDRINUSE);
	assert_non_null(strstr(text, "another kvtierd answers there"));
	assert_null(second);
	assert_int_equal(access(admin_config.admin_path, F_OK), 0);
}

TEST(a_dead_daemons_socket_is_replaced)
{
	char text[256];

	admin_close();
	(void)close(packet_listen(admin_config.admin_path));
	assert_int_equal(access(admin_config.admin_path, F_OK), 0);
	assert_int_equal(ctl_open(&admin_daemon, &admin_daemon.ctl, text, sizeof(text)), 0);
	admin_asks(ask_clients);
}

TEST(a_file_is_not_replaced)
{
	char text[256];
	FILE *file;

	admin_close();
	file = fopen(admin_config.admin_path, "w");
	(void)fclose(file);
	assert_int_equal(ctl_open(&admin_daemon, &admin_daemon.ctl, text, sizeof(text)), -EEXIST);
	assert_non_null(strstr(text, "is no socket"));
	assert_int_equal(unlink(admin_config.admin_path), 0);
	assert_int_equal(ctl_open(&admin_daemon, &admin_daemon.ctl, text, sizeof(text)), 0);
}

TEST_DO(clients_are_json, admin_asks(ask_clients));
TEST_DO(bad_requests_get_a_sentence, admin_asks(ask_badly));
TEST_DO(who_does_not_read_is_cut_off, fake.clients = 20000; admin_with_loop(ask_and_not_read));
TEST_DO(who_hangs_up_leaves_nothing, admin_with_loop(ask_and_hang_up));

TEST_EACH(admin_set_up, admin_tear_down);
